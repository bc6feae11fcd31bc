"""Every column that may name a job is purged with it, checked against the catalogue (DP-16)."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from holdfast.features.assembly import open_store
from tests.support.direct_sql import SqliteByHand

pytestmark = pytest.mark.req("DP-16")

# Columns that `purge_jobs` removes, in both stores.
PURGED = {
    *("job.id", "job_state.id", "job_tag.job_id", "event.job_id", "idempotency.job_id", "content.job_id"),
    *("result.job_id", "checkpoint.job_id", "artifact.job_id", "step.job_id", "watch.job_id", "occupied_slot.job_id"),
    *(
        "approval.id",
        "approval.job_id",
        "vote.approval_id",
        "approval_token.approval_id",
        "app_event.job_id",
        "delivery.job_id",
    ),
    *("made_from.job_id", "fire.job_id", "node.job_id", "node.workflow_id", "dependency.child", "dependency.parent"),
    *("callback.job_id", "callback.workflow_id", "callback.step_id", "callback.failed_job"),
    *("workflow.id", "redriven_as.job_id", "redriven_as.new_id", "dead_letter.job_id"),
    *("reference.job_id", "resealed.job_id", "quarantine.job_id", "attempt_log.job_id", "replaced_payload.job_id"),
    "archived.job_id",
}
# Columns of the job itself, gone with its row.
JOB_COLUMNS = {
    *("job.parent_id", "job.workflow_id", "job.retry_of", "job.causation_id", "job.correlation_id"),
    *(
        "job_state.lease",
        "job_state.settled_by",
        "job_state.approval_id",
        "job_state.workflow_id",
        "made_from.schedule_id",
    ),
}
# References from other rows to their origin; they may dangle.
LABELS = {"app_event.cause_id", "workflow.parent_id", "workflow.correlation_id"}
LABELS |= {"dead_letter_group.sample_job", "dead_letter_group.last_job"}
LABELS |= {"reservation.job_id"}  # history, pruned by age
LABELS |= {"webhook_delivery.job_id"}  # a log, pruned by age
# Ids of other things.
OTHERS = {
    *("lease.id", "cancellation.lease", "agent.id", "app_event.id", "schedule.id", "fire.schedule_id"),
    *(
        "reservation.id",
        "subscription.id",
        "delivery.subscription_id",
        "clock.id",
        "dispatch.id",
        "usage_place.id",
        "upkeep.id",
    ),
    *("retention_pass.reached", "operation.place"),  # positions between jobs
    *("operation.id", "api_token.id", "api_token.parent_id"),
    *("archive.id", "archived.archive_id"),
    *("webhook.id", "webhook_delivery.id", "webhook_delivery.webhook_id"),
}
LABELS |= {"archive.first_job", "archive.last_job"}  # archives outlive their jobs
LABELS |= {"orphaned_file.job_id"}  # deleted with the orphaned file
# Scratch tables of one operation on SQLite, empty after it.
SCRATCH = {"moved.job_id", "ready.job_id", "round.id"}
KNOWN = PURGED | JOB_COLUMNS | LABELS | OTHERS


# Every table is pruned somehow, or has a reason not to be. Purged with their jobs:
WITH_JOBS = {name.split(".")[0] for name in PURGED}
# Pruned by age by `prune_bookkeeping` of both stores, or deleted when done:
PRUNED = {
    "event_partition",
    "lease",
    "api_token",
    "reservation",
    "operation",
    "webhook_delivery",
    "dead_letter_group",
    "orphaned_file",
}
# Deleted with their lease, limit, tenant or policy.
DEPENDENT = {
    "cancellation",
    "rate_meter",
    "tenant_load",
    "pending_change",
    "fair_place",
    "retention_pass",
    "unsure_wait",
    "owed",
}
# A constant number of rows.
LOCKS = {"lock_dispatch", "lock_seal", "mutex", *(f"lock_subscription_{n}" for n in range(8))}
# Settings of people and programs, removed by them. (The newest thousand versions of a template and deleted schedules
# stay, because jobs refer to them.)
SET = {
    *("agent", "template", "schedule", "job_limit", "queue_setting", "subscription", "consumer", "executor"),
    *("payload_rule", "retention", "tenant", "pause", "connector", "webhook"),
    *("login_pin", "registered_kind", "registered_event"),
    "unregistered_name",  # at most a thousand per tenant and registry
}
ONE_ROW = {"clock", "dispatch", "upkeep", "usage_place"}
# Never: usage, actions, their seals, archives, and the applied migrations.
FOR_EVER = {"usage", "action", "archive", "seal", "ledger_epoch", "migration", "installed"}


def without_end(tables: set[str]) -> set[str]:
    return tables - WITH_JOBS - PRUNED - DEPENDENT - SET - ONE_ROW - FOR_EVER - LOCKS


def test_every_column_that_may_name_a_job_is_listed(postgres_url: str) -> None:
    """A new table is in no list and fails here: see `purge_jobs` in both stores."""
    with closing(open_store(postgres_url)) as store:
        store.migrate()
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute(
            "select table_name || '.' || column_name from information_schema.columns c"
            " join pg_class k on k.relnamespace = 'holdfast'::regnamespace and k.relname = c.table_name"
            " where c.table_schema = 'holdfast' and k.relkind in ('r', 'p') and not k.relispartition"
            " and (data_type in ('uuid') or column_name ~ '(^|_)(id|ids|job|jobs|retry_of)$' or udt_name = '_uuid')"
        ).fetchall()
        tables = connection.execute(
            "select relname from pg_class where relnamespace = 'holdfast'::regnamespace and relkind in ('r', 'p')"
            " and not relispartition"
        ).fetchall()
    assert {row[0] for row in rows} == KNOWN | {
        "unsure_wait.job_id",
        "archive.jobs",  # a number
        "owed.job_id",
        "event_partition.low",
        "event_partition.high",
    }
    assert without_end({row[0] for row in tables}) == set(), "no rule removes their rows"


def test_every_column_of_sqlite_that_may_name_a_job_is_listed(sqlite_url: str) -> None:
    with closing(open_store(sqlite_url)) as store:
        store.migrate()
    with closing(SqliteByHand(sqlite_url)) as by_hand:
        columns = {
            f"{table}.{row[1]}"
            for table in by_hand.tables()
            for row in by_hand.execute(f"pragma table_info({table})")
            if row[1] in ("lease", "settled_by", "child", "parent", "reached", "retry_of", "id", "place")
            or row[1].endswith(("_id", "_ids", "_job", "_jobs"))
        }
        tables = {table for table in by_hand.tables() if not table.startswith("sqlite_")}
    assert columns == KNOWN - {"watch.job_id"} | SCRATCH
    assert without_end(tables) == {name.split(".")[0] for name in SCRATCH}
