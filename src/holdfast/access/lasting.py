"""Answers that go on for long, such as streams: whoever asked must still be let in while they are told something.

A token that was revoked or is over, a session that was ended, opens nothing any more; neither does what it had opened.
"""

from __future__ import annotations

import time

from starlette.requests import Request

from holdfast.access.gate import Gate, identity_of
from holdfast.access.identity import Scope
from holdfast.errors import HoldfastError

AGAIN = 5.0
"""Seconds for which an answer is believed."""


class Lasting:
    """``if not await lasting.holds(): return``, before each thing that is told."""

    def __init__(self, request: Request, scope: Scope, again: float = AGAIN) -> None:
        self._request, self._scope, self._again = request, scope, again
        self._asked = time.monotonic()

    async def holds(self) -> bool:
        """By the same look as when it began. Who cannot be looked for is not believed: they come again, and miss
        nothing."""
        if time.monotonic() - self._asked < self._again:
            return True
        gate, then = self._request.scope["state"].get("holdfast_gate"), identity_of(self._request)
        if not isinstance(gate, Gate):  # whoever let them in did so without us
            return True
        try:
            now = await gate.who(self._request)
        except HoldfastError:
            return False
        self._asked = time.monotonic()
        return now is not None and now.tenant == then.tenant and now.may(self._scope)
