"""The heartbeat thread renews a lease until the lease is lost or the worker stops."""

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
async def test_unexpected_error_does_not_end_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example no thread or file could be opened. A worker without a heartbeat loses all its jobs."""
    store = SqliteStore(f"sqlite:///{tmp_path / 'jobs.db'}")
    store.migrate()
    lease, beats = open_lease(store), 0
    original = store.run

    def run(flow: Any) -> Any:
        nonlocal beats
        beats += 1
        if beats == 1:
            raise OSError(24, "Too many open files")
        return original(flow)

    monkeypatch.setattr(store, "run", run)
    lost = threading.Event()
    heartbeat = Heartbeat(store, lease, 0.3, EVERY_TENANT, lost.set)
    heartbeat.start()
    until(lambda: beats >= 3, "it continues")
    heartbeat.stop()
    assert not lost.is_set()
    store.close()


@pytest.mark.req("JF-4", "DP-8")
async def test_blocked_event_loop_is_logged_with_its_location(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The lease is renewed all the same."""
    store = SqliteStore(f"sqlite:///{tmp_path / 'jobs.db'}")
    store.migrate()
    lost = threading.Event()
    heartbeat = Heartbeat(store, open_lease(store), 0.6, EVERY_TENANT, lost.set)
    heartbeat.start()
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        until(lambda: "event loop was blocked" in caplog.text, "the warning is logged")  # the wait blocks this loop
    heartbeat.stop()
    assert "waiting.py" in caplog.text
    assert not lost.is_set()
    store.close()


@pytest.mark.req("JF-4")
async def test_running_event_loop_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch(timeout=30.0)
    for _ in range(3):
        await asyncio.to_thread(watch.check)
    assert "event loop was blocked" not in caplog.text
