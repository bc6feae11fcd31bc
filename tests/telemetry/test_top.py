"""Statistics by queue, at a bounded cost, and ``holdfast top``, which shows them (JF-15)."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import select
import subprocess
import threading
import time
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from holdfast import App, Backoff, Context, Retry, SyncContext
from holdfast.app.internals import session_of
from holdfast.cli.top import _Keys, as_lines, read, render
from holdfast.features.assembly import open_store
from holdfast.features.health.statistics import LATELY, WINDOW, Statistics, rates_of
from tests.app.conftest import NewApp
from tests.cli.conftest import Holdfast, error_of
from tests.cli.processes import COMMAND, environment
from tests.support.stores import claim, forward, open_lease
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("JF-15")

HOSTILE = "evil\x1b[2J\n[red]x\u202e"
NOW = datetime(2027, 1, 31, 12, tzinfo=UTC)


def statistics(app: App, tenant: str = "default") -> Statistics:
    return session_of(app).run(session_of(app).store.health.statistics(tenant))


def declare(app: App) -> None:
    @app.job()
    def fine() -> None: ...

    @app.job(retry=Retry(max_attempts=1))
    def fails(ctx: SyncContext) -> None:
        raise ConnectionError("busy")

    @app.job()
    def requests_approval(ctx: SyncContext) -> None:
        ctx.approval("go", summary=HOSTILE)


def test_failures_are_listed_as_recorded_even_after_success(app: App) -> None:
    @app.job(retry=Retry(max_attempts=3, backoff=Backoff(base=0, jitter=False)))
    def recovers(ctx: SyncContext) -> None:
        if ctx.attempt < 3:
            raise (ConnectionError("busy") if ctx.attempt == 1 else KeyError("gone"))

    job = recovers.enqueue()
    for _ in range(3):
        work_off(app)
        forward(session_of(app).store, 60)
    assert job.state() == "succeeded"
    failures = [(each.attempt, each.error_code) for each in statistics(app).failures]
    assert failures == [(2, "KeyError"), (1, "ConnectionError")]


def test_statistics_count_by_queue_and_tenant(app: App, new_app: NewApp) -> None:
    declare(app)
    assert statistics(app).queues == statistics(app, "*").queues == ()
    app.enqueue("fine")
    app.enqueue("fails")
    app.enqueue("requests_approval")
    work_off(app)
    for number in range(3):
        app.enqueue("fine", queue="mail", priority=number)
    app.enqueue("fine", queue="mail", delay=60)
    app.enqueue("fine", queue="other", tenant="acme")
    app.schedule("@hourly", kind="fine")

    for stats in (statistics(app), statistics(app, "*")):
        mail = next(each for each in stats.queues if each.queue == "mail")
        assert (mail.waiting, mail.scheduled, mail.retrying, mail.running) == (3, 1, 0, 0)
        assert mail.oldest_age_s is not None
        assert 0 <= mail.oldest_age_s < 60
        assert (stats.dead_letters, stats.approvals_open, stats.workers, stats.schedules_late) == (1, 1, (), 0)
        assert stats.rates.ended == {"succeeded": 1, "failed": 1}
        assert stats.rates.dead_letters == 1
        assert [(each.kind, each.error_code) for each in stats.failures] == [("fails", "ConnectionError")]
        assert not stats.capped
    assert {each.queue for each in statistics(app, "*").queues} == {"mail", "other"}
    assert {each.queue for each in statistics(app).queues} == {"mail"}
    assert {each.queue for each in statistics(app, "acme").queues} == {"other"}
    assert statistics(app, "acme").rates.enqueued == 1
    assert (statistics(app, "acme").dead_letters, statistics(app, "unknown").queues) == (0, ())

    worker_app = new_app()

    @worker_app.job()
    async def holds(ctx: Context) -> None:
        await asyncio.to_thread(over.wait, 20)

    over = threading.Event()
    with working(worker_app, queues=("held",), concurrency=3) as beside:
        app.enqueue("holds", queue="held")
        until(lambda: any(each.running == 1 for each in statistics(app, "*").queues), "the job runs")
        (worker,) = statistics(app).workers
        assert (worker.busy, worker.slots, worker.queues, worker.label) == (1, 3, ("held",), "worker")
        assert beside.worker is not None
        assert worker.holder == beside.worker.name
        over.set()


def test_rates_cover_the_last_minute_or_the_events_that_were_read() -> None:
    events = [("succeed", NOW - timedelta(seconds=age)) for age in (1, 2, 59, 61, 600)]
    rates = rates_of(events, NOW, whole=True)
    assert (rates.seconds, rates.ended) == (WINDOW, {"succeeded": 3})
    busy = [("enqueue", NOW - timedelta(milliseconds=number)) for number in range(LATELY)]
    rates = rates_of(busy, NOW, whole=False)
    assert round(rates.per_second(rates.enqueued)) == round(LATELY / 2.999)
    assert rates_of([], NOW, whole=True).finished == 0


def shown(app: App, width: int, height: int = 40) -> str:
    screen = Console(width=width, height=height, record=True, file=io.StringIO(), markup=False)
    screen.print(render(read(session_of(app), "default"), 2.0, width, height))
    return screen.export_text()


def test_top_fits_any_width_and_escapes_text(
    app: App, url: str, bare: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(app)
    app.enqueue("requests_approval")
    app.enqueue("fails")
    work_off(app)
    app.enqueue("fine", queue="mail")
    wide, narrow = shown(app, 140), shown(app, 50)
    for text in (wide, narrow):
        assert "mail" in text
        assert "dead letters 1" in " ".join(text.split())
        assert "ConnectionError" in text
        assert "query took" in text
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert max(map(len, narrow.splitlines())) <= 50
    assert "evil\\x1b[2J [red]x\\u202e" in "\n".join(as_lines(read(session_of(app), "default")))
    app.close()

    monkeypatch.setenv("HOLDFAST_URL", url)
    document: dict[str, Any] = json.loads(bare("top", "--json").stdout)
    assert [each["queue"] for each in document["statistics"]["queues"]] == ["mail"]
    assert document["approvals"][0]["summary"] == HOSTILE
    assert "payload" not in json.dumps(document)
    once = bare("top", "--once")
    assert once.exit_code == 0
    assert "\x1b" not in once.stdout
    assert "mail  1  " in once.stdout
    wrong = bare("top", "--interval", "20ms", "--json")
    assert (wrong.exit_code, error_of(wrong)["code"]) == (2, "invalid_duration")


def test_keys_pause_and_quit() -> None:
    def typed(text: str) -> tuple[bool, bool]:
        keys = _Keys()
        keys.take(text)
        return keys.paused, keys.over

    assert typed("p") == (True, False)
    assert typed("ppx") == (False, False)
    assert typed(" Q") == (True, True)


@pytest.mark.slow
def test_top_runs_on_a_terminal_until_q(sqlite_url: str) -> None:
    with closing(open_store(sqlite_url)) as store:
        store.migrate()
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "top", "--interval", "200ms"],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=environment(sqlite_url) | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
        start_new_session=True,
    )
    os.close(theirs)
    seen = b""
    try:

        def read() -> bool:
            nonlocal seen
            ready, _, _ = select.select([ours], [], [], 0.05)
            with suppress(OSError):
                seen += os.read(ours, 65536) if ready else b""
            return len(re.findall(rb"holdfast top", seen)) >= 2

        until(read, "the screen was drawn twice")
        os.write(ours, b"p")
        until(lambda: read() and b"PAUSED" in seen, "the screen shows PAUSED")
        os.write(ours, b"q")
        end = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < end:
            read()
        assert process.returncode == 0, seen[-500:]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
        os.close(ours)


@pytest.mark.req("DP-8")
def test_top_says_that_the_worker_of_a_job_is_lost(app: App) -> None:
    declare(app)
    store = session_of(app).store
    forward(store)
    lost, alive = app.enqueue("fine"), app.enqueue("fine")
    claim(store, open_lease(store, "worker-7", ttl=30))
    assert "lost" not in shown(app, 200)
    claim(store, open_lease(store, "worker-8", ttl=1000))
    forward(store, 40)
    text = r"worker lost, lease expired \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, waiting for take-over"
    lines = as_lines(read(session_of(app), "default"))
    (row,) = [line for line in lines if lost.id in line]
    assert re.search(f"{text}$", row)
    (row,) = [line for line in lines if alive.id in line]
    assert row.endswith(" alive")
    assert re.search(text, shown(app, 200))
    assert " lost" in shown(app, 60)
    expired = {job.id: job.lease_expired_at is not None for job in read(session_of(app), "default").running}
    assert expired == {lost.id: True, alive.id: False}
