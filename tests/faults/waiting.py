"""Waiting, with a deadline, for what an outside view of the database should come to show."""

from __future__ import annotations

from collections.abc import Collection

from holdfast import App
from holdfast.engine.states import FINISHED, State
from holdfast.errors import StoreUnavailable
from tests.support.waiting import until

LONG = 60.0


def counts(app: App) -> dict[State, int]:
    """Nothing while the store is away."""
    try:
        return app._store.run(app._store.jobs.counts("*"))
    except StoreUnavailable:
        return {}


def all_ended(app: App, total: int, limit: float = LONG) -> None:
    """Until that many jobs are there and each has ended one way or another."""

    def done() -> bool:
        found = counts(app)
        return sum(found.values()) >= total and not any(found.get(state) for state in set(State) - FINISHED)

    try:
        until(done, f"all {total} jobs have ended", limit)
    except AssertionError as error:
        raise AssertionError(f"{error}; now: {counts(app)}") from None


def states(app: App, ids: Collection[str]) -> list[State]:
    found = (app._store.run(app._store.jobs.get(job_id, "*")) for job_id in ids)
    return [job.state for job in found if job is not None]
