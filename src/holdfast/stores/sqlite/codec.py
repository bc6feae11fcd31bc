"""Values as SQLite keeps them: times as microseconds, documents and tags as JSON text."""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import Any

from holdfast.domain.job import JobSpec
from holdfast.domain.policies import EXPONENTIAL, RetryPolicy
from holdfast.stores.codecs import from_micros, in_micros, micros


class SqliteCodec:
    def time(self, value: int) -> datetime:
        return from_micros(value)

    def json(self, value: Any) -> Any:
        return json.loads(value)

    def id(self, value: str) -> str:
        return value

    def tags(self, value: str) -> tuple[str, ...]:
        return tuple(json.loads(value)) if value != "[]" else ()


@lru_cache(maxsize=256)
def _backoff(retry: RetryPolicy) -> str | None:
    return None if retry.backoff == EXPONENTIAL else json.dumps(retry.backoff.to_json())


JOB_COLUMNS = (
    "id, tenant, kind, queue, payload, priority, process_after, deadline_at, max_retries, max_crashes, backoff,"
    " idempotency_key, content_key, tags, agent, correlation_id, causation_id, parent_id, workflow_id, external_ref,"
    " enqueued_by, source_system, created_at"
)
INSERT_JOB = f"INSERT INTO job ({JOB_COLUMNS}) VALUES ({', '.join('?' * (JOB_COLUMNS.count(',') + 1))})"


def job_row(spec: JobSpec, tenant: str, now: int) -> tuple[Any, ...]:
    if spec.process_after is not None:
        process_after: int | None = micros(spec.process_after)
    else:
        process_after = None if spec.delay is None else now + in_micros(spec.delay)
    return (
        spec.id,
        tenant,
        spec.kind,
        spec.queue,
        spec.payload,
        spec.priority,
        process_after,
        None if spec.deadline_at is None else micros(spec.deadline_at),
        spec.retry.max_retries,
        spec.retry.max_crashes,
        _backoff(spec.retry),
        spec.key,
        spec.content_key,
        json.dumps(spec.tags) if spec.tags else "[]",
        spec.agent,
        spec.correlation_id,
        spec.causation_id,
        spec.parent_id,
        spec.workflow_id,
        spec.external_ref,
        spec.enqueued_by,
        spec.source_system,
        now,
    )
