"""Detecting from its cursor that retention removed events which a consumer had not read."""

from __future__ import annotations

import pytest

from holdfast.engine.job import EVERY_TENANT, Event
from holdfast.errors import InvalidInput
from holdfast.features.assembly import Store
from tests.support.features import keep, sweep
from tests.support.stores import TENANT, forward, put_one

pytestmark = pytest.mark.req("DP-12", "DP-16", "CX-12")


def ended(store: Store, tenant: str = TENANT) -> str:
    job = put_one(store, tenant=tenant)
    store.run(store.jobs.operate("cancel", [job], None, "ada", tenant))
    return job


def read(store: Store, cursor: str | None = None, want: int = 100, tenant: str = TENANT) -> list[Event]:
    return store.run(store.ledger.read(cursor, want, tenant))


def gone(store: Store, cursor: str, tenant: str = TENANT) -> int | None:
    return store.run(store.ledger.gone(cursor, tenant))


def days_later(store: Store) -> None:
    for _ in range(2):  # the second pass removes what the first one left
        forward(store, 2 * 86_400)
        sweep(store)
        put_one(store, "later")  # the job of the newest event stays


def test_removed_unread_events_are_reported(store: Store) -> None:
    keep(store, purge="1d")
    ended(store)
    (first,) = read(store, want=1)  # in the middle of a page
    ended(store, "acme")
    for cursor in (first.cursor, read(store)[-1].cursor):
        assert gone(store, cursor) is None
    last = read(store)[-1]
    days_later(store)
    assert gone(store, first.cursor) == last.seq
    assert gone(store, first.cursor, EVERY_TENANT) == last.seq + 2
    # A consumer that read the end of the job has missed only its cleaning.
    assert gone(store, last.cursor) is None
    assert {event.kind for event in read(store, last.cursor)} == {"later"}
    assert gone(store, store.run(store.ledger.end(TENANT))) is None
    with pytest.raises(InvalidInput, match="invalid_cursor"):
        gone(store, "nonsense")


def test_events_removed_before_the_cursor_existed_are_not_reported(store: Store) -> None:
    """A consumer that reads from the beginning finds gaps, and has missed nothing."""
    keep(store, purge="1d")
    kept = put_one(store)
    ended(store)
    days_later(store)
    (first,) = read(store, want=1)
    assert (first.job_id, gone(store, first.cursor)) == (kept, None)
    (second,) = read(store, first.cursor, want=1)
    assert (second.kind, gone(store, second.cursor)) == ("later", None)
    ended(store)
    last = read(store)[-1].seq
    days_later(store)
    assert gone(store, second.cursor) == last
    assert {event.kind for event in read(store, first.cursor)} == {"later"}
    assert store.run(store.ledger.save_cursor("me", read(store)[-1].cursor, None, TENANT))
    assert [each.behind for each in store.run(store.consumers.list(TENANT))] == [0]
