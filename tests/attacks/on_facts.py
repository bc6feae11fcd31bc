"""Attacks on the facts of a job (CX-3), on the ledger (CX-4) and on artifacts (SC-5)."""

from __future__ import annotations

from tests.attacks.attack import EVENT, NOW, Table, immutable, same

# -- facts and results (CX-3) --------------------------------------------------------------------------------

_NEVER = ("immutable: the facts of a job never change", "the facts and the payload of a job never change")
_PAYLOAD = ("immutable: the payload never changes", "the facts and the payload of a job never change")
_FACTS = {
    **same(id=":unknown", tenant="'acme'", kind="'evil'", queue="'evil'", priority="9", run_at=NOW, deadline_at=NOW),
    **same(max_attempts="9", max_crashes="9", backoff="'{}'", idempotency_key="'k'", content_key="'k'"),
    "tags": ("""'["x"]'""", "array['x']"),
    **same(agent="'a'", correlation_id="'c'", causation_id="'c'", parent_id=":running", workflow_id=":unknown"),
    **same(enqueued_by="'mallory'", source_system="'evil'", created_at=NOW),
}
_ONCE = "written once, when its job succeeds"
_VALUES = "(job_id, tenant, value) values"

_TAKEN = ("already exists: there is a job with this id", None)


def _enqueue(column: str, value: str) -> str:
    return f"insert into job (id, kind, tenant, {column}) values (:unknown, 'k', 'default', {value})"


def _result(columns: str) -> str:
    return f"update result set {columns} where job_id = :returned"


FACTS: Table = {
    "change a result": (_result("""value = '{"paid": 9}'"""), "a result never"),
    "empty a result": (_result("value = 'null'"), "a result never"),
    "change the location of a result": (_result("ref = 'file:x'"), "a result never"),
    "move a result to another job": (_result("job_id = :succeeded"), "a result never"),
    "seal a result by hand": (_result("""value = '{"$holdfast": {"key": "k"}}'"""), "a result never"),
    "delete a result": ("delete from result where job_id = :returned", "result: only retention deletes rows"),
    "insert a result for a running job": (f"insert into result {_VALUES} (:running, 'default', '1')", _ONCE),
    "insert a result for a failed job": (f"insert into result {_VALUES} (:dead, 'default', '1')", _ONCE),
    "insert a result for another tenant": (f"insert into result {_VALUES} (:succeeded, 'acme', '1')", _ONCE),
    "truncate the results": ("truncate result", (None, "never changed")),
    "change the payload": ("""update job set payload = '{"to": "mallory"}' where id = :queued""", _PAYLOAD),
    "change the payload of a cleaned job": ("update job set payload = '[1]' where id = :cleaned", _PAYLOAD),
    "empty the payload of a live job": ("update job set payload = '{}' where id = :running", _PAYLOAD),
    "empty every payload": ("update job set payload = '{}'", _PAYLOAD),
    **{
        f"change the fact {column}": (
            (
                f"update job set {column} = {sqlite} where id = :queued",
                f"update job set {column} = {postgres} where id = :queued",
            ),
            _NEVER,
        )
        for column, (sqlite, postgres) in _FACTS.items()
    },
    "delete a job": ("delete from job where id = :succeeded", "never deleted while it has a state"),
    "delete all jobs": ("delete from job", "never deleted while it has a state"),
    "truncate the jobs": ("truncate job", (None, "rows are never changed (truncate refused)")),
    "replace a job": ("insert or replace into job (id, kind, payload) values (:queued, 'mail.send', '[]')", _TAKEN),
    "replace a job by its number": (
        "insert or replace into job (n, id, kind) select n, :unknown, kind from job where id = :queued",
        _TAKEN,
    ),
    "give a job another's id": ("update or replace job set id = :leased where id = :queued", (_NEVER[0], None)),
    "upsert a job": (
        "insert into job (id, kind, tenant) values (:queued, 'mail.send', 'default')"
        " on conflict (id) do update set payload = excluded.payload",
        (None, _NEVER[1]),
    ),
    "enqueue with 101 retries": (_enqueue("max_attempts", "102"), "attempts_bounded"),
    "enqueue with a crash limit of 101": (_enqueue("max_crashes", "101"), "crashes_bounded"),
    "enqueue a payload that is not JSON": (
        _enqueue("payload", "'{to: ada}'"),
        ("payload_is_json", "invalid input syntax for type json"),
    ),
    "enqueue without an actor": (_enqueue("enqueued_by", "' '"), "enqueued_by_named"),
    "enqueue for every tenant": ("insert into job (id, kind, tenant) values (:unknown, 'k', '*')", "tenant_named"),
}

# -- the ledger (CX-4) ---------------------------------------------------------------------------------------

_LEDGER = immutable("event: rows are never changed")
_KEPT = ("immutable: ledger rows are never deleted", "event: rows are never deleted while their job exists")
_WRITTEN = ("immutable: the ledger is written by triggers only", "event is written by triggers only")

