"""Retention and usage; the functions are in ``code/53_bookkeeping``, ``54_retention`` and ``55_usage``."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.retention.model import IDLE, Keeping, Preview, Retention, Swept
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.port.retention import PREVIEWED, Leftover
from holdfast.stores.postgres.base import Calls


class RetentionVerbs(Calls, Reader):
    @flow(single=True)
    def set_retention(self, keeping: Keeping, actor: str, tenant: str) -> Steps[Retention]:
        ages = (keeping.clean_after, keeping.purge_after, actor, tenant)
        if keeping.declared:
            rows = yield self._call("declare_retention", "%s, %s::float8, %s::float8, %s, %s", keeping.kind, *ages)
        else:
            facts = (keeping.kind, keeping.state, *ages)
            rows = yield self._call("set_retention", "%s, %s, %s::float8, %s::float8, %s, %s", *facts)
        return Record.decoder(Retention, self.dialect.codec)(rows[0])

    @flow(single=True)
    def delete_retention(self, kind: str, state: str, actor: str, tenant: str) -> Steps[bool]:
        rows = yield self._call("delete_retention", "%s, %s, %s, %s", kind, state, actor, tenant)
        return bool(rows[0][0])

    @flow(single=True)
    def preview_retention(self, tenant: str, most: int = PREVIEWED) -> Steps[list[Preview]]:
        rows = yield self._call("preview_retention", "%s, %s", most, tenant)
        decode = Record.decoder(Preview, self.dialect.codec)
        return [decode(row) for row in rows]

    @flow(single=True)
    def sweep_retention(self, want: int = 200, look: int = 2000, tenant: str = EVERY_TENANT) -> Steps[Swept]:
        rows = yield self._call("sweep_retention", "%s, %s, %s", want, look, tenant)
        return Swept(*rows[0]) if rows else IDLE

    @flow(single=True)
    def leftovers(self, want: int = 100, tenant: str = EVERY_TENANT) -> Steps[list[Leftover]]:
        rows = yield self._call("leftovers", "%s, %s", want, tenant)
        return [Leftover(whose, str(job_id), ref) for whose, job_id, ref in rows]

    @flow(single=True)
    def forget_leftovers(self, refs: Sequence[str], tenant: str = EVERY_TENANT) -> Steps[int]:
        rows = yield self._call("forget_leftovers", "%s::text[], %s", list(refs), tenant)
        return int(rows[0][0])

    @flow(single=True)
    def find_leftovers(self, found: Sequence[Leftover], tenant: str = EVERY_TENANT) -> Steps[int]:
        lists = ([each.tenant for each in found], [each.job_id for each in found], [each.ref for each in found])
        rows = yield self._call("find_leftovers", "%s::text[], %s::uuid[], %s::text[], %s", *lists, tenant)
        return int(rows[0][0])

    @flow(single=True)
    def count_usage(self, want: int = 2000, begin: bool = False) -> Steps[int]:
        rows = yield self._call("count_usage", "%s, %s", want, begin)
        return int(rows[0][0])
