"""The deletions of a sweep on SQLite: jobs, bookkeeping, and the records of orphaned files."""

from __future__ import annotations

import json
from collections.abc import Sequence

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.retention.model import OrphanedFile
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.sqlite.admission import maintenance_flow
from holdfast.stores.sqlite.base import any_tenant, begin_write, end_write, ids_json, note_action
from holdfast.stores.sqlite.ledger import record_removed
from holdfast.stores.sqlite.settle import ADVANCE

DAY = 86_400_000_000

_LEASES = (
    "DELETE FROM holdfast_lease WHERE id IN (SELECT id FROM holdfast_lease WHERE ended_at IS NOT NULL AND swept_at <="
    " :week LIMIT :want) RETURNING 1"
)
_TOKENS = (
    "DELETE FROM holdfast_approval_token WHERE hash IN"
    " (SELECT t.hash FROM holdfast_approval_token t JOIN holdfast_approval g ON g.id = t.approval_id"
    " WHERE g.state <> 'open' AND g.decided_at <= :week LIMIT :want) RETURNING 1"
)
# A token is deleted after the last of its sessions, which refer to it.
_API_TOKENS = (
    "DELETE FROM holdfast_api_token WHERE id IN (SELECT t.id FROM holdfast_api_token t"
    " WHERE min(coalesce(t.revoked_at, t.expires_at), coalesce(t.expires_at, t.revoked_at))"
    " <= CASE WHEN t.parent_id IS NULL THEN :old ELSE :week END"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_api_token s WHERE s.parent_id = t.id AND s.parent_id IS NOT NULL)"
    " ORDER BY t.id LIMIT :want) RETURNING 1"
)
_RESERVATIONS = (
    "DELETE FROM holdfast_reservation WHERE id IN (SELECT id FROM holdfast_reservation WHERE ended_at <= :old ORDER"
    " BY id LIMIT :want) RETURNING 1"
)
_OPERATIONS = (
    "DELETE FROM holdfast_operation WHERE id IN (SELECT id FROM holdfast_operation WHERE id < :first AND finished_at"
    " <= :old ORDER BY id LIMIT :want) RETURNING 1"
)
_WEBHOOK_DELIVERIES = (
    "DELETE FROM holdfast_webhook_delivery WHERE id IN (SELECT d.id FROM holdfast_webhook e CROSS JOIN"
    " holdfast_webhook_delivery d ON d.webhook_id = e.id AND d.id < :first AND d.at <= :month LIMIT :want) RETURNING 1"
)
# Files that could not be deleted: they are in no known store, or a process deleted them and died before recording it.
_ORPHANED_FILES = (
    "DELETE FROM holdfast_orphaned_file WHERE (tenant, ref) IN (SELECT tenant, ref FROM holdfast_orphaned_file"
    " WHERE at <= :old LIMIT :want) RETURNING 1"
)
_GROUPS = (
    "DELETE FROM holdfast_dead_letter_group WHERE (tenant, fingerprint) IN (SELECT tenant, fingerprint FROM"
    " holdfast_dead_letter_group WHERE open = 0 AND last_at <= :year LIMIT :want) RETURNING 1"
)
# Never the latest time of a schedule, whatever its age: it shows that the schedule ran at all.
_FIRES = (
    "DELETE FROM holdfast_fire WHERE (schedule_id, due_at, manual) IN (SELECT f.schedule_id, f.due_at, f.manual"
    " FROM holdfast_schedule s CROSS JOIN holdfast_fire f ON f.schedule_id = s.id AND f.due_at <= :old"
    " WHERE f.status <> 'waiting' AND (f.status <> 'fired' OR f.ended) AND f.due_at < s.last_fire_at LIMIT :want)"
    " RETURNING 1"
)
# Includes deleted subscriptions: their ids are found in the index, one step each.
_DELIVERIES = (
    "DELETE FROM holdfast_delivery WHERE (subscription_id, event) IN ("
    "WITH RECURSIVE s(id) AS (SELECT min(subscription_id) FROM holdfast_delivery UNION ALL"
    " SELECT (SELECT min(d.subscription_id) FROM holdfast_delivery d WHERE d.subscription_id > s.id) FROM s"
    " WHERE s.id IS NOT NULL)"
    " SELECT d.subscription_id, d.event FROM s CROSS JOIN holdfast_delivery d ON d.subscription_id = s.id AND d.at <="
    " :old LIMIT :want) RETURNING 1"
)
# Only events that every reader has read. The newest event of all stays, so that no number is used twice.
_READ_BY_ALL = (
    "holdfast_app_event.seq < (SELECT max(seq) FROM holdfast_app_event)"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_consumer c WHERE c.cursor LIKE 'a%' AND c.tenant IN"
    " (holdfast_app_event.tenant, '*') AND holdfast_app_event.seq > CAST(substr(c.cursor, 2) AS INTEGER))"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_subscription s WHERE s.pattern NOT LIKE 'job.%'"
    " AND s.tenant IN (holdfast_app_event.tenant, '*')"
    " AND holdfast_app_event.seq > CAST(substr(coalesce(s.cursor, 'a0'), 2) AS INTEGER))"
)
_APP_EVENTS = (
    "DELETE FROM holdfast_app_event WHERE id IN (SELECT id FROM holdfast_app_event WHERE id < :first AND sent_at <="
    f" :year AND {_READ_BY_ALL} ORDER BY id LIMIT :want) RETURNING 1"
)


