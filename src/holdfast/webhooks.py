"""For those who receive webhooks: ``holdfast.webhooks.verify(headers, body, secret)``. Any framework; no other part of
Holdfast is needed, and nothing but the standard library.

    message = webhooks.verify(request.headers, await request.body(), os.environ["HOLDFAST_HOOKS"])
    if seen.first(message.id):
        act_on(message.json())

What is wrong with a message is a ``HoldfastError``: answer it with 400, and nothing else is ever raised.
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
    """The message, if it was signed with this secret (or one of these) within the last minutes.

    ``body`` is the bytes as they came: JSON that was read and written again has another signature.
    """
    moment, span = _seconds(time.time() if now is None else now), _seconds(tolerance)
    return standard.verify(headers, body, secrets, now=moment, tolerance=span)


def sign(secrets: str | Sequence[str], id: str, body: bytes, *, now: float | None = None) -> dict[str, str]:
    """The three headers of a message, for those who send some themselves, or test a receiver."""
    return standard.sign(secrets, id, int(_seconds(time.time() if now is None else now)), body)


def new_secret(size: object = 32) -> str:
    """A secret of so many random bytes, to be put where programs find it by name; it is not stored anywhere."""
    if not isinstance(size, int) or not standard.LEAST_KEY <= size <= standard.MOST_KEY:
        raise InvalidSetting(
            f"a webhook secret must have {standard.LEAST_KEY} to {standard.MOST_KEY} bytes", code="webhook_secret"
        )
    return standard.secret_of(os.urandom(size))


def _seconds(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise InvalidInput("a time or a tolerance must be a number of seconds", code="invalid_input")
    return value


class Seen:
    """The ids of messages that were seen, the last so many of them, in this process.

    A message is sent again when its answer was lost, a day later even, with the same id. Where doing it twice would do
    harm, keep the id in your database instead, under a unique key, in the transaction of what you do.
    """

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def first(self, id: str) -> bool:
        """Whether this one was not seen before; from now on it was."""
        with self._lock:
            if id in self._ids:
                return False
            self._ids[id] = None
            if len(self._ids) > self._most:
                self._ids.popitem(last=False)
            return True
