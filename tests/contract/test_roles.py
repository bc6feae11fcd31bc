"""Roles with least privilege: each can call exactly its functions, checked by calling all of them (DP-17)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from tests.support.direct_sql import PostgresByHand
from tests.support.postgres_roles import ROLES, OwnedDatabases, as_role, ensure_roles

pytestmark = pytest.mark.req("DP-17", "DP-2", "JF-2")

VIEWER, PRODUCER, EXECUTOR, APPROVER, ADMIN = ROLES
OUTSIDER = "holdfast_outsider"
# Key columns of tables without a tenant.
KEYS = {
    "migration": "name",
    "installed": "name",
    "cancellation": "lease",
    "mutex": "n",
    "owed": "job_id",
    "event_partition": "name",
    "ledger_epoch": "number",
} | dict.fromkeys(("clock", "dispatch", "usage_place", "upkeep"), "id")
KEYS |= dict.fromkeys(("lock_dispatch", "lock_seal", *(f"lock_subscription_{n}" for n in range(8))), "held")

READS = {
    *("refusal_reason", "get_job", "list_jobs", "history", "health", "events_after", "events_gone", "app_events_after"),
    *("chain", "circumstances", "liveness"),
    "policies",
    *("current_base", "ledger_base", "ledger_position", "ledger_snapshot", "origin"),
    *("list_workers", "running_versions"),
    *("active_subscriptions", "fair_queues", "turn_of", "registered_only", "hides", "withheld"),
    *("pinned_tenant", "payload_indexes", "jobs_by_payload"),
    *("scope", "caller", "actor", "clock_now", "enter", "legal", "event_type", "uuid7", "watch_job", "list_limits"),
    *("halted", "preview_retention", "retention_for", "shape", "fingerprint", "seals_of"),
    *("shown_payload", "attempt_payload", "lock_waits", "lock_holders", "signal_key"),
    *("token_of", "token_used", "open_session", "end_session"),  # they require the hash of a token
}
PRODUCES = {
    *("enqueue", "enqueue_one", "enqueue_many", "enqueue_alike", "cancel", "cancel_many", "send_event", "enqueue_made"),
    *("start_workflow", "add_to_workflow", "cancel_workflow"),
}
EXECUTES = {
    *("enqueue", "enqueue_one", "enqueue_many", "enqueue_alike", "every_tenant", "backoff_delay", "save_cursor"),
    "seal_ledger",
    "enqueued_payloads",
    *("open_worker", "offer_held"),
    *("open_lease", "heartbeat", "renew_lease", "renew", "end_lease", "claim", "claim_many", "start_many"),
    *("exchange", "cancellations", "holdings"),
    *("release", "release_many", "settle_many", "succeed", "fail", "progress", "save_checkpoint", "add_artifact"),
    *("append_log", "note_upload"),
    *("due_work", "promote_due", "expire_overdue", "recover_leases", "quarantine"),
    *("save_steps", "send_event", "attend_approvals", "keep_approval_token"),
    *("enqueue_made", "fire_schedules", "declare_schedules", "add_schedule", "change_schedule"),
    *("start_workflow", "add_to_workflow", "fire_callbacks"),
    *("attend_limits", "wake_limited", "age_queues", "reserve", "release_reservation", "record_reservation"),
    *("save_subscription", "hold_subscription", "delivered", "advance_subscription", "subscription_failed"),
    *("unarchived", "archive_rows", "record_archive"),
    *("sweep_retention", "declare_retention", "count_usage", "orphans", "forget_orphans"),
    "declare_payload_rules",
    *("next_operation", "hold_operation", "do_operation"),
    *("note_webhook_delivery", "disable_webhook"),
}
RESOLVES = {
    *(
        "redrive",
        "redrive_many",
        "discard",
        "discard_many",
        "reschedule",
        "reschedule_many",
        "move",
        "rewind",
        "fork_steps",
    ),
    *("set_agent", "disable_agent", "drain_agent", "enable_agent", "resume_agent"),
    *("put_template", "run_schedule"),
    *("resume_workflow", "move_version"),
    *("set_limit", "remove_limit", "set_aging"),
    *("pause_subscription", "resume_subscription", "delete_subscription", "reset_consumer", "remove_consumer"),
    *("set_executor", "remove_executor", "request_stop"),
    *("unread_events", "adopt_copy"),
    *("register_kinds", "remove_kind", "set_event_type", "remove_event_type", "set_policies"),
    *("pause", "resume"),
    *("set_payload_rule", "remove_payload_rule", "sealed_payloads", "reseal", "sealed_parts", "reseal_part"),
    *("set_tenant", "remove_tenant", "pin_login", "unpin_login", "set_fair", "set_registered_only", "find_orphans"),
    *("set_retention", "delete_retention"),
    *("note_dead_letters", "start_operation", "cancel_operation", "redrive_as", "replace_payload", "set_external_ref"),
    *("issue_token", "revoke_token"),
    *("set_connector", "remove_connector"),
    *("add_webhook", "change_webhook", "enable_webhook", "remove_webhook"),
}
APPROVES = {
    "decide_approval",
    "approve",
    "deny",
    "approval_token_hashes",
    "approval_token_of",
    "keep_approval_token",
    "has_decided",
}
ALLOWED = {
    OUTSIDER: set[str](),
    VIEWER: READS,
    PRODUCER: READS | PRODUCES,
    EXECUTOR: READS | EXECUTES,
    APPROVER: READS | APPROVES,
    ADMIN: READS | PRODUCES | EXECUTES | APPROVES | RESOLVES,
}


@pytest.fixture
def url(owned_databases: OwnedDatabases) -> Iterator[str]:
    """An administrator's URL of a database whose schema belongs to a plain role."""
    with owned_databases.fresh() as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            ensure_roles(connection, OUTSIDER)
        yield dsn


