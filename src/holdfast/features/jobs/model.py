"""Records about jobs that every surface shows: the story of one, verdicts on changes, the answers of the HTTP API to
workers; and the inputs of ``app.jobs``."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, TypedDict

from holdfast.engine.declared import Before, Help, Most
from holdfast.engine.job import Artifact, Attempt, Event, Job, Liveness, References, Result, Verdict
from holdfast.engine.names import check_name
from holdfast.engine.states import State
from holdfast.engine.steps import NAME_LIMIT, Step, origin_of
from holdfast.errors import Conflict, InvalidInput, InvalidSetting, NotFound
from holdfast.features.agents.model import Agent
from holdfast.features.approvals.model import Approval, CastVote
from holdfast.features.dead_letters.model import DeadLetterGroup, Replacement
from holdfast.features.jobs.why_reasons import Reason
from holdfast.features.schedules.model import MadeFrom
from holdfast.features.workflows.model import ParentResult
from holdfast.stores.requests import JobsWanted
from holdfast.stores.requests import Reason as Because


@dataclass(frozen=True, slots=True)
class Story:
    """Everything about one job. ``approval`` is the approval that it waits for."""

    job: Job
    history: list[Event]
    attempts: list[Attempt]
    artifacts: list[Artifact]
    checkpoints: dict[str, Any]
    result: Result | None
    agent: Agent | None
    """The registered agent that owns the job."""
    steps: list[Step]
    approval: Approval | None
    made_from: MadeFrom | None
    """The template, or the schedule and its time, that the job was created from."""
    parents: list[ParentResult]
    """The jobs of its workflow that it depends on."""
    chain: list[Job]
    """The job and its retries, where each retry is a new job; only the job itself otherwise."""
    group: DeadLetterGroup | None = None
    """For a dead letter: the group of dead letters with the same failure."""
    remade: list[Replacement] = field(default_factory=list)
    """The job that this one replaced, or that replaced it, in a redrive with another payload."""
    references: References = field(default_factory=References)
    """URIs of the input, the output and the payload."""
    liveness: Liveness | None = None
    """Renewals of the lease and progress reports. These writes have no events."""
    lease_expired_at: datetime | None = None
    """When the lease of its worker expired, if no worker has taken the job over yet. The stored state is unchanged."""
    votes: list[CastVote] = field(default_factory=list)
    """The votes on its approvals, oldest first. A vote that decides nothing yet has no event."""
    forks: list[str] = field(default_factory=list)
    """The ids of the newest jobs that were forked from it."""

    @property
    def forked_from(self) -> str | None:
        return origin_of(self.job.tags)

    @property
    def waits_in(self) -> Step | None:
        """The durable call that the job waits in; None if it runs, has ended, or waits for a retry of the whole
        handler."""
        if self.job.state not in (State.RETRY_WAITING, State.WAITING_FOR_APPROVAL):
            return None
        approval = self.job.state is State.WAITING_FOR_APPROVAL
        open_calls = [step for step in self.steps if not step.over and (step.kind == "approval") == approval]
        return next((step for step in open_calls if approval or step.wake_at == self.job.due_at), None)


@dataclass(frozen=True, slots=True)
class View:
    """The contents of the page of a job."""

    story: Story
    reasons: list[Reason]
    children: list[Job]
    now: datetime


@dataclass(frozen=True, slots=True)
class Why:
    """Why a job is not running: every reason that applies, and what would change it."""

    job: Job
    reasons: list[Reason]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended, if it has. ``id`` is that of the last retry, if retries are new jobs. ``sealed`` means that
    there is a value that only the program can unseal."""

    id: str
    state: State
    finished: bool
    value: Any = None
    ref: str | None = None
    sealed: bool = False
    error_code: str | None = None
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class Fork:
    """The job that a fork made, or that an earlier fork with the same key has made."""

    id: str
    job_id: str
    """The job that it was forked from."""
    from_step: int
    """The number of the first step that it does itself."""
    created: bool


# --- inputs ---

FromStep = int | str
"""A step's number, or its name."""


def check_from_step(from_step: object) -> FromStep:
    if isinstance(from_step, int) and not isinstance(from_step, bool) and 0 <= from_step < 2**31:
        return from_step
    if isinstance(from_step, str):
        return check_name(from_step, "name of the step", limit=NAME_LIMIT)
    raise InvalidSetting("from_step must be a step's number or name", code="invalid_setting")


