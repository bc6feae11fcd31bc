"""The subjects: what each is, with which settings it is at its best, and how to ask its database what is left."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Runtime = Literal["project", "python", "node"]
Backend = Literal["postgres", "sqlite", "redis"]


@dataclass(frozen=True)
class Subject:
    """``left`` asks for jobs not yet settled; ``settled`` for those that are kept as such, where they are kept.

    Where what is left cannot be counted cheaply it is ``{count}`` less the settled, and ``waiting`` asks for what
    has been enqueued.
    """

    name: str
    title: str
    runtime: Runtime
    backend: Backend
    folder: str
    left: str
    settled: str | None
    settings: str
    work: dict[str, Any] = field(default_factory=dict)
    batch: int = 5000
    scheme: str = ""
    waiting: str | None = None
    python: bool = True  # whether its users write Python


AWA_SETTLED = (
    "(select coalesce(sum(completed_count), 0) from awa.receipt_completion_batches)"
    " + (select coalesce(sum(pruned_completed_count), 0) from awa.queue_terminal_rollups)"
)

SUBJECTS = (
    Subject(
        name="holdfast-pg", title="Holdfast", runtime="project", backend="postgres", folder="holdfast",
        left="select count(*) from holdfast.job_state where state <> 'succeeded'",
        settled="select count(*) from holdfast.job_state where state = 'succeeded'",
        settings="enqueue_many of 5,000; one worker",
        work={"concurrency": 1000},
    ),
    Subject(
        name="holdfast-sqlite", title="Holdfast", runtime="project", backend="sqlite", folder="holdfast",
        left="select count(*) from job_state where state <> 'succeeded'",
        settled="select count(*) from job_state where state = 'succeeded'",
        settings="enqueue_many of 5,000; one worker; WAL, synchronous FULL",
        work={"concurrency": 1000}, scheme="sqlite:///",
    ),
    Subject(
        name="pgqueuer", title="PgQueuer", runtime="python", backend="postgres", folder="pgqueuer",
        left="select count(*) from pgqueuer",
        settled="select count(*) from pgqueuer_log where status = 'successful'",
        settings="asyncpg, uvloop, its autovacuum settings",
        work={"batch": 500, "managers": 1}, batch=10_000,
    ),
    Subject(
        name="pgboss", title="pg-boss", runtime="node", backend="postgres", folder="pgboss", python=False,
        left="select count(*) from pgboss.job where state < 'completed'",
        settled="select count(*) from pgboss.job where state = 'completed'",
        settings="insert() of 5,000",
        work={"batch": 1000, "workers": 2},
    ),
    Subject(
        name="graphile", title="graphile-worker", runtime="node", backend="postgres", folder="graphile", python=False,
        left="select count(*) from graphile_worker._private_jobs", settled=None,
        settings="addJobs() of 10,000; local queue 500, completion batched without delay, 24 concurrent",
        work={"concurrency": 24, "localQueue": 500}, batch=10_000,
    ),
    Subject(
        name="huey", title="huey", runtime="python", backend="sqlite", folder="huey",
        left="select count(*) from task", settled=None,
        settings="WAL, fsync=True (synchronous FULL), results off",
        work={"workers": 1},
    ),
    Subject(
        name="procrastinate", title="Procrastinate", runtime="python", backend="postgres", folder="procrastinate",
        left="select count(*) from procrastinate_jobs where status in ('todo', 'doing')",
        settled="select count(*) from procrastinate_jobs where status = 'succeeded'",
        settings="psycopg pool, uvloop, batch_defer of 5,000, finished jobs kept (its default)",
        work={"concurrency": 100, "pool": 10},
    ),
    Subject(
        name="awa", title="awa", runtime="python", backend="postgres", folder="awa",
        left=f"select {{count}} - ({AWA_SETTLED})", settled=f"select {AWA_SETTLED}",
        waiting="select count(*) from awa.jobs",
        settings="queue storage, enqueue_many_copy of 5,000, 1,024 permits, claims of 512",
        work={"workers": 1024, "poll_ms": 50, "connections": 10},
    ),
    Subject(
        name="celery", title="Celery", runtime="python", backend="redis", folder="celery",
        left="LLEN celery + HLEN unacked", settled=None,
        settings="solo pool, prefetch 500, results off, early acknowledgement (its default)",
        work={"prefetch": 500},
    ),
    Subject(
        name="dramatiq", title="dramatiq", runtime="python", backend="redis", folder="dramatiq",
        left="HLEN dramatiq:noop.msgs", settled=None,
        settings="8 threads, prefetch 500, default middleware",
        work={"threads": 8, "prefetch": 500},
    ),
)  # fmt: skip

BY_NAME = {subject.name: subject for subject in SUBJECTS}
