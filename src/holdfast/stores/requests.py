"""Parameters and results of store operations: ``ClaimRequest``, ``JobFilter``, ``Reschedule``, ``SendEvent``, …"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypedDict

from holdfast.engine.declared import Help
from holdfast.engine.ids import IdMaker
from holdfast.engine.job import EVERY_TENANT, Renewal
from holdfast.engine.names import NamedKind
from holdfast.engine.retry import attempt_limit
from holdfast.engine.states import State
from holdfast.engine.times import instant_or_none
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting
from holdfast.stores.job_filters import BY_NAME, FILTERS, checked

new_id = IdMaker(time.time_ns, os.urandom)
"""The id generator of this process. There is one, so that each id sorts after all earlier ones."""

OperatorAction = Literal["cancel", "redrive", "discard"]

# Inputs that several operations have.
JobId = Annotated[str, Help("The job's id.", "ID", longest=100, cli="The job's id, or its first characters.")]
Tenant = Annotated[str | None, Help("The tenant, if not that of the session.", http=False, cli=False)]
Reason = Annotated[str | None, Help("The reason, recorded in the ledger.", longest=2_000)]
NeededReason = Annotated[str, Help("The reason, recorded in the ledger.", longest=2_000)]
MaxAttempts = Annotated[int | None, Help("New maximum of attempts.", "N", low=1, high=101)]
StartAt = Annotated[datetime | None, Help("Start not before this time.", "TIME")]
StartDelay = Annotated[Duration | None, Help("Start this long from now: 90s, 5m, 1h30m.", "SPAN", option="--in")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """``begin`` starts claimed jobs at once; otherwise they stay leased. ``kinds`` None claims jobs of any kind.

    ``after`` has, for some queues, the position (priority, position) after which the search starts. Stores where
    skipping claimed rows is cheap ignore it.
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
    """When to run a waiting job: at a time, after a delay by the store's clock, or at once."""

    at: datetime | None = None
    delay: float | None = None
    max_attempts: int | None = None

    @classmethod
    def of(cls, at: datetime | None, delay: Duration | None, max_attempts: int | None) -> Reschedule:
        """Check and convert the arguments of ``reschedule``."""
        if at is not None and delay is not None:
            raise InvalidSetting("pass a time or a delay, not both", code="conflicting_options")
        limit = attempt_limit(max_attempts)
        span = None if delay is None else seconds(delay, "delay")
        return cls(at=instant_or_none(at, "the time"), delay=span, max_attempts=limit)


Tags = str | Sequence[str]


class JobFacts(TypedDict, total=False):
    """Conditions on what a job is (``stores/job_filters.py``); all of them must hold."""

    kind: str | NamedKind | None
    domain: str | None
    queue: str | None
    agent: str | None
    executor: str | None
    tag: Tags | None
    """Every one of these tags. ``customer:*`` is the label ``customer`` with any value."""
    any_tag: Tags | None
    """At least one of these tags."""
    key: str | None
    limit_key: str | None
    external_ref: str | None
    correlation_id: str | None
    parent_id: str | None
    workflow_id: str | None
    part: str | None
    """The group or sub-workflow."""
    template: str | None
    template_version: int | None
    schedule: str | None
    scheduled_for: datetime | None
    since: datetime | None
    until: datetime | None


class JobConditions(JobFacts, total=False):
    """Conditions on jobs; all of them must hold."""

    state: State | str | None
    worker: str | None
    """The worker that has the job, or ran it last: its id, the first eight or more characters of it, or its name. Jobs
    that it ran are found among the newest 10,000 that match the other conditions."""
    fingerprint: Annotated[str | None, Help("Only open dead letters of this group.", parameter="group")]


