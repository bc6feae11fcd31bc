"""Triggers that keep rows as they are, for both stores: which tables and columns never change, and until when
rows are kept.

Guards that compare old with new values are SQL: ``guards.sql`` of each store, and the files of the features.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.stores.table_text import Table

# Tables whose rows are never updated. SQLite numbers application events with an update (features/events/sqlite.sql).
UNCHANGED = (
    *("event", "artifact", "job_tag", "action", "seal", "archive", "made_from", "template", "reference", "resealed"),
    *("vote", "delivery", "webhook_delivery", "dead_letter", "redriven_as", "occupied_slot"),
)
POSTGRES_UNCHANGED = ("app_event",)

# Columns that never change. SQLite does not have all of them.
FIXED = {
    "agent": "tenant id created_at",
    "clock": "id",
    "connector": "tenant name created_at",
    "consumer": "tenant name",
    "dispatch": "id signal_key payload_salt",
    "executor": "tenant label",
    "job_limit": "tenant scope name created_at",
    "login_pin": "login",
    "pause": "tenant scope name since",
    "payload_rule": "tenant kind declared_by created_at",
    "queue_setting": "tenant queue",
    "registered_event": "tenant name",
    "registered_kind": "tenant name",
    "retention": "tenant kind state created_at",
    "schedule": "name",
    "subscription": "id tenant name created_by created_at",
    "tenant": "tenant created_at",
    "tenant_load": "tenant",
    "webhook": "id tenant name created_by created_at",
}


@dataclass(frozen=True, slots=True)
class Kept:
    """Deleting a row ``old`` is refused while the condition holds; None: always. ``days_ago(n)`` is a time."""

    condition: str | None
    says: str
    function: str | None = None
    """The function of PostgreSQL that several tables share (guards.sql)."""


def _month(also: str) -> str:
    """The record of an event: deleted with its job, or a month later."""
    return f"(old.job_id is null or exists (select 1 from job j where j.id = old.job_id)) and ({also})"


ALWAYS = Kept(None, "rows are never changed")
WITH_JOB = Kept(
    "exists (select 1 from job_state s where s.id = old.job_id)",
    "rows are never deleted while their job exists",
    "guard_delete",
)
UNTIL_CLEANED = Kept(
    "exists (select 1 from job_state s where s.id = old.job_id and s.state <> 'cleaned')",
    "only retention deletes rows, and only of cleaned jobs",
    "guard_until_cleaned",
)

KEPT = {
    **dict.fromkeys(("action", "seal", "archive", "usage_place", "upkeep"), ALWAYS),
    **dict.fromkeys(("approval", "node", "made_from", "reference", "resealed"), WITH_JOB),
    **dict.fromkeys(("artifact", "attempt_log", "checkpoint", "result", "replaced_payload"), UNTIL_CLEANED),
    "step": Kept(
        "exists (select 1 from job_state s where s.id = old.job_id"
        " and s.state <> 'dead_letter' and s.state <> 'cleaned')",
        "only the steps of dead letters can be deleted",
    ),
    "vote": Kept(
        "exists (select 1 from approval a where a.id = old.approval_id)",
        "rows are never deleted while their approval exists",
    ),
    # A token is useless once its approval is decided. It is kept for a week to be told from one that never existed.
    "approval_token": Kept(
        "exists (select 1 from approval a where a.id = old.approval_id"
        " and (a.decided_at is null or a.decided_at > days_ago(7)))",
        "rows are never deleted while their approval exists",
    ),
    # After a month its schedule has moved past the time and does not fire it again.
    "fire": Kept(
        _month(
            "old.due_at > days_ago(30) or old.status = 'waiting'"
            " or exists (select 1 from job_state s where s.id = old.job_id and s.finished_at is null)"
        ),
        "rows are kept with their job, or for a month",
    ),
    "delivery": Kept(_month("old.at > days_ago(30)"), "rows are kept with their job, or for a month"),
    # A dependency is deleted with either of its jobs; a workflow with the last of its jobs.
    "dependency": Kept(
        "exists (select 1 from job_state s where s.id = old.child)"
        " and exists (select 1 from job_state s where s.id = old.parent)",
        "rows are never deleted while their jobs exist",
    ),
    "workflow": Kept(
        "old.finished_at is null or exists (select 1 from node n where n.workflow_id = old.id)",
        "rows are never deleted while their jobs exist",
    ),
    "callback": Kept(
        "exists (select 1 from workflow w where w.id = old.workflow_id)",
        "rows are never deleted while their workflow exists",
    ),
    "archived": Kept(
        "exists (select 1 from job j where j.id = old.job_id)", "only a purge removes the archive of a job"
    ),
    "dead_letter_group": Kept("old.open > 0", "a group with open dead letters cannot be deleted"),
    "operation": Kept(
        "old.finished_at is null or old.finished_at > days_ago(90)",
        "operations are kept for ninety days after they end; cancel a running one",
    ),
    "reservation": Kept(
        "old.ended_at is null or old.ended_at > days_ago(90)",
        "reservations are kept for ninety days after they end; release it instead",
    ),
}

# PostgreSQL: tables with other guards that refuse TRUNCATE too, which no other trigger sees.
_TRUNCATED = (
    *("job", "job_state", "lease", "pause", "schedule", "connector", "webhook", "api_token", "usage"),
    "event_partition",
)
# SQLite: INSERT OR REPLACE deletes the row with the same key without firing the triggers for DELETE.
_REPLACED = {
    "artifact": "job_id attempt name",
    **dict.fromkeys(("archive", "lease", "operation", "webhook"), "id"),
    "callback": "job_id",
}


def postgres_guards() -> str:
    parts = [_refuse(table, "update") for table in (*UNCHANGED, *POSTGRES_UNCHANGED)]
    parts += [_keep_fixed(table, columns.split()) for table, columns in FIXED.items()]
    for table, kept in {"event": WITH_JOB, **KEPT}.items():
        if kept.condition is None:
            parts.append(_refuse(table, "delete"))
            continue
        function = kept.function or f"guard_{table}_delete"
        if kept.function is None:
            condition = re.sub(r"\bdays_ago\((\d+)\)", r"clock_now() - interval '\1 days'", kept.condition)
            condition = re.sub(r"\bold\.", "g.", condition)
            parts.append(
                f"create or replace function {function}() returns trigger language plpgsql"
                " set search_path from current as $$\nbegin\n"
                f"    if exists (select from gone g where {condition}) then\n"
                f"        raise exception '{table}: {kept.says}' using errcode = 'ZH002';\n"
                "    end if;\n    return null;\nend $$;"
            )
        parts.append(
            f"create or replace trigger guard_delete after delete on {table}"
            f" referencing old table as gone for each statement execute function {function}();"
        )
    tables = {*UNCHANGED, *POSTGRES_UNCHANGED, *KEPT, *_TRUNCATED}
    return "\n".join([*parts, *(_refuse(table, "truncate") for table in sorted(tables))]) + "\n"


def _refuse(table: str, what: str) -> str:
    return (
        f"create or replace trigger refuse_{what} before {what} on {table}"
        " for each statement execute function refuse_change();"
    )


def _keep_fixed(table: str, columns: list[str]) -> str:
    differs = " or ".join(f"old.{column} is distinct from new.{column}" for column in columns)
    return (
        f"create or replace trigger keep_fixed before update of {', '.join(columns)} on {table}"
        f" for each row when ({differs}) execute function keep_fixed('{' '.join(columns)}');"
    )


def sqlite_guards(tables: Iterable[Table]) -> str:
    parts = [_abort(f"refuse_{name}_update", "UPDATE", name, f"{name}: {ALWAYS.says}") for name in UNCHANGED]
    for table in tables:
        if fixed := [column for column in FIXED.get(table.name, "").split() if column in table.columns]:
            differs = " OR ".join(f"OLD.{column} IS NOT NEW.{column}" for column in fixed)
            says = f"{table.name}: {', '.join(fixed)} cannot change"
            parts.append(_abort(f"keep_fixed_{table.name}", f"UPDATE OF {', '.join(fixed)}", table.name, says, differs))
    for name, kept in KEPT.items():
        condition = re.sub(r"\b(from|join) ", r"\1 holdfast_", kept.condition or "")
        condition = re.sub(r"\bdays_ago\((\d+)\)", r"(SELECT now FROM holdfast_present) - \1 * 86400000000", condition)
        parts.append(_abort(f"guard_{name}_delete", "DELETE", name, f"{name}: {kept.says}", condition))
    for name, key in _REPLACED.items():
        same = " AND ".join(f"r.{column} = NEW.{column}" for column in key.split())
        exists = f"EXISTS (SELECT 1 FROM holdfast_{name} r WHERE {same})"
        says = f"there is a row of {name} with this key"
        parts.append(_abort(f"guard_{name}_replace", "INSERT", name, says, exists, code="already exists"))
    return "\n".join(parts)


def _abort(name: str, what: str, table: str, says: str, condition: str = "", code: str = "immutable") -> str:
    when = f"WHEN {condition}\n" if condition else ""
    return (
        f"CREATE TRIGGER holdfast_{name} BEFORE {what} ON holdfast_{table}\n{when}BEGIN\n"
        f"    SELECT RAISE(ABORT, '{code}: {says}');\nEND;\n"
    )
