"""What psycopg raises, in our words. (``failures`` knows the refusals, which are the same through every driver.)"""

from __future__ import annotations

import psycopg
import psycopg_pool

from holdfast.errors import InvalidInput, StoreError, StoreUnavailable
from holdfast.stores.postgres.failures import refusal


def lost(error: Exception) -> bool:
    """The connection is gone, or the server is going: whether the last statement was carried out is not known."""
    if not isinstance(error, psycopg.OperationalError) or isinstance(error, psycopg_pool.PoolTimeout):
        return False
    state = error.sqlstate
    return state is None or state.startswith("08") or state in ("57P01", "57P02", "57P03", "57P05")


def translate(error: Exception) -> Exception:
    """A driver's error in our words; anything else stays what it is."""
    if not isinstance(error, psycopg.Error | psycopg_pool.PoolTimeout):
        return error
    state = getattr(error, "sqlstate", None) or ""
    message = str(error).strip().split("\n")[0]
    ours = refusal(state, message)
    if ours is not None:
        return ours
    if isinstance(error, psycopg.DataError):  # refused by the driver already: a character that text cannot have
        return InvalidInput(message, code="invalid_input")
    if state == "25006":
        return StoreUnavailable(f"the server takes no writes: {message}", code="store_read_only")
    if isinstance(error, psycopg.OperationalError | psycopg_pool.PoolTimeout):
        if state == "08P01" and "statement pooling mode" in message:
            return StoreUnavailable(
                f"the pooler does not let transactions through: {message}",
                code="statement_pooling",
                fix="Set pool_mode = transaction (or session) for this database.",
            )
        there = state and not lost(error)  # it has answered: a statement that took too long, no memory, no space
        return StoreUnavailable(f"the database cannot be {'used' if there else 'reached'}: {message}")
    return StoreError(message, code="store_error")
