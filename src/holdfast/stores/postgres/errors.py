"""Translate SQLSTATEs and errors of psycopg to Holdfast errors."""

from __future__ import annotations

import re

import psycopg
import psycopg_pool

from holdfast.errors import (
    Conflict,
    HoldfastError,
    IllegalTransition,
    InvalidInput,
    InvalidPayload,
    InvalidSetting,
    NotFound,
    Refused,
    SchemaMismatch,
    StaleLease,
    StoreError,
    StoreUnavailable,
)
from holdfast.features.limits.model import LATER
from holdfast.stores.codecs import not_storable
from holdfast.stores.postgres.roles import missing_role

OURS: dict[str, tuple[type[HoldfastError], str]] = {
    "ZH001": (IllegalTransition, "illegal_transition"),
    "ZH002": (Refused, "immutable"),
    "ZH003": (StaleLease, "stale_lease"),
    "ZH004": (Refused, "not_allowed"),
    "ZH020": (Refused, "agent_disabled"),
    "ZH021": (Refused, "agent_kind_mismatch"),
    "ZH022": (Refused, "agent_payload_limit"),
    "ZH023": (Refused, "agent_wait_limit"),
    "ZH030": (Conflict, "workflow_over"),
    "ZH031": (Refused, "job_refused"),
    "ZH032": (InvalidInput, "unknown_parent"),
    "ZH033": (Refused, "generator_only"),
    "ZH034": (Refused, "retried_in_place"),
    "ZH040": (Conflict, "subscription_changed"),
    "ZH041": (Refused, "executor_refused"),
    "ZH050": (Refused, "payload_forbidden"),
    "ZH051": (Refused, "payload_over_limit"),
    "ZH057": (Refused, "tenant_full"),
    "ZH053": (Conflict, "no_batch_due"),
    "ZH059": (Conflict, "chain_broken"),
    "ZH060": (Refused, "paused"),
    "ZH062": (Refused, "token_ended"),
    "ZH063": (Refused, "session_too_wide"),
    "ZH064": (Refused, "secret_in_settings"),
    "ZH067": (Refused, "tenant_unregistered"),
    "ZH068": (Refused, "kind_unregistered"),
    "ZH069": (Refused, "agent_unregistered"),
    "ZH070": (Conflict, "sealing_blocked"),
    "ZH072": (Refused, "tenant_required"),
    "ZH076": (Refused, "key_required"),
    "ZH077": (Refused, "executor_required"),
    "ZH078": (Refused, "agent_required"),
    "ZH074": (NotFound, "login_not_found"),
    "ZH075": (Refused, "login_exempt"),
    "ZH073": (Refused, "tenant_pinned"),
    "ZH080": (Refused, "isolation_level"),
    "ZH081": (Refused, "replication_role"),
    "ZH082": (Refused, "copy_not_adopted"),
    "ZH083": (Conflict, "copy_in_use"),
    "ZH090": (InvalidSetting, "invalid_time"),
    "ZH091": (InvalidPayload, "payload_too_deep"),
    "ZH092": (InvalidSetting, "invalid_duration"),
    "ZH010": (InvalidInput, "invalid_input"),
}


# Errors whose hint, written in the SQL function, is also the fix for callers in Python.
HINTED = frozenset({"ZH004", "ZH073", "ZH082", "ZH083", "ZH092"})
FIXES = {
    "ZH060": LATER,
    "ZH080": "Call it in a transaction that is READ COMMITTED, or without connection=.",
    "ZH081": "Set it to origin for this login: alter role LOGIN reset session_replication_role",
}


def refusal(state: str, message: str, hint: str | None = None) -> HoldfastError | None:
    """The error for a SQLSTATE; None for a failure of the server or the connection, such as a deadlock."""
    if state in OURS:
        error_class, code = OURS[state]
        return error_class(message, code=code, fix=FIXES.get(state) or (hint if state in HINTED else None))
    if state in ("3F000", "42P01", "42883"):
        return SchemaMismatch(
            "the Holdfast tables are missing or older than this release",
            code="not_migrated",
            fix="Run: holdfast migrate",
        )
    if state == "42501":
        return Refused(
            message,
            code="not_allowed",
            fix=missing_role(message),
        )
    if state in ("23502", "23514"):
        return Refused(message, code="broken_invariant")
    if state == "23505":
        return Conflict(message, code="already_exists")
    if state.startswith("22"):
        return InvalidInput(message, code="invalid_input")
    return None


def lost(error: Exception) -> bool:
    """Whether the connection was lost or the server is shutting down, so that the last statement may have been executed
    or not."""
    if not isinstance(error, psycopg.OperationalError) or isinstance(error, psycopg_pool.PoolTimeout):
        return False
    state = error.sqlstate
    return state is None or state.startswith("08") or state in ("57P01", "57P02", "57P03", "57P05")


# libpq has no SQLSTATE for a connection that was not established, only the server's text.
_LOGIN_REFUSED = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|role .* does not exist|not permitted to log in"
    r"|no such user"  # PgBouncer
)


def is_login_refused(message: str) -> bool:
    """Whether the server refused the user or the password of the URL: waiting does not help."""
    return _LOGIN_REFUSED.search(message) is not None


def unavailable(message: str, *, reached: bool = False) -> StoreUnavailable:
    """The error for a database that cannot be used, or cannot be reached at all."""
    if not reached and is_login_refused(message):
        return StoreUnavailable(f"the database refused the login: {message}", code="login_refused")
    return StoreUnavailable(f"the database cannot be {'used' if reached else 'reached'}: {message}")


def translate(error: Exception) -> Exception:
    """The Holdfast error for an error of the driver; other errors are returned unchanged."""
    if isinstance(error, UnicodeEncodeError):
        return not_storable()
    if not isinstance(error, psycopg.Error | psycopg_pool.PoolTimeout):
        return error
    state = getattr(error, "sqlstate", None) or ""
    message = str(error).strip().split("\n")[0]
    refused = refusal(state, message, error.diag.message_hint)
    if refused is not None:
        return refused
    if isinstance(error, psycopg.DataError):  # raised by the driver itself: a character that text cannot contain
        return InvalidInput(message, code="invalid_input")
    if state == "25006":
        return StoreUnavailable(f"the server is read-only: {message}", code="store_read_only")
    if isinstance(error, psycopg.OperationalError | psycopg_pool.PoolTimeout):
        if state == "08P01" and "statement pooling mode" in message:
            return StoreUnavailable(
                f"the pooler does not support transactions: {message}",
                code="statement_pooling",
                fix="Set pool_mode = transaction (or session) for this database.",
            )
        # The server responded: a timeout, no memory, no disk space.
        return unavailable(message, reached=bool(state) and not lost(error))
    return StoreError(message, code="store_error")
