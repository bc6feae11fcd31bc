"""Translate errors of SQLite to Holdfast errors."""

from __future__ import annotations

import sqlite3

from holdfast.errors import (
    Conflict,
    HoldfastError,
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
from holdfast.stores.codecs import not_storable

# By the beginning of the message, which the triggers choose.
_REFUSALS: tuple[tuple[str, type[HoldfastError], str], ...] = (
    ("illegal transition", IllegalTransition, "illegal_transition"),
    ("stale lease", StaleLease, "stale_lease"),
    ("immutable", Refused, "immutable"),
    ("agent disabled", Refused, "agent_disabled"),
    ("agent kind mismatch", Refused, "agent_kind_mismatch"),
    ("agent payload limit", Refused, "agent_payload_limit"),
    ("agent wait limit", Refused, "agent_wait_limit"),
    ("chain broken", Conflict, "chain_broken"),
    ("workflow over", Conflict, "workflow_over"),
    ("retried in place", Refused, "retried_in_place"),
    ("paused", Refused, "paused"),
    ("token ended", Refused, "token_ended"),
    ("session too wide", Refused, "session_too_wide"),
    ("generator only", Refused, "generator_only"),
    ("payload forbidden", Refused, "payload_forbidden"),
    ("payload over limit", Refused, "payload_over_limit"),
    ("tenant unregistered", Refused, "tenant_unregistered"),
    ("kind unregistered", Refused, "kind_unregistered"),
    ("agent unregistered", Refused, "agent_unregistered"),
    ("event type unregistered", Refused, "event_type_unregistered"),
    ("event data invalid", Refused, "event_data_invalid"),
    ("tenant required", Refused, "tenant_required"),
    ("key required", Refused, "key_required"),
    ("executor required", Refused, "executor_required"),
    ("agent required", Refused, "agent_required"),
    ("tenant full", Refused, "tenant_full"),
    ("secret in settings", Refused, "secret_in_settings"),
    ("time out of range", InvalidSetting, "invalid_time"),
    ("payload too deep", InvalidPayload, "payload_too_deep"),
    ("executor", Refused, "executor_refused"),
    ("CHECK constraint", Refused, "broken_invariant"),
    ("NOT NULL constraint", Refused, "broken_invariant"),
    ("UNIQUE constraint", Conflict, "already_exists"),
    ("already exists", Conflict, "already_exists"),
)


def is_busy(error: sqlite3.Error) -> bool:
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def translate(error: sqlite3.Error | UnicodeEncodeError) -> Exception:
    """The Holdfast error for an error of SQLite."""
    if isinstance(error, UnicodeEncodeError):
        return not_storable()
    message = str(error)
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    for beginning, error_class, code in _REFUSALS:
        if message.startswith(beginning):
            return error_class(message, code=code, fix=LATER if code == "paused" else None)
    if message.startswith("no such table"):
        return SchemaMismatch(
            "the Holdfast tables are not in this database",
            code="not_migrated",
            fix="Run: holdfast migrate",
        )
    if is_busy(error):
        return StoreUnavailable("another process kept the database locked", code="database_locked")
    # The index of the log is a separate file; about that one SQLite only reports that it cannot grow.
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
