"""Attacks on the facts of a job (CX-3), on the ledger (CX-4) and on artifacts (SC-5)."""

from __future__ import annotations

from tests.attacks.attack import EVENT, NOW, Attack, both, each, only_postgres, only_sqlite

# -- facts and results (CX-3) --------------------------------------------------------------------------------

_NEVER = ("immutable: the facts of a job never change", "the facts and the payload of a job never change")
_PAYLOAD = ("immutable: the payload never changes", "the facts and the payload of a job never change")
_FACTS = {
    "id": (":unknown", ":unknown"),
    "tenant": ("'acme'", "'acme'"),
    "kind": ("'evil'", "'evil'"),
    "queue": ("'evil'", "'evil'"),
    "priority": ("9", "9"),
    "run_at": (NOW, NOW),
    "deadline_at": (NOW, NOW),
    "max_attempts": ("9", "9"),
    "max_crashes": ("9", "9"),
    "backoff": ("'{}'", "'{}'"),
    "idempotency_key": ("'k'", "'k'"),
    "content_key": ("'k'", "'k'"),
    "tags": ("""'["x"]'""", "array['x']"),
    "agent": ("'a'", "'a'"),
    "correlation_id": ("'c'", "'c'"),
    "causation_id": ("'c'", "'c'"),
    "parent_id": (":running", ":running"),
    "workflow_id": (":unknown", ":unknown"),
    "external_ref": ("'e'", "'e'"),
    "enqueued_by": ("'mallory'", "'mallory'"),
    "source_system": ("'evil'", "'evil'"),
    "created_at": (NOW, NOW),
}

_ONCE = "written once, when its job succeeds"
_VALUES = "(job_id, tenant, value) values"

FACTS = [
    both(
        "change a result", """update result set value = '{"paid": 9}' where job_id = :returned""", says="a result never"
    ),
    both("empty a result", "update result set value = 'null' where job_id = :returned", says="a result never"),
    both(
        "change the location of a result",
        "update result set ref = 'file:x' where job_id = :returned",
        says="a result never",
    ),
    both(
        "move a result to another job",
        "update result set job_id = :succeeded where job_id = :returned",
        says="a result never",
    ),
    both(
        "seal a result by hand",
        """update result set value = '{"$holdfast": {"key": "k"}}' where job_id = :returned""",
        says="a result never",
    ),
    both("delete a result", "delete from result where job_id = :returned", says="only retention deletes results"),
    both("insert a result for a running job", f"insert into result {_VALUES} (:running, 'default', '1')", says=_ONCE),
    both("insert a result for a failed job", f"insert into result {_VALUES} (:dead, 'default', '1')", says=_ONCE),
    both("insert a result for another tenant", f"insert into result {_VALUES} (:succeeded, 'acme', '1')", says=_ONCE),
    only_postgres("truncate the results", "truncate result", says="never changed"),
    both("change the payload", """update job set payload = '{"to": "mallory"}' where id = :queued""", says=_PAYLOAD),
    both("change the payload of a cleaned job", "update job set payload = '[1]' where id = :cleaned", says=_PAYLOAD),
    both("empty the payload of a live job", "update job set payload = '{}' where id = :running", says=_PAYLOAD),
    both("empty every payload", "update job set payload = '{}'", says=_PAYLOAD),
    *(
        each(
            f"change the fact {column}",
            f"update job set {column} = {sqlite} where id = :queued",
            f"update job set {column} = {postgres} where id = :queued",
            says=_NEVER,
        )
        for column, (sqlite, postgres) in _FACTS.items()
    ),
    both("delete a job", "delete from job where id = :succeeded", says="never deleted while it has a state"),
    both("delete all jobs", "delete from job", says="never deleted while it has a state"),
    only_postgres("truncate the jobs", "truncate job", says="rows are never changed (truncate refused)"),
    only_sqlite(
        "replace a job",
        "insert or replace into job (id, kind, payload) values (:queued, 'mail.send', '[]')",
        says="already exists: there is a job with this id",
    ),
    only_sqlite(
        "replace a job by its number",
        "insert or replace into job (n, id, kind) select n, :unknown, kind from job where id = :queued",
        says="already exists: there is a job with this id",
    ),
    only_sqlite("give a job another's id", "update or replace job set id = :leased where id = :queued", says=_NEVER[0]),
    only_postgres(
        "upsert a job",
        "insert into job (id, kind, tenant) values (:queued, 'mail.send', 'default')"
        " on conflict (id) do update set payload = excluded.payload",
        says=_NEVER[1],
    ),
    both(
        "enqueue with 101 retries",
        "insert into job (id, kind, tenant, max_attempts) values (:unknown, 'k', 'default', 102)",
        says="attempts_bounded",
    ),
    both(
        "enqueue with a crash limit of 101",
        "insert into job (id, kind, tenant, max_crashes) values (:unknown, 'k', 'default', 101)",
        says="crashes_bounded",
    ),
    both(
        "enqueue a payload that is not JSON",
        "insert into job (id, kind, tenant, payload) values (:unknown, 'k', 'default', '{to: ada}')",
        says=("payload_is_json", "invalid input syntax for type json"),
    ),
    both(
        "enqueue without an actor",
        "insert into job (id, kind, tenant, enqueued_by) values (:unknown, 'k', 'default', ' ')",
        says="enqueued_by_named",
    ),
    both(
        "enqueue for every tenant",
        "insert into job (id, kind, tenant) values (:unknown, 'k', '*')",
        says="tenant_named",
    ),
]

