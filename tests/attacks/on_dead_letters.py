"""Attacks on dead letters and bulk operations (DP-15): counts that are not so, what was asked for, what was done."""

from __future__ import annotations

from tests.attacks.attack import NOW, both, only_postgres

# The small world: the dead letter that is there anyway with its group, an operation that runs and one that is over.
_RUNS, _OVER = "'00000000-0000-7000-8000-0000000000b1'", "'00000000-0000-7000-8000-0000000000b2'"
_COLUMNS = "(id, tenant, action, wanted, reason, total, capped, done, next_at, created_by, created_at, updated_at"
_START = f"insert into operation {_COLUMNS}"
BEGUN = (
    f"{_START}) values ({_RUNS}, 'default', 'discard', '{{\"kind\": \"none\"}}', 'old', 9, (1 = 0), 3, :later, 'ada',"
    f" {NOW}, {NOW})",
    f"{_START}, state, finished_at) values ({_OVER}, 'default', 'redrive', '{{}}', null, 9, (1 = 0), 9, {NOW}, 'ada',"
    f" {NOW}, {NOW}, 'done', {NOW})",
)
_GROUP = (
    "insert into dead_letter_group (tenant, fingerprint, kind, error_code, error_message, sample_job, first_at,"
    " last_at, times, open, last_job)"
)
_LETTER = "insert into dead_letter (job_id, tenant, fingerprint, kind, queue, buried_at)"
_KEPT = ("maintained by triggers", "maintained by triggers")
_COUNTED = "its counts only grow"

DEAD_LETTERS = [
    both(
        "say that a dead letter was resolved",
        "update dead_letter_group set open = open - 1, last_job = :dead where open > 0",
        says=_KEPT,
    ),
    both("say that there were more", "update dead_letter_group set times = times + 1, open = open + 1", says=_KEPT),
    both("give a group another error", "update dead_letter_group set error_message = 'nothing'", says=_KEPT),
    both(
        "forget a group that has open dead letters",
        "delete from dead_letter_group where open > 0",
        says=("a group with open dead letters cannot be deleted", "rows are never changed"),
    ),
    both(
        "make up a group",
        f"{_GROUP} values ('default', 'x', 'pay', 'x', 'y', :dead, {NOW}, {NOW}, 5, 5, :dead)",
        says=("maintained by triggers", "written by triggers only"),
    ),
    both(
        "take a dead letter out of its group",
        "delete from dead_letter where job_id = :dead",
        says=("dead letters cannot be deleted", "maintained by triggers"),
    ),
    both(
        "call a job a dead letter that is none",
        f"{_LETTER} values (:queued, 'default', 'x', 'pay', 'q', {NOW})",
        says=("maintained by triggers", "written by triggers only"),
    ),
    both(
        "put a dead letter into another group",
        "update dead_letter set fingerprint = 'x' where job_id = :dead",
        says=("maintained by triggers", "rows are never changed"),
    ),
    only_postgres("forget all dead letters", "truncate dead_letter", says="rows are never changed"),
    only_postgres("forget all operations", "truncate operation", says="rows are never changed"),
    both(
        "ask for something else in somebody's name",
        f"update operation set wanted = '{{}}' where id = {_RUNS}",
        says=_COUNTED,
    ),
    both("have another action done", f"update operation set action = 'cancel' where id = {_RUNS}", says=_COUNTED),
    both("lift the rate of an operation", f"update operation set rate = 1000 where id = {_RUNS}", says=_COUNTED),
    both("say that less was done", f"update operation set done = 0 where id = {_RUNS}", says=_COUNTED),
    both(
        "go on with what is over",
        f"update operation set state = 'running', finished_at = null where id = {_OVER}",
        says=(_COUNTED, "it has ended and cannot change"),
    ),
    both(
        "forget an operation that runs",
        f"delete from operation where id = {_RUNS}",
        says=("operations are kept for ninety days", "rows are never changed"),
    ),
    both(
        "discard without a reason, in bulk",
        f"{_START}) values (:unknown, 'default', 'discard', '{{}}', ' ', 0, (1 = 0), 0, {NOW}, 'ada', {NOW}, {NOW})",
        says="reason_given",
    ),
    both(
        "say that a job was redriven as another",
        f"insert into redriven_as (job_id, tenant, new_id, by, at) values (:dead, 'default', :queued, 'eve', {NOW})",
        says=("was not redriven as this job", "was not redriven as"),
    ),
    both(
        "start an operation under an id that is taken",
        f"{_START}) values ({_RUNS}, 'default', 'redrive', '{{}}', null, 0, (1 = 0), 0, {NOW}, 'ada', {NOW}, {NOW})",
        says=("already exists", "operation_pkey"),
    ),
]
