"""The duty of subscriptions: look at each in turn, in a transaction of its own, so that a bad one holds up no other."""

from __future__ import annotations

import logging

from holdfast.engine.settlement import storable
from holdfast.errors import Refused, StoreUnavailable
from holdfast.stores.base import Store

log = logging.getLogger("holdfast.worker")

PAGE = 500
"""Events read in one transaction. Locks are kept, and the write lock where there is one, for a few ms."""
PAGES = 20
"""How many pages of one subscription are read before the next has its turn."""


async def feed(store: Store, *, tenant: str) -> int:
    """Answers how many jobs were made. Mostly there is no subscription, and this is one look at an empty table."""
    made = 0
    for scope, name, id in await store.arun(store.verbs.active_subscriptions(tenant)):
        try:
            for _ in range(PAGES):
                fed = await store.arun(store.verbs.feed_subscription(name, PAGE, scope))
                made += fed.made
                if fed.refused:
                    log.warning("subscription %s: %s events made no job", name, fed.refused)
                if fed.seen < PAGE:
                    break
        except StoreUnavailable:
            raise
        except Refused as error:
            # Somebody paused or changed it meanwhile, or its jobs are not accepted now: it stays where it is. Or its
            # key said no, which is to be seen.
            if error.code not in ("subscription_changed", "paused"):
                await _say(store, scope, name, id, error)
        except Exception as error:  # one that fails is tried again, and the others have their turn
            await _say(store, scope, name, id, error)
    return made


async def _say(store: Store, scope: str, name: str, id: str, error: Exception) -> None:
    log.warning("subscription %s failed: %s", name, error)
    await store.arun(store.verbs.subscription_failed(id, storable(str(error)) or type(error).__name__, scope))
