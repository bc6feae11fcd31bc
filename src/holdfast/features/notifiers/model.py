"""Notifiers: who is told what, when not, and the messages of each channel. Pure.

The URL of a channel is a secret, because it allows anyone to post; it is known here by name only. Text of jobs is data:
channels get it as plain text, never as markup.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Annotated, Any, Final, Literal, TypedDict
from urllib.parse import quote, urlsplit
from zoneinfo import ZoneInfo

from holdfast.engine.declared import Help
from holdfast.engine.hints import check_options
from holdfast.engine.job import DEFAULT_TENANT, JobSpec
from holdfast.engine.names import check_name
from holdfast.engine.payload import encode
from holdfast.engine.retry import Backoff, Retry
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting
from holdfast.features.events.model import NOTIFIER_KIND, NewSubscription
from holdfast.features.webhooks.model import check_secret_names, check_url, check_webhook_name

DELIVER: Final = NOTIFIER_KIND
SOURCE: Final = "notifier"
TRUSTED_SOURCES: Final = frozenset({"subscription", SOURCE})
"""Sources of jobs that tell people something; a caller of enqueue cannot set them."""
RETRY: Final = Retry(max_attempts=11, backoff=Backoff(base=5.0, factor=4.0, cap=3_600.0))
CHANNELS: Final = ("slack", "teams", "email", "webhook")
WANTS: Final = {"approvals": "job.ask", "dead_letters": "job.dead_letter", "health": None}
MAX_RECIPIENTS: Final = 50
MAX_ESCALATION: Final = 30 * 86_400.0
LINE: Final = 500
"""Characters of a line of a message; Slack allows 3,000 in a section and 2,000 in a field."""
_QUIET: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)(?: (\S{1,64}))?")
_ADDRESS: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*")
_SHORT: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")


@dataclass(frozen=True, slots=True)
class Notifier:
    """A channel to people. ``health`` is the verdict that it was told last."""

    tenant: str
    name: str
    channel: str
    secrets: tuple[str, ...]
    """Names of secrets: that of the URL, and for ``webhook`` that of the signing secret."""
    wants: tuple[str, ...]
    kind: str | None
    recipients: tuple[str, ...]
    sender: str | None
    dashboard: str | None
    quiet: str | None
    escalate_after: float | None
    escalation: str | None
    enabled: bool
    health: str | None
    set_by: str
    created_at: datetime
    updated_at: datetime


class NotifierOptions(TypedDict, total=False):
    """An option that is not given keeps its value."""

    channel: Annotated[Literal["slack", "teams", "email", "webhook"], Help(f"One of {', '.join(CHANNELS)}.", "CHANNEL")]
    secrets: Annotated[
        str | Sequence[str],
        Help(
            "Name of the secret that has the URL (smtp://… for email); for webhook, the signing secret's name second.",
            "VARIABLE",
            option="--secret",
            most=2,
            example=["OPS_SLACK"],
        ),
    ]
    wants: Annotated[
        str | Sequence[str],
        Help(f"What to tell: {', '.join(WANTS)}; repeatable. Default: all.", "WHAT", option="--on", most=3),
    ]
    kind: Annotated[str | None, Help("Only about jobs of this kind; * matches any.", "NAME", clear=True)]
    recipients: Annotated[
        str | Sequence[str],
        Help("E-mail address to send to; repeatable.", "ADDRESS", option="--to", most=MAX_RECIPIENTS),
    ]
    sender: Annotated[str | None, Help("E-mail address to send from.", "ADDRESS", option="--from", clear=True)]
    dashboard: Annotated[str | None, Help("URL of the dashboard, for links.", "URL", longest=2_000, clear=True)]
    quiet: Annotated[
        str | None,
        Help("Quiet hours, in which only critical health is told: '22:00-07:00 Europe/Paris'.", "HOURS", clear=True),
    ]
    escalate_after: Annotated[Duration | None, Help("Escalate what is still open after this time.", clear=True)]
    escalation: Annotated[str | None, Help("Notifier to escalate to.", "NAME", clear=True)]
    enabled: Annotated[bool, Help("Tell people, or nobody.", option="--enabled/--disabled")]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifierDraft:
    """Complete, checked settings that are about to be stored."""

    name: str
    channel: str
    secrets: tuple[str, ...]
    wants: tuple[str, ...] = tuple(WANTS)
    kind: str | None = None
    recipients: tuple[str, ...] = ()
    sender: str | None = None
    dashboard: str | None = None
    quiet: str | None = None
    escalate_after: float | None = None
    escalation: str | None = None
    enabled: bool = True

    @classmethod
    def of(cls, name: str, current: Notifier | None, options: Mapping[str, Any]) -> NotifierDraft:
        """The current settings with the given options applied."""
        check_options(options, NotifierOptions.__annotations__)
        old = {} if current is None else {each: getattr(current, each) for each in NotifierOptions.__annotations__}
        settings: dict[str, Any] = {**old, **options}
        channel = settings.get("channel")
        if channel not in CHANNELS:
            raise _invalid(f"channel must be one of {', '.join(CHANNELS)}")
        secrets = check_secret_names(settings.get("secrets") or ())
        if len(secrets) != (2 if channel == "webhook" else 1):
            raise _invalid(
                "a webhook needs the names of two secrets: the URL and the signing secret"
                if channel == "webhook"
                else "expected the name of one secret: that of the URL"
            )
        wants = _texts(settings.get("wants", tuple(WANTS)), "wants")
        if not wants or not set(wants) <= WANTS.keys():
            raise _invalid(f"wants must be one or more of {', '.join(WANTS)}")
        recipients = _texts(settings.get("recipients", ()), "recipients")
        sender, kind, dashboard = settings.get("sender"), settings.get("kind"), settings.get("dashboard")
        if (channel == "email") != bool(recipients) or (channel == "email") != (sender is not None):
            raise _invalid("an e-mail has recipients and a sender; other channels have none")
        for address in (*recipients, *([] if sender is None else [sender])):
            if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
                raise _invalid(f"{str(address)[:80]!r} is not an e-mail address")
        if not isinstance(settings.get("enabled", True), bool):
            raise _invalid("enabled must be true or false")
        quiet, after, then = (settings.get(each) for each in ("quiet", "escalate_after", "escalation"))
        if quiet is not None:
            quiet_until(quiet, datetime.now(UTC))
        if (after is None) != (then is None) or then == name:
            raise _invalid("escalate_after and escalation, another notifier, go together")
        after = None if after is None else seconds(after, "escalate_after")
        if after is not None and not 1 <= after <= MAX_ESCALATION:
            raise _invalid("escalate_after must be from 1 second to 30 days")
        return cls(
            name=check_webhook_name(name),
            channel=channel,
            secrets=secrets,
            wants=tuple(dict.fromkeys(wants)),
            kind=None if kind is None or not str(kind).replace("*", "") else check_name(kind, "kind"),
            recipients=tuple(dict.fromkeys(recipients)),
            sender=sender,
            dashboard=None if dashboard is None else _dashboard(dashboard),
            quiet=quiet,
            escalate_after=after,
            escalation=None if then is None else check_webhook_name(then),
            enabled=settings.get("enabled", True),
        )

    def subscription(self) -> NewSubscription | None:
        """Its subscription to the ledger; None if it needs none."""
        parts = [pattern for want in self.wants if (pattern := WANTS[want]) is not None]
        if not parts or not self.enabled:
            return None
        options: Any = {"payload": {"notifier": self.name, "event": "$"}, "retry": RETRY}
        return NewSubscription.of(
            subscription_name(self.name), "|".join(parts), DELIVER, kind=self.kind, options=options, declared=True
        )


def subscription_name(notifier: str) -> str:
    return f"notifier:{notifier}"


def _texts(values: Any, what: str) -> tuple[str, ...]:
    given = (values,) if isinstance(values, str) else values
    if not isinstance(given, list | tuple) or len(given) > MAX_RECIPIENTS:
        raise _invalid(f"{what} must be a list of up to {MAX_RECIPIENTS} texts")
    return tuple(given)


def _dashboard(url: str) -> str:
    checked = check_url(url).rstrip("/")
    if urlsplit(checked).query:
        raise _invalid("the URL of the dashboard has no query")
    return checked


def quiet_until(quiet: str, now: datetime) -> datetime | None:
    """The end of the quiet hours that are now; None if it is not quiet. ``22:00-07:00`` includes midnight."""
    match = _QUIET.fullmatch(str(quiet))
    if match is None or match.group(1, 2) == match.group(3, 4):
        raise _invalid("quiet hours are written as 22:00-07:00, with a time zone if it is not UTC")
    try:
        zone = ZoneInfo(match[5] or "UTC")
    except (KeyError, ValueError, OSError):
        raise _invalid(f"there is no time zone {match[5]}") from None
    local = now.astimezone(zone)
    begin, end = time(int(match[1]), int(match[2])), time(int(match[3]), int(match[4]))
    present = local.time().replace(tzinfo=None)
    if not (begin <= present < end if begin < end else present >= begin or present < end):
        return None
    day = local.date() + timedelta(days=1 if present >= end else 0)
    return datetime.combine(day, end, zone).astimezone(UTC)


# --- jobs and messages ---


def delivery_job(
    notifier: str,
    payload: Mapping[str, Any],
    id: str,
    actor: str,
    *,
    delay: float | None = None,
    key: str | None = None,
) -> JobSpec:
    """The job of a message that no event caused: a test, a change of the health, an escalation."""
    return JobSpec(
        id=id,
        kind=DELIVER,
        payload=encode({"notifier": notifier, **payload}),
        enqueued_by=actor,
        source_system=SOURCE,
        retry=RETRY,
        delay=delay,
        key=key,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What people read: a title, facts by name, and a link with its label. ``type`` and ``data`` are for programs."""

    type: str
    title: str
    facts: Mapping[str, str]
    link: tuple[str, str] | None = None
    data: Mapping[str, Any]


