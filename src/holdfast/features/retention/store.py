"""Retention policies and usage in the database: port, shared reads and PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.retention.model import (
    COUNTS,
    GROUPS,
    IDLE,
    MILLION,
    PREVIEWED,
    By,
    OrphanedFile,
    Preview,
    Retention,
    RetentionRule,
    SweepResult,
    Usage,
)
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Row, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within

_SUMMED = (*COUNTS, "run_time", "wait_time", "cost")
_SUMS = ", ".join(f"sum(u.{name})" for name in _SUMMED)
# SQLite sums in 64 bits and fails on an overflow, so each number is bounded.
_BOUND = 10**15
_BOUNDED_SUMS = ", ".join(f"sum(max(-{_BOUND}, min({_BOUND}, u.{name})))" for name in _SUMMED)


class RetentionReads(Reader):
    @flow(writes=False)
    def list(self, tenant: str) -> Steps[list[Retention]]:
        """The policies of this tenant and those of every tenant, which apply to it too."""
        text = (
            f"select {Record.columns(Retention, 'r.')} from {{retention}} r"
            " where :tenant = '*' or r.tenant = :tenant or r.tenant = '*' order by r.tenant, r.kind, r.state"
        )
        return (yield from self._records(Retention, tenant, text))


class UsageReads(Reader):
    @flow(writes=False)
    def list(
        self,
        by: Sequence[By],
        tenant: str,
        since: date | None = None,
        until: date | None = None,
        kind: str | None = None,
    ) -> Steps[list[Usage]]:
        params: dict[str, Any] = {}
        conditions = [within(tenant, "u.tenant")]
        for name, condition, value in (
            ("since", "u.day >= :since", since),
            ("until", "u.day <= :until", until),
            ("kind", "u.kind = :kind", kind),
        ):
            if value is not None:
                conditions.append(condition)
                params[name] = value.isoformat() if isinstance(value, date) else value
        groups = ", ".join(f"u.{group}" for group in by)
        columns = ", ".join(f"u.{group}" if group in by else "null" for group in GROUPS)
        grouping = f" group by {groups} order by {groups}" if by else " having count(*) > 0"
        sums = _SUMS if self.dialect.percent else _BOUNDED_SUMS
        text = f"select {columns}, {sums} from {{usage}} u where {' and '.join(conditions)}{grouping}"
        rows = yield from self._query(tenant, text, **params)
        return [_usage(row) for row in rows]


def _usage(row: Row) -> Usage:
    tenant, kind, day, *sums = row
    counts, times = sums[: len(COUNTS)], sums[len(COUNTS) :]
    try:
        at = date.fromisoformat(day) if isinstance(day, str) else day
    except ValueError:
        at = date.min
    return Usage(tenant, kind, at, *map(int, counts), *(int(micros) / MILLION for micros in times))


class PostgresRetention(Calls, RetentionReads):
    @flow(single=True)
    def remove(self, kind: str, state: str, actor: str, tenant: str) -> Steps[bool]:
        return (yield from self._flag("delete_retention", "%s, %s, %s, %s", kind, state, actor, tenant))

    @flow(single=True)
    def preview(self, tenant: str, most: int = PREVIEWED) -> Steps[list[Preview]]:
        return (yield from self._rows_as(Preview, self._call("preview_retention", "%s, %s", most, tenant)))

    @flow(single=True)
    def sweep(self, want: int = 200, look: int = 2000, tenant: str = EVERY_TENANT) -> Steps[SweepResult]:
        """Process one slice of the due pass: read ``look`` jobs, remove up to ``want``. ``IDLE`` if none is due."""
        rows = yield self._call("sweep_retention", "%s, %s, %s", want, look, tenant)
        return SweepResult(*rows[0]) if rows else IDLE

    @flow(single=True)
    def orphans(
        self, want: int = 100, tenant: str = EVERY_TENANT, host: str | None = None, stored: bool = True
    ) -> Steps[list[OrphanedFile]]:
        """Orphaned files that the caller can reach: those in the artifact store (``stored``) and those on its ``host``.
        The caller deletes them; they are returned to no other caller for ten minutes."""
        rows = yield self._call("orphans", "%s, %s, %s::text, %s", want, tenant, host, stored)
        return [OrphanedFile(job_tenant, str(job_id), ref) for job_tenant, job_id, ref in rows]

    @flow(single=True)
    def forget_orphans(self, refs: Sequence[str], tenant: str = EVERY_TENANT) -> Steps[int]:
        """Remove the records of files that were deleted. Returns how many there were."""
        return (yield from self._number("forget_orphans", "%s::text[], %s", list(refs), tenant))

    @flow(single=True)
    def find_orphans(self, files: Sequence[OrphanedFile], tenant: str = EVERY_TENANT) -> Steps[int]:
        """Of these files in the artifact store, record those that belong to no job or to a cleaned one and are older
        than a week. Returns how many are new."""
        lists = ([file.tenant for file in files], [file.job_id for file in files], [file.ref for file in files])
        return (yield from self._number("find_orphans", "%s::text[], %s::uuid[], %s::text[], %s", *lists, tenant))

    @flow(single=True)
    def set(self, rule: RetentionRule, actor: str, tenant: str) -> Steps[Retention]:
        """Set or replace a policy. A declared policy does not replace an operator's."""
        ages = (rule.clean_after, rule.purge_after)
        if rule.declared:
            params = "%s, %s::float8, %s::float8, %s, %s"
            rows = yield self._call("declare_retention", params, rule.kind, *ages, actor, tenant)
        else:
            params = "%s, %s, %s::float8, %s::float8, %s, %s, %s"
            rows = yield self._call("set_retention", params, rule.kind, rule.state, *ages, rule.archive, actor, tenant)
        return Record.decoder(Retention, self.dialect.codec)(rows[0])


class PostgresUsage(Calls, UsageReads):
    @flow(single=True)
    def count(self, want: int = 2000, begin: bool = False) -> Steps[int]:
        """Add the next events of all tenants to the sums. Returns how many. Nothing is counted before a call with
        ``begin``."""
        return (yield from self._number("count_usage", "%s, %s", want, begin))
