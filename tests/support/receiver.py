"""A receiver on loopback that is told, byte by byte, how to misbehave: how much it reads, what it says, how it ends."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

End = Literal["closed", "reset", "open"]
Turn = tuple[int | None, bytes, End]
"""How many bytes of the request it reads (None: all of it), what it answers, and how it ends."""


class Receiver:
    """One connection after the other, each as ``turn`` says at that moment."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.turn: Turn | Callable[[bytes], Turn] = (None, b"", "closed")
        self.asked: list[bytes] = []
        """What was read of each request."""
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="receiver", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while not self.over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if callable(self.turn):
                asked = _read(connection, None)
                self.asked.append(asked)
                _, says, end = self.turn(asked)
            else:
                most, says, end = self.turn
                self.asked.append(_read(connection, most))
            connection.sendall(says)
            if end == "open":
                self.over.wait(30)
            if end == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def close(self) -> None:
        self.over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)


def _read(connection: socket.socket, most: int | None) -> bytes:
    """So many bytes, or a whole request with the length that it says it has."""
    read = b""
    while most is None or len(read) < most:
        if most is None and (end := read.find(b"\r\n\r\n")) >= 0:
            head = read[:end].lower()
            _, _, length = head.partition(b"content-length: ")
            if len(read) >= end + 4 + int(length.partition(b"\r\n")[0] or 0):
                break
        piece = connection.recv(65536 if most is None else most - len(read))
        if not piece:
            break
        read += piece
    return read


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.close()
