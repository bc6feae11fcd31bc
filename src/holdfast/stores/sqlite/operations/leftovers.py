"""What jobs leave behind in the artifact store (DP-16): see the PostgreSQL store's code/54_leftovers.sql."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.job import EVERY_TENANT
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.port.retention import Leftover
from holdfast.stores.sqlite.base import any_tenant, ids_json, sign, unsign
from holdfast.stores.sqlite.operations.bookkeeping import DAY, first_id
from holdfast.stores.sqlite.operations.switches import duty

TEN_MINUTES = 600_000_000

_PACKED = "LIKE '{\"$holdfast\":%'"
_STORED = "json_extract({text}, '$.\"$holdfast\".stored')"
# What one notes of another's is the other's to leave.
_LEAVE = (
    "INSERT INTO leftover (tenant, ref, job_id, at, again_at) SELECT j.tenant, f.ref, j.id, p.now, p.now"
    " FROM job j, present p, ("
    f"SELECT id AS job_id, {_STORED.format(text='payload')} AS ref FROM job"
    f" WHERE id IN (SELECT value FROM json_each(:ids)) AND payload {_PACKED}"
    " UNION SELECT job_id, ref FROM result WHERE job_id IN (SELECT value FROM json_each(:ids))"
    f" UNION SELECT job_id, {_STORED.format(text='value')} FROM result"
    f" WHERE job_id IN (SELECT value FROM json_each(:ids)) AND value {_PACKED}"
    " UNION SELECT job_id, ref FROM artifact WHERE job_id IN (SELECT value FROM json_each(:ids))) f"
    " WHERE j.id = f.job_id AND f.ref LIKE 'artifact://%/' || j.id || '/%' ON CONFLICT DO NOTHING"
)
_ANY_DUE = "SELECT 1 FROM leftover WHERE again_at <= (SELECT now FROM present) AND (:any OR tenant = :tenant) LIMIT 1"
_DUE = (
    "SELECT tenant, job_id, ref FROM leftover WHERE again_at <= :now AND (:any OR tenant = :tenant)"
    " ORDER BY again_at LIMIT :want"
)
_PUT_OFF = "UPDATE leftover SET again_at = ?1 + max(?2, (?1 - at) / 4) WHERE tenant = ?3 AND ref = ?4"
# A retry that is a job of its own has the payload of the first try.
_NAMED = (
    "WITH RECURSIVE tries(id) AS (SELECT :job UNION SELECT j.id FROM tries t JOIN job j ON j.retry_of = t.id"
    " WHERE j.retry_of IS NOT NULL)"
    " SELECT 1 FROM tries t JOIN job j ON j.id = t.id WHERE instr(j.payload, :ref)"
    " UNION ALL SELECT 1 FROM result WHERE job_id = :job AND (ref = :ref OR instr(value, :ref))"
    " UNION ALL SELECT 1 FROM artifact WHERE job_id = :job AND ref = :ref LIMIT 1"
)
_FORGET = (
    "DELETE FROM leftover WHERE ref IN (SELECT value FROM json_each(:refs)) AND (:any OR tenant = :tenant) RETURNING 1"
)
_FIND = (
    "INSERT INTO leftover (tenant, ref, job_id, at, again_at) SELECT :whose, :ref, :job, :now, :now"
    " WHERE (:any OR :whose = :tenant) AND :job < :first"
    " AND NOT EXISTS (SELECT 1 FROM job_state s WHERE s.id = :job AND s.state <> 'cleaned')"
    " ON CONFLICT DO NOTHING RETURNING 1"
)


def _none_due(_: object, want: int = 100, tenant: str = EVERY_TENANT) -> Steps[list[Leftover] | None]:
    """A duty that writes for nothing would rouse everybody."""
    rows = yield Statement(_ANY_DUE, {"any": any_tenant(tenant), "tenant": tenant})
    return None if rows else []


class LeftoverVerbs:
    @duty([], _none_due)
    def leftovers(self, want: int = 100, tenant: str = EVERY_TENANT) -> Steps[list[Leftover]]:
        now = yield from sign("retention")
        rows = yield Statement(_DUE, {"now": now, "any": any_tenant(tenant), "tenant": tenant, "want": want})
        found = [Leftover(*row) for row in rows]
        free: list[Leftover] = []
        for each in found:
            named = yield Statement(_NAMED, {"job": each.job_id, "ref": each.ref})
            free += [] if named else [each]
        if found:
            yield Statement(_PUT_OFF, [(now, TEN_MINUTES, each.tenant, each.ref) for each in found], many=True)
        yield from unsign()
        return free

    @flow()
    def forget_leftovers(self, refs: Sequence[str], tenant: str = EVERY_TENANT) -> Steps[int]:
        rows = yield Statement(_FORGET, {"refs": ids_json(refs), "any": any_tenant(tenant), "tenant": tenant})
        return len(rows)

    @flow()
    def find_leftovers(self, found: Sequence[Leftover], tenant: str = EVERY_TENANT) -> Steps[int]:
        now = yield from sign(None)
        scope = {"any": any_tenant(tenant), "tenant": tenant, "now": now, "first": first_id(now - 7 * DAY)}
        count = 0
        for each in found:
            rows = yield Statement(_FIND, {**scope, "whose": each.tenant, "ref": each.ref, "job": each.job_id})
            count += len(rows)
        yield from unsign()
        return count


def leave_behind(ids: str) -> Steps[None]:
    """Before these jobs (as JSON) are emptied, inside a flow that has signed."""
    yield Statement(_LEAVE, {"ids": ids})
