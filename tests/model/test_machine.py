"""The same commands on a SQLite file, a PostgreSQL database and the pure model: all answer and look alike."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.engine.states import EventType
from tests.model.conftest import Make
from tests.model.machine import StoresMachine

pytestmark = pytest.mark.req(
    "CX-1", "CX-15", "SC-2", "SC-4", "SC-19", "DP-5", "DP-7", "HF-6", "CX-7", "SC-10", "SC-16", "DP-14"
)

QUICK = settings(
    max_examples=20,
    derandomize=True,  # the same games in every run; the long form plays others each time
    stateful_step_count=35,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, derandomize=False, max_examples=1_000, stateful_step_count=60)

# No operation of the stores takes this step yet.
ELSEWHERE = {EventType.CLEAN}


def play(make: Make, how: settings) -> Counter[str]:
    """Answers how often each step of the table was seen."""
    seen: Counter[str] = Counter()

    class Machine(StoresMachine):
        def __init__(self) -> None:
            super().__init__(make)

        def teardown(self) -> None:
            seen.update(self.comparison.types)
            super().teardown()

    run_state_machine_as_test(Machine, settings=how)
    return seen


# A failing example is made smaller for up to five minutes before it is shown.
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stores_and_model_agree(make: Make) -> None:
    assert {"enqueue", "take", "succeed"} <= play(make, QUICK).keys()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_stores_and_model_agree_for_long(make: Make) -> None:
    assert set(EventType) - ELSEWHERE <= play(make, LONG).keys()
