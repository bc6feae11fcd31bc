"""Attacks on the state of a job: its row, the invariants between its fields (CX-13) and the fence (DP-7)."""

from __future__ import annotations

from functools import partial

from tests.attacks.attack import NOW, STATE, Table, immutable, update

_BY_TRIGGERS = immutable("job_state is written by triggers only")
_EXISTS = ("already exists: there is a job with this id", "job_state is written by triggers only")
_IDENTITY = (
    "immutable: number, id, tenant, kind, agent, executor and crash limit never change",
    "id, tenant, kind, agent, executor and crash limit",
)
_HELD = ("immutable: what holds back a job, and its note, cannot change", "cannot change without a recorded transition")
_RENEWED = ("immutable: a renewal cannot shorten a lease, nor", "a renewal cannot shorten it, nor")
_PARKED = """due_at = :later, held_by = 'nolimit', note = '{"held": "limit", "by": "nolimit"}'"""
_change = partial(update, "job_state", "id")

# -- the row itself (CX-1) -----------------------------------------------------------------------------------

ROWS: Table = {
    "insert a state for an unknown job": (
        f"insert into job_state {STATE} values (:unknown, 'default', 'k', 'default', 'queued', 0, 100, 4, 3)",
        _BY_TRIGGERS,
    ),
    "give a job a second state": (
        f"insert into job_state {STATE} values (:queued, 'default', 'mail.send', 'default', 'queued', 0, 1, 4, 3)",
        _EXISTS,
    ),
    "replace a state": (
        "insert or replace into job_state (n, id, tenant, kind, queue, state, priority, position, max_attempts,"
        " max_crashes) select n, id, tenant, kind, queue, 'queued', 0, 1, 4, 3 from job where id = :succeeded",
        (_EXISTS[0], None),
    ),
    "replace a state by its id": (
        "insert or replace into job_state (id, tenant, kind, queue, state, priority, position, max_attempts,"
        " max_crashes) select id, tenant, kind, queue, 'queued', 0, 1, 4, 3 from job where id = :succeeded",
        (_EXISTS[0], None),
    ),
    "give a finished job a new state through the view of hand-written jobs": (
        "insert into hand_written_job select * from job where id = :succeeded",
        (_EXISTS[0], None),
    ),
    "give a state to a missing job through the view of hand-written jobs": (
        "insert into hand_written_job (n, id, tenant, kind, queue, payload, priority, max_attempts, max_crashes,"
        " tags, enqueued_by, source_system, created_at)"
        " values (999999, :unknown, 'default', 'k', 'default', '{}', 0, 4, 3, '[]', 'sql', 'sql', 0)",
        (_BY_TRIGGERS[0], None),
    ),
    "upsert a state": (
        "insert into job_state select * from job_state where id = :succeeded"
        " on conflict (id) do update set state = 'queued', finished_at = null",
        (None, _BY_TRIGGERS[1]),
    ),
    "queue a cleaned job again": (
        "delete from job_state where id = :cleaned"
        "; insert into job_state (id, tenant, kind, queue, state, priority, position, max_attempts, max_crashes)"
        " select id, tenant, kind, queue, 'queued', 0, 1, 4, 3 from job where id = :cleaned",
        _EXISTS,
    ),
    "queue a cleaned job again by its number": (
        "delete from job_state where id = :cleaned"
        "; insert into job_state (n, id, tenant, kind, queue, state, priority, position, max_attempts, max_crashes)"
        " select n, id, tenant, kind, queue, 'queued', 0, 1, 4, 3 from job where id = :cleaned",
        (_EXISTS[0], None),
    ),
    "delete a state": ("delete from job_state where id = :queued", "only a cleaned job can be purged"),
    "delete a finished state": ("delete from job_state where id = :succeeded", "only a cleaned job"),
    "delete all states": ("delete from job_state", "only a cleaned job can be purged"),
    "truncate the states": ("truncate job_state", (None, "rows are never changed (truncate refused)")),
    'bypass the transition trigger with "or ignore"': (
        f"update or ignore job_state set state = 'succeeded', finished_at = {NOW} where id = :queued",
        ("illegal transition queued -> succeeded", None),
    ),
    "move a state to another tenant": (_change("tenant = 'acme'", "queued"), _IDENTITY),
    "change the kind of a state": (_change("kind = 'evil'", "queued"), _IDENTITY),
    "give a state another id": (_change("id = :unknown", "queued"), _IDENTITY),
    "send a job to another executor": (_change("executor = 'mine'", "queued"), _IDENTITY),
    "allow more crashes": (_change("max_crashes = 100", "running"), _IDENTITY),
    "replace a state with another job's id": (
        "update or replace job_state set id = :leased where id = :queued",
        (_IDENTITY[0], None),
    ),
    "replace a state with another job's number": (
        "update or replace job_state set n = (select n from job where id = :leased) where id = :queued",
        (_IDENTITY[0], None),
    ),
}

