"""A Redis server for the run, and the part of its protocol that the checks need."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.support.processes import free_port

SETTINGS = {"appendonly": "yes", "appendfsync": "everysec", "save": "", "bind": "127.0.0.1"}


def program() -> str | None:
    """Return the path of the server: REDIS_SERVER, or the first on the path."""
    return os.environ.get("REDIS_SERVER") or shutil.which("redis-server")


class RedisServer:
    def __init__(self, folder: Path) -> None:
        found = program()
        assert found is not None
        self.port = free_port()
        home = folder / "redis"
        home.mkdir()
        command = [found, "--port", str(self.port), "--dir", str(home)]
        for name, value in SETTINGS.items():
            command += [f"--{name}", value]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while True:
            try:
                self._socket = socket.create_connection(("127.0.0.1", self.port), timeout=30)
                break
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    self.close()
                    raise
                time.sleep(0.05)
        self._lines = self._socket.makefile("rb")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def number(self, words: str) -> int:
        """Return the integer response of a command: ``LLEN celery``."""
        return int(self._say(words)[1:])

    def forget_all(self) -> None:
        self._say("FLUSHALL")

    def version(self) -> str:
        head = self._say("INFO server")
        text = self._lines.read(int(head[1:]) + 2).decode()
        return next(line.partition(":")[2] for line in text.splitlines() if line.startswith("redis_version:"))

    def _say(self, words: str) -> bytes:
        self._socket.sendall(words.encode() + b"\r\n")
        answer = self._lines.readline().strip()
        if answer.startswith(b"-"):
            raise RuntimeError(f"{words}: {answer[1:].decode()}")
        return answer

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=10)
