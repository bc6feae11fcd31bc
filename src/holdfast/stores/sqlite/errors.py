"""SQLite's errors in our words. The triggers' messages begin with what kind of refusal they are."""

from __future__ import annotations

import sqlite3

from holdfast.errors import (
    Conflict,
    IllegalTransition,
    InvalidInput,
    InvalidPayload,
    InvalidSetting,
    Refused,
    SchemaMismatch,
    StaleLease,
    StoreError,
    StoreUnavailable,
)
from holdfast.features.limits.model import LATER


def is_busy(error: sqlite3.Error) -> bool:
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def translate(error: sqlite3.Error) -> Exception:
    message = str(error)
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if message.startswith("illegal transition"):
        return IllegalTransition(message)
    if message.startswith("stale lease"):
        return StaleLease(message)
    if message.startswith("immutable"):
        return Refused(message, code="immutable")
    if message.startswith("agent disabled"):
        return Refused(message, code="agent_disabled")
    if message.startswith("agent kind mismatch"):
        return Refused(message, code="agent_kind_mismatch")
    if message.startswith("agent payload limit"):
        return Refused(message, code="agent_payload_limit")
    if message.startswith("agent wait limit"):
        return Refused(message, code="agent_wait_limit")
    if message.startswith("chain broken"):
        return Conflict(message, code="chain_broken")
    if message.startswith("workflow over"):
        return Conflict(message, code="workflow_over")
    if message.startswith("retried in place"):
        return Refused(message, code="retried_in_place")
    if message.startswith("paused"):
        return Refused(message, code="paused", fix=LATER)
    if message.startswith("token ended"):
        return Refused(message, code="token_ended")
    if message.startswith("session too wide"):
        return Refused(message, code="session_too_wide")
    if message.startswith("generator only"):
        return Refused(message, code="generator_only")
    if message.startswith("payload forbidden"):
        return Refused(message, code="payload_forbidden")
    if message.startswith("payload over limit"):
        return Refused(message, code="payload_over_limit")
    if message.startswith("tenant unregistered"):
        return Refused(message, code="tenant_unregistered")
    if message.startswith("kind unregistered"):
        return Refused(message, code="kind_unregistered")
    if message.startswith("agent unregistered"):
        return Refused(message, code="agent_unregistered")
    if message.startswith("event type unregistered"):
        return Refused(message, code="event_type_unregistered")
    if message.startswith("event data invalid"):
        return Refused(message, code="event_data_invalid")
    if message.startswith("tenant required"):
        return Refused(message, code="tenant_required")
    if message.startswith("tenant full"):
        return Refused(message, code="tenant_full")
    if message.startswith("secret in settings"):
        return Refused(message, code="secret_in_settings")
    if message.startswith("time out of range"):
        return InvalidSetting(message, code="invalid_time")
    if message.startswith("payload too deep"):
        return InvalidPayload(message, code="payload_too_deep")
    if message.startswith("executor"):
        return Refused(message, code="executor_refused")
    if message.startswith(("CHECK constraint", "NOT NULL constraint")):
        return Refused(message, code="broken_invariant")
    if message.startswith(("UNIQUE constraint", "already exists")):
        return Conflict(message, code="already_exists")
    if message.startswith("no such table"):
        return SchemaMismatch(
            "the Holdfast tables are not in this database",
            code="not_migrated",
            fix="Run: holdfast migrate",
        )
    if is_busy(error):
        return StoreUnavailable("another process kept the database locked", code="database_locked")
    # The index of the log is beside it in a file of its own, and of that one SQLite says only that it cannot grow.
    if primary == sqlite3.SQLITE_FULL or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHMSIZE:
        return StoreUnavailable("no space left for the database", code="disk_full")
    if primary == sqlite3.SQLITE_READONLY:
        return StoreUnavailable(
            f"the database file cannot be written: {message}",
            fix="Allow this user to write to the file and its folder (SQLite creates two more files beside it).",
        )
    if primary in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        return StoreUnavailable(f"the database file cannot be used: {message}")
    if primary in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return StoreUnavailable(f"the file is not a valid SQLite database: {message}", code="not_a_database")
    if primary in (sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_RANGE):
        return InvalidInput(message, code="invalid_input")
    return StoreError(message)
