"""SQLite with a million finished jobs: no statement of an operation scans a big table or takes many steps.

The plan is SQLite's prediction; the steps of its virtual machine are measured, including triggers, which the plan
omits. Walking a million rows takes millions of steps.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.states import State
from holdfast.features.health.model import CAP
from holdfast.features.sqlite import SqliteStore
from holdfast.stores.flow import Flow, Rows, Statement, drive_steps
from tests.plans import flows
from tests.plans.large_database import LARGEST
from tests.support.sqlite_names import PREFIX

pytestmark = [pytest.mark.req("SC-2", "CX-14", "DP-8", "DP-9"), pytest.mark.slow, pytest.mark.timeout(600)]

STORE = SqliteStore("sqlite:///:memory:")
# These may be scanned: lists passed as parameters, the page itself, the single row of the clock.
SMALL = re.compile(r"SCAN (json_each|page|a|o|clock|present|w|c|CONSTANT ROW|\d+ CONSTANT ROWS)\b")
TICK = 50


@dataclass(frozen=True)
class Run:
    answer: Any
    plan: tuple[str, ...]
    steps: int

    @property
    def scans(self) -> list[str]:
        return [line for line in self.plan if "SCAN" in line and not SMALL.search(line)]

    def uses(self, index: str) -> bool:
        return any(f"INDEX {index}" in line or f"SEARCH {index}" in line for line in self.plan)


@pytest.fixture
def connection(large_file: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(large_file, isolation_level=None)) as opened:
        yield opened


def run(connection: sqlite3.Connection, flow: Flow[Any]) -> Run:
    """Run the flow and roll it back."""
    plan: list[str] = []
    ticks = 0

    def tick() -> int:
        nonlocal ticks
        ticks += 1
        return 0

    def execute(statement: Statement) -> Rows:
        params: Any = statement.params[0] if statement.many else statement.params  # type: ignore[index]
        rows = connection.execute(f"explain query plan {statement.sql}", params)
        plan.extend(row[3].replace(PREFIX, "") for row in rows)
        connection.set_progress_handler(tick, TICK)
        try:
            if statement.many:
                connection.executemany(statement.sql, statement.params)
                return []
            return connection.execute(statement.sql, params).fetchall()
        finally:
            connection.set_progress_handler(None, 0)

    connection.execute("begin")
    try:
        answer = drive_steps(flow.start(), execute)
    finally:
        connection.execute("rollback")
    return Run(answer, tuple(plan), ticks * TICK)


def test_tables_are_large(connection: sqlite3.Connection) -> None:
    counted = connection.execute("select count(*) from holdfast_job_state where finished_at is not null")
    assert counted.fetchone() == (1_000_000,)
    triggers = connection.execute("select count(*) from sqlite_schema where type = 'trigger'").fetchone()[0]
    assert triggers > 10, "the triggers are installed again"


# Quarantined jobs: nearly always none, and read once per statement. Live leases: one per worker, all compared with the
# clock, which may have been set back. Running operations: as many as operators started, compared likewise.
ALLOWED = {"SCAN q", "SCAN lease USING INDEX lease_live", "SCAN operation USING INDEX operation_running"}


@pytest.mark.parametrize("name", flows.claims(STORE))
def test_claim_reads_the_index_in_queue_order(connection: sqlite3.Connection, name: str) -> None:
    """Beside a million finished jobs, and a hundred thousand that wait for events and approvals."""
    seen = run(connection, flows.claims(STORE)[name])
    assert len(seen.answer) == {"claim one": 1, "claim of a kind": 10}.get(name, 100)
    assert seen.uses("claimable")
    assert set(seen.scans) <= ALLOWED
    assert not any("TEMP B-TREE" in line for line in seen.plan), seen.plan
    assert seen.steps < 2_000 + 700 * len(seen.answer)


@pytest.mark.parametrize("name", flows.writes(STORE))
def test_writes_find_their_jobs_by_id(connection: sqlite3.Connection, name: str) -> None:
    seen = run(connection, flows.writes(STORE)[name])
    assert seen.answer is not False
    assert seen.scans == []
    assert seen.steps < 20_000


@pytest.mark.req("HF-6", "CX-5", "CX-7")
@pytest.mark.parametrize("name", flows.waits(STORE))
def test_waits_and_approvals_read_only_their_rows(connection: sqlite3.Connection, name: str) -> None:
    """Beside fifty thousand jobs that wait for an event and as many that wait for approval."""
    seen = run(connection, flows.waits(STORE)[name][1])
    assert seen.scans == []
    assert seen.steps < 20_000


@pytest.mark.req("DP-15")
@pytest.mark.parametrize("name", flows.dead_letters(STORE))
def test_page_of_dead_letters_is_read_by_index(connection: sqlite3.Connection, name: str) -> None:
    index, flow = flows.dead_letters(STORE)[name]
    seen = run(connection, flow)
    assert len(seen.answer) == 50
    assert seen.uses(index), seen.plan
    assert seen.scans == []
    assert seen.steps < 20_000


@pytest.mark.req("DP-15")
def test_batch_of_a_bulk_operation_is_found_by_index(connection: sqlite3.Connection) -> None:
    for wanted in ({"state": "dead_letter"}, {"state": "dead_letter", "fingerprint": LARGEST}):
        seen = run(connection, flows.batch(STORE, wanted))
        assert seen.answer == 100
        assert set(seen.scans) <= ALLOWED
        assert seen.steps < 5_000 * 20 + 100 * 1_500  # five thousand jobs are counted once


@pytest.mark.req("CX-5")
@pytest.mark.parametrize("name", flows.inbox(STORE))
def test_inbox_reads_one_page(connection: sqlite3.Connection, name: str) -> None:
    index, flow = flows.inbox(STORE)[name]
    seen = run(connection, flow)
    # For open approvals both indexes give the same page in the same order.
    assert seen.uses(index) or (index == "approval_inbox" and seen.uses("approval_by_state")), seen.plan
    # The page itself, the page with its running total of bytes, and the groups of the votes of one approval.
    assert all(re.fullmatch(r"SCAN (g|same|\(subquery-\d+\))", line) for line in seen.scans), seen.scans
    # Finding the page needs no sort. Then the page is sorted once more, and the votes of each approval are grouped.
    assert not any("TEMP B-TREE" in line for line in seen.plan[: seen.plan.index("SCAN g")]), seen.plan
    assert seen.steps < 20_000


@pytest.mark.req("HF-2")
@pytest.mark.parametrize("name", flows.reasons(STORE))
def test_why_reads_indexes_only(connection: sqlite3.Connection, name: str) -> None:
    seen = run(connection, flows.reasons(STORE)[name])
    tiny = {"SCAN subscription USING INDEX subscription_named", "SCAN l", "SCAN r USING INDEX reservation_open"}
    # Limits and open reservations are few.
    # The other scans walk a chain so far, and the jobs ahead, a thousand at most.
    walks = {"SCAN b", "SCAN f", "SCAN t", "SCAN back", "SCAN forth", "SCAN (subquery-2)"}
    assert set(seen.scans) <= walks | tiny
    assert seen.steps < 60_000


@pytest.mark.req("SC-3")
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", flows.moves(STORE))
def test_move_reads_only_neighbouring_jobs(connection: sqlite3.Connection, name: str, full: bool) -> None:
    with flows.neighbours(connection, "?", full):
        seen = run(connection, flows.moves(STORE)[name])
    assert not seen.answer.refused
    assert seen.scans == []
    assert not any("TEMP B-TREE" in line for line in seen.plan), seen.plan
    assert seen.steps < 10_000


@pytest.mark.parametrize("name", flows.maintenance(STORE))
def test_maintenance_reads_only_due_rows(connection: sqlite3.Connection, name: str) -> None:
    index, flow = flows.maintenance(STORE)[name]
    seen = run(connection, flow)
    assert seen.uses(index)
    assert set(seen.scans) <= ALLOWED
    # An expiring approval writes several rows: approval, step and job.
    assert seen.steps < (200_000 if name == "attend" else 100_000)


@pytest.mark.parametrize("name", flows.lists(STORE))
def test_list_reads_one_page(connection: sqlite3.Connection, name: str) -> None:
    index, flow = flows.lists(STORE)[name]
    seen = run(connection, flow)
    if index in ("job_tag", "idempotency"):  # the primary key
        assert any(line.startswith("SEARCH p USING PRIMARY KEY") for line in seen.plan), seen.plan
    else:
        assert any(f"SEARCH p USING COVERING INDEX {index}" in line for line in seen.plan) or any(
            f"SEARCH p USING INDEX {index}" in line for line in seen.plan
        ), seen.plan
    if name in flows.OF_EVERY_STATE:  # a page per state, and the held jobs
        assert set(seen.scans) <= {f"SCAN {name}" for name in (*State, "held", "u")} | {"SCAN p USING INDEX held"}
        assert seen.steps < 100_000
        return
    assert set(seen.scans) <= ({"SCAN a0", "SCAN a1", "SCAN u"} if name in flows.ALTERNATIVES else set())
    # The final page is sorted once more. Finding it needs no sort, but of a page per alternative or the jobs of a key.
    sorts = 3 if name in flows.ALTERNATIVES else 2 if index == "idempotency" else 1
    assert sum("TEMP B-TREE" in line for line in seen.plan) <= sorts, seen.plan
    assert seen.steps < 20_000


@pytest.mark.parametrize("name", flows.reads(STORE))
def test_single_job_is_found_by_id(connection: sqlite3.Connection, name: str) -> None:
    _, flow = flows.reads(STORE)[name]
    seen = run(connection, flow)
    assert seen.scans == []
    assert seen.steps < 1_000


@pytest.mark.req("DP-12")
def test_consumer_reads_from_its_cursor(connection: sqlite3.Connection) -> None:
    seen = run(connection, STORE.ledger.read("900000", 100, "*"))
    assert [event.seq for event in seen.answer] == list(range(900_001, 900_101))
    assert seen.scans == []
    assert not any("TEMP B-TREE" in line for line in seen.plan), seen.plan
    assert seen.steps < 5_000


def test_health_reads_no_finished_jobs(connection: sqlite3.Connection) -> None:
    seen = run(connection, STORE.health.get("a"))
    assert (seen.answer.backlog, seen.answer.capped) == (CAP, True)
    # The index of held jobs has as many entries as jobs run; retention has two passes (p) per policy. The other scans
    # read results up to a limit, among them the running jobs of each kind, numbered (subquery-4).
    subqueries = {f"SCAN {name}" for name in (*"abdhkpqrtx", "(subquery-4)")}
    assert set(seen.scans) <= subqueries | {"SCAN s USING INDEX held"}
    assert seen.steps < 1_500_000
    seen = run(connection, STORE.health.get("*"))
    few = {"SCAN s USING INDEX claimable", "SCAN s USING INDEX held", "SCAN g USING INDEX approval_inbox", "SCAN s"}
    assert set(seen.scans) <= subqueries | few | {"SCAN g USING COVERING INDEX approval_inbox"}
    assert seen.steps < 1_500_000


@pytest.mark.req("JF-15")
def test_statistics_read_no_finished_jobs(connection: sqlite3.Connection) -> None:
    for tenant in ("a", "*"):
        seen = run(connection, STORE.health.statistics(tenant))
        assert seen.answer.capped
        assert not [
            line for line in seen.scans if line in ("SCAN s", "SCAN j", "SCAN e", "SCAN s USING INDEX by_state")
        ]
        assert seen.steps < 1_500_000, seen.steps


@pytest.mark.req("JF-16")
@pytest.mark.parametrize("tenant", ["a", "*"])
def test_dashboard_pages_take_a_bounded_number_of_steps(connection: sqlite3.Connection, tenant: str) -> None:
    for name, flow in flows.pages(STORE, tenant).items():
        seen = run(connection, flow)
        assert seen.steps < 1_500_000, (name, seen.steps, seen.plan)