class JobsWanted(JobConditions, total=False):
    tenant: Annotated[str, Help("The tenant, if not that of the session.", http=False, cli=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs to list, newest first: ``JobsWanted``, checked. ``before`` is the id of the last job of the previous
    page."""

    tenant: str
    state: State | None = None
    kind: str | None = None
    domain: str | None = None
    queue: str | None = None
    agent: str | None = None
    executor: str | None = None
    worker: str | None = None
    tag: Tags | None = None
    any_tag: Tags | None = None
    key: str | None = None
    limit_key: str | None = None
    external_ref: str | None = None
    correlation_id: str | None = None
    parent_id: str | None = None
    workflow_id: str | None = None
    part: str | None = None
    template: str | None = None
    template_version: int | None = None
    schedule: str | None = None
    scheduled_for: datetime | None = None
    fingerprint: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    kinds: tuple[str, ...] | None = None
    """The kinds of the domain, if they are few: a page is then found by the index of kinds."""
    before: str | None = None
    limit: int = 50
    payloads: bool = True
    """False makes long pages small: each payload is None."""

    @property
    def given(self) -> dict[str, Any]:
        """The conditions that are set, by name."""
        values = {each.name: getattr(self, each.name) for each in FILTERS}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Counted:
    """The number of jobs in each state. A count of ``most`` means that many or more. ``of_newest`` is the number of
    newest jobs that were counted, None for all."""

    counts: dict[State, int]
    most: int
    of_newest: int | None


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """``pending``: scripts that ``migrate`` would apply. ``unknown``: applied scripts that this release does not have.
    ``supported``: a newer release migrated the database, and this one works with it."""

    applied: tuple[str, ...]
    pending: tuple[str, ...]
    unknown: tuple[str, ...]
    supported: bool = False

    @property
    def current(self) -> bool:
        """Whether this release works with the database."""
        return self.supported or (not self.pending and not self.unknown)

    @property
    def finding(self) -> Finding:
        """The schema as a check of ``holdfast doctor``."""
        if self.current:
            return Finding(
                "schema", True, "of a newer release, which supports this one" if self.supported else "up to date"
            )
        pending, unknown = (", ".join(names) or "none" for names in (self.pending, self.unknown))
        return Finding("schema", False, f"pending: {pending}; not of this release: {unknown}", "Run: holdfast migrate")

    @property
    def unsupported(self) -> bool:
        """Whether a development version created the database. A newer release has every migration of this one."""
        return bool(self.unknown) and not self.supported and any(name != "code" for name in self.pending)


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """One statement that a migration would run."""

    script: str
    statement: str
    lock: str
    """The lock that it takes on a table in use, and the table; empty if none."""
    seconds: float | None
    """An estimate for a statement whose time grows with the table."""


@dataclass(frozen=True, slots=True)
class Removal:
    """What ``uninstall`` removes, or would remove."""

    objects: tuple[str, ...]
    unfinished: int
    """Jobs that have not ended."""
    kept: tuple[str, ...] = ()
    """What stays, with the reason."""


@dataclass(frozen=True, slots=True)
class Login:
    """A login of the server with a Holdfast role. ``bypasses``: row-level security does not apply to it."""

    name: str
    roles: tuple[str, ...]
    bypasses: bool
    owns: bool
    tenant: str | None = None
    """The tenant it is pinned to."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of ``holdfast doctor``."""

    name: str
    ok: bool
    says: str
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class SendEvent:
    """An event to send. ``data`` is JSON text. The sender creates the id, so that sending it again has no effect."""

    id: str
    name: str
    data: str
    key: str | None = None
    job_id: str | None = None
    cause_id: str | None = None
    """The job whose handler sends it."""


@dataclass(frozen=True, slots=True)
class SentResult:
    """A sent event. ``created`` is False if one with the same key was sent before; ``woke`` counts the jobs that
    waited for it."""

    id: str
    created: bool
    woke: int


_WHICH = frozenset(BY_NAME)
_ALL = _WHICH | {"tenant", "before", "limit", "payloads"}


def page_of(tenant: str, options: Mapping[str, Any]) -> JobFilter:
    """The checked filter for one page of jobs."""
    limit = options.get("limit", 1)
    if not isinstance(limit, int) or limit < 1:
        raise InvalidSetting("limit must be at least 1", code="invalid_limit")
    return JobFilter(**{"tenant": tenant, **checked(options, _ALL)})


def all_of(tenant: str, options: Mapping[str, Any]) -> JobFilter:
    """The checked filter for all jobs that match, without paging options."""
    return JobFilter(tenant=tenant, **checked(options, _WHICH))


# The tasks that a store reports as due or not. A task of another name runs at its own interval.
KNOWN_TASKS: Final = frozenset(
    {
        *("promote", "limits", "subscriptions", "operations", "schedules", "expire", "approvals", "aging", "recover"),
        *("seal", "retention", "orphans", "callbacks", "held", "rules"),
    }
)


@dataclass(frozen=True, slots=True)
class DueWork:
    """``tasks`` have work now, among them ``claim`` if jobs wait in the queues of the lease; the next known work is due
    in ``next_in`` seconds. One of the live workers ``leads`` and does it first. ``notifies``: this database sends
    notifications of new jobs. ``renewal`` is the answer to a heartbeat that came with the query."""

    tasks: frozenset[str]
    leads: bool
    next_in: float | None
    notifies: bool
    renewal: Renewal | None = None
