"""The ports of the engine: what its operations can do on every store, and what runs them.

The operations make flows; a ``Database`` runs them, in the caller's thread (``run``) or on an event loop (``arun``).
One contract suite exercises every implementation. The ports of features stand in ``features/*/store.py``; a database
with all its operations is ``features.assembly.Store``.
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
from holdfast.features.agents.model import Circumstances
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
    """Whoever runs flows for one tenant, and signs them: the client, to features that do not know it."""

    @property
    def actor(self) -> str: ...

    @property
    def tenant(self) -> str: ...
    @property
    def store(self) -> Store: ...
    def run(self, flow: Flow[T]) -> T: ...
    async def arun(self, flow: Flow[T]) -> T: ...


class BorrowedOperations(Protocol):
    """What can be done on a connection of the caller's own, as part of the transaction that is open there."""

    def enqueue(self, specs: Sequence[JobSpec], tenant: str) -> Flow[list[Enqueued]]: ...
    def start_workflow(self, spec: WorkflowSpec, tenant: str) -> Flow[Started]: ...
    def settle(self, lease: str, settlement: Settlement, tenant: str) -> Flow[bool]:
        """False: the attempt is no longer this lease's, and nothing was written."""
        ...

    def append_log(self, lease: str, parts: Sequence[LogPart], tenant: str) -> Flow[None]: ...


class Database(Protocol):
    """A database with Holdfast's tables in it: it runs flows, and knows no operation."""

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

    @property
    def outage(self) -> Outage:
        """Where a failure to use the database is reported, and logged once."""
        ...

    def listen(self, heard: Callable[[str], None], names: Names | None = None) -> Callable[[], None]:
        """Call ``heard`` from another thread whenever something may have happened, until the answer is called.

        It is told a queue's name when a job has come into it, the same after a space when its order was changed, the
        id of a job whose end is being waited for, the id of a lease that lost a job, or nothing ("") when it can be
        anything. A hint and no more: some are not sent, some are lost, and whoever listens also looks by himself now
        and then. Of names it is told those that ``names`` answers at that moment; without ``names`` every hint is "".
        """
        ...

    @property
    def listening(self) -> bool:
        """Whether whatever is announced is heard now; then polling is a safety net only."""
        ...

    async def due_work(self, lease: str | None, tenant: str) -> DueWork | None:
        """Which maintenance tasks have work, asked in one round trip. None where each of them may as well look itself:
        looking costs no round trip there."""
        ...

    def run(self, flow: Flow[T]) -> T: ...
    async def arun(self, flow: Flow[T]) -> T: ...
    @property
    def borrowed(self) -> BorrowedOperations: ...
    def run_borrowed(self, connection: object, flow: Flow[T], *, within: bool = False) -> T:
        """Run a flow of ``borrowed`` on a connection of the caller's; ``within`` insists on an open transaction."""
        ...

    async def arun_borrowed(self, connection: object, flow: Flow[T], *, within: bool = False) -> T: ...
    def transaction(self) -> AbstractContextManager[Any]:
        """A connection of the driver's own kind in a transaction that ends with the block."""
        ...

    def atransaction(self) -> AbstractAsyncContextManager[Any]: ...
    def migrate(self) -> SchemaStatus: ...
    def migrate_within(self, connection: Execute) -> None:
        """The same in the transaction that is open on a connection of the caller's."""
        ...

    def schema(self) -> SchemaStatus: ...
    async def aschema(self) -> SchemaStatus:
        """The same where reads go on all the time: over a connection that is there."""
        ...

    def check_writable(self) -> None:
        """Raise if the database cannot be written to now: a full disk, a file or a server that is read-only."""
        ...

    def migration_sql(self) -> str: ...
    def diagnose(self) -> list[Finding]: ...
    def logins(self) -> list[Login]:
        """The logins of the server that have roles of Holdfast; none where there are no roles."""
        ...

    def conditions(self, when: Thresholds = DEFAULT_THRESHOLDS) -> list[Concern]:
        """What is to be said of the database itself, at a glance: a part of health."""
        ...

    async def aconditions(self, when: Thresholds = DEFAULT_THRESHOLDS) -> list[Concern]:
        """The same, over a connection that is there."""
        ...

    async def leave_loop(self) -> None:
        """Close what was opened for the event loop that is running, which is about to end."""
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
        """Give a waiting job another place in its queue. Places are those of the whole queue, whatever the tenant."""
        ...

    def get(self, job_id: str, tenant: str) -> Flow[Job | None]: ...

    def beginning_with(self, low: str, high: str, tenant: str, limit: int = 5) -> Flow[list[str]]:
        """Ids from ``low`` to ``high``: for an id that is given by its first characters."""
        ...

    def notes(self, wanted: JobFilter) -> Flow[dict[str, dict[str, Any]]]:
        """Of the same page of jobs, the note of each that has one: what its last transition was about."""
        ...

    def chain(self, job_id: str, tenant: str) -> Flow[list[Job]]:
        """The jobs that were made of one by retrying it as new ones, the first first; it alone, if there is none."""
        ...

    def circumstances(self, job_id: str, tenant: str) -> Flow[Circumstances | None]:
        """Who holds it, who could take it, and how many are before it."""
        ...

    def history(self, job_id: str, tenant: str) -> Flow[list[Event]]: ...

    def attempts(self, job_id: str, tenant: str) -> Flow[list[Attempt]]: ...

    def replace_payload(self, job_id: str, payload: str, reason: str, actor: str, tenant: str) -> Flow[Verdict]:
        """Replace the payload of a waiting job by another (JSON text), where a rule for its kind allows it."""
        ...

    def liveness(self, job_id: str, tenant: str) -> Flow[Liveness | None]:
        """How often and when last the lease of the newest attempt was renewed and its progress reported."""
        ...

    def artifacts(self, job_id: str, tenant: str) -> Flow[list[Artifact]]: ...

    def checkpoints(self, job_id: str, tenant: str) -> Flow[dict[str, Any]]: ...

    def result(self, job_id: str, tenant: str) -> Flow[Result | None]: ...

    def watch(self, job_id: str, tenant: str, seconds: float) -> Flow[None]:
        """Have the end of this job told to those who listen, for so many seconds."""
        ...

    def counts(self, tenant: str) -> Flow[dict[State, int]]: ...

    def capped_counts(self, wanted: JobFilter, most: int) -> Flow[Counted]:
        """Of those that the filter chooses, in each state; its own state is not looked at."""
        ...

    def enqueue(self, specs: Sequence[JobSpec], tenant: str) -> Flow[list[Enqueued]]: ...

    def references(self, job_id: str, tenant: str) -> Flow[References]: ...

    def list(self, wanted: JobFilter) -> Flow[list[Job]]: ...

    def by_payload(
        self, path: Sequence[str], value: str, tenant: str, before: str | None, most: int
    ) -> Flow[Sequence[str]]:
        """Ids of jobs whose payload has this text under an indexed key, newest first. Never of restricted or sealed
        payloads."""
        ...

    def payload_indexes(self) -> Flow[Sequence[str]]:
        """Which keys of payloads are indexed: ``payload.customer.id``."""
        ...

    def fill_payload_index(self, path: Sequence[str], after: str | None) -> Flow[str | None]:
        """Build an index, a batch at a time: call it first with None, then with what it returned, until that is None.
        Only the owner of the tables may."""
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
        """``kinds`` are those the holder has handlers for, ``queues`` and ``slots`` where it takes jobs from and how
        many at a time, so that it can be said why a job waits; None when it may be any."""
        ...

    def renew(self, lease: str, ttl: float, tenant: str) -> Flow[Renewal]: ...
    def request_stop(self, worker: str, mode: StopMode, actor: str | None, tenant: str) -> Flow[bool]:
        """Ask the worker that holds its leases as ``worker`` to end. It reads the request with its next heartbeat.
        False when no such worker is running in this scope."""
        ...

    def end(self, lease: str, why: str, tenant: str) -> Flow[bool]: ...
    def exchange(self, settlements: Sequence[Settlement], request: ClaimRequest) -> Flow[Exchange]:
        """Settle and claim under the request's lease, in one transaction and one round trip."""
        ...

    def cancellations(self, lease: str, tenant: str) -> Flow[int | None]:
        """How often a job was taken from under this lease; None when there is no such lease."""
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
        """After a claim or a maintenance task was refused: find the jobs whose rows the database will not move, and
        pass them over for ten minutes. Answers their ids. Without a lease, those of maintenance only."""
        ...


