"""A few kinds of jobs for the tests of the tick."""

from __future__ import annotations

import asyncio

from holdfast import App, Backoff, Retry

AT_ONCE = Retry(max_attempts=2, backoff=Backoff(base=0.001, factor=1, cap=0.001, jitter=False))


def declare_jobs(app: App) -> App:
    @app.job()
    async def add(a: int, b: int = 1) -> int:
        return a + b

    @app.job()
    def blocking(number: int) -> int:
        return number

    @app.job(retry=AT_ONCE)
    async def fails() -> None:
        raise ConnectionError("the line is busy")

    @app.job()
    async def nap(seconds: float) -> None:
        await asyncio.sleep(seconds)

    return app
