"""Events that make jobs (DP-13): which event a subscription wants, and the job it makes of one. Pure.

A pattern names ledger events (``job.succeed``, ``job.*``) or application events (``order.paid``). Both stores use this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, Literal, TypedDict

from holdfast.engine.ids import parse_id
from holdfast.engine.job import DEFAULT_QUEUE, DEFAULT_RETRY, EVERY_TENANT, Event, JobSpec
from holdfast.engine.job_options import job_options
from holdfast.engine.names import check_name, check_options
from holdfast.engine.order import check_priority
from holdfast.engine.payload import canonical, encode, own
from holdfast.engine.retry import Backoff, Retry, as_stored_policy
from holdfast.engine.states import EventType
from holdfast.engine.steps import projection
from holdfast.engine.trace import is_trace_tag
from holdfast.engine.units import Duration, seconds
from holdfast.errors import HoldfastError, InvalidSetting
from holdfast.features.schedules.model import Template

Start = Literal["now", "beginning"]

_EVENT_TYPES: Final = frozenset(event_type.value for event_type in EventType)

LEDGER: Final = "job."
TOLD_BY_US: Final = ("schedule.missed", "webhook.disabled")
"""Events that are not about a job; the database tells them among those of applications."""
DEPTH: Final = 5
"""How many subscriptions may lie behind a job, unless a subscription says otherwise."""
MOST_DEEP: Final = 100
PATTERN_LIMIT: Final = 500
TELLS: Final = "webhook.deliver"
"""The kind of jobs that tell webhooks of events (features/webhooks/model.py)."""

# As people say it. A worker with a free slot takes a job, which is to claim and to start it in one step.
_SAID: Final = {
    "enqueued": "enqueue",
    "claimed": "claim",
    "started": "take|job.start",
    "released": "release",
    "lapsed": "lapse",
    "crashed": "crash",
    "succeeded": "succeed",
    "failed": "fail",
    "asked": "ask",
    "approval_needed": "ask",
    "snoozed": "snooze",
    "approved": "approve",
    "denied": "deny",
    "expired": "expire",
    "retried": "retry",
    "buried": "bury",
    "dead_letter": "bury",
    "redriven": "redrive",
    "discarded": "discard",
    "rescheduled": "reschedule",
    "moved": "move",
    "payload_replaced": "replace",
    "cancelled": "cancel",
    "cleaned": "clean",
}


class JobOptions(TypedDict, total=False):
    """How the jobs of a subscription are enqueued. In ``payload`` text that begins with ``$.`` is a value of the event
    (``"$.data.order"``), ``$`` the whole of it; without one the payload is ``{"event": …}``. With a ``template`` its
    newest version says the rest, and its payload is filled up with the one given here. ``of_queue`` is the queue of the
    jobs whose events are wanted."""

    queue: str
    priority: int
    tags: Sequence[str]
    agent: str
    executor: str
    retry: Retry | str
    retry_as: Literal["new_job"]
    delay: Duration
    payload: dict[str, Any]
    template: str
    of_queue: str


@dataclass(frozen=True, slots=True)
class SentEvent:
    """An application event. ``cursor`` is a consumer's position after it."""

    seq: int
    id: str
    tenant: str
    name: str
    data: dict[str, Any]
    job_id: str | None
    sent_by: str
    sent_at: datetime
    cause_id: str | None
    """The job whose handler sent it."""
    cursor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribing:
    """A subscription about to be made, checked."""

    name: str
    pattern: str
    job_kind: str
    kind: str | None = None
    match: dict[str, Any] | None = None
    job_options: dict[str, Any] = field(default_factory=dict)
    max_depth: int = DEPTH
    start: Start = "now"
    declared: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        pattern: str,
        job_kind: str,
        *,
        kind: str | None = None,
        match: dict[str, Any] | None = None,
        max_depth: int = DEPTH,
        start: Start = "now",
        options: JobOptions | None = None,
        declared: bool = False,
    ) -> Subscribing:
        if start not in ("now", "beginning"):
            raise InvalidSetting("a subscription must start now or at the beginning", code="invalid_subscription")
        if not 1 <= max_depth <= MOST_DEEP:
            raise InvalidSetting(f"max_depth must be from 1 to {MOST_DEEP}", code="invalid_subscription")
        if match is not None and not isinstance(match, dict):
            raise InvalidSetting("match must be a JSON object", code="invalid_subscription")
        if kind is not None and not kind.replace("*", ""):
            kind = None
        return cls(
            name=check_name(name, "subscription"),
            pattern=check_pattern(pattern),
            job_kind=check_name(job_kind, "kind"),
            kind=None if kind is None else check_name(kind, "kind"),
            match=match or None,
            job_options=stored_options(options or {}),
            max_depth=max_depth,
            start=start,
            declared=declared,
        )


