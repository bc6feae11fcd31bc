"""Templates: job definitions with a name and versions (SC-8), and the options they and schedules keep.

Options are kept as JSON, in the words of ``Options``: what a job is given besides its payload.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.domain.rules import HIDDEN
from holdfast.engine.names import Place, check_name, unknown_place
from holdfast.engine.order import check_priority
from holdfast.engine.payload import encode, own
from holdfast.engine.retry import Backoff, Retry, as_stored_policy
from holdfast.engine.units import seconds
from holdfast.errors import InvalidSetting

PAYLOAD_LIMIT: Final = 1_048_576
OPTIONS: Final = ("queue", "priority", "tags", "agent", "retry", "deadline", "correlation_id", "external_ref")
"""``deadline`` is a duration here: how long after its time a job may still be begun."""


@dataclass(frozen=True, slots=True)
class Template:
    """One version of a template. ``payload`` and ``options`` are defaults; a removal is a version, too."""

    tenant: str
    name: str
    version: int
    kind: str
    payload: dict[str, Any]
    options: dict[str, Any]
    removed: bool
    created_by: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateDraft:
    """What is stored of a template, checked; ``payload`` is JSON text."""

    name: str
    kind: str
    payload: str
    options: dict[str, Any]

    @classmethod
    def of(cls, name: str, kind: str, payload: Mapping[str, Any] | None, options: Mapping[str, Any]) -> TemplateDraft:
        return cls(
            name=check_name(name, "template"),
            kind=check_name(kind, "kind"),
            payload=payload_text(payload, f"template {name}"),
            options=stored_options(options),
        )


@dataclass(frozen=True, slots=True)
class MadeFrom:
    """What a job was made from: a version of a template, a time of a schedule, or both."""

    job_id: str
    tenant: str
    template: str | None
    template_version: int | None
    schedule_id: str | None
    schedule: str | None
    due_at: datetime | None


def version_of(place: Place) -> int:
    """Versions are listed by their numbers: a place in that list has one as its name."""
    if not place.name.isascii() or not place.name.isdigit() or len(place.name) > 9:
        raise unknown_place()
    return int(place.name)


def payload_text(payload: Mapping[str, Any] | None, what: str) -> str:
    if payload is not None and not isinstance(payload, Mapping):
        raise InvalidSetting(f"the payload of {what} is an object of names and values", code="invalid_payload")
    if payload is not None and HIDDEN in payload:
        raise InvalidSetting(
            f"the payload of {what} is what readers see of one that is restricted", code="payload_reserved"
        )
    return own(encode(dict(payload or {}), limit=PAYLOAD_LIMIT, what=f"payload of {what}"))


def stored_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as they are kept, or ``InvalidSetting``."""
    unknown = options.keys() - set(OPTIONS)
    if unknown:
        raise InvalidSetting(
            f"unknown options: {', '.join(sorted(unknown))}",
            code="unknown_option",
            fix=f"There are {', '.join(OPTIONS)}.",
        )
    kept: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name == "retry":
            kept[name] = _stored_retry(value)
        elif name == "deadline":
            kept[name] = seconds(value, "deadline")
        elif name == "priority":
            kept[name] = check_priority(value)
        elif name == "tags":
            if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
                raise InvalidSetting("tags must be a list of text", code="invalid_name")
            kept[name] = [check_name(tag, "tag") for tag in value]
        else:
            kept[name] = check_name(value, name, limit=100 if name == "queue" else 255)
    return kept


def job_options(kept: Mapping[str, Any], due: datetime) -> dict[str, Any]:
    """What was kept, as options of a job whose time is ``due``. What a newer release has added is passed over."""
    options = {name: value for name, value in kept.items() if name in OPTIONS}
    if "deadline" in options:
        options["deadline"] = due + timedelta(seconds=float(options["deadline"]))
    if "retry" in options:
        policy = options["retry"]
        options["retry"] = Retry(
            max_attempts=policy.get("max_attempts", 5),
            max_crashes=policy.get("max_crashes", 3),
            backoff=Backoff.from_json(policy.get("backoff", {})),
        )
    return options


def together(
    template: Template | None, payload: Mapping[str, Any], options: Mapping[str, Any], due: datetime
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The payload and the options of a job: what the template says, and on top of it what was said for this use."""
    if template is None:
        return dict(payload), job_options(options, due)
    return {**template.payload, **payload}, job_options({**template.options, **options}, due)


def _stored_retry(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):  # as it was kept
        value = Retry(
            max_attempts=value.get("max_attempts", 5),
            max_crashes=value.get("max_crashes", 3),
            backoff=Backoff.from_json(value.get("backoff", {})),
        )
    policy = as_stored_policy(value)
    return {
        "max_attempts": policy.max_attempts,
        "max_crashes": policy.max_crashes,
        "backoff": policy.backoff.to_json(),
    }
