"""Payload rules and the re-encryption of stored values in the database: port, shared reads, PostgreSQL and SQLite."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.engine.payload import canonical
from holdfast.features.audit.model import content_digest
from holdfast.features.payloads.model import SETTINGS, PayloadRule, RuleDraft
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, begin_write, end_write, note_action, upsert, write
from holdfast.stores.sqlite.codec import SqliteCodec


@dataclass(frozen=True, slots=True)
class SealedJob:
    """A job whose payload or result (JSON text) is encrypted with an old key; None for a value that is not."""

    id: str
    tenant: str
    payload: str | None
    result: str | None


@dataclass(frozen=True, slots=True)
class SealedPart:
    """A value that is encrypted with an old key: the result of a step (``place`` is its number), a checkpoint (its
    name), log lines (``attempt/part``) or a replaced payload (its last attempt)."""

    job_id: str
    tenant: str
    what: Literal["checkpoint", "step", "log", "payload"]
    place: str
    text: str


class PayloadRuleReads(Reader):
    @flow(writes=False)
    def list(self, tenant: str) -> Steps[list[PayloadRule]]:
        """The rules of the tenant and those of every tenant."""
        text = (
            f"select {Record.columns(PayloadRule, 'r.')} from {{payload_rule}} r"
            " where :tenant = '*' or r.tenant = :tenant or r.tenant = '*' order by r.tenant, r.kind, r.declared_by"
        )
        return (yield from self._records(PayloadRule, tenant, text))


class PostgresPayloadRules(Calls, PayloadRuleReads):
    @flow(single=True)
    def remove(self, kind: str, declared_by: str, actor: str, tenant: str) -> Steps[bool]:
        return (yield from self._flag("remove_payload_rule", "%s, %s, %s, %s", kind, declared_by, actor, tenant))

    @flow(single=True)
    def declare(self, program: str, drafts: Sequence[RuleDraft], actor: str, tenant: str) -> Steps[int]:
        """Replace all rules that a program declares in its code. Rules that it no longer declares are deleted."""
        document = json.dumps([dataclasses.asdict(draft) for draft in drafts])
        return (
            yield from self._number("declare_payload_rules", "%s, %s::json, %s, %s", program, document, actor, tenant)
        )

    @flow(single=True)
    def sealed_payloads(self, but: str, after: str | None, want: int, tenant: str) -> Steps[list[SealedJob]]:
        """Jobs with values encrypted with another key than ``but``, by id, beginning after ``after``."""
        rows = yield self._call("sealed_payloads", "%s, %s::uuid, %s, %s", but, after, want, tenant)
        return [SealedJob(str(job_id), *rest) for job_id, *rest in rows]

    @flow(single=True)
    def reseal(self, job_id: str, was: str, becomes: str, actor: str, tenant: str) -> Steps[bool]:
        """Replace an encrypted payload or result with its re-encryption; False if the stored value has changed."""
        return (yield from self._flag("reseal", "%s::uuid, %s, %s, %s, %s", job_id, was, becomes, actor, tenant))

    @flow(single=True)
    def sealed_parts(self, but: str, after: SealedPart | None, want: int, tenant: str) -> Steps[list[SealedPart]]:
        """Checkpoints, step results, log lines and replaced payloads that are encrypted with another key than ``but``,
        in key order."""
        start = (None, None, None) if after is None else (after.job_id, after.what, after.place)
        rows = yield self._call("sealed_parts", "%s, %s::uuid, %s, %s, %s, %s", but, *start, want, tenant)
        return [SealedPart(str(job_id), *rest) for job_id, *rest in rows]

    @flow(single=True)
    def reseal_part(self, part: SealedPart, becomes: str, actor: str, tenant: str) -> Steps[bool]:
        """The same as ``reseal``, for one of these parts."""
        params = (part.job_id, part.what, part.place, part.text, becomes, actor, tenant)
        return (yield from self._flag("reseal_part", "%s::uuid, %s, %s, %s, %s, %s, %s", *params))

    @flow(single=True)
    def set(self, draft: RuleDraft, actor: str, tenant: str) -> Steps[PayloadRule]:
        """Set or replace an operator's rule."""
        settings = {name: value for name, value in dataclasses.asdict(draft).items() if name != "at_most_once"}
        given = _stored(settings) | {"forbidden": list(draft.forbidden), "actor": actor, "for_tenant": tenant}
        return (yield from self._rows_as(PayloadRule, self._call_with("set_payload_rule", given, _COLUMNS)))[0]


