"""Reservations held over HTTP in both forms: started, kept alive, refused, lost and released."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import App, State
from holdfast.errors import Conflict, InvalidInput
from holdfast.remote import Client, HttpxTransport
from holdfast.remote.http_requests import Outgoing, Reply
from tests.http.conftest import SOON, TOKEN
from tests.support.waiting import until

pytestmark = pytest.mark.req("SC-10", "JF-14")

TTL = 6.0
SHORT = 3.0


def within(form: str, base: str, act: Callable[[Any], None], **options: Any) -> None:
    """Hold a reservation in the given form and call ``act``, in a thread if the form is async."""
    if form == "blocking":
        with Client(base, token=TOKEN, retrying=SOON) as client, client.reservations.hold(**options) as mine:
            act(mine)
        return

    async def run() -> None:
        async with Client(base, token=TOKEN, retrying=SOON) as client, client.reservations.hold(**options) as mine:
            await asyncio.to_thread(act, mine)

    asyncio.run(run())


def test_reservation_is_renewed_during_the_block_and_released_after_it(app: App, base: str, form: str) -> None:
    seen: list[Any] = []

    def held(mine: Any) -> None:
        first = app.reservations.get(mine.id)
        assert (first.state, first.what, first.reason, mine.lost) == ("active", "resource gpu-0", "measuring", False)
        until(lambda: app.reservations.get(mine.id).expires_at > first.expires_at, "the reservation is renewed")
        with pytest.raises(Conflict, match="reservation_busy"):  # without waiting
            within(form, base, seen.append, resource="gpu-0", wait=0)
        seen.append(mine.id)

    within(form, base, held, resource="gpu-0", ttl=TTL, reason="measuring")
    ended = {each.id: (each.state, each.ended_why) for each in app.reservations.list(ended=True)}
    assert ended.pop(seen[0]) == ("released", "released")
    assert list(ended.values()) == [("withdrawn", "left with Conflict")]


class Late(HttpxTransport):
    """The first response takes longer than the reservation lasts, which is renewed elsewhere meanwhile."""

    def __init__(self, app: App) -> None:
        super().__init__()
        self._app = app
        self.requests = 0

    def send(self, outgoing: Outgoing) -> Reply:
        reply = super().send(outgoing)
        self.requests += outgoing.method == "PUT"
        if outgoing.method == "PUT" and self.requests == 1:
            self._app.reservations.set(outgoing.url.rpartition("/")[2], resource="gpu-0", ttl=60)
            time.sleep(SHORT)
        return reply


@pytest.mark.slow
def test_late_response_does_not_start_the_block(app: App, base: str) -> None:
    late = Late(app)
    with Client(base, token=TOKEN, retrying=SOON, transport=late) as client:
        with client.reservations.hold("gpu-0", ttl=SHORT):
            requests = late.requests
        assert requests >= 2


@pytest.mark.slow
def test_reservation_waits_for_its_turn(app: App, base: str, form: str) -> None:
    begun: list[Any] = []
    asking = threading.Thread(target=within, args=(form, base, begun.append), kwargs={"queue": "imports"})
    with app.reservations.hold(queue="imports"):
        asking.start()
        until(lambda: len(app.reservations.list()) == 2, "it waits in the queue")
        assert begun == []
    asking.join(20)
    assert len(begun) == 1
    assert app.reservations.list() == []


@pytest.mark.slow
def test_lost_reservation_is_reported(app: App, base: str, form: str) -> None:
    def meanwhile(mine: Any) -> None:
        app.reservations.release(mine.id, reason="it hangs")
        until(lambda: mine.lost, "the holder notices")

    with pytest.raises(Conflict, match="reservation_lost"):
        within(form, base, meanwhile, ttl=TTL)

    def fails(mine: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        within(form, base, fails)
    assert app.reservations.list(ended=True, limit=1)[0].ended_why == "left with KeyError"
    with pytest.raises(InvalidInput, match="invalid_duration"):
        within(form, base, fails, ttl=0.01)
    assert app.reservations.list() == []


@pytest.mark.req("SC-22")
def test_block_is_recorded_as_a_job(app: App, base: str, form: str) -> None:
    jobs: list[str] = []

    def held(mine: Any) -> None:
        jobs.append(mine.job_id)
        assert app.jobs.get(mine.job_id).state is State.IN_PROGRESS

    def breaks(mine: Any) -> None:
        held(mine)
        raise ValueError("no paper")

    within(form, base, held, resource="printer", record="calibrate")
    with pytest.raises(ValueError, match="no paper"):
        within(form, base, breaks, resource="printer", record="calibrate")
    jobs_after = [(job.kind, job.state, job.error_code, job.error_message) for job in map(app.jobs.get, jobs)]
    assert jobs_after == [
        ("calibrate", State.SUCCEEDED, None, None),
        ("calibrate", State.FAILED, "ValueError", "no paper"),
    ]
