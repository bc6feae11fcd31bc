"""To begin beside a server that is just being restarted: what is to run for long waits a little for it.

Only for what can be done again, whether or not it was done: nobody knows after a connection is lost.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from holdfast.errors import StoreUnavailable

T = TypeVar("T")

log = logging.getLogger("holdfast.store")

# What a server needs to come up again. One that is not there, or does not answer, is not waited for as long again.
PAUSES = (0.2, 0.4, 0.8, 1.6)


def pauses() -> Iterator[float]:
    for pause in PAUSES:
        yield pause * random.uniform(0.5, 1.0)


def when_there(begin: Callable[[], T]) -> T:
    """What ``begin`` answers, once the store can be reached; its error, if that is not soon."""
    latest = time.monotonic() + sum(PAUSES)
    for pause in pauses():
        try:
            return begin()
        except StoreUnavailable as error:
            if time.monotonic() > latest:
                raise
            log.warning("not begun, trying again: %s", error)
            time.sleep(pause)
    return begin()
