"""Jobs inserted by hand. SQLite has a short trigger for plain ones and a long one for all others: each fact of a job
must reach its state, and its ledger must begin with one event, whichever of the two runs."""

from __future__ import annotations

import pytest

from holdfast.features.assembly import Store
from tests.support.direct_sql import ByHand

LATER = {True: "4102444800000000", False: "timestamptz '2100-01-01 00:00:00Z'"}


@pytest.mark.req("CX-1")
@pytest.mark.parametrize(
    ("column", "value", "copied"),
    [
        ("priority", "7", "priority"),
        ("run_at", "later", "due_at"),
        ("deadline_at", "later", "deadline_at"),
        ("agent", "'ada'", "agent"),
        ("executor", "'gpu'", "executor"),
        ("max_attempts", "3", "max_attempts"),
    ],
)
def test_every_fact_of_a_hand_written_job_reaches_its_state(
    store: Store, by_hand: ByHand, column: str, value: str, copied: str
) -> None:
    text = LATER[store.embedded] if value == "later" else value
    by_hand.execute(f"insert into job (tenant, kind, {column}) values ('default', 'k', {text})")
    assert by_hand.execute(f"select {copied} = {text}, state from job_state") == [(True, "queued")]
    assert by_hand.execute("select type, to_state from event") == [("enqueue", "queued")]


@pytest.mark.req("CX-1")
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("tags", "'[1]'"),
        ("backoff", "'[]'"),
        ("created_at", "253402300800000000"),
        ("run_at", "253402300800000000"),
        ("payload", f"'{'[' * 101}{']' * 101}'"),
    ],
)
def test_hand_written_job_that_no_program_could_read_is_refused(
    store: Store, by_hand: ByHand, column: str, value: str
) -> None:
    if not store.embedded:
        pytest.skip("the types of the columns refuse them")
    assert by_hand.refusal(f"insert into job (tenant, kind, {column}) values ('default', 'k', {value})") is not None
    assert by_hand.execute("select count(*) from job") == [(0,)]
