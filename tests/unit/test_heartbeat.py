"""The thread that keeps a lease alive: nothing but the loss of the lease, or being told to, ends it."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.sqlite import SqliteStore
from holdfast.worker.lease import Heartbeat, LoopWatch
from tests.support.stores import open_lease
from tests.support.waiting import until


@pytest.mark.req("JF-4", "CX-15")
async def test_an_error_that_nobody_thought_of_does_not_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread could be started, no file opened: of a worker that goes on without its heartbeat all jobs are lost."""
    store = SqliteStore(f"sqlite:///{tmp_path / 'jobs.db'}")
    store.migrate()
    lease, beats = open_lease(store), 0
    usual = store.run

    def run(flow: Any) -> Any:
        nonlocal beats
        beats += 1
        if beats == 1:
            raise OSError(24, "Too many open files")
        return usual(flow)

    monkeypatch.setattr(store, "run", run)
    lost = threading.Event()
    heart = Heartbeat(store, lease, 0.3, EVERY_TENANT, lost.set)
    heart.start()
    until(lambda: beats >= 3, "it goes on")
    heart.stop()
    assert not lost.is_set()
    store.close()


@pytest.mark.req("JF-4", "DP-8")
async def test_it_is_said_where_the_loop_is_blocked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The lease is kept all the same."""
    store = SqliteStore(f"sqlite:///{tmp_path / 'jobs.db'}")
    store.migrate()
    lost = threading.Event()
    heart = Heartbeat(store, open_lease(store), 0.6, EVERY_TENANT, lost.set)
    heart.start()
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        until(lambda: "event loop was blocked" in caplog.text, "it was said")  # which blocks this loop
    heart.stop()
    assert "waiting.py" in caplog.text
    assert not lost.is_set()
    store.close()


@pytest.mark.req("JF-4")
async def test_nothing_is_said_of_a_loop_that_moves(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch(patience=30.0)
    for _ in range(3):
        await asyncio.to_thread(watch.check)
    assert "event loop was blocked" not in caplog.text
