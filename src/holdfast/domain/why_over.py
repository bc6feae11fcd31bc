"""Why a job is where it is: because it is over. Each reason is a function of the scene, and knows of no other."""

from __future__ import annotations

from typing import Final

from holdfast.domain.reason import Reason
from holdfast.domain.scene import Scene, at
from holdfast.engine.states import State


def succeeded(scene: Scene) -> Reason | None:
    job, event = scene.job, scene.last("succeed")
    if job.state is not State.SUCCEEDED:
        return None
    by = f" by {event.actor}" if event is not None else ""
    return Reason("succeeded", f"it succeeded at {at(job.finished_at)}, in try {job.attempt}{by}")


def retried(scene: Scene) -> Reason | None:
    job, new = scene.job, scene.successor
    if new is None or job.state is not State.FAILED:
        return None
    return Reason(
        "retried_as_new_job",
        f"it failed ({job.error_code}: {job.error_message}) and was retried as job {new.id}, which is {new.state}",
        f"It is never run again itself. See: holdfast why {new.id}",
        {"retried_as": new.id},
    )


_FAILED: Final = {
    "deadline_passed": (
        "deadline_passed",
        "its deadline passed before it was done",
        "Enqueue it again with a later deadline.",
    ),
    "gate_expired": (
        "gate_expired",
        "nobody decided its approval in time",
        "Enqueue it again, with more time to decide.",
    ),
    "denied": ("denied", "its approval was denied", "Only a new job can ask again."),
}


def failed(scene: Scene) -> Reason | None:
    job = scene.job
    if job.state is not State.FAILED or scene.successor is not None:
        return None
    event = scene.last("deny", "expire", "fail", "lapse", "crash")
    by = f" by {event.actor}" if event is not None and event.verb == "deny" else ""
    code, says, change = _FAILED.get(job.error_code or "", ("failed", "it failed for good", "Enqueue it again."))
    return Reason(code, f"{says}{by}: {job.error_message} (at {at(job.finished_at)})", change)


def dead_letter(scene: Scene) -> Reason | None:
    job = scene.job
    if job.state is not State.DEAD_LETTER:
        return None
    if job.crashes > job.max_crashes:
        why = f"its worker, or its process, was lost {job.crashes} times, and {job.max_crashes} are allowed"
    elif job.retries >= job.max_retries and job.max_retries:
        why = f"all of its {job.max_retries + 1} tries failed"
    elif not job.max_retries:
        why = "it failed, and is not tried again"
    else:
        why = "it failed in a way that no other try can help"
    since = f"it is a dead letter since {at(job.finished_at)}"
    change = f"holdfast jobs redrive {job.id}, or holdfast jobs discard {job.id} --reason …"
    group, others = scene.group, ""
    if group is not None and group.open > 1:
        others = f"; {group.open - 1} more wait for the same reason (group {group.fingerprint})"
        change += f"; all of them: holdfast dead-letters redrive {group.fingerprint}"
    return Reason(
        "dead_letter",
        f"{since}: {why}; the last time {job.error_code}: {job.error_message}{others}",
        change,
        {"error_code": job.error_code} | ({} if group is None else {"group": group.fingerprint}),
    )


def cancelled(scene: Scene) -> Reason | None:
    job, event = scene.job, scene.last("cancel", "discard")
    if job.state is not State.CANCELLED or event is None:
        return None
    verb = "discarded" if event.verb == "discard" else "cancelled"
    by = "its own handler" if event.meta.get("by") == "handler" else event.actor
    reason = f": {event.meta['reason']}" if event.meta.get("reason") else ""
    return Reason(verb, f"it was {verb} by {by} at {at(job.finished_at)}{reason}", "Enqueue it again.", {"by": by})


def cleaned(scene: Scene) -> Reason | None:
    if scene.job.state is not State.CLEANED:
        return None
    return Reason("cleaned", "it is over, and retention has emptied it; what happened is still in the ledger")
