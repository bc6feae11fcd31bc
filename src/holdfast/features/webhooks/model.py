"""Webhooks: their records and checks, the content of messages, and the meaning of responses. Pure.

A webhook has subscriptions whose jobs are of kind ``webhook.deliver``: subscriptions read its events from the ledger
and from the events of applications. Secrets are known here by name only.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Final, Literal, TypedDict
from urllib.parse import urlsplit, urlunsplit

from holdfast.engine.declared import Help
from holdfast.engine.hints import check_options
from holdfast.engine.job import EVERY_TENANT, JobSpec
from holdfast.engine.names import check_name
from holdfast.engine.payload import encode
from holdfast.engine.retry import Backoff, Retry
from holdfast.engine.units import Duration
from holdfast.errors import InvalidInput, InvalidSetting
from holdfast.features.events.model import (
    SYSTEM_EVENTS,
    WEBHOOK_KIND,
    NewSubscription,
    check_pattern,
    is_ledger_pattern,
    job_policy,
    stored_options,
)
from holdfast.features.webhooks.signing import MAX_SECRETS, PREFIX

DELIVER: Final = WEBHOOK_KIND
PING: Final = "ping"
URL_LIMIT: Final = 2_000
MAX_WANTS: Final = 30
EXCERPT: Final = 500
"""Characters of a response body that are logged."""
KEPT: Final = 1_000
"""Number of attempts that are kept for each webhook."""
KEPT_DAYS: Final = 30
MAX_RETRY_AFTER: Final = 86_400.0
"""Maximum delay, in seconds, that a receiver can request with Retry-After."""
MAX_REFUSALS: Final = 5
"""Number of times that a message is sent to a receiver that refuses it (4xx, a redirect)."""

DELIVERY_RETRY: Final = Retry(max_attempts=11, backoff=Backoff(base=10.0, factor=4.0, cap=21_600.0))
"""Delays of up to 10 s, 40 s, 160 s … six hours, with jitter: eleven attempts within 28 hours."""
DELIVERY_TIMEOUT: Final = 20.0

TRUSTED_SOURCES: Final = frozenset({"subscription", "webhook"})
"""Sources of jobs that deliver events of Holdfast; a caller of enqueue cannot set them."""

NOTICES: Final = ("job.dead_letter", "job.crashed", "job.approval_needed", "schedule.missed", "webhook.disabled")
"""The default events of a webhook: those that need attention."""

# Receivers need not distinguish a lost worker from a crashed process of the job.
_PATTERNS: Final = {"job.crashed": "job.crash|job.lease_expired", "job.approval_needed": "job.ask"}
_TYPES: Final = {
    "enqueue": "enqueued",
    "claim": "claimed",
    "take": "started",
    "start": "started",
    "release": "released",
    "lease_expired": "crashed",
    "crash": "crashed",
    "succeed": "succeeded",
    "fail": "failed",
    "retry": "retried",
    "dead_letter": "dead_letter",
    "due": "due",
    "snooze": "snoozed",
    "expire": "expired",
    "cancel": "cancelled",
    "redrive": "redriven",
    "discard": "discarded",
    "reschedule": "rescheduled",
    "move": "moved",
    "replace": "payload_replaced",
    "clean": "cleaned",
    "ask": "approval_needed",
    "approve": "approved",
    "deny": "denied",
}

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,59}")
_SECRET_NAME: Final = re.compile(r"(?!.*__)[A-Z][A-Z0-9_]{0,99}")  # two underscores separate tenant and name
_MACHINE: Final = re.compile(r" \([^()]*:[0-9]+\)$")
_HOST: Final = re.compile(r"[^\s/?#@\\]+")


class DeliveryOptions(TypedDict, total=False):
    """How the deliveries are enqueued, and the queue of the jobs whose events are sent. None is the default."""

    of_queue: Annotated[str | None, Help("Only events of jobs enqueued in this queue.", "NAME")]
    queue: Annotated[str | None, Help("Queue for the deliveries.", "NAME")]
    priority: Annotated[int | None, Help("Priority of the deliveries.", "N", low=-32_768, high=32_767)]
    tags: Annotated[Sequence[str] | None, Help("Tags of the deliveries; repeatable.", option="--tag", most=50)]
    delay: Annotated[Duration | None, Help("Delay of the deliveries.")]
    retry: Annotated[Retry | str | None, Help("Retry policy of the deliveries.", cli=False)]


Secrets = Annotated[
    str | Sequence[str],
    Help(
        "Name of a signing secret, newest first (the name, not the secret); repeatable.",
        "VARIABLE",
        option="--secret",
        most=MAX_SECRETS,
        example=["OPS_HOOK"],
    ),
]
Wants = Annotated[
    str | Sequence[str] | None,
    Help(f"Event types to send: {', '.join(NOTICES)}, order.*; repeatable.", "EVENT", option="--on", most=MAX_WANTS),
]
Url = Annotated[str, Help("URL to post messages to.", "URL", option="--to", argument=True, longest=URL_LIMIT)]
NewUrl = Annotated[str, Help("URL to post messages to.", "URL", option="--to", longest=URL_LIMIT)]
OfKind = Annotated[str | None, Help("Only events of jobs of this kind; * matches any.", "NAME")]


class WebhookChanges(DeliveryOptions, total=False):
    """The settings of a webhook that can be changed. Missing ones stay."""

    url: NewUrl
    secrets: Secrets
    wants: Wants
    kind: OfKind


@dataclass(frozen=True, slots=True)
class Webhook:
    id: str
    tenant: str
    name: str
    url: str
    secrets: tuple[str, ...]
    """Names of secrets, newest first. Each message is signed with all of them."""
    wants: tuple[str, ...]
    kind: str | None
    job_options: dict[str, Any]
    disabled_at: datetime | None
    disabled_by: str | None
    disabled_reason: str | None
    created_by: str
    created_at: datetime
    updated_at: datetime

    SHOWN: ClassVar[dict[str, Any]] = {"enabled": bool}

    @property
    def enabled(self) -> bool:
        return self.disabled_at is None

    @property
    def shown_url(self) -> str:
        """The URL without its query, which may contain a password."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc, parts.path, "…" if parts.query else "", ""))

    def described(self) -> dict[str, Any]:
        """The fields that ``--json`` and the API show."""
        return dataclasses.asdict(self) | {"url": self.shown_url, "enabled": self.enabled}


