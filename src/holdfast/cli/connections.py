"""Connections of the web server that never come to a request: closed after a while.

uvicorn waits for ever for the first request of a connection, for the rest of a request's head, and for the rest of a
body whose request has been answered. Bodies that are being read have a limit of their own (``server/middleware.py``).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

LARGEST_HEAD = 64 * 1024
"""Bytes of a request line with its headers."""
_BUSY = object()

if TYPE_CHECKING:

    class _Protocol(asyncio.Protocol):
        """What the two protocols of uvicorn have in common."""

        cycle: Any
        loop: asyncio.AbstractEventLoop
        transport: asyncio.Transport

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
        def send_400_response(self, msg: str) -> None: ...
        def on_message_begin(self) -> None: ...
        def on_headers_complete(self) -> None: ...

else:
    from uvicorn.protocols.http.auto import AutoHTTPProtocol as _Protocol


class _Watched(_Protocol):
    """Closed when it has waited ``patience`` seconds for a request. Looks at itself once in that time, so that requests
    pay nothing for it."""

    patience = 10.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.patience, self._look, None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _look(self, before: object) -> None:
        """``before``: the last request that was answered when it looked last; it waits if that is still the last."""
        cycle, transport = self.cycle, self.transport
        if transport.is_closing() or transport.get_protocol() is not self:
            return
        waiting = cycle is None or cycle.response_complete
        if waiting and cycle is before:
            transport.close()
            return
        self._timer = self.loop.call_later(self.patience, self._look, cycle if waiting else _BUSY)


class _Headed(_Watched):
    """With a limit for heads, which the parser httptools has none for (h11 has)."""

    _head = -1  # not within one

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head >= 0:
            self._head += len(data)
            if self._head > LARGEST_HEAD and not self.transport.is_closing():
                self.send_400_response("Request head too large.")

    def on_message_begin(self) -> None:
        self._head = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head = -1
        super().on_headers_complete()


def watched(patience: float) -> type[asyncio.Protocol]:
    """The protocol for ``uvicorn.Config(http=…)``."""
    base = _Headed if hasattr(_Protocol, "on_headers_complete") else _Watched
    return type("Watched", (base,), {"patience": patience})
