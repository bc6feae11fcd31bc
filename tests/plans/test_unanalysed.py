"""Plans in a database that has no statistics yet, which is how every database begins.

The planner then takes small partial indexes for nearly empty. A settlement by way of the index of held jobs reads all
of them for each one it settles: a worker with a thousand jobs in hand was five times as slow until the first ANALYZE.
"""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from holdfast.engine.order import Move, Where
from holdfast.engine.outcome import Paused
from holdfast.engine.settlement import Settlement, decide
from holdfast.engine.steps import Pause, StepEntry
from holdfast.features.assembly import open_store
from holdfast.stores.requests import ClaimRequest, SendEvent
from tests.plans.explained import leave_alone, used
from tests.support.steps import waits
from tests.support.stores import apply, claim, new_id, open_lease, put, spec

pytestmark = pytest.mark.req("JF-3")

HELD, ENDED = 600, 100


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["settle", "turn", "save_checkpoint", "save_steps", "wait", "start", "release"])
def test_a_write_reads_its_own_jobs_and_no_more(postgres_url: str, operation: str) -> None:
    with closing(open_store(postgres_url)) as store, psycopg.connect(postgres_url, autocommit=True) as connection:
        leave_alone(connection)
        lease = open_lease(store)
        put(store, *(spec() for _ in range(HELD)))
        claims = claim(store, lease, HELD, begin=operation not in ("start", "release"))
        ended = [Settlement(job.id, job.attempt, "succeeded") for job in claims[:ENDED]]
        ids = [job.id for job in claims[:ENDED]]
        flows = {
            "settle": store.leases.settle(lease, ended, "*"),
            "turn": store.leases.exchange(ended, ClaimRequest(lease=lease, queues=("default",), want=0)),
            "save_checkpoint": store.steps.save_checkpoint(claims[0].id, lease, 1, "p", "1", "*"),
            "save_steps": store.steps.save(lease, [(each, 1, StepEntry(1, "a", "step")) for each in ids], "*"),
            "wait": store.leases.settle(lease, [waits(job) for job in claims[:ENDED]], "*"),
            "start": store.leases.start(lease, ids, "*"),
            "release": store.leases.release(lease, ids, "*"),
        }
        seen = used(connection, flows[operation])
        assert seen.by_index.get("held", 0) <= ENDED
        # So small a table may as well be read once; what must not be is once for each job.
        assert seen.by_index["job_state_pkey"] <= 3 * HELD
        assert seen.scanned.get("job_state", 0) == 0


@pytest.mark.req("HF-6")
@pytest.mark.parametrize("analysed", [False, True])
def test_a_step_is_written_without_reading_the_others(postgres_url: str, analysed: bool) -> None:
    with closing(open_store(postgres_url)) as store, psycopg.connect(postgres_url, autocommit=True) as connection:
        leave_alone(connection)
        lease = open_lease(store)
        put(store, *(spec() for _ in range(HELD)))
        claims = claim(store, lease, HELD)
        for n in range(1, 6):
            done = StepEntry(n, "note", "step")
            store.run(store.steps.save(lease, [(job.id, job.attempt, done) for job in claims], "*"))
        if analysed:
            connection.execute("analyze holdfast.step")
        # One of them over already, which is told, and one that is not ours.
        entries = [(job.id, job.attempt, StepEntry(6, "note", "step")) for job in claims[:ENDED]]
        entries += [(claims[-1].id, 1, StepEntry(1, "note", "step")), (claims[-2].id, 7, StepEntry(6, "note", "step"))]
        seen = used(connection, store.steps.save(lease, entries, "*"))
        assert sorted(answer.fate for answer in seen.answer) == ["kept", "stale"]
        assert seen.scanned == {}
        assert seen.by_index["step_pkey"] <= len(entries) + 5  # each is looked for where it goes


@pytest.mark.req("SC-3")
@pytest.mark.parametrize("where", ["first", "last", "before", "after"])
@pytest.mark.parametrize("full", [False, True])
def test_a_move_looks_at_the_jobs_around_its_place(postgres_url: str, where: Where, full: bool) -> None:
    with closing(open_store(postgres_url)) as store, psycopg.connect(postgres_url, autocommit=True) as connection:
        leave_alone(connection)
        ids = put(store, *(spec(delay=60.0 if n % 2 else None) for n in range(2 * HELD)))
        if full:
            connection.execute("alter table holdfast.job_state disable trigger record_transition")
            connection.execute(
                "update holdfast.job_state set position = (select position + 1 from holdfast.job_state where id = %s)"
                " where id = %s",
                (ids[HELD - 1], ids[HELD]),
            )
            connection.execute("alter table holdfast.job_state enable trigger record_transition")
        other = {"before": ids[HELD], "after": ids[HELD - 1]}.get(where)
        seen = used(connection, store.jobs.move(ids[3], Move(where=where, other=other), None, "me", "default"))
        assert not seen.answer.refused
        assert seen.scanned.get("job_state", 0) == 0
        assert sum(seen.by_index.values()) < 250


@pytest.mark.req("HF-6")
@pytest.mark.parametrize("analysed", [False, True])
def test_an_event_finds_who_waits_for_it_without_reading_the_others(postgres_url: str, analysed: bool) -> None:
    with closing(open_store(postgres_url)) as store, psycopg.connect(postgres_url, autocommit=True) as connection:
        leave_alone(connection)
        lease = open_lease(store)
        put(store, *(spec() for _ in range(HELD)))
        claims = claim(store, lease, HELD)
        waits = [Paused(Pause(1, "paid", "event", wanted={"invoice": n}).to_json(), []) for n in range(HELD)]
        assert apply(store, lease, *(decide(job, wait, 0.5) for job, wait in zip(claims, waits, strict=True))) == []
        if analysed:
            connection.execute("analyze holdfast.step, holdfast.job_state")
        event = SendEvent(new_id(), "paid", '{"invoice": 7, "amount": 12}')
        seen = used(connection, store.ledger.send(event, "tester", "default"))
        assert seen.answer.woke == 1
        assert seen.scanned == {}
        assert seen.by_index["waiting"] <= 10
        assert seen.by_index.get("step_pkey", 0) <= 10
