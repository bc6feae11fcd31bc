"""The process between a worker and a program: it starts the program, writes a bounded log, and reports the exit code.

The shim leads the process group of the program, so that a signal to the group reaches both and all their children. It
is run by its path and imports only the standard library, so it starts in a few milliseconds. A signal to the group is
meant for the program: the shim ignores it and records the program's last output.
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
# Seconds to read on after the program has ended: processes that it left behind may keep its output open.
LINGER = 0.5
POLL_INTERVAL = 0.05
# Signals that the program may send to its group (`kill 0`). They are not meant for the shim.
IGNORED_SIGNALS = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
)


class Log:
    """A log file of at most ``limit`` bytes; further bytes are only counted. A full disk does not stop the program."""

    def __init__(self, path: str, limit: int) -> None:
        # The worker has created the file, for its owner only; so has this, if it was removed since.
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._file: BinaryIO | None = os.fdopen(handle, "ab", buffering=0)
        self._left = limit
        self._limit = limit
        self._dropped = 0
        self.error: str | None = None

    def write(self, chunk: bytes) -> None:
        head = chunk[: self._left]
        if head:
            self._left -= len(head)
            self._put(head)
            if self._left == 0:
                self._put(f"\n[holdfast: the log was cut here, after {self._limit:,} bytes]\n".encode())
        self._dropped += len(chunk) - len(head)

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


def run(request: dict[str, Any], link: socket.socket) -> dict[str, Any]:
    """Run the program and return the report for the worker."""
    log = Log(request["log"], request["log_limit"])
    try:
        with open(request["stdin"] or os.devnull, "rb") as stdin:
            process = subprocess.Popen(
                request["argv"],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=request["cwd"],
                env=request["env"],
            )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        log.write(f"[holdfast: not started: {error}]\n".encode(errors="replace"))
        log.close()
        return {"not_started": str(error)}
    tail = _copy_output(process, log, link)
    log.close()
    return {"exit_code": process.wait(), "stderr": tail.decode(errors="replace"), "log_error": log.error}


def _copy_output(process: subprocess.Popen[bytes], log: Log, link: socket.socket) -> bytes:
    """Copy the program's output to the log until it has ended. Returns the end of its stderr."""
    assert process.stdout is not None
    assert process.stderr is not None
    tail = b""
    ended: float | None = None
    with selectors.DefaultSelector() as selector:
        selector.register(link, selectors.EVENT_READ)
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)
        while process.poll() is None or (len(selector.get_map()) > 1 and not _lingered(ended)):
            if process.returncode is not None and ended is None:
                ended = time.monotonic()
            output_open = len(selector.get_map()) > 1
            for key, _ in selector.select(POLL_INTERVAL if output_open else 0):
                if key.fileobj is link:
                    os.killpg(0, signal.SIGKILL)  # the worker has died
                chunk = os.read(key.fd, 65_536)
                if not chunk:
                    selector.unregister(key.fileobj)
                    continue
                log.write(chunk)
                if key.fileobj is process.stderr:
                    tail = (tail + chunk)[-TAIL:]
            if not output_open:  # only the program's end is left to wait for, and no selector event reports it
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_INTERVAL)
    return tail


def _lingered(ended: float | None) -> bool:
    return ended is not None and time.monotonic() - ended > LINGER


# --- the frames of worker/processes/protocol.py, which cannot be imported without the rest of Holdfast ---

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
    for number in IGNORED_SIGNALS:
        signal.signal(number, lambda *_: None)
    # A process that ignores SIGCHLD gets no exit codes of its children, and it may have inherited that setting.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    read(link)
    send(link, {})
    send(link, run(read(link), link))
    read(link)  # returns when the worker closes the socket


if __name__ == "__main__":
    main()