# -- the ledger (CX-4) ---------------------------------------------------------------------------------------

_LEDGER = ("immutable: ledger rows are never changed", "event: rows are never changed (update refused)")
_KEPT = ("immutable: ledger rows are never deleted", "event: rows are never deleted while their job exists")
_WRITTEN = ("immutable: the ledger is written by triggers only", "event is written by triggers only")

LEDGER = [
    both("change the actor of an event", "update event set actor = 'nobody' where job_id = :running", says=_LEDGER),
    both("change the type of events", "update event set type = 'succeed', to_state = 'succeeded'", says=_LEDGER),
    both("renumber the ledger", "update event set seq = seq + 100000", says=_LEDGER),
    both("delete one event", "delete from event where job_id = :running and type = 'take'", says=_KEPT),
    both("delete the events of a job", "delete from event where job_id = :cleaned", says=_KEPT),
    both("delete all events", "delete from event", says=_KEPT),
    only_postgres("truncate the ledger", "truncate event", says="event: rows are never changed (truncate refused)"),
    both(
        "insert a reschedule event",
        "insert into event (job_id, tenant, kind, type, from_state, to_state, attempt, at, actor, meta)"
        f" values (:queued, 'default', 'mail.send', 'reschedule', 'queued', 'queued', 0, {NOW}, 'm',"
        ' \'{"rescheduled": "now"}\')',
        says=_WRITTEN,
    ),
    both(
        "insert a second reschedule event",
        'update job_state set note = \'{"rescheduled": "now"}\' where id = :queued',
        "insert into event (job_id, tenant, kind, type, from_state, to_state, attempt, at, actor, meta)"
        f" values (:queued, 'default', 'mail.send', 'reschedule', 'queued', 'queued', 0, {NOW}, 'm',"
        ' \'{"rescheduled": "now"}\')',
        says=_WRITTEN,
    ),
    both(
        "insert a reschedule event without its details",
        'update job_state set note = \'{"rescheduled": "now"}\' where id = :queued',
        "insert into event (job_id, tenant, kind, type, from_state, to_state, attempt, at, actor)"
        f" values (:queued, 'default', 'mail.send', 'reschedule', 'queued', 'queued', 0, {NOW}, 'm')",
        says=_WRITTEN,
    ),
    both(
        "insert a move event",
        "insert into event (job_id, tenant, kind, type, from_state, to_state, attempt, at, actor, meta)"
        f" values (:queued, 'default', 'mail.send', 'move', 'queued', 'queued', 0, {NOW}, 'm',"
        ' \'{"to":"first"}\')',
        says=_WRITTEN,
    ),
    both(
        "insert a second move event",
        'update job_state set note = \'{"moved": {"to": "first"}}\' where id = :queued',
        "insert into event (job_id, tenant, kind, type, from_state, to_state, attempt, at, actor, meta)"
        f" values (:queued, 'default', 'mail.send', 'move', 'queued', 'queued', 0, {NOW}, 'm',"
        ' \'{"to":"first"}\')',
        says=_WRITTEN,
    ),
    both(
        "record a move as a reschedule",
        'update job_state set note = \'{"moved": {"to": "first"}}\' where id = :queued',
        "insert into event (job_id, tenant, kind, type, from_state, to_state, attempt, at, actor, meta)"
        f" values (:queued, 'default', 'mail.send', 'reschedule', 'queued', 'queued', 0, {NOW}, 'm',"
        ' \'{"moved": {"to": "first"}}\')',
        says=_WRITTEN,
    ),
    both(
        "insert an event",
        f"insert into event {EVENT} values (:queued, 'default', 'mail.send', 'take', 'queued', 'in_progress', 1,"
        f" {NOW}, 'mallory')",
        says=_WRITTEN,
    ),
    both(
        "insert a second enqueue event",
        f"insert into event {EVENT} values (:queued, 'default', 'mail.send', 'enqueue', null, 'queued', 0,"
        f" {NOW}, 'mallory')",
        says=_WRITTEN,
    ),
    both(
        "insert an event that does not change the state",
        f"insert into event {EVENT} values (:queued, 'default', 'mail.send', 'due', 'queued', 'queued', 0,"
        f" {NOW}, 'mallory')",
        says=_WRITTEN,
    ),
    both(
        "insert an event for an unknown job",
        f"insert into event {EVENT} values (:unknown, 'default', 'k', 'enqueue', null, 'queued', 0, {NOW}, 'm')",
        says=_WRITTEN,
    ),
    only_sqlite(
        "replace an event",
        "insert or replace into event select seq, job_id, tenant, kind, type, from_state, to_state, attempt, at,"
        " 'mallory', meta from event where job_id = :running",
        says=_WRITTEN[0],
    ),
    only_sqlite(
        'bypass the ledger trigger with "or ignore"', "update or ignore event set actor = 'nobody'", says=_LEDGER[0]
    ),
    only_sqlite("swap two events", "update or replace event set seq = seq - 1 where seq > 1", says=_LEDGER[0]),
    only_postgres(
        "upsert an event",
        "insert into event select * from event where job_id = :running"
        " on conflict (job_id, seq) do update set actor = 'm'",
        says=_WRITTEN[1],
    ),
    Attack(
        "delete the clock, then change a job",
        ("delete from clock", "update job_state set state = 'cancelled', finished_at = 1 where id = :queued"),
        ("delete from clock", "update job_state set state = 'cancelled', finished_at = now() where id = :queued"),
        ("immutable: the clock must keep its one row", 'null value in column "at"'),
    ),
]

# -- artifacts (SC-5) ----------------------------------------------------------------------------------------

_ADDED = ("immutable: artifacts are never changed", "artifact: rows are never changed (update refused)")

ARTIFACTS = [
    both("edit an artifact", "update artifact set ref = 'file:evil' where job_id = :running", says=_ADDED),
    both("edit the artifact of a finished job", "update artifact set ref = 'x' where job_id = :succeeded", says=_ADDED),
    both(
        "delete an artifact",
        "delete from artifact where job_id = :running",
        says=(
            "immutable: artifacts are deleted only after their job is cleaned",
            "artifact: rows are never changed (delete refused)",
        ),
    ),
    only_postgres("truncate the artifacts", "truncate artifact", says="rows are never changed (truncate refused)"),
    only_sqlite(
        "replace an artifact",
        "insert or replace into artifact select job_id, tenant, attempt, name, 'file:evil', meta, at from artifact",
        says="already exists: there is an artifact with this name",
    ),
    only_sqlite("rename an artifact over another", "update or replace artifact set name = 'log'", says=_ADDED[0]),
    only_postgres(
        "upsert an artifact",
        "insert into artifact select * from artifact on conflict (job_id, attempt, name) do update set ref = 'x'",
        says=_ADDED[1],
    ),
]
