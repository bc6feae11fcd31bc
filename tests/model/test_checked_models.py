"""The TLA+ models in `spec/`, and the judge of histories that every contract test calls."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from contextlib import closing

import pytest

from holdfast.engine.job import Event
from holdfast.engine.states import State
from holdfast.features.assembly import open_store
from tests.support.ledger import all_jobs, differences, read_events
from tests.support.stores import put_one, work
from tools.models import EXPECTED, holds

pytestmark = pytest.mark.req("HF-23")

has_java = pytest.mark.skipif(shutil.which("java") is None, reason="TLC needs Java")


@has_java
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("module", EXPECTED)
def test_model_holds_and_a_broken_variant_is_refuted(module: str) -> None:
    """`make spec` checks every variant."""
    broken = next(rule for rule, expected in EXPECTED[module].items() if not expected)
    assert holds(module, "ours")
    assert not holds(module, broken)


Wrong = Callable[[list[Event]], list[Event]]
WRONG: dict[str, Wrong] = {
    "an event is missing": lambda events: events[:1] + events[2:],
    "an event is there twice": lambda events: [*events, events[-1]],
    "events are in another order": lambda events: [events[0], *reversed(events[1:])],
    "the end is missing": lambda events: events[:-1],
    "an attempt has another number": lambda events: [
        dataclasses.replace(event, attempt=7) if event.to_state == State.IN_PROGRESS else event for event in events
    ],
    "an event is of another tenant": lambda events: [*events[:-1], dataclasses.replace(events[-1], tenant="other")],
    "an event has no actor": lambda events: [*events[:-1], dataclasses.replace(events[-1], actor=" ")],
}


@pytest.mark.parametrize("wrong", WRONG)
def test_judge_finds_what_is_wrong_in_a_history(sqlite_url: str, wrong: str) -> None:
    with closing(open_store(sqlite_url)) as store:
        put_one(store)
        work(store)
        (job,) = all_jobs(store)
        events = read_events(store)
    assert list(differences(job, events)) == []
    assert list(differences(job, WRONG[wrong](events)))