def prune_bookkeeping(want: int, now: int) -> Steps[int]:
    """Delete expired bookkeeping, inside a flow that has signed. Returns the largest number of rows deleted from one
    table."""
    most = 0
    week, month, old, year = (now - days * DAY for days in (7, 30, 90, 365))
    # For subjects whose removal by people is recorded, one action records the whole batch.
    for subject, text, params in (
        (None, _LEASES, {"week": week}),
        ("approval_token", _TOKENS, {"week": week}),
        ("token", _API_TOKENS, {"week": week, "old": old}),
        ("reservation", _RESERVATIONS, {"old": old}),
        ("operation", _OPERATIONS, {"old": old, "first": first_id(old)}),
        (None, _WEBHOOK_DELIVERIES, {"month": month, "first": first_id(month)}),
        (None, _ORPHANED_FILES, {"old": old}),
        (None, _GROUPS, {"year": year}),
        (None, _FIRES, {"old": old}),
        (None, _DELIVERIES, {"old": old}),
        (None, _APP_EVENTS, {"year": year, "first": first_id(year)}),
    ):
        rows = yield Statement(text, {**params, "want": want})
        if subject is not None and rows:
            yield from note_action(EVERY_TENANT, "prune", subject, "*", json.dumps({"rows": len(rows)}))
        most = max(most, len(rows))
    return most


def first_id(at: int) -> str:
    """The lowest id of a time. Ids sort by creation time."""
    digits = f"{max(0, at // 1000):012x}"
    return f"{digits[:8]}-{digits[8:]}"


TEN_MINUTES = 600_000_000

