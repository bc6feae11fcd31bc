"""``store.jobs``: cancel, redrive, discard, reschedule, circumstances, retry chain."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from holdfast.engine.ids import parse_id
from holdfast.engine.job import Enqueued, Job, JobSpec, Liveness, Verdict
from holdfast.engine.order import Move
from holdfast.engine.states import ACTIVE, State, state_of
from holdfast.engine.steps import RESERVED
from holdfast.errors import InvalidInput
from holdfast.features.agents.model import AHEAD, Circumstances, WorkerSeen
from holdfast.features.audit.model import content_digest
from holdfast.stores.codecs import Record, from_micros, in_micros, micros
from holdfast.stores.flow import Row, Statement, Steps, flow
from holdfast.stores.job_reads import JOB_COLUMNS, JobReads, index_name
from holdfast.stores.requests import OperatorAction, Reschedule
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, ids_json, sign, sign_enqueue, unsign
from holdfast.stores.sqlite.codec import NEVER
from holdfast.stores.sqlite.enqueue import add
from holdfast.stores.sqlite.insert_checks import rule_for
from holdfast.stores.sqlite.order import move_job

_FIND = (
    "SELECT id, state, retries, due_at FROM job_state"
    " WHERE id IN (SELECT value FROM json_each(:ids)) AND (:any OR tenant = :tenant)"
)
_STOP = (
    "UPDATE job_state SET state = 'cancelled', lease = NULL, due_at = NULL, approval_id = NULL, finished_at = :now,"
    " note = :note WHERE id IN (SELECT value FROM json_each(:ids))"
)
# A redriven job has its full number of tries before it again.
_REDRIVE = (
    "UPDATE job_state SET state = 'queued', due_at = NULL, finished_at = NULL, retries = 0, crashes = 0,"
    " max_attempts = coalesce(:limit, max_attempts), error_code = NULL, error_message = NULL, note = :note"
    " WHERE id IN (SELECT value FROM json_each(:ids))"
)
# The note is what record_transition looks at: the ledger says who did it, also where the state stays.
_RESCHEDULE = (
    "UPDATE job_state SET state = 'queued', due_at = :due, max_attempts = coalesce(:limit, max_attempts),"
    " note = json_patch('{}', json_object('rescheduled', CASE WHEN :due IS NULL THEN 'now' ELSE"
    " strftime('%Y-%m-%dT%H:%M:%S', :due / 1000000, 'unixepoch') || printf('.%03dZ', :due / 1000 % 1000) END,"
    " 'by', (SELECT actor FROM present), 'reason', :reason, 'max_attempts', :limit))"
    " WHERE id IN (SELECT value FROM json_each(:ids))"
)
_RECALL = (
    "INSERT INTO recall (lease, times) SELECT DISTINCT lease, 1 FROM job_state"
    " WHERE id IN (SELECT value FROM json_each(:ids)) AND lease IS NOT NULL"
    " ON CONFLICT (lease) DO UPDATE SET times = times + 1"
)


def apply(
    action: OperatorAction,
    ids: Sequence[str],
    reason: str | None,
    tenant: str,
    now: int,
    max_attempts: int | None = None,
    operation: str | None = None,
) -> Steps[list[Verdict]]:
    """Inside a flow that has signed; ``operation`` is the bulk operation that it is part of."""
    scope = {"ids": ids_json(ids), "any": any_tenant(tenant), "tenant": tenant}
    found = {str(row[0]): state_of(row[1]) for row in (yield Statement(_FIND, scope))}
    open_to = ACTIVE if action == "cancel" else {State.DEAD_LETTER}
    willing = [job_id for job_id, state in found.items() if state in open_to]
    said = {"reason": reason or None, "max_attempts": max_attempts, "operation": operation}
    note = {name: value for name, value in said.items() if value is not None}
    params = {"ids": ids_json(willing), "note": json.dumps(note) if note else None}
    if action == "cancel":  # whoever runs them is told that they are no longer theirs
        yield Statement(_RECALL, {"ids": ids_json(willing)})
    if action == "redrive":
        yield Statement(_REDRIVE, {**params, "limit": max_attempts})
    else:
        yield Statement(_STOP, {**params, "now": now})
    done = set(willing)
    return [_verdict(action, job_id, found.get(job_id), job_id in done) for job_id in ids]


def _reason_against(state: State, retries: int, due_at: int | None, when: Reschedule) -> str | None:
    if state not in (State.QUEUED, State.RETRY_WAITING):
        return "not_waiting"
    if due_at == NEVER:
        return "job_held"
    return "limit_too_low" if when.max_attempts is not None and retries >= when.max_attempts else None


def _check_limit(max_attempts: int | None) -> None:
    if max_attempts is not None and not 1 <= max_attempts <= 101:
        raise InvalidInput(f"max_attempts must be from 1 to 101, not {max_attempts}")


def _verdict(action: OperatorAction, job_id: str, was: State | None, done: bool) -> Verdict:
    if was is None:
        return Verdict(job_id, None, True, "not_found")
    if not done:
        return Verdict(job_id, was, True, "already_finished" if action == "cancel" else "not_dead")
    return Verdict(job_id, State.QUEUED if action == "redrive" else State.CANCELLED, False, None)


_LONGEST = 500
_AROUND = (
    "SELECT p.now, s.note, l.holder, l.name, l.until, l.ended_at IS NULL AND l.until > p.now, s.lease, s.state,"
    " s.due_at, s.queue, s.priority, s.position, l.renewed_at"
    " FROM present p, job_state s LEFT JOIN lease l ON l.id = s.lease"
    " WHERE s.id = :job AND (:any OR s.tenant = :tenant)"
)
_LIVENESS = (
    "SELECT s.id, s.attempt, l.holder, l.renewals, l.renewed_at, coalesce(c.saves, 0), c.saved_at"
    " FROM job_state s LEFT JOIN lease l ON l.id = coalesce(s.lease, s.settled_by)"
    f" LEFT JOIN checkpoint c ON c.job_id = s.id AND c.name = '{RESERVED}' AND c.attempt = s.attempt"
    " WHERE s.id = :job AND (:any OR s.tenant = :tenant)"
)
_REPLACEABLE = (
    "SELECT s.state, s.tenant, s.kind, j.payload, j.content_key IS NOT NULL,"
    " EXISTS (SELECT 1 FROM step t WHERE t.job_id = s.id)"
    " FROM job_state s JOIN job j ON j.id = s.id WHERE s.id = :job AND (:any OR s.tenant = :tenant)"
)
# The guard of the payload looks for the event that this writes.
_TELL_REPLACED = (
    "UPDATE job_state SET note = json_set(json_remove(coalesce(note, '{}'), '$.moved', '$.rescheduled'), '$.replaced',"
    " json_set(json(:told), '$.times',"
    " 1 + (SELECT count(*) FROM event e WHERE e.job_id = :job AND e.type = 'replace')))"
    " WHERE id = :job"
)
_LEAVE_REPLACED = (
    "INSERT INTO leftover (tenant, ref, job_id, at, again_at)"
    " SELECT :tenant, o.ref, substr(o.ref, -101, 36), :now, :now"
    " FROM (SELECT CASE WHEN :was LIKE '{\"$holdfast\":%'"
    " THEN json_extract(:was, '$.\"$holdfast\".stored') END AS ref) o"
    " WHERE o.ref IS NOT NULL ON CONFLICT DO NOTHING"
)
_REPLACE = "UPDATE job SET payload = :payload WHERE id = :job"
_CLAIMABLE = "s.queue = :queue AND s.state = 'queued' AND s.due_at IS NULL"
_AHEAD = (
    "SELECT count(*) FROM (SELECT 1 FROM job_state s INDEXED BY claimable"
    f" WHERE {_CLAIMABLE} AND s.priority > :priority"
    f" UNION ALL SELECT 1 FROM job_state s INDEXED BY claimable"
    f" WHERE {_CLAIMABLE} AND s.priority = :priority AND s.position < :position LIMIT :most)"
)
_WORKERS = (
    "SELECT l.name, l.holder, l.tenant, l.kinds, l.queues, l.slots, (SELECT count(*) FROM job_state s"
    " WHERE s.lease = l.id AND s.state IN ('leased', 'in_progress')) FROM lease l"
    " WHERE l.ended_at IS NULL AND l.until > :now AND (:any OR l.tenant = :tenant OR l.tenant = '*')"
    " AND (l.kinds IS NOT NULL OR l.queues IS NOT NULL) ORDER BY l.until DESC LIMIT 200"
)
# Back to the first try and on to the last: one of a kind, so each step is one look at a key.
_CHAIN = (
    "WITH RECURSIVE back(id, n) AS (SELECT :job, 0 UNION ALL SELECT j.retry_of, b.n - 1 FROM back b JOIN job j"
    f" ON j.id = b.id WHERE j.retry_of IS NOT NULL AND b.n > -{_LONGEST}),"
    " forth(id, n) AS (SELECT :job, 0 UNION ALL SELECT j.id, f.n + 1 FROM forth f JOIN job j ON j.retry_of = f.id"
    f" WHERE j.retry_of IS NOT NULL AND f.n < {_LONGEST}),"
    " tries(id, n) AS (SELECT id, n FROM back UNION SELECT id, n FROM forth)"
    f" SELECT {JOB_COLUMNS} FROM tries t CROSS JOIN jobs j ON j.id = t.id WHERE :any OR j.tenant = :tenant ORDER BY t.n"
)


def _seen(row: Row) -> WorkerSeen:
    label, holder, tenant, kinds, queues, slots, busy = row
    known, served = (None if names is None else tuple(json.loads(names)) for names in (kinds, queues))
    return WorkerSeen(label, holder, tenant, known, served, slots, busy)


class SqliteJobs(SqlitePart, JobReads):
    """``store.jobs``."""

    @flow(tells=True)
    def operate(
        self,
        action: OperatorAction,
        ids: Sequence[str],
        reason: str | None,
        actor: str,
        tenant: str,
        max_attempts: int | None = None,
    ) -> Steps[list[Verdict]]:
        _check_limit(max_attempts)
        if action == "discard" and not (reason or "").strip():
            return [Verdict(job_id, None, True, "reason_required") for job_id in ids]
        now = yield from sign(actor)
        verdicts = yield from apply(action, ids, reason, tenant, now, max_attempts)
        yield from unsign()
        if action == "discard" and any(verdict.refused for verdict in verdicts):
            # What was skipped behind a dead letter of a workflow may have been cancelled with it.
            scope = {"ids": ids_json(ids), "any": any_tenant(tenant), "tenant": tenant}
            now_is = {str(row[0]): state_of(row[1]) for row in (yield Statement(_FIND, scope))}
            verdicts = [replace(each, state=now_is.get(each.id, each.state)) for each in verdicts]
        return verdicts

    @flow(tells=True)
    def reschedule(
        self, ids: Sequence[str], when: Reschedule, reason: str | None, actor: str, tenant: str
    ) -> Steps[list[Verdict]]:
        _check_limit(when.max_attempts)
        now = yield from sign(actor)
        scope = {"ids": ids_json(ids), "any": any_tenant(tenant), "tenant": tenant}
        found = {row[0]: (state_of(row[1]), int(row[2]), row[3]) for row in (yield Statement(_FIND, scope))}
        refusals = {job_id: _reason_against(*waits, when) for job_id, waits in found.items()}
        due = micros(when.at) if when.at is not None else now + in_micros(when.delay or 0.0)
        params = {
            "ids": ids_json(job_id for job_id, refusal in refusals.items() if refusal is None),
            "due": due if due > now else None,
            "limit": when.max_attempts,
            "reason": reason or None,
        }
        yield Statement(_RESCHEDULE, params)
        yield from unsign()
        answers = []
        for job_id in ids:
            refusal = refusals[job_id] if job_id in found else "not_found"
            was = found[job_id][0] if job_id in found else None
            answers.append(Verdict(job_id, State.QUEUED if refusal is None else was, refusal is not None, refusal))
        return answers

    @flow(writes=False)
    def watch(self, job_id: str, tenant: str, seconds: float) -> Steps[None]:
        """Nothing to arrange: whoever listens hears of every commit."""
        yield from ()

    @flow(writes=False)
    def chain(self, job_id: str, tenant: str) -> Steps[list[Job]]:
        scope = {"job": parse_id(job_id), "any": any_tenant(tenant), "tenant": tenant}
        rows = yield Statement(_CHAIN, scope)
        return [self._job(row) for row in rows]

    @flow()
    def replace_payload(self, job_id: str, payload: str, reason: str, actor: str, tenant: str) -> Steps[Verdict]:
        job_id, now = parse_id(job_id), (yield from sign(actor))
        rows = yield Statement(_REPLACEABLE, {"job": job_id, "any": any_tenant(tenant), "tenant": tenant})
        if not rows:
            yield from unsign()
            return Verdict(job_id, None, True, "not_found")
        state, whose, kind, was, keyed, begun = rows[0]
        rule = yield from rule_for(whose, kind)
        refusal = (
            "reason_required"
            if not reason.strip()
            else "not_waiting"
            if state not in ("queued", "retry_waiting")
            else "not_replaceable"
            if not rule.replaceable
            else "content_key"
            if keyed
            else "steps_recorded"
            if begun
            else None
        )
        if refusal is None and (objection := rule.objection(kind, payload)) is not None:
            raise objection
        if refusal is None and was != payload:
            old, new = (content_digest("payload", job_id, text).hex() for text in (was, payload))
            told = json.dumps({"old": old, "new": new, "size": len(payload.encode()), "reason": reason})
            names = {"job": job_id, "told": told, "payload": payload, "was": was, "now": now, "tenant": whose}
            for text in (_TELL_REPLACED, _LEAVE_REPLACED, _REPLACE):
                yield Statement(text, names)
        yield from unsign()
        return Verdict(job_id, state_of(state), refusal is not None, refusal)

    @flow(writes=False)
    def liveness(self, job_id: str, tenant: str) -> Steps[Liveness | None]:
        rows = yield Statement(_LIVENESS, {"job": parse_id(job_id), "any": any_tenant(tenant), "tenant": tenant})
        return Record.decoder(Liveness, self.dialect.codec)(rows[0]) if rows else None

    @flow(writes=False)
    def circumstances(self, job_id: str, tenant: str) -> Steps[Circumstances | None]:
        scope = {"any": any_tenant(tenant), "tenant": tenant}
        rows = yield Statement(_AROUND, {"job": parse_id(job_id)} | scope)
        if not rows:
            return None
        now, note, holder, label, until, held, lease, state, due, queue, priority, position, beat = rows[0]
        ahead = None
        if state == "queued" and due is None:
            place = {"queue": queue, "priority": priority, "position": position, "most": AHEAD}
            ahead = (yield Statement(_AHEAD, place))[0][0]
        workers = yield Statement(_WORKERS, {"now": now} | scope)
        return Circumstances(
            from_micros(now),
            {} if note is None else json.loads(note),
            holder,
            label,
            None if until is None else from_micros(until),
            None if lease is None else bool(held),
            ahead,
            tuple(_seen(row) for row in workers),
            None if beat is None else from_micros(beat),
        )

    @flow(tells=True)
    def enqueue(self, specs: Sequence[JobSpec], tenant: str) -> Steps[list[Enqueued]]:
        now, ruled = yield from sign_enqueue()
        answers = yield from add(specs, tenant, now, ruled)
        yield from unsign()
        return answers

    @flow(tells=True)
    def move(self, job_id: str, move: Move, reason: str | None, actor: str, tenant: str) -> Steps[Verdict]:
        return (yield from move_job(job_id, move, reason, actor, tenant))

    @flow(writes=False)
    def by_payload(
        self, path: Sequence[str], value: str, tenant: str, before: str | None, most: int
    ) -> Steps[Sequence[str]]:
        params = {"value": value, "tenant": tenant, "any": any_tenant(tenant), "most": most}
        params["before"] = None if before is None else parse_id(before)
        return [row[0] for row in (yield Statement(_BY_PAYLOAD.format(key=_key(path)), params))]

    @flow(writes=False)
    def payload_indexes(self) -> Steps[Sequence[str]]:
        rows = yield Statement(_PAYLOAD_INDEXES)
        found = [re.findall(r"'\$(.*?)'", row[0]) for row in rows]
        return sorted("payload" + paths[0].replace('"', "") for paths in found if paths)

    @flow()
    def fill_payload_index(self, path: Sequence[str], after: str | None) -> Steps[str | None]:
        yield Statement(f"CREATE INDEX IF NOT EXISTS {index_name(path)} ON job ({_key(path)}, id)")
        return None

    @flow()
    def remove_payload_index(self, path: Sequence[str]) -> Steps[None]:
        yield Statement(f"DROP INDEX IF EXISTS {index_name(path)}")


def _key(path: Sequence[str]) -> str:
    """The text under a key; a payload that is not JSON has none. The keys are checked: they need no escapes."""
    quoted = "".join(f'."{key}"' for key in path)
    return f"CASE WHEN json_valid(payload) THEN CAST(json_extract(payload, '${quoted}') AS TEXT) END"


_PAYLOAD_INDEXES = "SELECT sql FROM sqlite_schema WHERE type = 'index' AND name LIKE 'payload\\_%' ESCAPE '\\'"
_BY_PAYLOAD = (
    "SELECT id FROM job WHERE {key} = :value AND (:any OR tenant = :tenant) AND (:before IS NULL OR id < :before)"
    " AND payload NOT LIKE '{{\"$holdfast\"%' AND NOT EXISTS (SELECT 1 FROM payload_rule r"
    " WHERE r.classification = 'restricted' AND r.tenant IN (job.tenant, '*') AND r.kind IN (job.kind, '*'))"
    " ORDER BY id DESC LIMIT :most"
)
