"""The fast tier alone proves every row that is done and has a case of every fault (tests/support/tiers.py)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import conformance
from tests.support.tiers import COMPLETE, FAST, ROWS

pytestmark = pytest.mark.req("ARCH")


@pytest.fixture
def fast(pytestconfig: pytest.Config) -> frozenset[str]:
    if not pytestconfig.stash[COMPLETE]:
        pytest.skip("only a part of the tests was collected")
    return pytestconfig.stash[FAST]


def test_every_done_row_has_a_test_in_the_fast_tier(fast: frozenset[str], pytestconfig: pytest.Config) -> None:
    done = {row.id for row in conformance.read_rows(conformance.PAGE.read_text("utf-8")) if row.status == "done"}
    proven: frozenset[str] = pytestconfig.stash[ROWS]
    assert done - proven == set()


def test_every_fault_has_a_case_in_the_fast_tier(fast: frozenset[str]) -> None:
    faults = {path.name for path in (Path(__file__).parents[1] / "faults").glob("test_[0-9]*.py")}
    covered = {found[1] for name in fast if (found := re.match(r"tests/faults/(test_\d+\w*\.py)::", name))}
    assert faults - covered == set()


def test_catalogue_of_faults_names_every_test_and_nothing_else() -> None:
    tests = Path(__file__).parents[1]
    named = re.findall(r"`(\w+/test_\w+\.py)`", (tests / "faults" / "README.md").read_text(encoding="utf-8"))
    assert sorted(name for name in named if not (tests / name).is_file()) == []
    faults = {f"faults/{path.name}" for path in (tests / "faults").glob("test_[0-9]*.py")}
    assert sorted(faults - set(named)) == []
