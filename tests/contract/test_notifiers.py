"""Settings of notifiers (HF-20) on both stores: per tenant, recorded, and the health that each has told."""

from __future__ import annotations

import pytest

from holdfast.errors import HoldfastError
from holdfast.features.assembly import Store
from holdfast.features.audit.store import ActionFilter
from holdfast.features.notifiers.model import NotifierDraft
from tests.support.features import notifier

pytestmark = pytest.mark.req("HF-20")


def test_settings_are_stored_changed_and_removed_per_tenant(store: Store) -> None:
    run = store.run
    made = notifier(
        store,
        channel="email",
        secrets=["MAIL"],
        sender="jobs@example.com",
        recipients=["ada@example.com", "bob@example.com"],
        dashboard="https://jobs.example.com/",
        quiet="22:00-07:00 Europe/Paris",
        escalate_after="30m",
        escalation="night",
        kind="pay*",
    )
    assert (made.channel, made.recipients, made.sender) == (
        "email",
        ("ada@example.com", "bob@example.com"),
        "jobs@example.com",
    )
    assert (made.dashboard, made.escalate_after, made.kind) == ("https://jobs.example.com", 1800.0, "pay*")
    assert run(store.notifiers.get("ops", "default")) == made
    changed = notifier(store, actor="bob", enabled=False, wants=["health"])
    assert (changed.channel, changed.enabled, changed.wants, changed.set_by) == ("slack", False, ("health",), "bob")
    other = notifier(store, tenant="acme")
    assert (run(store.notifiers.list("acme")), run(store.notifiers.get("ops", "acme"))) == ([other], other)
    assert [each.tenant for each in run(store.notifiers.list("*"))] == ["acme", "default"]
    assert run(store.notifiers.remove("ops", "eve", "default"))
    assert not run(store.notifiers.remove("ops", "eve", "default"))
    assert run(store.notifiers.get("ops", "acme")) == other
    with pytest.raises(HoldfastError):
        notifier(store, tenant="*")
    filter = ActionFilter(tenant="default", subject="notifier")
    actions = [(each.actor, each.type) for each in run(store.audit.actions(filter))]
    assert actions[::-1] == [("ada", "add"), ("bob", "change"), ("eve", "remove")]


def test_one_process_records_a_change_of_the_health(store: Store) -> None:
    notifier(store)
    tell = store.notifiers.tell_health
    assert store.run(tell("ops", None, "warn", "default"))
    assert not store.run(tell("ops", None, "warn", "default"))
    assert not store.run(tell("ops", None, "critical", "acme"))
    assert store.run(tell("ops", "warn", "ok", "default"))
    told = store.run(store.notifiers.get("ops", "default"))
    assert told is not None
    assert told.health == "ok"
    kept = NotifierDraft.of("ops", told, {"enabled": False})
    assert store.run(store.notifiers.set(kept, "ada", "default")).health == "ok"
