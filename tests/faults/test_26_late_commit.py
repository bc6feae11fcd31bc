"""Fault 26: a consumer is killed and restarted while transactions commit in another order than they began.

(`tests/contract/test_late_commit.py` and `…_at_random.py` test the commit orders themselves.)
"""

from __future__ import annotations

import os
import random
import time
from contextlib import closing, suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.errors import Conflict
from tests.faults.checker import check
from tests.faults.snapshot import take_snapshot
from tests.support.forkserver import start_call
from tests.support.stores import claim, open_lease, put_one, settle
from tests.support.transactions import Transaction
from tests.support.waiting import until

pytestmark = pytest.mark.req("DP-12", "CX-15")

SEEN = "seen"


def _consume(url: str, folder: str) -> None:
    """Read as the consumer "audit" until killed, and record each event before the cursor moves past it."""
    handle = os.open(Path(folder) / SEEN, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with closing(App(url, name="audit")) as app:
        while True:
            with suppress(Conflict):  # the server still moved the cursor for the killed consumer
                for event in app.events.read("audit", page=5):
                    os.write(handle, f"\n{event.seq} {event.job_id}.\n".encode())
                    os.fsync(handle)
            time.sleep(0.005)


def seen(folder: Path) -> list[tuple[int, str]]:
    path = folder / SEEN
    lines = path.read_text().splitlines() if path.exists() else []
    whole = [line[:-1].split() for line in lines if line.endswith(".")]  # a killed writer leaves a partial line
    return [(int(seq), job) for seq, job in whole]


@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_killed_consumer_misses_no_event(app: App, folder: Path, choice: random.Random, kills: int) -> None:
    store, ids = session_of(app).store, []
    lease = open_lease(store, ttl=3600)

    def consumer() -> ForkServerProcess:
        return start_call(_consume, store.url, str(folder))

    reading = consumer()
    open_ones: list[Transaction] = []
    try:
        for _ in range(kills):
            have = len(seen(folder))
            if not store.embedded:  # on SQLite there is one writer at a time, and nothing can commit late
                open_ones.append(Transaction(store))
                late = open_ones[-1].enqueue(choice.randint(1, 7))
                ids += late
            ids += [put_one(store) for _ in range(choice.randint(1, 9))]
            settle(store, claim(store, lease, choice.randint(1, 6)))
            until(lambda have=have: len(seen(folder)) > have, "the consumer reads more events")  # type: ignore[misc]
            if choice.random() < 0.7:
                reading.kill()
                reading.join(10)
                reading = consumer()
            choice.shuffle(open_ones)
            for each in open_ones[2:]:
                each.end()
            del open_ones[2:]
        for each in open_ones:
            each.end()
        total = {event.seq for ledger in take_snapshot(store.url).ledgers.values() for event in ledger}
        until(lambda: total <= {seq for seq, _ in seen(folder)}, "the consumer has caught up")
    finally:
        reading.kill()
        reading.join(10)
    check(store.url, ids, ended=False, seen=seen(folder))
