"""Webhooks on every store: their subscriptions pause and end with them, the log is bounded, misses are reported."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.features.assembly import Store
from holdfast.features.events.model import WEBHOOK_KIND
from holdfast.features.schedules.model import Firing
from holdfast.features.webhooks.model import KEPT, KEPT_DAYS, subscription_names
from tests.support.direct_sql import ByHand
from tests.support.features import draft, feed_all, made_of, sent, tell, webhook
from tests.support.features import get_webhook as found
from tests.support.schedules import add, decided
from tests.support.stores import FINAL, claim, forward, new_id, open_lease, put_one, settle

pytestmark = pytest.mark.req("JF-9", "SC-15")


def sent_events(store: Store, tenant: str = "default") -> list[tuple[str, dict[str, object]]]:
    return [(each.name, each.data) for each in store.run(store.ledger.read_sent(None, 50, tenant))]


def test_each_event_makes_one_delivery_and_deliveries_none(store: Store) -> None:
    webhook(store, wants=["job.dead_letter", "order.*"], kind="pay*", options={"of_queue": "default"})
    ledger, application = subscription_names("ops")
    put_one(store, "pay")
    put_one(store, "other")
    put_one(store, "pay", queue="elsewhere")
    settle(store, claim(store, open_lease(store), 3, queues=("default", "elsewhere")), FINAL)
    tell(store, "order.paid")
    assert (feed_all(store, ledger), feed_all(store, application)) == (1, 1)
    first, second = made_of(store, WEBHOOK_KIND)
    assert (first.payload["webhook"], first.payload["event"]["name"]) == ("ops", "job.dead_letter")
    assert second.payload["event"]["name"] == "order.paid"
    webhook(store, "all", wants=["job.*"])
    settle(store, claim(store, open_lease(store), 2), FINAL)  # failed deliveries make no further deliveries
    put_one(store, "pay")
    assert feed_all(store, subscription_names("all")[0]) == 1
    assert (feed_all(store, ledger), feed_all(store, application)) == (0, 0)


def test_disabled_webhook_resumes_and_removal_deletes_its_log(store: Store) -> None:
    made = webhook(store, wants=["order.*"])
    name = subscription_names("ops")[1]
    run = store.run
    assert run(store.webhooks.disable("ops", "moved", "ada", "default"))
    assert run(store.webhooks.disable("ops", "again", "bob", "default"))
    resting = found(store)
    assert (resting.disabled_by, resting.disabled_reason, resting.enabled) == ("ada", "moved", False)
    assert sent_events(store) == [("webhook.disabled", {"webhook": "ops", "reason": "moved", "by": "ada"})]
    tell(store, "order.paid")
    assert run(store.subscriptions.active("default")) == []
    assert run(store.webhooks.enable("ops", False, "ada", "default"))
    assert found(store).enabled
    assert feed_all(store, name) == 1  # the missed event
    run(store.webhooks.disable("ops", "moved", "ada", "default"))
    tell(store, "order.paid")
    run(store.webhooks.enable("ops", True, "ada", "default"))
    assert feed_all(store, name) == 0  # skipped
    assert run(store.webhooks.note_delivery(sent(made.id, new_id()), "default"))
    assert run(store.webhooks.remove("ops", "ada", "default"))
    assert run(store.subscriptions.list("default")) == []
    assert run(store.webhooks.deliveries(made.id, "default", 9)) == []
    assert not run(store.webhooks.note_delivery(sent(made.id, new_id()), "default"))
    for call in (
        store.webhooks.remove("ops", "ada", "default"),
        store.webhooks.disable("ops", "x", "ada", "default"),
        store.webhooks.enable("ops", False, "ada", "default"),
        store.webhooks.change(draft(), "ada", "default"),
    ):
        assert not run(call)


def test_webhook_of_another_tenant_is_not_found(store: Store) -> None:
    mine = webhook(store)
    run = store.run
    run(store.webhooks.note_delivery(sent(mine.id, new_id()), "default"))
    assert not run(store.webhooks.note_delivery(sent(mine.id, new_id()), "acme"))
    assert not run(store.webhooks.disable("ops", "mine now", "eve", "acme"))
    assert not run(store.webhooks.change(draft(url="https://eve.example"), "eve", "acme"))
    assert not run(store.webhooks.remove("ops", "eve", "acme"))
    assert run(store.webhooks.get("ops", "acme")) is None
    assert run(store.webhooks.list("acme")) == []
    assert run(store.webhooks.deliveries(mine.id, "acme", 9)) == []
    assert found(store) == mine
    assert webhook(store, tenant="acme").tenant == "acme"
    assert not run(store.webhooks.add(draft(), new_id(), "ada", "acme"))


def test_delivery_log_is_bounded(store: Store, by_hand: ByHand) -> None:
    made = webhook(store)
    run = store.run
    old = sent(made.id, new_id(), message="msg_old")
    run(store.webhooks.note_delivery(old, "default"))
    forward(store, (KEPT_DAYS + 1) * 86_400)
    run(store.webhooks.note_delivery(sent(made.id, new_id(), status=500, error_code="webhook_failed"), "default"))
    (kept,) = run(store.webhooks.deliveries(made.id, "default", 9, failed=True))
    assert (kept.status, kept.delivered, kept.at is not None) == (500, False, True)
    assert run(store.webhooks.deliveries(made.id, "default", 9, message="msg_old")) == []
    columns = "tenant, webhook_id, message, type, job_id, attempt, status, error_code, duration_ms, excerpt, at"
    number = "lpad(to_hex(n), 12, '0')" if by_hand.name == "postgres" else "printf('%012x', n)"
    series = "generate_series(1, :n) n" if by_hand.name == "postgres" else "(select value as n from json_each(:rows))"
    id = f"('00000000-0000-7000-8000-' || {number})" + ("::uuid" if by_hand.name == "postgres" else "")
    params = {"n": KEPT + 5} if by_hand.name == "postgres" else {"rows": str(list(range(1, KEPT + 6)))}
    by_hand.execute(
        f"insert into webhook_delivery (id, {columns}) select {id}, {columns} from webhook_delivery, {series}", params
    )
    run(store.webhooks.note_delivery(sent(made.id, new_id()), "default"))
    assert by_hand.execute("select count(*) from webhook_delivery") == [(KEPT,)]
    page = run(store.webhooks.deliveries(made.id, "default", 2))
    assert len(run(store.webhooks.deliveries(made.id, "default", 1000, before=page[-1].id))) == KEPT - 2


def test_missed_times_send_one_event(store: Store) -> None:
    schedule = add(store, name="hourly", timing="@hourly")
    due = schedule.next_fire_at
    assert due is not None
    missed = Firing(due + timedelta(hours=2), "missed", count=3, since_at=due)
    assert store.run(store.schedules.fire([decided(schedule, missed)], "default")) == 1
    ((name, data),) = sent_events(store)
    assert name == "schedule.missed"
    assert data == {
        "schedule": "hourly",
        "schedule_id": schedule.id,
        "kind": schedule.kind,
        "count": 3,
        "first": due.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "last": missed.due_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
