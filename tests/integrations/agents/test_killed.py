"""A run that is killed at any point ends the same and repeats no recorded call."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.agents.killed_runs import kill_everywhere
from tests.support.forkserver import start_call

pytestmark = pytest.mark.req("HF-9")

COST = 219.0  # tokens, as the function model counts them
ONCE = Counter(["model 1", "lookup 7", "lookup 8", "model 3", "refund 7 20", "model 5"])
# The call that a step records when it really runs.
NOTES = {"lookup call-a": "lookup 7", "lookup call-b": "lookup 8", "refund call-c": "refund 7 20"}


def lives(url: str, folder: Path, numbers: Iterable[int], framework: str = "pydantic") -> list[dict[str, Any]]:
    process = start_call(kill_everywhere, url, str(folder), numbers, framework)
    try:
        process.join(600)
        assert process.exitcode == 0
    finally:
        process.kill()
    return [json.loads(line) for line in (folder / "lives").read_text().splitlines()]


def check(life: dict[str, Any]) -> None:
    assert (life["state"], life["result"]) == ("succeeded", "refunded 20"), life
    repeated = Counter(life["calls"]) - ONCE
    assert set(life["calls"]) == set(ONCE), life
    assert life["crashes"] == (life["killed"] is not None), life
    # Only a call that was made and not yet recorded when the worker was killed may be made again, once.
    assert repeated <= Counter(unrecorded(life["points"])), life


def unrecorded(points: list[str]) -> list[str]:
    made, requests = [], iter(("model 1", "model 3", "model 5"))
    for point in points:
        when, name = point.split(" ", 1)
        if when == "after":
            made.append(NOTES[name] if name in NOTES else next(requests))
        elif when == "saved":
            made.remove(NOTES[name] if name in NOTES else made[-1])
    return made


@pytest.mark.slow
def test_run_killed_between_parallel_tools_repeats_no_recorded_call(sqlite_url: str, tmp_path: Path) -> None:
    (life,) = lives(sqlite_url, tmp_path, [9])
    check(life)
    assert life["killed"].startswith("saved lookup")
    assert life["cost"] == COST  # the calls that the killed worker recorded are charged once


@pytest.mark.slow
@pytest.mark.timeout(900)  # twenty-five lives of several processes each
@pytest.mark.turns(4)  # one framework on one store with each seed
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.parametrize("framework", ["pydantic", "openai"])
def test_run_killed_at_every_step_boundary_ends_the_same(
    request: pytest.FixtureRequest, tmp_path: Path, framework: str, store: str
) -> None:
    every = lives(request.getfixturevalue(f"{store}_url"), tmp_path, range(1, 60), framework)
    for life in every:
        check(life)
    assert every[-1]["killed"] is None
    assert {life["cost"] for life in every} == {COST}
    points = Counter(life["killed"].split()[0] for life in every[:-1])
    assert points["before"] >= 6
    assert points["after"] == points["saved"] == 6
