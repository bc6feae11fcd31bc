"""Idle workers: what one and a hundred of them cost the database and their own process.

All are started together, each count with a database of its own, and rest until the connections of their start are
closed again. Then they are observed for a while.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

import psycopg

from bench.figures import LITE, PG, Figure, Run
from bench.peers.backends import PostgresPlace
from bench.peers.bench import Bench, Team
from bench.peers.catalog import BY_NAME
from bench.peers.meters import cpu_seconds

MANY = {"postgres": 100, "sqlite": 10}
TRANSACTIONS = "select xact_commit + xact_rollback from pg_stat_database where datname = %s"
SESSIONS = "select pid from pg_stat_activity where datname = %s and application_name = 'holdfast'"


class Observed:
    """One database with idle workers, before and after a while."""

    def __init__(self, bench: Bench, workers: int, stack: ExitStack) -> None:
        self.bench, self.workers = bench, workers
        self.place = stack.enter_context(bench.place())
        # A worker with concurrency 16, its default: a hundred of them are threads of one process.
        self.team: Team = stack.enter_context(bench.workers(self.place, apps=workers, concurrency=16))
        self.asking: psycopg.Connection | None = None
        if isinstance(self.place, PostgresPlace):
            self.name = self.place.connection.info.dbname
            self.asking = stack.enter_context(psycopg.connect(bench.backends.postgres.dsn(), autocommit=True))

    def start(self) -> None:
        self.began, self.worker = time.perf_counter(), self.team.cpu()
        self.sessions = self._sessions()
        self.before = self._transactions()

    def figures(self) -> list[Figure]:
        seconds, many = time.perf_counter() - self.began, f"{self.workers} idle"
        place = self.bench.subject.place
        found = [Figure("idle", place, f"{many}, client CPU", "of a core", (self.team.cpu() - self.worker) / seconds)]
        if self.asking is not None:
            now = self._sessions()
            used = sum(cpu - self.sessions.get(pid, 0.0) for pid, cpu in now.items())
            rate = (self._transactions() - self.before) / seconds / self.workers
            found += [
                Figure("idle", place, f"{many}, server CPU", "of a core", used / seconds),
                Figure("idle", place, f"{many}, transactions each", "1/s", rate),
                Figure("idle", place, f"{many}, connections each", "", len(now) / self.workers),
            ]
        self.team.stop()
        return found

    def _sessions(self) -> dict[int, float]:
        """CPU seconds by server process."""
        if self.asking is None:
            return {}
        return {pid: cpu_seconds(pid) for (pid,) in self.asking.execute(SESSIONS, (self.name,)).fetchall()}

    def _transactions(self) -> int:
        row = None if self.asking is None else self.asking.execute(TRANSACTIONS, (self.name,)).fetchone()
        return int(row[0]) if row else 0


def idle(run: Run) -> list[Figure]:
    with ExitStack() as stack:
        observed = []
        for place, name in ((PG, "holdfast-pg"), (LITE, "holdfast-sqlite")):
            subject = BY_NAME[name]
            assert subject.place == place
            if run.wants(subject.backend):
                most = 10 if run.quick else MANY[subject.backend]
                observed += [Observed(Bench(run.backends, subject), count, stack) for count in (1, most)]
        time.sleep(run.size(3, 70, 90))
        for each in observed:
            each.start()
        time.sleep(run.size(3, 25, 120))
        return [figure for each in observed for figure in each.figures()]
