"""``store.jobs`` on SQLite: enqueue, cancel, redrive, discard, reschedule, move, circumstances, retry chain."""

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
from holdfast.features.agents.model import MAX_AHEAD, JobSituation, WorkerSeen
from holdfast.features.audit.model import content_digest
from holdfast.stores.codecs import Record, from_micros, in_micros, micros
from holdfast.stores.flow import Row, Statement, Steps, flow
from holdfast.stores.job_reads import JOB_COLUMNS, JobReads, index_name
from holdfast.stores.requests import OperatorAction, Reschedule
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, begin_write, end_write, ids_json
from holdfast.stores.sqlite.codec import NEVER
from holdfast.stores.sqlite.enqueue import enqueue
from holdfast.stores.sqlite.insert_checks import rule_for
from holdfast.stores.sqlite.order import move_job

SHORT = 100
"""Jobs of a batch that may share its commit with others."""

_FIND = (
    "SELECT id, state, retries, due_at FROM holdfast_job_state"
    " WHERE id IN (SELECT value FROM json_each(:ids)) AND (:any OR tenant = :tenant)"
)
_STOP = (
    "UPDATE holdfast_job_state SET state = 'cancelled', lease = NULL, due_at = NULL, approval_id = NULL, finished_at"
    " = :now, note = :note WHERE id IN (SELECT value FROM json_each(:ids))"
)
# A redriven job has its full number of attempts again.
_REDRIVE = (
    "UPDATE holdfast_job_state SET state = 'queued', due_at = NULL, finished_at = NULL, retries = 0, crashes = 0,"
    " max_attempts = coalesce(:limit, max_attempts), error_code = NULL, error_message = NULL, note = :note"
    " WHERE id IN (SELECT value FROM json_each(:ids))"
)
# record_transition reads the note: the ledger records the actor even if the state does not change.
_RESCHEDULE = (
    "UPDATE holdfast_job_state SET state = 'queued', due_at = :due, max_attempts = coalesce(:limit, max_attempts),"
    " note = json_patch('{}', json_object('rescheduled', CASE WHEN :due IS NULL THEN 'now' ELSE"
    " strftime('%Y-%m-%dT%H:%M:%S', :due / 1000000, 'unixepoch') || printf('.%03dZ', :due / 1000 % 1000) END,"
    " 'by', (SELECT actor FROM holdfast_present), 'reason', :reason, 'max_attempts', :limit))"
    " WHERE id IN (SELECT value FROM json_each(:ids))"
)
_COUNT_CANCELLATION = (
    "INSERT INTO holdfast_cancellation (lease, times) SELECT DISTINCT lease, 1 FROM holdfast_job_state"
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
    """Cancel, redrive or discard jobs within a signed write; ``operation`` is the bulk operation it is part of."""
    scope = {"ids": ids_json(ids), "any": any_tenant(tenant), "tenant": tenant}
    states = {str(row[0]): state_of(row[1]) for row in (yield Statement(_FIND, scope))}
    allowed = ACTIVE if action == "cancel" else {State.DEAD_LETTER}
    applicable = [job_id for job_id, state in states.items() if state in allowed]
    details = {"reason": reason or None, "max_attempts": max_attempts, "operation": operation}
    note = {name: value for name, value in details.items() if value is not None}
    params = {"ids": ids_json(applicable), "note": json.dumps(note) if note else None}
    if action == "cancel":  # workers that run the jobs find out by this counter
        yield Statement(_COUNT_CANCELLATION, {"ids": ids_json(applicable)})
    if action == "redrive":
        yield Statement(_REDRIVE, {**params, "limit": max_attempts})
    else:
        yield Statement(_STOP, {**params, "now": now})
    done = set(applicable)
    return [_verdict(action, job_id, states.get(job_id), job_id in done) for job_id in ids]


def reschedule(ids: Sequence[str], due: int, limit: int | None, reason: str | None, now: int) -> Steps[None]:
    """Give waiting jobs another start time within a signed write."""
    due_at = due if due > now else None
    yield Statement(_RESCHEDULE, {"ids": ids_json(ids), "due": due_at, "limit": limit, "reason": reason or None})


def _refusal(state: State, retries: int, due_at: int | None, when: Reschedule) -> str | None:
    if state not in (State.QUEUED, State.RETRY_WAITING):
        return "not_waiting"
    if due_at == NEVER:
        return "job_held"
    return "limit_too_low" if when.max_attempts is not None and retries >= when.max_attempts else None


def _check_limit(max_attempts: int | None) -> None:
    if max_attempts is not None and not 1 <= max_attempts <= 101:
        raise InvalidInput(f"max_attempts must be from 1 to 101, not {max_attempts}")


def _verdict(action: OperatorAction, job_id: str, state: State | None, done: bool) -> Verdict:
    if state is None:
        return Verdict(job_id, None, True, "not_found")
    if not done:
        return Verdict(job_id, state, True, "already_finished" if action == "cancel" else "not_dead")
    return Verdict(job_id, State.QUEUED if action == "redrive" else State.CANCELLED, False, None)


_LONGEST_CHAIN = 500
_CIRCUMSTANCES = (
    "SELECT p.now, s.note, l.holder, l.name, l.until, l.ended_at IS NULL AND l.until > p.now, s.lease, s.state,"
    " s.due_at, s.queue, s.priority, s.position, l.renewed_at"
    " FROM holdfast_present p, holdfast_job_state s LEFT JOIN holdfast_lease l ON l.id = s.lease"
    " WHERE s.id = :job AND (:any OR s.tenant = :tenant)"
)
_LIVENESS = (
    "SELECT s.id, s.attempt, l.holder, l.renewals, l.renewed_at, coalesce(c.saves, 0), c.saved_at"
    " FROM holdfast_job_state s LEFT JOIN holdfast_lease l ON l.id = coalesce(s.lease, s.settled_by)"
    f" LEFT JOIN holdfast_checkpoint c ON c.job_id = s.id AND c.name = '{RESERVED}' AND c.attempt = s.attempt"
    " WHERE s.id = :job AND (:any OR s.tenant = :tenant)"
)
_REPLACEABLE = (
    "SELECT s.state, s.tenant, s.kind, j.payload, j.content_key IS NOT NULL,"
    " EXISTS (SELECT 1 FROM holdfast_step t WHERE t.job_id = s.id),"
    " EXISTS (SELECT 1 FROM holdfast_checkpoint c WHERE c.job_id = s.id AND c.name NOT LIKE 'holdfast:%')"
    " FROM holdfast_job_state s JOIN holdfast_job j ON j.id = s.id WHERE s.id = :job AND (:any OR s.tenant = :tenant)"
)
# The guard of the payload requires the event that this writes.
_NOTE_REPLACED = (
    "UPDATE holdfast_job_state SET note = json_set(json_remove(coalesce(note, '{}'), '$.moved', '$.rescheduled'),"
    " '$.replaced', json_set(json(:details), '$.times',"
    " 1 + (SELECT count(*) FROM holdfast_event e WHERE e.job_id = :job AND e.type = 'replace')))"
    " WHERE id = :job"
)
_ORPHAN_REPLACED = (
    "INSERT INTO holdfast_orphaned_file (tenant, ref, job_id, at, again_at)"
    " SELECT :tenant, o.ref, substr(o.ref, -101, 36), :now, :now"
    " FROM (SELECT CASE WHEN :was LIKE '{\"$holdfast\":%'"
    " THEN json_extract(:was, '$.\"$holdfast\".stored') END AS ref) o"
    " WHERE o.ref IS NOT NULL AND NOT EXISTS (SELECT 1 FROM holdfast_replaced_payload r WHERE r.job_id = :job"
    " AND r.payload = :was) ON CONFLICT DO NOTHING"
)
_REPLACE = "UPDATE holdfast_job SET payload = :payload WHERE id = :job"
_CLAIMABLE = "s.queue = :queue AND s.state = 'queued' AND s.due_at IS NULL"
_AHEAD = (
    "SELECT count(*) FROM (SELECT 1 FROM holdfast_job_state s INDEXED BY holdfast_claimable"
    f" WHERE {_CLAIMABLE} AND s.priority > :priority"
    f" UNION ALL SELECT 1 FROM holdfast_job_state s INDEXED BY holdfast_claimable"
    f" WHERE {_CLAIMABLE} AND s.priority = :priority AND s.position < :position LIMIT :most)"
)
_WORKERS = (
    "SELECT l.name, l.holder, l.tenant, l.kinds, l.queues, l.slots, (SELECT count(*) FROM holdfast_job_state s"
    " WHERE s.lease = l.id AND s.state IN ('leased', 'in_progress')) FROM holdfast_lease l"
    " WHERE l.ended_at IS NULL AND l.until > :now AND (:any OR l.tenant = :tenant OR l.tenant = '*')"
    " AND (l.kinds IS NOT NULL OR l.queues IS NOT NULL) ORDER BY l.until DESC LIMIT 200"
)
# Back to the first job and forward to the last. Each has at most one predecessor and successor: one index lookup each.
_CHAIN = (
    "WITH RECURSIVE back(id, n) AS (SELECT :job, 0 UNION ALL SELECT j.retry_of, b.n - 1 FROM back b JOIN holdfast_job j"
    f" ON j.id = b.id WHERE j.retry_of IS NOT NULL AND b.n > -{_LONGEST_CHAIN}),"
    " forth(id, n) AS (SELECT :job, 0 UNION ALL SELECT j.id, f.n + 1 FROM forth f JOIN holdfast_job j ON j.retry_of ="
    f" f.id WHERE j.retry_of IS NOT NULL AND f.n < {_LONGEST_CHAIN}),"
    " tries(id, n) AS (SELECT id, n FROM back UNION SELECT id, n FROM forth)"
    " SELECT {columns} FROM tries t CROSS JOIN holdfast_jobs j ON j.id = t.id WHERE :any OR j.tenant = :tenant ORDER"
    " BY t.n"
)


def _worker(row: Row) -> WorkerSeen:
    label, holder, tenant, kinds, queues, slots, busy = row
    kind_names, queue_names = (None if names is None else tuple(json.loads(names)) for names in (kinds, queues))
    return WorkerSeen(label, holder, tenant, kind_names, queue_names, slots, busy)


class SqliteJobs(SqlitePart, JobReads):
    """``store.jobs``."""

    @flow(notifies=True)
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
        now = yield from begin_write(actor)
        verdicts = yield from apply(action, ids, reason, tenant, now, max_attempts)
        yield from end_write()
        if action == "discard" and any(verdict.refused for verdict in verdicts):
            # Discarding a dead letter may have cancelled later jobs of its workflow: report their current state.
            scope = {"ids": ids_json(ids), "any": any_tenant(tenant), "tenant": tenant}
            states = {str(row[0]): state_of(row[1]) for row in (yield Statement(_FIND, scope))}
            verdicts = [replace(each, state=states.get(each.id, each.state)) for each in verdicts]
        return verdicts

    @flow(notifies=True)
    def reschedule(
        self, ids: Sequence[str], when: Reschedule, reason: str | None, actor: str, tenant: str
    ) -> Steps[list[Verdict]]:
        _check_limit(when.max_attempts)
        now = yield from begin_write(actor)
        scope = {"ids": ids_json(ids), "any": any_tenant(tenant), "tenant": tenant}
        jobs = {row[0]: (state_of(row[1]), int(row[2]), row[3]) for row in (yield Statement(_FIND, scope))}
        refusals = {job_id: _refusal(*job, when) for job_id, job in jobs.items()}
        due = micros(when.at) if when.at is not None else now + in_micros(when.delay or 0.0)
        changed = [job_id for job_id, refusal in refusals.items() if refusal is None]
        yield from reschedule(changed, due, when.max_attempts, reason, now)
        yield from end_write()
        verdicts = []
        for job_id in ids:
            refusal = refusals[job_id] if job_id in jobs else "not_found"
            state = jobs[job_id][0] if job_id in jobs else None
            verdicts.append(Verdict(job_id, State.QUEUED if refusal is None else state, refusal is not None, refusal))
        return verdicts

    @flow(writes=False)
    def watch(self, job_id: str, tenant: str, seconds: float) -> Steps[None]:
        """Nothing to do: every commit notifies all listeners."""
        yield from ()

    @flow(writes=False)
    def chain(self, job_id: str, tenant: str) -> Steps[list[Job]]:
        scope = {"job": parse_id(job_id), "any": any_tenant(tenant), "tenant": tenant}
        rows = yield Statement(_CHAIN.format(columns=self.dialect.bounded(JOB_COLUMNS, "t.n", "j.payload")), scope)
        return [self._job(row) for row in rows]

    @flow()
    def replace_payload(self, job_id: str, payload: str, reason: str, actor: str, tenant: str) -> Steps[Verdict]:
        job_id, now = parse_id(job_id), (yield from begin_write(actor))
        rows = yield Statement(_REPLACEABLE, {"job": job_id, "any": any_tenant(tenant), "tenant": tenant})
        if not rows:
            yield from end_write()
            return Verdict(job_id, None, True, "not_found")
        state, job_tenant, kind, old_payload, keyed, begun, saved = rows[0]
        rule = yield from rule_for(job_tenant, kind)
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
            else "checkpoints_recorded"
            if saved
            else None
        )
        if refusal is None and (objection := rule.refusal(kind, payload)) is not None:
            raise objection
        if refusal is None and old_payload != payload:
            old, new = (content_digest("payload", job_id, text).hex() for text in (old_payload, payload))
            details = json.dumps({"old": old, "new": new, "size": len(payload.encode()), "reason": reason})
            params = {"job": job_id, "details": details, "payload": payload, "was": old_payload, "now": now}
            for text in (_NOTE_REPLACED, _REPLACE, _ORPHAN_REPLACED):
                yield Statement(text, params | {"tenant": job_tenant})
        yield from end_write()
        return Verdict(job_id, state_of(state), refusal is not None, refusal)

    @flow()
    def set_external_ref(self, job_id: str, external_ref: str | None, actor: str, tenant: str) -> Steps[Verdict]:
        job_id = parse_id(job_id)
        yield from begin_write(actor)
        params = {"job": job_id, "any": any_tenant(tenant), "tenant": tenant, "ref": external_ref}
        rows = yield Statement(
            "SELECT state FROM holdfast_job_state WHERE id = :job AND (:any OR tenant = :tenant)", params
        )
        if rows:
            yield Statement(
                "UPDATE holdfast_job SET external_ref = :ref WHERE id = :job AND external_ref IS NOT :ref", params
            )
        yield from end_write()
        return Verdict(job_id, state_of(rows[0][0]), False, None) if rows else Verdict(job_id, None, True, "not_found")

    @flow(writes=False)
    def liveness(self, job_id: str, tenant: str) -> Steps[Liveness | None]:
        rows = yield Statement(_LIVENESS, {"job": parse_id(job_id), "any": any_tenant(tenant), "tenant": tenant})
        return Record.decoder(Liveness, self.dialect.codec)(rows[0]) if rows else None

    @flow(writes=False)
    def circumstances(self, job_id: str, tenant: str) -> Steps[JobSituation | None]:
        scope = {"any": any_tenant(tenant), "tenant": tenant}
        rows = yield Statement(_CIRCUMSTANCES, {"job": parse_id(job_id)} | scope)
        if not rows:
            return None
        now, note, holder, label, until, held, lease, state, due, queue, priority, position, renewed = rows[0]
        ahead = None
        if state == "queued" and due is None:
            params = {"queue": queue, "priority": priority, "position": position, "most": MAX_AHEAD}
            ahead = (yield Statement(_AHEAD, params))[0][0]
        workers = yield Statement(_WORKERS, {"now": now} | scope)
        return JobSituation(
            from_micros(now),
            {} if note is None else json.loads(note),
            holder,
            label,
            None if until is None else from_micros(until),
            None if lease is None else bool(held),
            ahead,
            tuple(_worker(row) for row in workers),
            None if renewed is None else from_micros(renewed),
        )

    @flow(notifies=True, short=lambda _, specs, tenant: len(specs) <= SHORT)
    def enqueue(self, specs: Sequence[JobSpec], tenant: str) -> Steps[list[Enqueued]]:
        return (yield from enqueue(specs, tenant))

    @flow(notifies=True)
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
        paths = [re.findall(r"'\$(.*?)'", row[0]) for row in rows]
        return sorted("payload" + path[0].replace('"', "") for path in paths if path)

    @flow()
    def fill_payload_index(self, path: Sequence[str], after: str | None) -> Steps[str | None]:
        yield Statement(f"CREATE INDEX IF NOT EXISTS holdfast_{index_name(path)} ON holdfast_job ({_key(path)}, id)")
        return None

    @flow()
    def remove_payload_index(self, path: Sequence[str]) -> Steps[None]:
        yield Statement(f"DROP INDEX IF EXISTS holdfast_{index_name(path)}")


def _key(path: Sequence[str]) -> str:
    """The expression for the text under a key; NULL if the payload is not JSON. The keys are checked and need no
    escapes."""
    quoted = "".join(f'."{key}"' for key in path)
    return f"CASE WHEN json_valid(payload) THEN CAST(json_extract(payload, '${quoted}') AS TEXT) END"


_PAYLOAD_INDEXES = (
    "SELECT sql FROM sqlite_schema WHERE type = 'index' AND name LIKE 'holdfast\\_payload\\_%' ESCAPE '\\'"
)
_BY_PAYLOAD = (
    "SELECT id FROM holdfast_job WHERE {key} = :value AND (:any OR tenant = :tenant) AND (:before IS NULL OR id <"
    " :before) AND payload NOT LIKE '{{\"$holdfast\"%' AND NOT EXISTS (SELECT 1 FROM holdfast_payload_rule r"
    " WHERE r.classification = 'restricted' AND r.tenant IN (holdfast_job.tenant, '*') AND r.kind IN"
    " (holdfast_job.kind, '*')) ORDER BY id DESC LIMIT :most"
)
