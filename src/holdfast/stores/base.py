"""The port: what every store can do, and nothing about how.

``Verbs`` makes flows; a ``Store`` runs them, in the caller's thread (``run``) or on an
event loop (``arun``). One contract suite exercises every implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, TypeVar

from holdfast.domain.agents import Agent, Definition
from holdfast.domain.circumstances import Circumstances, Executor
from holdfast.domain.durations import Duration, seconds
from holdfast.domain.errors import InvalidSetting
from holdfast.domain.gates import Answer, Ballot, Gate, GateFilter, Vote
from holdfast.domain.health import USUAL, Concern, Health, Thresholds
from holdfast.domain.job import (
    EVERY_TENANT,
    Artifact,
    Attempt,
    Claim,
    Enqueued,
    Event,
    Holding,
    Job,
    JobSpec,
    Lease,
    Result,
    Sweep,
    Turn,
    Verdict,
)
from holdfast.domain.limits import Limit, Rule
from holdfast.domain.order import Move
from holdfast.domain.pages import Place
from holdfast.domain.placing import Placed
from holdfast.domain.policies import retry_limit
from holdfast.domain.reservations import Ask, QueueSetting, Reservation, Standing
from holdfast.domain.schedules import Decision, Fire, Firing, Schedule
from holdfast.domain.settlement import Settlement
from holdfast.domain.states import State
from holdfast.domain.steps import Saved, Step, StepEntry
from holdfast.domain.subscriptions import Consumer, Delivery, Fed, SentEvent, Subscribing, Subscription
from holdfast.domain.templates import MadeFrom, Template, TemplateDraft
from holdfast.domain.workflows import (
    EdgeSpec,
    Graph,
    NodeSpec,
    ParentResult,
    Started,
    Swept,
    Workflow,
    WorkflowSpec,
)
from holdfast.stores.auditing import AuditVerbs
from holdfast.stores.connectors import ConnectorVerbs
from holdfast.stores.endpoints import EndpointVerbs
from holdfast.stores.flow import Flow
from holdfast.stores.governing import DeadLetterVerbs
from holdfast.stores.looking import LookingVerbs
from holdfast.stores.payloads import PayloadVerbs
from holdfast.stores.retaining import RetentionVerbs
from holdfast.stores.switches import SwitchVerbs
from holdfast.stores.tenants import TenantVerbs
from holdfast.stores.tokens import TokenVerbs

T = TypeVar("T")

OperatorVerb = Literal["cancel", "redrive", "discard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """``begin`` starts what is claimed at once; without it jobs wait as leased. ``kinds`` None takes any kind.

    ``after`` has a place (priority, position) for queues whose search begins behind it; a store for which walking
    past what was taken costs nothing does not look at it.
    """

    lease: str
    queues: tuple[str, ...]
    want: int
    begin: bool = True
    kinds: tuple[str, ...] | None = None
    tenant: str = EVERY_TENANT
    after: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reschedule:
    """When a waiting job is to be run: at a time, a while from now by the store's clock, or at once."""

    at: datetime | None = None
    delay: float | None = None
    max_retries: int | None = None

    @classmethod
    def of(cls, at: datetime | None, delay: Duration | None, max_attempts: int | None) -> Reschedule:
        """As people say it, checked."""
        if at is not None and delay is not None:
            raise InvalidSetting("give a time or a delay, not both", code="conflicting_options")
        if at is not None and at.tzinfo is None:
            raise InvalidSetting("the time must be a datetime with a time zone", code="invalid_time")
        limit = retry_limit(max_attempts)
        return cls(at=at, delay=None if delay is None else seconds(delay, "delay"), max_retries=limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """What to list, newest first. ``before`` is the id of the last job of the page before (CX-14)."""

    tenant: str
    state: State | None = None
    kind: str | None = None
    queue: str | None = None
    agent: str | None = None
    tag: str | None = None
    correlation_id: str | None = None
    parent_id: str | None = None
    fingerprint: str | None = None
    """Open dead letters of this group."""
    since: datetime | None = None
    until: datetime | None = None
    before: str | None = None
    limit: int = 50
    payloads: bool = True
    """Without them a long page stays small: each is None then."""


@dataclass(frozen=True, slots=True)
class Counted:
    """How many jobs there are in each state. A count of ``most`` means so many or more; ``of_newest`` says that no more
    than so many of the newest were looked at."""

    counts: dict[State, int]
    most: int
    of_newest: int | None


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """``pending`` names what ``migrate`` would apply; ``unknown`` what a newer release has applied."""

    applied: tuple[str, ...]
    pending: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def current(self) -> bool:
        return not self.pending and not self.unknown


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the doctor looked at."""

    name: str
    ok: bool
    says: str
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Telling:
    """An event about to be told. ``data`` is JSON text; the id is ours, so that telling it again tells nothing new."""

    id: str
    name: str
    data: str
    key: str | None = None
    job_id: str | None = None
    cause_id: str | None = None
    """The job whose handler tells it."""


@dataclass(frozen=True, slots=True)
class Sent:
    """An event that was told: ``created`` is False when one with the same key was sent before; ``woke`` counts the
    jobs that waited for it."""

    id: str
    created: bool
    woke: int


class Verbs(
    PayloadVerbs,
    TenantVerbs,
    AuditVerbs,
    DeadLetterVerbs,
    RetentionVerbs,
    SwitchVerbs,
    TokenVerbs,
    ConnectorVerbs,
    EndpointVerbs,
    LookingVerbs,
    Protocol,
):
    """Every operation, as a flow. A tenant of ``*`` means every tenant, where the caller may."""

    def enqueue(self, specs: Sequence[JobSpec], tenant: str) -> Flow[list[Enqueued]]: ...
    def open_lease(
        self,
        holder: str,
        ttl: float,
        tenant: str,
        name: str = "worker",
        kinds: Sequence[str] | None = None,
        queues: Sequence[str] | None = None,
        slots: int | None = None,
    ) -> Flow[Lease]:
        """``kinds`` are those the holder has handlers for, ``queues`` and ``slots`` where it takes jobs from and how
        many at a time, so that it can be said why a job waits; None when it may be any."""
        ...

    def renew_lease(self, lease: str, ttl: float, tenant: str) -> Flow[bool]: ...
    def end_lease(self, lease: str, why: str, tenant: str) -> Flow[bool]: ...
    def turn(self, settlements: Sequence[Settlement], request: ClaimRequest) -> Flow[Turn]:
        """Settle and claim under the request's lease, in one transaction and one round trip."""
        ...

    def recalls(self, lease: str, tenant: str) -> Flow[int | None]:
        """How often a job was taken from under this lease; None when there is no such lease."""
        ...

    def holdings(self, lease: str, tenant: str) -> Flow[list[Holding]]: ...
    def claim(self, request: ClaimRequest) -> Flow[list[Claim]]: ...
    def start(self, lease: str, ids: Sequence[str], tenant: str) -> Flow[dict[str, int]]: ...
    def release(self, lease: str, ids: Sequence[str], tenant: str) -> Flow[list[str]]: ...
    def settle(self, lease: str, settlements: Sequence[Settlement], tenant: str) -> Flow[list[str]]: ...
    def save_checkpoint(
        self, claim_id: str, lease: str, attempt: int, name: str, value: str, tenant: str
    ) -> Flow[bool]: ...
    def add_artifact(
        self,
        claim_id: str,
        lease: str,
        attempt: int,
        name: str,
        ref: str,
        tenant: str,
        meta: dict[str, Any] | None = None,
    ) -> Flow[bool]: ...
    def asks_first(self, agent: str, tenant: str) -> Flow[bool]:
        """Whether people are to be asked before a job of this agent is run."""
        ...

    def save_steps(self, lease: str, entries: Sequence[tuple[str, int, StepEntry]], tenant: str) -> Flow[list[Saved]]:
        """Remember steps that are over, each with its job and attempt. Answers only what is out of the ordinary."""
        ...

    def steps(self, job_id: str, tenant: str) -> Flow[list[Step]]: ...
    def rewind(self, job_id: str, to: int, actor: str, tenant: str) -> Flow[int | None]:
        """Forget the steps of a dead letter from place ``to`` on; None when there is no such dead letter."""
        ...

    def send_event(self, event: Telling, actor: str, tenant: str) -> Flow[Sent]: ...
    def decide_gate(self, gate_id: str, ballot: Ballot, tenant: str) -> Flow[Answer]: ...
    def keep_gate_token(
        self, gate_id: str, token_hash: str, person: str | None, ttl: float | None, actor: str, tenant: str
    ) -> Flow[str | None]:
        """None when it is kept, or the reason why not."""
        ...

    def gate_hashes(self, gate_id: str, tenant: str) -> Flow[list[str]]: ...
    def attend_gates(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Flow[int]: ...
    def gate(self, gate_id: str, tenant: str) -> Flow[Gate | None]: ...
    def gates(self, wanted: GateFilter) -> Flow[list[Gate]]: ...
    def votes(self, gate_id: str, tenant: str) -> Flow[list[Vote]]: ...
    def promote_due(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Flow[int]: ...
    def expire_overdue(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Flow[int]: ...
    def reap_lapsed(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Flow[Sweep]: ...
    def operate(
        self,
        verb: OperatorVerb,
        ids: Sequence[str],
        reason: str | None,
        actor: str,
        tenant: str,
        max_retries: int | None = None,
    ) -> Flow[list[Verdict]]:
        """``max_retries`` is a new limit, for a redrive."""
        ...

    def reschedule(
        self, ids: Sequence[str], when: Reschedule, reason: str | None, actor: str, tenant: str
    ) -> Flow[list[Verdict]]: ...
    def move(self, job_id: str, move: Move, reason: str | None, actor: str, tenant: str) -> Flow[Verdict]:
        """Give a waiting job another place in its queue. Places are those of the whole queue, whatever the tenant."""
        ...

    def events_after(self, cursor: str | None, want: int, tenant: str) -> Flow[list[Event]]: ...
    def ledger_end(self, tenant: str) -> Flow[str]:
        """Where the ledger ends now, as a cursor: what is committed from now on lies after it."""
        ...

    def app_events_after(self, cursor: str | None, want: int, tenant: str) -> Flow[list[SentEvent]]:
        """What applications told, in commit order; its cursors are of another kind than the ledger's."""
        ...

    def cursor_of(self, consumer: str, tenant: str) -> Flow[str | None]: ...
    def save_cursor(self, consumer: str, cursor: str, was: str | None, tenant: str) -> Flow[bool]: ...
    def consumers(self, tenant: str) -> Flow[list[Consumer]]: ...
    def reset_consumer(self, consumer: str, beginning: bool, tenant: str, actor: str | None = None) -> Flow[bool]:
        """Have a consumer read all of it again, or nothing of what there is."""
        ...

    def remove_consumer(self, consumer: str, tenant: str, actor: str | None = None) -> Flow[bool]: ...
    def save_subscription(self, new: Subscribing, id: str, actor: str, tenant: str) -> Flow[bool]:
        """Whether it is new. A declared one that is there gets another definition, and keeps its place."""
        ...

    def pause_subscription(self, name: str, reason: str | None, actor: str, tenant: str) -> Flow[bool]: ...
    def resume_subscription(self, name: str, skip: bool, tenant: str, actor: str | None = None) -> Flow[bool]:
        """With ``skip`` without what it has missed."""
        ...

    def delete_subscription(self, name: str, tenant: str, actor: str | None = None) -> Flow[bool]: ...
    def feed_subscription(self, name: str, want: int, tenant: str) -> Flow[Fed]:
        """Read up to ``want`` events and make the jobs of those it wants; nothing while somebody else does."""
        ...

    def subscription_failed(self, id: str, failure: str, tenant: str) -> Flow[None]: ...
    def subscription(self, name: str, tenant: str) -> Flow[Subscription | None]: ...
    def subscriptions(self, tenant: str) -> Flow[list[Subscription]]: ...
    def active_subscriptions(self, tenant: str) -> Flow[list[tuple[str, str, str]]]: ...
    def deliveries(self, id: str, tenant: str, refused: bool, limit: int) -> Flow[list[Delivery]]: ...
    def behind(self, cursor: str | None, of_ledger: bool, tenant: str) -> Flow[int]: ...
    def register_agent(self, definition: Definition, tenant: str, actor: str | None = None) -> Flow[Agent]:
        """New, or in place of the definition there is; whether it is disabled is not touched."""
        ...

    def disable_agent(self, agent: str, reason: str, actor: str, tenant: str) -> Flow[Agent | None]:
        """From now on nothing is enqueued for it and what waits is not begun; None when nobody registered it."""
        ...

    def drain_agent(self, agent: str, tenant: str) -> Flow[bool]:
        """Wait for those who still found it enabled; False if one of them has not ended."""
        ...

    def enable_agent(self, agent: str, tenant: str, actor: str | None = None) -> Flow[Agent | None]: ...
    def resume_agent(self, agent: str, want: int, tenant: str) -> Flow[int]:
        """Bring back jobs that were put off while their agent was disabled."""
        ...

    def agent(self, agent: str, tenant: str) -> Flow[Agent | None]: ...
    def agents(
        self,
        tenant: str,
        kind: str | None = None,
        disabled: bool | None = None,
        after: Place | None = None,
        limit: int | None = None,
    ) -> Flow[list[Agent]]:
        """By their ids, of several tenants one after the other; those for one kind, the disabled ones or the others."""
        ...

    def put_template(self, draft: TemplateDraft, actor: str, tenant: str) -> Flow[Template | None]:
        """A new version, unless it says what the newest does; None when the template is of another kind."""
        ...

    def remove_template(self, name: str, actor: str, tenant: str) -> Flow[bool]: ...
    def template(self, name: str, tenant: str, version: int | None = None) -> Flow[Template | None]:
        """This version; without one the newest, which may say that the template was removed."""
        ...

    def templates(self, tenant: str, after: Place | None = None, limit: int | None = None) -> Flow[list[Template]]:
        """The newest version of each that was not removed, by their names, of several tenants one after the other."""
        ...

    def template_versions(self, name: str, tenant: str) -> Flow[list[Template]]: ...
    def enqueue_made(
        self, specs: Sequence[JobSpec], template: str, version: int, tenant: str
    ) -> Flow[list[Enqueued]]: ...
    def made_from(self, job_id: str, tenant: str) -> Flow[MadeFrom | None]: ...
    def add_schedule(self, schedule: Placed, actor: str, tenant: str) -> Flow[bool]:
        """False when there is one of that name."""
        ...

    def change_schedule(self, read: Schedule, becomes: Placed, state: str, actor: str, tenant: str) -> Flow[bool]:
        """Define anew, pause, resume or delete what was read; False when it is not so any more."""
        ...

    def declared_schedules(self, declared_by: str, tenant: str) -> Flow[list[Schedule]]: ...
    def declare_schedules(self, declared_by: str, names: Sequence[str], tenant: str) -> Flow[list[str]]:
        """Say which schedules a program declares; answers those that it has stopped declaring."""
        ...

    def due_schedules(
        self, kinds: Sequence[str], want: int, tenant: str, held: bool = False
    ) -> Flow[tuple[datetime, list[Schedule], frozenset[str]]]:
        """The time, and schedules to look at: of these kinds, and of those that no live worker of ours names. The last
        are kinds of them that somebody runs. ``held`` asks for those of these kinds that nobody knew so far."""
        ...

    def fire_schedules(self, decisions: Sequence[Decision], tenant: str) -> Flow[int]:
        """Apply what was decided, where it was decided about what is still so; answers for how many."""
        ...

    def run_schedule(
        self, schedule_id: str, firing: Firing, anyway: bool, actor: str, tenant: str
    ) -> Flow[tuple[str | None, str | None, str | None]]:
        """Run it now, besides its times: the job's id, or the reason why there is none and the words."""
        ...

    def schedule(self, name: str, tenant: str) -> Flow[Schedule | None]: ...
    def schedules(
        self,
        tenant: str,
        state: str | None = None,
        kind: str | None = None,
        after: Place | None = None,
        limit: int | None = None,
    ) -> Flow[list[Schedule]]:
        """By their names, of several tenants one after the other."""
        ...

    def fires(self, schedule_id: str, tenant: str, limit: int = 50, before: datetime | None = None) -> Flow[list[Fire]]:
        """What became of its times, the latest first."""
        ...

    def start_workflow(self, spec: WorkflowSpec, tenant: str) -> Flow[Started]:
        """All its jobs, in one transaction; jobs with unmet parents wait from the beginning."""
        ...

    def add_to_workflow(
        self, workflow_id: str, nodes: Sequence[NodeSpec], edges: Sequence[EdgeSpec], actor: str, tenant: str
    ) -> Flow[Started]:
        """More jobs for a workflow that is not over."""
        ...

    def cancel_workflow(self, workflow_id: str, reason: str | None, actor: str, tenant: str) -> Flow[Swept]: ...
    def resume_workflow(self, workflow_id: str, reason: str | None, actor: str, tenant: str) -> Flow[Swept]:
        """Redrive its dead letters; what was held back behind them comes back with that."""
        ...

    def workflow(self, workflow_id: str, tenant: str) -> Flow[Workflow | None]: ...
    def workflows(
        self, tenant: str, kind: str | None = None, over: bool | None = None, before: str | None = None, limit: int = 50
    ) -> Flow[list[Workflow]]:
        """A page, newest first; ``before`` is the id of the last one of the page before."""
        ...

    def graph(self, workflow_id: str, tenant: str, limit: int | None = None) -> Flow[Graph | None]:
        """With a limit so many of its jobs, the first."""
        ...

    def named(self, workflow_id: str, names: Sequence[str], tenant: str) -> Flow[dict[str, str]]:
        """The ids of jobs of a workflow by their names there, of those that there are."""
        ...

    def parent_results(self, job_id: str, tenant: str) -> Flow[list[ParentResult]]:
        """Of the jobs that this one waits or waited for: where they are and what they returned."""
        ...

    def set_limit(self, rule: Rule, actor: str, tenant: str) -> Flow[Limit]:
        """New, or in place of the one there is. What runs already counts."""
        ...

    def remove_limit(self, scope: str, name: str, actor: str, tenant: str) -> Flow[bool]: ...
    def limits(self, tenant: str) -> Flow[list[Limit]]: ...
    def attend_limits(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Flow[int]:
        """End reservations that nobody keeps alive, and let parked jobs go on that have room by now."""
        ...

    def reserve(self, ask: Ask, actor: str, tenant: str) -> Flow[Standing]:
        """Ask for a reservation, or keep alive the one that was asked for under this id."""
        ...

    def release_reservation(self, reservation_id: str, why: str, actor: str, tenant: str) -> Flow[bool]: ...
    def reservation(self, reservation_id: str, tenant: str) -> Flow[Reservation | None]: ...
    def reservations(self, tenant: str, ended: bool = False, limit: int = 50) -> Flow[list[Reservation]]:
        """Those that wait or are active, in their order; with ``ended`` the rest too, newest first."""
        ...

    def set_aging(
        self, queue: str, every: float | None, step: int, most: int, actor: str, tenant: str
    ) -> Flow[QueueSetting | None]:
        """From now on waiting counts in a queue; None ends that."""
        ...

    def queue_settings(self, tenant: str) -> Flow[list[QueueSetting]]: ...
    def age_queues(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Flow[int]: ...

    def set_clock(self, shift: timedelta, stopped: datetime | None) -> Flow[None]: ...
    def now(self) -> Flow[datetime]: ...

    def get(self, job_id: str, tenant: str) -> Flow[Job | None]: ...
    def list_jobs(self, wanted: JobFilter) -> Flow[list[Job]]: ...
    def notes(self, wanted: JobFilter) -> Flow[dict[str, dict[str, Any]]]:
        """Of the same page of jobs, the note of each that has one: what its last transition was about."""
        ...

    def chain(self, job_id: str, tenant: str) -> Flow[list[Job]]:
        """The jobs that were made of one by retrying it as new ones, the first first; it alone, if there is none."""
        ...

    def circumstances(self, job_id: str, tenant: str) -> Flow[Circumstances | None]:
        """Who holds it, who could take it, and how many are before it."""
        ...

    def add_executor(self, label: str, role: str, actor: str) -> Flow[Executor]: ...
    def remove_executor(self, label: str, actor: str | None = None) -> Flow[bool]: ...
    def executors(self) -> Flow[list[Executor]]: ...
    def history(self, job_id: str, tenant: str) -> Flow[list[Event]]: ...
    def attempts(self, job_id: str, tenant: str) -> Flow[list[Attempt]]: ...
    def artifacts(self, job_id: str, tenant: str) -> Flow[list[Artifact]]: ...
    def checkpoints(self, job_id: str, tenant: str) -> Flow[dict[str, Any]]: ...
    def result(self, job_id: str, tenant: str) -> Flow[Result | None]: ...
    def watch(self, job_id: str, tenant: str, seconds: float) -> Flow[None]:
        """Have the end of this job told to those who listen, for so many seconds."""
        ...

    def health(self, tenant: str, when: Thresholds = USUAL) -> Flow[Health]:
        """What was counted and what is to be said of it; of the database itself, see ``Store.conditions``."""
        ...

    def counts(self, tenant: str) -> Flow[dict[State, int]]: ...
    def capped_counts(self, wanted: JobFilter, most: int) -> Flow[Counted]:
        """Of those that the filter chooses, in each state; its own state is not looked at."""
        ...


class Caller(Protocol):
    """Whoever runs flows for one tenant, and signs them: the client, to features that do not know it."""

    @property
    def actor(self) -> str: ...

    @property
    def tenant(self) -> str: ...
    @property
    def verbs(self) -> Verbs: ...
    def run(self, flow: Flow[T]) -> T: ...
    async def arun(self, flow: Flow[T]) -> T: ...


class BorrowedVerbs(Protocol):
    """What can be done on a connection of the caller's own, as part of the transaction that is open there."""

    def enqueue(self, specs: Sequence[JobSpec], tenant: str) -> Flow[list[Enqueued]]: ...
    def start_workflow(self, spec: WorkflowSpec, tenant: str) -> Flow[Started]: ...
    def settle(self, lease: str, settlement: Settlement, tenant: str) -> Flow[bool]:
        """False: the attempt is no longer this lease's, and nothing was written."""
        ...


class Store(Protocol):
    """A database with Holdfast's tables in it."""

    @property
    def verbs(self) -> Verbs: ...
    @property
    def url(self) -> str: ...
    @property
    def embedded(self) -> bool:
        """It lives inside the program and nobody else looks after it."""
        ...

    @property
    def lanes(self) -> int:
        """How many turns of one worker make sense at the same time."""
        ...

    def listen(self, heard: Callable[[str], None]) -> Callable[[], None]:
        """Call ``heard`` from another thread whenever something may have happened, until the answer is called.

        It is told a queue's name when a job has come into it, the same after a space when its order was changed, the
        id of a job whose end is being waited for, the id of a lease that lost a job, or nothing ("") when it can be
        anything. A hint and no more: some are not sent, some are lost, and whoever listens also looks by himself now
        and then.
        """
        ...

    def run(self, flow: Flow[T]) -> T: ...
    async def arun(self, flow: Flow[T]) -> T: ...
    @property
    def borrowed(self) -> BorrowedVerbs: ...
    def run_borrowed(self, connection: object, flow: Flow[T], *, within: bool = False) -> T:
        """Run a flow of ``borrowed`` on a connection of the caller's; ``within`` insists on an open transaction."""
        ...

    async def arun_borrowed(self, connection: object, flow: Flow[T], *, within: bool = False) -> T: ...
    def transaction(self) -> AbstractContextManager[Any]:
        """A connection of the driver's own kind in a transaction that ends with the block."""
        ...

    def atransaction(self) -> AbstractAsyncContextManager[Any]: ...
    def migrate(self) -> SchemaStatus: ...
    def schema(self) -> SchemaStatus: ...
    def migration_sql(self) -> str: ...
    def diagnose(self) -> list[Finding]: ...
    def conditions(self, when: Thresholds = USUAL) -> list[Concern]:
        """What is to be said of the database itself, at a glance: a part of health."""
        ...

    async def leave_loop(self) -> None:
        """Close what was opened for the event loop that is running, which is about to end."""
        ...

    def close(self) -> None: ...
    async def aclose(self) -> None: ...
