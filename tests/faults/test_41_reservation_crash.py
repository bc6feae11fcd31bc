"""Fault 41: the owner of a reservation is killed; the reservation expires, and the queue continues in its order."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import App
from holdfast.app.internals import session_of
from tests.app.worker_process import process
from tests.faults.workload import wait_for_all
from tests.support.ledger import events_by_number as ledger
from tests.support.stores import put, spec
from tests.support.waiting import until
from tests.support.worker_processes import Crew

pytestmark = pytest.mark.req("SC-10")

TTL = 6.0
OWNER = """
import os, sys, time
from pathlib import Path
from holdfast import App
with App(name="owner", enqueued_by="the owner").reservations.hold("gpu", ttl=%r):
    Path(sys.argv[1]).write_text(str(os.getpid()))
    time.sleep(60)
"""


def test_reservation_of_killed_owner_expires(app: App, crew: Crew, folder: Path) -> None:
    mark = folder / "reserved"
    with process(OWNER % TTL, str(mark), url=session_of(app).store.url, folder=folder) as owner:
        until(mark.exists, "the resource is reserved")
        wanted = [(0, "gpu"), (5, "gpu"), (9, "gpu"), (0, None)]
        ids = put(
            session_of(app).store,
            *(spec("work", priority=priority, uses=(f"resource:{use}",) if use else ()) for priority, use in wanted),
        )
        crew.start_one(lease=60.0, concurrency=1)
        until(lambda: app.jobs.get(ids[3]).state == "succeeded", "the job without the resource is done")
        (first,) = app.reservations.list()
        until(lambda: app.reservations.get(first.id).expires_at > first.expires_at, "its owner renews it")
        assert [each.state for each in app.reservations.list()] == ["active"]
        assert {app.jobs.get(each).state for each in ids[:3]} == {"queued"}
        owner.kill()
        owner.wait(10)
    session_of(app).store.run(session_of(app).store.clock.set(timedelta(seconds=2 * TTL), None))
    wait_for_all(app, 4)
    begun = [event.job_id for event in ledger(session_of(app).store) if event.type == "take"]
    assert begun == [ids[3], ids[2], ids[1], ids[0]], "in their original order"
    (reservation,) = app.reservations.list(ended=True)
    assert (reservation.state, reservation.holder) == ("expired", "the owner")
    assert reservation.ended_why == "the reservation was not renewed"
    with app.reservations.hold("gpu", wait=0, ttl=TTL):
        assert os.getpid()
