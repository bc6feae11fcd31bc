"""The executors of a process that were used before a fork work in the child."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from holdfast.server.json_body import SMALL_BODY, run_off_loop
from holdfast.stores.flow import read_in_thread, read_large, read_slowly
from tests.support.concurrency import in_a_fork

pytestmark = pytest.mark.req("CX-15")


@pytest.mark.parametrize(
    "call", [read_in_thread, read_large, read_slowly, partial(run_off_loop, bytes(SMALL_BODY + 1))]
)
def test_forked_child_starts_its_own_executors(call: Callable[[Callable[[], int]], Awaitable[int]]) -> None:
    async def answer() -> int:
        return await asyncio.wait_for(call(lambda: 7), timeout=5)

    assert asyncio.run(answer()) == 7  # the executor has a thread now, which is not in the child
    assert in_a_fork(lambda: asyncio.run(answer())) == 7