@dataclass(frozen=True, slots=True)
class WebhookDelivery:
    """One attempt to deliver a message. ``status`` is None without a response, ``error_code`` if it was delivered."""

    id: str
    tenant: str
    webhook_id: str
    message: str
    """The webhook-id: the same in every attempt."""
    type: str
    job_id: str
    attempt: int
    status: int | None
    error_code: str | None
    duration_ms: int
    excerpt: str | None
    at: datetime | None = None

    SHOWN: ClassVar[dict[str, Any]] = {"delivered": bool}

    @property
    def delivered(self) -> bool:
        return self.error_code is None

    def described(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"delivered": self.delivered}


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookDraft:
    """The settings of a new or changed webhook, validated."""

    name: str
    url: str
    secrets: tuple[str, ...]
    wants: tuple[str, ...] = NOTICES
    kind: str | None = None
    job_options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        name: object,
        url: object,
        secrets: str | Sequence[str],
        wants: str | Sequence[str] | None = None,
        kind: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> WebhookDraft:
        if wants is not None and not isinstance(wants, str | Sequence):
            raise InvalidSetting(
                f"wants must be a list of event types, not {type(wants).__name__}", code="invalid_webhook"
            )
        given = (wants,) if isinstance(wants, str) else NOTICES if wants is None else tuple(wants)
        check_options(options or {}, DeliveryOptions.__annotations__)
        job_options: Any = {name: value for name, value in (options or {}).items() if value is not None}
        if isinstance(kind, str) and not kind.replace("*", ""):
            kind = None
        draft = cls(
            name=check_webhook_name(name),
            url=check_url(url),
            secrets=check_secret_names(secrets),
            wants=_check_wants(given),
            kind=None if kind is None else check_name(kind, "kind"),
            job_options=stored_options(job_options),
        )
        draft.subscriptions()  # refused now rather than when it is stored
        return draft

    @classmethod
    def changed(cls, was: Webhook, given: Mapping[str, Any]) -> WebhookDraft:
        """A webhook with some fields replaced. A delivery option that is None returns to its default."""
        check_options(given, WebhookChanges.__annotations__)
        options = {name: value for name, value in given.items() if name in DeliveryOptions.__annotations__}
        draft = cls.of(
            was.name,
            given.get("url") or was.url,
            given.get("secrets") or was.secrets,
            was.wants if given.get("wants") is None else given["wants"],
            given.get("kind", was.kind),
            options,
        )
        replaced = {part for name in options for part in _STORED_AS.get(name, (name,))}
        unchanged = {name: value for name, value in was.job_options.items() if name not in replaced}
        return replace(draft, job_options=unchanged | draft.job_options)

    def subscriptions(self) -> dict[str, NewSubscription | None]:
        """Its subscriptions by name: one for the ledger, one for events of applications; None if it does not need
        one."""
        result: dict[str, NewSubscription | None] = dict.fromkeys(subscription_names(self.name))
        options: Any = _job_options(self.job_options) | {"payload": {"webhook": self.name, "event": "$"}}
        for name, ledger in zip(result, (True, False), strict=True):
            if not ledger:  # events of applications have no queue
                options.pop("of_queue", None)
            parts = [part for want in self.wants if is_ledger_pattern(part := _PATTERNS.get(want, want)) == ledger]
            if parts:
                kind = self.kind if ledger else None
                result[name] = NewSubscription.of(
                    name, "|".join(parts), DELIVER, kind=kind, options=options, declared=True
                )
        return result


