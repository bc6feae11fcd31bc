"""Capped counts of jobs for pages, lists without payloads, and the end of the ledger."""

from __future__ import annotations

import pytest

from holdfast.engine.states import State
from holdfast.errors import InvalidInput
from holdfast.features.assembly import Store
from holdfast.stores import job_reads
from holdfast.stores.requests import JobFilter
from tests.support.stores import put, spec

pytestmark = pytest.mark.req("JF-14", "JF-16")


def test_counts_stop_at_the_cap(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = put(store, *(spec(kind="mail") for _ in range(5)), *(spec(kind="other") for _ in range(2)))
    store.run(store.jobs.operate("cancel", ids[:2], None, "ada", "default"))

    def counted(most: int, **wanted: str) -> dict[str, int]:
        result = store.run(store.jobs.capped_counts(JobFilter(tenant="default", **wanted), most))  # type: ignore[arg-type]
        assert result.counts.keys() == set(State)
        return {str(state): count for state, count in result.counts.items() if count}

    assert counted(10) == {"queued": 5, "cancelled": 2}
    assert counted(3) == {"queued": 3, "cancelled": 2}
    assert counted(10, kind="mail") == {"queued": 3, "cancelled": 2}
    assert counted(1, kind="mail") == {"queued": 1, "cancelled": 1}
    assert store.run(store.jobs.capped_counts(JobFilter(tenant="acme"), 10)).counts[State.QUEUED] == 0
    monkeypatch.setattr(job_reads, "WINDOW", 2)
    result = store.run(store.jobs.capped_counts(JobFilter(tenant="default", kind="mail"), 10))
    assert (result.of_newest, sum(result.counts.values())) == (2, 2)


def test_job_list_can_omit_payloads(store: Store) -> None:
    put(store, spec(payload={"n": 1}))
    full, bare = (
        store.run(store.jobs.list(JobFilter(tenant="default", payloads=payloads))) for payloads in (True, False)
    )
    assert (full[0].payload, bare[0].payload) == ({"n": 1}, None)


@pytest.mark.req("DP-12")
def test_end_cursor_reads_events_committed_later(store: Store) -> None:
    put(store, spec())
    end = store.run(store.ledger.end("default"))
    assert store.run(store.ledger.read(end, 10, "default")) == []
    later = put(store, spec())
    assert [event.job_id for event in store.run(store.ledger.read(end, 10, "default"))] == later


@pytest.mark.parametrize("cursor", ["x", "-1", "²", "1;x", "9" * 30, "1;2;3;4;5", "1;1:1:;2:2:;x", "a7"])
def test_invalid_cursor_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidInput):
        store.run(store.ledger.read(cursor, 10, "default"))
