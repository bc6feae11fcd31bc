"""Detect events that retention purged before a reader that stores its own cursor has read them (ADR 0043).

Consumers and subscriptions, whose cursor is in the database, hold back a purge. Other readers cannot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import EventsGone
from holdfast.stores.flow import Steps, flow

if TYPE_CHECKING:
    from holdfast.features.assembly import Store


@flow(writes=False)
def check_events_gone(store: Store, cursor: str, tenant: str) -> Steps[None]:
    """Raise ``EventsGone`` if unread events after this cursor were purged. Call it after reading the page from the
    cursor, so that no purge can happen in between."""
    through = yield from store.ledger.gone(cursor, tenant).start()
    if through is None:
        return
    end = yield from store.ledger.end(tenant).start()
    raise EventsGone(
        f"unread events up to number {through} are gone: retention has purged their jobs",
        fix="Read the current state again and follow from this error's cursor, or skip gaps.",
        cursor=end,
        through=through,
    )
