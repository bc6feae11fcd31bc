"""Jobs about to be enqueued over HTTP: the options, and what is checked before anything is sent."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypedDict

from holdfast.engine.job import Dedupe
from holdfast.engine.names import check_name
from holdfast.engine.payload import encode
from holdfast.engine.retry import Retry, as_stored_policy
from holdfast.engine.times import instant_or_none
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting
from holdfast.http.wire import given
from holdfast.kind import PAYLOAD_LIMIT


class JobOptions(TypedDict, total=False):
    """What a job may be enqueued with, as locally; whose it is and who asked is the token's to say."""

    delay: Duration
    run_at: datetime
    deadline: datetime
    queue: str
    priority: int
    key: str
    dedupe: Dedupe
    tags: Sequence[str]
    parent: str
    correlation_id: str
    causation_id: str
    external_ref: str
    agent: str
    limit_key: str
    resources: Sequence[str]
    retry: Retry | str
    retry_as: Literal["new_job"]
    source_ref: str
    target_ref: str
    payload_ref: str


@dataclass(frozen=True, slots=True)
class Call:
    """For ``enqueue_many``; made by ``client.prepare``. ``own``: the key is ours, and nobody else has it."""

    key: str
    own: bool
    body: Mapping[str, Any] = field(repr=False)


def prepared(kind: str, payload: Any, options: JobOptions) -> Call:
    """Checked as far as it can be here. The key is made once: however often it is sent, it is one job."""
    unknown = options.keys() - JobOptions.__annotations__.keys()
    if unknown:
        raise InvalidSetting(f"unknown options: {', '.join(sorted(unknown))}", code="unknown_option")
    values = {} if payload is None else payload
    encode(values, limit=PAYLOAD_LIMIT)
    said: dict[str, Any] = dict(options)
    key = said.pop("key", None)
    for name in ("run_at", "deadline"):
        aware(said.get(name), name)
    if "delay" in said:
        said["delay"] = seconds(said["delay"], "delay")
    if isinstance(said.get("retry"), Retry):
        said["retry"] = policy(said["retry"])
    for name in ("tags", "resources"):
        if isinstance(said.get(name), tuple):
            said[name] = list(said[name])
    body = given(kind=check_name(kind, "kind"), payload=values, **said)
    return Call(new_key() if key is None else check_name(key, "key", limit=255), key is None, body)


def new_key() -> str:
    return f"py-{uuid.uuid4()}"


def aware(moment: object, what: str) -> None:
    instant_or_none(moment, what)


def another_time(
    at: datetime | None, delay: Duration | None, max_attempts: int | None, reason: str | None
) -> dict[str, Any]:
    aware(at, "the time")
    span = None if delay is None else seconds(delay, "delay")
    return given(at=at, delay=span, max_attempts=max_attempts, reason=reason)


def policy(retry: Retry) -> dict[str, Any]:
    as_stored_policy(retry)
    return {"max_attempts": retry.max_attempts, "max_crashes": retry.max_crashes, "backoff": retry.backoff.to_json()}
