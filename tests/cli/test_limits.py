"""`holdfast limits`, `holdfast reservations` and `holdfast queues`."""

from __future__ import annotations

import pytest

from holdfast.features.assembly import Store
from holdfast.features.limits.model import ReservationRequest
from tests.cli.conftest import Holdfast, document, error_of
from tests.support.stores import TENANT, claim, new_id, open_lease, put, spec


@pytest.mark.req("SC-16")
def test_limits_are_set_shown_listed_and_removed(holdfast: Holdfast, store: Store) -> None:
    assert "No limits." in holdfast("limits", "list").stderr
    result = holdfast("limits", "set", "--kind", "slow", "--concurrency", "1", "--rate", "10/m", "--burst", "3")
    assert result.exit_code == 0
    put(store, spec("slow"), spec("slow"))
    assert len(claim(store, open_lease(store), 9)) == 1
    shown = [" ".join(line.split()) for line in holdfast("limits", "show", "--kind", "slow").stdout.splitlines()]
    assert shown[0] == "kind slow"
    for fact in ("concurrency 1", "rate 10/m, burst 3", "running 1", "held back 1"):
        assert fact in shown
    made = document(holdfast("limits", "set", "--all-tenants", "--of-tenant", "*", "--concurrency", "20", "--json"))
    assert (made["tenant"], made["scope"], made["name"], made["concurrency"]) == ("*", "tenant", "*", 20)
    for command in (["set", "--of-tenant", "x", "--concurrency", "1"], ["remove", "--of-tenant", "x"]):
        assert error_of(holdfast("limits", *command, "--json"))["code"] == "not_for_a_tenant"
    rows = [line.split() for line in holdfast("limits", "list").stdout.splitlines()]
    assert rows[1][:4] == ["kind", "slow", "default", "1"]
    assert rows[2] == ["each", "tenant", "*", "20", "1", "0"]
    assert holdfast("limits", "remove", "--kind", "slow").exit_code == 0
    assert len(claim(store, open_lease(store), 9)) == 1
    gone = holdfast("limits", "remove", "--kind", "slow", "--json")
    assert (gone.exit_code, error_of(gone)["code"]) == (3, "limit_not_found")
    assert holdfast("limits", "show", "--queue", "q").exit_code == 3
    for wrong in (["--queue", "q"], ["--queue", "q", "--kind", "k", "--concurrency", "1"], ["--rate", "often"]):
        assert holdfast("limits", "set", *wrong).exit_code == 2


@pytest.mark.req("SC-10")
def test_reservations_are_listed_and_released(holdfast: Holdfast, store: Store) -> None:
    assert "No reservations." in holdfast("reservations", "list").stderr
    request = ReservationRequest(new_id(), "resource", "gpu-0", 60.0, "a [red]trial[/red]")
    store.run(store.reservations.set(request, "ada", TENANT))
    (row,) = document(holdfast("reservations", "list", "--json"))
    assert (row["id"], row["state"], row["holder"], row["name"]) == (request.id, "active", "ada", "gpu-0")
    assert "resource gpu-0" in holdfast("reservations", "list").stdout
    assert holdfast("reservations", "release", request.id, "--reason", "it hangs").exit_code == 0
    assert holdfast("reservations", "release", request.id).exit_code == 3
    assert document(holdfast("reservations", "list", "--json")) == []
    (ended,) = document(holdfast("reservations", "list", "--ended", "--json"))
    assert (ended["state"], ended["ended_why"]) == ("released", "it hangs")


@pytest.mark.req("SC-2")
def test_aging_of_queues_is_set_and_listed(holdfast: Holdfast, store: Store) -> None:
    assert "No queue has settings." in holdfast("queues", "list").stderr
    assert "age every 10 m" in holdfast("queues", "set-aging", "reports", "--every", "10m", "--most", "20").stderr
    rows = [line.split() for line in holdfast("queues", "list").stdout.splitlines()]
    assert rows[1] == ["reports", "default", "10", "m", "1", "20"]
    assert holdfast("queues", "set-aging", "reports").exit_code == 2
    assert document(holdfast("queues", "set-aging", "reports", "--every", "none", "--json")) is None
    assert document(holdfast("queues", "list", "--json")) == []