AttemptNumber = Annotated[int | None, Help("The number of the attempt. Default: the last.", "N", low=1, high=2**31 - 1)]
StepName = Annotated[
    FromStep | None, Help("Do this step, by number or name, and those after it again (see: jobs show).", "N|NAME")
]
FirstStep = Annotated[
    FromStep,
    Help(
        "The first step, by number or name, that the new job does itself (see: jobs show).",
        "N|NAME",
        option="--from-step",
    ),
]
Document = Annotated[Any, Help("The payload. On the command line: JSON, @file, or - for stdin.", "PAYLOAD")]


class JobsPage(JobsWanted, total=False):
    """``before`` is the id of the last job of the previous page. Without ``payloads`` each payload is None."""

    before: Before
    limit: Most
    payloads: Annotated[bool, Help("Return payloads.", http=False, cli=False)]


JobsPage.__defaults__ = {"limit": 50}  # type: ignore[attr-defined]


class MoveOptions(TypedDict, total=False):
    """Where to move a job: one of the four positions, or a priority alone, which means behind all others of it."""

    first: Annotated[bool, Help("Move it before all others of its priority.")]
    last: Annotated[bool, Help("Move it behind all others of its priority.")]
    before: Annotated[str | None, Help("Move it directly before this job, with that job's priority.", "ID")]
    after: Annotated[str | None, Help("Move it directly behind this job, with that job's priority.", "ID")]
    priority: Annotated[
        int | None,
        Help("New priority; alone, the job goes last among that priority.", "N", low=-32_768, high=32_767),
    ]
    reason: Because


MoveOptions.__defaults__ = {"first": False, "last": False}  # type: ignore[attr-defined]


# --- verdicts ---

# Reasons of a refusal other than the state of the job.
_CONFLICTS = {
    "not_replaceable": "the payload rules of this kind do not allow replacing a payload",
    "content_key": "the job is deduplicated by its content",
    "steps_recorded": "the job has recorded steps, which were made with the old payload",
    "checkpoints_recorded": "the job has checkpoints, which were made with the old payload",
    "job_held": "the job is held back, and not because of its time",
    "target_not_found": "the other job is not in this tenant",
    "target_not_waiting": "the other job is not waiting",
    "other_queue": "the other job is in another queue",
}
_FIXES = {
    "not_replaceable": "Declare PayloadPolicy(replaceable=True), or run: holdfast payload-rules set KIND --replaceable",
    "content_key": "Cancel the job and enqueue another one.",
    "steps_recorded": "Cancel the job and enqueue another one.",
    "checkpoints_recorded": "Cancel the job and enqueue another one.",
}


def accepted(verdicts: list[Verdict]) -> Verdict:
    """The verdict on one job; raises ``NotFound`` or ``Conflict`` if the store refused the change."""
    verdict = verdicts[0]
    if verdict.refused:
        if verdict.reason == "reason_required":
            raise InvalidInput("discarding a dead letter needs a reason", code="reason_required")
        if verdict.reason == "not_found":
            raise NotFound(f"no job {verdict.id} in this tenant")
        message = _CONFLICTS.get(verdict.reason or "", f"job {verdict.id} is {verdict.state}")
        raise Conflict(message, code=verdict.reason, fix=_FIXES.get(verdict.reason or ""))
    return verdict


# --- answers to workers ---


@dataclass(frozen=True, slots=True)
class OpenedLease:
    lease: str
    until: datetime


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job that a lease holds."""

    id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class RenewedLease:
    """``jobs`` are those that the lease still holds. Any other running job was cancelled or taken over by another
    worker."""

    lease: str
    jobs: list[HeldJob]


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A claimed job. Every later request about it must carry ``attempt``. ``checkpoints`` were saved by earlier
    attempts."""

    id: str
    attempt: int
    tenant: str
    kind: str
    queue: str
    payload: Any
    retries: int
    max_attempts: int
    crashes: int
    max_crashes: int
    priority: int
    created_at: datetime
    deadline_at: datetime | None
    correlation_id: str | None
    parent_id: str | None
    workflow_id: str | None
    agent: str | None
    tags: list[str]
    checkpoints: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SettleResult:
    """The result of a settlement: ``ending`` is the decision, ``reason`` explains why nothing was written."""

    job: str
    attempt: int
    settled: bool
    ending: str | None = None
    reason: str | None = None
