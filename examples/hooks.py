"""Hooks: pass a request id from the enqueue to the handler, time each attempt, and alert an operator.

Run: python examples/hooks.py
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

import holdfast

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)


def main(url: str | None = None) -> list[str]:
    url = url or os.environ.get("HOLDFAST_URL") or f"sqlite:///{Path(tempfile.mkdtemp())}/hooks.db"
    app = holdfast.App(url, name="hooks")
    log: list[str] = []

    @app.hooks.around_enqueue
    def store_request_id(info: holdfast.EnqueueInfo) -> Iterator[None]:
        for job in info.jobs:
            job.correlation_id = job.correlation_id or request_id.get()
        yield

    @app.hooks.around_run
    def restore_request_id(run: holdfast.RunInfo) -> Iterator[None]:
        request_id.set(run.correlation_id)  # each attempt has its own context, so nothing has to be reset
        started = time.monotonic()
        try:
            yield
        finally:
            assert time.monotonic() >= started
            log.append(f"{run.kind}, attempt {run.attempt}: done")

    payments = holdfast.Hooks()  # only for the kinds that name them

    @payments.on_dead_letter
    def alert_operator(end: holdfast.EndInfo) -> None:
        log.append(f"{end.kind} failed permanently: {end.error_message}")

    @app.job(hooks=[payments], retry=holdfast.Retry(max_attempts=1))
    def charge(amount: int) -> None:
        log.append(f"charging {amount} for request {request_id.get()}")
        raise ConnectionError("the bank is closed")

    request_id.set("r-17")
    charge.enqueue(100)
    request_id.set(None)
    app.run_worker(burst=True)
    app.close()
    print("\n".join(log))
    return log


if __name__ == "__main__":
    main()
