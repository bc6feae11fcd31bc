"""The ports of the engine: the operations every store has, and the database that runs them.

Operations return flows; a ``Database`` runs them, in the caller's thread (``run``) or on an event loop (``arun``). One
contract suite exercises every implementation. The ports of features are in ``features/*/store.py``; a database with all
operations is ``features.assembly.Store``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from holdfast.engine.job import (
    EVERY_TENANT,
    Artifact,
    Attempt,
    Claim,
    Enqueued,
    Event,
    Exchange,
    Holding,
    Job,
    JobSpec,
    Lease,
    Liveness,
    References,
    Renewal,
    Result,
    StopMode,
    Sweep,
    Verdict,
)
from holdfast.engine.order import Move
from holdfast.engine.settlement import Settlement
from holdfast.engine.states import State
from holdfast.engine.steps import Saved, Step, StepEntry
from holdfast.features.agents.model import JobSituation
from holdfast.features.attempts.model import LogPart
from holdfast.features.events.model import SentEvent
from holdfast.features.health.model import DEFAULT_THRESHOLDS, Concern, Thresholds
from holdfast.features.workflows.model import Started, WorkflowSpec
from holdfast.stores.due import DueWork
from holdfast.stores.flow import Flow
from holdfast.stores.listener import Names
from holdfast.stores.migrations import Execute
from holdfast.stores.outage import Outage
from holdfast.stores.requests import (
    ClaimRequest,
    Counted,
    Finding,
    JobFilter,
    Login,
    OperatorAction,
    Reschedule,
    SchemaStatus,
    SendEvent,
    SentResult,
)

if TYPE_CHECKING:
    from holdfast.features.assembly import Store


T = TypeVar("T")

POOL_SIZE, MOST_CONNECTIONS = 8, 1_000


class Caller(Protocol):
    """Runs flows for one tenant and names the actor: the session, as features see it."""

    @property
    def actor(self) -> str: ...

    @property
    def tenant(self) -> str: ...
    @property
    def store(self) -> Store: ...
    def run(self, flow: Flow[T]) -> T: ...
    async def arun(self, flow: Flow[T]) -> T: ...


class CallerOperations(Protocol):
    """The operations that can run on a caller's connection, in the transaction that is open there."""

    def enqueue(self, specs: Sequence[JobSpec], tenant: str) -> Flow[list[Enqueued]]: ...
    def start_workflow(self, spec: WorkflowSpec, tenant: str) -> Flow[Started]: ...
    def settle(self, lease: str, settlement: Settlement, tenant: str) -> Flow[bool]:
        """False: the lease no longer holds this attempt, and nothing was written."""
        ...

    def append_log(self, lease: str, parts: Sequence[LogPart], tenant: str) -> Flow[None]: ...


class Database(Protocol):
    """A database with Holdfast's tables. It runs flows and has no operations of jobs."""

    @property
    def url(self) -> str: ...
    @property
    def embedded(self) -> bool:
        """Whether it lives inside the program, which then migrates it."""
        ...

    @property
    def pipeline_depth(self) -> int:
        """Pipeline depth: how many exchanges one worker should have under way at the same time."""
        ...

    @property
    def outage(self) -> Outage:
        """Receives failures to use the database, and logs an outage once."""
        ...

    def listen(self, notify: Callable[[str], None], names: Names | None = None) -> Callable[[], None]:
        """Call ``notify`` from another thread when something may have happened. Returns the function that stops it.

        The argument is the name of a queue that received a job, the same after a space when the order of the queue
        changed, the id of a watched job that ended, the id of a lease that lost a job, or "" when it may be anything.
        It is a hint: some are not sent and some are lost, so callers also poll. Only names that ``names`` returns at
        that moment are passed on; without ``names`` the argument is always "".
        """
        ...

    @property
    def listening(self) -> bool:
        """Whether notifications are being received; then polling is only a safety net."""
        ...

    async def due_work(self, lease: str | None, tenant: str) -> DueWork | None:
        """Which maintenance tasks have work, read in one round trip. None where a query needs no round trip, so that
        each task can check for itself."""
        ...

    def run(self, flow: Flow[T]) -> T: ...
    async def arun(self, flow: Flow[T]) -> T: ...
    @property
    def on_connection(self) -> CallerOperations: ...
    def run_on_connection(self, connection: object, flow: Flow[T], *, within: bool = False) -> T:
        """Run a flow of ``borrowed`` on a caller's connection. ``within`` requires an open transaction."""
        ...

    async def arun_on_connection(self, connection: object, flow: Flow[T], *, within: bool = False) -> T: ...
    def transaction(self) -> AbstractContextManager[Any]:
        """A plain connection of the driver, in a transaction that ends with the block."""
        ...

    def atransaction(self) -> AbstractAsyncContextManager[Any]: ...
    def migrate(self) -> SchemaStatus: ...
    def migrate_within(self, connection: Execute) -> None:
        """Migrate in the transaction that is open on a caller's connection."""
        ...

    def schema(self) -> SchemaStatus: ...
    async def aschema(self) -> SchemaStatus:
        """``schema`` over a pooled connection, for processes that read it regularly."""
        ...

    def check_writable(self) -> None:
        """Raise if the database cannot be written to now: a full disk, a read-only file or server."""
        ...

    def migration_sql(self) -> str: ...
    def diagnose(self) -> list[Finding]: ...
    def logins(self) -> list[Login]:
        """The logins of the server with Holdfast roles; empty where there are no roles."""
        ...

    def conditions(self, when: Thresholds = DEFAULT_THRESHOLDS) -> list[Concern]:
        """Concerns about the database itself, from one cheap query: a part of health."""
        ...

    async def aconditions(self, when: Thresholds = DEFAULT_THRESHOLDS) -> list[Concern]:
        """``conditions`` over a pooled connection."""
        ...

    async def leave_loop(self) -> None:
        """Close the connections of the running event loop, which is about to end."""
        ...

    def close(self) -> None: ...
    async def aclose(self) -> None: ...


