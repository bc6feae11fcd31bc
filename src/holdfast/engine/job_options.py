"""Job options that templates, schedules and subscriptions store as JSON for the jobs they create."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.engine.names import check_name, check_options
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
    """Options as they are kept, or ``InvalidSetting``."""
    check_options(options, OPTIONS)
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
            kept[name] = check_name(value, name, limit=100 if name in ("queue", "executor") else 255)
    return kept


def job_options(kept: Mapping[str, Any], due: datetime) -> dict[str, Any]:
    """What was kept, as options of a job whose time is ``due``. What a newer release has added is passed over."""
    options = {name: value for name, value in kept.items() if name in OPTIONS}
    if "deadline" in options:
        options["deadline"] = due + timedelta(seconds=float(options["deadline"]))
    if "retry" in options:
        policy = options["retry"]
        options["retry"] = Retry(
            max_attempts=policy.get("max_attempts", DEFAULT_MAX_ATTEMPTS),
            max_crashes=policy.get("max_crashes", 3),
            backoff=Backoff.from_json(policy.get("backoff") or PATIENT.to_json()),
        )
    return options


def _stored_retry(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):  # as it was kept
        value = Retry(
            max_attempts=value.get("max_attempts", DEFAULT_MAX_ATTEMPTS),
            max_crashes=value.get("max_crashes", 3),
            backoff=Backoff.from_json(value.get("backoff") or PATIENT.to_json()),
        )
    policy = as_stored_policy(value)
    return {
        "max_attempts": policy.max_attempts,
        "max_crashes": policy.max_crashes,
        "backoff": policy.backoff.to_json(),
    }
