"""Attacks on the state of a job: its row, the invariants between its fields (CX-13) and the fence (DP-7)."""

from __future__ import annotations

from functools import partial

from tests.attacks.attack import NOW, STATE, both, immutable, only_postgres, only_sqlite, update

_BY_TRIGGERS = immutable("job_state is written by triggers only")
_EXISTS = ("already exists: there is a job with this id", "job_state is written by triggers only")
_IDENTITY = (
    "immutable: number, id, tenant, kind, agent, executor and crash limit never change",
    "id, tenant, kind, agent, executor and crash limit",
)
_HELD = ("immutable: what holds back a job, and its note, cannot change", "cannot change without a recorded transition")
_RENEWED = ("immutable: a renewal cannot shorten a lease, nor", "a renewal cannot shorten it, nor")
_change = partial(update, "job_state", "id")

# -- the row itself (CX-1) -----------------------------------------------------------------------------------

ROWS = [
    both(
        "insert a state for an unknown job",
        f"insert into job_state {STATE} values (:unknown, 'default', 'k', 'default', 'queued', 0, 100, 4, 3)",
        says=_BY_TRIGGERS,
    ),
    both(
        "give a job a second state",
        f"insert into job_state {STATE} values (:queued, 'default', 'mail.send', 'default', 'queued', 0, 1, 4, 3)",
        says=_EXISTS,
    ),
    only_sqlite(
        "replace a state",
        "insert or replace into job_state (n, id, tenant, kind, queue, state, priority, position, max_attempts,"
        " max_crashes) select n, id, tenant, kind, queue, 'queued', 0, 1, 4, 3 from job where id = :succeeded",
        says=_EXISTS[0],
    ),
    only_sqlite(
        "replace a state by its id",
        "insert or replace into job_state (id, tenant, kind, queue, state, priority, position, max_attempts,"
        " max_crashes) select id, tenant, kind, queue, 'queued', 0, 1, 4, 3 from job where id = :succeeded",
        says=_EXISTS[0],
    ),
    only_sqlite(
        "give a finished job a new state through the view of hand-written jobs",
        "insert into hand_written_job select * from job where id = :succeeded",
        says=_EXISTS[0],
    ),
    only_sqlite(
        "give a state to a missing job through the view of hand-written jobs",
        "insert into hand_written_job (n, id, tenant, kind, queue, payload, priority, max_attempts, max_crashes, tags,"
        " enqueued_by, source_system, created_at)"
        " values (999999, :unknown, 'default', 'k', 'default', '{}', 0, 4, 3, '[]', 'sql', 'sql', 0)",
        says=_BY_TRIGGERS[0],
    ),
    only_postgres(
        "upsert a state",
        "insert into job_state select * from job_state where id = :succeeded"
        " on conflict (id) do update set state = 'queued', finished_at = null",
        says=_BY_TRIGGERS[1],
    ),
    both(
        "queue a cleaned job again",
        "delete from job_state where id = :cleaned",
        *(
            "insert into job_state (id, tenant, kind, queue, state, priority, position, max_attempts, max_crashes)"
            " select id, tenant, kind, queue, 'queued', 0, 1, 4, 3 from job where id = :cleaned",
        ),
        says=_EXISTS,
    ),
    only_sqlite(
        "queue a cleaned job again by its number",
        "delete from job_state where id = :cleaned",
        "insert into job_state (n, id, tenant, kind, queue, state, priority, position, max_attempts, max_crashes)"
        " select n, id, tenant, kind, queue, 'queued', 0, 1, 4, 3 from job where id = :cleaned",
        says=_EXISTS[0],
    ),
    both("delete a state", "delete from job_state where id = :queued", says="only a cleaned job can be purged"),
    both("delete a finished state", "delete from job_state where id = :succeeded", says="only a cleaned job"),
    both("delete all states", "delete from job_state", says="only a cleaned job can be purged"),
    only_postgres("truncate the states", "truncate job_state", says="rows are never changed (truncate refused)"),
    only_sqlite(
        'bypass the transition trigger with "or ignore"',
        f"update or ignore job_state set state = 'succeeded', finished_at = {NOW} where id = :queued",
        says="illegal transition queued -> succeeded",
    ),
    _change("move a state to another tenant", "tenant = 'acme'", "queued", says=_IDENTITY),
    _change("change the kind of a state", "kind = 'evil'", "queued", says=_IDENTITY),
    _change("give a state another id", "id = :unknown", "queued", says=_IDENTITY),
    _change("send a job to another executor", "executor = 'mine'", "queued", says=_IDENTITY),
    _change("allow more crashes", "max_crashes = 100", "running", says=_IDENTITY),
    only_sqlite(
        "replace a state with another job's id",
        "update or replace job_state set id = :leased where id = :queued",
        says=_IDENTITY[0],
    ),
    only_sqlite(
        "replace a state with another job's number",
        "update or replace job_state set n = (select n from job where id = :leased) where id = :queued",
        says=_IDENTITY[0],
    ),
]

# -- between the fields (CX-13, CX-9) ------------------------------------------------------------------------

_COUNTED = ("immutable: attempt cannot change; only starting a job adds one", "attempt cannot change from")
_ENDED = f"lease = null, settled_by = :lease, finished_at = {NOW}"