_PUT = upsert("holdfast_payload_rule", PayloadRule, "tenant kind declared_by created_at", compare=" ".join(SETTINGS))
_COLUMNS = Record.columns(PayloadRule)
_ONE = f"SELECT {_COLUMNS} FROM holdfast_payload_rule WHERE tenant = ? AND kind = ? AND declared_by = ?"
_DELETE = (
    "DELETE FROM holdfast_payload_rule WHERE tenant = :tenant AND kind = :kind AND declared_by = :program RETURNING 1"
)
_UNDECLARE = (
    "DELETE FROM holdfast_payload_rule WHERE tenant = ? AND declared_by = ? AND kind NOT IN (SELECT value FROM"
    " json_each(?))"
)
_KEY = "json_extract({}, '$.\"$holdfast\".key')"
_SEALED = (
    "SELECT j.id, j.tenant, CASE WHEN {payload} <> :but THEN j.payload END, CASE WHEN {result} <> :but THEN r.value END"
    " FROM holdfast_job j LEFT JOIN holdfast_result r ON r.job_id = j.id WHERE (:any OR j.tenant = :tenant) AND j.id"
    " > :after AND ({payload} <> :but OR {result} <> :but) ORDER BY j.id LIMIT :want"
).format(payload=_KEY.format("j.payload"), result=_KEY.format("r.value"))
_UNCHANGED = "SELECT tenant FROM holdfast_job WHERE id = :id AND payload = :was AND (:any OR tenant = :tenant)"
_RECORD = (
    "INSERT INTO holdfast_resealed (job_id, tenant, n, from_key, to_key, actor, at)"
    " SELECT :id, :tenant, 1 + (SELECT count(*) FROM holdfast_resealed WHERE job_id = :id),"
    f" {_KEY.format(':was')}, {_KEY.format(':becomes')}, :actor, :now"
)
# The old file becomes an orphaned file. It is deleted when no job refers to it any more: a retry as a new job may.
_ORPHAN_OLD_FILE = (
    "INSERT INTO holdfast_orphaned_file (tenant, ref, job_id, at, again_at)"
    " SELECT :tenant, o.ref, substr(o.ref, -101, 36), :now, :now"
    " FROM (SELECT json_extract(:was, '$.\"$holdfast\".stored') AS ref) o WHERE o.ref IS NOT NULL"
    " ON CONFLICT DO NOTHING"
)
_RESEAL = "UPDATE holdfast_job SET payload = :becomes WHERE id = :id"
_RESEAL_RESULT = (
    "UPDATE holdfast_result SET value = :becomes, ref = CASE WHEN ref LIKE 'artifact://%'"
    " THEN coalesce(json_extract(:becomes, '$.\"$holdfast\".stored'), ref) ELSE ref END"
    " WHERE job_id = :id AND value = :was AND (:any OR tenant = :tenant)"
    f" AND {_KEY.format('value')} IS NOT NULL AND {_KEY.format(':becomes')} IS NOT NULL RETURNING tenant, ref"
)
_SEALED_PARTS = (
    "SELECT job_id, tenant, what, place, value FROM ("
    " SELECT job_id, tenant, 'checkpoint' AS what, name AS place, value FROM holdfast_checkpoint"
    " WHERE job_id >= :job AND {key} <> :but"
    " UNION ALL SELECT job_id, tenant, 'step', CAST(n AS TEXT), value FROM holdfast_step"
    " WHERE job_id >= :job AND {key} <> :but AND kind = 'step'"
    " UNION ALL SELECT job_id, tenant, 'payload', CAST(attempt AS TEXT), payload FROM holdfast_replaced_payload"
    " WHERE job_id >= :job AND {payload_key} <> :but"
    " UNION ALL SELECT job_id, tenant, 'log', attempt || '/' || n, lines FROM holdfast_attempt_log"
    " WHERE job_id >= :job AND CASE WHEN lines LIKE '{{\"$holdfast\":%' THEN {log_key} <> :but END)"
    " WHERE (:any OR tenant = :tenant) AND (job_id, what, place) > (:job, :what, :place)"
    " ORDER BY job_id, what, place LIMIT :want"
).format(key=_KEY.format("value"), payload_key=_KEY.format("payload"), log_key=_KEY.format("lines"))
_SAME = (
    "value = :was AND job_id = :job AND (:any OR tenant = :tenant)"
    f" AND {_KEY.format(':was')} <> {_KEY.format(':becomes')}"
)
_RESEAL_STEP = f"UPDATE holdfast_step SET value = :becomes WHERE {_SAME} AND n = CAST(:place AS INTEGER) RETURNING 1"
_RESEAL_CHECKPOINT = f"UPDATE holdfast_checkpoint SET value = :becomes WHERE {_SAME} AND name = :place RETURNING 1"
_RESEAL_LOG = (
    "UPDATE holdfast_attempt_log SET lines = :becomes WHERE lines = :was AND job_id = :job AND attempt || '/' || n ="
    f" :place AND (:any OR tenant = :tenant) AND {_KEY.format(':was')} <> {_KEY.format(':becomes')} RETURNING 1"
)
_RESEAL_REPLACED = (
    "UPDATE holdfast_replaced_payload SET payload = :becomes WHERE payload = :was AND job_id = :job"
    " AND attempt = CAST(:place AS INTEGER) AND (:any OR tenant = :tenant) RETURNING 1"
)
_RESEAL_PART = {
    "step": _RESEAL_STEP,
    "checkpoint": _RESEAL_CHECKPOINT,
    "log": _RESEAL_LOG,
    "payload": _RESEAL_REPLACED,
}

