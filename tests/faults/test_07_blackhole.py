"""Fault 7: a connection stays open, but no data passes: no error, no end.

Other workers take over the jobs. The isolated worker and callers that enqueue must not wait forever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from holdfast.errors import HoldfastError
from tests.faults.checker import RECOVERY_LIMIT, check
from tests.faults.effects import effects
from tests.faults.workload import enqueue_jobs, wait_for_all
from tests.support.proxy import Proxy
from tests.support.waiting import until
from tests.support.worker_processes import Crew

pytestmark = [pytest.mark.req("CX-15", "DP-7", "DP-8"), pytest.mark.parametrize("url", ["postgres"], indirect=True)]

# The lease is one second: after a few of them an isolated worker must have noticed.
WORKER_NOTICES = 15.0
# No caller waits longer than this for a response.
CALLER_NOTICES = 20.0


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    with Proxy(url) as proxy:
        yield proxy


@pytest.mark.slow
def test_another_worker_takes_over_and_late_result_is_refused(app: App, crew: Crew, folder: Path, proxy: Proxy) -> None:
    cut_off = crew.start_one(url=proxy.url)
    ids = enqueue_jobs(app, 2, kind="hold")
    until(lambda: len(effects(folder)) == 2, "the first worker runs both jobs")
    proxy.blackhole()
    other = crew.start_one(lease=2.5)
    until(lambda: len(effects(folder)) == 4, "another worker runs the same jobs")
    (folder / "go").touch()
    wait_for_all(app, 2)
    proxy.restore()
    other.stop()
    more = enqueue_jobs(app, 2)
    wait_for_all(app, 4)  # by the worker that was isolated
    snapshot = check(session_of(app).store.url, [*ids, *more], folder=folder, within=RECOVERY_LIMIT)
    assert {row.state for row in snapshot.rows.values()} == {State.SUCCEEDED}
    assert all(other.is_author(snapshot.ledgers[job][-1].actor) for job in ids)
    assert all(cut_off.is_author(snapshot.ledgers[job][-1].actor) for job in more)


def test_isolated_worker_notices(app: App, crew: Crew, folder: Path, proxy: Proxy) -> None:
    cut_off = crew.start_one(url=proxy.url)
    enqueue_jobs(app, 2, kind="hold")
    until(lambda: len(effects(folder)) == 2, "the worker runs both jobs")
    proxy.blackhole()
    try:
        until(
            lambda: "Database unavailable" in cut_off.said() or "lost" in cut_off.said(),
            "the worker logs the outage",
            WORKER_NOTICES,
        )
    finally:
        (folder / "go").touch()
        proxy.restore()
    assert cut_off.stop() == 0, "the connection works again, so the worker stops cleanly"


@pytest.mark.slow
def test_enqueue_fails_within_its_timeout(app: App, proxy: Proxy) -> None:
    with closing(App(proxy.url, answer_within=2)) as shop:
        first = shop.enqueue("work")  # its connection is open
        ended: list[HoldfastError | None] = []

        def enqueue() -> None:
            try:
                shop.enqueue("work")
                ended.append(None)
            except HoldfastError as error:
                ended.append(error)

        proxy.blackhole()
        started = time.monotonic()
        caller = threading.Thread(target=enqueue, daemon=True)
        caller.start()
        caller.join(CALLER_NOTICES)
        waited = time.monotonic() - started
        proxy.restore()
        caller.join(30)
        assert shop.enqueue("work").id, "the app recovers"
        assert first.state() is State.QUEUED
    assert waited < CALLER_NOTICES
    assert isinstance(ended[0], HoldfastError)