INVARIANTS = [
    _change("clear the end of a succeeded job", "finished_at = null", "succeeded", says="finished_iff_terminal"),
    _change("clear the end of a dead letter", "finished_at = null", "dead", says="finished_iff"),
    _change("finish a waiting job", f"finished_at = {NOW}", "queued", says="finished_iff"),
    _change("finish a running job", f"finished_at = {NOW}", "running", says="finished_iff"),
    _change(
        "succeed without an end time",
        "state = 'succeeded', lease = null, settled_by = :lease",
        "running",
        says="finished_iff_terminal",
    ),
    _change("fail without an error", f"state = 'failed', {_ENDED}", "running", says="error_when_failed"),
    _change(
        "fail without a message", f"state = 'failed', error_code = 'x', {_ENDED}", "running", says="error_when_failed"
    ),
    _change("clear the error of a dead letter", "error_code = null", "dead", says="error_when"),
    _change(
        "wait for a retry without a time",
        "state = 'retry_waiting', lease = null, settled_by = :lease",
        "running",
        says="due_when_retry_waiting",
    ),
    _change("clear the time of a retry", "due_at = null", "waiting", says="due_when_retry"),
    _change(
        "wait for approval without an approval",
        "state = 'waiting_for_approval', lease = null, settled_by = :lease",
        "running",
        says="approval_when_waiting",
    ),
    _change("move to leased without a lease", "state = 'leased'", "queued", says="lease_iff_held"),
    _change("start without a lease", "state = 'in_progress', attempt = attempt + 1", "queued", says="lease_iff_held"),
    _change("clear the lease of a running job", "lease = null", "running", says="lease_iff_held"),
    _change("cancel and keep the lease", f"state = 'cancelled', finished_at = {NOW}", "running", says="lease_iff_held"),
    _change("settle and keep the lease", "settled_by = :lease", "running", says="unsettled_while"),
    _change("exceed the retry limit", "retries = max_attempts", "waiting", says="retries_w"),
    _change("set a negative number of retries", "retries = -1", "waiting", says="retries_within_limit"),
    _change("allow 101 retries", "max_attempts = 102", "queued", says="retries_within_limit"),
    _change("set a negative number of crashes", "crashes = -1", "queued", says="crashes_counted"),
    both(
        "insert a result without a value",
        "insert into result (job_id, tenant) values (:succeeded, 'default')",
        says="something",
    ),
    both("end a lease without a reason", f"update lease set ended_at = {NOW} where id = :other", says="why_iff_ended"),
    _change("hold back a job for nothing", "held_by = 'nolimit'", "queued", says=_HELD),
    _change("pretend that a job waits for its parents", """note = '{"held": "parents"}'""", "queued", says=_HELD),
    _change(
        "park a job under a limit that does not exist",
        """due_at = :later, held_by = 'nolimit', note = '{"held": "limit", "by": "nolimit"}'""",
        "queued",
        says=_HELD,
    ),
    _change("start a retry earlier", f"due_at = {NOW}, note = null", "waiting", says=_HELD),
    _change("change the note of a succeeded job", """note = '{"paid": 1}'""", "succeeded", says=_HELD),
    both("shorten a lease", "update lease set until = opened_at where id = :lease", says=_RENEWED),
    both("lower the renewals of a lease", "update lease set renewals = renewals - 1 where id = :lease", says=_RENEWED),
    both("renew a lease in the future", "update lease set renewed_at = :later where id = :lease", says=_RENEWED),
    _change("count an attempt without a start", "attempt = attempt + 1", "queued", says=_COUNTED),
    _change("lower the number of attempts", "attempt = attempt - 1", "running", says=_COUNTED),
    _change("start without counting an attempt", "state = 'in_progress', lease = :other", "queued", says=_COUNTED),
    _change(
        "start with two attempts",
        "state = 'in_progress', lease = :other, attempt = attempt + 2",
        "queued",
        says=_COUNTED,
    ),
    _change(
        "count an attempt at the end", f"state = 'succeeded', attempt = attempt + 1, {_ENDED}", "running", says=_COUNTED
    ),
]

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

FENCE = [
    *(
        both(
            f"{event_type} {how}",
            f"update job_state set {change}, lease = null, settled_by = {shown} where id = :running",
            says=_TOKEN,
        )
        for event_type, change in _ENDINGS.items()
        for how, shown in {
            "without a lease token": "null",
            "with another lease": ":other",
            "with an ended lease": ":ended",
            "with an unknown lease": ":unknown",
        }.items()
    ),
    both("declare a live lease lost", _LOSE, says=_LOST),
    both(
        "declare a live lease lost with another lease",
        _LOSE.replace("where", ", settled_by = :other where"),
        says=_LOST,
    ),
    only_postgres(
        "declare a live lease lost from inside a tenant",
        "select set_config('holdfast.tenant', 'default', true)",
        _LOSE,
        says=_LOST[1],
    ),
    *(
        both(
            f"{event_type} under {what} lease",
            f"update job_state set state = '{state}', lease = {lease}, attempt = attempt + {starts} where id = :queued",
            says=_LIVE,
        )
        for event_type, state, starts in (("claim", "leased", 0), ("take", "in_progress", 1))
        for what, lease in {"an unknown": ":unknown", "an ended": ":ended"}.items()
    ),
    _change("take over a running job", "lease = :other", "running", says=_MOVED),
    _change("take over a leased job", "lease = :other", "leased", says=_MOVED),
    _change(
        "start a job leased by another worker",
        "state = 'in_progress', lease = :other, attempt = attempt + 1",
        "leased",
        says=_MOVED,
    ),
    both(
        "take over a running job and settle it",
        "update job_state set lease = :other where id = :running",
        f"update job_state set state = 'succeeded', lease = null, settled_by = :other, finished_at = {NOW}"
        " where id = :running",
        says=_MOVED,
    ),
]
