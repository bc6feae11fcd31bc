"""Invariants of job_state on PostgreSQL: the fast check that nearly every row takes equals the rules."""

from __future__ import annotations

from contextlib import closing
from itertools import product
from typing import Any

import psycopg
import pytest

from holdfast import App
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
    state: State, finished: bool, explained: bool, due: bool, approval: bool, held: bool, settled: bool,
    retries: int, max_attempts: int, crashes: int, max_crashes: int,
) -> str | None:  # fmt: skip
    """The first broken rule, checked one by one."""
    rules = {
        "finished_iff_terminal": finished == (state in ENDED),
        "lease_iff_held": held == (state in HELD),
        "error_when_failed": explained or state not in (State.FAILED, State.DEAD_LETTER),
        "due_when_retry_waiting": due or state is not State.RETRY_WAITING,
        "approval_when_waiting": approval or state is not State.WAITING_FOR_APPROVAL,
        "unsettled_while_held": not (held and settled),
        "retries_within_limit": 0 <= retries < max_attempts <= 101,
        "crashes_counted": crashes >= 0 and 0 <= max_crashes <= 100,
    }
    return next((name for name, kept in rules.items() if not kept), None)


@pytest.mark.req("CX-1", "CX-13")
def test_fast_check_equals_the_rules_for_every_combination(postgres_url: str) -> None:
    rows: list[tuple[Any, ...]] = [
        (state, *flags, *counts) for state, flags, counts in product(State, product((True, False), repeat=6), COUNTS)
    ]
    with psycopg.connect(postgres_url) as connection:
        columns = [
            [str(value) if isinstance(value, State) else value for value in column]
            for column in zip(*rows, strict=True)
        ]
        results = [name for (name,) in connection.execute(CALL, columns).fetchall()]
    assert len(results) == len(rows)
    wrong = [(row, result) for row, result in zip(rows, results, strict=True) if result != broken(*row)]
    assert not wrong, wrong[:5]


# With `replica`, only triggers marked as ALWAYS fire.
BROKEN = {
    "finished_iff_terminal": "state = 'in_progress', finished_at = now()",
    "error_when_failed": "state = 'failed', finished_at = now(), settled_by = lease, lease = null, error_code = null",
    "due_when_retry_waiting": "state = 'retry_waiting', settled_by = lease, lease = null, due_at = null",
    "approval_when_waiting": "state = 'waiting_for_approval', settled_by = lease, lease = null, approval_id = null",
    "lease_iff_held": "state = 'succeeded', finished_at = now(), settled_by = lease",
    "retries_within_limit": "retries = 101",
    "crashes_counted": "crashes = -1",
}


@pytest.mark.req("CX-1", "CX-4", "CX-13")
@pytest.mark.parametrize("role", ["origin", "replica"])
def test_rules_hold_without_the_ordinary_triggers(postgres_url: str, role: str) -> None:
    with closing(App(postgres_url)) as app, psycopg.connect(postgres_url, autocommit=True) as connection:
        job = app.enqueue("kind", {}).id
        with closing(app.repository()) as repository:
            assert len(repository.claim()) == 1
            _try_to_break(connection, job, role)
        assert [event.type for event in app.jobs.history(job)][-1] == "cancel"


def _try_to_break(connection: psycopg.Connection[Any], job: str, role: str) -> None:
    connection.execute("set search_path = holdfast")
    connection.execute(f"set session_replication_role = {role}".encode())
    refused = {}
    for rule, change in BROKEN.items():
        with pytest.raises(psycopg.errors.CheckViolation) as refusal:
            connection.execute(f"update job_state set {change} where id = %s".encode(), [job])
        refused[rule] = refusal.value.diag.constraint_name
    assert refused == {rule: rule for rule in BROKEN}
    with pytest.raises(psycopg.Error, match="illegal transition in_progress -> cleaned"):
        connection.execute(
            "update job_state set state = 'cleaned', finished_at = now(), lease = null where id = %s", [job]
        )
    connection.execute(
        "update job_state set state = 'cancelled', finished_at = now(), lease = null where id = %s", [job]
    )
