"""Subscriptions: which events match, and the job that an event creates. Both stores use these rules.

A pattern names ledger events (``job.succeed``, ``job.*``) or application events (``order.paid``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

from holdfast.engine.declared import Help
from holdfast.engine.hints import check_options
from holdfast.engine.ids import parse_id
from holdfast.engine.job import DEFAULT_QUEUE, DEFAULT_RETRY, Event, JobSpec
from holdfast.engine.job_options import CreatedOptions, job_options
from holdfast.engine.job_options import stored_options as created_options
from holdfast.engine.names import check_name
from holdfast.engine.payload import canonical, encode, refuse_reserved
from holdfast.engine.retry import Backoff, Retry
from holdfast.engine.states import EventType
from holdfast.engine.steps import projection
from holdfast.engine.trace import is_trace_tag
from holdfast.engine.units import Duration, seconds
from holdfast.errors import HoldfastError, InvalidPayload, InvalidSetting
from holdfast.features.schedules.model import Template

Start = Literal["now", "beginning"]


LEDGER: Final = "job."
SYSTEM_EVENTS: Final = ("schedule.missed", "webhook.disabled")
"""Events of Holdfast that are not about a job. The database sends them as application events."""
DEFAULT_DEPTH: Final = 5
"""Default maximum length of a chain of jobs that subscriptions create."""
MAX_DEPTH: Final = 100
PATTERN_LIMIT: Final = 500
WEBHOOK_KIND: Final = "webhook.deliver"
"""The kind of the jobs that deliver events to webhooks (features/webhooks/model.py)."""

# Names that patterns may use, and the ledger's event types. `take` is a claim and a start in one step, by a worker with
# a free slot.
_ALIASES: Final = {
    "enqueued": "enqueue",
    "claimed": "claim",
    "started": "take|job.start",
    "released": "release",
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
    "redriven": "redrive",
    "discarded": "discard",
    "rescheduled": "reschedule",
    "moved": "move",
    "payload_replaced": "replace",
    "cancelled": "cancel",
    "cleaned": "clean",
}


class JobOptions(CreatedOptions, total=False):
    """How the jobs of a subscription are enqueued. In ``payload``, text that begins with ``$.`` is replaced by a value
    of the event (``"$.data.order"``), and ``$`` by the whole event; the default payload is ``{"event": …}``. A
    ``template`` provides the other options in its newest version, and its payload is merged with this one."""

    retry_as: Annotated[Literal["new_job"] | None, Help("new_job: a retry is a new job.", "HOW")]
    delay: Annotated[Duration | None, Help("Delay before a job may start: 90, 5m, 1h30m.")]
    payload: Annotated[
        dict[str, Any] | None,
        Help('Payload of the job; "$.data.id" inserts a value of the event, "$" the whole event.'),
    ]
    template: Annotated[str | None, Help("Template to enqueue instead of a kind.", "NAME")]
    of_queue: Annotated[str | None, Help("Only events of jobs in this queue.", "NAME")]


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
class NewSubscription:
    """A checked subscription that is about to be stored."""

    name: str
    pattern: str
    job_kind: str
    kind: str | None = None
    match: dict[str, Any] | None = None
    job_options: dict[str, Any] = field(default_factory=dict)
    max_depth: int = DEFAULT_DEPTH
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
        max_depth: int = DEFAULT_DEPTH,
        start: Start = "now",
        options: JobOptions | None = None,
        declared: bool = False,
    ) -> NewSubscription:
        if start not in ("now", "beginning"):
            raise InvalidSetting("a subscription must start now or at the beginning", code="invalid_subscription")
        if not 1 <= max_depth <= MAX_DEPTH:
            raise InvalidSetting(f"max_depth must be from 1 to {MAX_DEPTH}", code="invalid_subscription")
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
    """Why the last run failed. It is retried."""
    failed_at: datetime | None
    made: int
    refused: int
    created_by: str
    created_at: datetime
    updated_at: datetime

    @property
    def of_ledger(self) -> bool:
        return is_ledger_pattern(self.pattern)

    def wants(self, event: Event | SentEvent) -> bool:
        """Whether the event matches the pattern, the kind and the data of this subscription."""
        if isinstance(event, Event):
            if self.kind is not None and not _matches(self.kind, event.kind):
                return False
            if event.kind == self.job_kind == WEBHOOK_KIND:
                return False  # delivering the events of deliveries would never end
            data: Mapping[str, Any] = event.meta
        else:
            data = event.data
        if not _matches(self.pattern, event.name):
            return False
        if self.match is None:
            return True
        keys = list(self.match)
        try:
            values = canonical(projection(data, keys))
        except InvalidPayload:  # written by SQL: a number or text that JSON cannot express equals nothing
            return False
        return values == canonical(projection(self.match, keys))


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of an event that matched a subscription: a job, or a refusal."""

    subscription_id: str
    event: str
    tenant: str
    job_id: str | None
    refusal: str | None
    depth: int
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """The properties that a created job inherits from the job that the event is about."""

    correlation_id: str | None = None
    depth: int = 0
    queue: str | None = None
    tags: tuple[str, ...] = ()

    @property
    def trace(self) -> tuple[str, ...]:
        """The tags of its trace."""
        return tuple(filter(is_trace_tag, self.tags))


