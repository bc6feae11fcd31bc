"""PostgreSQL with a million finished jobs: every operation finds what it needs by an index and reads little else.

For the superuser and for the schema's plain owner, whom row-level security binds (a condition whose operator might
leak cannot use an index there); with plans made for the values, and with the general ones a prepared statement
ends up with.
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
from tests.plans.explained import explained, used
from tests.plans.filling import ASKING, HELD, LATE
from tests.plans.filling_dead import LARGEST

pytestmark = [pytest.mark.req("SC-2", "CX-14", "DP-8", "DP-9"), pytest.mark.slow, pytest.mark.timeout(600)]

Connection = psycopg.Connection[Any]
STORE = PostgresStore("postgresql://nobody@localhost/none")
PAGE = 50


@pytest.fixture(params=["owner", "superuser"])
def role(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(params=["auto", "force_generic_plan"])
def connection(large: Large, role: str, request: pytest.FixtureRequest) -> Iterator[Connection]:
    with psycopg.connect(large.owner if role == "owner" else large.superuser, autocommit=True) as opened:
        prepare_connection(opened)
        opened.execute("select set_config('plan_cache_mode', %s, false)", (request.param,))
        yield opened


def test_the_tables_are_large(connection: Connection) -> None:
    """And the roles are what they are said to be: else the rest says nothing."""
    with connection.transaction():
        connection.execute("select set_config('holdfast.tenant', '*', true)")
        counted = connection.execute("select count(*) from holdfast.job_state where finished_at is not null")
        assert counted.fetchone() == (1_000_000,)
    hidden = connection.execute("select count(*) from (select from holdfast.job_state limit 1) s").fetchone()
    bound = not connection.execute("select rolsuper from pg_roles where rolname = current_user").fetchone()[0]  # type: ignore[index]
    assert hidden == ((0,) if bound else (1,))


def test_what_the_server_reads_meanwhile_is_not_counted(connection: Connection, large: Large) -> None:
    """It sums up new parts of the ledger when it comes to it, in the middle of a flow too."""

    def steps() -> Steps[None]:
        yield Statement("select 1")
        with psycopg.connect(large.superuser, autocommit=True) as other:
            other.execute("select brin_desummarize_range('holdfast.event_rest_xid_idx', 0)")
            assert other.execute("select brin_summarize_range('holdfast.event_rest_xid_idx', 0)").fetchone() == (1,)
            other.execute("select pg_stat_force_next_flush()")
        yield Statement("select count(actor) from holdfast.event")  # a plan for several at once

    seen = used(connection, Flow(steps))
    assert (seen.scanned, seen.by_index) == ({"event": ASKING}, {})


@pytest.mark.parametrize("name", flows.claims(STORE))
def test_a_claim_walks_the_index_in_queue_order(connection: Connection, name: str) -> None:
    """Beside a million that have ended, and a hundred thousand that wait for events and for people."""
    seen = used(connection, flows.claims(STORE)[name])
    claimed = len(seen.answer)
    assert claimed == {"claim one": 1, "claim of a kind": 10}.get(name, 100)
    assert seen.scanned == {}
    # No more entries are read than there are jobs to take (and to pass over, where not every kind will do): so the
    # index gives the order, and nothing is sorted.
    assert seen.by_index["claimable"] <= (claimed + 2) * (30 if name == "claim of a kind" else 1)
    # What is picked is updated where it lies, and not looked up once more.
    assert "job_state_pkey" not in seen.by_index
    assert seen.by_index["job_pkey"] <= 2 * claimed


@pytest.mark.parametrize("name", flows.writes(STORE))
def test_a_write_finds_its_jobs_by_their_ids(connection: Connection, name: str) -> None:
    seen = used(connection, flows.writes(STORE)[name])
    assert seen.answer is not False
    assert seen.scanned == {}
    assert sum(seen.by_index.values()) < 200


@pytest.mark.req("HF-6", "CX-5", "CX-7")
@pytest.mark.parametrize("name", flows.people(STORE))
def test_what_has_to_do_with_waiting_reads_its_own(connection: Connection, name: str) -> None:
    """Beside fifty thousand who wait for an event and as many who wait for people."""
    index, flow = flows.people(STORE)[name]
    seen = used(connection, flow)
    assert seen.scanned == {}
    # Ten jobs at most; rows of the cases before, which were rolled back, are still in the index.
    assert index is None or 0 < seen.by_index[index] <= 200, seen.by_index
    assert sum(seen.by_index.values()) < 500, seen.by_index


@pytest.mark.req("CX-5")
@pytest.mark.parametrize("name", flows.inbox(STORE))
def test_the_inbox_reads_its_page(connection: Connection, name: str) -> None:
    index, flow = flows.inbox(STORE)[name]
    plan = explained(connection, flow)
    assert index in plan.indexes, plan.text
    assert not plan.kinds & {"Seq Scan", "Sort", "Incremental Sort", "Bitmap Heap Scan"}, plan.text
    assert plan.rows_read <= 2 * PAGE + 1, plan.text  # each with what was said of it


@pytest.mark.req("DP-15")
@pytest.mark.parametrize("name", flows.dead(STORE))
def test_a_page_of_dead_letters_is_read_by_index(connection: Connection, name: str) -> None:
    index, flow = flows.dead(STORE)[name]
    plan = explained(connection, flow)
    assert index in plan.indexes, plan.text
    assert not plan.kinds & {"Seq Scan", "Incremental Sort", "Bitmap Heap Scan"}, plan.text
    # A job has its state and its facts besides; both are read once more where it is shown, for what may be hidden. Its
    # newest event and that of its last error are read, too.
    assert plan.rows_read <= 9 * PAGE + 1, plan.text


@pytest.mark.req("DP-15")
def test_a_batch_of_a_bulk_operation_is_found_by_index(connection: Connection) -> None:
    """In the middle of a million jobs, of which ten thousand are dead letters."""
    for wanted in ({"state": "dead_letter"}, {"state": "dead_letter", "fingerprint": LARGEST}):
        used(connection, flows.batch(STORE, wanted))  # plans are made, which reads the ends of indexes
        seen = used(connection, flows.batch(STORE, wanted))
        assert seen.answer == 100
        assert seen.scanned == {}
        # Those that it was started for are counted once, five thousand of them; a batch looks at its own, at each in
        # so many places (by the plan it is 20 to 32), and at no others of the ten thousand.
        assert sum(seen.by_index.values()) < 5_200 + 100 * 40, seen.by_index


@pytest.mark.req("HF-2")
@pytest.mark.parametrize("name", flows.whys(STORE))
def test_why_is_answered_by_index(connection: Connection, name: str) -> None:
    """The jobs before one are counted up to a thousand, in two ranges of the index that claims walk."""
    seen = used(connection, flows.whys(STORE)[name])
    assert seen.scanned == {}
    assert sum(seen.by_index.values()) < 2_500, seen.by_index


@pytest.mark.req("SC-3")
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", flows.moves(STORE))
def test_a_move_looks_at_the_jobs_around_its_place(connection: Connection, name: str, full: bool) -> None:
    """Of thousands that stand in this line; also where the gap is full and some are numbered anew."""
    flow = flows.moves(STORE)[name]
    with flows.shoulder_to_shoulder(connection, "%s", full):
        used(connection, flow)  # plans are made, which reads the ends of indexes
        seen = used(connection, flow)
    assert not seen.answer.refused
    assert seen.scanned == {}
    assert sum(seen.by_index.values()) < 250


@pytest.mark.parametrize("name", flows.duties(STORE))
def test_a_duty_reads_what_is_due_and_no_more(connection: Connection, name: str) -> None:
    index, flow = flows.duties(STORE)[name]
    seen = used(connection, flow)
    assert seen.scanned == {}
    # The held jobs of the lapsed leases are all looked at: a hundred a lease.
    assert 0 < seen.by_index[index] <= (1_000 if name == "reap" else 200)
    assert sum(seen.by_index.values()) < 4_000


@pytest.mark.parametrize("name", flows.lists(STORE))
def test_a_list_reads_its_page(connection: Connection, name: str) -> None:
    index, flow = flows.lists(STORE)[name]
    plan = explained(connection, flow)
    assert any(each.startswith(index) for each in plan.indexes), plan.text
    assert not plan.kinds & {"Seq Scan", "Incremental Sort", "Hash Join", "Merge Join"}, plan.text
    if name in flows.OF_EVERY_STATE:  # a page of each, and the jobs that are held
        assert plan.rows_read <= len(State) * PAGE + 2 * PAGE + HELD - LATE, plan.text
        return
    assert "Sort" not in plan.kinds, plan.text
    # Thrice the page (ids, facts, state), a few events of each job, and what a second condition passes over.
    assert plan.rows_read <= 6 * PAGE + 200, plan.text


@pytest.mark.parametrize("name", flows.reads(STORE))
def test_one_job_is_found_by_its_id(connection: Connection, name: str) -> None:
    index, flow = flows.reads(STORE)[name]
    plan = explained(connection, flow)
    assert any(each.startswith(index) for each in plan.indexes), plan.text
    assert "Seq Scan" not in plan.kinds, plan.text
    assert plan.rows_read <= 5, plan.text


@pytest.mark.req("DP-12")
def test_a_consumer_reads_on_from_where_it_stands(connection: Connection) -> None:
    first = used(connection, STORE.ledger.read(None, 100, "*"))
    last = first.answer[-1]
    after = used(connection, STORE.ledger.read(last.cursor, 100, "*"))
    assert [event.seq for event in after.answer] == [last.seq + n + 1 for n in range(100)]
    for seen in (first, after):
        assert seen.scanned == {}
        assert seen.by_index["event_seq_idx"] <= 210
        assert sum(seen.by_index.values()) < 1_000


def test_health_does_not_look_at_what_is_finished(connection: Connection) -> None:
    seen = used(connection, STORE.health.get("a"))
    assert (seen.answer.backlog, seen.answer.capped) == (CAP, True)
    assert seen.scanned == {}
    assert sum(seen.by_index.values()) < 150_000
    seen = used(connection, STORE.health.get("*"))
    assert seen.answer.backlog == CAP
    assert seen.scanned == {}
    assert sum(seen.by_index.values()) < 150_000


@pytest.mark.req("JF-15")
def test_the_pulse_does_not_look_at_what_is_finished(connection: Connection) -> None:
    for tenant in ("a", "*"):
        seen = used(connection, STORE.health.statistics(tenant))
        assert seen.answer.capped
        assert seen.scanned == {}
        assert sum(seen.by_index.values()) < 150_000, seen.by_index


@pytest.mark.req("CX-18", "DP-16")
def test_a_slice_of_the_sweep_reads_its_own(connection: Connection) -> None:
    """Beside a million that have ended: it finds ten by their ids, and all that names them by an index."""
    seen = used(connection, flows.sweeping(STORE))
    swept, purged, counted = seen.answer
    assert (swept.action, swept.done, purged, counted) == ("clean", 10, 10, 50)
    assert seen.scanned == {}
    assert sum(seen.by_index.values()) < 3_000, seen.by_index


@pytest.mark.req("JF-16")
@pytest.mark.parametrize("tenant", ["a", "*"])
def test_screens_read_a_bounded_part(connection: Connection, tenant: str) -> None:
    for name, flow in flows.screens(STORE, tenant).items():
        seen = used(connection, flow)
        assert seen.scanned == {}, (name, seen.scanned)
        assert sum(seen.by_index.values()) < 150_000, (name, seen.by_index)
