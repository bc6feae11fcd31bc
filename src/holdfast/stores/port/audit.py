"""The port's part of the audit trail (HF-4): sealing, and reading what was sealed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from holdfast.engine.job import Event
from holdfast.features.audit.model import Action, Seal, Sealed
from holdfast.features.audit.verification import Block, Tail
from holdfast.stores.flow import Flow


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionFilter:
    """Which actions to list, newest first; ``before`` is the number of the last one of the page before."""

    tenant: str
    subject: str | None = None
    name: str | None = None
    actor: str | None = None
    verb: str | None = None
    since: datetime | None = None
    before: int | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events of the ledger to show, newest first; ``before`` is the number to go on before."""

    tenant: str
    kind: str | None = None
    actor: str | None = None
    verb: str | None = None
    since: datetime | None = None
    before: int | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True)
class Looked:
    """Events that were found among those that were looked at, and where to go on; None: there are none before."""

    events: list[Event]
    before: int | None


class AuditVerbs(Protocol):
    """One chain for the whole database: all but ``sealed`` and ``actions`` are for whoever may act for every tenant."""

    def seal_ledger(self, version: str, want: int = 2000) -> Flow[int]:
        """Seal the next block; answers how much is in it: none, too, while somebody else is sealing."""
        ...

    def seal(self, number: int | None = None) -> Flow[Seal | None]:
        """This one; without a number the newest."""
        ...

    def block(self, after: Seal | None) -> Flow[Block | None]:
        """The seal behind this one with the rows in its place; None when there is none."""
        ...

    def tail(self, after: Seal | None) -> Flow[Tail]:
        """What waits to be sealed behind this one, and rows that belong to no job."""
        ...

    def sealed(self, job_id: str, tenant: str) -> Flow[list[Sealed]]:
        """Of the events of a job those that are sealed."""
        ...

    def fingerprints(self, job_id: str, tenant: str) -> Flow[dict[int, str]]:
        """The digests that the events of a job have now, by their numbers."""
        ...

    def actions(self, wanted: ActionFilter) -> Flow[list[Action]]: ...
    def recent_events(self, wanted: EventFilter) -> Flow[Looked]:
        """A page of the ledger. No more than a number of rows is looked at, however few of them fit."""
        ...
