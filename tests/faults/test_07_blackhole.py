"""Fault 7: the connection is there and nothing comes through any more: no error, no end, only silence.

Others take over a worker's jobs at once. The worker itself, and whoever enqueues, must not wait for ever either.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.errors import HoldfastError
from tests.faults.checker import IN_TIME, check
from tests.faults.effects import effects
from tests.faults.load import load
from tests.faults.waiting import all_ended
from tests.support.proxy import Wire, wire_to
from tests.support.waiting import until
from tests.support.worker_processes import Crew

pytestmark = [pytest.mark.req("CX-15", "DP-7", "DP-8"), pytest.mark.parametrize("url", ["postgres"], indirect=True)]

# Leases of one second: after a few of them a worker that hears nothing must have drawn its conclusions.
WORKER_NOTICES = 15.0
# No caller waits longer than this for an answer that does not come.
CALLER_IS_TOLD = 20.0


@pytest.fixture
def wire(url: str) -> Iterator[Wire]:
    with wire_to(url) as wire:
        yield wire


@pytest.mark.slow
def test_another_worker_takes_over_and_the_late_result_is_refused(
    app: App, crew: Crew, folder: Path, wire: Wire
) -> None:
    cut_off = crew.start_one(url=wire.url(app._store.url))
    ids = load(app, 2, kind="hold")
    until(lambda: len(effects(folder)) == 2, "the first worker has its hands full")
    wire.hold()
    other = crew.start_one(lease=2.5)
    until(lambda: len(effects(folder)) == 4, "another runs the same jobs")
    (folder / "go").touch()
    all_ended(app, 2)
    wire.flow()
    other.stop()
    more = load(app, 2)
    all_ended(app, 4)  # by the one that was cut off, by itself
    picture = check(app._store.url, [*ids, *more], folder=folder, within=IN_TIME)
    assert {row.state for row in picture.rows.values()} == {State.SUCCEEDED}
    assert all(other.is_author(picture.ledgers[job][-1].actor) for job in ids)
    assert all(cut_off.is_author(picture.ledgers[job][-1].actor) for job in more)


def test_a_worker_that_hears_nothing_notices(app: App, crew: Crew, folder: Path, wire: Wire) -> None:
    cut_off = crew.start_one(url=wire.url(app._store.url))
    load(app, 2, kind="hold")
    until(lambda: len(effects(folder)) == 2, "the worker has its hands full")
    wire.hold()
    try:
        until(
            lambda: "Database unavailable" in cut_off.said() or "lost" in cut_off.said(),
            "the worker says that something is wrong",
            WORKER_NOTICES,
        )
    finally:
        (folder / "go").touch()
        wire.flow()
    assert cut_off.stop() == 0, "while there is a wire: without one it would be waited for"


@pytest.mark.slow
def test_whoever_enqueues_is_told_in_time(app: App, wire: Wire) -> None:
    with closing(App(wire.url(app._store.url), answer_within=2)) as shop:
        first = shop.enqueue("work")  # its connection is open
        ended: list[HoldfastError | None] = []

        def enqueue() -> None:
            try:
                shop.enqueue("work")
                ended.append(None)
            except HoldfastError as error:
                ended.append(error)

        wire.hold()
        started = time.monotonic()
        caller = threading.Thread(target=enqueue, daemon=True)
        caller.start()
        caller.join(CALLER_IS_TOLD)
        waited = time.monotonic() - started
        wire.flow()
        caller.join(30)
        assert shop.enqueue("work").id, "it recovers"
        assert first.state() is State.QUEUED
    assert waited < CALLER_IS_TOLD
    assert isinstance(ended[0], HoldfastError)
