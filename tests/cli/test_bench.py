"""`holdfast bench`: small runs on both stores, and the checks of their results."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from holdfast.cli.bench import TRICKLE, drained, percentile, picked_up, problems_of
from holdfast.cli.demo_workers import Reading, read
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, error_of
from tests.cli.processes import call, run
from tests.support.stores import BROKEN, put, put_one, spec, state_of, tries, work

SMALL = ("--jobs", "200", "--concurrency", "20")


@pytest.mark.slow
@pytest.mark.req("CX-15")
def test_small_run_measures_and_checks(store: Store, tmp_path: Path) -> None:
    unrelated = put_one(store, "mail.send")
    refused = call("bench", *SMALL, "--json", url=store.url, cwd=tmp_path)
    assert refused.returncode == 2
    assert json.loads(refused.stderr)["error"]["code"] == "confirmation_required"
    done = run("bench", *SMALL, "--yes", "--json", url=store.url)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ok"] is True
    assert found["tenant"].startswith("holdfast-bench-")
    assert (found["enqueue_single"]["jobs"], found["enqueue_bulk"]["jobs"], found["drain"]["jobs"]) == (20, 180, 200)
    assert found["drain"]["per_second"] > 0
    assert found["pickup"]["jobs"] == TRICKLE
    assert 0 <= found["pickup"]["p50"] <= found["pickup"]["p95"] <= found["pickup"]["p99"]
    reading = read(store, found["tenant"])
    assert (len(reading.jobs), len(reading.events)) == (found["left"]["jobs"], found["left"]["events"])
    assert len(reading.jobs) == 200 + TRICKLE
    assert f"The database keeps {200 + TRICKLE:,} jobs" in done.stderr
    assert state_of(store, unrelated) == State.QUEUED


@pytest.mark.slow
@pytest.mark.req("CX-15")
@pytest.mark.parametrize("keep", [False, True], ids=["removed", "kept"])
def test_scratch_file_is_removed_unless_kept(tmp_path: Path, keep: bool) -> None:
    options = (*SMALL, "--url", f"sqlite:///{tmp_path}/scratch.db", *(["--keep"] if keep else []))
    done = call("bench", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "each started once and succeeded" in done.stdout
    assert ("has been removed" in done.stderr) is not keep
    assert bool(list(tmp_path.iterdir())) is keep


@pytest.mark.req("DP-22")
def test_bench_needs_an_existing_database(bare: Holdfast, empty_postgres_url: str) -> None:
    assert error_of(bare("bench", "--json"))["code"] == "missing_url"
    assert error_of(bare("bench", "--json", "--url", empty_postgres_url))["code"] == "not_migrated"


@pytest.fixture
def reading(store: Store) -> tuple[list[str], Reading]:
    ids = put(store, *(spec() for _ in range(4)))
    work(store, want=4)
    return ids, read(store, "default")


@pytest.mark.req("CX-15")
def test_good_run_has_no_problems(reading: tuple[list[str], Reading]) -> None:
    ids, found = reading
    assert problems_of(ids, found) == []
    assert drained(ids, found).jobs == 4
    assert picked_up(ids, found).jobs == 4


@pytest.mark.req("CX-15")
def test_lost_doubled_and_unsettled_jobs_are_reported(store: Store, reading: tuple[list[str], Reading]) -> None:
    ids, found = reading
    lost = Reading({id: job for id, job in found.jobs.items() if id != ids[0]}, found.events)
    assert "1 jobs are not in the database" in problems_of(ids, lost)[0]
    twice = Reading(found.jobs, [*found.events, *(e for e in found.events if e.to_state is State.IN_PROGRESS)])
    assert "4 jobs did not start exactly once" in problems_of(ids, twice)[0]
    assert "1 jobs were not enqueued by this benchmark" in problems_of(ids[1:], found)[0]
    failed = put_one(store, retry=tries(1))
    work(store, BROKEN)
    assert any("have not succeeded" in problem for problem in problems_of([*ids, failed], read(store, "default")))


@pytest.mark.req("ARCH")
def test_percentiles_are_measured_values() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert percentile([3.0], 0.01) == 3.0
    assert math.isnan(percentile([], 0.5))
