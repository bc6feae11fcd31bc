"""The order of a queue: moving jobs, and asking the database how they stand."""

from __future__ import annotations

from typing import Any

from holdfast.engine.job import EVERY_TENANT, Verdict
from holdfast.engine.order import Move
from holdfast.features.assembly import Store
from tests.support.audit import unguarded
from tests.support.by_hand import ByHand
from tests.support.ledger import all_jobs

WAITING = ("queued", "retry_waiting")


def move(store: Store, job_id: str, *, tenant: str = EVERY_TENANT, reason: str | None = None, **place: Any) -> Verdict:
    return store.run(store.jobs.move(job_id, Move.of(**place), reason, "ada", tenant))


def moved(store: Store, job_id: str, **place: Any) -> None:
    """Move it, which must be possible."""
    verdict = move(store, job_id, **place)
    assert not verdict.refused, verdict


def order_of(store: Store, queue: str = "default") -> list[str]:
    """The ids of the jobs that wait, from stored fields alone."""
    waiting = [job for job in all_jobs(store) if job.queue == queue and job.state in WAITING]
    return [job.id for job in sorted(waiting, key=lambda job: (-job.priority, job.position, job.id))]


def crowd(by_hand: ByHand, ids: list[str], start: int = 1000) -> None:
    """Put these jobs shoulder to shoulder: no free place between any two."""
    with unguarded(by_hand, "job_state"):
        for place, job_id in enumerate(ids, start):
            by_hand.execute("update job_state set position = :place where id = :id", {"place": place, "id": job_id})
