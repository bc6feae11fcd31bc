"""Attacks on dead letters and bulk operations (DP-15): false counts, changed requests, changed progress."""

from __future__ import annotations

from tests.attacks.attack import NOW, Table

# The database has a dead letter with its group, a running operation and a finished one.
_OPEN, _DONE = "'00000000-0000-7000-8000-0000000000b1'", "'00000000-0000-7000-8000-0000000000b2'"
_COLUMNS = "(id, tenant, action, wanted, reason, total, capped, done, next_at, created_by, created_at, updated_at"
_START = f"insert into operation {_COLUMNS}"
OPERATIONS = (
    f"{_START}) values ({_OPEN}, 'default', 'discard', '{{\"kind\": \"none\"}}', 'old', 9, (1 = 0), 3, :later, 'ada',"
    f" {NOW}, {NOW})",
    f"{_START}, state, finished_at) values ({_DONE}, 'default', 'redrive', '{{}}', null, 9, (1 = 0), 9, {NOW}, 'ada',"
    f" {NOW}, {NOW}, 'done', {NOW})",
)
_GROUP = (
    "insert into dead_letter_group (tenant, fingerprint, kind, error_code, error_message, sample_job, first_at,"
    " last_at, times, open, last_job)"
)
_LETTER = "insert into dead_letter (job_id, tenant, fingerprint, kind, queue, dead_at)"
_BY_TRIGGERS = ("maintained by triggers", "maintained by triggers")
_COUNTED = "its counts only grow"

_WRITTEN = ("maintained by triggers", "written by triggers only")

DEAD_LETTERS: Table = {
    "lower the number of open dead letters": (
        "update dead_letter_group set open = open - 1, last_job = :dead where open > 0",
        _BY_TRIGGERS,
    ),
    "raise the counts of a group": ("update dead_letter_group set times = times + 1, open = open + 1", _BY_TRIGGERS),
    "change the error of a group": ("update dead_letter_group set error_message = 'nothing'", _BY_TRIGGERS),
    "delete a group with open dead letters": (
        "delete from dead_letter_group where open > 0",
        "a group with open dead letters cannot be deleted",
    ),
    "insert a group": (
        f"{_GROUP} values ('default', 'x', 'pay', 'x', 'y', :dead, {NOW}, {NOW}, 5, 5, :dead)",
        _WRITTEN,
    ),
    "delete a dead letter": (
        "delete from dead_letter where job_id = :dead",
        ("dead letters cannot be deleted", "maintained by triggers"),
    ),
    "insert a dead letter for a queued job": (
        f"{_LETTER} values (:queued, 'default', 'x', 'pay', 'q', {NOW})",
        _WRITTEN,
    ),
    "move a dead letter to another group": (
        "update dead_letter set fingerprint = 'x' where job_id = :dead",
        "dead_letter: rows are never changed",
    ),
    "truncate the dead letters": ("truncate dead_letter", (None, "rows are never changed")),
    "truncate the operations": ("truncate operation", (None, "rows are never changed")),
    "change the filter of an operation": (f"update operation set wanted = '{{}}' where id = {_OPEN}", _COUNTED),
    "change the action of an operation": (f"update operation set action = 'cancel' where id = {_OPEN}", _COUNTED),
    "change the rate of an operation": (f"update operation set rate = 1000 where id = {_OPEN}", _COUNTED),
    "lower the progress of an operation": (f"update operation set done = 0 where id = {_OPEN}", _COUNTED),
    "restart a finished operation": (
        f"update operation set state = 'running', finished_at = null where id = {_DONE}",
        (_COUNTED, "it has ended and cannot change"),
    ),
    "delete a running operation": (
        f"delete from operation where id = {_OPEN}",
        "operations are kept for ninety days",
    ),
    "start a bulk discard without a reason": (
        f"{_START}) values (:unknown, 'default', 'discard', '{{}}', ' ', 0, (1 = 0), 0, {NOW}, 'ada', {NOW}, {NOW})",
        "reason_given",
    ),
    "record a redrive that did not happen": (
        f"insert into redriven_as (job_id, tenant, new_id, by, at) values (:dead, 'default', :queued, 'eve', {NOW})",
        ("was not redriven as this job", "was not redriven as"),
    ),
    "reuse the id of an operation": (
        f"{_START}) values ({_OPEN}, 'default', 'redrive', '{{}}', null, 0, (1 = 0), 0, {NOW}, 'ada', {NOW}, {NOW})",
        ("already exists", "operation_pkey"),
    ),
}
