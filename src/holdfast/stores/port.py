"""The database that runs operations, as the engine sees it.

Operations return flows; a ``Database`` runs them, in the caller's thread (``run``) or on an event loop (``arun``). A
database with all operations is ``features.assembly.Store``, which is one of two classes: mypy checks every call against
both, and one contract suite exercises both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from holdfast.engine.job import (
    Enqueued,
    JobSpec,
)
from holdfast.engine.settlement import Settlement
from holdfast.features.attempts.model import LogPart
from holdfast.features.health.model import DEFAULT_THRESHOLDS, Concern, Thresholds
from holdfast.features.workflows.model import Started, WorkflowSpec
from holdfast.stores.flow import Flow
from holdfast.stores.listener import Names
from holdfast.stores.migrations import Execute
from holdfast.stores.outage import Outage
from holdfast.stores.requests import (
    DueWork,
    Finding,
    Login,
    MigrationStep,
    Removal,
    SchemaStatus,
)

if TYPE_CHECKING:
    from holdfast.features.assembly import Store


T = TypeVar("T")

POOL_SIZE, MOST_CONNECTIONS = 8, 1_000


class Caller(Protocol):
    """Runs flows for one tenant and names the actor: the session, as features see it."""

    name: str
    """The program."""

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

    def listen(
        self, notify: Callable[[str], None], names: Names | None = None, awaited: Names | None = None
    ) -> Callable[[], None]:
        """Call ``notify`` from another thread when something may have happened. Returns the function that stops it.

        The argument is the name of a queue that received a job, the same after a space when the order of the queue
        changed, the id of a watched job that ended, the id of a lease that lost a job, or "" when it may be anything.
        It is a hint: some are not sent and some are lost, so callers also poll. Only names that ``names`` returns at
        that moment are passed on; without ``names`` the argument is always "". New jobs are announced in the queues
        that ``awaited`` returns; after a change, call ``refresh_listening``.
        """
        ...

    def refresh_listening(self) -> None:
        """What a listener awaits has changed. It is notified as soon as announcements of the new queues begin."""
        ...

    @property
    def listening(self) -> bool:
        """Whether notifications are being received; then polling is only a safety net."""
        ...

    async def due_work(self, lease: str | None, tenant: str, ttl: float | None = None) -> DueWork | None:
        """Which maintenance tasks have work, read in one round trip, which also renews the lease if there is a ``ttl``.
        None where a query needs no round trip, so that each task can check for itself."""
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

    def migration_plan(self) -> list[MigrationStep]:
        """What ``migrate`` would do, without doing it."""
        ...

    def migrate_down(self, release: str) -> list[str]:
        """Return the tables to an earlier release, if nothing is lost; that release then installs its code. Returns the
        names of the scripts."""
        ...

    def uninstall(self, *, dry: bool, force: bool = False, roles: bool = False) -> Removal:
        """Remove everything that Holdfast installed; with ``dry`` only say what. Without ``force`` not while there are
        unfinished jobs. ``roles``: the roles of the server too."""
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
