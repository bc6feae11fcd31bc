"""A follower that returns after retention has purged unread events gets an error and never skips them silently."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast import App, errors
from holdfast.app.internals import session_of
from tests.http.conftest import Driver
from tests.support.features import keep, sweep
from tests.support.stores import forward

pytestmark = pytest.mark.req("JF-14", "DP-12", "CX-12")

Drive = Callable[..., Driver]
BOTH = pytest.mark.parametrize(("url", "form"), [("sqlite", "blocking"), ("postgres", "awaiting")], indirect=["url"])


def cancelled(app: App, kind: str = "x") -> str:
    handle = app.enqueue(kind)
    handle.cancel()
    return handle.id


def purge(app: App) -> None:
    """Purge every finished job."""
    for _ in range(2):  # one pass finds what the other left
        forward(session_of(app).store, 2 * 86_400)
        sweep(session_of(app).store)
        app.enqueue("later")  # the job of the last event is kept


@pytest.mark.slow
@BOTH
def test_gap_is_reported_with_a_cursor_to_start_from(app: App, base: str, drive: Drive) -> None:
    keep(session_of(app).store, purge="1d")
    client = drive(base)
    cancelled(app)
    (first,) = client.take(lambda c: c.events.list(), most=1)
    lost = cancelled(app)
    kept = app.enqueue("kept").id
    missing = max(each.seq for each in client.take(lambda c: c.events.list()) if each.job_id == lost)
    purge(app)
    for wanted in (
        lambda c: c.events.list(after=first.cursor),
        lambda c: c.events.follow(after=first.cursor),
        lambda c: c.events.list(after=first.cursor, kind="kept"),
    ):
        with pytest.raises(errors.EventsGone) as error:
            client.take(wanted, most=1)
        assert (error.value.code, error.value.through) == ("events_gone", missing)
    with pytest.raises(errors.Refused) as refused:
        client.take(lambda c: c.events.list(after=first.cursor))
    assert isinstance(refused.value, errors.EventsGone)
    begin = refused.value.cursor
    # Start again from the new cursor: from there on nothing is missed.
    after = cancelled(app)
    assert [each.job_id for each in client.take(lambda c: c.events.list(after=begin))] == [after, after]
    assert [each.job_id for each in client.take(lambda c: c.events.follow(after=begin), most=2)] == [after, after]
    # Or skip the gap and continue with the remaining events; the next gap is reported again.
    left = client.take(lambda c: c.events.list(after=first.cursor, gaps="skip"))
    assert [each.job_id for each in left if each.kind != "later"] == [kept, after, after]
    assert client.take(lambda c: c.events.follow(after=first.cursor, gaps="skip"), most=len(left)) == left
    assert client.take(lambda c: c.events.list(after=left[0].cursor)) == left[1:]
    purge(app)
    with pytest.raises(errors.EventsGone):
        client.take(lambda c: c.events.list(after=left[0].cursor))