def plain(text: object, most: int = LINE) -> str:
    """Text of a job in one line, without characters that could change how the rest is shown."""
    line = _SHORT.sub(" ", str(text)).strip()
    return line if len(line) <= most else line[: most - 1] + "…"


def slack_message(message: Message) -> dict[str, Any]:
    """Blocks of Slack's Block Kit. Every text of a job is ``plain_text``, in which nothing is a link or a mention."""
    blocks: list[dict[str, Any]] = [{"type": "header", "text": _slack_text(message.title, 150)}]
    fields = [_slack_text(f"{name}: {value}", 2_000) for name, value in message.facts.items()][:10]
    if fields:
        blocks.append({"type": "section", "fields": fields})
    if message.link is not None:
        label, url = message.link
        button = {"type": "button", "text": _slack_text(label, 75), "url": url, "action_id": "open"}
        blocks.append({"type": "actions", "elements": [button]})
    escaped = message.title.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": escaped, "blocks": blocks, "unfurl_links": False}


def _slack_text(text: str, most: int) -> dict[str, Any]:
    return {"type": "plain_text", "text": plain(text, most), "emoji": False}


def teams_message(message: Message) -> dict[str, Any]:
    """An Adaptive Card, as the workflows of Microsoft Teams take it. Its texts are Markdown, so it is escaped."""
    facts = [{"title": name, "value": _unmarked(value)} for name, value in message.facts.items()]
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [
            {"type": "TextBlock", "size": "Medium", "weight": "Bolder", "wrap": True, "text": _unmarked(message.title)},
            {"type": "FactSet", "facts": facts},
        ],
    }
    if message.link is not None:
        card["actions"] = [{"type": "Action.OpenUrl", "title": message.link[0], "url": message.link[1]}]
    content = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [content]}


def _unmarked(text: str) -> str:
    return re.sub(r"([\\`*_\[\]()#<>!|~])", r"\\\1", plain(text))


def mail_text(message: Message) -> str:
    lines = [message.title, "", *(f"{name}: {plain(value)}" for name, value in message.facts.items())]
    if message.link is not None:
        lines += ["", f"{message.link[0]}:", message.link[1]]
    return "\n".join(lines) + "\n"


def page(notifier: Notifier, path: str) -> str | None:
    """The URL of a page of the dashboard."""
    if notifier.dashboard is None:
        return None
    whose = (
        "" if notifier.tenant == DEFAULT_TENANT or path.startswith("/decide/") else f"?tenant={quote(notifier.tenant)}"
    )
    return f"{notifier.dashboard}{path}{whose}"


def _invalid(why: str) -> InvalidSetting:
    return InvalidSetting(why, code="invalid_notifier")
