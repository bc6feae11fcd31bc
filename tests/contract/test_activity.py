"""Activity over a range: exact for a short tail of the ledger, estimated from samples for a long one, per tenant.

Also the figures of queues, and the newest jobs of one queue or kind.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.features.assembly import Store
from holdfast.features.health import activity as reads
from holdfast.features.health.statistics import Activity
from tests.support.schedules import add
from tests.support.stores import FINAL, forward, open_lease, put, spec, work

pytestmark = pytest.mark.req("JF-16")

NAMES = ("enqueued", "succeeded", "failed")


def activity(store: Store, tenant: str = "default", range: str = "1h", by: str | None = None) -> Activity:
    return store.run(store.health.activity(tenant, range, by))


def test_activity_reports_counts_durations_and_due_schedules(store: Store) -> None:
    forward(store)
    assert activity(store).wait is activity(store).run is None
    put(store, spec(), spec(), spec())
    forward(store, 2)
    work(store, want=2)
    work(store, FINAL)
    put(store, spec(queue="slow"), spec(queue="mail"), spec(queue="mail"), spec(queue="later", delay=600))
    put(store, spec(queue="slow"), tenant="acme")
    forward(store, 30)
    put(store, spec(queue="slow"))
    add(store, name="nightly")
    result = activity(store)
    assert [sum(getattr(each, name) for each in result.points) for name in NAMES] == [8, 2, 1]
    assert not result.estimated
    assert result.rate("enqueued") == pytest.approx(8 / 60, rel=0.02)
    assert result.wait is not None
    assert result.wait.of == 2
    assert result.wait.p50 == pytest.approx(2, abs=0.1)
    assert [each.name for each in result.due] == ["nightly"]
    assert [sum(each.enqueued for each in activity(store, whose).points) for whose in ("acme", "*")] == [1, 9]
    assert activity(store, "acme").due == []
    assert {name: sum(counts) for name, counts in activity(store, by="queue").series.items()} == {"default": 2}
    assert {name: sum(counts) for name, counts in activity(store, by="kind").series.items()} == {spec().kind: 2}
    forward(store, 7200)
    assert not activity(store).busy
    assert [sum(each.succeeded for each in activity(store, range=name).points) for name in ("6h", "24h", "7d")] == [
        2,
        2,
        2,
    ]
    assert store.run(store.health.latest("default")) == "6h"


def test_queue_figures_and_recent_jobs_of_a_queue(store: Store) -> None:
    forward(store)
    put(store, spec(), spec(), spec())
    put(store, spec(queue="mail"), tenant="acme")
    put(store, spec(queue="empty", delay=600))
    forward(store, 2)
    work(store, want=2)
    work(store, FINAL)
    run = store.run
    figures = {each.queue: each for each in run(store.health.queues("default"))}
    assert list(figures) == ["default", "empty"]
    assert figures["default"].failure_rate == pytest.approx(1 / 3)
    assert figures["default"].per_minute == pytest.approx(2 / 60)
    assert figures["default"].run is not None
    assert figures["empty"].per_minute is None
    assert "mail" in [each.queue for each in run(store.health.queues("*"))]
    for whose in ("default", "*"):
        result = run(store.health.recent(whose, "queue", "default"))
        assert (result.of, result.states["succeeded"], result.others[spec().kind], result.whole) == (3, 2, 3, True)
        assert result.activity.range == "15m"
        assert [sum(getattr(each, name) for each in result.activity.points) for name in NAMES] == [3, 2, 1]
        assert len([each for each in result.durations if each[1] is not None]) == 1
    assert run(store.health.recent("acme", "kind", spec().kind)).others == {"mail": 1}
    forward(store, 2 * 86400)
    assert run(store.health.queues("default")) == []
    assert run(store.health.recent("default", "queue", "default")).activity.range == "7d"


def test_activity_of_a_busy_ledger_is_estimated_from_samples(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five minutes of a hundred jobs each; the estimate also notices that older jobs lie outside the hour."""
    monkeypatch.setattr(reads, "TAIL", 50)
    monkeypatch.setattr(reads, "SAMPLE", 10)
    forward(store)
    open_lease(store, ttl=1e6)
    put(store, *(spec(queue="old") for _ in range(300)))
    forward(store, 7200)
    for _ in range(5):
        put(store, *(spec() for _ in range(100)))
        forward(store, 60)
    result = activity(store)
    assert result.estimated
    assert result.now - result.since < timedelta(hours=1, minutes=3)
    assert result.rate("enqueued") * ((result.now - result.since) / timedelta(minutes=1)) == pytest.approx(500, rel=0.3)
    assert result.rate("succeeded") == 0
    work(store, want=200)
    (queue, counts), *others = activity(store, by="queue").series.items()
    assert (queue, others) == ("default", [])
    assert sum(counts) == pytest.approx(200, rel=0.5)
