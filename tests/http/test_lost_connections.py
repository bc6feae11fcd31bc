"""Connections that break at the worst moment: after the service has done it, before the client hears of it (JF-14)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from holdfast import App, errors
from tests.http.conftest import SOON, Driver
from tests.http.cutting import Cutting

pytestmark = pytest.mark.req("JF-14")

Drive = Callable[..., Driver]

there = pytest.mark.parametrize(("url", "colour"), [("sqlite", "blocking"), ("postgres", "awaiting")], indirect=["url"])


@there
def test_what_was_enqueued_before_the_answer_was_lost_is_one_job(base: str, drive: Drive, app: App) -> None:
    left = itertools.count()
    with Cutting(base, lambda asked, _: asked.startswith(b"POST") and next(left) % SOON.tries < 2) as proxy:
        client = drive(proxy.url)
        one = client.do(lambda c: c.enqueue("mail", {"to": "ada"}))
        assert (proxy.cuts, one.created, one.reason) == (2, True, None)  # it was there already, and that was us
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
@there
def test_a_verb_without_a_key_is_not_said_twice(base: str, drive: Drive, app: App) -> None:
    job = app.enqueue("mail")
    with Cutting(base, lambda asked, _: b"/cancel" in asked) as proxy:
        with pytest.raises(errors.StoreUnavailable, match="unknown whether"):
            drive(proxy.url).do(lambda c: c.jobs.cancel(job.id))
        assert proxy.cuts == 1
    assert job.state() == "cancelled"  # which is what was not known
    assert [event.type for event in job.history()] == ["enqueue", "cancel"]
    # Nor is a claim: what it took is with the lease, which says so.
    waits = app.enqueue("mail")
    lease = drive(base).do(lambda c: c.leases.open()).lease
    with Cutting(base, lambda asked, _: b"/claim" in asked) as proxy:
        with pytest.raises(errors.StoreUnavailable):
            drive(proxy.url).do(lambda c: c.leases.claim(lease, want=5))
        assert proxy.cuts == 1
    (held,) = drive(base).do(lambda c: c.leases.renew(lease)).jobs
    assert (held.id, held.attempt) == (waits.id, 1)
    assert drive(base).do(lambda c: c.leases.release(lease, held))[0].settled


@there
def test_a_stream_that_breaks_goes_on_where_it_was(base: str, drive: Drive, app: App) -> None:
    handles = [app.enqueue("mail", {"n": n}) for n in range(40)]
    start = app._store.run(app._store.ledger.read(None, 1, "default"))[0].cursor
    # Each connection lives for a few thousand bytes, and ends in the midst of an event.
    with Cutting(base, lambda _, answered: len(answered) > 6_000) as proxy:
        client = drive(proxy.url)
        told = client.take(lambda c: c.events.follow(after=start), most=39)
        assert proxy.cuts >= 1
    assert [event.job_id for event in told] == [handle.id for handle in handles[1:]]  # none missed, none twice