def subscription_names(webhook: str) -> tuple[str, str]:
    return f"webhook:{webhook}", f"webhook:{webhook}:app_events"


def check_webhook_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidSetting(
            "a webhook's name must be at most 60 lower-case letters, digits, dots, dashes and underscores",
            code="invalid_webhook",
        )
    return name


def check_url(url: object) -> str:
    """Check the form of a URL. Whether its host is allowed is checked when a message is sent."""
    if not isinstance(url, str) or len(url) > URL_LIMIT or not url.isascii() or not url.isprintable() or " " in url:
        raise _bad(f"a URL must be plain text of at most {URL_LIMIT:,} characters")
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and _HOST.fullmatch(parts.netloc) and parts.port != 0
    except ValueError:
        raise _bad("this is not a URL") from None
    if not valid or "\\" in url:
        raise _bad("the URL must be https://host/… without a user name and password")
    return urlunsplit((*parts[:4], "")).replace("@", "%40")


def check_secret_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Check names of secrets, newest first. A secret itself is refused, and not repeated in the error."""
    given: tuple[object, ...] = (names,) if isinstance(names, str) else tuple(names)
    if not 1 <= len(given) <= MAX_SECRETS or len(set(given)) != len(given):
        raise _bad(f"a webhook needs the names of 1 to {MAX_SECRETS} different secrets")
    checked = []
    for name in given:
        if isinstance(name, str) and name.startswith(PREFIX):
            raise InvalidSetting(
                "expected the name of a secret",
                code="secret_by_name",
                fix="Set it as HOLDFAST_SECRET_<NAME> in the workers' environment and pass <NAME> here.",
            )
        if not isinstance(name, str) or not _SECRET_NAME.fullmatch(name):
            raise _bad("the name of a secret must be capital letters, digits and single underscores")
        checked.append(name)
    return tuple(checked)


def check_tenant(tenant: str) -> str:
    if tenant == EVERY_TENANT:
        raise InvalidSetting("a webhook belongs to one tenant", code="invalid_webhook", fix="Name the tenant.")
    return tenant


def _check_wants(wants: tuple[str, ...]) -> tuple[str, ...]:
    if not 1 <= len(wants) <= MAX_WANTS or not all(isinstance(want, str) for want in wants):
        raise _bad(f"a webhook needs 1 to {MAX_WANTS} event types, such as {', '.join(NOTICES)}")
    parts = [part.strip() for want in wants for part in want.split("|")]
    for part in parts:
        check_pattern(_PATTERNS.get(part, part))
    return tuple(dict.fromkeys(parts))


_STORED_AS: Final = {"retry": ("max_attempts", "max_crashes", "backoff")}


def _job_options(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The stored options as options of a subscription, with the retry policy of deliveries by default."""
    options = {
        name: value for name, value in stored.items() if name in ("queue", "priority", "tags", "delay", "of_queue")
    }
    return options | {"retry": job_policy(stored, DELIVERY_RETRY)}


