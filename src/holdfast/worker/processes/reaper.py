"""The reaper: a small process that kills the worker's children, with all their processes, when the worker dies.

It is a process because nothing else notices a ``kill -9`` of the worker reliably: a thread in the child does not run
while a handler holds the interpreter lock, and the signal of the kernel reaches the child but not its children. It runs
this file by its path, with the standard library only, so that it is small and starts quickly.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

TIMEOUT = 5.0


class Reaper:
    """The worker's side: registers the process groups that must die with the worker. The first one starts the
    process."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def watch(self, group: int) -> None:
        self._groups.add(group)
        try:
            self._send(f"+{group}\n")
        except OSError:
            self._groups.discard(group)  # a restarted reaper must not kill this number, which may be reused
            raise

    def forget(self, group: int) -> None:
        self._groups.discard(group)
        if self._process is not None:
            self._send(f"-{group}\n")

    def close(self) -> None:
        """Close the pipe. The process then kills the remaining groups and ends."""
        from holdfast.worker.processes import child

        process, self._process = self._process, None
        if process is not None:
            if process.stdin is not None:
                child.keep_on_fork(process.stdin.fileno())
                with contextlib.suppress(OSError):
                    process.stdin.close()
            try:
                process.wait(timeout=TIMEOUT)
            except subprocess.TimeoutExpired:  # the process is stopped
                process.kill()
                process.wait()

    def _send(self, line: str) -> None:
        try:
            self._write(line)
        except OSError:  # the process was killed: start another, and send it all groups
            if self._process is not None:
                self._process.kill()
                self.close()
            self._write("".join(f"+{group}\n" for group in sorted(self._groups)))

    def _write(self, text: str) -> None:
        from holdfast.worker.processes import child  # here, because the reaper process runs without Holdfast

        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C, or a signal to the worker's group, must not reach it
            )
            assert self._process.stdin is not None
            child.close_on_fork(self._process.stdin.fileno())
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode("ascii"))
        self._process.stdin.flush()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line.startswith("+") else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