_ENVELOPE = "LIKE '{\"$holdfast\":%'"
_STORED = "json_extract({text}, '$.\"$holdfast\".stored')"
# A file that belongs to another job is left to that job.
_RECORD_FILES = (
    "INSERT INTO holdfast_orphaned_file (tenant, ref, job_id, at, again_at) SELECT j.tenant, f.ref, j.id, p.now, p.now"
    " FROM holdfast_job j, holdfast_present p, ("
    f"SELECT id AS job_id, {_STORED.format(text='payload')} AS ref FROM holdfast_job"
    f" WHERE id IN (SELECT value FROM json_each(:ids)) AND payload {_ENVELOPE}"
    f" UNION SELECT job_id, {_STORED.format(text='payload')} FROM holdfast_replaced_payload"
    f" WHERE job_id IN (SELECT value FROM json_each(:ids)) AND payload {_ENVELOPE}"
    " UNION SELECT job_id, ref FROM holdfast_result WHERE job_id IN (SELECT value FROM json_each(:ids))"
    f" UNION SELECT job_id, {_STORED.format(text='value')} FROM holdfast_result"
    f" WHERE job_id IN (SELECT value FROM json_each(:ids)) AND value {_ENVELOPE}"
    " UNION SELECT job_id, ref FROM holdfast_artifact WHERE job_id IN (SELECT value FROM json_each(:ids))"
    " UNION SELECT job_id, ref FROM holdfast_attempt_log WHERE job_id IN (SELECT value FROM json_each(:ids)) AND ref"
    " IS NOT NULL"
    # The directory of a command job on its host, with all its attempts.
    " UNION SELECT o.job_id, substr(o.ref, 1, instr(o.ref, '/' || o.job_id || '/') + length(o.job_id) + 1) FROM ("
    "SELECT job_id, ref FROM holdfast_attempt_log WHERE job_id IN (SELECT value FROM json_each(:ids))"
    " UNION SELECT job_id, ref FROM holdfast_artifact WHERE job_id IN (SELECT value FROM json_each(:ids))) o"
    " WHERE o.ref LIKE 'file://%' AND instr(o.ref, '/' || o.job_id || '/')) f"
    " WHERE j.id = f.job_id AND length(f.ref) <= 2000"
    " AND (f.ref LIKE 'artifact://%/' || j.id || '/%' OR f.ref LIKE 'file://%/' || j.id || '/')"
    " ON CONFLICT DO NOTHING"
)
# After an hour any host may try, since several hosts may share a directory and hosts change their names.
_REACHABLE = (
    " AND CASE WHEN ref LIKE 'artifact://%' THEN :stored ELSE :host IS NOT NULL"
    " AND (instr(ref, 'file://' || :host || '/') = 1 OR at <= {now} - 3600000000) END"
)
_ANY_DUE = (
    "SELECT 1 FROM holdfast_orphaned_file WHERE again_at <= (SELECT now FROM holdfast_present) AND (:any OR tenant ="
    f" :tenant){_REACHABLE.format(now='(SELECT now FROM holdfast_present)')} LIMIT 1"
)
_DUE = (
    "SELECT tenant, job_id, ref FROM holdfast_orphaned_file WHERE again_at <= :now AND (:any OR tenant = :tenant)"
    f"{_REACHABLE.format(now=':now')} ORDER BY again_at LIMIT :want"
)
_POSTPONE = "UPDATE holdfast_orphaned_file SET again_at = ?1 + max(?2, (?1 - at) / 4) WHERE tenant = ?3 AND ref = ?4"
# A retry as a new job shares the payload of the first attempt.
_REFERENCED = (
    "WITH RECURSIVE tries(id) AS (SELECT :job UNION SELECT j.id FROM tries t JOIN holdfast_job j ON j.retry_of = t.id"
    " WHERE j.retry_of IS NOT NULL)"
    " SELECT 1 FROM tries t JOIN holdfast_job j ON j.id = t.id WHERE instr(j.payload, :ref)"
    " UNION ALL SELECT 1 FROM holdfast_replaced_payload WHERE job_id = :job AND instr(payload, :ref)"
    " UNION ALL SELECT 1 FROM holdfast_result WHERE job_id = :job AND (ref = :ref OR instr(value, :ref))"
    " UNION ALL SELECT 1 FROM holdfast_artifact WHERE job_id = :job AND ref = :ref"
    " UNION ALL SELECT 1 FROM holdfast_attempt_log WHERE job_id = :job"
    " AND (ref = :ref OR (:ref LIKE 'file://%' AND instr(ref, :ref) = 1))"
    f" UNION ALL SELECT 1 FROM holdfast_checkpoint WHERE job_id = :job AND value {_ENVELOPE} AND instr(value, :ref)"
    f" UNION ALL SELECT 1 FROM holdfast_step WHERE job_id = :job AND value {_ENVELOPE} AND instr(value, :ref)"
    " UNION ALL SELECT 1 FROM holdfast_archive WHERE id = :job LIMIT 1"
)
_FORGET = (
    "DELETE FROM holdfast_orphaned_file WHERE ref IN (SELECT value FROM json_each(:refs))"
    " AND (:any OR tenant = :tenant) RETURNING 1"
)
_FIND = (
    "INSERT INTO holdfast_orphaned_file (tenant, ref, job_id, at, again_at) SELECT :whose, :ref, :job, :now,"
    # A file of no job may be an archive that is just being recorded.
    " :now + CASE WHEN EXISTS (SELECT 1 FROM holdfast_job WHERE id = :job) THEN 0 ELSE 3600000000 END"
    " WHERE (:any OR :whose = :tenant) AND :job < :first"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = :job AND s.state <> 'cleaned')"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_archive a WHERE a.id = :job)"
    " ON CONFLICT DO NOTHING RETURNING 1"
)


