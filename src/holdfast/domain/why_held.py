"""Why a job that could be run is held back: by its parents, by a limit, by a reservation, by a switch. Pure.

``why`` asks these as part of the whole scene; here is what each has to look at, and no more.
"""

from __future__ import annotations

import json
from typing import Any

from holdfast.domain.limits import EACH, Limit
from holdfast.domain.reason import Reason
from holdfast.domain.reservations import Reservation
from holdfast.domain.switches import Switch
from holdfast.domain.workflows import ParentResult
from holdfast.engine.job import EVERY_TENANT, Job
from holdfast.engine.states import State

LOST = frozenset({State.FAILED, State.DEAD_LETTER, State.CANCELLED})


def by_parents(job: Job, parents: list[ParentResult]) -> Reason:
    """It is parked for its parents: those that have not ended, or one that ended badly."""
    resume = f"holdfast workflows resume {job.workflow_id}"
    lost = [parent for parent in parents if parent.state in LOST]
    open_ = [parent for parent in parents if not parent.state.finished]
    facts = {"held": "parents", "workflow_id": job.workflow_id, "parents": [parent.job_id for parent in open_ + lost]}
    if lost:
        dead = any(parent.state is State.DEAD_LETTER for parent in lost)
        change = f"To run what failed once more, and this after it: {resume}" if dead else None
        return Reason("behind_a_failure", f"it is held back behind {_named(lost)}", change, facts)
    if open_:
        return Reason(
            "parents", f"it waits for {_named(open_)}", f"Look at those: holdfast why {open_[0].job_id}", facts
        )
    return Reason(
        "workflow_stopped", "a job of its workflow failed, and that stops the others", f"See: {resume}", facts
    )


def by_limits(job: Job, note: dict[str, Any], limits: list[Limit]) -> list[Reason]:
    """The limit it is parked at, or those of whole queues and the like, which park nobody and are full."""
    if note.get("held") == "limit":
        bucket = json.loads(note["by"]) if "by" in note else None
        full = [limit for limit in limits if bucket is not None and _is_of(limit, bucket)]
        name = bucket[2] if bucket is not None else EACH
        return [_reached(limit, name) for limit in full]
    return [
        _reached(limit, limit.name)
        for limit in limits
        if limit.concurrency is not None
        and limit.running >= limit.concurrency
        and limit.name in _counted(job).get(limit.scope, ())
        and limit.tenant in (EVERY_TENANT, job.tenant)
    ]


def by_reservations(job: Job, reservations: list[Reservation]) -> list[Reason]:
    counted = _counted(job)
    active = [
        each
        for each in reservations
        if each.state == "active"
        and each.tenant in (EVERY_TENANT, job.tenant)
        and (each.scope == "all" or each.name in counted.get(each.scope, ()))
    ]
    return [
        Reason(
            "reserved",
            f"{each.holder} has reserved {each.what}" + (f": {each.reason}" if each.reason else ""),
            f"It goes on when that ends. To end it: holdfast reservations release {each.id}",
            {"reservation": each.id},
        )
        for each in active
    ]


def by_switches(job: Job, switches: list[Switch]) -> list[Reason]:
    return [
        Reason(
            "paused",
            switch.says,
            ("It goes on by itself then. " if switch.until is not None else "")
            + f"To go on now: holdfast resume {switch.options}",
            {"scope": switch.scope, "name": switch.name, "tenant": switch.tenant},
        )
        for switch in switches
        if switch.holds(job.tenant, job.queue, job.kind, job.agent)
    ]


def _counted(job: Job) -> dict[str, set[str]]:
    """By scope, the names under which it is counted."""
    names = {"all": {EACH}, "queue": {job.queue}, "kind": {job.kind}, "tenant": {job.tenant}}
    if job.agent is not None:
        names["agent"] = {job.agent}
    for use in job.uses or ():
        scope, _, name = use.partition(":")
        names.setdefault(scope, set()).add(name)
    return names


def _is_of(limit: Limit, bucket: list[str]) -> bool:
    tenant, scope, name = bucket
    return (limit.tenant, limit.scope) == (tenant, scope) and limit.name in (name, EACH)


def _reached(limit: Limit, name: str) -> Reason:
    what = "all jobs" if limit.scope == "all" else f"{limit.scope} {name}"
    said = [f"{limit.concurrency} at a time"] if limit.concurrency is not None else []
    if limit.rate is not None and limit.per is not None:
        said.append(f"{limit.rate} in {limit.per:g} s")
    option = "" if limit.scope == "all" else f" --{limit.scope} '{limit.name}'"
    return Reason(
        "limit_reached",
        f"the limit of {what} is reached: {' and '.join(said)}",
        f"It goes on when there is room. To see or change the limit: holdfast limits show{option}",
        {"scope": limit.scope, "name": name, "concurrency": limit.concurrency, "rate": limit.rate},
    )


def _named(parents: list[ParentResult]) -> str:
    shown = [f"{parent.name or parent.job_id} ({parent.state})" for parent in parents[:5]]
    return ", ".join(shown) + (f" and {len(parents) - 5} more" if len(parents) > 5 else "")
