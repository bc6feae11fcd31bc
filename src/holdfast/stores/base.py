"""The port: what every store can do, and nothing about how.

``Verbs`` makes flows; a ``Store`` runs them, in the caller's thread (``run``) or on an
event loop (``arun``). One contract suite exercises every implementation. The verbs stand in ``port/``, by subject, and
what they are asked with in ``port/requests``; whoever uses the port needs this module alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, TypeVar

from holdfast.engine.job import Enqueued, JobSpec
from holdfast.engine.settlement import Settlement
from holdfast.features.health.model import USUAL, Concern, Thresholds
from holdfast.features.workflows.model import Started, WorkflowSpec
from holdfast.stores.due import DueWork
from holdfast.stores.flow import Flow
from holdfast.stores.listener import Names
from holdfast.stores.outage import Outage
from holdfast.stores.port.audit import AuditVerbs
from holdfast.stores.port.connectors import ConnectorVerbs
from holdfast.stores.port.dead_letters import DeadLetterVerbs
from holdfast.stores.port.endpoints import EndpointVerbs
from holdfast.stores.port.events import EventVerbs
from holdfast.stores.port.gates import GateVerbs
from holdfast.stores.port.holding import HoldingVerbs
from holdfast.stores.port.jobs import JobVerbs
from holdfast.stores.port.looking import LookingVerbs
from holdfast.stores.port.payloads import PayloadVerbs
from holdfast.stores.port.plans import PlanVerbs
from holdfast.stores.port.retention import RetentionVerbs
from holdfast.stores.port.switches import SwitchVerbs
from holdfast.stores.port.tenants import TenantVerbs
from holdfast.stores.port.tokens import TokenVerbs
from holdfast.stores.port.work import WorkVerbs
from holdfast.stores.port.workflows import WorkflowVerbs
from holdfast.stores.requests import (
    ClaimRequest,
    Counted,
    Finding,
    JobFilter,
    OperatorVerb,
    Reschedule,
    SchemaStatus,
    Sent,
    Telling,
)

__all__ = [
    "BorrowedVerbs",
    "Caller",
    "ClaimRequest",
    "Counted",
    "Finding",
    "JobFilter",
    "OperatorVerb",
    "Reschedule",
    "SchemaStatus",
    "Sent",
    "Store",
    "Telling",
    "Verbs",
]

T = TypeVar("T")


class Verbs(
    WorkVerbs,
    GateVerbs,
    EventVerbs,
    PlanVerbs,
    WorkflowVerbs,
    HoldingVerbs,
    JobVerbs,
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
    async def aschema(self) -> SchemaStatus:
        """The same where reads go on all the time: over a connection that is there."""
        ...

    def check_writable(self) -> None:
        """Raise if the database cannot be written to now: a full disk, a file or a server that is read-only."""
        ...

    def migration_sql(self) -> str: ...
    def diagnose(self) -> list[Finding]: ...
    def conditions(self, when: Thresholds = USUAL) -> list[Concern]:
        """What is to be said of the database itself, at a glance: a part of health."""
        ...

    async def aconditions(self, when: Thresholds = USUAL) -> list[Concern]:
        """The same, over a connection that is there."""
        ...

    async def leave_loop(self) -> None:
        """Close what was opened for the event loop that is running, which is about to end."""
        ...

    def close(self) -> None: ...
    async def aclose(self) -> None: ...