def _none_due(
    _: object, want: int = 100, tenant: str = EVERY_TENANT, host: str | None = None, stored: bool = True
) -> Steps[list[OrphanedFile] | None]:
    """Check first whether a file is due: a task that writes without need would wake every listener."""
    scope = {"any": any_tenant(tenant), "tenant": tenant, "host": host, "stored": int(stored)}
    rows = yield Statement(_ANY_DUE, scope)
    return None if rows else []


class SqliteOrphans:
    @maintenance_flow([], _none_due)
    def orphans(
        self, want: int = 100, tenant: str = EVERY_TENANT, host: str | None = None, stored: bool = True
    ) -> Steps[list[OrphanedFile]]:
        now = yield from begin_write("retention")
        scope = {"any": any_tenant(tenant), "tenant": tenant, "host": host, "stored": int(stored)}
        rows = yield Statement(_DUE, {**scope, "now": now, "want": want})
        files = [OrphanedFile(*row) for row in rows]
        unreferenced: list[OrphanedFile] = []
        for file in files:
            referenced = yield Statement(_REFERENCED, {"job": file.job_id, "ref": file.ref})
            unreferenced += [] if referenced else [file]
        if files:
            yield Statement(_POSTPONE, [(now, TEN_MINUTES, file.tenant, file.ref) for file in files], many=True)
        yield from end_write()
        return unreferenced

    @flow()
    def forget_orphans(self, refs: Sequence[str], tenant: str = EVERY_TENANT) -> Steps[int]:
        rows = yield Statement(_FORGET, {"refs": ids_json(refs), "any": any_tenant(tenant), "tenant": tenant})
        return len(rows)

    @flow()
    def find_orphans(self, files: Sequence[OrphanedFile], tenant: str = EVERY_TENANT) -> Steps[int]:
        now = yield from begin_write(None)
        scope = {"any": any_tenant(tenant), "tenant": tenant, "now": now, "first": first_id(now - 7 * DAY)}
        count = 0
        for file in files:
            rows = yield Statement(_FIND, {**scope, "whose": file.tenant, "ref": file.ref, "job": file.job_id})
            count += len(rows)
        yield from end_write()
        return count


_THESE = "IN (SELECT value FROM json_each(:ids))"
# A dead letter is discarded first: the state machine has no other path.
_DISCARD = (
    "UPDATE holdfast_job_state SET state = 'cancelled', note = '{\"reason\": \"retention\"}'"
    f" WHERE id {_THESE} AND state = 'dead_letter' RETURNING id"
)
_CLEAN = (
    "UPDATE holdfast_job_state SET state = 'cleaned', error_message = NULL,"
    " note = json_object('was', CASE WHEN id IN (SELECT value FROM json_each(:dead)) THEN 'dead_letter' ELSE state END)"
    f" WHERE id {_THESE}"
)
_EMPTY_PAYLOAD = f"UPDATE holdfast_job SET payload = '{{}}' WHERE id {_THESE} AND payload <> '{{}}'"
_CONTENT_TABLES = ("result", "checkpoint", "artifact", "attempt_log", "step", "replaced_payload")
_KEYS = (
    "DELETE FROM holdfast_idempotency WHERE (tenant, kind, key, job_id) IN"
    f" (SELECT tenant, kind, idempotency_key, id FROM holdfast_job WHERE id {_THESE} AND idempotency_key IS NOT NULL)",
    "DELETE FROM holdfast_content WHERE (tenant, key, job_id) IN"
    f" (SELECT tenant, content_key, id FROM holdfast_job WHERE id {_THESE} AND content_key IS NOT NULL)",
    *(
        f"DELETE FROM holdfast_job_tag WHERE (tenant, tag, job_id) IN (SELECT j.tenant, {entry}, j.id FROM"
        f" holdfast_job j, json_each({column}) t WHERE j.id {_THESE} AND (j.tags <> '[]' OR j.uses IS NOT NULL))"
        for entry, column in (
            ("t.value", "j.tags"),
            ("substr(t.value, 1, instr(t.value, ':')) || '*'", "j.tags"),
            ("' ' || t.value", "coalesce(j.uses, '[]')"),
        )
    ),
)
_OTHER_TABLES = ("occupied_slot", "delivery", "redriven_as", "reference", "resealed", "quarantine", "archived")
_FORGET_MESSAGES = (
    f"UPDATE holdfast_dead_letter_group SET error_message = '[purged]' WHERE sample_job {_THESE} AND error_message <>"
    " '[purged]'"
)
_PURGING_FIRES = (
    "SELECT f.schedule_id, f.due_at, f.manual FROM holdfast_made_from m JOIN holdfast_fire f ON f.schedule_id ="
    f" m.schedule_id AND f.due_at = m.due_at AND f.job_id = m.job_id WHERE m.job_id {_THESE}"
)
_DELETE_FIRE = "DELETE FROM holdfast_fire WHERE schedule_id = ? AND due_at = ? AND manual = ?"
_WORKFLOWS = (
    "DELETE FROM holdfast_workflow WHERE id IN (SELECT value FROM json_each(?))"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_node o WHERE o.workflow_id = holdfast_workflow.id)"
)
_CALLBACKS = (
    "DELETE FROM holdfast_callback WHERE workflow_id IN (SELECT value FROM json_each(?))"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_workflow w WHERE w.id = holdfast_callback.workflow_id)"
)


