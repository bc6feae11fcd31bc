"""Conversions for SQLite, and the insert of jobs."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any

from holdfast.engine.job import JobSpec
from holdfast.engine.payload import decode_for_display
from holdfast.engine.retry import PATIENT, Retry
from holdfast.stores.codecs import from_micros, in_micros, micros, texts
from holdfast.stores.flow import Statement


@dataclass(frozen=True)  # all instances are equal
class SqliteCodec:
    ids_are_text = True

    def time(self, value: int) -> datetime:
        return from_micros(value)

    def moment(self, value: datetime) -> int:
        return micros(value)

    def json(self, value: Any) -> Any:
        return decode_for_display(value)

    def id(self, value: str) -> str:
        return value

    def tags(self, value: str) -> tuple[str, ...]:
        return texts(json.loads(value)) if value != "[]" else ()


def _backoff(retry: Retry) -> str | None:
    default = retry.backoff is PATIENT or retry.backoff == PATIENT
    return None if default else json.dumps(retry.backoff.to_json())


NEVER = 2**63 - 1
"""The due time of a parked job."""

COMMON = "id, tenant, kind, queue, payload, priority, max_attempts, max_crashes, enqueued_by, source_system, created_at"
OPTIONAL = (
    "run_at, deadline_at, backoff, idempotency_key, content_key, tags, agent, correlation_id, causation_id,"
    " parent_id, workflow_id, external_ref, uses, retry_as, depth, executor"
)


def insert_jobs(specs: Sequence[JobSpec], tenant: str, now: int) -> Statement:
    """One insert for a batch. Most batches use no optional column, and binding them is half the work."""
    common = [(*_common_values(spec, tenant), now) for spec in specs]
    optional = [_optional_values(spec, now) for spec in specs]
    if all(values is _NO_OPTIONS for values in optional):
        return _insert_rows(COMMON, common)
    return _insert_rows(f"{COMMON}, {OPTIONAL}", [(*one, *two) for one, two in zip(common, optional, strict=True)])


def _insert_rows(columns: str, rows: Sequence[tuple[Any, ...]]) -> Statement:
    """Several rows a statement: each statement sets up the programs of all triggers again, which takes as long as the
    insert of its row."""
    statements, start = [], 0
    for size in ROWS_AT_ONCE:
        text = _insert(columns, size)
        while len(rows) - start >= size:
            statements.append(Statement(text, tuple(chain.from_iterable(rows[start : start + size]))))
            start += size
    return Statement("", batch=tuple(statements))


def insert_plain(spec: JobSpec, tenant: str) -> Statement | None:
    """The insert of one job that uses no optional column; None for others. It returns no row where there are rules."""
    if spec.references is not None or _optional_values(spec, 0) is not _NO_OPTIONS:
        return None
    return Statement(_INSERT_PLAIN, _common_values(spec, tenant))


def _common_values(spec: JobSpec, tenant: str) -> tuple[Any, ...]:
    return (
        spec.id,
        tenant,
        spec.kind,
        spec.queue,
        spec.payload,
        spec.priority,
        spec.retry.max_attempts,
        spec.retry.max_crashes,
        spec.enqueued_by,
        spec.source_system,
    )


ROWS_AT_ONCE = (100, 10, 1)


@functools.cache
def _insert(columns: str, rows: int) -> str:
    row = f"({', '.join('?' * (columns.count(',') + 1))})"
    return f"INSERT INTO holdfast_job ({columns}) VALUES {', '.join([row] * rows)}"


_INSERT_PLAIN = (
    f"INSERT INTO holdfast_job ({COMMON}) SELECT {'?, ' * COMMON.count(',')}(SELECT now FROM holdfast_present)"
    " FROM holdfast_dispatch WHERE id = 1 AND NOT ruled AND NOT registered RETURNING 1"
)
_NO_OPTIONS: tuple[Any, ...] = (None, None, None, None, None, "[]", *[None] * 10)


def _optional_values(spec: JobSpec, now: int) -> tuple[Any, ...]:
    run_at = None if spec.delay is None else now + in_micros(spec.delay)
    if spec.run_at is not None:
        run_at = micros(spec.run_at)
    deadline = None if spec.deadline_in is None else now + in_micros(spec.deadline_in)
    if spec.deadline_at is not None:
        deadline = micros(spec.deadline_at)
    values = (
        run_at,
        deadline,
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
        json.dumps(spec.uses) if spec.uses else None,
        spec.retry_as if spec.workflow_id is None else None,  # its successors wait for this job: it is retried in place
        spec.depth,
        spec.executor,
    )
    return _NO_OPTIONS if values == _NO_OPTIONS else values