class JobStore(Protocol):
    def operate(
        self,
        action: OperatorAction,
        ids: Sequence[str],
        reason: str | None,
        actor: str,
        tenant: str,
        max_attempts: int | None = None,
    ) -> Flow[list[Verdict]]:
        """``max_attempts`` is a new limit, for a redrive."""
        ...

    def reschedule(
        self, ids: Sequence[str], when: Reschedule, reason: str | None, actor: str, tenant: str
    ) -> Flow[list[Verdict]]: ...

    def move(self, job_id: str, move: Move, reason: str | None, actor: str, tenant: str) -> Flow[Verdict]:
        """Move a waiting job within its queue. Positions are those of the whole queue, across tenants."""
        ...

    def get(self, job_id: str, tenant: str) -> Flow[Job | None]: ...

    def beginning_with(self, low: str, high: str, tenant: str, limit: int = 5) -> Flow[list[str]]:
        """Ids from ``low`` to ``high``, to resolve an id from its first characters."""
        ...

    def notes(self, job_filter: JobFilter) -> Flow[dict[str, dict[str, Any]]]:
        """The notes of the jobs of a page, by id: details of the last transition, for jobs that have any."""
        ...

    def chain(self, job_id: str, tenant: str) -> Flow[list[Job]]:
        """The job and the jobs that were created by retrying it as new ones, oldest first."""
        ...

    def circumstances(self, job_id: str, tenant: str) -> Flow[JobSituation | None]:
        """Which worker holds the job, which workers could claim it, and how many jobs are ahead of it."""
        ...

    def history(self, job_id: str, tenant: str) -> Flow[list[Event]]: ...

    def attempts(self, job_id: str, tenant: str, after: int = -1, limit: int | None = None) -> Flow[list[Attempt]]: ...

    def replace_payload(self, job_id: str, payload: str, reason: str, actor: str, tenant: str) -> Flow[Verdict]:
        """Replace the payload (JSON text) of a waiting job, if a rule of its kind allows it."""
        ...

    def set_external_ref(self, job_id: str, external_ref: str | None, actor: str, tenant: str) -> Flow[Verdict]:
        """Set the external reference of a job in any state; None removes it."""
        ...

    def liveness(self, job_id: str, tenant: str) -> Flow[Liveness | None]:
        """How often and when the newest attempt last renewed its lease and reported progress."""
        ...

    def artifacts(self, job_id: str, tenant: str) -> Flow[list[Artifact]]: ...

    def checkpoints(self, job_id: str, tenant: str) -> Flow[dict[str, Any]]: ...

    def result(self, job_id: str, tenant: str) -> Flow[Result | None]: ...

    def watch(self, job_id: str, tenant: str, seconds: float) -> Flow[None]:
        """Send a notification when this job ends, if it does within ``seconds``."""
        ...

    def counts(self, tenant: str) -> Flow[dict[State, int]]: ...

    def capped_counts(self, job_filter: JobFilter, most: int) -> Flow[Counted]:
        """The number of matching jobs in each state; the filter's own ``state`` is ignored."""
        ...

    def enqueue(self, specs: Sequence[JobSpec], tenant: str) -> Flow[list[Enqueued]]: ...

    def references(self, job_id: str, tenant: str) -> Flow[References]: ...

    def list(self, job_filter: JobFilter) -> Flow[list[Job]]: ...

    def with_keys(
        self, job_filter: JobFilter, paths: Sequence[Sequence[str]], of_ids: Sequence[str] | None = None
    ) -> Flow[Sequence[tuple[Job, Sequence[str | None]]]]:
        """Jobs without payloads, each with the scalars at these paths of its payload, as JSON text."""
        ...

    def by_payload(
        self, path: Sequence[str], value: str, tenant: str, before: str | None, most: int
    ) -> Flow[Sequence[str]]:
        """Ids of jobs whose payload has this text under an indexed key, newest first. Restricted and sealed payloads
        never match."""
        ...

    def payload_indexes(self) -> Flow[Sequence[str]]:
        """The payload keys that are indexed: ``payload.customer.id``."""
        ...

    def fill_payload_index(self, path: Sequence[str], after: str | None) -> Flow[str | None]:
        """Build an index in batches: call it with None, then with the last result, until it returns None. Only the
        owner of the tables may do this."""
        ...

    def remove_payload_index(self, path: Sequence[str]) -> Flow[None]: ...


