"""The subjects of the group floor: the life of jobs in batches, by plain SQL on bare copies of the tables, and by our
operations.

The bare copies have the same columns and indexes, but no triggers, checks, ledger or row-level security. Both write the
same values, read the same fields of each job and make every commit durable.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
import uuid
from pathlib import Path
from typing import Any, Protocol

import psycopg

from holdfast.engine.ids import IdMaker
from holdfast.engine.job import EVERY_TENANT, JobSpec
from holdfast.engine.settlement import Settlement
from holdfast.features.assembly import Store
from holdfast.stores.requests import ClaimRequest

new_ids = IdMaker(time.time_ns, os.urandom)
PAYLOAD = '{"to":"someone@example.org","invoice":7}'


class Subject(Protocol):
    def enqueue(self, count: int, batch: int) -> None: ...
    def drain(self, count: int, batch: int) -> None: ...


class Ours:
    """The operations of a store, with ledger and checks."""

    def __init__(self, store: Store, tenant: str = "bench") -> None:
        self.store = store
        self.tenant = tenant
        self.lease = store.run(store.leases.open("bench", 3600, EVERY_TENANT)).id

    def enqueue(self, count: int, batch: int) -> None:
        for _ in range(count // batch):
            specs = [
                JobSpec(id=job_id, kind="noop", payload=PAYLOAD, enqueued_by="bench", source_system="bench")
                for job_id in new_ids.many(batch)
            ]
            self.store.run(self.store.jobs.enqueue(specs, self.tenant))

    def drain(self, count: int, batch: int) -> None:
        store, left = self.store, count
        while left > 0:
            claims = self.store.run(store.leases.claim(ClaimRequest(lease=self.lease, queues=("default",), want=batch)))
            ended = [Settlement(claim.id, claim.attempt, "succeeded") for claim in claims]
            stale = self.store.run(store.leases.settle(self.lease, ended, EVERY_TENANT))
            if stale or not claims:
                raise RuntimeError(f"{len(stale)} stale, {len(claims)} claimed: the figure would mean nothing")
            left -= len(claims)


class PlainPostgres:
    """The same by plain statements, with a commit per batch."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.lease = str(uuid.uuid4())
        for statement in (
            "create schema plain",
            "create table plain.job (like holdfast.job including indexes)",
            "create table plain.job_state (like holdfast.job_state including indexes)",
            "create sequence plain.position_seq",
        ):
            self.connection.execute(statement)

    def enqueue(self, count: int, batch: int) -> None:
        for _ in range(count // batch):
            ids = new_ids.many(batch)
            with self.connection.transaction():
                self.connection.execute(
                    "insert into plain.job (id, tenant, kind, queue, payload, priority, max_attempts, max_crashes,"
                    " tags, enqueued_by, source_system, created_at)"
                    " select i, 'bench', 'noop', 'default', p::json, 0, 4, 3, '{}', 'bench', 'bench', clock_timestamp()"
                    " from unnest(%s::uuid[], %s::text[]) x(i, p)",
                    (ids, [PAYLOAD] * batch),
                )
                self.connection.execute(
                    "insert into plain.job_state (id, tenant, kind, queue, state, priority, position, attempt, retries,"
                    " crashes, max_attempts, max_crashes)"
                    " select i, 'bench', 'noop', 'default', 'queued', 0, nextval('plain.position_seq') * 100,"
                    " 0, 0, 0, 4, 3 from unnest(%s::uuid[]) x(i)",
                    (ids,),
                )

    def drain(self, count: int, batch: int) -> None:
        left = count
        while left > 0:
            rows = self.connection.execute(
                "with picked as materialized (select id from plain.job_state where queue = 'default'"
                " and state = 'queued' and due_at is null order by priority desc, position, id limit %s"
                " for update skip locked), taken as (update plain.job_state s set state = 'in_progress', lease = %s,"
                " attempt = attempt + 1, started_at = clock_timestamp() from picked where s.id = picked.id"
                " returning s.id, s.attempt, s.retries, s.crashes, s.max_attempts, s.priority, s.position)"
                " select j.id::text, t.attempt, j.tenant, j.kind, j.queue, j.payload::text, t.retries, t.crashes,"
                " t.max_attempts, j.max_crashes, j.backoff, t.priority, j.deadline_at, j.created_at, j.correlation_id,"
                " j.parent_id, j.workflow_id, j.agent, j.tags from taken t join plain.job j on j.id = t.id"
                " order by t.priority desc, t.position, t.id",
                (batch, self.lease),
            ).fetchall()
            self.connection.execute(
                "update plain.job_state s set state = 'succeeded', lease = null, settled_by = s.lease,"
                " finished_at = clock_timestamp(), due_at = null, error_code = null, error_message = null, note = null"
                " from unnest(%s::uuid[], %s::int[]) o(id, attempt) where s.id = o.id and s.attempt = o.attempt"
                " and s.lease is not distinct from %s::uuid and s.state = 'in_progress'",
                ([row[0] for row in rows], [row[1] for row in rows], self.lease),
            )
            left -= len(rows)


class PlainSqlite:
    def __init__(self, path: Path, pattern: sqlite3.Connection) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        self.lease = str(uuid.uuid4())
        wanted = (
            "SELECT sql FROM sqlite_master WHERE tbl_name IN ('holdfast_job', 'holdfast_job_state') AND type IN"
            " ('table', 'index')"
        )
        for (sql,) in pattern.execute(wanted).fetchall():
            if sql is not None:
                self.connection.execute(bare(sql))

    def enqueue(self, count: int, batch: int) -> None:
        for _ in range(count // batch):
            now = time.time_ns() // 1000
            first: Any = self.connection.execute("SELECT coalesce(max(n), 0) FROM holdfast_job").fetchone()[0]
            ids = new_ids.many(batch)
            self.connection.execute("BEGIN IMMEDIATE")
            self.connection.executemany(
                "INSERT INTO holdfast_job (n, id, tenant, kind, payload, enqueued_by, source_system, created_at)"
                " VALUES (?, ?, 'bench', 'noop', ?, 'bench', 'bench', ?)",
                [(first + i, job_id, PAYLOAD, now) for i, job_id in enumerate(ids, 1)],
            )
            self.connection.executemany(
                "INSERT INTO holdfast_job_state"
                " (n, id, tenant, kind, queue, state, priority, position, max_attempts, max_crashes)"
                " VALUES (?, ?, 'bench', 'noop', 'default', 'queued', 0, ?, 4, 3)",
                [(first + i, job_id, (first + i) * 100) for i, job_id in enumerate(ids, 1)],
            )
            self.connection.execute("COMMIT")

    def drain(self, count: int, batch: int) -> None:
        left = count
        while left > 0:
            self.connection.execute("BEGIN IMMEDIATE")
            rows = self.connection.execute(
                "SELECT s.n, s.id, s.attempt, j.tenant, j.kind, j.queue, j.payload, s.retries, s.crashes,"
                " s.max_attempts, s.max_crashes, j.backoff, s.priority, j.deadline_at, j.created_at,"
                " j.correlation_id, j.parent_id, j.workflow_id, j.agent, j.tags"
                " FROM holdfast_job_state s JOIN holdfast_job j ON j.n = s.n"
                " WHERE s.queue = 'default' AND s.state = 'queued' AND s.due_at IS NULL"
                " ORDER BY s.priority DESC, s.position LIMIT ?",
                (batch,),
            ).fetchall()
            self.connection.executemany(
                "UPDATE holdfast_job_state SET state = 'in_progress', lease = ?, attempt = attempt + 1, started_at = ?"
                " WHERE n = ?",
                [(self.lease, time.time_ns() // 1000, row[0]) for row in rows],
            )
            self.connection.execute("COMMIT")
            self.connection.execute("BEGIN IMMEDIATE")
            self.connection.executemany(
                "UPDATE holdfast_job_state SET state = 'succeeded', lease = NULL, settled_by = lease, finished_at = ?,"
                " due_at = NULL, error_code = NULL, error_message = NULL, note = NULL"
                " WHERE id = ? AND attempt = ? AND lease = ? AND state = 'in_progress'",
                [(time.time_ns() // 1000, row[1], row[2] + 1, self.lease) for row in rows],
            )
            self.connection.execute("COMMIT")
            left -= len(rows)


def bare(sql: str) -> str:
    """Return a table's definition without its checks: split at the commas of the outermost parentheses."""
    text = re.sub(r"--[^\n]*", "", sql)
    start, end = text.index("("), text.rindex(")")
    depth, current, parts = 0, "", []
    for char in text[start + 1 : end]:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += char
    kept = [part for part in [*parts, current] if not part.strip().upper().startswith("CONSTRAINT")]
    return text[: start + 1] + ",".join(kept) + text[end:]
