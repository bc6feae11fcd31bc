"""The same commands on a SQLite file, a PostgreSQL database and the pure model: all answer and look alike."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.domain.transitions import Verb
from tests.model.machine import StoresMachine
from tests.model.player import Player
from tests.support.databases import TemplateDatabases

pytestmark = pytest.mark.req("CX-1", "CX-15", "SC-2", "SC-4", "SC-19", "DP-5", "DP-7")

QUICK = settings(
    max_examples=35,
    stateful_step_count=35,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=1_000, stateful_step_count=60)

# No verb of the stores takes these steps yet.
ELSEWHERE = {Verb.ASK, Verb.APPROVE, Verb.DENY, Verb.CLEAN}


@pytest.fixture
def make(tmp_path: Path, postgres_databases: TemplateDatabases) -> Callable[[ExitStack], dict[str, Player]]:
    numbers = itertools.count()

    def fresh(closing: ExitStack) -> dict[str, Player]:
        embedded = Player(f"sqlite:///{tmp_path}/{next(numbers)}.db")
        closing.callback(lambda: embedded.store.close())
        embedded.store.migrate()
        served = Player(closing.enter_context(postgres_databases.fresh()))
        closing.callback(lambda: served.store.close())
        return {"sqlite": embedded, "postgres": served}

    return fresh


def play(make: Callable[[ExitStack], dict[str, Player]], how: settings) -> Counter[str]:
    seen: Counter[str] = Counter()

    class Machine(StoresMachine):
        def __init__(self) -> None:
            super().__init__(make)

        def teardown(self) -> None:
            seen.update(self.comparison.verbs)
            super().teardown()

    run_state_machine_as_test(Machine, settings=how)
    return seen


# A failing example is made smaller for up to five minutes before it is shown.
@pytest.mark.timeout(600)
def test_stores_and_model_agree(make: Callable[[ExitStack], dict[str, Player]]) -> None:
    seen = play(make, QUICK)
    assert {"enqueue", "take", "succeed"} <= seen.keys()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_stores_and_model_agree_for_long(make: Callable[[ExitStack], dict[str, Player]]) -> None:
    seen = play(make, LONG)
    assert set(Verb) - ELSEWHERE <= seen.keys()