class ClockStore(Protocol):
    def now(self) -> Flow[datetime]: ...

    def set(self, shift: timedelta, stopped: datetime | None) -> Flow[None]: ...


class LeaseStore(Protocol):
    def open(
        self,
        holder: str,
        ttl: float,
        tenant: str,
        name: str = "worker",
        kinds: Sequence[str] | None = None,
        queues: Sequence[str] | None = None,
        slots: int | None = None,
        version: str | None = None,
    ) -> Flow[Lease]:
        """``kinds`` are the kinds with a handler, ``queues`` the queues it claims from and ``slots`` how many jobs it
        runs at a time, so that Holdfast can explain why a job waits. None means any."""
        ...

    def renew(self, lease: str, ttl: float, tenant: str) -> Flow[Renewal]: ...
    def request_stop(self, worker: str, mode: StopMode, actor: str | None, tenant: str) -> Flow[bool]:
        """Request that the worker with this holder name stops. It reads the request with its next heartbeat. False when
        no such worker is running in this scope."""
        ...

    def end(self, lease: str, why: str, tenant: str) -> Flow[bool]: ...
    def exchange(self, settlements: Sequence[Settlement], request: ClaimRequest) -> Flow[Exchange]:
        """Settle and claim under the request's lease, in one transaction and one round trip."""
        ...

    def cancellations(self, lease: str, tenant: str) -> Flow[int | None]:
        """How often a job was cancelled or taken away under this lease; None when there is no such lease."""
        ...

    def holdings(self, lease: str, tenant: str) -> Flow[list[Holding]]: ...
    def claim(self, request: ClaimRequest) -> Flow[list[Claim]]: ...
    def start(self, lease: str, ids: Sequence[str], tenant: str) -> Flow[dict[str, int]]: ...
    def release(self, lease: str, ids: Sequence[str], tenant: str) -> Flow[list[str]]: ...
    def settle(self, lease: str, settlements: Sequence[Settlement], tenant: str) -> Flow[list[str]]: ...

    def promote(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Flow[int]: ...
    def expire(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Flow[int]: ...
    def reap(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Flow[Sweep]: ...
    def set_aside(
        self,
        lease: str | None,
        queues: Sequence[str],
        kinds: Sequence[str] | None = None,
        want: int = 1000,
        tenant: str = EVERY_TENANT,
    ) -> Flow[list[str]]:
        """After a claim or a maintenance task failed: find the jobs whose rows the database refuses to update, and skip
        them for ten minutes. Returns their ids. Without a lease, only the jobs of maintenance tasks are checked."""
        ...


class StepStore(Protocol):
    def save_checkpoint(
        self, claim_id: str, lease: str, attempt: int, name: str, value: str, tenant: str
    ) -> Flow[bool]: ...

    def note_upload(self, claim_id: str, lease: str, attempt: int, ref: str, tenant: str) -> Flow[bool]:
        """Announce an object that is about to be stored for a step or a checkpoint. It is deleted if no step or
        checkpoint records it within a day. False when the lease no longer holds this attempt."""
        ...

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

    def requires_approval(self, agent: str, tenant: str) -> Flow[bool]:
        """Whether jobs of this agent need an approval before they run."""
        ...

    def save(self, lease: str, entries: Sequence[tuple[str, int, StepEntry]], tenant: str) -> Flow[list[Saved]]:
        """Save finished steps, each with its job and attempt. Returns only the entries that were not simply saved."""
        ...

    def rewind(self, job_id: str, to: int, actor: str, tenant: str) -> Flow[int | None]:
        """Delete the steps of a dead letter from number ``to`` on; None when there is no such dead letter."""
        ...

    def list(self, job_id: str, tenant: str) -> Flow[list[Step]]: ...

    def unfinished(self, job_id: str, tenant: str) -> Flow[dict[int, int]]:
        """How often each step that an earlier attempt began and did not record was started."""
        ...


class LedgerStore(Protocol):
    def send(self, event: SendEvent, actor: str, tenant: str) -> Flow[SentResult]: ...
    def read(self, cursor: str | None, want: int, tenant: str) -> Flow[list[Event]]: ...
    def gone(self, cursor: str, tenant: str) -> Flow[int | None]:
        """The number of the last event after this cursor that was purged since the cursor was issued; None when there
        is none. ``clean`` events do not count: a purge can follow at once, before any consumer could read them."""
        ...

    def end(self, tenant: str) -> Flow[str]:
        """The current end of the ledger as a cursor: every later commit is after it."""
        ...

    def read_sent(self, cursor: str | None, want: int, tenant: str) -> Flow[list[SentEvent]]:
        """Events sent by applications, in commit order. Their cursors differ from those of the ledger."""
        ...

    def cursor(self, consumer: str, tenant: str) -> Flow[str | None]: ...
    def save_cursor(self, consumer: str, cursor: str, was: str | None, tenant: str) -> Flow[bool]: ...
