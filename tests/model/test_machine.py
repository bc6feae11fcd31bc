"""Applies the same random commands to a SQLite file, a PostgreSQL database and the model, and compares them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.engine.states import EventType
from tests.model.conftest import MakeStores
from tests.model.machine import StoresMachine

pytestmark = pytest.mark.req(
    "CX-1", "CX-15", "SC-2", "SC-4", "SC-19", "DP-5", "DP-7", "HF-6", "CX-7", "SC-10", "SC-16", "DP-14", "HF-23"
)

QUICK = settings(
    max_examples=20,
    derandomize=True,  # the same examples in every run; the long form draws new ones each time
    stateful_step_count=35,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, derandomize=False, max_examples=1_000, stateful_step_count=60)

# No store operation that the machine uses records this event type.
NOT_COVERED = {EventType.CLEAN}


def run_machine(make_stores: MakeStores, how: settings) -> Counter[str]:
    """Run the machine, and return how often each event type occurred."""
    seen: Counter[str] = Counter()

    class Machine(StoresMachine):
        def __init__(self) -> None:
            super().__init__(make_stores)

        def teardown(self) -> None:
            seen.update(self.comparison.types)
            super().teardown()

    run_state_machine_as_test(Machine, settings=how)
    return seen


# Hypothesis shrinks a failing example for up to five minutes before it reports it.
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stores_and_model_agree(make_stores: MakeStores) -> None:
    assert {"enqueue", "take", "succeed"} <= run_machine(make_stores, QUICK).keys()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_stores_and_model_agree_for_long(make_stores: MakeStores) -> None:
    assert set(EventType) - NOT_COVERED <= run_machine(make_stores, LONG).keys()
