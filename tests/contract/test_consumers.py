"""Reading the ledger as a consumer: in pages, every event once, from a cursor that is kept for it (DP-12)."""

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
    """Some jobs with a past: two thirds of them run, some of those twice."""
    put(store, *(spec() for _ in range(jobs)))
    work(store, BROKEN, want=jobs // 3)
    work(store, want=jobs // 3)
    forward(store, 60)
    store.run(store.leases.promote())
    work(store, want=jobs // 3)


@pytest.mark.parametrize("page", [1, 2, 3, 7, 1000])
def test_any_size_of_page_gives_every_event_once_and_in_order(store: Store, page: int) -> None:
    live(store, 9)
    found = read_events(store, page=page)
    assert [event.seq for event in found] == sorted({event.seq for event in found})
    for job_id in {event.job_id for event in found}:
        own = [(event.seq, event.type, event.attempt) for event in found if event.job_id == job_id]
        assert own == [(event.seq, event.type, event.attempt) for event in history(store, job_id)]
    assert len(found) == 9 + 3 * (3 + 1 + 2) + 3 * 2


@pytest.mark.parametrize("page", [1, 2, 5, 6])
def test_what_comes_after_the_last_page_is_read_from_its_cursor(store: Store, page: int) -> None:
    """Also when the last page was exactly full."""
    cursor: str | None = None
    seen: list[str] = []
    expected: list[str] = []
    for _ in range(4):
        expected += put(store, *(spec() for _ in range(6)))
        found = read_events(store, page=page, after=cursor)
        seen += [event.job_id for event in found]
        cursor = found[-1].cursor
        assert after(store, cursor, page) == []
        assert after(store, cursor, page) == []
    assert seen == expected


def test_every_cursor_of_a_page_is_a_place_to_go_on_from(store: Store) -> None:
    live(store, 6)
    found = read_events(store, page=4)
    for n, event in enumerate(found):
        assert [each.seq for each in read_events(store, page=3, after=event.cursor)] == [
            each.seq for each in found[n + 1 :]
        ]


def test_a_cursor_that_stood_still_for_long_loses_nothing(store: Store) -> None:
    put_one(store)
    (first,) = after(store, None)
    expected = [put_one(store) for _ in range(20)]
    assert [event.job_id for event in after(store, first.cursor)] == expected


def test_nothing_to_read_yet(store: Store) -> None:
    assert after(store, None) == []
    job_id = put_one(store)
    assert [event.job_id for event in after(store, None)] == [job_id]


@pytest.mark.req("JF-1")
@pytest.mark.parametrize("page", [1, 3, 100])
def test_a_tenant_reads_its_own_events_only(store: Store, page: int) -> None:
    for n in range(12):
        put_one(store, tenant=("acme", "umbrella")[n % 2])
    mine = read_events(store, tenant="acme", page=page)
    assert (len(mine), {event.tenant for event in mine}) == (6, {"acme"})
    assert len(read_events(store, page=page)) == 12
    put_one(store, tenant="umbrella")
    late = put_one(store, tenant="acme")
    assert [event.job_id for event in after(store, mine[-1].cursor, page, "acme")] == [late]


@pytest.mark.parametrize("cursor", ["x", "-", "1;nonsense", "1;2;3;4;5;6", "'; drop table event; --"])
def test_what_is_no_cursor_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidInput):
        after(store, cursor)


def test_a_consumers_place_is_kept_for_it(store: Store) -> None:
    put(store, spec(), spec())
    first, second = after(store, None)
    assert store.run(store.ledger.cursor("mailer", "*")) is None
    assert store.run(store.ledger.save_cursor("mailer", first.cursor, None, "*"))
    assert store.run(store.ledger.cursor("mailer", "*")) == first.cursor
    assert store.run(store.ledger.save_cursor("mailer", second.cursor, first.cursor, "*"))
    assert store.run(store.ledger.cursor("mailer", "*")) == second.cursor
    assert store.run(store.ledger.cursor("other", "*")) is None


def test_moving_a_cursor_needs_the_place_one_came_from(store: Store) -> None:
    put(store, spec(), spec(), spec())
    one, two, three = (event.cursor for event in after(store, None))
    save = partial(store.ledger.save_cursor, "mailer", tenant="*")
    assert not store.run(save(cursor=two, was=one)), "there is no such place yet"
    assert store.run(save(cursor=one, was=None))
    assert not store.run(save(cursor=two, was=None)), "somebody has begun already"
    assert store.run(save(cursor=two, was=one))
    assert not store.run(save(cursor=three, was=one)), "somebody has moved on already"
    assert store.run(store.ledger.cursor("mailer", "*")) == two


def test_of_many_processes_that_move_a_cursor_one_succeeds(store: Store) -> None:
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