def _bad(why: str) -> InvalidSetting:
    return InvalidSetting(why, code="invalid_webhook")


# --- messages ---


def message_of(payload: Mapping[str, Any], job_id: str, made_at: datetime) -> tuple[str, str, bytes]:
    """The webhook-id, the type and the body of a delivery: the same bytes in every attempt.

    The payload of a job that an event caused has the ``event``; that of an enqueued job, a ``type`` and ``data``. A
    message that is sent again in another job has the id of the first as ``message``.
    """
    id = payload.get("message") or f"msg_{job_id.replace('-', '')}"
    event = payload.get("event")
    if event is not None:
        type, at, data = _of_event(event)
    else:
        type, data = check_name(payload.get("type"), "type"), payload.get("data") or {}
        at = payload.get("at") or _written(made_at)
    body = encode({"type": type, "timestamp": at, "data": data}, what="message")
    return id, type, body.encode()


def is_reserved(type: str | None) -> bool:
    """Whether this is the type of a message of Holdfast: about a job, a schedule or a webhook."""
    return type is not None and (is_ledger_pattern(type) or type in SYSTEM_EVENTS or type == PING)


def _of_event(event: Any) -> tuple[str, str, dict[str, Any]]:
    if not isinstance(event, dict) or not isinstance(event.get("name"), str):
        raise InvalidInput("the event of a delivery needs a name", code="webhook_malformed")
    name = event["name"]
    at = str(event.get("at") or event.get("sent_at") or "")
    data = {key: _without_internals(key, value) for key, value in event.items() if key not in ("at", "sent_at")}
    event_type = name.removeprefix("job.")
    if name.startswith("job.") and event_type in _TYPES:
        return f"job.{_TYPES[event_type]}", at, data
    return name, at, data


def _without_internals(key: str, value: Any) -> Any:
    """The value without what receivers must not see: the host of a worker, the location in the code."""
    if key in ("actor", "sent_by") and isinstance(value, str):
        return _MACHINE.sub("", value)
    if key == "meta" and isinstance(value, dict):
        return {name: each for name, each in value.items() if name not in ("frame", "log", "traceback")}
    return value


def delivery_job(webhook: Webhook, payload: dict[str, Any], id: str, actor: str) -> JobSpec:
    """The job of a ping, or of a message that is sent again."""
    options = webhook.job_options
    return JobSpec(
        id=id,
        kind=DELIVER,
        payload=encode({"webhook": webhook.name, **payload}),
        enqueued_by=actor,
        source_system="webhook",
        queue=options.get("queue", "default"),
        priority=options.get("priority", 0),
        retry=job_policy(options, DELIVERY_RETRY),
        tags=tuple(options.get("tags", ())),
    )


def _written(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


# --- responses ---


@dataclass(frozen=True, slots=True)
class DeliveryVerdict:
    """What to do after a response. ``gone``: the receiver no longer exists, and the webhook is disabled."""

    action: Literal["delivered", "gone", "retry", "give_up"]
    code: str | None = None


def verdict_of(status: int, refused: int) -> DeliveryVerdict:
    """The verdict on a response, after ``refused`` earlier refusals.

    Redirects are not followed; like any other 4xx they mean that the receiver is misconfigured. The message does not
    change, but the receiver may be corrected, such as a login or a route that a release lost. So it is sent a few times
    within minutes to an hour, but not for a day.
    """
    if 200 <= status < 300:
        return DeliveryVerdict("delivered")
    if status == 410:
        return DeliveryVerdict("gone", "webhook_gone")
    if status >= 500 or status in (408, 425, 429) or status < 200:
        return DeliveryVerdict("retry", "webhook_failed")
    return DeliveryVerdict("give_up" if refused + 1 >= MAX_REFUSALS else "retry", "webhook_refused")
