"""Endpoints: which provider signs, the names of its secrets, and the event or the job that a message becomes. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypedDict
from urllib.parse import quote

from holdfast.engine.declared import Help
from holdfast.engine.hints import check_options
from holdfast.engine.job import DEFAULT_TENANT
from holdfast.engine.names import check_name
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting
from holdfast.features.endpoints.verification import PROVIDERS, Received
from holdfast.features.events.model import check_event_name
from holdfast.features.webhooks.model import Secrets, check_secret_names, check_webhook_name
from holdfast.features.webhooks.signing import TOLERANCE

MAX_BODY: Final = 1_000_000
"""Bytes of a message; with its names and quotes, its event fits into the limit of payloads."""
MAX_TOLERANCE: Final = 3_600.0
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_.:/-]")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An inbound webhook. Each message becomes an event, or a job of ``kind``. In ``event``, ``*`` is the type of the
    message."""

    tenant: str
    name: str
    provider: str
    secrets: tuple[str, ...]
    """Names of secrets. A message is accepted if one of them signed it."""
    event: str | None
    kind: str | None
    queue: str | None
    tolerance: float
    """Maximum age of a signature in seconds, for providers that sign the time."""
    enabled: bool
    set_by: str
    created_at: datetime
    updated_at: datetime

    @property
    def path(self) -> str:
        """Where its provider posts, below the URL of the service."""
        return (
            f"/hooks/{self.name}" if self.tenant == DEFAULT_TENANT else f"/hooks/{quote(self.tenant, '')}/{self.name}"
        )

    def event_name(self, type: str) -> str:
        written = _NOT_IN_A_NAME.sub("_", type)[:100] or "message"
        return check_event_name((self.event or f"{self.name}.*").replace("*", written))

    def data_of(self, received: Received) -> dict[str, Any]:
        """The data of the event."""
        facts = {"endpoint": self.name, "provider": self.provider, "message": received.id, "type": received.type}
        return facts | ({"delivery": received.delivery} if received.delivery else {}) | {"body": received.body}

    def key_of(self, received: Received) -> str:
        """The key under which a message is accepted once. It is a hash, because ids have any length."""
        return f"endpoint {self.name} {hashlib.sha256(received.id.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a message: an event or a job; ``duplicate`` if it was accepted before. ``challenge`` is the
    answer that Slack expects when its URL is set up."""

    event_id: str | None = None
    job_id: str | None = None
    duplicate: bool = False
    challenge: str | None = None


class EndpointOptions(TypedDict, total=False):
    """An option that is not given keeps its value."""

    provider: Annotated[
        Literal["standard", "github", "stripe", "slack"],
        Help(f"Form of the signature: {', '.join(PROVIDERS)}.", "PROVIDER"),
    ]
    secrets: Secrets
    event: Annotated[
        str | None,
        Help("Event to send; * is the type of the message. Default: NAME.*", "EVENT", clear=True),
    ]
    kind: Annotated[str | None, Help("Job kind to enqueue instead, with the event.", "KIND", clear=True)]
    queue: Annotated[str | None, Help("Queue of the jobs.", "NAME", clear=True)]
    tolerance: Annotated[Duration, Help("Maximum age of a signature: 5m.")]
    enabled: Annotated[bool, Help("Accept messages, or refuse all.", option="--enabled/--disabled")]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointDraft:
    """Complete, checked settings that are about to be stored."""

    name: str
    provider: str
    secrets: tuple[str, ...]
    event: str | None = None
    kind: str | None = None
    queue: str | None = None
    tolerance: float = TOLERANCE
    enabled: bool = True

    @classmethod
    def of(cls, name: str, current: Endpoint | None, options: Mapping[str, Any]) -> EndpointDraft:
        """The current settings with the given options applied."""
        check_options(options, EndpointOptions.__annotations__)
        old = {} if current is None else {each: getattr(current, each) for each in EndpointOptions.__annotations__}
        settings: dict[str, Any] = {**old, **options}
        if settings.get("provider") not in PROVIDERS:
            raise _invalid(f"provider must be one of {', '.join(PROVIDERS)}")
        if not isinstance(settings.get("enabled", True), bool):
            raise _invalid("enabled must be true or false")
        event, kind, queue = (settings.get(each) for each in ("event", "kind", "queue"))
        if event is not None and kind is not None:
            raise _invalid("an endpoint sends an event or enqueues a kind, not both")
        if queue is not None and kind is None:
            raise _invalid("only an endpoint with a kind has a queue")
        if event is not None:
            check_event_name(str(event).replace("*", "x"))
        tolerance = seconds(settings.get("tolerance", TOLERANCE), "tolerance")
        if not 1 <= tolerance <= MAX_TOLERANCE:
            raise _invalid(f"tolerance must be from 1 to {MAX_TOLERANCE:,.0f} seconds")
        return cls(
            name=check_webhook_name(name),
            provider=settings["provider"],
            secrets=check_secret_names(settings.get("secrets") or ()),
            event=None if event is None else check_name(event, "event"),
            kind=None if kind is None else check_name(kind, "kind"),
            queue=None if queue is None else check_name(queue, "queue"),
            tolerance=tolerance,
            enabled=settings.get("enabled", True),
        )


def _invalid(why: str) -> InvalidSetting:
    return InvalidSetting(why, code="invalid_endpoint")
