"""`holdfast agents`, and how the other commands show agents."""

from __future__ import annotations

import pytest

from holdfast.engine.retry import PRESETS, Retry
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, document, error_of
from tests.support.features import disable
from tests.support.features import set_agent as register
from tests.support.stores import claim, job, open_lease, put_one, state_of

pytestmark = pytest.mark.req("CX-16")


def test_register_and_show_an_agent(holdfast: Holdfast, store: Store) -> None:
    result = holdfast(
        *("agents", "set", "planner", "--name", "The [red]planner[/red]", "--kind", "plan", "--max-attempts", "3"),
        *("--max-crashes", "1", "--backoff", "gentle", "--max-payload", "64KB", "--max-wait", "1h30m"),
        "--requires-approval",
    )
    assert result.exit_code == 0
    shown = holdfast("agents", "show", "planner")
    assert (shown.exit_code, shown.stdout) == (0, result.stdout)
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert lines[0] == "The [red]planner[/red] planner"
    for fact in ("state enabled", "kind plan", "waiting 0", "attempts 3", "lost workers 1", "backoff gentle"):
        assert fact in lines
    for fact in ("payloads up to 64 KB", "may wait 1 h 30 m", "needs approval yes"):
        assert fact in lines


def test_agents_print_json(holdfast: Holdfast, store: Store) -> None:
    made = document(holdfast("agents", "set", "planner", "--max-attempts", "3", "--json"))
    assert (made["id"], made["name"], made["max_attempts"], made["max_crashes"]) == ("planner", "planner", 3, 3)
    assert (made["requires_approval"], made["disabled_at"], made["waiting"]) == (False, None, 0)
    assert document(holdfast("agents", "show", "planner", "--json")) == made
    assert document(holdfast("agents", "list", "--json")) == [made]
    disabled = document(holdfast("agents", "disable", "planner", "--reason", "it loops", "--json"))
    assert (disabled["disabled_reason"], disabled["disabled_at"] is None) == ("it loops", False)
    assert document(holdfast("agents", "enable", "planner", "--json"))["disabled_at"] is None


def test_options_of_a_retry_policy_say_that_they_replace_it(holdfast: Holdfast) -> None:
    text = " ".join(holdfast("agents", "set", "--help").stdout.split())
    assert f"a whole policy: {Retry().max_attempts} attempts" in text
    assert "default: the kind's" not in text
    assert all(preset in text for preset in PRESETS)
    alone = document(holdfast("agents", "set", "planner", "--backoff", "gentle", "--json"))
    assert (alone["max_attempts"], alone["max_crashes"]) == (None, None)
    whole = document(holdfast("agents", "set", "planner", "--max-crashes", "1", "--json"))
    assert (whole["max_attempts"], whole["backoff"]) == (Retry().max_attempts, Retry().backoff.to_json())


def test_list_agents_with_filters(holdfast: Holdfast, store: Store) -> None:
    assert "No matching agents." in holdfast("agents", "list").stderr
    register(store, "a", kind="mail")
    register(store, "b", name="Bee")
    register(store, "c", tenant="acme")
    put_one(store, agent="b")
    disable(store, "b", "it [bold]loops[/bold]")
    rows = [line.split() for line in holdfast("agents", "list").stdout.splitlines()]
    assert rows == [
        ["id", "name", "kind", "state", "waiting", "why"],
        ["a", "a", "mail", "enabled", "0"],
        ["b", "Bee", "disabled", "1", "it", "[bold]loops[/bold]"],
    ]

    def ids(*wanted: str) -> list[str]:
        return [agent["id"] for agent in document(holdfast("agents", "list", "--json", *wanted))]

    assert (ids("--disabled"), ids("--enabled"), ids("--kind", "mail")) == (["b"], ["a"], ["a"])
    assert (ids("--tenant", "acme"), ids("--all-tenants")) == (["c"], ["c", "a", "b"])
    assert "acme" in holdfast("agents", "list", "--all-tenants").stdout


def test_disable_and_enable_an_agent(holdfast: Holdfast, store: Store) -> None:
    register(store)
    waiting = put_one(store, agent="planner")
    result = holdfast("agents", "disable", "planner", "--reason", "it loops")
    assert result.exit_code == 0
    assert "it loops" in result.stdout
    assert claim(store, open_lease(store)) == []
    shown = holdfast("jobs", "show", waiting).stdout
    assert "agent disabled  since 20" in shown
    assert ": it loops" in shown
    refused = holdfast("enqueue", "plan", "--agent", "planner", "--json")
    assert (refused.exit_code, error_of(refused)["code"]) == (4, "agent_disabled")
    assert "it loops" in error_of(refused)["message"]
    assert holdfast("agents", "enable", "planner").exit_code == 0
    made = document(holdfast("enqueue", "plan", "--agent", "planner", "--json"))
    assert job(store, made["id"]).agent == "planner"
    assert [each.id for each in claim(store, open_lease(store), 5)] == [waiting, made["id"]]
    assert state_of(store, waiting) is State.IN_PROGRESS
    assert [each["id"] for each in document(holdfast("jobs", "list", "--agent", "planner", "--json"))] == [
        made["id"],
        waiting,
    ]


@pytest.mark.parametrize("command", ["show", "enable"])
def test_unknown_agent_is_not_found(holdfast: Holdfast, store: Store, command: str) -> None:
    register(store, tenant="acme")
    result = holdfast("agents", command, "planner", "--json")
    assert (result.exit_code, error_of(result)["code"]) == (3, "agent_not_found")


def test_disable_requires_a_reason_and_an_agent(holdfast: Holdfast, store: Store) -> None:
    assert holdfast("agents", "disable", "planner").exit_code == 2
    missing = holdfast("agents", "disable", "planner", "--reason", "x", "--json")
    assert (missing.exit_code, error_of(missing)["code"]) == (3, "agent_not_found")
    register(store)
    blank = holdfast("agents", "disable", "planner", "--reason", " ", "--json")
    assert (blank.exit_code, error_of(blank)["code"]) == (2, "reason_required")


@pytest.mark.parametrize(
    "options",
    [
        ("--max-attempts", "0"),
        ("--max-crashes", "101"),
        ("--backoff", "rough"),
        ("--max-payload", "much"),
        ("--max-payload", "1"),
        ("--max-wait", "0"),
        ("--max-wait", "soon"),
        ("--kind", " "),
        ("--name", "a\nb"),
        ("--tenant", "*"),
    ],
)
def test_register_rejects_invalid_options(holdfast: Holdfast, store: Store, options: tuple[str, str]) -> None:
    assert holdfast("agents", "set", "planner", *options).exit_code == 2
    assert store.run(store.agents.list("*")) == []
