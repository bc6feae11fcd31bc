"""The process between a worker and a program: starts it, keeps its log within bounds, and says how it ended.

It leads the process group the program runs in, so that whoever kills the group gets both, with all they have
started. It stands alone: run by its path, with the standard library only, it is there in a few milliseconds.
A signal to the group is meant for the program; the shim stays to write down its last words.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Any, BinaryIO

TAIL = 4_096
# What a program leaves behind may keep its output open: after its end it is listened to no longer than this.
LINGER = 0.5
GLANCE = 0.05
# What a program says to its group (`kill 0`) it does not mean for the shim.
OF_THE_PROGRAM = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
)


class Log:
    """At most ``limit`` bytes; what comes after is counted. A disk that is full does not stop the program."""

    def __init__(self, path: str, limit: int) -> None:
        self._file: BinaryIO | None = open(path, "ab", buffering=0)  # noqa: SIM115 - open for as long as the program runs
        self._left = limit
        self._limit = limit
        self._dropped = 0
        self.error: str | None = None

    def write(self, chunk: bytes) -> None:
        kept = chunk[: self._left]
        if kept:
            self._left -= len(kept)
            self._put(kept)
            if self._left == 0:
                self._put(f"\n[holdfast: the log was cut here, after {self._limit:,} bytes]\n".encode())
        self._dropped += len(chunk) - len(kept)

    def close(self) -> None:
        if self._dropped:
            self._put(f"[holdfast: {self._dropped:,} more bytes were not kept]\n".encode())
        if self._file is not None:
            self._file.close()

    def _put(self, text: bytes) -> None:
        if self._file is not None:
            try:
                self._file.write(text)
            except OSError as error:
                self.error = str(error)
                self._file.close()
                self._file = None


def run(order: dict[str, Any], link: socket.socket) -> dict[str, Any]:
    log = Log(order["log"], order["log_limit"])
    try:
        with open(order["stdin"] or os.devnull, "rb") as given:
            process = subprocess.Popen(
                order["argv"],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=order["cwd"],
                env=order["env"],
            )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        log.write(f"[holdfast: not started: {error}]\n".encode(errors="replace"))
        log.close()
        return {"not_started": str(error)}
    tail = _attend(process, log, link)
    log.close()
    return {"exit_code": process.wait(), "stderr": tail.decode(errors="replace"), "log_error": log.error}


def _attend(process: subprocess.Popen[bytes], log: Log, link: socket.socket) -> bytes:
    """Write down what it says until it has ended; answers the end of what it said on stderr."""
    assert process.stdout is not None
    assert process.stderr is not None
    tail = b""
    ended: float | None = None
    with selectors.DefaultSelector() as selector:
        selector.register(link, selectors.EVENT_READ)
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)
        while process.poll() is None or (len(selector.get_map()) > 1 and not _over(ended)):
            if process.returncode is not None and ended is None:
                ended = time.monotonic()
            speaking = len(selector.get_map()) > 1
            for key, _ in selector.select(GLANCE if speaking else 0):
                if key.fileobj is link:
                    os.killpg(0, signal.SIGKILL)  # the worker is gone: nobody wants this any more
                chunk = os.read(key.fd, 65_536)
                if not chunk:
                    selector.unregister(key.fileobj)
                    continue
                log.write(chunk)
                if key.fileobj is process.stderr:
                    tail = (tail + chunk)[-TAIL:]
            if not speaking:  # there is only its end to wait for, and no event for that
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GLANCE)
    return tail


def _over(ended: float | None) -> bool:
    return ended is not None and time.monotonic() - ended > LINGER


# --- the same frames as in worker/processes/protocol.py, which cannot be imported without all of Holdfast ---

MARK = b"\x00hf\xff"


def read(link: socket.socket) -> dict[str, Any]:
    _, size = struct.unpack(">4sI", _exactly(link, 8))
    message: dict[str, Any] = json.loads(_exactly(link, size))
    return message


def _exactly(link: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = link.recv(size - len(parts))
        if not part:
            os._exit(1)
        parts += part
    return bytes(parts)


def send(link: socket.socket, message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    link.sendall(struct.pack(">4sI", MARK, len(body)) + body)


def main() -> None:
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    # A function, not SIG_IGN, which the program would inherit.
    for number in OF_THE_PROGRAM:
        signal.signal(number, lambda *_: None)
    # Whoever ignores the ends of children is not told of exit codes, and that is inherited.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    read(link)
    send(link, {})
    send(link, run(read(link), link))
    read(link)  # until the worker lets go


if __name__ == "__main__":
    main()
