"""Connections that break after the service has executed a request and before the client gets the response."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from holdfast import App, errors
from holdfast.app.internals import session_of
from tests.http.conftest import SOON, Driver
from tests.http.cutting_proxy import Cutting

pytestmark = pytest.mark.req("JF-14")

Drive = Callable[..., Driver]

both_forms = pytest.mark.parametrize(
    ("url", "form"), [("sqlite", "blocking"), ("postgres", "awaiting")], indirect=["url"]
)


@both_forms
def test_enqueue_with_lost_response_creates_one_job(base: str, drive: Drive, app: App) -> None:
    left = itertools.count()
    with Cutting(base, lambda request, _: request.startswith(b"POST") and next(left) % SOON.tries < 2) as proxy:
        client = drive(proxy.url)
        one = client.do(lambda c: c.enqueue("mail", {"to": "ada"}))
        assert (proxy.cuts, one.created, one.reason) == (2, True, None)  # the job existed already, created by this call
        left = itertools.count()
        many = client.do(lambda c: c.enqueue_many(c.prepare("mail", {"n": n}) for n in range(5)))
        assert proxy.cuts == 4
        assert [each.created for each in many] == [True] * 5
        keyed = client.do(lambda c: c.enqueue("mail", {"to": "bob"}, key="bob"))
        assert keyed.id
    assert {job.id for job in app.jobs.list()} == {one.id, keyed.id, *(each.id for each in many)}
    assert len(app.jobs.list()) == 7
    assert app.jobs.get(one.id).attempt == 0


@pytest.mark.slow
@both_forms
def test_request_without_a_key_is_not_retried(base: str, drive: Drive, app: App) -> None:
    job = app.enqueue("mail")
    with Cutting(base, lambda request, _: b"/cancel" in request) as proxy:
        with pytest.raises(errors.StoreUnavailable, match="unknown whether"):
            drive(proxy.url).do(lambda c: c.jobs.cancel(job.id))
        assert proxy.cuts == 1
    assert job.state() == "cancelled"  # which the client could not know
    assert [event.type for event in job.history()] == ["enqueue", "cancel"]
    # Nor is a claim: its jobs are held by the lease, which lists them.
    waits = app.enqueue("mail")
    lease = drive(base).do(lambda c: c.leases.open()).lease
    with Cutting(base, lambda request, _: b"/claim" in request) as proxy:
        with pytest.raises(errors.StoreUnavailable):
            drive(proxy.url).do(lambda c: c.leases.claim(lease, want=5))
        assert proxy.cuts == 1
    (held,) = drive(base).do(lambda c: c.leases.renew(lease)).jobs
    assert (held.id, held.attempt) == (waits.id, 1)
    assert drive(base).do(lambda c: c.leases.release(lease, held))[0].settled


@both_forms
def test_broken_stream_continues_at_its_position(base: str, drive: Drive, app: App) -> None:
    handles = [app.enqueue("mail", {"n": n}) for n in range(40)]
    start = session_of(app).store.run(session_of(app).store.ledger.read(None, 1, "default"))[0].cursor
    # Each connection is cut after a few thousand bytes, in the middle of an event.
    with Cutting(base, lambda _, response: len(response) > 6_000) as proxy:
        client = drive(proxy.url)
        result = client.take(lambda c: c.events.follow(after=start), most=39)
        assert proxy.cuts >= 1
    assert [event.job_id for event in result] == [handle.id for handle in handles[1:]]  # none missed, none repeated