@dataclass(frozen=True, slots=True)
class Subscription:
    id: str
    tenant: str
    name: str
    pattern: str
    kind: str | None
    match: dict[str, Any] | None
    job_kind: str
    job_options: dict[str, Any]
    max_depth: int
    cursor: str | None
    declared: bool
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str | None
    failure: str | None
    """Why the last read failed; it is retried."""
    failed_at: datetime | None
    made: int
    refused: int
    created_by: str
    created_at: datetime
    updated_at: datetime

    @property
    def of_ledger(self) -> bool:
        return of_ledger(self.pattern)

    def wants(self, event: Event | SentEvent) -> bool:
        if isinstance(event, Event):
            if self.kind is not None and not _fits(self.kind, event.kind):
                return False
            if event.kind == self.job_kind == TELLS:
                return False  # to tell of what became of telling would never end
            told: Mapping[str, Any] = event.meta
        else:
            told = event.data
        if not _fits(self.pattern, event.name):
            return False
        wanted = self.match
        return wanted is None or canonical(projection(told, list(wanted))) == canonical(
            projection(wanted, list(wanted))
        )


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of an event that a subscription wanted: a job, or a refusal."""

    subscription_id: str
    event: str
    tenant: str
    job_id: str | None
    refusal: str | None
    depth: int
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Behind:
    """The job an event is about, as far as a job made of it takes after it."""

    correlation_id: str | None = None
    depth: int = 0
    queue: str | None = None
    tags: tuple[str, ...] = ()

    @property
    def trace(self) -> tuple[str, ...]:
        """The trace it belongs to, as tags."""
        return tuple(filter(is_trace_tag, self.tags))


@dataclass(frozen=True, slots=True)
class Fed:
    """What one look of a subscription came to."""

    seen: int = 0
    made: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Consumer:
    """Who reads events, and how far it has come. ``behind`` counts up to a limit: ``more`` says that it is not all."""

    tenant: str
    name: str
    cursor: str
    updated_at: datetime
    behind: int
    more: bool
    of: Literal["jobs", "application"]


def check_pattern(pattern: object) -> str:
    """The pattern as it is stored: event types as the ledger has them, each alternative whole."""
    if not isinstance(pattern, str) or not pattern.strip():
        raise _bad_pattern("a pattern is text such as job.succeeded or order.*")
    parts = [_part(part.strip()) for part in pattern.split("|")]
    if len({part.startswith(LEDGER) for part in parts}) > 1:
        raise _bad_pattern("events of jobs and of the application are two subscriptions")
    text = "|".join(dict.fromkeys(parts))
    if len(text) > PATTERN_LIMIT:
        raise _bad_pattern(f"a pattern has at most {PATTERN_LIMIT} characters")
    return text


def _part(part: str) -> str:
    if part == "*":
        raise _bad_pattern("* alone says neither whose events: write job.*, or the beginning of a name")
    if not part.startswith(LEDGER):
        return check_name(part, "event")
    event_type = part.removeprefix(LEDGER)
    if "*" in event_type:
        if not any(_fits(part, LEDGER + known) for known in _EVENT_TYPES):
            raise _bad_pattern(f"{part} is no event of jobs: {', '.join(EventType)}")
        return part
    if event_type not in _SAID and event_type not in _EVENT_TYPES:
        raise _bad_pattern(f"{part} is no event of jobs: {', '.join(EventType)}")
    return LEDGER + _SAID.get(event_type, event_type)


def _bad_pattern(why: str) -> InvalidSetting:
    return InvalidSetting(
        why, code="invalid_pattern", fix="Use for example job.succeeded, job.*, order.paid or order.*."
    )


def check_event_name(name: object) -> str:
    """What an application may call its events: nothing that could be taken for one of ours."""
    checked = check_name(name, "event")
    if checked.startswith(LEDGER) or checked in TOLD_BY_US:
        raise InvalidSetting(
            f"events named job.…, {' and '.join(TOLD_BY_US)} are reserved for Holdfast", code="reserved_name"
        )
    return checked


def of_ledger(pattern: str) -> bool:
    return pattern.startswith(LEDGER)


@lru_cache(maxsize=1024)
def _shape(pattern: str) -> re.Pattern[str]:
    parts = ("".join(".*" if c == "*" else re.escape(c) for c in part) for part in pattern.split("|"))
    return re.compile("|".join(parts), re.DOTALL)


def _fits(pattern: str, name: str) -> bool:
    return _shape(pattern).fullmatch(name) is not None


def document(event: Event | SentEvent) -> dict[str, Any]:
    """The event as a job is given it."""
    if isinstance(event, SentEvent):
        return {
            "id": event.id,
            "name": event.name,
            "tenant": event.tenant,
            "data": event.data,
            "sent_by": event.sent_by,
            "sent_at": _written(event.sent_at),
        }
    return {
        "id": str(event.seq),
        "name": event.name,
        "tenant": event.tenant,
        "job_id": event.job_id,
        "kind": event.kind,
        "from_state": event.from_state,
        "to_state": event.to_state,
        "attempt": event.attempt,
        "actor": event.actor,
        "at": _written(event.at),
        "meta": {name: value for name, value in event.meta.items() if name != "traceback"},
    }


def key_of(event: Event | SentEvent) -> str:
    return str(event.seq) if isinstance(event, Event) else event.id


def job_of(
    whose: Subscription, event: Event | SentEvent, behind: Behind, new_id: str, template: Template | None = None
) -> JobSpec | str:
    """The job that an event makes, or the reason why it makes none. ``template`` is the newest version of the one that
    the subscription names."""
    depth, options = behind.depth + 1, whose.job_options
    if depth > whose.max_depth:
        reason = "too_deep"
        return reason
    if "template" in options and (template is None or template.removed):
        reason = "template_not_found"
        return reason
    told = document(event)
    payload = _filled(options.get("payload", {"event": "$"} if template is None else {}), told)
    due = event.at if isinstance(event, Event) else event.sent_at
    if template is not None:
        payload, options = template.payload | payload, job_options(template.options, due) | options
    try:
        return JobSpec(
            id=new_id,
            kind=whose.job_kind if template is None else template.kind,
            payload=own(encode(payload)),
            enqueued_by=f"subscription {whose.name}",
            source_system="subscription",
            queue=options.get("queue", DEFAULT_QUEUE),
            priority=options.get("priority", 0),
            delay=options.get("delay"),
            retry=job_policy(options),
            retry_as=options.get("retry_as"),
            tags=(*options.get("tags", ()), *behind.trace),
            agent=options.get("agent"),
            executor=options.get("executor"),
            deadline_at=options.get("deadline"),
            external_ref=options.get("external_ref"),
            correlation_id=options.get("correlation_id", behind.correlation_id),
            causation_id=key_of(event),
            depth=depth,
        )
    except HoldfastError as error:
        return error.code


def _filled(value: Any, told: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {name: _filled(each, told) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, told) for each in value]
    if not isinstance(value, str) or not value.startswith("$"):
        return value
    if value == "$":
        return told
    if not value.startswith("$."):
        return value.removeprefix("$") if value.startswith("$$") else value
    found: Any = told
    for name in value[2:].split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def stored_options(options: JobOptions) -> dict[str, Any]:
    """Checked, and as JSON."""
    check_options(options, JobOptions.__annotations__)
    stored: dict[str, Any] = {}
    named: Mapping[str, Any] = options
    for name, what in (("queue", "queue"), ("executor", "executor"), ("of_queue", "queue"), ("template", "template")):
        if name in named:
            stored[name] = check_name(named[name], what)
    if "priority" in options:
        stored["priority"] = check_priority(options["priority"])
    if options.get("tags"):
        stored["tags"] = [check_name(tag, "tag") for tag in options["tags"]]
    if "agent" in options:
        stored["agent"] = check_name(options["agent"], "agent", limit=255)
    if "delay" in options:
        stored["delay"] = seconds(options["delay"], "delay")
    if "retry_as" in options:
        if options["retry_as"] != "new_job":
            raise InvalidSetting("retry_as must be new_job or None", code="invalid_retry")
        stored["retry_as"] = options["retry_as"]
    if "retry" in options:
        policy = as_stored_policy(options["retry"])
        stored |= {"max_attempts": policy.max_attempts, "max_crashes": policy.max_crashes}
        stored["backoff"] = policy.backoff.to_json()
    if "payload" in options:
        if not isinstance(options["payload"], dict):
            raise InvalidSetting("the payload must be a JSON object", code="invalid_subscription")
        own(encode(options["payload"]))
        stored["payload"] = options["payload"]
    return stored


def job_policy(options: Mapping[str, Any], usual: Retry = DEFAULT_RETRY) -> Retry:
    if "max_attempts" not in options:
        policy: Retry = options.get("retry", usual)  # a template's
        return policy
    backoff = Backoff.from_json(options["backoff"])
    return Retry(options["max_attempts"], backoff, options["max_crashes"])


def _written(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def check_scope(tenant: str) -> str:
    return tenant if tenant == EVERY_TENANT else check_name(tenant, "tenant")


def cause_of(event: Event | SentEvent) -> str | None:
    """The job whose depth counts."""
    found = event.job_id if isinstance(event, Event) else event.cause_id
    return None if found is None else parse_id(found)
