"""Job options that templates, schedules and subscriptions store as JSON for the jobs they create."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.engine.hints import check_options
from holdfast.engine.names import check_name
from holdfast.engine.order import check_priority
from holdfast.engine.retry import DEFAULT_MAX_ATTEMPTS, PATIENT, Backoff, Retry, as_stored_policy
from holdfast.engine.units import seconds
from holdfast.errors import InvalidSetting

OPTIONS: Final = (
    "queue",
    "priority",
    "tags",
    "agent",
    "executor",
    "retry",
    "deadline",
    "correlation_id",
    "external_ref",
)
"""``deadline`` is a duration here: how long after its due time a job may still start."""


def stored_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options in the form in which they are stored, or ``InvalidSetting``."""
    check_options(options, OPTIONS)
    stored: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name == "retry":
            stored[name] = _stored_retry(value)
        elif name == "deadline":
            stored[name] = seconds(value, "deadline")
        elif name == "priority":
            stored[name] = check_priority(value)
        elif name == "tags":
            if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
                raise InvalidSetting("tags must be a list of text", code="invalid_name")
            stored[name] = [check_name(tag, "tag") for tag in value]
        else:
            stored[name] = check_name(value, name, limit=100 if name in ("queue", "executor") else 255)
    return stored


def job_options(stored: Mapping[str, Any], due: datetime) -> dict[str, Any]:
    """Stored options as the options of a job that is due at ``due``. Options of a newer release are ignored."""
    options = {name: value for name, value in stored.items() if name in OPTIONS}
    if "deadline" in options:
        options["deadline"] = due + timedelta(seconds=float(options["deadline"]))
    if "retry" in options:
        options["retry"] = _retry(options["retry"])
    return options


def _retry(stored: Mapping[str, Any]) -> Retry:
    return Retry(
        max_attempts=stored.get("max_attempts", DEFAULT_MAX_ATTEMPTS),
        max_crashes=stored.get("max_crashes", 3),
        backoff=Backoff.from_json(stored.get("backoff") or PATIENT.to_json()),
    )


def _stored_retry(value: object) -> dict[str, Any]:
    policy = as_stored_policy(_retry(value) if isinstance(value, Mapping) else value)
    return {
        "max_attempts": policy.max_attempts,
        "max_crashes": policy.max_crashes,
        "backoff": policy.backoff.to_json(),
    }
