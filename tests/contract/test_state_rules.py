"""What a row of job_state may be, on PostgreSQL: the short way that nearly every row takes says what the rules say."""

from __future__ import annotations

from itertools import product
from typing import Any

import psycopg
import pytest

from holdfast.engine.states import State

ENDED = {State.SUCCEEDED, State.FAILED, State.DEAD_LETTER, State.CANCELLED, State.CLEANED}
HELD = {State.LEASED, State.IN_PROGRESS}
COUNTS = (
    (0, 4, 0, 3),
    (4, 4, 5, 3),
    (5, 4, 0, 3),
    (-1, 4, 0, 3),
    (0, 101, 0, 3),
    (0, 4, -1, 3),
    (0, 4, 0, 101),
    (0, 4, 0, -1),
)

CALL = """select holdfast.broken_state(s::holdfast.state, f, e, d, g, h, t,
                                        r::smallint, m::smallint, c::smallint, l::smallint)
  from unnest(%s::text[], %s::bool[], %s::bool[], %s::bool[], %s::bool[], %s::bool[], %s::bool[],
              %s::int[], %s::int[], %s::int[], %s::int[])
       with ordinality as u(s, f, e, d, g, h, t, r, m, c, l, n) order by n"""


def broken(
    state: State, finished: bool, explained: bool, due: bool, asked: bool, held: bool, settled: bool,
    retries: int, max_attempts: int, crashes: int, max_crashes: int,
) -> str | None:  # fmt: skip
    """The rules one by one, the first that is broken."""
    rules = {
        "finished_iff_terminal": finished == (state in ENDED),
        "lease_iff_held": held == (state in HELD),
        "error_when_failed": explained or state not in (State.FAILED, State.DEAD_LETTER),
        "due_when_retry_waiting": due or state is not State.RETRY_WAITING,
        "approval_when_waiting": asked or state is not State.WAITING_FOR_APPROVAL,
        "unsettled_while_held": not (held and settled),
        "retries_within_limit": 0 <= retries < max_attempts <= 101,
        "crashes_counted": crashes >= 0 and 0 <= max_crashes <= 100,
    }
    return next((name for name, kept in rules.items() if not kept), None)


@pytest.mark.req("CX-1", "CX-13")
def test_every_combination_is_judged_by_the_rules(postgres_url: str) -> None:
    rows: list[tuple[Any, ...]] = [
        (state, *flags, *counts) for state, flags, counts in product(State, product((True, False), repeat=6), COUNTS)
    ]
    with psycopg.connect(postgres_url) as connection:
        columns = [
            [str(value) if isinstance(value, State) else value for value in column]
            for column in zip(*rows, strict=True)
        ]
        found = [name for (name,) in connection.execute(CALL, columns).fetchall()]
    assert len(found) == len(rows)
    wrong = [(row, said) for row, said in zip(rows, found, strict=True) if said != broken(*row)]
    assert not wrong, wrong[:5]