# -- between the fields (CX-13, CX-9) ------------------------------------------------------------------------

_COUNTED = ("immutable: attempt cannot change; only starting a job adds one", "attempt cannot change from")
_SETTLED = "lease = null, settled_by = :lease"
_ENDED = f"{_SETTLED}, finished_at = {NOW}"

INVARIANTS: Table = {
    "clear the end of a succeeded job": (_change("finished_at = null", "succeeded"), "finished_iff_terminal"),
    "clear the end of a dead letter": (_change("finished_at = null", "dead"), "finished_iff"),
    "finish a waiting job": (_change(f"finished_at = {NOW}", "queued"), "finished_iff"),
    "finish a running job": (_change(f"finished_at = {NOW}", "running"), "finished_iff"),
    "succeed without an end time": (_change(f"state = 'succeeded', {_SETTLED}", "running"), "finished_iff_terminal"),
    "fail without an error": (_change(f"state = 'failed', {_ENDED}", "running"), "error_when_failed"),
    "fail without a message": (
        _change(f"state = 'failed', error_code = 'x', {_ENDED}", "running"),
        "error_when_failed",
    ),
    "clear the error of a dead letter": (_change("error_code = null", "dead"), "error_when"),
    "wait for a retry without a time": (
        _change(f"state = 'retry_waiting', {_SETTLED}", "running"),
        "due_when_retry_waiting",
    ),
    "clear the time of a retry": (_change("due_at = null", "waiting"), "due_when_retry"),
    "wait for approval without an approval": (
        _change(f"state = 'waiting_for_approval', {_SETTLED}", "running"),
        "approval_when_waiting",
    ),
    "move to leased without a lease": (_change("state = 'leased'", "queued"), "lease_iff_held"),
    "start without a lease": (_change("state = 'in_progress', attempt = attempt + 1", "queued"), "lease_iff_held"),
    "clear the lease of a running job": (_change("lease = null", "running"), "lease_iff_held"),
    "cancel and keep the lease": (_change(f"state = 'cancelled', finished_at = {NOW}", "running"), "lease_iff_held"),
    "settle and keep the lease": (_change("settled_by = :lease", "running"), "unsettled_while"),
    "exceed the retry limit": (_change("retries = max_attempts", "waiting"), "retries_w"),
    "set a negative number of retries": (_change("retries = -1", "waiting"), "retries_within_limit"),
    "allow 101 retries": (_change("max_attempts = 102", "queued"), "retries_within_limit"),
    "set a negative number of crashes": (_change("crashes = -1", "queued"), "crashes_counted"),
    "insert a result without a value": (
        "insert into result (job_id, tenant) values (:succeeded, 'default')",
        "something",
    ),
    "end a lease without a reason": (f"update lease set ended_at = {NOW} where id = :other", "why_iff_ended"),
    "hold back a job for nothing": (_change("held_by = 'nolimit'", "queued"), _HELD),
    "pretend that a job waits for its parents": (_change("""note = '{"held": "parents"}'""", "queued"), _HELD),
    "park a job under a limit that does not exist": (_change(_PARKED, "queued"), _HELD),
    "start a retry earlier": (_change(f"due_at = {NOW}, note = null", "waiting"), _HELD),
    "change the note of a succeeded job": (_change("""note = '{"paid": 1}'""", "succeeded"), _HELD),
    "shorten a lease": ("update lease set until = opened_at where id = :lease", _RENEWED),
    "lower the renewals of a lease": ("update lease set renewals = renewals - 1 where id = :lease", _RENEWED),
    "renew a lease in the future": ("update lease set renewed_at = :later where id = :lease", _RENEWED),
    "count an attempt without a start": (_change("attempt = attempt + 1", "queued"), _COUNTED),
    "lower the number of attempts": (_change("attempt = attempt - 1", "running"), _COUNTED),
    "start without counting an attempt": (_change("state = 'in_progress', lease = :other", "queued"), _COUNTED),
    "start with two attempts": (
        _change("state = 'in_progress', lease = :other, attempt = attempt + 2", "queued"),
        _COUNTED,
    ),
    "count an attempt at the end": (
        _change(f"state = 'succeeded', attempt = attempt + 1, {_ENDED}", "running"),
        _COUNTED,
    ),
}

