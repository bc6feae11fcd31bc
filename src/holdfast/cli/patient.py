"""How the web server leaves though the database may be away: what requests still ask of it is waited for so long, and
no longer, and whoever is not answered by then is told so.
"""

from __future__ import annotations

import asyncio
import math
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.problems import problem
from holdfast.stores.flow import Patience, patience_of


class Patient:
    """A service all of whose requests are under one patience, which ends when the service leaves."""

    def __init__(self, service: ASGIApp, patience: Patience) -> None:
        self._service, self._patience = service, patience

    def leave(self, seconds: float) -> None:
        """In so many seconds nothing is asked of the database any more. What is said last counts."""
        self._patience.until = time.monotonic() + seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._service(scope, receive, send)
        patience_of.set(self._patience)  # of the task that this request is
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._service(scope, receive, sending)
        except asyncio.CancelledError:
            if begun or self._patience.until == math.inf:
                raise
            why = "the service is leaving; whether it was done is not known, unless it can be asked again"
            await problem(503, "store_unavailable", why, error="StoreUnavailable")(scope, receive, send)
