"""Receive webhooks: verify signatures and skip messages that were delivered before.

It works with any web framework and needs nothing but the standard library::

    seen = webhooks.Seen()

    message = webhooks.verify(request.headers, await request.body(), os.environ["HOLDFAST_HOOKS"])
    if seen.first(message.id):
        process(message.json())

A message that is not valid raises a ``HoldfastError``, and no other exception: respond with status 400.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence

from holdfast.errors import InvalidInput, InvalidSetting
from holdfast.features.webhooks import signing as standard
from holdfast.features.webhooks.signing import TOLERANCE, Headers, Message

__all__ = ["TOLERANCE", "Message", "Seen", "new_secret", "sign", "verify"]


def verify(
    headers: Headers,
    body: bytes,
    secrets: str | Sequence[str],
    *,
    tolerance: float = TOLERANCE,
    now: float | None = None,
) -> Message:
    """Check the signature of a webhook and return its message.

    ``body`` must be the bytes as received: JSON that was parsed and serialized again has another signature. Pass
    several ``secrets`` while you rotate them. A message that was signed more than ``tolerance`` seconds before or after
    ``now`` is refused. Raises a ``HoldfastError``.
    """
    moment = _seconds(time.time() if now is None else now)
    return standard.verify(headers, body, secrets, now=moment, tolerance=_seconds(tolerance))


def sign(secrets: str | Sequence[str], id: str, body: bytes, *, now: float | None = None) -> dict[str, str]:
    """Return the three headers of a signed message, to test a receiver or to send messages yourself."""
    return standard.sign(secrets, id, int(_seconds(time.time() if now is None else now)), body)


def new_secret(size: object = 32) -> str:
    """Return a new secret of ``size`` random bytes, as text. Holdfast does not store it."""
    if not isinstance(size, int) or not standard.MIN_KEY <= size <= standard.MAX_KEY:
        raise InvalidSetting(
            f"a webhook secret must have {standard.MIN_KEY} to {standard.MAX_KEY} bytes", code="webhook_secret"
        )
    return standard.secret_of(os.urandom(size))


def _seconds(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise InvalidInput("a time or a tolerance must be a number of seconds", code="invalid_input")
    return value


class Seen:
    """Remembers the ids of the last ``most`` messages, in this process.

    A message is sent again, with the same id, when the sender did not get your response; this can be a day later. If
    processing a message twice would do harm, store its id in your database instead, under a unique key and in the same
    transaction as your changes.
    """

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def first(self, id: str) -> bool:
        """Return True the first time it is called with this id."""
        with self._lock:
            if id in self._ids:
                return False
            self._ids[id] = None
            if len(self._ids) > self._most:
                self._ids.popitem(last=False)
            return True
