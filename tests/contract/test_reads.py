"""Reading jobs: single jobs, and pages by every filter, newest first, stable during writes (CX-14)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast.engine.ids import created_ms
from holdfast.engine.states import State
from holdfast.errors import InvalidInput
from holdfast.features.assembly import Store
from holdfast.stores.codecs import from_micros
from holdfast.stores.requests import JobFilter
from tests.support.stores import BROKEN, FINAL, claim, new_id, open_lease, put, put_one, spec, work

pytestmark = pytest.mark.req("CX-14")


def listed(store: Store, tenant: str = "default", **wanted: Any) -> list[str]:
    return [each.id for each in store.run(store.jobs.list(JobFilter(tenant=tenant, **wanted)))]


@pytest.mark.req("CX-12")
def test_list_returns_the_newest_fifty_by_default(store: Store) -> None:
    ids = put(store, *(spec() for _ in range(60)))
    assert listed(store) == ids[:9:-1]
    assert listed(store, limit=1000) == ids[::-1]
    assert listed(store, limit=3) == ids[:-4:-1]


@pytest.mark.parametrize(("limit", "returned"), [(0, 1), (-5, 1), (10**9, 60)])
def test_list_limit_is_clamped(store: Store, limit: int, returned: int) -> None:
    put(store, *(spec() for _ in range(60)))
    assert len(listed(store, limit=limit)) == returned


@pytest.mark.req("CX-17", "CX-16", "DP-10")
def test_list_by_each_filter(store: Store) -> None:
    parent = put_one(store, "parent")
    odd = spec("odd", queue="q2", agent="a-1", tags=("red", "blue"), correlation_id="c-1", parent_id=parent)
    even = [spec(tags=("blue",)) for _ in range(3)]
    put(store, odd, *even)
    assert listed(store, kind="odd") == [odd.id]
    assert listed(store, queue="q2") == [odd.id]
    assert listed(store, agent="a-1") == [odd.id]
    assert listed(store, tag="red") == [odd.id]
    assert listed(store, tag="blue") == [each.id for each in (*reversed(even), odd)]
    assert listed(store, correlation_id="c-1") == [odd.id]
    assert listed(store, parent_id=parent) == [odd.id]
    assert listed(store, parent_id=parent.upper()) == [odd.id]
    for nothing in ("kind", "queue", "agent", "tag", "correlation_id"):
        assert listed(store, **{nothing: "no such"}) == []
    assert listed(store, parent_id=new_id()) == []


def test_list_by_state(store: Store) -> None:
    ids = put(store, *(spec() for _ in range(8)))
    assert listed(store, state=State.QUEUED) == ids[::-1]
    work(store, want=2)
    work(store, FINAL)
    work(store, BROKEN)
    claim(store, open_lease(store))
    claim(store, open_lease(store), begin=False)
    assert listed(store, state=State.SUCCEEDED) == ids[1::-1]
    assert listed(store, state=State.DEAD_LETTER) == [ids[2]]
    assert listed(store, state=State.RETRY_WAITING) == [ids[3]]
    assert listed(store, state=State.IN_PROGRESS) == [ids[4]]
    assert listed(store, state=State.LEASED) == [ids[5]]
    assert listed(store, state=State.QUEUED, limit=1) == [ids[7]]
    assert listed(store, state=State.CLEANED) == []


def test_list_by_combined_filters(store: Store) -> None:
    wanted = [spec("k", queue="q", tags=("t",), agent="a") for _ in range(3)]
    others = [
        spec("k", queue="q", tags=("t",)),
        spec("k", queue="q", agent="a"),
        spec(tags=("t",), agent="a"),
    ]
    put(store, *others, *wanted, *(spec("k") for _ in range(2)))
    result = listed(store, kind="k", queue="q", tag="t", agent="a", state=State.QUEUED)
    assert result == [each.id for each in reversed(wanted)]


def test_list_by_creation_time(store: Store) -> None:
    old, middle, new = (_id_at(new_id(), seconds) for seconds in (-100, -50, 0))
    put(store, *(spec(id=job_id) for job_id in (old, middle, new)))
    at = {job_id: from_micros(created_ms(job_id) * 1000) for job_id in (old, middle, new)}
    assert listed(store, since=at[middle]) == [new, middle]
    assert listed(store, until=at[middle]) == [old]
    assert listed(store, since=at[old], until=at[new]) == [middle, old]
    assert listed(store, since=at[new] + timedelta(milliseconds=1)) == []


def _id_at(job_id: str, seconds: int) -> str:
    """The same id, with its time moved by `seconds`."""
    ms = f"{created_ms(job_id) + seconds * 1000:012x}"
    return f"{ms[:8]}-{ms[8:]}{job_id[13:]}"


@pytest.mark.parametrize("wanted", [{}, {"state": State.QUEUED}, {"tag": "t"}, {"kind": "k"}])
def test_pages_are_stable_while_jobs_are_added(store: Store, wanted: dict[str, Any]) -> None:
    ids = put(store, *(spec("k", tags=("t",)) for _ in range(23)))
    seen: list[str] = []
    before: str | None = None
    while page := listed(store, before=before, limit=5, **wanted):
        seen += page
        before = page[-1]
        put(store, *(spec("k", tags=("t",)) for _ in range(2)))  # newer: they belong before the first page
    assert seen == ids[::-1]


@pytest.mark.req("JF-1")
def test_lists_and_reads_stay_within_their_tenant(store: Store) -> None:
    mine, theirs = put_one(store, tenant="acme", tags=("t",)), put_one(store, tenant="umbrella", tags=("t",))
    for wanted in ({}, {"tag": "t"}, {"state": State.QUEUED}, {"kind": "mail.send"}):
        assert listed(store, "acme", **wanted) == [mine]
        assert listed(store, "*", **wanted) == [theirs, mine]
    assert store.run(store.jobs.get(theirs, "acme")) is None
    assert store.run(store.jobs.get(theirs, "*")) is not None


def test_unknown_job_is_not_found(store: Store) -> None:
    missing = new_id()
    assert store.run(store.jobs.get(missing, "default")) is None
    assert store.run(store.jobs.result(missing, "default")) is None
    assert store.run(store.jobs.history(missing, "default")) == []
    assert store.run(store.jobs.attempts(missing, "default")) == []
    assert store.run(store.jobs.artifacts(missing, "default")) == []
    assert store.run(store.jobs.checkpoints(missing, "default")) == {}


@pytest.mark.parametrize("text", ["", "7", "x' or '1'='1", "00000000-0000-0000-0000-00000000000g"])
def test_invalid_id_is_refused_before_the_database(store: Store, text: str) -> None:
    for read in (store.jobs.get, store.jobs.history, store.jobs.result):
        with pytest.raises(InvalidInput) as caught:
            store.run(read(text, "default"))
        assert caught.value.code == "invalid_id"


@pytest.mark.req("CX-19")
def test_ids_are_case_insensitive(store: Store) -> None:
    job_id = put_one(store, external_ref="ext-1")
    stored = store.run(store.jobs.get(job_id.upper(), "default"))
    assert stored is not None
    assert (stored.id, stored.external_ref) == (job_id, "ext-1")
