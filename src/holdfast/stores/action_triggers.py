"""Triggers that record changes of configuration tables in ``action``: one line per table, for both stores.

The database writes the record in the transaction of the change, whichever client makes it. Every new table of settings
gets a line here, and every column a place in it; ``tests/contract/test_actions.py`` names those without.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

RETENTION = "retention"
"""The actor name of the retention sweep."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Rows of ``table`` are recorded as ``subject`` and named by the columns in ``name``. Changes of columns in
    ``values`` are recorded with the old and new value; changes of columns in ``marks`` without them, because they may
    be secret or long. Columns ending in ``_at`` determine the event type (``disabled_at``: disable) and are not listed
    as changes."""

    table: str
    subject: str
    name: str
    values: str = ""
    marks: str = ""
    fixed: str = ""
    """Columns that never change: every update is refused. Columns that other triggers keep are not listed."""
    operated: str = ""
    """Columns that operations change all the time, or together with an action of their own: only changes by
    hand-written SQL are recorded, with the old and new value."""
    unrecorded: Mapping[str, str] = field(default_factory=dict)
    """Columns whose changes are not recorded, with the reason."""
    by_hand: bool = True
    """People add and remove rows. If False, the life of jobs does, and only updates are recorded."""
    ends: bool = False
    """Retention deletes old rows that have ended, as the guards allow. It records one action per batch: an action per
    row would be kept longer than the row."""

    postgres_only: bool = False
    """SQLite has no such table."""
    trimmed: bool = False
    """Rows are deleted only when newer versions replace them, so only inserts are recorded."""
    postgres_columns: str = ""
    """Columns that SQLite does not have."""
    single: bool = False
    """The table has one row, for all tenants."""

    @property
    def watched(self) -> list[str]:
        return [*self.values.split(), *self.marks.split()]

    def of_sqlite(self, columns: str) -> list[str]:
        return [column for column in columns.split() if column not in self.postgres_columns.split()]


_SET = "set_by updated_at"
_DERIVED = "Follows from limits, pauses, rules and caps, which are recorded; guards keep it true while there are any."

RECORDED = (
    Recorded(
        *("job_limit", "limit", "scope name", "concurrency rate per burst"),
        fixed="tenant scope name created_at",
        operated=_SET,
    ),
    Recorded(
        *("queue_setting", "queue", "queue", "aging aging_step aging_most"),
        fixed="tenant queue",
        operated=_SET,
    ),
    Recorded(
        *("reservation", "reservation", "scope name", "state holder reason ended_by ended_why"),
        operated="reserved_at expires_at ended_at job_id",
        ends=True,
    ),
    # The other facts of a job never change (guards.sql).
    Recorded("job", "job", "id", "external_ref", by_hand=False),
    Recorded("pause", "pause", "scope name", "reason refuse_enqueue set_by until"),
    Recorded("executor", "executor", "label", "role", fixed="tenant label", operated="added_by added_at"),
    Recorded("registered_kind", "kind", "name", "description domain", fixed="tenant name", operated="set_by set_at"),
    Recorded(
        *("registered_event", "event_type", "name", "domain description", "schema"),
        fixed="tenant name",
        operated="set_by set_at",
    ),
    Recorded(
        *("lease", "worker", "holder", "stop_request"),
        operated="name until renewed_at renewals ended_at ended_why swept_at kinds queues slots version"
        " stop_requested_at stop_requested_by",
        by_hand=False,
    ),
    Recorded(
        *("retention", "retention", "kind state", "clean_after purge_after archive declared"),
        fixed="tenant kind state created_at",
        operated=_SET,
    ),
    Recorded(
        "agent",
        "agent",
        "id",
        "name kind max_attempts max_crashes backoff max_payload_bytes max_wait requires_approval disabled_reason",
        "disabled_at",
        operated="disabled_by updated_at",
    ),
    Recorded("template", "template", "name", "version kind removed created_by", trimmed=True),
    Recorded(
        *("schedule", "schedule", "name", "state timing zone kind template missed overlap jitter", "payload options"),
        fixed="name",
        operated="declared_by declared_hash undeclared_at revision anchor_at next_fire_at attend_at last_fire_at"
        " problem updated_by updated_at",
    ),
    Recorded(
        "subscription",
        "subscription",
        "name",
        "pattern kind job_kind max_depth paused_reason",
        "match job_options paused_at",
        fixed="created_by",
        operated="cursor declared paused_by failure failed_at made refused updated_at",
    ),
    Recorded(
        *("webhook", "webhook", "name", "secrets wants kind disabled_reason", "url job_options disabled_at"),
        fixed="created_by",
        operated="disabled_by updated_at",
    ),
    Recorded("tenant", "tenant", "tenant", "title max_pending weight", fixed="created_at", operated=_SET),
    Recorded(
        *("login_pin", "pin", "login", "tenant"),
        fixed="login",
        operated="set_by created_at",
        postgres_only=True,
    ),
    Recorded("consumer", "consumer", "name", fixed="tenant name", operated="cursor updated_at"),
    Recorded(
        "payload_rule",
        "payload_rule",
        "kind declared_by",
        "signal_only forbidden classification max_bytes max_result_bytes store replaceable token_only at_most_once",
        "requires_approval",
        fixed="tenant kind declared_by created_at",
        operated=_SET,
    ),
    Recorded(
        *("connector", "connector", "name", "enabled hosts secrets timeout max_bytes", "headers"),
        fixed="created_at",
        operated=_SET,
    ),
    Recorded(
        *("operation", "operation", "id", "action reason rate run_at cancelled_by cancelled_reason", "wanted"),
        operated="state capped done refused refusals place next_at updated_at finished_at",
        ends=True,
    ),
    Recorded(
        *("dead_letter_group", "dead_letter_group", "fingerprint", "note"),
        operated="noted_by noted_at",
        by_hand=False,
    ),
    Recorded("vote", "vote", "approval_id", "person verdict how n"),
    Recorded("approval_token", "approval_token", "approval_id", "person issued_by", operated="used_at", ends=True),
    Recorded(
        *("api_token", "token", "id", "name roles scopes prefix parent_id revoked_by", "revoked_at"),
        operated="last_used_at",
        ends=True,
    ),
    # The operations record these as actions on `policies` and `tenants`.
    Recorded(
        *("dispatch", "dispatch", "id"),
        fixed="id signal_key payload_salt",
        operated="fair fair_auto registered unknown_kinds unknown_agents unknown_events listed_only tenant_required"
        " running_counts required",
        unrecorded={
            **dict.fromkeys(("limited", "ruled", "capped"), _DERIVED),
            "swept": "The position of the last scan of parked jobs.",
        },
        by_hand=False,
        postgres_columns="signal_key payload_salt capped",
        single=True,
    ),
    # Tests move the clock with an operation, which is not recorded.
    Recorded(
        *("clock", "clock", "id"),
        fixed="id",
        operated="shift stopped",
        unrecorded=dict.fromkeys(("actor", "now", "floor"), "The signature of the operation that is running."),
        by_hand=False,
        single=True,
    ),
)


@functools.cache
def postgres_triggers() -> str:
    """The script for PostgreSQL. Update triggers fire for their columns only, so that other updates cost nothing."""
    parts = []
    for each in RECORDED:
        if each.fixed:
            parts.append(
                f"create or replace trigger keep_fixed before update of {', '.join(each.fixed.split())} on {each.table}"
                f" for each row when ({_differs(each.fixed.split())})"
                f" execute function keep_fixed('{each.subject}', '{each.fixed}');"
            )
        if each.operated:
            call = f"record_action('{each.subject}', '{each.name}', '{each.operated}', '', 'by hand')"
            parts.append(
                f"create or replace trigger record_by_hand after update of {', '.join(each.operated.split())}"
                f" on {each.table} for each row when ({_differs(each.operated.split())}) execute function {call};"
            )
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
            parts.append(
                f"create or replace trigger record_change after update of {', '.join(each.watched)} on {each.table}"
                f" for each row when ({_differs(each.watched)}) execute function {call};"
            )
    return "\n".join(parts) + "\n"


def _differs(columns: list[str]) -> str:
    return " or ".join(f"old.{column}::text is distinct from new.{column}::text" for column in columns)


@functools.cache
def sqlite_triggers() -> str:
    recorded = [each for each in RECORDED if not each.postgres_only]
    parts = [_changed(each) for each in recorded if each.watched]
    parts += [_fixed(each) for each in recorded if each.fixed]
    parts += [_by_hand(each) for each in recorded if each.operated]
    parts += [part for each in recorded if each.by_hand for part in (_added(each), _removed(each))]
    return "\n".join(parts)


_INSERT = "INSERT INTO holdfast_action (tenant, at, actor, type, subject, name, changed)"


def _added(each: Recorded) -> str:
    return _trigger(each, "record_added", "INSERT", "NEW", "'add'", _values(each, "NEW"))


def _removed(each: Recorded) -> str:
    if each.trimmed:
        return f"DROP TRIGGER IF EXISTS holdfast_record_removed_{each.table};\n"
    condition = f"WHEN (SELECT actor FROM holdfast_present) <> '{RETENTION}'\n" if each.ends else ""
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
    differs = _is_not(each.watched)
    when = f"UPDATE OF {', '.join(each.watched)}"
    type_of = f"CASE{event_type} ELSE 'change' END" if event_type else "'change'"
    return _trigger(each, "record_changed", when, "NEW", type_of, ", ".join(pairs), f"WHEN {differs}\n")


def _fixed(each: Recorded) -> str:
    columns = each.of_sqlite(each.fixed)
    return (
        f"DROP TRIGGER IF EXISTS holdfast_keep_fixed_{each.table};\n"
        f"CREATE TRIGGER holdfast_keep_fixed_{each.table} BEFORE UPDATE OF {', '.join(columns)} ON"
        f" holdfast_{each.table}\n"
        f"WHEN {_is_not(columns)}\nBEGIN\n"
        f"    SELECT RAISE(ABORT, 'immutable: {each.subject}: {', '.join(columns)} cannot change');\nEND;\n"
    )


def _by_hand(each: Recorded) -> str:
    """Operations sign the clock row (``now``); hand-written SQL does not."""
    columns = each.of_sqlite(each.operated)
    pairs = ", ".join(
        f"'{c}', json(CASE WHEN OLD.{c} IS NOT NEW.{c} THEN json_array(OLD.{c}, NEW.{c}) END)" for c in columns
    )
    condition = f"WHEN (SELECT now FROM holdfast_clock) IS NULL AND ({_is_not(columns)})\n"
    return _trigger(each, "record_by_hand", f"UPDATE OF {', '.join(columns)}", "NEW", "'change'", pairs, condition)


def _is_not(columns: list[str]) -> str:
    return " OR ".join(f"OLD.{column} IS NOT NEW.{column}" for column in columns)


def _values(each: Recorded, row: str) -> str:
    return ", ".join(f"'{c}', {row}.{c}" for c in each.values.split() if not c.endswith("_at"))


def _trigger(each: Recorded, name: str, when: str, row: str, event_type: str, pairs: str, condition: str = "") -> str:
    name_of = " || ' ' || ".join(f"{row}.{column}" for column in each.name.split())
    tenant = "'*'" if each.single else f"{row}.tenant"
    changed = f"nullif(json_patch('{{}}', json_object({pairs})), '{{}}')" if pairs else "NULL"
    return (
        f"DROP TRIGGER IF EXISTS holdfast_{name}_{each.table};\n"
        f"CREATE TRIGGER holdfast_{name}_{each.table} AFTER {when} ON holdfast_{each.table}\n{condition}BEGIN\n   "
        f" {_INSERT}\n"
        f"    VALUES ({tenant}, (SELECT now FROM holdfast_present), (SELECT actor FROM holdfast_present),\n"
        f"        {event_type}, '{each.subject}', {name_of}, {changed});\nEND;\n"
    )
