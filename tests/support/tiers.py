"""Decides which tests run, and with which random seed. A pytest plugin, loaded by tests/conftest.py.

| tier | command | runs |
|---|---|---|
| fast | `make test` | all tests that are neither slow nor repetitions; the seed is fixed |
| all | `make test-all` | fast, slow, and a part of the repetitions, which differs by seed |
| rest | `.ci/run` | `all` without `fast` |
| soak | `make soak` | the tests that take minutes on purpose |

A test leaves the fast tier by the mark `slow`, or because it repeats another:

- Of the cases of a test on a store, the fast tier runs two, spread evenly, and one in the folders of `ONE_STORE`.
  `sample(n)` runs n cases, `every_case` all of them.
- In the folders of `ONE_STORE` the code under test does not depend on the store: PostgreSQL repeats SQLite. Most of
  these repetitions rotate in `all`, as do the groups of benchmarks: the seed selects a quarter of them.
- The cases of a test with the mark `turns(n)` rotate as well: each runs with one of n seeds. There are hundreds.

The other tiers have a random seed, which the run prints; `--seed N` repeats a run.
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
# Except in these tests of workers, leases, transactions and outages, where the stores differ most.
BOTH_STORES = {
    *("app/test_archives.py", "app/test_large_checkpoints.py"),
    *("app/test_lost_responses.py", "app/test_failover.py", "app/test_hanging_threads.py", "app/test_killed_worker.py"),
    *("app/test_lost_lease.py", "app/test_outage.py", "app/test_pool_size.py", "app/test_stopping.py"),
    *("app/test_store_outage.py", "app/test_tick_losses.py", "app/test_transactions_completion.py"),
    *("app/test_transactions_continue.py", "app/test_transactions_killed.py", "app/test_wakeup.py"),
    *("app/test_versions.py", "app/test_worker.py"),
    *("faults/test_01_tx_enqueue.py", "faults/test_09_zombie_every_operation.py", "faults/test_10_sweep_vs_settle.py"),
    *("faults/test_12_deadlock_mix.py", "faults/test_25_clock_jump.py", "faults/test_30_payload_fuzz.py"),
    *("faults/test_33_nested_ids.py", "faults/test_34_approval_race.py", "faults/test_39_tampering.py"),
    "faults/test_42_bulk_redrive.py",
    *("faults/test_44_durable_outages.py", "faults/test_51_bad_row.py", "faults/test_55_forged_history.py"),
    "faults/test_62_changed_code.py",
}
# These repetitions do not rotate: each `make test-all` runs them.
EVERY_TIME = {
    *("app/test_bulk.py", "app/test_enqueue.py", "app/test_events.py", "app/test_limits.py", "app/test_retention.py"),
    *("app/test_schedules.py", "app/test_steps.py", "app/test_subscriptions.py", "app/test_tenants.py"),
    *("app/test_tick.py", "app/test_workflows.py"),
}

CASES = 2
TURNS = 4
FIXED_SEED = 20_261_116

SEED = pytest.StashKey[int]()
FAST = pytest.StashKey[frozenset[str]]()
ROWS = pytest.StashKey[frozenset[str]]()
COMPLETE = pytest.StashKey[bool]()

_STORE = re.compile(r"sqlite|postgres")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=("fast", "rest", "all", "soak"), default="fast", help="which tests to run")
    parser.addoption("--one-in", type=int, default=1, help="run one in so many of the chosen tests, by the seed")
    parser.addoption("--seed", type=int, help="seed of the tests that choose at random (default: fixed in --tier fast)")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    seed = config.getoption("--seed")
    if seed is None and config.getoption("--tier") == "fast" and config.getoption("--one-in") == 1:
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
    """The source of all random choices of a test. The run prints its seed; `--seed N` repeats it."""
    return random.Random(pytestconfig.stash[SEED])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier, later = config.getoption("--tier"), _left_out_of_fast(items)
    known, seed = {item.nodeid for item in items}, config.stash[SEED]
    waits = {item for item in later if (zlib.crc32(item.nodeid.encode()) + seed) % _turns_of(item, known)}
    soak = {item for item in items if item.get_closest_marker("soak")}
    named = any(arg.partition("::")[1] for arg in config.args)  # a test named on the command line always runs
    chosen = {
        "fast": [item for item in items if item not in soak and item not in later] if not named else items,
        "rest": [item for item in items if item not in soak and item in later and item not in waits],
        "all": [item for item in items if item not in soak and item not in waits] if not named else items,
        "soak": [item for item in items if item in soak],
    }[tier]
    if (one_in := config.getoption("--one-in")) > 1:
        chosen = [
            item
            for item in chosen
            # Plans differ between servers: all of them.
            if item.path.parent.name == "plans" or not (zlib.crc32(item.nodeid.encode()) + seed) % one_in
        ]
    fast = [item for item in items if item not in soak and item not in later]
    config.stash[FAST] = frozenset(item.nodeid for item in fast)
    config.stash[ROWS] = frozenset(row for item in fast for mark in item.iter_markers("req") for row in mark.args)
    config.stash[COMPLETE] = not config.option.keyword and {Path(arg) for arg in config.args} <= {TESTS, Path("tests")}
    if len(chosen) < len(items):
        selected = set(chosen)
        config.hook.pytest_deselected(items=[item for item in items if item not in selected])
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
        later |= set(cases) - {cases[index * len(cases) // count] for index in range(count)}
    return later


def _is_sampled(item: pytest.Item) -> bool:
    if item.get_closest_marker("every_case"):
        return False
    return _store_of(item) != "" or item.get_closest_marker("sample") is not None


def _store_of(item: pytest.Item) -> str:
    match = _STORE.search(item.nodeid.partition("[")[2])
    return match[0] if match else ""


def _turns_of(item: pytest.Item, known: set[str]) -> int:
    """The number of seeds of which one runs the test."""
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
