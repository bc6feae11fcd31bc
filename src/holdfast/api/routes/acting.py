"""What people do to one job: cancel, redrive, discard, move, reschedule. A refusal is a problem document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import Field

from holdfast.access import Scope
from holdfast.api.answers import Id
from holdfast.api.asking import TheApp, allowed
from holdfast.api.bodies import Because, Body, Instant, Span, Text, Words
from holdfast.api.routing import Router
from holdfast.engine.job import Verdict
from holdfast.engine.order import Move
from holdfast.errors import InvalidInput
from holdfast.features.jobs.handle import accepted
from holdfast.stores.requests import Reschedule

router = Router(prefix="/jobs/{job_id}", tags=["jobs"], dependencies=[allowed(Scope.OPERATE)])


@router.post("/cancel", response_model=Verdict)
async def cancel_job(app: TheApp, job_id: Id, body: Because | None = None) -> Verdict:
    """Cancel it, if it has not ended; one that runs is told to stop."""
    return accepted(await app.client.aoperate("cancel", [job_id], None if body is None else body.reason))


class Redrive(Because):
    max_attempts: int | None = Field(default=None, ge=1, le=101, description="Another limit than it had.")
    from_step: int | Text | None = Field(
        default=None, description="Do this step, by number or name, and those after it again."
    )


@router.post("/redrive", response_model=Verdict)
async def redrive_job(app: TheApp, job_id: Id, body: Redrive | None = None) -> Verdict:
    """Put a dead letter back into its queue with all its tries before it."""
    asked = body or Redrive()
    verdicts = await app.client.aredrive(
        [job_id], asked.reason, from_step=asked.from_step, max_attempts=asked.max_attempts
    )
    return accepted(verdicts)


class RedriveAs(Because):
    payload: Any


@dataclass(frozen=True, slots=True)
class RedrivenAs:
    id: str
    redriven_as: str


@router.post("/redrive-as", response_model=RedrivenAs)
async def redrive_job_as(app: TheApp, job_id: Id, body: RedriveAs) -> RedrivenAs:
    """Redrive a dead letter with another payload: a new job, and the old one is discarded."""
    return RedrivenAs(job_id, await app.dead_letters.aredrive_as(job_id, body.payload, reason=body.reason))


class Discard(Body):
    reason: Words


@router.post("/discard", response_model=Verdict)
async def discard_job(app: TheApp, job_id: Id, body: Discard) -> Verdict:
    """Give a dead letter up for good."""
    if not body.reason.strip():
        raise InvalidInput("a dead letter is not discarded without a reason", code="reason_required")
    return accepted(await app.client.aoperate("discard", [job_id], body.reason))


class MoveTo(Because):
    """One of the four, within its priority or another one; a priority alone means last among those that have it."""

    first: bool = False
    last: bool = False
    before: Text | None = None
    after: Text | None = None
    priority: int | None = Field(default=None, ge=-32_768, le=32_767)


@router.post("/move", response_model=Verdict)
async def move_job(app: TheApp, job_id: Id, body: MoveTo) -> Verdict:
    """Give a job that waits another place in its queue."""
    move = Move.of(body.first, body.last, body.before, body.after, body.priority)
    return accepted([await app.client.amove(job_id, move, body.reason)])


class Another(Because):
    """When it is to be run: at a time or a while from now."""

    at: Instant | None = None
    delay: Span | None = None
    max_attempts: int | None = Field(default=None, ge=1, le=101)


@router.post("/reschedule", response_model=Verdict)
async def reschedule_job(app: TheApp, job_id: Id, body: Another) -> Verdict:
    """Give a job that waits another time; with neither a time nor a delay, now."""
    when = Reschedule.of(body.at, body.delay, body.max_attempts)
    return accepted(await app.client.areschedule([job_id], when, body.reason))


@router.post("/run-now", response_model=Verdict)
async def run_job_now(app: TheApp, job_id: Id, body: Because | None = None) -> Verdict:
    """Let a job that waits for its time or its retry go on at once."""
    reason = None if body is None else body.reason
    return accepted(await app.client.areschedule([job_id], Reschedule(), reason))