_RESCHEDULED = """'{"rescheduled": "now"}'"""
_MOVED = """'{"moved": {"to": "first"}}'"""
_TO_FIRST = """'{"to":"first"}'"""


def _noted(note: str) -> str:
    return f"update job_state set note = {note} where id = :queued"


def _recorded(event_type: str, meta: str | None = None) -> str:
    columns, values = (EVENT, "") if meta is None else (f"{EVENT[:-1]}, meta)", f", {meta}")
    return (
        f"insert into event {columns} values (:queued, 'default', 'mail.send', '{event_type}', 'queued', 'queued', 0,"
        f" {NOW}, 'm'{values})"
    )


LEDGER: Table = {
    "change the actor of an event": ("update event set actor = 'nobody' where job_id = :running", _LEDGER),
    "change the type of events": ("update event set type = 'succeed', to_state = 'succeeded'", _LEDGER),
    "renumber the ledger": ("update event set seq = seq + 100000", _LEDGER),
    "delete one event": ("delete from event where job_id = :running and type = 'take'", _KEPT),
    "delete the events of a job": ("delete from event where job_id = :cleaned", _KEPT),
    "delete all events": ("delete from event", _KEPT),
    "truncate the ledger": ("truncate event", (None, "event: rows are never changed (truncate refused)")),
    "insert a reschedule event": (_recorded("reschedule", _RESCHEDULED), _WRITTEN),
    "insert a second reschedule event": (f"{_noted(_RESCHEDULED)}; {_recorded('reschedule', _RESCHEDULED)}", _WRITTEN),
    "insert a reschedule event without its details": (
        f"{_noted(_RESCHEDULED)}; {_recorded('reschedule')}",
        _WRITTEN,
    ),
    "insert a move event": (_recorded("move", _TO_FIRST), _WRITTEN),
    "insert a second move event": (f"{_noted(_MOVED)}; {_recorded('move', _TO_FIRST)}", _WRITTEN),
    "record a move as a reschedule": (f"{_noted(_MOVED)}; {_recorded('reschedule', _MOVED)}", _WRITTEN),
    "insert an event": (
        f"insert into event {EVENT} values (:queued, 'default', 'mail.send', 'take', 'queued', 'in_progress', 1,"
        f" {NOW}, 'mallory')",
        _WRITTEN,
    ),
    "insert a second enqueue event": (
        f"insert into event {EVENT} values (:queued, 'default', 'mail.send', 'enqueue', null, 'queued', 0,"
        f" {NOW}, 'mallory')",
        _WRITTEN,
    ),
    "insert an event that does not change the state": (
        f"insert into event {EVENT} values (:queued, 'default', 'mail.send', 'due', 'queued', 'queued', 0,"
        f" {NOW}, 'mallory')",
        _WRITTEN,
    ),
    "insert an event for an unknown job": (
        f"insert into event {EVENT} values (:unknown, 'default', 'k', 'enqueue', null, 'queued', 0, {NOW}, 'm')",
        _WRITTEN,
    ),
    "replace an event": (
        "insert or replace into event select seq, job_id, tenant, kind, type, from_state, to_state, attempt, at,"
        " 'mallory', meta from event where job_id = :running",
        (_WRITTEN[0], None),
    ),
    'bypass the ledger trigger with "or ignore"': ("update or ignore event set actor = 'nobody'", (_LEDGER[0], None)),
    "swap two events": ("update or replace event set seq = seq - 1 where seq > 1", (_LEDGER[0], None)),
    "upsert an event": (
        "insert into event select * from event where job_id = :running"
        " on conflict (job_id, seq) do update set actor = 'm'",
        (None, _WRITTEN[1]),
    ),
    "delete the clock, then change a job": (
        (
            "delete from clock; update job_state set state = 'cancelled', finished_at = 1 where id = :queued",
            "delete from clock; update job_state set state = 'cancelled', finished_at = now() where id = :queued",
        ),
        ("immutable: the clock must keep its one row", 'null value in column "at"'),
    ),
}

# -- artifacts (SC-5) ----------------------------------------------------------------------------------------

_ADDED = immutable("artifact: rows are never changed")

ARTIFACTS: Table = {
    "edit an artifact": ("update artifact set ref = 'file:evil' where job_id = :running", _ADDED),
    "edit the artifact of a finished job": ("update artifact set ref = 'x' where job_id = :succeeded", _ADDED),
    "delete an artifact": (
        "delete from artifact where job_id = :running",
        immutable("artifact: only retention deletes rows"),
    ),
    "truncate the artifacts": ("truncate artifact", (None, "rows are never changed (truncate refused)")),
    "replace an artifact": (
        "insert or replace into artifact select job_id, tenant, attempt, name, 'file:evil', meta, at from artifact",
        ("already exists: there is a row of artifact with this key", None),
    ),
    "rename an artifact over another": ("update or replace artifact set name = 'log'", (_ADDED[0], None)),
    "upsert an artifact": (
        "insert into artifact select * from artifact on conflict (job_id, attempt, name) do update set ref = 'x'",
        (None, _ADDED[1]),
    ),
}
