"""The demo's jobs: quick ones, slow ones, flaky ones, some that always fail, some that start later.

``worker_app`` is what its worker processes load; the database and the tenant come by the environment.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from typing import Any

from holdfast import config
from holdfast.app import App
from holdfast.context import Context
from holdfast.engine.retry import Backoff, RetryPolicy
from holdfast.kind import Kind, Prepared

ALWAYS_FAILS = "always_fails"
LATER_BY = 3.0
SOON = Backoff(base=0.1, factor=2.0, cap=0.4)


@dataclass(frozen=True, slots=True)
class Kinds:
    greet: Kind[[int, float], str]
    render: Kind[[int, float], str]
    slow: Kind[[int, float], int]
    flaky: Kind[[int], int]
    always_fails: Kind[[int], None]
    later: Kind[[int], int]


def declare(app: App) -> Kinds:
    @app.job()
    async def greet(number: int, pause: float) -> str:
        await asyncio.sleep(pause)
        return f"hello, {number}"

    @app.job()
    def render(number: int, pause: float) -> str:
        time.sleep(pause)
        return f"page {number}"

    @app.job()
    async def slow(number: int, pause: float) -> int:
        await asyncio.sleep(pause)
        return number

    @app.job(retry=RetryPolicy(max_attempts=4, backoff=SOON))
    def flaky(ctx: Context, failures: int) -> int:
        if ctx.attempt <= failures:
            raise ConnectionError("the line was busy")
        return ctx.attempt

    @app.job(ALWAYS_FAILS, retry=RetryPolicy(max_attempts=3, backoff=SOON))
    async def always_fails(number: int) -> None:
        raise ValueError(f"number {number} never works")

    @app.job()
    async def later(number: int) -> int:
        return number

    return Kinds(greet, render, slow, flaky, always_fails, later)


@dataclass(frozen=True, slots=True)
class Mix:
    """How many of each; what is left of the total is quick."""

    total: int

    @property
    def always_fails(self) -> int:
        return max(1, self.total // 100)

    @property
    def later(self) -> int:
        return max(1, self.total // 400)

    def calls(self, kinds: Kinds) -> list[Prepared[Any]]:
        """The jobs in an order that mixes the kinds, the same every time."""
        dice = random.Random(7)
        calls: list[Prepared[Any]] = [kinds.always_fails.prepare(n) for n in range(self.always_fails)]
        calls += [kinds.later.using(delay=LATER_BY).prepare(n) for n in range(self.later)]
        calls += [kinds.flaky.prepare(1 + n % 2) for n in range(self.total // 8)]
        calls += [kinds.slow.prepare(n, dice.uniform(0.08, 0.2)) for n in range(self.total // 5)]
        calls += [kinds.render.prepare(n, dice.uniform(0.01, 0.04)) for n in range(self.total // 5)]
        calls += [kinds.greet.prepare(n, dice.uniform(0.01, 0.04)) for n in range(self.total - len(calls))]
        dice.shuffle(calls)
        return calls


def make_app(url: str | None = None, tenant: str | None = None) -> App:
    return App(url, tenant=tenant or os.environ[config.TENANT_VARIABLE], name="holdfast demo")


def worker_app() -> App:
    threading.Thread(target=_leave_with_parent, name="holdfast-demo-parent", daemon=True).start()
    app = make_app()
    declare(app)
    return app


def _leave_with_parent() -> None:
    """The other end of stdin is the demo's. It closes when the demo is gone, however that came about."""
    while os.read(0, 64):  # not through sys.stdin, whose lock would be held when the interpreter ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)