def clean_jobs(jobs: Sequence[str]) -> Steps[None]:
    """Delete the contents of jobs. Their facts except the payload, their keys, approval decisions and their ledger
    stay."""
    ids = ids_json(jobs)
    dead = yield Statement(_DISCARD, {"ids": ids})
    if dead:
        yield ADVANCE  # workflows handle the discarding, not the cleaning
    yield Statement(_CLEAN, {"ids": ids, "dead": ids_json(row[0] for row in dead)})
    yield Statement(_RECORD_FILES, {"ids": ids})  # while the rows that refer to the files still exist
    yield Statement(_EMPTY_PAYLOAD, {"ids": ids})
    for table in _CONTENT_TABLES:
        yield Statement(f"DELETE FROM holdfast_{table} WHERE job_id {_THESE}", {"ids": ids})


def purge_jobs(jobs: Sequence[str]) -> Steps[None]:
    """Delete cleaned jobs completely, with every row that refers to them (tests/contract/test_retention_catalogue.py
    lists every such column)."""
    these = {"ids": ids_json(jobs)}
    approvals = yield Statement(f"SELECT id FROM holdfast_approval WHERE job_id {_THESE}", these)
    workflows = yield Statement(f"SELECT DISTINCT workflow_id FROM holdfast_node WHERE job_id {_THESE}", these)
    fires = yield Statement(_PURGING_FIRES, these)
    for text in _KEYS:
        yield Statement(text, these)
    yield Statement(f"DELETE FROM holdfast_job_state WHERE id {_THESE}", these)
    yield Statement(f"DELETE FROM holdfast_job WHERE id {_THESE}", these)
    yield Statement(_FORGET_MESSAGES, these)
    yield from record_removed(jobs)  # the seals of the ledger stay verifiable without them
    yield Statement(f"DELETE FROM holdfast_event WHERE job_id {_THESE}", these)
    for table in (*_CONTENT_TABLES, *_OTHER_TABLES):
        yield Statement(f"DELETE FROM holdfast_{table} WHERE job_id {_THESE}", these)
    yield Statement(f"DELETE FROM holdfast_redriven_as WHERE new_id {_THESE}", these)
    yield Statement(f"DELETE FROM holdfast_app_event WHERE job_id {_THESE} AND {_READ_BY_ALL}", these)
    if approvals:
        these_approvals = {"ids": ids_json(row[0] for row in approvals)}
        yield Statement(f"DELETE FROM holdfast_approval WHERE id {_THESE}", these_approvals)
        for table in ("vote", "approval_token"):
            yield Statement(f"DELETE FROM holdfast_{table} WHERE approval_id {_THESE}", these_approvals)
    yield Statement(f"DELETE FROM holdfast_made_from WHERE job_id {_THESE}", these)
    if fires:
        yield Statement(_DELETE_FIRE, [tuple(row) for row in fires], many=True)
    if workflows:
        yield Statement(f"DELETE FROM holdfast_node WHERE job_id {_THESE}", these)
        for end in ("child", "parent"):
            yield Statement(f"DELETE FROM holdfast_dependency WHERE {end} {_THESE}", these)
        for text in (_WORKFLOWS, _CALLBACKS):
            yield Statement(text, (ids_json(row[0] for row in workflows),))