@dataclass(frozen=True, slots=True)
class FeedResult:
    """The result of one run of a subscription: events read, jobs made, events refused."""

    seen: int = 0
    made: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Consumer:
    """A named reader of events with its position. ``behind`` is the number of unread events, counted up to a limit;
    ``more``: there are more than the limit."""

    tenant: str
    name: str
    cursor: str
    updated_at: datetime
    behind: int
    more: bool
    of: Literal["jobs", "application"]


def check_pattern(pattern: object) -> str:
    """Check a pattern. Returns it as it is stored, with the ledger's names of event types."""
    if not isinstance(pattern, str) or not pattern.strip():
        raise _bad_pattern("a pattern must be text such as job.succeeded or order.*")
    parts = [_pattern_part(part.strip()) for part in pattern.split("|")]
    if len({part.startswith(LEDGER) for part in parts}) > 1:
        raise _bad_pattern("events of jobs and events of applications need two subscriptions")
    text = "|".join(dict.fromkeys(parts))
    if len(text) > PATTERN_LIMIT:
        raise _bad_pattern(f"a pattern must have at most {PATTERN_LIMIT} characters")
    return text


def _pattern_part(part: str) -> str:
    if part == "*":
        raise _bad_pattern("* alone is ambiguous; write job.*, or the beginning of a name")
    if not part.startswith(LEDGER):
        return check_name(part, "event")
    event_type = part.removeprefix(LEDGER)
    if event_type not in _ALIASES and not any(_matches(part, LEDGER + known) for known in EventType):
        raise _bad_pattern(f"{part} is not an event of jobs: {', '.join(EventType)}")
    return LEDGER + _ALIASES.get(event_type, event_type)


def _bad_pattern(message: str) -> InvalidSetting:
    return InvalidSetting(
        message, code="invalid_pattern", fix="Use for example job.succeeded, job.*, order.paid or order.*."
    )


def check_event_name(name: object) -> str:
    """Check the name of an application event. Names of Holdfast's own events are reserved."""
    checked = check_name(name, "event")
    if checked.startswith(LEDGER) or checked in SYSTEM_EVENTS:
        raise InvalidSetting(
            f"events named job.…, {' and '.join(SYSTEM_EVENTS)} are reserved for Holdfast", code="reserved_name"
        )
    return checked


def is_ledger_pattern(pattern: str) -> bool:
    return pattern.startswith(LEDGER)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = ("".join(".*" if c == "*" else re.escape(c) for c in part) for part in pattern.split("|"))
    return re.compile("|".join(parts), re.DOTALL)


def _matches(pattern: str, name: str) -> bool:
    return _compiled(pattern).fullmatch(name) is not None


def _event_document(event: Event | SentEvent) -> dict[str, Any]:
    """The event in the form in which a job receives it."""
    if isinstance(event, SentEvent):
        return {
            "id": event.id,
            "name": event.name,
            "tenant": event.tenant,
            "data": event.data,
            "sent_by": event.sent_by,
            "sent_at": _timestamp(event.sent_at),
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
        "at": _timestamp(event.at),
        "meta": {name: value for name, value in event.meta.items() if name != "traceback"},
    }


