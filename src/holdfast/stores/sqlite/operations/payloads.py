"""Rules for payloads (DP-4): set and delete them, judge what is about to be enqueued; and seal anew what is sealed."""

from __future__ import annotations

import json
from collections.abc import Sequence

from holdfast.domain.job import JobSpec
from holdfast.domain.rules import Effective, PayloadRule, RuleDraft, effective
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.port.payloads import SealedJob
from holdfast.stores.sqlite.codec import SqliteCodec
from holdfast.stores.sqlite.operations.writer import any_tenant, sign, unsign

_COLUMNS = Record.columns(PayloadRule)
_PUT = (
    f"INSERT INTO payload_rule ({_COLUMNS})"
    " VALUES (:tenant, :kind, :declared_by, :signal_only, :forbidden, :classification, :max_bytes, :max_result_bytes,"
    " :store, :actor, :now, :now) ON CONFLICT DO UPDATE SET signal_only = excluded.signal_only,"
    " forbidden = excluded.forbidden, classification = excluded.classification, max_bytes = excluded.max_bytes,"
    " max_result_bytes = excluded.max_result_bytes, store = excluded.store, set_by = excluded.set_by,"
    " updated_at = excluded.updated_at WHERE (payload_rule.signal_only, payload_rule.forbidden,"
    " payload_rule.classification, payload_rule.max_bytes, payload_rule.max_result_bytes, payload_rule.store)"
    " IS NOT (excluded.signal_only, excluded.forbidden, excluded.classification, excluded.max_bytes,"
    " excluded.max_result_bytes, excluded.store)"
)
_ONE = f"SELECT {_COLUMNS} FROM payload_rule WHERE tenant = ? AND kind = ? AND declared_by = ?"
_DELETE = "DELETE FROM payload_rule WHERE tenant = ? AND kind = ? AND declared_by = ? RETURNING 1"
_UNDECLARE = (
    "DELETE FROM payload_rule WHERE tenant = ? AND declared_by = ? AND kind NOT IN (SELECT value FROM json_each(?))"
)
_RULED = Statement("SELECT ruled FROM dispatch WHERE id = 1")
_RULES = f"SELECT {_COLUMNS} FROM payload_rule WHERE tenant = ? OR tenant = '*'"
_KEY = "json_extract({}, '$.\"$holdfast\".key')"
_SEALED = (
    "SELECT j.id, j.tenant, CASE WHEN {payload} <> :but THEN j.payload END, CASE WHEN {result} <> :but THEN r.value END"
    " FROM job j LEFT JOIN result r ON r.job_id = j.id WHERE (:any OR j.tenant = :tenant) AND j.id > :after"
    " AND ({payload} <> :but OR {result} <> :but) ORDER BY j.id LIMIT :want"
).format(payload=_KEY.format("j.payload"), result=_KEY.format("r.value"))
_STILL = "SELECT tenant FROM job WHERE id = :id AND payload = :was AND (:any OR tenant = :tenant)"
_WRITE_DOWN = (
    "INSERT INTO resealed (job_id, tenant, n, from_key, to_key, actor, at)"
    " SELECT :id, :tenant, 1 + (SELECT count(*) FROM resealed WHERE job_id = :id),"
    f" {_KEY.format(':was')}, {_KEY.format(':becomes')}, :actor, :now"
)
_RESEAL = "UPDATE job SET payload = :becomes WHERE id = :id"
_RESEAL_RESULT = (
    "UPDATE result SET value = :becomes, ref = CASE WHEN ref LIKE 'artifact://%'"
    " THEN coalesce(json_extract(:becomes, '$.\"$holdfast\".stored'), ref) ELSE ref END"
    " WHERE job_id = :id AND value = :was AND (:any OR tenant = :tenant)"
    f" AND {_KEY.format('value')} IS NOT NULL AND {_KEY.format(':becomes')} IS NOT NULL RETURNING 1"
)

_decode = Record.decoder(PayloadRule, SqliteCodec())


class PayloadVerbs:
    @flow()
    def set_payload_rule(self, draft: RuleDraft, actor: str, tenant: str) -> Steps[PayloadRule]:
        now = yield from sign(actor)
        yield _put(draft, "", actor, tenant, now)
        rows = yield Statement(_ONE, (tenant, draft.kind, ""))
        yield from unsign()
        return _decode(rows[0])

    @flow()
    def delete_payload_rule(self, kind: str, declared_by: str, actor: str, tenant: str) -> Steps[bool]:
        yield from sign(actor)
        rows = yield Statement(_DELETE, (tenant, kind, declared_by))
        yield from unsign()
        return bool(rows)

    @flow()
    def declare_rules(self, program: str, drafts: Sequence[RuleDraft], actor: str, tenant: str) -> Steps[int]:
        now = yield from sign(actor)
        yield Statement(_UNDECLARE, (tenant, program, json.dumps([draft.kind for draft in drafts])))
        for draft in drafts:
            yield _put(draft, program, actor, tenant, now)
        yield from unsign()
        return len(drafts)

    @flow(writes=False)
    def sealed_payloads(self, but: str, after: str | None, want: int, tenant: str) -> Steps[list[SealedJob]]:
        params = {"but": but, "after": after or "", "want": want, "tenant": tenant, "any": any_tenant(tenant)}
        rows = yield Statement(_SEALED, params)
        return [SealedJob(*row) for row in rows]

    @flow()
    def reseal(self, job_id: str, was: str, becomes: str, actor: str, tenant: str) -> Steps[bool]:
        now = yield from sign(actor)
        names = {"id": job_id, "was": was, "becomes": becomes, "actor": actor, "now": now}
        scope = {"any": any_tenant(tenant), "tenant": tenant}
        rows = yield Statement(_STILL, names | scope)
        if rows:
            yield Statement(_WRITE_DOWN, names | {"tenant": rows[0][0]})
            yield Statement(_RESEAL, names)
        else:
            rows = yield Statement(_RESEAL_RESULT, names | scope)
        yield from unsign()
        return bool(rows)


def _put(draft: RuleDraft, declared_by: str, actor: str, tenant: str, now: int) -> Statement:
    return Statement(
        _PUT,
        {
            "tenant": tenant,
            "kind": draft.kind,
            "declared_by": declared_by,
            "signal_only": int(draft.signal_only),
            "forbidden": json.dumps(draft.forbidden, ensure_ascii=False, separators=(",", ":")),
            "classification": draft.classification,
            "max_bytes": draft.max_bytes,
            "max_result_bytes": draft.max_result_bytes,
            "store": None if draft.store is None else int(draft.store),
            "actor": actor,
            "now": now,
        },
    )


def is_ruled() -> Steps[bool]:
    rows = yield _RULED
    return bool(rows[0][0])


def judge_payloads(specs: Sequence[JobSpec], tenant: str) -> Steps[None]:
    """Refuse the batch for the first payload that a rule objects to. Only called where there is a rule at all."""
    rows = yield Statement(_RULES, (tenant,))
    rules = [_decode(row) for row in rows]
    known: dict[str, Effective] = {}
    for spec in specs if rules else ():
        if spec.kind not in known:
            known[spec.kind] = effective(rules, tenant, spec.kind)
        refusal = known[spec.kind].objection(spec.kind, spec.payload)
        if refusal is not None:
            raise refusal
