"""What the overview is drawn from (JF-16): exact while the ledger's end is short, reckoned from samples when it is not,
and of one tenant only."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.domain.pulse import Pulse
from holdfast.stores.base import Store
from holdfast.stores.reads import pulse as reads
from tests.support.schedules import add
from tests.support.stores import FINAL, forward, open_lease, put, spec, work

pytestmark = pytest.mark.req("JF-16")


def look(store: Store, tenant: str = "default") -> Pulse:
    return store.run(store.verbs.pulse(tenant))


def test_what_waits_what_was_done_and_who_works(store: Store) -> None:
    forward(store)
    assert look(store).queues == look(store, "*").queues == []
    put(store, spec(), spec(), spec())
    forward(store, 2)
    work(store, want=2)
    work(store, FINAL)
    put(store, spec(queue="slow"), spec(queue="mail"), spec(queue="mail"), spec(queue="later", delay=600))
    put(store, spec(queue="slow"), tenant="acme")
    forward(store, 30)
    put(store, spec(queue="slow"))
    lease = store.run(store.verbs.open_lease("vm:1", 60, "*", "worker", ["mail.send"], ["mail"], 4))
    add(store, name="nightly")
    found = look(store)
    assert [(each.queue, each.waiting) for each in found.queues] == [("mail", 2), ("slow", 2)]
    assert [each.oldest_age_s for each in found.queues] == pytest.approx([30, 30], abs=1)
    names = ("enqueued", "succeeded", "failed")
    assert [sum(getattr(each, name) for each in found.minutes) for name in names] == [8, 2, 1]
    assert (found.estimated, found.capped) == (False, False)
    assert found.rate("enqueued") == pytest.approx(8 / 60)
    assert found.wait is not None
    assert found.wait.of == 2
    assert found.wait.p50 == pytest.approx(2, abs=0.1)
    assert [(each.name, each.queues, each.slots) for each in found.workers if each.until == lease.until] == [
        ("worker", ("mail",), 4)
    ]
    assert [each.name for each in found.due] == ["nightly"]
    assert [each.waiting for each in look(store, "acme").queues] == [1]
    assert sum(each.waiting for each in look(store, "*").queues) == 5
    forward(store, 7200)
    old = look(store)
    assert sum(each.enqueued for each in old.minutes) == 0
    assert old.workers == []


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
