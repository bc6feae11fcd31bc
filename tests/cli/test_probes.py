"""Liveness and readiness of a worker process, and startup while the database is unreachable."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import closing
from types import SimpleNamespace

import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.cli import probes, run_worker
from holdfast.cli.probes import WorkerProbe, serve_status
from holdfast.errors import StoreUnavailable
from holdfast.features.assembly import open_store
from holdfast.stores import outage
from holdfast.worker import startup
from tests.cli.conftest import Holdfast
from tests.support.waiting import until
from tests.support.workers import Background, working


@pytest.mark.req("DP-19", "JF-15", "JF-18")
def test_probe_reports_liveness_and_readiness_of_worker(
    bare: Holdfast, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = WorkerProbe()
    server = serve_status("127.0.0.1", 0, probe)

    def probe_result(check: str) -> tuple[int, str]:
        done = bare("probe", check, "--port", str(server.server_port))
        return done.exit_code, done.output

    try:
        assert probe_result("live")[0] == 0
        assert (probe_result("ready")[0], "starting" in probe_result("ready")[1]) == (1, True)
        with closing(App(sqlite_url)) as app, working(app) as background:
            attach(probe, background)
            until(lambda: probe_result("ready")[0] == 0, "the worker to be ready")
            monkeypatch.setattr(session_of(app).store.outage, "answered", lambda: None)
            session_of(app).store.outage.failed(StoreUnavailable("gone"))
            code, text = probe_result("ready")
            assert (code, "database unreachable: gone" in text) == (1, True)
            assert probe_result("live")[0] == 0, "restarting it would not bring the database back"
            monkeypatch.setattr(probes, "STUCK_AFTER", -1.0)
            probe._pinged_at = time.monotonic()
            assert probe.live()[0] is False
        assert probe_result("ready")[0] == 1
    finally:
        server.shutdown()
        server.server_close()
    assert "no response" in probe_result("live")[1]


def attach(probe: WorkerProbe, beside: Background) -> None:
    worker = beside.worker
    assert worker is not None
    loop = until(lambda: worker._loop, "the worker to run")
    assert loop is not None

    async def on_its_loop() -> None:
        probe.attach(worker)

    asyncio.run_coroutine_threadsafe(on_its_loop(), loop).result(10)


@pytest.mark.req("CX-15", "SC-11")
@pytest.mark.parametrize("form", ["sync", "async"])
def test_startup_waits_for_database_and_logs_once(
    form: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(startup, "PAUSES", ())
    monkeypatch.setattr(startup, "LONGEST_PAUSE", 0.01)
    monkeypatch.setattr(outage, "LASTING", 0.0)
    left = 6

    def begin() -> str:
        nonlocal left
        left -= 1
        if left:
            raise StoreUnavailable("connection refused")
        return "begun"

    with closing(open_store("postgresql://nobody@127.0.0.1:1/none")) as store, caplog.at_level(logging.WARNING):
        if form == "sync":
            assert startup.until_reachable(begin, store) == "begun"
        else:
            asyncio.run(startup.when_reachable(begin, store))
    assert left == 0
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("holdfast")]
    assert [message.split(":")[0].split(" after")[0] for message in messages] == [
        "Database unavailable, retrying",
        "Database available again",
    ]


@pytest.mark.req("JF-15", "JF-18")
def test_worker_says_whether_it_serves_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(run_worker, "serve_status", lambda *_: SimpleNamespace(server_port=9464))
    run_worker.serve_metrics("127.0.0.1", 9464, 1, said.append)
    monkeypatch.setattr(run_worker, "find_spec", lambda _: None)
    run_worker.serve_metrics("127.0.0.1", 9464, 1, said.append)
    assert said[0].endswith("http://127.0.0.1:9464/metrics")
    assert "/metrics" not in said[1]
    assert "pip install 'holdfast[prometheus]'" in said[1]
