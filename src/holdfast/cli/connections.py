"""Close connections of the web server that send no complete request within a time limit.

uvicorn waits forever for the first request of a connection, for the rest of a request's head, and for the rest of a
body whose request has been answered. Bodies that are being read have a separate limit (``server/middleware.py``).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

LARGEST_HEAD = 64 * 1024
"""Maximum size of a request line with its headers, in bytes."""
_BUSY = object()

if TYPE_CHECKING:

    class _Protocol(asyncio.Protocol):
        """The interface that both HTTP protocols of uvicorn share."""

        cycle: Any
        loop: asyncio.AbstractEventLoop
        transport: asyncio.Transport

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
        def send_400_response(self, msg: str) -> None: ...
        def on_message_begin(self) -> None: ...
        def on_headers_complete(self) -> None: ...

else:
    from uvicorn.protocols.http.auto import AutoHTTPProtocol as _Protocol


class _TimedProtocol(_Protocol):
    """Closes the connection after about ``timeout`` seconds without a request.

    A timer checks once per timeout, so requests pay nothing for it.
    """

    timeout = 10.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.timeout, self._check, None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _check(self, before: object) -> None:
        """Close the connection if it has been idle since the last check. ``before`` is the request that had been
        answered last at that time, or ``_BUSY``."""
        cycle, transport = self.cycle, self.transport
        if transport.is_closing() or transport.get_protocol() is not self:
            return
        idle = cycle is None or cycle.response_complete
        if idle and cycle is before:
            transport.close()
            return
        self._timer = self.loop.call_later(self.timeout, self._check, cycle if idle else _BUSY)


class _LimitedHeadProtocol(_TimedProtocol):
    """Also limits the size of request heads. The parser httptools has no such limit; h11 has."""

    _head = -1  # bytes of the current head; -1 outside of one

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


def timed_protocol(timeout: float) -> type[asyncio.Protocol]:
    """Return the protocol for ``uvicorn.Config(http=…)``."""
    base = _LimitedHeadProtocol if hasattr(_Protocol, "on_headers_complete") else _TimedProtocol
    return type("TimedProtocol", (base,), {"timeout": timeout})
