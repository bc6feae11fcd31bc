"""PostgreSQL with a million finished jobs: every operation finds its rows by an index and reads little else.

As superuser and as the schema's plain owner under row-level security (where a condition with a leaky operator cannot
use an index); with custom plans, and with the generic plans that a prepared statement ends up with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast.engine.states import State
from holdfast.features.health.model import CAP
from holdfast.features.postgres import PostgresStore
from holdfast.stores.flow import Flow, Statement, Steps
from holdfast.stores.postgres.store import prepare_connection
from tests.plans import flows
from tests.plans.conftest import Large
from tests.plans.large_database import ASKING, HELD, LARGEST, LATE
from tests.plans.query_plans import explained, measured

pytestmark = [pytest.mark.req("SC-2", "CX-14", "DP-8", "DP-9"), pytest.mark.slow, pytest.mark.timeout(600)]

Connection = psycopg.Connection[Any]
STORE = PostgresStore("postgresql://nobody@localhost/none")
PAGE = 50


@pytest.fixture(params=["owner", "superuser"])
def role(request: pytest.FixtureRequest) -> str:
    result: str = request.param
    return result


@pytest.fixture(params=["auto", "force_generic_plan"])
def connection(large: Large, role: str, request: pytest.FixtureRequest) -> Iterator[Connection]:
    with psycopg.connect(large.owner if role == "owner" else large.superuser, autocommit=True) as opened:
        prepare_connection(opened)
        opened.execute("select set_config('plan_cache_mode', %s, false)", (request.param,))
        yield opened


def test_tables_are_large(connection: Connection) -> None:
    """The roles are as expected, too; otherwise the other tests prove nothing."""
    with connection.transaction():
        connection.execute("select set_config('holdfast.tenant', '*', true)")
        counted = connection.execute("select count(*) from holdfast.job_state where finished_at is not null")
        assert counted.fetchone() == (1_000_000,)
    hidden = connection.execute("select count(*) from (select from holdfast.job_state limit 1) s").fetchone()
    bound = not connection.execute("select rolsuper from pg_roles where rolname = current_user").fetchone()[0]  # type: ignore[index]
    assert hidden == ((0,) if bound else (1,))


def test_background_reads_of_the_server_are_not_counted(connection: Connection, large: Large) -> None:
    """The server summarizes new parts of the ledger at any time, also in the middle of a flow."""

    def steps() -> Steps[None]:
        yield Statement("select 1")
        with psycopg.connect(large.superuser, autocommit=True) as other:
            other.execute("select brin_desummarize_range('holdfast.event_rest_xid_idx', 0)")
            assert other.execute("select brin_summarize_range('holdfast.event_rest_xid_idx', 0)").fetchone() == (1,)
            other.execute("select pg_stat_force_next_flush()")
        yield Statement("select count(actor) from holdfast.event")  # a parallel plan

    seen = measured(connection, Flow(steps))
    assert (seen.scanned, seen.by_index) == ({"event": ASKING}, {})


@pytest.mark.parametrize("name", flows.claims(STORE))
def test_claim_reads_the_index_in_queue_order(connection: Connection, name: str) -> None:
    """Beside a million finished jobs, and a hundred thousand that wait for events and approvals."""
    seen = measured(connection, flows.claims(STORE)[name])
    claimed = len(seen.answer)
    assert claimed == {"claim one": 1, "claim of a kind": 10}.get(name, 100)
    assert seen.scanned == {}
    # At most as many entries are read as jobs are claimed (or skipped, with a filter by kind): the index gives the
    # order,
    # and nothing is sorted.
    assert seen.by_index["claimable"] <= (claimed + 2) * (30 if name == "claim of a kind" else 1)
    # Claimed rows are updated in place, without a second lookup.
    assert "job_state_pkey" not in seen.by_index
    assert seen.by_index["job_pkey"] <= 2 * claimed


@pytest.mark.parametrize("name", flows.writes(STORE))
def test_writes_find_their_jobs_by_id(connection: Connection, name: str) -> None:
    seen = measured(connection, flows.writes(STORE)[name])
    assert seen.answer is not False
    assert seen.scanned == {}
    assert sum(seen.by_index.values()) < 200


@pytest.mark.req("HF-6", "CX-5", "CX-7")
@pytest.mark.parametrize("name", flows.waits(STORE))
def test_waits_and_approvals_read_only_their_rows(connection: Connection, name: str) -> None:
    """Beside fifty thousand jobs that wait for an event and as many that wait for approval."""
    index, flow = flows.waits(STORE)[name]
    seen = measured(connection, flow)
    assert seen.scanned == {}
    # Ten jobs at most; rows of earlier cases, which were rolled back, are still in the index.
    assert index is None or 0 < seen.by_index[index] <= 200, seen.by_index
    assert sum(seen.by_index.values()) < 500, seen.by_index


@pytest.mark.req("CX-5")
@pytest.mark.parametrize("name", flows.inbox(STORE))
def test_inbox_reads_one_page(connection: Connection, name: str) -> None:
    index, flow = flows.inbox(STORE)[name]
    plan = explained(connection, flow)
    assert index in plan.indexes, plan.text
    assert not plan.kinds & {"Seq Scan", "Sort", "Incremental Sort", "Bitmap Heap Scan"}, plan.text
    assert plan.rows_read <= 2 * PAGE + 1, plan.text  # each with its votes


@pytest.mark.req("DP-15")
@pytest.mark.parametrize("name", flows.dead_letters(STORE))
def test_page_of_dead_letters_is_read_by_index(connection: Connection, name: str) -> None:
    index, flow = flows.dead_letters(STORE)[name]
    plan = explained(connection, flow)
    assert index in plan.indexes, plan.text
    assert not plan.kinds & {"Seq Scan", "Incremental Sort", "Bitmap Heap Scan"}, plan.text
    # A job also has its state and its facts; both are read once more to check for hidden payloads. Its ledger is read
    # for its newest event, last error, last queueing and worker. One job in seven has an origin and a node as well.
    assert plan.rows_read <= (1 + 4 + 4) * PAGE + 2 * (PAGE // 7 + 1) + 1, plan.text


@pytest.mark.req("DP-15")
def test_batch_of_a_bulk_operation_is_found_by_index(connection: Connection) -> None:
    """In the middle of a million jobs, of which ten thousand are dead letters."""
    for wanted in ({"state": "dead_letter"}, {"state": "dead_letter", "fingerprint": LARGEST}):
        measured(connection, flows.batch(STORE, wanted))  # planning reads the ends of indexes
        seen = measured(connection, flows.batch(STORE, wanted))
        assert seen.answer == 100
        assert seen.scanned == {}
        # The five thousand matching jobs are counted once; a batch reads only its own jobs, each in 20 to 32 places
        # depending on the plan, and none of the other ten thousand.
        assert sum(seen.by_index.values()) < 5_200 + 100 * 40, seen.by_index


@pytest.mark.req("HF-2")
@pytest.mark.parametrize("name", flows.reasons(STORE))
def test_why_reads_indexes_only(connection: Connection, name: str) -> None:
    """The jobs ahead are counted up to a thousand, in two ranges of the index that claims use."""
    seen = measured(connection, flows.reasons(STORE)[name])
    assert seen.scanned == {}
    assert sum(seen.by_index.values()) < 2_500, seen.by_index


@pytest.mark.req("SC-3")
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", flows.moves(STORE))
def test_move_reads_only_neighbouring_jobs(connection: Connection, name: str, full: bool) -> None:
    """Among thousands in the same queue; also if the gap is full and some jobs are renumbered."""
    flow = flows.moves(STORE)[name]
    with flows.neighbours(connection, "%s", full):
        measured(connection, flow)  # planning reads the ends of indexes
        seen = measured(connection, flow)
    assert not seen.answer.refused
    assert seen.scanned == {}
    assert sum(seen.by_index.values()) < 250


@pytest.mark.parametrize("name", flows.maintenance(STORE))
def test_maintenance_reads_only_due_rows(connection: Connection, name: str) -> None:
    index, flow = flows.maintenance(STORE)[name]
    seen = measured(connection, flow)
    assert seen.scanned == {}
    # All jobs of the expired leases are read: a hundred per lease.
    assert 0 < seen.by_index[index] <= (1_000 if name == "recover" else 200)
    assert sum(seen.by_index.values()) < 4_000


@pytest.mark.parametrize("name", flows.lists(STORE))
def test_list_reads_one_page(connection: Connection, name: str) -> None:
    index, flow = flows.lists(STORE)[name]
    plan = explained(connection, flow)
    assert any(each.startswith(index) for each in plan.indexes), plan.text
    assert not plan.kinds & {"Seq Scan", "Incremental Sort", "Hash Join", "Merge Join"}, plan.text
    if name in flows.OF_EVERY_STATE:  # a page per state, and the held jobs
        assert plan.rows_read <= len(State) * PAGE + 9 * PAGE + HELD - LATE, plan.text
        return
    several = 1 + (name in flows.ALTERNATIVES)
    assert "Sort" not in plan.kinds or several > 1 or index == "idempotency", plan.text
    # Of each job its id, facts and state (the last two also for its payload), four events, its origin and its node; and
    # rows that a second condition skips.
    assert plan.rows_read <= several * (11 * PAGE + 200), plan.text


@pytest.mark.parametrize("name", flows.reads(STORE))
def test_single_job_is_found_by_id(connection: Connection, name: str) -> None:
    index, flow = flows.reads(STORE)[name]
    plan = explained(connection, flow)
    assert any(each.startswith(index) for each in plan.indexes), plan.text
    assert "Seq Scan" not in plan.kinds, plan.text
    # A job has its facts, its state and four reads of its ledger: newest event, last error, last queueing and worker.
    assert plan.rows_read <= (6 if name == "get" else 5), plan.text


@pytest.mark.req("DP-12")
def test_consumer_reads_from_its_cursor(connection: Connection) -> None:
    first = measured(connection, STORE.ledger.read(None, 100, "*"))
    last = first.answer[-1]
    after = measured(connection, STORE.ledger.read(last.cursor, 100, "*"))
    assert [event.seq for event in after.answer] == [last.seq + n + 1 for n in range(100)]
    for seen in (first, after):
        assert seen.scanned == {}
        assert seen.by_index["event_seq_idx"] <= 210
        assert sum(seen.by_index.values()) < 1_000


def test_health_reads_no_finished_jobs(connection: Connection) -> None:
    seen = measured(connection, STORE.health.get("a"))
    assert (seen.answer.backlog, seen.answer.capped) == (CAP, True)
    assert seen.scanned == {}
    assert sum(seen.by_index.values()) < 150_000
    seen = measured(connection, STORE.health.get("*"))
    assert seen.answer.backlog == CAP
    assert seen.scanned == {}
    assert sum(seen.by_index.values()) < 150_000


@pytest.mark.req("JF-15")
def test_statistics_read_no_finished_jobs(connection: Connection) -> None:
    for tenant in ("a", "*"):
        seen = measured(connection, STORE.health.statistics(tenant))
        assert seen.answer.capped
        assert seen.scanned == {}
        assert sum(seen.by_index.values()) < 150_000, seen.by_index


@pytest.mark.req("CX-18", "DP-16")
def test_slice_of_a_sweep_reads_only_its_rows(connection: Connection) -> None:
    """Beside a million finished jobs: it finds ten by id, and every row that names them by an index."""
    seen = measured(connection, flows.sweeping(STORE))
    swept, purged, counted = seen.answer
    assert (swept.action, swept.done, purged, counted) == ("clean", 10, 10, 50)
    assert seen.scanned == {}
    assert sum(seen.by_index.values()) < 3_000, seen.by_index


@pytest.mark.req("JF-16")
@pytest.mark.parametrize("tenant", ["a", "*"])
def test_dashboard_pages_read_a_bounded_number_of_rows(connection: Connection, tenant: str) -> None:
    for name, flow in flows.pages(STORE, tenant).items():
        seen = measured(connection, flow)
        assert seen.scanned == {}, (name, seen.scanned)
        assert sum(seen.by_index.values()) < 150_000, (name, seen.by_index)
