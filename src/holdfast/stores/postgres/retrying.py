"""When a flow that has failed is tried again, and after which pause."""

from __future__ import annotations

import random
from typing import Any

import psycopg

from holdfast.stores.flow import Flow
from holdfast.stores.postgres.translating import lost

RETRIES = 6


def tried_again(error: Exception, flow: Flow[Any], attempt: int, connections: int) -> bool:
    """A transaction that lost a race starts again; a lost connection only where nothing can have been written,
    or where the flow knows how to find out. Its first try may still be on its way: then the ids collide once."""
    if flow.repeat is not None and lost(error):
        return attempt + 1 < RETRIES + connections  # every one of the pool may have to be found dead first
    if attempt + 1 >= RETRIES:
        return False
    if isinstance(error, psycopg.errors.SerializationFailure | psycopg.errors.DeadlockDetected):
        return True
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return attempt < 2  # a primary that is one no more, or not yet: a new connection may find the right one
    if getattr(error, "sqlstate", None) == "ZH020" and attempt == 0:
        return True  # the agent was disabled between the answer and the insert: then the answer is another
    if flow.start is flow.repeat and isinstance(error, psycopg.errors.UniqueViolation):
        return True
    return isinstance(error, psycopg.OperationalError) and not flow.writes and attempt == 0


def only_once(flow: Flow[Any]) -> bool:
    """A write that cannot be tried again, and so is not begun on a connection that is already dead. A worker could
    compare what it holds and repeat its exchange, but that costs it two round trips, and this costs 3 µs."""
    return flow.writes and flow.repeat is None


def pause(attempt: int) -> float:
    return random.uniform(0.2, 1.0) * 0.01 * float(2 ** min(attempt, 5))