def event_key(event: Event | SentEvent) -> str:
    """The identity of the event in ``delivery``."""
    return str(event.seq) if isinstance(event, Event) else event.id


def job_for(
    subscription: Subscription, event: Event | SentEvent, cause: Cause, new_id: str, template: Template | None = None
) -> JobSpec | str:
    """The job that an event creates, or the code of the refusal. ``template`` is the newest version of the
    subscription's template."""
    depth, options = cause.depth + 1, subscription.job_options
    if depth > subscription.max_depth:
        reason = "too_deep"
        return reason
    if "template" in options and (template is None or template.removed):
        reason = "template_not_found"
        return reason
    default = {"event": "$"} if template is None else {}
    payload = _filled(options.get("payload", default), _event_document(event))
    due = event.at if isinstance(event, Event) else event.sent_at
    if template is not None:
        payload, options = template.payload | payload, job_options(template.options, due) | options
    try:
        return JobSpec(
            id=new_id,
            kind=subscription.job_kind if template is None else template.kind,
            payload=refuse_reserved(encode(payload)),
            enqueued_by=f"subscription {subscription.name}",
            source_system="subscription",
            queue=options.get("queue", DEFAULT_QUEUE),
            priority=options.get("priority", 0),
            delay=options.get("delay"),
            retry=job_policy(options),
            retry_as=options.get("retry_as"),
            tags=(*options.get("tags", ()), *cause.trace),
            agent=options.get("agent"),
            executor=options.get("executor"),
            deadline_at=options.get("deadline"),
            external_ref=options.get("external_ref"),
            correlation_id=options.get("correlation_id", cause.correlation_id),
            causation_id=event_key(event),
            depth=depth,
        )
    except HoldfastError as error:
        return error.code


def _filled(value: Any, event: dict[str, Any]) -> Any:
    """A payload with its references to the event (``$``, ``$.data.order``) replaced. ``$$`` is a literal ``$``."""
    if isinstance(value, dict):
        return {name: _filled(inner, event) for name, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, event) for inner in value]
    if not isinstance(value, str) or not value.startswith("$"):
        return value
    if value == "$":
        return event
    if not value.startswith("$."):
        return value.removeprefix("$") if value.startswith("$$") else value
    result: Any = event
    for name in value[2:].split("."):
        result = result.get(name) if isinstance(result, dict) else None
    return result


def stored_options(options: JobOptions) -> dict[str, Any]:
    """Check the options. Returns them as JSON values."""
    check_options(options, JobOptions.__annotations__)
    values: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    stored = created_options({name: value for name, value in values.items() if name in CreatedOptions.__annotations__})
    if "retry" in stored:
        stored |= stored.pop("retry")
    for name, what in (("of_queue", "queue"), ("template", "template")):
        if name in values:
            stored[name] = check_name(values[name], what)
    if "delay" in values:
        stored["delay"] = seconds(values["delay"], "delay")
    if "retry_as" in values:
        if values["retry_as"] != "new_job":
            raise InvalidSetting("retry_as must be new_job or None", code="invalid_retry")
        stored["retry_as"] = values["retry_as"]
    if "payload" in values:
        if not isinstance(values["payload"], dict):
            raise InvalidSetting("the payload must be a JSON object", code="invalid_subscription")
        refuse_reserved(encode(values["payload"]))
        stored["payload"] = values["payload"]
    return stored


def job_policy(options: Mapping[str, Any], default: Retry = DEFAULT_RETRY) -> Retry:
    """The retry policy in stored options; ``retry`` is that of a template."""
    if "max_attempts" not in options:
        policy: Retry = options.get("retry", default)
        return policy
    backoff = Backoff.from_json(options["backoff"])
    return Retry(options["max_attempts"], backoff, options["max_crashes"])


def _timestamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def cause_id(event: Event | SentEvent) -> str | None:
    """The job that the event is about, or whose handler sent it."""
    job_id = event.job_id if isinstance(event, Event) else event.cause_id
    return None if job_id is None else parse_id(job_id)
