"""Rules for payloads (DP-4): set and delete them, judge what is about to be enqueued; and seal anew what is sealed."""

from __future__ import annotations

import json
from collections.abc import Sequence

from holdfast.engine.job import JobSpec
from holdfast.features.audit.model import content_digest
from holdfast.features.payloads.model import Effective, PayloadRule, RuleDraft, effective
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.port.payloads import SealedJob, SealedPart
from holdfast.stores.sqlite.base import any_tenant, note_action, sign, unsign
from holdfast.stores.sqlite.codec import SqliteCodec

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
# It goes when no job names it any more: a retry that is a job of its own may.
_LEAVE = (
    "INSERT INTO leftover (tenant, ref, job_id, at, again_at)"
    " SELECT :tenant, o.ref, substr(o.ref, -101, 36), :now, :now"
    " FROM (SELECT json_extract(:was, '$.\"$holdfast\".stored') AS ref) o WHERE o.ref IS NOT NULL"
    " ON CONFLICT DO NOTHING"
)
_RESEAL = "UPDATE job SET payload = :becomes WHERE id = :id"
_RESEAL_RESULT = (
    "UPDATE result SET value = :becomes, ref = CASE WHEN ref LIKE 'artifact://%'"
    " THEN coalesce(json_extract(:becomes, '$.\"$holdfast\".stored'), ref) ELSE ref END"
    " WHERE job_id = :id AND value = :was AND (:any OR tenant = :tenant)"
    f" AND {_KEY.format('value')} IS NOT NULL AND {_KEY.format(':becomes')} IS NOT NULL RETURNING tenant, ref"
)
_SEALED_PARTS = (
    "SELECT job_id, tenant, what, place, value FROM ("
    " SELECT job_id, tenant, 'checkpoint' AS what, name AS place, value FROM checkpoint"
    " WHERE job_id >= :job AND {key} <> :but"
    " UNION ALL SELECT job_id, tenant, 'step', CAST(n AS TEXT), value FROM step"
    " WHERE job_id >= :job AND {key} <> :but AND kind = 'step')"
    " WHERE (:any OR tenant = :tenant) AND (job_id, what, place) > (:job, :what, :place)"
    " ORDER BY job_id, what, place LIMIT :want"
).format(key=_KEY.format("value"))
_SAME = (
    "value = :was AND job_id = :job AND (:any OR tenant = :tenant)"
    f" AND {_KEY.format(':was')} <> {_KEY.format(':becomes')}"
)
_RESEAL_STEP = f"UPDATE step SET value = :becomes WHERE {_SAME} AND n = CAST(:place AS INTEGER) RETURNING 1"
_RESEAL_CHECKPOINT = f"UPDATE checkpoint SET value = :becomes WHERE {_SAME} AND name = :place RETURNING 1"

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
            told = {"payload": content_digest("payload", job_id, becomes).hex()}
        else:
            rows = yield Statement(_RESEAL_RESULT, names | scope)
            told = {"result": content_digest("result", job_id, becomes, rows[0][1]).hex()} if rows else {}
        if rows:
            # The seals over the ledger have the digest of what was there before.
            yield from note_action(rows[0][0], "reseal", "job", job_id, json.dumps(told))
            yield Statement(_LEAVE, names | {"tenant": rows[0][0]})
        yield from unsign()
        return bool(rows)

    @flow(writes=False)
    def sealed_parts(self, but: str, after: SealedPart | None, want: int, tenant: str) -> Steps[list[SealedPart]]:
        job, what, place = ("", "", "") if after is None else (after.job_id, after.what, after.place)
        params = {"but": but, "job": job, "what": what, "place": place, "want": want}
        rows = yield Statement(_SEALED_PARTS, params | {"tenant": tenant, "any": any_tenant(tenant)})
        return [SealedPart(*row) for row in rows]

    @flow()
    def reseal_part(self, part: SealedPart, becomes: str, actor: str, tenant: str) -> Steps[bool]:
        yield from sign(actor)
        names = {"job": part.job_id, "place": part.place, "was": part.text, "becomes": becomes}
        statement = _RESEAL_STEP if part.what == "step" else _RESEAL_CHECKPOINT
        rows = yield Statement(statement, names | {"any": any_tenant(tenant), "tenant": tenant})
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