# -- the fence (DP-7) ----------------------------------------------------------------------------------------

_TOKEN = ("stale lease: ending an attempt needs the lease token of its holder", "needs the lease token of its holder")
_MOVED = ("stale lease: a held job cannot move to another lease", "a held job cannot move to another lease")
_LIVE = ("stale lease: a job can only be claimed under a live lease", "it is not a live lease")
_LOST = ("stale lease: a job cannot be declared lost while its lease is live", "cannot be declared lost")
_LOSE = (
    f"update job_state set state = 'failed', lease = null, finished_at = {NOW}, error_code = 'worker_lost',"
    " error_message = 'x' where id = :running"
)
_ENDINGS = {
    "succeed": f"state = 'succeeded', finished_at = {NOW}",
    "fail": f"state = 'failed', finished_at = {NOW}, error_code = 'x', error_message = 'y'",
    "snooze": f"state = 'retry_waiting', due_at = {NOW}",
    "wait for approval": "state = 'waiting_for_approval', approval_id = :unknown",
}

FENCE: Table = {
    **{
        f"{event_type} {how}": (
            f"update job_state set {change}, lease = null, settled_by = {shown} where id = :running",
            _TOKEN,
        )
        for event_type, change in _ENDINGS.items()
        for how, shown in {
            "without a lease token": "null",
            "with another lease": ":other",
            "with an ended lease": ":ended",
            "with an unknown lease": ":unknown",
        }.items()
    },
    "declare a live lease lost": (_LOSE, _LOST),
    "declare a live lease lost with another lease": (_LOSE.replace("where", ", settled_by = :other where"), _LOST),
    "declare a live lease lost from inside a tenant": (
        f"select set_config('holdfast.tenant', 'default', true); {_LOSE}",
        (None, _LOST[1]),
    ),
    **{
        f"{event_type} under {what} lease": (
            f"update job_state set state = '{state}', lease = {lease}, attempt = attempt + {starts} where id = :queued",
            _LIVE,
        )
        for event_type, state, starts in (("claim", "leased", 0), ("take", "in_progress", 1))
        for what, lease in {"an unknown": ":unknown", "an ended": ":ended"}.items()
    },
    "take over a running job": (_change("lease = :other", "running"), _MOVED),
    "take over a leased job": (_change("lease = :other", "leased"), _MOVED),
    "start a job leased by another worker": (
        _change("state = 'in_progress', lease = :other, attempt = attempt + 1", "leased"),
        _MOVED,
    ),
    "take over a running job and settle it": (
        "update job_state set lease = :other where id = :running"
        f"; update job_state set state = 'succeeded', lease = null, settled_by = :other, finished_at = {NOW}"
        " where id = :running",
        _MOVED,
    ),
}
