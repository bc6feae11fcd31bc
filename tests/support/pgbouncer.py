"""A real PgBouncer in front of a PostgreSQL server.

The program is Debian's package `pgbouncer`, or the one that HOLDFAST_TEST_PGBOUNCER names; without it the tests are
skipped. It runs on loopback, as the account that runs the test servers (it refuses root), and is ended by its pid.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.postgres_binaries import make_private_dir, server_account
from tests.support.processes import Guard, answers, end, free_port, launch

PROGRAM = "HOLDFAST_TEST_PGBOUNCER"
PoolMode = Literal["transaction", "session", "statement"]


def program() -> str:
    """Path of PgBouncer; without it the test is skipped."""
    path = (
        os.environ.get(PROGRAM)
        or shutil.which("pgbouncer")
        or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    )
    if path is None:
        pytest.skip("PgBouncer is not installed: apt-get install pgbouncer, or name one in " + PROGRAM)
    return path


class Pooler:
    """A PgBouncer in front of the server of `dsn`, for all its databases and the role that `dsn` names.

    `size` is the number of server connections per database and role: with one, the next client meets any state that is
    left on it. `roles` are further roles with the same password; `settings` are those of PgBouncer.
    """

    def __init__(
        self,
        dsn: str,
        mode: PoolMode = "transaction",
        size: int = 1,
        *,
        roles: Sequence[str] = (),
        **settings: str | int,
    ) -> None:
        self._dsn = dsn
        self._roles = roles
        self._settings: dict[str, Any] = {
            "pool_mode": mode,
            "default_pool_size": size,
            "max_client_conn": 200,
            "listen_addr": "127.0.0.1",
            "unix_socket_dir": "",
            "auth_type": "plain",
            "server_login_retry": 1,
        } | settings
        self._program = program()
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None
        self._owner = os.getpid()
        self._account = server_account()
        self._dir = make_private_dir(self._account)
        self.port = 0

    def start(self) -> None:
        atexit.register(self.stop)
        for _ in range(5):
            self.port = free_port()
            self._launch()
            if self._process is not None and answers(self._process, self.url(), within=20):
                return
            self._end()
        raise RuntimeError(f"PgBouncer did not start:\n{self.log()[-4000:]}")

    def stop(self) -> None:
        if os.getpid() != self._owner:  # a forked child runs its parent's exit handlers too
            return
        atexit.unregister(self.stop)
        self._end()
        shutil.rmtree(self._dir, ignore_errors=True)

    def __enter__(self) -> Pooler:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def url(self, role: str | None = None) -> str:
        """The same database, through the pooler."""
        parts = urlsplit(self._dsn)
        who, _, _ = parts.netloc.rpartition("@")
        if role is not None:
            who = ":".join([role, *who.split(":")[1:]])
        return urlunsplit(parts._replace(netloc=f"{who}@127.0.0.1:{self.port}"))

    def log(self) -> str:
        path = self._dir / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    # -- implementation ----------------------------------------------------------------------------------------

    def _launch(self) -> None:
        server = conninfo_to_dict(self._dsn)
        password = server.get("password", "")
        users = self._written("users", "".join(f'"{name}" "{password}"\n' for name in (server["user"], *self._roles)))
        settings = self._settings | {"listen_port": self.port, "auth_file": users}
        lines = ["[databases]", f"* = host={server['host']} port={server.get('port', 5432)}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        ini = self._written("pgbouncer.ini", "\n".join(lines) + "\n")
        self._process, self._guard = launch([self._program, str(ini)], self._dir / "log", self._account, self._dir)

    def _written(self, name: str, text: str) -> Path:
        path = self._dir / name
        path.write_text(text)
        path.chmod(0o600)
        self._account.own(path)
        return path

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end(process, self._guard, signal.SIGTERM, within=5)
            self._guard = None
