"""A PostgreSQL server and its standby, for tests in which one takes over from the other."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import quote

import psycopg

from holdfast.features.assembly import open_store
from tests.support.postgres_server import PostgresServer
from tests.support.processes import free_port
from tests.support.waiting import until

SETTINGS = {"max_wal_senders": "8", "hot_standby": "on"}
SYNCHRONOUS = "1 (*)"


class Pair(ExitStack):
    """`primary` and `standby`; after `promote` the standby is the primary, and `rebuild` makes a new standby. Both
    ports stay the same, so that one URL names them always."""

    def __init__(self, *, synchronous: bool = True) -> None:
        super().__init__()
        self._synchronous = synchronous
        self.primary = self._new()
        self.primary.start()
        self.primary.create_database("app")
        with closing(open_store(self.primary.dsn("app"))) as store:
            store.migrate()
        self._ports = (self.primary.port, free_port())
        self.standby = self._copy(self._ports[1])

    @property
    def url(self) -> str:
        """Leads to whichever server can be written to."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        who = f"postgres:{quote(self.primary.password)}"
        return f"postgresql://{who}@{hosts}/app?target_session_attrs=read-write&connect_timeout=3"

    def caught_up(self) -> None:
        """Wait until the standby has everything that the primary has."""
        with psycopg.connect(self.primary.dsn(), autocommit=True) as session:
            behind = (
                "select count(*) filter (where replay_lsn >= pg_current_wal_lsn()"
                " and (sync_state in ('sync', 'quorum') or not %s)) from pg_stat_replication"
            )
            until(lambda: session.execute(behind, (self._synchronous,)).fetchall() == [(1,)], "it has caught up")

    def promote(self) -> None:
        """Let the standby take over."""
        with psycopg.connect(self.standby.dsn(), autocommit=True) as session:
            assert session.execute("select pg_promote(true, 60)").fetchone() == (True,)
        self._set(self.standby, "synchronous_standby_names", "")
        old, self.primary = self.primary, self.standby
        old.destroy()

    def cut(self) -> None:
        """Let the standby receive nothing more."""
        self._set(self.standby, "primary_conninfo", "")
        with psycopg.connect(self.primary.dsn(), autocommit=True) as session:
            followers = "select count(*) from pg_stat_replication"
            until(lambda: session.execute(followers).fetchall() == [(0,)], "the standby is cut off")

    def rebuild(self) -> None:
        """Make a new standby in place of the server that was lost."""
        lost = next(port for port in self._ports if port != self.primary.port)
        self.standby = self._copy(lost)

    def set_read_only(self) -> None:
        """Refuse writes on the primary, as in a planned switchover."""
        self._set(self.primary, "default_transaction_read_only", "on")

    def _new(self) -> PostgresServer:
        server = PostgresServer(18, in_memory=True, settings=SETTINGS)
        self.callback(server.destroy)
        return server

    def _copy(self, port: int) -> PostgresServer:
        """A new server that follows the primary."""
        server = self._new()
        empty(server.data)
        server.password, server.port = self.primary.password, port
        server.run(
            *("pg_basebackup", f"--pgdata={server.data}", f"--dbname={self.primary.dsn()}"),
            *("--checkpoint=fast", "--write-recovery-conf", "--wal-method=stream"),
        )
        server.start()
        self._set(self.primary, "synchronous_standby_names", SYNCHRONOUS if self._synchronous else "")
        self.caught_up()
        return server

    @staticmethod
    def _set(server: PostgresServer, name: str, value: str) -> None:
        with psycopg.connect(server.dsn(), autocommit=True) as session:
            session.execute("set synchronous_commit = local")
            session.execute(f"alter system set {name} = '{value}'")
            session.execute("select pg_reload_conf()")
        until(lambda: _setting(server, name) == value, f"{name} is {value!r}")


def _setting(server: PostgresServer, name: str) -> str:
    with psycopg.connect(server.dsn()) as session:
        return str(session.execute(f"show {name}").fetchall()[0][0])


def empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
