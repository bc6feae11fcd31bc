"""Which tests run when, and with which random seed. A pytest plugin, loaded by tests/conftest.py.

| tier | command | runs |
|---|---|---|
| fast | `make test` | everything that is neither slow nor a repetition; the seed is fixed |
| all | `make test-all` | fast, and what it leaves out; of the repetitions a part, another with each seed |
| rest | `.ci/run` | what `all` has and `fast` has not |
| soak | `make soak` | the tests that take minutes on purpose |

A test leaves the fast tier by the mark `slow`, or because it repeats another:

- Of a test that runs many cases on a store, the fast tier runs two on each store, spread evenly over all of them,
  and one in the folders of `ONE_STORE`. `sample(n)` asks for another number, `every_case` for all.
- In the folders of `ONE_STORE` the code under test never sees which store it uses: PostgreSQL repeats SQLite. Most of
  these repetitions also take turns in `all`, as do the groups of benchmarks: a third of them runs, chosen by the seed.
- The cases of a test with the mark `turns(n)` take turns as well, each in one of n seeds: there are hundreds of them.

The other tiers have a random seed, which the run prints; `--seed N` repeats it.
"""

from __future__ import annotations

import random
import re
import zlib
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

ONE_STORE = {"api", "app", "cli", "dashboard", "demo", "docs", "faults", "http", "kit", "telemetry"}
# Except in these tests: of workers, leases, transactions and outages, where the stores differ most.
BOTH_STORES = {
    *("app/test_commit_ack_cut.py", "app/test_failover.py", "app/test_hanging_threads.py", "app/test_killed_worker.py"),
    *("app/test_lost_lease.py", "app/test_outage.py", "app/test_pool_size.py", "app/test_stopping.py"),
    *("app/test_store_away.py", "app/test_tick_losses.py", "app/test_transactions_completion.py"),
    *("app/test_transactions_going_on.py", "app/test_transactions_killed.py", "app/test_wakeup.py"),
    "app/test_worker.py",
    *("faults/test_01_tx_enqueue.py", "faults/test_09_zombie_every_operation.py", "faults/test_10_sweep_vs_settle.py"),
    *("faults/test_12_deadlock_mix.py", "faults/test_25_clock_jump.py", "faults/test_30_payload_fuzz.py"),
    *("faults/test_33_nested_ids.py", "faults/test_34_approval_race.py", "faults/test_39_tampering.py"),
    "faults/test_42_bulk_redrive.py",
    *("faults/test_44_durable_outages.py", "faults/test_51_bad_row.py", "faults/test_55_forged_history.py"),
}
# And these repetitions never take turns: each `make test-all` runs them.
EVERY_TIME = {
    *("app/test_bulk.py", "app/test_enqueue.py", "app/test_events.py", "app/test_limits.py", "app/test_retention.py"),
    *("app/test_schedules.py", "app/test_steps.py", "app/test_subscriptions.py", "app/test_tenants.py"),
    *("app/test_tick.py", "app/test_workflows.py"),
}

CASES = 2
TURNS = 3
FIXED_SEED = 20_261_116

SEED = pytest.StashKey[int]()
FAST = pytest.StashKey[frozenset[str]]()
ROWS = pytest.StashKey[frozenset[str]]()
COMPLETE = pytest.StashKey[bool]()

_STORE = re.compile(r"sqlite|postgres")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=("fast", "rest", "all", "soak"), default="fast", help="which tests to run")
    parser.addoption("--seed", type=int, help="seed of the tests that choose at random (default: fixed in --tier fast)")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    seed = config.getoption("--seed")
    if seed is None and config.getoption("--tier") == "fast":
        seed = FIXED_SEED
    given = getattr(config, "workerinput", {}).get("seed")  # the processes of one run share the seed
    config.stash[SEED] = given or seed or random.SystemRandom().randrange(1, 1 << 32)
    config.option.hypothesis_seed = config.stash[SEED]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    node.workerinput["seed"] = node.config.stash[SEED]  # type: ignore[attr-defined]


def pytest_report_header(config: pytest.Config) -> str:
    return f"tier: {config.getoption('--tier')}; seed: {config.stash[SEED]} (repeat with --seed {config.stash[SEED]})"


@pytest.fixture
def choice(pytestconfig: pytest.Config) -> random.Random:
    """Every choice that a test makes at random. The run prints its seed; `--seed N` repeats it."""
    return random.Random(pytestconfig.stash[SEED])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier, later = config.getoption("--tier"), _left_out_of_fast(items)
    known, seed = {item.nodeid for item in items}, config.stash[SEED]
    waits = {item for item in later if (zlib.crc32(item.nodeid.encode()) + seed) % _turns_of(item, known)}
    soak = {item for item in items if item.get_closest_marker("soak")}
    named = any(arg.partition("::")[1] for arg in config.args)  # whoever names one test wants to see it run
    chosen = {
        "fast": [item for item in items if item not in soak and item not in later] if not named else items,
        "rest": [item for item in items if item not in soak and item in later and item not in waits],
        "all": [item for item in items if item not in soak and item not in waits] if not named else items,
        "soak": [item for item in items if item in soak],
    }[tier]
    fast = [item for item in items if item not in soak and item not in later]
    config.stash[FAST] = frozenset(item.nodeid for item in fast)
    config.stash[ROWS] = frozenset(row for item in fast for mark in item.iter_markers("req") for row in mark.args)
    config.stash[COMPLETE] = not config.option.keyword and {Path(arg) for arg in config.args} <= {TESTS, Path("tests")}
    if len(chosen) < len(items):
        kept = set(chosen)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = chosen


def _left_out_of_fast(items: list[pytest.Item]) -> set[pytest.Item]:
    known = {item.nodeid for item in items}
    later = {item for item in items if item.get_closest_marker("slow") or _is_repetition(item, known)}
    families: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item not in later and _is_sampled(item):
            families[item.nodeid.partition("[")[0], _store_of(item)].append(item)
    for cases in families.values():
        mark = cases[0].get_closest_marker("sample")
        usual = 1 if cases[0].path.relative_to(TESTS).parts[0] in ONE_STORE else CASES
        count = min(mark.args[0] if mark else usual, len(cases))
        kept = {cases[place * len(cases) // count] for place in range(count)}
        later |= set(cases) - kept
    return later


def _is_sampled(item: pytest.Item) -> bool:
    if item.get_closest_marker("every_case"):
        return False
    return _store_of(item) != "" or item.get_closest_marker("sample") is not None


def _store_of(item: pytest.Item) -> str:
    found = _STORE.search(item.nodeid.partition("[")[2])
    return found[0] if found else ""


def _turns_of(item: pytest.Item, known: set[str]) -> int:
    """One in how many seeds runs it."""
    path, mark = item.path.relative_to(TESTS), item.get_closest_marker("turns")
    if mark is not None:
        return int(mark.args[0])
    if path.parts[0] == "bench":
        return TURNS
    repeats = path.parts[0] != "faults" and path.as_posix() not in EVERY_TIME and _is_repetition(item, known)
    return TURNS if repeats else 1


def _is_repetition(item: pytest.Item, known: set[str]) -> bool:
    name, bracket, case = item.nodeid.partition("[")
    path = item.path.relative_to(TESTS)
    if path.parts[0] not in ONE_STORE or path.as_posix() in BOTH_STORES or "postgres" not in case:
        return False
    return name + bracket + case.replace("postgres", "sqlite") in known
