"""The subjects: their best settings, and queries for the jobs that are left.

The settings follow each project's documentation on throughput; then values around them were tried on 20,000 no-ops and
the fastest was kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Runtime = Literal["project", "python", "node"]
Backend = Literal["postgres", "sqlite", "redis", "restate"]
_PLACES = {"postgres": "PostgreSQL", "sqlite": "SQLite", "redis": "Redis", "restate": "own store"}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """``left`` counts jobs that are not settled; ``settled`` counts settled jobs, if they are kept.

    Where the former cannot be counted cheaply, it is ``{count}`` less the settled, and ``waiting`` counts enqueued
    jobs. ``work`` and ``batch`` are options of the driver.
    """

    name: str
    title: str
    runtime: Runtime
    backend: Backend
    folder: str
    package: str
    left: str
    settled: str | None
    settings: str
    work: dict[str, Any] = field(default_factory=dict)
    batch: int = 5_000
    scheme: str = ""
    waiting: str | None = None
    bulk: bool = True  # whether it has a bulk call; otherwise W2 is a loop over fewer jobs
    python: bool = True  # whether its users write Python
    holds: bool = False  # whether its driver can keep a thousand jobs sleeping (W8)
    steps: str | None = None  # counts recorded durable steps, if it has any (W9)
    only: tuple[str, ...] | None = None  # the workloads that it takes part in, if not in all

    @property
    def place(self) -> str:
        """The display name of the backend."""
        return _PLACES[self.backend]


AWA_SETTLED = (
    "(select coalesce(sum(completed_count), 0) from awa.receipt_completion_batches)"
    " + (select coalesce(sum(pruned_completed_count), 0) from awa.queue_terminal_rollups)"
)

SMALL = ("W1", "W2", "W3", "W4", "W5", "W9")  # for peers that take minutes for a hundred thousand jobs

SUBJECTS = (
    Subject(
        name="holdfast-pg",
        title="Holdfast",
        runtime="project",
        backend="postgres",
        folder="holdfast",
        package="holdfast",
        left="select count(*) from holdfast.job_state where state <> 'succeeded'",
        settled="select count(*) from holdfast.job_state where state = 'succeeded'",
        settings="one enqueue_many; concurrency 2,000",
        work={"concurrency": 2_000},
        holds=True,
        steps="select count(*) from holdfast.step where ended_at is not null",
    ),
    Subject(
        name="holdfast-sqlite",
        title="Holdfast",
        runtime="project",
        backend="sqlite",
        folder="holdfast",
        package="holdfast",
        left="select count(*) from holdfast_job_state where state <> 'succeeded'",
        settled="select count(*) from holdfast_job_state where state = 'succeeded'",
        settings="one enqueue_many; concurrency 2,000; write-ahead log, synchronous = FULL",
        work={"concurrency": 2_000},
        scheme="sqlite:///",
        holds=True,
        steps="select count(*) from holdfast_step where ended_at is not null",
    ),
    Subject(
        name="pgqueuer",
        title="PgQueuer",
        runtime="python",
        backend="postgres",
        folder="pgqueuer",
        package="pgqueuer",
        left="select count(*) from pgqueuer",
        settled="select count(*) from pgqueuer_log where status = 'successful'",
        settings="asyncpg, uvloop, `pgq autovac` applied; enqueue of 10,000; batch_size 500",
        work={"batch": 500, "managers": 1},
        batch=10_000,
        holds=True,
    ),
    Subject(
        name="pgboss",
        title="pg-boss",
        runtime="node",
        backend="postgres",
        folder="pgboss",
        package="pg-boss",
        left="select count(*) from pgboss.job where state < 'completed'",
        settled="select count(*) from pgboss.job where state = 'completed'",
        settings="insert() of 5,000; two local workers of batchSize 1,000 (one handler call a batch),"
        " burstWhenBatchFull, LISTEN/NOTIFY",
        work={"batch": 1_000, "workers": 2},
        python=False,
    ),
    Subject(
        name="graphile",
        title="graphile-worker",
        runtime="node",
        backend="postgres",
        folder="graphile",
        package="graphile-worker",
        left="select count(*) from graphile_worker._private_jobs",
        settled=None,
        settings="addJobs() of 10,000; concurrentJobs 24, localQueue 500, completeJobBatchDelay 0",
        work={"concurrency": 24, "localQueue": 500},
        batch=10_000,
        python=False,
    ),
    Subject(
        name="awa",
        title="awa",
        runtime="python",
        backend="postgres",
        folder="awa",
        package="awa-pg",
        left=f"select {{count}} - ({AWA_SETTLED})",
        settled=f"select {AWA_SETTLED}",
        waiting="select count(*) from awa.jobs",
        settings="queue storage; enqueue_many_copy of 5,000; max_workers 1,024, claim_batch_size 512, poll 50 ms",
        work={"workers": 1_024, "poll_ms": 50, "connections": 10},
    ),
    Subject(
        name="procrastinate",
        title="Procrastinate",
        runtime="python",
        backend="postgres",
        folder="procrastinate",
        package="procrastinate",
        left="select count(*) from procrastinate_jobs where status in ('todo', 'doing')",
        settled="select count(*) from procrastinate_jobs where status = 'succeeded'",
        settings="psycopg pool of 10, uvloop; batch_defer of 5,000; concurrency 100, finished jobs kept",
        work={"concurrency": 100, "pool": 10},
    ),
    Subject(
        name="huey",
        title="huey",
        runtime="python",
        backend="sqlite",
        folder="huey",
        package="huey",
        bulk=False,
        left="select count(*) from task",
        settled=None,
        settings="write-ahead log, fsync=True (synchronous = FULL), results off, one thread, polls every 1 to 2 ms",
        work={"workers": 1},
    ),
    Subject(
        name="celery",
        title="Celery",
        runtime="python",
        backend="redis",
        folder="celery",
        package="celery",
        bulk=False,
        left="LLEN celery + HLEN unacked",
        settled=None,
        settings="solo pool, prefetch 500, results off, no gossip, mingle or heartbeat;"
        " acknowledges early (its default)",
        work={"prefetch": 500},
    ),
    Subject(
        name="dramatiq",
        title="dramatiq",
        runtime="python",
        backend="redis",
        folder="dramatiq",
        package="dramatiq",
        bulk=False,
        left="HLEN dramatiq:noop.msgs",
        settled=None,
        settings="4 threads, prefetch 500, default middleware",
        work={"threads": 4, "prefetch": 500},
    ),
    Subject(
        name="dbos",
        title="DBOS",
        runtime="python",
        backend="postgres",
        folder="dbos",
        package="dbos",
        bulk=False,
        left="select count(*) from dbos.workflow_status where status <> 'SUCCESS'",
        settled="select count(*) from dbos.workflow_status where status = 'SUCCESS'",
        settings="plain functions on 20 threads, a pool of 20; a queue that takes all at once and polls every 0.1 s",
        work={"threads": 20, "poll": 0.1},
        steps="select count(*) from dbos.operation_outputs",
        only=SMALL,
    ),
    Subject(
        name="dbos-sqlite",
        title="DBOS",
        runtime="python",
        backend="sqlite",
        folder="dbos",
        package="dbos",
        bulk=False,
        left="select count(*) from workflow_status where status <> 'SUCCESS'",
        settled="select count(*) from workflow_status where status = 'SUCCESS'",
        settings="plain functions on 4 threads, a pool of 4; the same queue; a rollback journal, synchronous = FULL",
        work={"threads": 4, "poll": 0.1},
        scheme="sqlite:///",
        steps="select count(*) from operation_outputs",
        only=SMALL,
    ),
    Subject(
        name="absurd",
        title="Absurd",
        runtime="python",
        backend="postgres",
        folder="absurd",
        package="absurd-sdk",
        bulk=False,
        left="select count(*) from absurd.t_steps where state <> 'completed'",
        settled="select count(*) from absurd.t_steps where state = 'completed'",
        settings="8 clients, each with a connection and 10 tasks at once, polling every 10 ms",
        work={"clients": 8, "concurrency": 10, "poll": 0.01},
        steps="select count(*) from absurd.c_steps",
        only=("W9",),
    ),
    Subject(
        name="restate",
        title="Restate",
        runtime="node",
        backend="restate",
        folder="restate",
        package="@restatedev/restate-server",
        left="select count(*) as n from sys_invocation where status <> 'completed'",
        settled=None,
        settings="one server with its own log and store, defaults; 64 requests at once in bulk; completed calls kept",
        work={},
        python=False,
        steps="select count(*) as n from sys_journal where entry_type = 'Command: Run'",
        only=("W1", "W2", "W3", "W5", "W9"),
    ),
)

BY_NAME = {subject.name: subject for subject in SUBJECTS}
OURS = ("holdfast-pg", "holdfast-sqlite")
MAIN = (*OURS, "pgqueuer", "pgboss", "graphile", "huey")
DURABLE = tuple(subject.name for subject in SUBJECTS if subject.steps is not None)
