"""How the last hour went (JF-16): exact while the ledger's end is short, reckoned from samples when it is not,
and of one tenant only."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.features.assembly import Store
from holdfast.features.health import activity as reads
from holdfast.features.health.statistics import Hour
from tests.support.schedules import add
from tests.support.stores import FINAL, forward, open_lease, put, spec, work

pytestmark = pytest.mark.req("JF-16")


def look(store: Store, tenant: str = "default") -> Hour:
    return store.run(store.health.last_hour(tenant))


def test_what_was_done_how_long_it_took_and_what_is_due(store: Store) -> None:
    forward(store)
    assert look(store).wait is look(store).run is None
    put(store, spec(), spec(), spec())
    forward(store, 2)
    work(store, want=2)
    work(store, FINAL)
    put(store, spec(queue="slow"), spec(queue="mail"), spec(queue="mail"), spec(queue="later", delay=600))
    put(store, spec(queue="slow"), tenant="acme")
    forward(store, 30)
    put(store, spec(queue="slow"))
    add(store, name="nightly")
    found = look(store)
    names = ("enqueued", "succeeded", "failed")
    assert [sum(getattr(each, name) for each in found.minutes) for name in names] == [8, 2, 1]
    assert not found.estimated
    assert found.rate("enqueued") == pytest.approx(8 / 60)
    assert found.wait is not None
    assert found.wait.of == 2
    assert found.wait.p50 == pytest.approx(2, abs=0.1)
    assert [each.name for each in found.due] == ["nightly"]
    assert [sum(each.enqueued for each in look(store, whose).minutes) for whose in ("acme", "*")] == [1, 9]
    assert look(store, "acme").due == []
    forward(store, 7200)
    assert sum(each.enqueued for each in look(store).minutes) == 0


def test_a_busy_ledger_is_reckoned_from_samples(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five minutes of a hundred jobs each; that they were before the hour is found out as well."""
    monkeypatch.setattr(reads, "TAIL", 50)
    monkeypatch.setattr(reads, "SAMPLE", 10)
    forward(store)
    open_lease(store, ttl=1e6)
    put(store, *(spec(queue="old") for _ in range(300)))
    forward(store, 7200)
    for _ in range(5):
        put(store, *(spec() for _ in range(100)))
        forward(store, 60)
    found = look(store)
    assert found.estimated
    assert found.now - found.since < timedelta(hours=1, minutes=3)
    assert found.rate("enqueued") * ((found.now - found.since) / timedelta(minutes=1)) == pytest.approx(500, rel=0.3)
    assert found.rate("succeeded") == 0
