"""The two runners, which give every call both colours: one blocks, one awaits. All else is written once (ADR 0031)."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any, ParamSpec, TypeVar

from holdfast.http.link import Link, Outgoing
from holdfast.http.transport import AsyncStream, AsyncTransport, Stream, Transport
from holdfast.http.wire import Emit, Open, Pause, Read, Reply, Send, Step, Steps, Unreachable

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")

Items = Generator[Step | Emit[T], Any, None]


class Runner:
    """Carries out the steps of flows, for one service."""

    def __init__(self, link: Link) -> None:
        self.link = link


class Blocking(Runner):
    """In the caller's thread. Several may use it at once."""

    def __init__(self, link: Link, transport: Transport) -> None:
        super().__init__(link)
        self.transport = transport

    def run(self, flow: Steps[T]) -> T:
        try:
            step = next(flow)
            while True:
                step = flow.send(self._carry_out(step))
        except StopIteration as end:
            found: T = end.value
            return found
        finally:
            flow.close()

    def iterate(self, flow: Items[T]) -> Iterator[T]:
        stream: Stream | None = None
        try:
            step = next(flow)
            while True:
                got: Any = None
                if isinstance(step, Emit):
                    yield step.item
                elif isinstance(step, Read):
                    got = _told(stream.read) if stream is not None else b""
                elif isinstance(step, Open):
                    if stream is not None:
                        stream.close()
                    opened = _told(functools.partial(self.transport.open, self._outgoing(step)))
                    stream = None if isinstance(opened, Unreachable) else opened
                    got = opened if isinstance(opened, Unreachable) else opened.reply
                else:
                    got = self._carry_out(step)
                step = flow.send(got)
        except StopIteration:
            return
        finally:
            if stream is not None:
                stream.close()
            flow.close()

    def _carry_out(self, step: Step) -> Reply | Unreachable | None:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        assert isinstance(step, Send)
        return _told(functools.partial(self.transport.send, self._outgoing(step)))

    def _outgoing(self, step: Send | Open) -> Outgoing:
        return self.link.outgoing(step.request)


class Awaiting(Runner):
    """On the event loop that is running."""

    def __init__(self, link: Link, transport: AsyncTransport) -> None:
        super().__init__(link)
        self.transport = transport

    async def run(self, flow: Steps[T]) -> T:
        try:
            step = next(flow)
            while True:
                step = flow.send(await self._carry_out(step))
        except StopIteration as end:
            found: T = end.value
            return found
        finally:
            flow.close()

    async def iterate(self, flow: Items[T]) -> AsyncIterator[T]:
        stream: AsyncStream | None = None
        try:
            step = next(flow)
            while True:
                got: Any = None
                if isinstance(step, Emit):
                    yield step.item
                elif isinstance(step, Read):
                    got = await _atold(stream.read()) if stream is not None else b""
                elif isinstance(step, Open):
                    if stream is not None:
                        await stream.aclose()
                    opened = await _atold(self.transport.open(self.link.outgoing(step.request)))
                    stream = None if isinstance(opened, Unreachable) else opened
                    got = opened if isinstance(opened, Unreachable) else opened.reply
                else:
                    got = await self._carry_out(step)
                step = flow.send(got)
        except StopIteration:
            return
        finally:
            if stream is not None:
                await stream.aclose()
            flow.close()

    async def _carry_out(self, step: Step) -> Reply | Unreachable | None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        assert isinstance(step, Send)
        return await _atold(self.transport.send(self.link.outgoing(step.request)))


def _told(act: Callable[[], T]) -> T | Unreachable:
    """That nobody answered, as a value: the flow says what to make of it."""
    try:
        return act()
    except Unreachable as why:
        return why


async def _atold(act: Coroutine[Any, Any, T]) -> T | Unreachable:
    try:
        return await act
    except Unreachable as why:
        return why
