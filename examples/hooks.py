"""Hooks: a request id that goes from the enqueue into the log of the handler, timing, and a message to the operator.

python examples/hooks.py
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
    seen: list[str] = []

    @app.hooks.around_enqueue
    def remember(info: holdfast.EnqueueInfo) -> Iterator[None]:
        for job in info.jobs:
            job.correlation_id = job.correlation_id or request_id.get()
        yield

    @app.hooks.around_run
    def restore(run: holdfast.RunInfo) -> Iterator[None]:
        request_id.set(run.correlation_id)  # every attempt has a context of its own
        began = time.monotonic()
        try:
            yield
        finally:
            assert time.monotonic() >= began
            seen.append(f"{run.kind}, attempt {run.attempt}: done")

    payments = holdfast.Hooks()  # for some kinds only

    @payments.on_dead_letter
    def page_somebody(end: holdfast.EndInfo) -> None:
        seen.append(f"{end.kind} failed for good: {end.error_message}")

    @app.job(hooks=[payments], retry=holdfast.Retry(max_attempts=1))
    def charge(amount: int) -> None:
        seen.append(f"charging {amount} for request {request_id.get()}")
        raise ConnectionError("the bank is closed")

    request_id.set("r-17")
    charge.enqueue(100)
    request_id.set(None)
    app.run_worker(burst=True)
    app.close()
    print("\n".join(seen))
    return seen


if __name__ == "__main__":
    main()
