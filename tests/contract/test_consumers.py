"""Reading the ledger as a consumer: in pages, every event once, from a stored cursor (DP-12)."""

from __future__ import annotations

from functools import partial

import pytest

from holdfast.engine.job import Event
from holdfast.errors import InvalidInput
from holdfast.features.assembly import Store
from tests.support.concurrency import together
from tests.support.ledger import read_events
from tests.support.stores import BROKEN, forward, history, put, put_one, spec, work

pytestmark = pytest.mark.req("DP-12")


def after(store: Store, cursor: str | None, want: int = 100, tenant: str = "*") -> list[Event]:
    return store.run(store.ledger.read(cursor, want, tenant))


def live(store: Store, jobs: int) -> None:
    """Jobs with a history: two thirds of them run, some of those twice."""
    put(store, *(spec() for _ in range(jobs)))
    work(store, BROKEN, want=jobs // 3)
    work(store, want=jobs // 3)
    forward(store, 60)
    store.run(store.leases.promote())
    work(store, want=jobs // 3)


@pytest.mark.parametrize("page", [1, 2, 3, 7, 1000])
def test_pages_of_any_size_return_every_event_once_in_order(store: Store, page: int) -> None:
    live(store, 9)
    result = read_events(store, page=page)
    assert [event.seq for event in result] == sorted({event.seq for event in result})
    for job_id in {event.job_id for event in result}:
        own = [(event.seq, event.type, event.attempt) for event in result if event.job_id == job_id]
        assert own == [(event.seq, event.type, event.attempt) for event in history(store, job_id)]
    assert len(result) == 9 + 3 * (3 + 1 + 2) + 3 * 2


@pytest.mark.parametrize("page", [1, 2, 5, 6])
def test_later_events_are_read_from_the_last_cursor(store: Store, page: int) -> None:
    """Also if the last page was exactly full."""
    cursor: str | None = None
    seen: list[str] = []
    expected: list[str] = []
    for _ in range(4):
        expected += put(store, *(spec() for _ in range(6)))
        result = read_events(store, page=page, after=cursor)
        seen += [event.job_id for event in result]
        cursor = result[-1].cursor
        assert after(store, cursor, page) == []
        assert after(store, cursor, page) == []
    assert seen == expected


def test_reading_can_resume_from_any_cursor_of_a_page(store: Store) -> None:
    live(store, 6)
    result = read_events(store, page=4)
    for n, event in enumerate(result):
        assert [each.seq for each in read_events(store, page=3, after=event.cursor)] == [
            each.seq for each in result[n + 1 :]
        ]


def test_old_cursor_loses_no_events(store: Store) -> None:
    put_one(store)
    (first,) = after(store, None)
    expected = [put_one(store) for _ in range(20)]
    assert [event.job_id for event in after(store, first.cursor)] == expected


def test_empty_ledger_has_no_events(store: Store) -> None:
    assert after(store, None) == []
    job_id = put_one(store)
    assert [event.job_id for event in after(store, None)] == [job_id]


@pytest.mark.req("JF-1")
@pytest.mark.parametrize("page", [1, 3, 100])
def test_tenant_reads_its_own_events_only(store: Store, page: int) -> None:
    for n in range(12):
        put_one(store, tenant=("acme", "umbrella")[n % 2])
    mine = read_events(store, tenant="acme", page=page)
    assert (len(mine), {event.tenant for event in mine}) == (6, {"acme"})
    assert len(read_events(store, page=page)) == 12
    put_one(store, tenant="umbrella")
    late = put_one(store, tenant="acme")
    assert [event.job_id for event in after(store, mine[-1].cursor, page, "acme")] == [late]


@pytest.mark.parametrize("cursor", ["x", "-", "1;nonsense", "1;2;3;4;5;6", "'; drop table event; --"])
def test_invalid_cursor_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidInput):
        after(store, cursor)


def test_consumer_cursor_is_stored(store: Store) -> None:
    put(store, spec(), spec())
    first, second = after(store, None)
    assert store.run(store.ledger.cursor("mailer", "*")) is None
    assert store.run(store.ledger.save_cursor("mailer", first.cursor, None, "*"))
    assert store.run(store.ledger.cursor("mailer", "*")) == first.cursor
    assert store.run(store.ledger.save_cursor("mailer", second.cursor, first.cursor, "*"))
    assert store.run(store.ledger.cursor("mailer", "*")) == second.cursor
    assert store.run(store.ledger.cursor("other", "*")) is None


def test_moving_a_cursor_requires_its_current_value(store: Store) -> None:
    put(store, spec(), spec(), spec())
    one, two, three = (event.cursor for event in after(store, None))
    save = partial(store.ledger.save_cursor, "mailer", tenant="*")
    assert not store.run(save(cursor=two, was=one)), "no cursor is stored yet"
    assert store.run(save(cursor=one, was=None))
    assert not store.run(save(cursor=two, was=None)), "another consumer has started"
    assert store.run(save(cursor=two, was=one))
    assert not store.run(save(cursor=three, was=one)), "another consumer has moved the cursor"
    assert store.run(store.ledger.cursor("mailer", "*")) == two


def test_one_of_many_concurrent_cursor_moves_succeeds(store: Store) -> None:
    put(store, *(spec() for _ in range(9)))
    cursors = [event.cursor for event in after(store, None)]
    for was in (None, cursors[0]):
        new = cursors[0] if was is None else cursors[1]
        moves = together(*(partial(store.run, store.ledger.save_cursor("mailer", new, was, "*")) for _ in range(8)))
        assert sorted(moves) == [False] * 7 + [True]


@pytest.mark.req("JF-1")
def test_consumers_of_different_tenants_may_have_the_same_name(store: Store) -> None:
    put_one(store, tenant="acme")
    (event,) = after(store, None)
    for tenant in ("acme", "umbrella", "*"):
        assert store.run(store.ledger.save_cursor("mailer", event.cursor, None, tenant))
        assert store.run(store.ledger.cursor("mailer", tenant)) == event.cursor
    assert store.run(store.ledger.cursor("mailer", "initech")) is None
