"""Looking at policies of retention, and at what was used."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

from holdfast.features.retention.model import COUNTS, GROUPS, MILLION, By, Retention, Usage
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Row, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.reader import within

_SUMMED = (*COUNTS, "run_time", "wait_time", "cost")
_SUMS = ", ".join(f"sum(u.{name})" for name in _SUMMED)
# SQLite adds up in 64 bits, and fails where that is not enough: no number counts for more than this.
_MOST = 10**15
_BOUNDED_SUMS = ", ".join(f"sum(max(-{_MOST}, min({_MOST}, u.{name})))" for name in _SUMMED)


class RetentionReads(Reader):
    @flow(writes=False)
    def retentions(self, tenant: str) -> Steps[list[Retention]]:
        """Those of this tenant, and those of every tenant: they hold for it, too."""
        text = (
            f"select {Record.columns(Retention, 'r.')} from {{retention}} r"
            " where :tenant = '*' or r.tenant = :tenant or r.tenant = '*' order by r.tenant, r.kind, r.state"
        )
        rows = yield from self._ask(tenant, text)
        decode = Record.decoder(Retention, self.dialect.codec)
        return [decode(row) for row in rows]

    @flow(writes=False)
    def usage(
        self,
        by: Sequence[By],
        tenant: str,
        since: date | None = None,
        until: date | None = None,
        kind: str | None = None,
    ) -> Steps[list[Usage]]:
        params: dict[str, Any] = {}
        wanted = [within(tenant, "u.tenant")]
        for name, condition, value in (
            ("since", "u.day >= :since", since),
            ("until", "u.day <= :until", until),
            ("kind", "u.kind = :kind", kind),
        ):
            if value is not None:
                wanted.append(condition)
                params[name] = value.isoformat() if isinstance(value, date) else value
        groups = ", ".join(f"u.{group}" for group in by)
        chosen = ", ".join(f"u.{group}" if group in by else "null" for group in GROUPS)
        ending = f" group by {groups} order by {groups}" if by else " having count(*) > 0"
        sums = _SUMS if self.dialect.percent else _BOUNDED_SUMS
        text = f"select {chosen}, {sums} from {{usage}} u where {' and '.join(wanted)}{ending}"
        rows = yield from self._ask(tenant, text, **params)
        return [_usage(row) for row in rows]


def _usage(row: Row) -> Usage:
    tenant, kind, day, *sums = row
    counts, times = sums[: len(COUNTS)], sums[len(COUNTS) :]
    try:
        at = date.fromisoformat(day) if isinstance(day, str) else day
    except ValueError:
        at = date.min
    return Usage(tenant, kind, at, *map(int, counts), *(int(each) / MILLION for each in times))