_decode = Record.decoder(PayloadRule, SqliteCodec())


class SqlitePayloadRules(SqlitePart, PayloadRuleReads):
    @flow()
    def remove(self, kind: str, declared_by: str, actor: str, tenant: str) -> Steps[bool]:
        return bool((yield from write(actor, _DELETE, tenant=tenant, kind=kind, program=declared_by)))

    @flow()
    def declare(self, program: str, drafts: Sequence[RuleDraft], actor: str, tenant: str) -> Steps[int]:
        now = yield from begin_write(actor)
        yield Statement(_UNDECLARE, (tenant, program, json.dumps([draft.kind for draft in drafts])))
        for draft in drafts:
            yield _put(draft, program, actor, tenant, now)
        yield from end_write()
        return len(drafts)

    @flow(writes=False)
    def sealed_payloads(self, but: str, after: str | None, want: int, tenant: str) -> Steps[list[SealedJob]]:
        params = {"but": but, "after": after or "", "want": want, "tenant": tenant, "any": any_tenant(tenant)}
        rows = yield Statement(_SEALED, params)
        return [SealedJob(*row) for row in rows]

    @flow()
    def reseal(self, job_id: str, was: str, becomes: str, actor: str, tenant: str) -> Steps[bool]:
        now = yield from begin_write(actor)
        params = {"id": job_id, "was": was, "becomes": becomes, "actor": actor, "now": now}
        scope = {"any": any_tenant(tenant), "tenant": tenant}
        rows = yield Statement(_UNCHANGED, params | scope)
        if rows:
            yield Statement(_RECORD, params | {"tenant": rows[0][0]})
            yield Statement(_RESEAL, params)
            digests = {"payload": content_digest("payload", job_id, becomes).hex()}
        else:
            rows = yield Statement(_RESEAL_RESULT, params | scope)
            digests = {"result": content_digest("result", job_id, becomes, rows[0][1]).hex()} if rows else {}
        if rows:
            # The seals of the ledger contain the digest of the old ciphertext. This action records the new one.
            yield from note_action(rows[0][0], "reseal", "job", job_id, json.dumps(digests))
            yield Statement(_ORPHAN_OLD_FILE, params | {"tenant": rows[0][0]})
        yield from end_write()
        return bool(rows)

    @flow(writes=False)
    def sealed_parts(self, but: str, after: SealedPart | None, want: int, tenant: str) -> Steps[list[SealedPart]]:
        job, what, place = ("", "", "") if after is None else (after.job_id, after.what, after.place)
        params = {"but": but, "job": job, "what": what, "place": place, "want": want}
        rows = yield Statement(_SEALED_PARTS, params | {"tenant": tenant, "any": any_tenant(tenant)})
        return [SealedPart(*row) for row in rows]

    @flow()
    def reseal_part(self, part: SealedPart, becomes: str, actor: str, tenant: str) -> Steps[bool]:
        now = yield from begin_write(actor)
        params = {"job": part.job_id, "place": part.place, "was": part.text, "becomes": becomes}
        rows = yield Statement(_RESEAL_PART[part.what], params | {"any": any_tenant(tenant), "tenant": tenant})
        if rows and part.what == "payload":  # triggers do it for the other parts
            yield Statement(_ORPHAN_OLD_FILE, {"was": part.text, "tenant": part.tenant, "now": now})
        yield from end_write()
        return bool(rows)

    @flow()
    def set(self, draft: RuleDraft, actor: str, tenant: str) -> Steps[PayloadRule]:
        now = yield from begin_write(actor)
        yield _put(draft, "", actor, tenant, now)
        rows = yield Statement(_ONE, (tenant, draft.kind, ""))
        yield from end_write()
        return _decode(rows[0])


def _put(draft: RuleDraft, declared_by: str, actor: str, tenant: str, now: int) -> Statement:
    written = {"tenant": tenant, "declared_by": declared_by, "set_by": actor, "created_at": now, "updated_at": now}
    forbidden = json.dumps(draft.forbidden, ensure_ascii=False, separators=(",", ":"))
    return Statement(_PUT, _stored(dataclasses.asdict(draft)) | {"forbidden": forbidden} | written)


def _stored(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with documents as JSON."""
    return {name: canonical(value) if isinstance(value, dict) else value for name, value in settings.items()}
