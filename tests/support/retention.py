"""Retention in tests: policies through the port, sweeping until there is nothing left, and who still names a job."""

from __future__ import annotations

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.units import Duration
from holdfast.features.assembly import Store
from holdfast.features.retention.model import Retention, RetentionRule
from tests.support.by_hand import ByHand


def keep(
    store: Store,
    clean: Duration | None = None,
    purge: Duration | None = None,
    *,
    kind: str | None = None,
    state: str | None = None,
    tenant: str = EVERY_TENANT,
) -> Retention:
    return store.run(store.retention.set(RetentionRule.of(kind, state, clean, purge), "ada", tenant))


def sweep(store: Store, *, want: int = 200, look: int = 2000, tenant: str = EVERY_TENANT) -> dict[str, int]:
    """Until it is no pass's turn; what went, and what was held back at last."""
    done = {"clean": 0, "purge": 0, "prune": 0, "held": 0}
    for _ in range(1000):
        while store.run(store.usage.count(500)):
            pass
        swept = store.run(store.retention.sweep(want, look, tenant))
        if swept.action == "idle":
            return done
        done[swept.action] += swept.done
        done["held"] += swept.held
    raise AssertionError("the sweep does not come to an end")


def naming(by_hand: ByHand, text: str) -> set[str]:
    """The tables in which some row has this text in it, as a value or inside one."""
    return {
        table for table, rows in by_hand.contents().items() if any(text in str(value) for row in rows for value in row)
    }