def functions(by_hand: PostgresByHand) -> list[tuple[str, str, str]]:
    """Name, signature, and a call with only nulls, of every function of the schema."""
    rows = by_hand.execute(
        "select p.proname, p.oid::regprocedure::text, p.proname || '(' || coalesce((select string_agg('null::'"
        " || t::regtype, ', ' order by n) from unnest(p.proargtypes) with ordinality as a(t, n)), '') || ')'"
        " from pg_proc p where p.pronamespace = 'holdfast'::regnamespace"
    )
    return [(name, signature, call) for name, signature, call in rows]


@pytest.mark.parametrize("role", ALLOWED)
def test_every_role_can_call_exactly_its_functions(url: str, role: str) -> None:
    """Functions come from the catalogue: one added without a grant decision is in no list and fails here."""
    with closing(PostgresByHand(as_role(url, role), tenant=None)) as by_hand:
        result = functions(by_hand)
        may, denied, incomplete = set(), set(), {}
        for name, _signature, call in result:
            refusal = by_hand.refusal(f"select holdfast.{call}") or ""
            if f"permission denied for function {name}" in refusal or "permission denied for schema" in refusal:
                denied.add(name)
            else:
                may.add(name)
                if "permission denied" in refusal:
                    incomplete[name] = refusal
    assert len(result) > 50
    assert may == ALLOWED[role]
    assert denied == {name for name, *_ in result} - ALLOWED[role]
    assert incomplete == {}, "allowed, but something it needs is not"


@pytest.mark.parametrize("role", [OUTSIDER, *ROLES])
def test_no_role_can_write_a_table(url: str, role: str) -> None:
    with closing(PostgresByHand(url)) as admin:
        writable = admin.execute(
            "select c.relname, p from pg_class c, unnest(array['insert', 'update', 'delete', 'truncate',"
            " 'references', 'trigger']) p where c.relnamespace = 'holdfast'::regnamespace"
            " and c.relkind in ('r', 'p', 'v', 'm') and has_table_privilege(:role, c.oid, p)"
            " union all select c.relname, p from pg_class c, unnest(array['insert', 'update', 'references']) p"
            " where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p', 'v')"
            " and has_any_column_privilege(:role, c.oid, p)"
            " union all select c.relname, p from pg_class c, unnest(array['usage', 'update']) p"
            " where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'S'"
            " and has_sequence_privilege(:role, c.oid, p)",
            {"role": role},
        )
        assert writable == []
        tables = admin.tables()
    with closing(PostgresByHand(as_role(url, role), tenant="default" if role != OUTSIDER else None)) as by_hand:
        for table in tables:
            column = KEYS.get(table, "tenant")
            for statement in (
                f"insert into holdfast.{table} default values",
                f"update holdfast.{table} set {column} = null",
                f"delete from holdfast.{table}",
                f"truncate holdfast.{table}",
            ):
                assert "permission denied" in (by_hand.refusal(statement) or ""), statement


@pytest.mark.parametrize("role", ROLES)
def test_no_role_can_read_a_token(url: str, role: str) -> None:
    with closing(PostgresByHand(as_role(url, role), tenant="default")) as by_hand:
        for secret in (
            "select lease from job_state",
            "select settled_by from job_state",
            "select * from job_state",
            "select id from lease",
            "select * from lease",
            "select * from idempotency",
            "select * from content",
            "select * from approval_token",
            "select hash from approval_token",
            "select * from api_token",
            "select hash from api_token",
            "select * from occupied_slot",
            "select * from rate_meter",
            "select payload from job",
            "select * from job",
        ):
            assert "permission denied" in (by_hand.refusal(secret) or ""), secret
        assert by_hand.refusal("select holder, until from lease") is None