class StepStore(Protocol):
    def save_checkpoint(
        self, claim_id: str, lease: str, attempt: int, name: str, value: str, tenant: str
    ) -> Flow[bool]: ...

    def note_upload(self, claim_id: str, lease: str, attempt: int, ref: str, tenant: str) -> Flow[bool]:
        """An object is about to be stored for a step or a checkpoint. If it is not recorded within a day, it is deleted
        again. False when the attempt is no longer this lease's."""
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

    def asks_first(self, agent: str, tenant: str) -> Flow[bool]:
        """Whether people are to be asked before a job of this agent is run."""
        ...

    def save(self, lease: str, entries: Sequence[tuple[str, int, StepEntry]], tenant: str) -> Flow[list[Saved]]:
        """Remember steps that are over, each with its job and attempt. Answers only what is out of the ordinary."""
        ...

    def rewind(self, job_id: str, to: int, actor: str, tenant: str) -> Flow[int | None]:
        """Forget the steps of a dead letter from place ``to`` on; None when there is no such dead letter."""
        ...

    def list(self, job_id: str, tenant: str) -> Flow[list[Step]]: ...


class LedgerStore(Protocol):
    def send(self, event: SendEvent, actor: str, tenant: str) -> Flow[SentResult]: ...
    def read(self, cursor: str | None, want: int, tenant: str) -> Flow[list[Event]]: ...
    def gone(self, cursor: str, tenant: str) -> Flow[int | None]:
        """The number of the last event after this cursor that was purged since the cursor was given out; None when
        there is none. A ``clean`` does not count: where a purge comes right behind it, nobody could have read it."""
        ...

    def end(self, tenant: str) -> Flow[str]:
        """Where the ledger ends now, as a cursor: what is committed from now on lies after it."""
        ...

    def read_sent(self, cursor: str | None, want: int, tenant: str) -> Flow[list[SentEvent]]:
        """What applications told, in commit order; its cursors are of another kind than the ledger's."""
        ...

    def cursor(self, consumer: str, tenant: str) -> Flow[str | None]: ...
    def save_cursor(self, consumer: str, cursor: str, was: str | None, tenant: str) -> Flow[bool]: ...
