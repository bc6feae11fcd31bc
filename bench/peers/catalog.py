"""The subjects: what each is, with which settings it is at its best, and how to ask its database what is left."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Runtime = Literal["project", "python", "node"]
Backend = Literal["postgres", "sqlite", "redis"]


@dataclass(frozen=True)
class Subject:
    """``left`` asks for jobs not yet settled; ``settled`` for those that are kept as such, where they are kept."""

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
    python: bool = True  # whether its users write Python


HOLDFAST_LEFT = "select count(*) from {job_state} where state in ('queued', 'in_progress', 'scheduled')"

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
)  # fmt: skip

BY_NAME = {subject.name: subject for subject in SUBJECTS}
