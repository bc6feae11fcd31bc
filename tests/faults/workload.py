"""Enqueues many jobs, and waits until they have ended."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from holdfast import App, Backoff, Retry
from holdfast.app.internals import session_of
from holdfast.engine.states import FINISHED, State
from holdfast.errors import StoreUnavailable
from tests.support.stores import put, spec
from tests.support.waiting import until

PATIENT = Retry(max_attempts=5, max_crashes=100)
AT_ONCE = Retry(max_attempts=5, max_crashes=100, backoff=Backoff(base=0.05, factor=1.0, cap=0.05, jitter=False))


def enqueue_jobs(app: App, count: int, kind: str = "work", *, retry: Retry = PATIENT, **payload: Any) -> list[str]:
    """Enqueue `count` jobs in one transaction; kinds that take a `number` get their index."""
    numbered = kind in ("work", "awork", "hold", "ahold")
    return put(
        session_of(app).store,
        *(spec(kind, payload=payload | ({"number": n} if numbered else {}), retry=retry) for n in range(count)),
    )


def state_counts(app: App) -> dict[State, int]:
    """Count the jobs in each state; empty while the database is unreachable."""
    try:
        return session_of(app).store.run(session_of(app).store.jobs.counts("*"))
    except StoreUnavailable:
        return {}


def wait_for_all(app: App, total: int, limit: float = 60.0) -> None:
    """Wait until `total` jobs exist and all have ended, in any final state."""

    def done() -> bool:
        counts = state_counts(app)
        return sum(counts.values()) >= total and not any(counts.get(state) for state in set(State) - FINISHED)

    try:
        until(done, f"all {total} jobs have ended", limit)
    except AssertionError as error:
        raise AssertionError(f"{error}; now: {state_counts(app)}") from None


def states(app: App, ids: Collection[str]) -> list[State]:
    jobs = (session_of(app).store.run(session_of(app).store.jobs.get(job_id, "*")) for job_id in ids)
    return [job.state for job in jobs if job is not None]
