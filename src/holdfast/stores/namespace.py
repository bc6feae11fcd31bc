"""``StoreNamespace``: the base of the namespaces of ``App``. Their operations yield flows, which the session runs;
``call`` and ``sleep`` are for other work, which blocks in the sync form and is awaited in the async form."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.engine.operation import Namespace, Program
from holdfast.stores.flow import Flow, in_thread
from holdfast.stores.port import Caller

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Call:
    blocking: Callable[[], Any]
    awaited: Callable[[], Awaitable[Any]] | None


def call(blocking: Callable[[], T], awaited: Callable[[], Awaitable[T]] | None = None) -> Program[T]:
    """Call a blocking function. The async form awaits ``awaited``, or runs ``blocking`` in a new thread."""
    result: T = yield _Call(blocking, awaited)
    return result


def sleep(seconds: float) -> Program[None]:
    yield _Call(lambda: time.sleep(seconds), lambda: asyncio.sleep(seconds))


class StoreNamespace(Namespace):
    """A namespace such as ``app.limits``. Tenant and actor are those of the session at the time of the call."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    @property
    def _store(self) -> Store:
        return self._caller.store

    @property
    def _tenant(self) -> str:
        return self._caller.tenant

    @property
    def _actor(self) -> str:
        return self._caller.actor

    def _perform(self, item: Any) -> Any:
        if isinstance(item, Flow):
            return self._caller.run(item)
        return item.blocking()

    async def _aperform(self, item: Any) -> Any:
        if isinstance(item, Flow):
            return await self._caller.arun(item)
        return await (in_thread(item.blocking) if item.awaited is None else item.awaited())
