"""Server processes: a free port, start and end, and a guard that outlives this process."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from pathlib import Path

import psycopg

from tests.support.postgres_binaries import Account

# Each process of a run has a separate set of ports, since a port is free again between its choice and its use. They are
# below the range of outgoing connections (from 32768 on Linux, 49152 elsewhere): a client that keeps dialling a stopped
# server's port in that range can connect to itself, and then the port is taken when the server comes back.
_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = range(20000 + _PROCESS % 16, 32000, 16)

# Reads from a pipe whose other end only this process holds: the read returns when this process is gone.
_GUARD = 'read -r _; kill -QUIT "$1"; sleep 1; kill -KILL "$1"; shift; rm -rf -- "$@"'


def free_port() -> int:
    for port in random.Random(os.urandom(8)).sample(_PORTS, k=200):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port on 127.0.0.1")


class Guard:
    """Ends the process `pid` and removes `directories` if this process is killed before it does so."""

    def __init__(self, pid: int, *directories: Path) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "holdfast-guard", str(pid), *map(str, directories)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C must not reach it
        )

    def dismiss(self) -> None:
        """Call when the process has ended: its pid may be reused, and the guard must not act on it."""
        self._shell.kill()  # before its pipe closes
        self._shell.wait(timeout=10)
        if self._shell.stdin is not None:
            self._shell.stdin.close()


def launch(
    command: list[str], log: Path, account: Account, *directories: Path
) -> tuple[subprocess.Popen[bytes], Guard]:
    """Start a server in the folder of its log, as the account; its guard removes the directories."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for pytest, which then stops the server itself
            **account.popen_args(),
        )
    return process, Guard(process.pid, *directories)


def answers(process: subprocess.Popen[bytes], url: str, within: float) -> bool:
    """Wait until the server accepts connections; False if it ends before, or takes longer."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline and process.poll() is None:
        try:
            psycopg.connect(url, connect_timeout=2).close()
            return True
        except psycopg.OperationalError:
            time.sleep(0.02)
    return False


def end(process: subprocess.Popen[bytes], guard: Guard | None, how: signal.Signals, within: float) -> None:
    """Send the signal `how`; kill the process if it has not ended `within` seconds. Then dismiss its guard."""
    if process.poll() is None:
        process.send_signal(how)
        try:
            process.wait(timeout=within)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)
    if guard is not None:
        guard.dismiss()
