"""Triggers that record changes of configuration tables in ``action``: one line per table, for both stores.

The database writes the record in the transaction of the change, whichever client makes it. Every new table of settings
gets a line here; its columns are recorded unless the line says otherwise. ``tests/contract/test_actions.py`` names
tables without a line and columns whose changes are not recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from holdfast.stores.guards import FIXED
from holdfast.stores.table_text import Table

RETENTION = "retention"
"""The actor name of the retention sweep."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Rows of ``table`` are recorded as ``subject`` and named by the columns in ``name``. A change of a column is
    recorded with the old and new value, unless the column is in one of the other lists. Columns ending in ``_at``
    determine the event type (``disabled_at``: disable) and are not listed as changes."""

    table: str
    subject: str
    name: str
    marks: str = ""
    """Columns whose changes are recorded without the values, because they may be secret or long."""
    operated: str = ""
    """Columns that operations change all the time, or together with an action of their own: only changes by
    hand-written SQL are recorded, with the old and new value."""
    kept: str = ""
    """Columns that triggers of their feature keep, besides the name, ``id``, ``tenant``, ``created_at`` and those that
    ``guards.py`` declares as fixed."""
    unrecorded: Mapping[str, str] = field(default_factory=dict)
    """Columns whose changes are not recorded, with the reason."""
    values: str | None = None
    """The recorded columns of a table that is not a table of settings. None: all that are in no other list."""
    by_hand: bool = True
    """People add and remove rows. If False, the life of jobs does, and only updates are recorded."""
    ends: bool = False
    """Retention deletes old rows that have ended, as the guards allow. It records one action per batch: an action per
    row would be kept longer than the row."""
    trimmed: bool = False
    """Rows are deleted only when newer versions replace them, so only inserts are recorded."""
    single: bool = False
    """The table has one row, for all tenants."""

    def on(self, table: Table) -> Columns:
        """The columns as one store has them."""
        lists = [each.split() for each in (self.marks, self.operated, self.kept)]
        values = None if self.values is None else self.values.split()
        if values is None:
            fixed = ["id", "tenant", *self.name.split(), "created_at", *FIXED.get(self.table, "").split()]
            elsewhere = {*fixed, *self.unrecorded, *chain.from_iterable(lists)}
            values = [column for column in table.columns if column not in elsewhere]
        marks, operated, _ = ([column for column in each if column in table.columns] for each in lists)
        return Columns(values, marks, operated)


@dataclass(frozen=True, slots=True)
class Columns:
    values: list[str]
    marks: list[str]
    operated: list[str]

    @property
    def watched(self) -> list[str]:
        return [*self.values, *self.marks]


_SET = "set_by updated_at"
_DERIVED = "Follows from limits, pauses, rules and caps, which are recorded; guards keep it true while there are any."

RECORDED = (
    Recorded("job_limit", "limit", "scope name", operated=_SET),
    Recorded("queue_setting", "queue", "queue", operated=_SET),
    Recorded(
        *("reservation", "reservation", "scope name"),
        operated="reserved_at expires_at ended_at job_id",
        kept="asked_at",
        ends=True,
    ),
    # The other facts of a job never change (guards.sql).
    Recorded("job", "job", "id", values="external_ref", by_hand=False),
    Recorded("pause", "pause", "scope name", kept="since"),
    Recorded("executor", "executor", "label", operated="added_by added_at"),
    Recorded("registered_kind", "kind", "name", operated="set_by set_at"),
    Recorded("registered_event", "event_type", "name", "schema", operated="set_by set_at"),
    Recorded(
        *("lease", "worker", "holder"),
        values="stop_request",
        operated="name until renewed_at renewals ended_at ended_why swept_at kinds queues slots version"
        " app_version code pins"
        " stop_requested_at stop_requested_by",
        by_hand=False,
    ),
    Recorded("retention", "retention", "kind state", operated=_SET),
    Recorded("agent", "agent", "id", "disabled_at", operated="disabled_by updated_at"),
    Recorded("template", "template", "name", kept="payload options", trimmed=True),
    Recorded(
        *("schedule", "schedule", "name", "payload options"),
        operated="declared_by declared_hash undeclared_at revision anchor_at next_fire_at attend_at last_fire_at"
        " problem updated_by updated_at",
        kept="created_by",
    ),
    Recorded(
        *("subscription", "subscription", "name", "match job_options paused_at"),
        operated="cursor declared paused_by failure failed_at made refused updated_at",
    ),
    Recorded(
        *("webhook", "webhook", "name", "url job_options disabled_at"),
        operated="disabled_by updated_at",
    ),
    Recorded("tenant", "tenant", "tenant", operated=_SET),
    Recorded("login_pin", "pin", "login", values="tenant", operated="set_by created_at"),
    Recorded("consumer", "consumer", "name", operated="cursor updated_at"),
    Recorded("payload_rule", "payload_rule", "kind declared_by", "requires_approval", operated=_SET),
    Recorded("connector", "connector", "name", "headers", operated=_SET),
    Recorded(
        *("operation", "operation", "id", "wanted"),
        operated="state capped done refused refusals place next_at updated_at finished_at",
        kept="max_attempts total created_by",
        ends=True,
    ),
    Recorded(
        *("dead_letter_group", "dead_letter_group", "fingerprint"),
        values="note",
        operated="noted_by noted_at",
        by_hand=False,
    ),
    Recorded("vote", "vote", "approval_id", kept="comment data at"),
    Recorded(
        *("approval_token", "approval_token", "approval_id"),
        operated="used_at",
        kept="hash issued_at expires_at",
        ends=True,
    ),
    Recorded(
        *("api_token", "token", "id", "revoked_at"),
        operated="last_used_at",
        kept="hash created_by expires_at",
        ends=True,
    ),
    # The operations record these as actions on `policies` and `tenants`.
    Recorded(
        *("dispatch", "dispatch", "id"),
        operated="fair fair_auto registered unknown_kinds unknown_agents unknown_events listed_only tenant_required"
        " running_counts required",
        unrecorded={
            **dict.fromkeys(("limited", "ruled", "capped"), _DERIVED),
            "swept": "The position of the last scan of parked jobs.",
        },
        by_hand=False,
        single=True,
    ),
    # Tests move the clock with an operation, which is not recorded.
    Recorded(
        *("clock", "clock", "id"),
        operated="shift stopped",
        unrecorded=dict.fromkeys(("actor", "now", "floor"), "The signature of the operation that is running."),
        by_hand=False,
        single=True,
    ),
)

Line = tuple[Recorded, Columns]


def _lines(tables: Iterable[Table]) -> list[Line]:
    """The lines whose table the store has, with its columns."""
    known = {table.name: table for table in tables}
    return [(each, each.on(known[each.table])) for each in RECORDED if each.table in known]


def postgres_triggers(tables: Iterable[Table]) -> str:
    """The script for PostgreSQL. Update triggers fire for their columns only, so that other updates cost nothing."""
    parts = []
    for each, columns in _lines(tables):
        if columns.operated:
            call = f"record_action('{each.subject}', '{each.name}', '{' '.join(columns.operated)}', '', 'by hand')"
            parts.append(_on_change(each, "record_by_hand", columns.operated, call))
        lists = f"'{' '.join(columns.values)}', '{' '.join(columns.marks)}'"
        call = f"record_action('{each.subject}', '{each.name}', {lists})"
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
        if columns.watched:
            parts.append(_on_change(each, "record_change", columns.watched, call))
    return "\n".join(parts) + "\n"


def _on_change(each: Recorded, name: str, columns: list[str], call: str) -> str:
    differs = " or ".join(f"old.{column}::text is distinct from new.{column}::text" for column in columns)
    return (
        f"create or replace trigger {name} after update of {', '.join(columns)} on {each.table}"
        f" for each row when ({differs}) execute function {call};"
    )


def sqlite_triggers(tables: Iterable[Table]) -> str:
    lines = _lines(tables)
    parts = [_changed(*line) for line in lines if line[1].watched]
    parts += [_by_hand(*line) for line in lines if line[1].operated]
    parts += [part for line in lines if line[0].by_hand for part in (_added(*line), _removed(*line))]
    return "\n".join(parts)


_INSERT = "INSERT INTO holdfast_action (tenant, at, actor, type, subject, name, changed)"


def _added(each: Recorded, columns: Columns) -> str:
    return _trigger(each, "record_added", "INSERT", "NEW", "'add'", _values(columns, "NEW"))


def _removed(each: Recorded, columns: Columns) -> str:
    if each.trimmed:
        return ""
    condition = f"WHEN (SELECT actor FROM holdfast_present) <> '{RETENTION}'\n" if each.ends else ""
    return _trigger(each, "record_removed", "DELETE", "OLD", "'remove'", _values(columns, "OLD"), condition)


def _changed(each: Recorded, columns: Columns) -> str:
    pairs = [
        f"'{c}', json(CASE WHEN OLD.{c} IS NOT NEW.{c} THEN json_array(OLD.{c}, NEW.{c}) END)"
        for c in columns.values
        if not c.endswith("_at")
    ]
    pairs += [
        f"'{c}', CASE WHEN OLD.{c} IS NOT NEW.{c} THEN 'changed' END" for c in columns.marks if not c.endswith("_at")
    ]
    event_type = ""
    for column, set_type, unset_type in (
        ("disabled_at", "disable", "enable"),
        ("paused_at", "pause", "resume"),
        ("revoked_at", "revoke", "restore"),
    ):
        if column in columns.watched:
            event_type += (
                f" WHEN (OLD.{column} IS NULL) <> (NEW.{column} IS NULL)"
                f" THEN CASE WHEN NEW.{column} IS NULL THEN '{unset_type}' ELSE '{set_type}' END"
            )
    if "state" in columns.watched:
        event_type += (
            " WHEN OLD.state <> NEW.state THEN CASE WHEN NEW.state = 'paused' THEN 'pause' WHEN NEW.state = 'deleted'"
            " THEN 'remove' WHEN OLD.state = 'paused' THEN 'resume' ELSE 'change' END"
        )
    differs = _is_not(columns.watched)
    when = f"UPDATE OF {', '.join(columns.watched)}"
    type_of = f"CASE{event_type} ELSE 'change' END" if event_type else "'change'"
    return _trigger(each, "record_changed", when, "NEW", type_of, ", ".join(pairs), f"WHEN {differs}\n")


def _by_hand(each: Recorded, columns: Columns) -> str:
    """Operations sign the clock row (``now``); hand-written SQL does not."""
    pairs = ", ".join(
        f"'{c}', json(CASE WHEN OLD.{c} IS NOT NEW.{c} THEN json_array(OLD.{c}, NEW.{c}) END)" for c in columns.operated
    )
    condition = f"WHEN (SELECT now FROM holdfast_clock) IS NULL AND ({_is_not(columns.operated)})\n"
    when = f"UPDATE OF {', '.join(columns.operated)}"
    return _trigger(each, "record_by_hand", when, "NEW", "'change'", pairs, condition)


def _is_not(columns: list[str]) -> str:
    return " OR ".join(f"OLD.{column} IS NOT NEW.{column}" for column in columns)


def _values(columns: Columns, row: str) -> str:
    return ", ".join(f"'{c}', {row}.{c}" for c in columns.values if not c.endswith("_at"))


def _trigger(each: Recorded, name: str, when: str, row: str, event_type: str, pairs: str, condition: str = "") -> str:
    name_of = " || ' ' || ".join(f"{row}.{column}" for column in each.name.split())
    tenant = "'*'" if each.single else f"{row}.tenant"
    changed = f"nullif(json_patch('{{}}', json_object({pairs})), '{{}}')" if pairs else "NULL"
    return (
        f"CREATE TRIGGER holdfast_{name}_{each.table} AFTER {when} ON holdfast_{each.table}\n{condition}BEGIN\n   "
        f" {_INSERT}\n"
        f"    VALUES ({tenant}, (SELECT now FROM holdfast_present), (SELECT actor FROM holdfast_present),\n"
        f"        {event_type}, '{each.subject}', {name_of}, {changed});\nEND;\n"
    )
