"""Triggers that record changes of configuration tables in ``action``: one line per table, for both stores.

The database writes the record in the transaction of the change, whichever client makes it. Every new table of settings
gets a line here; ``tests/contract/test_actions.py`` names tables without one.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

RETENTION = "retention"
"""The actor name of the retention sweep."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Rows of ``table`` are recorded as ``subject`` and named by the columns in ``name``. Changes of columns in
    ``values`` are recorded with the old and new value; changes of columns in ``marks`` without them, because they may
    be secret or long. Other columns are ignored. Columns ending in ``_at`` determine the event type (``disabled_at``:
    disable) and are not listed as changes."""

    table: str
    subject: str
    name: str
    values: str = ""
    marks: str = ""
    by_hand: bool = True
    """People add and remove rows. If False, the life of jobs does, and only updates are recorded."""
    ends: bool = False
    """Retention deletes old rows that have ended, as the guards allow. It records one action per batch: an action per
    row would be kept longer than the row."""

    postgres_only: bool = False
    """SQLite has no such table."""
    trimmed: bool = False
    """Rows are deleted only when newer versions replace them, so only inserts are recorded."""

    @property
    def watched(self) -> list[str]:
        return [*self.values.split(), *self.marks.split()]


RECORDED = (
    Recorded("job_limit", "limit", "scope name", "concurrency rate per burst"),
    Recorded("queue_setting", "queue", "queue", "aging aging_step aging_most"),
    Recorded("reservation", "reservation", "scope name", "state holder reason ended_by ended_why", ends=True),
    Recorded("pause", "pause", "scope name", "reason refuse_enqueue set_by until"),
    Recorded("executor", "executor", "label", "role"),
    Recorded("registered_kind", "kind", "name", "description"),
    Recorded("registered_event", "event_type", "name", "domain description", "schema"),
    Recorded("lease", "worker", "holder", "stop_request", by_hand=False),
    Recorded("retention", "retention", "kind state", "clean_after purge_after declared"),
    Recorded(
        "agent",
        "agent",
        "id",
        "name kind max_attempts max_crashes backoff max_payload_bytes max_wait requires_approval disabled_reason",
        "disabled_at",
    ),
    Recorded("template", "template", "name", "version kind removed created_by", trimmed=True),
    Recorded(
        "schedule", "schedule", "name", "state timing zone kind template missed overlap jitter", "payload options"
    ),
    Recorded(
        "subscription",
        "subscription",
        "name",
        "pattern kind job_kind max_depth paused_reason",
        "match job_options paused_at",
    ),
    Recorded("webhook", "webhook", "name", "secrets wants kind disabled_reason", "url job_options disabled_at"),
    Recorded("tenant", "tenant", "tenant", "title max_pending weight"),
    Recorded("login_pin", "pin", "login", "tenant", postgres_only=True),
    Recorded("consumer", "consumer", "name"),
    Recorded(
        "payload_rule",
        "payload_rule",
        "kind declared_by",
        "signal_only forbidden classification max_bytes max_result_bytes store replaceable",
    ),
    Recorded("connector", "connector", "name", "enabled hosts secrets timeout max_bytes", "headers"),
    Recorded("operation", "operation", "id", "action reason rate cancelled_by cancelled_reason", "wanted", ends=True),
    Recorded("dead_letter_group", "dead_letter_group", "fingerprint", "note", by_hand=False),
    Recorded("vote", "vote", "approval_id", "person verdict how"),
    Recorded("approval_token", "approval_token", "approval_id", "person issued_by", ends=True),
    Recorded("api_token", "token", "id", "name roles scopes prefix parent_id revoked_by", "revoked_at", ends=True),
)


@functools.cache
def postgres_triggers() -> str:
    """The script for PostgreSQL. Update triggers fire for watched columns only, so that other updates cost nothing."""
    parts = []
    for each in RECORDED:
        call = f"record_action('{each.subject}', '{each.name}', '{each.values}', '{each.marks}')"
        if each.by_hand:
            when = "insert" if each.ends or each.trimmed else "insert or delete"
            parts.append(
                f"create or replace trigger record_action after {when} on {each.table}"
                f" for each row execute function {call};"
            )
        if each.ends:
            parts.append(
                f"create or replace trigger record_removed after delete on {each.table}"
                f" for each row when (actor() <> '{RETENTION}') execute function {call};"
            )
        if each.watched:
            differs = " or ".join(f"old.{column}::text is distinct from new.{column}::text" for column in each.watched)
            parts.append(
                f"create or replace trigger record_change after update of {', '.join(each.watched)} on {each.table}"
                f" for each row when ({differs}) execute function {call};"
            )
    return "\n".join(parts) + "\n"


@functools.cache
def sqlite_triggers() -> str:
    recorded = [each for each in RECORDED if not each.postgres_only]
    parts = [_changed(each) for each in recorded if each.watched]
    parts += [part for each in recorded if each.by_hand for part in (_added(each), _removed(each))]
    return "\n".join(parts)


_INSERT = "INSERT INTO action (tenant, at, actor, type, subject, name, changed)"


def _added(each: Recorded) -> str:
    return _trigger(each, "record_added", "INSERT", "NEW", "'add'", _values(each, "NEW"))


def _removed(each: Recorded) -> str:
    if each.trimmed:
        return f"DROP TRIGGER IF EXISTS record_removed_{each.table};\n"
    condition = f"WHEN (SELECT actor FROM present) <> '{RETENTION}'\n" if each.ends else ""
    return _trigger(each, "record_removed", "DELETE", "OLD", "'remove'", _values(each, "OLD"), condition)


def _changed(each: Recorded) -> str:
    pairs = [
        f"'{c}', json(CASE WHEN OLD.{c} IS NOT NEW.{c} THEN json_array(OLD.{c}, NEW.{c}) END)"
        for c in each.values.split()
        if not c.endswith("_at")
    ]
    pairs += [
        f"'{c}', CASE WHEN OLD.{c} IS NOT NEW.{c} THEN 'changed' END"
        for c in each.marks.split()
        if not c.endswith("_at")
    ]
    event_type = ""
    for column, set_type, unset_type in (
        ("disabled_at", "disable", "enable"),
        ("paused_at", "pause", "resume"),
        ("revoked_at", "revoke", "restore"),
    ):
        if column in each.watched:
            event_type += (
                f" WHEN (OLD.{column} IS NULL) <> (NEW.{column} IS NULL)"
                f" THEN CASE WHEN NEW.{column} IS NULL THEN '{unset_type}' ELSE '{set_type}' END"
            )
    if "state" in each.watched:
        event_type += (
            " WHEN OLD.state <> NEW.state THEN CASE WHEN NEW.state = 'paused' THEN 'pause' WHEN NEW.state = 'deleted'"
            " THEN 'remove' WHEN OLD.state = 'paused' THEN 'resume' ELSE 'change' END"
        )
    differs = " OR ".join(f"OLD.{column} IS NOT NEW.{column}" for column in each.watched)
    when = f"UPDATE OF {', '.join(each.watched)}"
    type_of = f"CASE{event_type} ELSE 'change' END" if event_type else "'change'"
    return _trigger(each, "record_changed", when, "NEW", type_of, ", ".join(pairs), f"WHEN {differs}\n")


def _values(each: Recorded, row: str) -> str:
    return ", ".join(f"'{c}', {row}.{c}" for c in each.values.split() if not c.endswith("_at"))


def _trigger(each: Recorded, name: str, when: str, row: str, event_type: str, pairs: str, condition: str = "") -> str:
    name_of = " || ' ' || ".join(f"{row}.{column}" for column in each.name.split())
    changed = f"nullif(json_patch('{{}}', json_object({pairs})), '{{}}')" if pairs else "NULL"
    return (
        f"DROP TRIGGER IF EXISTS {name}_{each.table};\n"
        f"CREATE TRIGGER {name}_{each.table} AFTER {when} ON {each.table}\n{condition}BEGIN\n    {_INSERT}\n"
        f"    VALUES ({row}.tenant, (SELECT now FROM present), (SELECT actor FROM present),\n"
        f"        {event_type}, '{each.subject}', {name_of}, {changed});\nEND;\n"
    )
