"""Redriving from a step: it and what came after it are forgotten, and done again (HF-6, DP-15).

One transaction for all of it: nobody sees a dead letter whose steps are gone, or a job that runs with those it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.engine.ids import parse_id
from holdfast.engine.job import Verdict
from holdfast.engine.names import check_name
from holdfast.engine.settlement import storable
from holdfast.engine.states import State
from holdfast.engine.steps import NAME_LIMIT, Step
from holdfast.errors import InvalidSetting
from holdfast.stores.flow import Steps, flow

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

FromStep = int | str
"""A step's number, or its name."""


def check_from_step(from_step: object) -> FromStep:
    if isinstance(from_step, int) and not isinstance(from_step, bool) and 0 <= from_step < 2**31:
        return from_step
    if isinstance(from_step, str):
        return check_name(from_step, "name of the step", limit=NAME_LIMIT)
    raise InvalidSetting("from_step is the number of a step, or its name", code="invalid_setting")


@flow(tells=True)
def redriving(
    store: Store,
    ids: Sequence[str],
    from_step: FromStep,
    reason: str | None,
    actor: str,
    tenant: str,
    max_retries: int | None,
) -> Steps[list[Verdict]]:
    wanted, verdicts = [parse_id(job_id) for job_id in ids], {}
    for job_id in sorted(set(wanted)):  # in the order in which every batch locks
        verdicts[job_id] = yield from _redrive(store, job_id, from_step, reason, actor, tenant, max_retries)
    return [verdicts[job_id] for job_id in wanted]


def _redrive(
    store: Store,
    job_id: str,
    from_step: FromStep,
    reason: str | None,
    actor: str,
    tenant: str,
    max_retries: int | None,
) -> Steps[Verdict]:
    job = yield from store.jobs.get(job_id, tenant).start()
    if job is not None and job.state is State.DEAD_LETTER:
        steps = yield from store.steps.list(job_id, tenant).start()
        places = places_of(steps, from_step)
        if not places:
            return Verdict(job_id, job.state, True, "no_such_step")
        if len(places) > 1:
            return Verdict(job_id, job.state, True, "step_ambiguous")
        yield from store.steps.rewind(job_id, places[0], actor, tenant).start()
        reason = storable(f"{_named(steps, places[0])}: {reason}" if reason else _named(steps, places[0]))
    # What is no dead letter, or not any more, is refused here.
    verdicts = yield from store.jobs.operate("redrive", [job_id], reason, actor, tenant, max_retries).start()
    return verdicts[0]


def places_of(steps: Sequence[Step], from_step: FromStep) -> list[int]:
    """Where the job may be rewound to. A place between two that are taken is one, too: of steps that run at once, the
    first may not have been done."""
    if isinstance(from_step, str):
        return [step.n for step in steps if step.name == from_step]
    return [from_step] if any(step.n >= from_step for step in steps) else []


def _named(steps: Sequence[Step], n: int) -> str:
    return next((f"from step {n} ({step.name})" for step in steps if step.n == n), f"from step {n}")
