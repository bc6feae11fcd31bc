"""`holdfast tenants`, and searching payloads."""

from __future__ import annotations

import pytest

from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, document, error_of
from tests.support.features import fill, served
from tests.support.stores import put_one


@pytest.mark.req("JF-12")
def test_tenants_are_set_limited_shared_and_deleted(holdfast: Holdfast, store: Store) -> None:
    assert "No tenants." in holdfast("tenants", "list").stderr
    result = holdfast(
        "tenants",
        "set",
        "acme",
        "--max-pending",
        "3",
        "--max-running",
        "2",
        "--rate",
        "10/m",
        *("--burst", "10", "--title", "A"),
    )
    assert result.exit_code == 0
    fill(store, 3, "acme")
    fill(store, 1, "other")
    shown = [" ".join(line.split()) for line in holdfast("tenants", "show", "acme").stdout.splitlines()]
    assert shown[0] == "acme"
    for fact in ("title A", "waiting 3 of 3", "running 0 of 2", "rate 10/m", "weight 1"):
        assert fact in shown
    refused = holdfast("enqueue", "note", "--tenant", "acme", "--json")
    assert (refused.exit_code, error_of(refused)["code"]) == (4, "tenant_full")
    made = document(holdfast("tenants", "set", "acme", "--weight", "3", "--max-running", "none", "--json"))
    assert (made["weight"], made["max_running"], made["max_pending"], made["share"]) == (3, None, 3, 0.75)
    rows = [line.split() for line in holdfast("tenants", "list").stdout.splitlines()]
    assert [row[0] for row in rows] == ["tenant", "acme", "other"]
    assert rows[1][-1] == "75.0%"
    assert document(holdfast("tenants", "fair-queues", "--json")) == {"fair_queues": ["*"]}
    assert served(store, 1, 2) == {"acme": 2}
    assert "No queue is shared" in holdfast("tenants", "fair-queues", "off").stderr
    assert "Shared fairly: mail." in holdfast("tenants", "fair-queues", "on", "--queue", "mail").stderr
    assert holdfast("tenants", "remove", "acme").exit_code == 0
    gone = holdfast("tenants", "remove", "acme", "--json")
    assert (gone.exit_code, error_of(gone)["code"]) == (3, "tenant_not_found")
    assert holdfast("tenants", "show", "nobody").exit_code == 3
    for wrong in (["--weight", "0"], ["--max-pending", "many"], ["--rate", "often"], ["--burst", "3"]):
        assert holdfast("tenants", "set", "acme", *wrong).exit_code == 2


@pytest.mark.req("JF-12", "JF-21")
def test_fair_queues_and_pinned_logins_are_set(holdfast: Holdfast, store: Store) -> None:
    assert "Every queue is shared fairly." in holdfast("tenants", "fair-queues").stderr
    result = holdfast("tenants", "fair-queues", "off", "--queue", "mail").stderr
    assert "Every queue is shared fairly, except mail." in result
    assert "No login is pinned" in holdfast("tenants", "pins").stderr
    refused = holdfast("tenants", "pin", "nobody-here", "acme", "--json")
    assert error_of(refused)["code"] == ("no_logins" if store.embedded else "login_not_found")
    assert holdfast("tenants", "pin", "nobody-here", "*").exit_code == 2
    assert holdfast("tenants", "unpin", "nobody-here").exit_code in (3, 4)


@pytest.mark.req("JF-20")
def test_jobs_are_searched_by_payload_key(holdfast: Holdfast, store: Store) -> None:
    job = put_one(store, payload={"order": {"id": 7}})
    put_one(store, payload={"order": {"id": 8}})
    assert "No key of payloads is indexed." in holdfast("jobs", "indexes").stderr
    for indexed in (False, True):
        if indexed:
            assert "payload.order.id is indexed." in holdfast("jobs", "index", "payload.order.id").stderr
            assert "payload.order.id" in holdfast("jobs", "indexes").stdout
        listed = holdfast("jobs", "search", "payload.order.id:7")
        assert job in listed.stdout
        assert len(listed.stdout.splitlines()) == 2
    assert "No matching jobs." in holdfast("jobs", "search", "payload.order.id:9").stderr
    assert "no longer indexed" in holdfast("jobs", "index", "payload.order.id", "--remove").stderr
    wrong = holdfast("jobs", "search", "payload.order", "--limit", "1001", "--json")
    assert wrong.exit_code in (0, 2)
    assert error_of(holdfast("jobs", "search", "nothing:1", "--json"))["code"] == "invalid_search"
    assert error_of(holdfast("jobs", "index", "order", "--json"))["code"] == "invalid_path"
