"""`holdfast dead-letters` and `holdfast operations`."""

from __future__ import annotations

import pytest

from holdfast.engine.outcome import Failed
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, document, error_of
from tests.support.stores import claim, job, open_lease, put, put_one, settle, spec, state_of

pytestmark = pytest.mark.req("DP-15")

UNKNOWN = "01a1de74-eb8c-70f1-843b-cac5f6817387"


def dead(store: Store, count: int, kind: str = "pay") -> list[str]:
    ids = put(store, *(spec(kind, payload={"order": number}) for number in range(count)))
    held = claim(store, open_lease(store), count)
    for attempt in held:
        settle(store, attempt, Failed("Refused", "order [red]7[/red] was refused", final=True, frame="shop:charge"))
    return ids


def test_dead_letter_groups_are_listed_noted_redriven_and_discarded(holdfast: Holdfast, store: Store) -> None:
    assert "No matching dead letters." in holdfast("dead-letters", "list").stderr
    ids = dead(store, 12)
    dead(store, 1, "repay")
    listed = document(holdfast("dead-letters", "list", "--sort", "count", "--json"))
    assert [(group["kind"], group["open"], group["times"]) for group in listed] == [("pay", 12, 12), ("repay", 1, 1)]
    group = listed[0]["fingerprint"]
    result = holdfast("dead-letters", "list", "--limit", "1", "--sort", "count")
    assert "order [red]7[/red] was refused" in result.stdout
    cursor = result.stderr.split("--after ")[1].strip()
    (rest,) = document(holdfast("dead-letters", "list", "--sort", "count", "--after", cursor, "--json"))
    assert rest["kind"] == "repay"
    assert document(holdfast("dead-letters", "list", "--text", "nothing", "--json")) == []
    assert holdfast("dead-letters", "note", group, "the bank is down").exit_code == 0
    shown = holdfast("dead-letters", "show", group).stdout
    for part in ("shop:charge", "the bank is down", "The newest 10 of 12 jobs", ids[-1]):
        assert part in shown
    assert group in holdfast("jobs", "show", ids[0]).stdout
    assert f"holdfast dead-letters redrive {group}" in holdfast("why", ids[0]).stdout
    started = holdfast("dead-letters", "redrive", group, "--rate", "1000", "--max-attempts", "3", "--json")
    operation = document(started)
    assert (operation["state"], operation["total"], operation["rate"]) == ("running", 12, 1000)
    assert state_of(store, ids[0]) is State.DEAD_LETTER, "no worker has processed it yet"
    while store.run(store.operations.work()) is not None:
        pass
    over = document(holdfast("operations", "wait", operation["id"], "--json"))
    assert (over["state"], over["done"]) == ("done", 12)
    assert job(store, ids[0]).max_attempts == 3
    waited = holdfast("dead-letters", "discard", "--kind", "repay", "--reason", "too old", "--wait")
    assert waited.exit_code == 0
    assert "1 of 1 (100 %)" in waited.stdout
    assert document(holdfast("dead-letters", "list", "--json")) == []
    assert holdfast("dead-letters", "list", "--resolved").stdout.count("Refused") == 2
    rows = holdfast("operations", "list").stdout.splitlines()
    assert [row.split()[1] for row in rows[1:]] == ["discard", "redrive"]


@pytest.mark.req("DP-26")
def test_dead_letters_are_redriven_at_a_time(holdfast: Holdfast, store: Store) -> None:
    first, second = dead(store, 2)
    assert holdfast("dead-letters", "redrive", "--all", "--at", "2027-01-01T00:00Z", "--in", "2h").exit_code == 2
    assert holdfast("operations", "start", "cancel", "--all", "--in", "2h").exit_code == 2
    shown = holdfast("dead-letters", "redrive", "--all", "--at", "2100-01-01T00:00Z", "--wait").stdout
    assert "jobs start  2100-01-01" in shown
    assert {str(job(store, each).due_at) for each in (first, second)} == {"2100-01-01 00:00:00+00:00"}
    assert holdfast("operations", "start", "redrive", "--kind", "none", "--in", "2h").exit_code == 0


def test_operations_are_started_shown_and_cancelled(holdfast: Holdfast, store: Store) -> None:
    assert "No matching operations." in holdfast("operations", "list").stderr
    waiting = put_one(store, "import")
    wrong = ["start", "cancel", "--kind", "import", "--state", "succeeded"]
    assert holdfast("operations", *wrong).exit_code == 2
    assert holdfast("operations", "start", "cancel").exit_code == 2, "all jobs need --all"
    started = document(holdfast("operations", "start", "cancel", "--kind", "import", "--rate", "0.5", "--json"))
    assert started["wanted"] == {"kind": "import"}
    late = holdfast("operations", "wait", started["id"], "--timeout", "0", "--json")
    assert (late.exit_code, error_of(late)["code"]) == (1, "wait_timeout")
    ended = document(holdfast("operations", "cancel", started["id"], "--reason", "too early", "--json"))
    assert (ended["state"], ended["cancelled_reason"]) == ("cancelled", "too early")
    assert holdfast("operations", "wait", started["id"]).exit_code == 1
    assert "too early" in holdfast("operations", "show", started["id"]).stdout
    assert holdfast("operations", "cancel", started["id"]).exit_code == 4
    assert holdfast("operations", "show", UNKNOWN).exit_code == 3
    assert document(holdfast("operations", "list", "--running", "--json")) == []
    assert state_of(store, waiting) is State.QUEUED
    assert holdfast("operations", "start", "cancel", "--all", "--wait").exit_code == 0
    assert state_of(store, waiting) is State.CANCELLED


def test_dead_letter_is_redriven_with_another_payload(holdfast: Holdfast, store: Store) -> None:
    (old,) = dead(store, 1)
    made = document(holdfast("jobs", "redrive", old, "--payload", '{"order": 8}', "--json"))
    new = made["redriven_as"]
    assert job(store, new).payload == {"order": 8}
    assert new in holdfast("jobs", "show", old).stdout
    assert old in holdfast("jobs", "show", new).stdout
    again = document(holdfast("jobs", "redrive", old, "--payload", '{"order": 8}', "--json"))
    assert again["redriven_as"] == new
    refused = holdfast("jobs", "redrive", new, "--payload", "{}", "--json")
    assert (refused.exit_code, error_of(refused)["code"]) == (4, "not_dead")
    for wrong in (
        [old, new, "--payload", "{}"],
        [old, "--payload", "{}", "--max-attempts", "3"],
        [old, "--payload", "{"],
    ):
        assert holdfast("jobs", "redrive", *wrong).exit_code == 2
    for missing in (["show", "x"], ["note", "x", "y"], ["redrive", "x"], ["discard", "x", "--reason", "y"]):
        assert holdfast("dead-letters", *missing).exit_code == 3
    assert holdfast("dead-letters", "redrive").exit_code == 2
    assert holdfast("dead-letters", "redrive", "x", "--all").exit_code == 2
    assert holdfast("dead-letters", "discard", "--all", "--reason", " ").exit_code == 2
