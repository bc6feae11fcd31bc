"""Close connections of the web server that send no complete request within a time limit, and bound their number.

uvicorn waits forever for the first request of a connection, for the rest of a request's head, and for the rest of a
body whose request has been answered. Bodies that are being read have a separate limit (``server/middleware.py``).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

LARGEST_HEAD = 64 * 1024
"""Maximum size of a request line with its headers, in bytes."""
MOST_CONNECTIONS = 10_000
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
    most = 1_000
    opened: dict[_TimedProtocol, None]
    """Open connections, oldest first."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.opened[self] = None
        if len(self.opened) > self.most:
            self._make_room()
        self._timer = self.loop.call_later(self.timeout, self._check, None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.opened.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _make_room(self) -> None:
        """Close a connection without a request, the oldest first; this one if all others have one."""
        idle = (each for each in self.opened if each.cycle is None or each.cycle.response_complete)
        closed = next(idle, self)
        del self.opened[closed]
        closed.transport.close()

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


def most_connections() -> int:
    """The most connections of the web server: half of the file descriptors that the process may open. The others are
    for the database and for files."""
    try:
        import resource
    except ModuleNotFoundError:  # pragma: no cover  # Windows
        return MOST_CONNECTIONS
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if allowed < 0 else max(8, min(MOST_CONNECTIONS, allowed // 2))


def timed_protocol(timeout: float, most: int = MOST_CONNECTIONS) -> type[asyncio.Protocol]:
    """Return the protocol for ``uvicorn.Config(http=…)``. ``most`` is the number of connections at a time."""
    base = _LimitedHeadProtocol if hasattr(_Protocol, "on_headers_complete") else _TimedProtocol
    return type("TimedProtocol", (base,), {"timeout": timeout, "most": most, "opened": {}})
