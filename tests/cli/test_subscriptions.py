"""`holdfast subscriptions`, `consumers`, `executors`, `kinds`, `event-types`, `policies` and `why`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, document, error_of
from tests.support.features import feed_all, tell
from tests.support.features import get_subscription as found
from tests.support.stores import BROKEN, forward, put_one, settle, take


@pytest.mark.req("DP-13")
def test_subscription_is_set_paused_resumed_and_removed(holdfast: Holdfast, store: Store) -> None:
    put_one(store, "import")
    made = document(
        holdfast(
            *("subscriptions", "set", "after", "--on", "job.enqueued", "--kind", "import*", "--makes", "index"),
            *("--payload", '{"job": "$.job_id"}', "--queue", "late", "--priority", "2", "--delay", "5m"),
            *("--from", "beginning", "--max-depth", "1", "--json"),
        )
    )
    assert (made["pattern"], made["kind"], made["behind"], made["max_depth"]) == ("job.enqueue", "import*", 1, 1)
    assert made["job_options"] == {"payload": {"job": "$.job_id"}, "queue": "late", "priority": 2, "delay": 300.0}
    assert feed_all(store, "after") == 1
    listed = holdfast("subscriptions", "list").stdout
    assert "job.enqueue of import*" in listed
    assert "active" in listed
    assert document(holdfast("subscriptions", "list", "--json"))[0]["made"] == 1
    assert "paused" in holdfast("subscriptions", "pause", "after", "--reason", "too [b]many").stdout
    assert "too [b]many" in holdfast("subscriptions", "show", "after").stdout
    assert document(holdfast("subscriptions", "resume", "after", "--skip", "--json"))["paused_at"] is None

    bad = holdfast("subscriptions", "set", "b", "--on", "job.sucess", "--makes", "x", "--json")
    assert (bad.exit_code, error_of(bad)["code"]) == (2, "invalid_pattern")
    (job,) = document(holdfast("jobs", "list", "--kind", "index", "--json"))
    assert "1 subscriptions behind it" in holdfast("jobs", "show", job["id"]).stdout
    tell(store, "index.done", cause=job["id"])
    holdfast(
        "subscriptions", "set", "deep", "--on", "index.*", "--makes", "x", "--max-depth", "1", "--from", "beginning"
    )
    feed_all(store, "deep")
    assert "too_deep" in holdfast("subscriptions", "show", "deep").stdout
    assert document(holdfast("subscriptions", "show", "deep", "--json"))["refusals"][0]["depth"] == 2
    assert "too_deep" in holdfast("subscriptions", "deliveries", "deep", "--refused").stdout
    assert document(holdfast("subscriptions", "deliveries", "after", "--json"))[0]["job_id"] == job["id"]
    assert found(store, "deep").refused == 1
    assert holdfast("subscriptions", "remove", "after").exit_code == 0
    for command in ("remove", "show", "pause", "resume"):
        missing = holdfast("subscriptions", command, "after", "--json")
        assert (missing.exit_code, error_of(missing)["code"]) == (3, "subscription_not_found")


@pytest.mark.req("DP-12")
def test_consumers_are_listed_reset_and_removed(holdfast: Holdfast, store: Store) -> None:
    assert "No consumers" in holdfast("consumers", "list").stderr
    put_one(store)
    assert holdfast("events", "--consumer", "billing", "--json").exit_code == 0
    put_one(store)
    (one,) = document(holdfast("consumers", "list", "--json"))
    assert (one["name"], one["of"], one["behind"]) == ("billing", "jobs", 1)
    assert "billing" in holdfast("consumers", "list").stdout
    assert document(holdfast("consumers", "reset", "billing", "--json")) == {"name": "billing", "to": "beginning"}
    assert len(document(holdfast("events", "--consumer", "billing", "--json"))) == 2
    assert holdfast("consumers", "remove", "billing").exit_code == 0
    missing = holdfast("consumers", "remove", "billing", "--json")
    assert (missing.exit_code, error_of(missing)["code"]) == (3, "consumer_not_found")


@pytest.mark.req("DP-6")
def test_executors_are_added_listed_and_removed(holdfast: Holdfast, store: Store) -> None:
    assert "every label may execute" in holdfast("executors", "list").stderr
    assert document(holdfast("executors", "set", "planner", "--role", "generator", "--json"))["role"] == "generator"
    assert holdfast("executors", "set", "gpu").exit_code == 0
    assert [each["label"] for each in document(holdfast("executors", "list", "--json"))] == ["gpu", "planner"]
    assert "generator" in holdfast("executors", "list").stdout
    assert document(holdfast("executors", "remove", "gpu", "--json")) == {"label": "gpu", "removed": True}
    missing = holdfast("executors", "remove", "gpu", "--json")
    assert (missing.exit_code, error_of(missing)["code"]) == (3, "executor_not_found")


@pytest.mark.req("HF-2", "SC-6")
def test_why_explains_waiting_and_retried_jobs(holdfast: Holdfast, store: Store) -> None:
    job = put_one(store, retry_as="new_job")
    result = holdfast("why", job)
    assert result.exit_code == 0
    assert "no worker is running for tenant default" in result.stdout
    assert "→ Start one" in result.stdout
    settle(store, take(store), BROKEN)
    found = document(holdfast("why", job, "--json"))
    assert (found["job"], found["state"]) == (job, "failed")
    (reason,) = found["reasons"]
    assert reason["code"] == "retried_as_new_job"
    assert set(reason) == {"code", "says", "change", "facts"}
    new = reason["facts"]["retried_as"]
    for shown_id in (job, new):
        shown = holdfast("jobs", "show", shown_id).stdout
        assert f"{shown_id} (this one)" in shown
        assert job in shown
        assert new in shown
        assert [each["id"] for each in document(holdfast("jobs", "show", shown_id, "--json"))["chain"]] == [job, new]
    forward(store, 600)
    assert "it was due at" in holdfast("why", new, "--all-tenants").stdout
    missing = holdfast("why", "01a1de74-eb8c-70f1-843b-cac5f6817387", "--json")
    assert (missing.exit_code, error_of(missing)["code"]) == (3, "not_found")
    assert holdfast("why", "nonsense").exit_code == 2


@pytest.mark.req("DP-25", "DP-27", "DP-6")
def test_kinds_event_types_and_policies_are_registered_and_enforced(
    holdfast: Holdfast, store: Store, shop: Path
) -> None:
    sys.path.insert(0, str(shop))
    try:
        assert document(holdfast("kinds", "register", "shop:app", "--json")) == {"kinds": 3, "changed": 3}
    finally:
        sys.path.remove(str(shop))
        sys.modules.pop("shop", None)
    assert holdfast("kinds", "set", "mail.send", "--description", "Send it.").exit_code == 0
    assert [each["name"] for each in document(holdfast("kinds", "list", "--json"))] == [
        "add",
        "mail.send",
        "nap",
        "stuck",
    ]
    assert "Send it." in holdfast("kinds", "show", "mail.send").stdout
    assert holdfast("kinds", "remove", "mail.send").exit_code == 0
    assert error_of(holdfast("kinds", "show", "mail.send", "--json"))["code"] == "kind_not_found"
    added = ("event-types", "set", "order.paid", "--domain", "billing", "--data-schema", '{"required": ["order"]}')
    assert document(holdfast(*added, "--json"))["schema"] == {"required": ["order"]}
    assert "billing" in holdfast("event-types", "list", "--domain", "billing").stdout
    assert "required" in holdfast("event-types", "show", "order.paid").stdout
    found = document(holdfast("policies", "set", "unknown_kinds=refuse", "unknown_event_types=refuse", "--json"))
    assert (found["unknown_kinds"], found["unknown_agents"]) == ("refuse", "accept")
    refused = holdfast("enqueue", "mail.send", "--json")
    assert (refused.exit_code, error_of(refused)["code"]) == (4, "kind_unregistered")
    assert holdfast("enqueue", "add", '{"a": 1}').exit_code == 0
    assert error_of(holdfast("send-event", "order.paid", "{}", "--json"))["code"] == "event_data_invalid"
    assert holdfast("event-types", "remove", "order.paid").exit_code == 0
    assert error_of(holdfast("send-event", "order.paid", "{}", "--json"))["code"] == "event_type_unregistered"
    for wrong in ("unknown_kinds=maybe", "tenant_required=yes", "moods=warn"):
        assert holdfast("policies", "set", wrong).exit_code == 2
    assert holdfast("policies", "set", "unknown_kinds=warn").exit_code == 0
    assert holdfast("enqueue", "typo").exit_code == 0
    assert [each["name"] for each in document(holdfast("policies", "unregistered", "--json"))] == ["typo"]
    assert "unknown_kinds" in holdfast("policies", "show").stdout
    assert holdfast("policies", "set", "agent_required=queue:x").exit_code == 2
    assert "kind:add, tenant:acme" in holdfast("policies", "set", "agent_required=kind:add,tenant:acme").stdout
    refused = holdfast("enqueue", "add", '{"a": 1}', "--json")
    assert (refused.exit_code, error_of(refused)["code"]) == (4, "agent_required")
    assert document(holdfast("policies", "set", "agent_required=", "--json"))["agent_required"] == []
