"""Fault 3: a worker's process is gone at every boundary it has with the database, one test a point.

Before a write nothing has happened; within one, on a store whose writes are several statements, nothing must have; after
one, all of it has and nobody was told. Whichever it is, another worker makes good of it.
"""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.stores.base import Verbs
from holdfast.stores.open import open_store
from tests.faults.checker import check
from tests.faults.crashing import GONE, Point, When, flows, start
from tests.faults.load import AT_ONCE, PATIENT
from tests.faults.waiting import all_ended
from tests.support.stores import claim, open_lease, put, spec
from tests.support.transactions import Consumer

pytestmark = pytest.mark.req("CX-15", "SC-11", "SC-19", "DP-8")

# What only people, tests, consumers and other runtimes call; the rest are a worker's, also those that come later.
NOT_A_WORKERS = {"operate", "set_clock", "save_cursor", "start", "release", "add_artifact"}
READS = {"events_after", "cursor_of", "now", "get", "list_jobs", "history", "attempts", "artifacts", "checkpoints"}
READS |= {"result", "health", "counts"}
VERBS = sorted({name for name in vars(Verbs) if not name.startswith("_")} - NOT_A_WORKERS - READS)


def prepare(store_url: str) -> list[str]:
    """Something for every verb: to take, to fail, to save, to spawn, to promote, to expire, and a lost worker's job."""
    with closing(open_store(store_url)) as store:
        (lost,) = put(store, spec("work", payload={"number": 1}, retry=PATIENT))
        lease = open_lease(store, "lost before")
        assert claim(store, lease)
        store.run(store.verbs.end_lease(lease, "lost", "*"))
        now = store.run(store.verbs.now())
        return [
            lost,
            *put(
                store,
                spec("work", payload={"number": 2, "nap": 0.3}, retry=PATIENT),  # long enough for heartbeats
                spec("awork", payload={"number": 3}, retry=PATIENT),
                spec("save", payload={"steps": 2}, retry=PATIENT),
                spec("flaky", payload={"fails": 1}, retry=AT_ONCE),
                spec("spawn", payload={"number": 4}, retry=PATIENT),
                spec("work", payload={"number": 5}, retry=PATIENT, delay=0.001),
                spec("work", payload={"number": 6}, retry=PATIENT, deadline_at=now + timedelta(microseconds=1)),
            ),
        ]


def play(app: App, folder: Path, point: Point | None) -> None:
    url = app.store.url
    ids = prepare(url)
    consumer = Consumer(app.store, 3)
    consumer.poll()
    victim = start(url, folder, point, burst=True)
    victim.join(20)
    if point is not None and victim.exitcode == 0:
        pytest.skip(f"no worker comes to {point}")
    assert victim.exitcode == (0 if point is None else GONE), (folder / "crashing.log").read_text()
    consumer.poll()
    rescuer = start(url, folder, burst=False)
    try:
        all_ended(app, len(ids) + 1)  # and the one child
    finally:
        rescuer.kill()
        rescuer.join(10)
    consumer.drain()
    (child,) = {event.job_id for event in consumer.seen} - set(ids)
    seen = [(event.seq, event.job_id) for event in consumer.seen]
    picture = check(url, [*ids, child], folder=folder, within=10.0, seen=seen)
    ends = [picture.rows[job].state for job in [*ids, child]]
    assert ends == [*[State.SUCCEEDED] * 7, State.FAILED, State.SUCCEEDED]
    steps = [step.verb for step in picture.ledgers[ids[4]]]
    # It may have died with its worker instead of failing. Either way each end has one retry, not none, not two (SC-12).
    assert steps.count("fail") <= 1
    assert steps.count("retry") == steps.count("fail") + steps.count("lapse")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verb", VERBS)
def test_gone_at(app: App, folder: Path, verb: str, when: When) -> None:
    play(app, folder, Point(verb, when))


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("verb", VERBS)
def test_gone_within(app: App, folder: Path, verb: str) -> None:
    """On PostgreSQL a verb is one statement, and the server commits it: there is no within."""
    play(app, folder, Point(verb, "within"))


@pytest.mark.parametrize("verb", ["claim", "settle", "renew_lease"])
def test_gone_at_the_second_time(app: App, folder: Path, verb: str) -> None:
    play(app, folder, Point(verb, "after", nth=2))


def test_every_write_of_a_worker_is_a_point(app: App, folder: Path) -> None:
    """A verb that is new comes by itself; one that is no verb has to be looked at."""
    play(app, folder, None)
    assert flows(folder) <= set(VERBS)
    assert {"open_lease", "renew_lease", "end_lease", "enqueue", "save_checkpoint"} <= flows(folder)
