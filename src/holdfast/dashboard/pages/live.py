"""One stream a page (server-sent events): it says that something changed, at most once a second, and nothing else.

What changed is not in it: a page fetches itself anew, with the rights of whoever looks. A word every 15 seconds keeps
what lies between from closing the connection, and tells the page that it is not looking at something stale.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from holdfast.access import Scope, require
from holdfast.access.lasting import Lasting
from holdfast.dashboard.rendering import the_app
from holdfast.live import Live

GENTLE = 1.0
QUIET = 15.0


async def changes(request: Request) -> Response:
    require(request, Scope.READ)
    live: Live = request.app.state.live
    told = signals(live, the_app(request).client.tenant, Lasting(request, Scope.READ).holds)
    return StreamingResponse(told, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def signals(
    live: Live, tenant: str, holds: Callable[[], Awaitable[bool]], gentle: float = GENTLE, quiet: float = QUIET
) -> AsyncGenerator[str, None]:
    """Until whoever looks may not any more (``holds``), or the service ends."""
    yield "retry: 3000\n\nevent: here\ndata: -\n\n"
    happened = asyncio.Event()

    async def listen() -> None:
        async with contextlib.aclosing(live.follow(tenant)) as events:
            async for _ in events:
                happened.set()

    listener = asyncio.get_running_loop().create_task(listen())
    listener.add_done_callback(lambda _: happened.set())
    try:
        while await holds():
            try:
                async with asyncio.timeout(quiet):
                    await happened.wait()
            except TimeoutError:
                yield "event: here\ndata: -\n\n"
                continue
            if listener.done():  # the service ends, or the ledger cannot be read: the page asks again
                return
            happened.clear()
            yield "event: changed\ndata: -\n\n"
            await asyncio.sleep(gentle)
    finally:
        listener.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await listener


routes = [Route("/live", changes)]
