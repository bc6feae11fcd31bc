"""For those who follow the ledger from a place that they keep themselves: whether retention was faster (ADR 0043).

Consumers and subscriptions, whose place the database keeps, hold a purge back; of all others it knows nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import EventsGone
from holdfast.stores.flow import Steps, flow

if TYPE_CHECKING:
    from holdfast.features.assembly import Store


@flow(writes=False)
def check_gone(store: Store, place: str, tenant: str) -> Steps[None]:
    """``EventsGone`` when events after this cursor were purged since it was given out. Asked after the page that was
    read from there, so that no purge is between the two."""
    through = yield from store.ledger.gone(place, tenant).start()
    if through is None:
        return
    end = yield from store.ledger.end(tenant).start()
    raise EventsGone(
        f"unread events up to number {through} are gone: retention has purged their jobs",
        fix="Read the current state again and follow from this error's cursor, or skip gaps.",
        cursor=end,
        through=through,
    )
