"""Plans in a database without statistics, as every new database is.

The planner then assumes that small partial indexes are nearly empty. A settlement through the index of held jobs would
read all of them for each job it settles: a worker with a thousand claimed jobs was five times slower until the first
ANALYZE.
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
from holdfast.features.limits.model import Rule
from holdfast.stores.requests import ClaimRequest, SendEvent
from tests.plans.query_plans import disable_autovacuum, measured
from tests.support.steps import waits
from tests.support.stores import apply, claim, new_id, open_lease, put, spec

pytestmark = pytest.mark.req("JF-3")

HELD, ENDED = 600, 100


@pytest.mark.slow
@pytest.mark.parametrize(
    "operation", ["settle", "exchange", "save_checkpoint", "save_steps", "wait", "start", "release"]
)
def test_writes_read_only_their_jobs(postgres_url: str, operation: str) -> None:
    with closing(open_store(postgres_url)) as store, psycopg.connect(postgres_url, autocommit=True) as connection:
        disable_autovacuum(connection)
        lease = open_lease(store)
        put(store, *(spec() for _ in range(HELD)))
        claims = claim(store, lease, HELD, begin=operation not in ("start", "release"))
        ended = [Settlement(job.id, job.attempt, "succeeded") for job in claims[:ENDED]]
        ids = [job.id for job in claims[:ENDED]]
        flows = {
            "settle": store.leases.settle(lease, ended, "*"),
            "exchange": store.leases.exchange(ended, ClaimRequest(lease=lease, queues=("default",), want=0)),
            "save_checkpoint": store.steps.save_checkpoint(claims[0].id, lease, 1, "p", "1", "*"),
            "save_steps": store.steps.save(lease, [(each, 1, StepEntry(1, "a", "step")) for each in ids], "*"),
            "wait": store.leases.settle(lease, [waits(job) for job in claims[:ENDED]], "*"),
            "start": store.leases.start(lease, ids, "*"),
            "release": store.leases.release(lease, ids, "*"),
        }
        seen = measured(connection, flows[operation])
        assert seen.by_index.get("held", 0) <= ENDED
        # A table this small may be read once, but not once per job.
        assert seen.by_index["job_state_pkey"] <= 3 * HELD
        assert seen.scanned.get("job_state", 0) == 0


@pytest.mark.req("HF-6")
@pytest.mark.parametrize("analysed", [False, True])
def test_saving_a_step_does_not_read_the_others(postgres_url: str, analysed: bool) -> None:
    with closing(open_store(postgres_url)) as store, psycopg.connect(postgres_url, autocommit=True) as connection:
        disable_autovacuum(connection)
        lease = open_lease(store)
        put(store, *(spec() for _ in range(HELD)))
        claims = claim(store, lease, HELD)
        for n in range(1, 6):
            done = StepEntry(n, "note", "step")
            store.run(store.steps.save(lease, [(job.id, job.attempt, done) for job in claims], "*"))
        if analysed:
            connection.execute("analyze holdfast.step")
        # One step is already stored, which is reported, and one belongs to another attempt.
        entries = [(job.id, job.attempt, StepEntry(6, "note", "step")) for job in claims[:ENDED]]
        entries += [(claims[-1].id, 1, StepEntry(1, "note", "step")), (claims[-2].id, 7, StepEntry(6, "note", "step"))]
        seen = measured(connection, store.steps.save(lease, entries, "*"))
        assert sorted(answer.fate for answer in seen.answer) == ["kept", "stale"]
        assert seen.scanned == {}
        assert seen.by_index["step_pkey"] <= len(entries) + 5  # one lookup per step


@pytest.mark.req("SC-16")
def test_freed_slot_reads_only_the_jobs_parked_for_it(postgres_url: str) -> None:
    """Beside jobs that wait for a time, which are in no limit's way."""
    with closing(open_store(postgres_url)) as store, psycopg.connect(postgres_url, autocommit=True) as connection:
        disable_autovacuum(connection)
        store.run(store.limits.set(Rule("kind", "call", 5), "me", "default"))
        put(store, *(spec("call") for _ in range(3)), *(spec("other", delay=3600.0) for _ in range(HELD)))
        lease = open_lease(store)
        ended = [Settlement(job.id, job.attempt, "succeeded") for job in claim(store, lease, 3)]
        connection.execute("analyze holdfast.job_state")
        seen = measured(connection, store.leases.settle(lease, ended, "*"))
        assert seen.answer == []
        assert seen.by_index["parked"] <= 2
        assert not seen.by_index.keys() & {"not_yet_due", "postponed", "by_state", "claimable"}
        assert seen.scanned == {}


@pytest.mark.req("SC-3")
@pytest.mark.parametrize("where", ["first", "last", "before", "after"])
@pytest.mark.parametrize("full", [False, True])
def test_move_reads_only_neighbouring_jobs(postgres_url: str, where: Where, full: bool) -> None:
    with closing(open_store(postgres_url)) as store, psycopg.connect(postgres_url, autocommit=True) as connection:
        disable_autovacuum(connection)
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
        seen = measured(connection, store.jobs.move(ids[3], Move(where=where, other=other), None, "me", "default"))
        assert not seen.answer.refused
        assert seen.scanned.get("job_state", 0) == 0
        assert sum(seen.by_index.values()) < 250


@pytest.mark.req("HF-6")
@pytest.mark.parametrize("analysed", [False, True])
def test_event_finds_its_waits_without_reading_the_others(postgres_url: str, analysed: bool) -> None:
    with closing(open_store(postgres_url)) as store, psycopg.connect(postgres_url, autocommit=True) as connection:
        disable_autovacuum(connection)
        lease = open_lease(store)
        put(store, *(spec() for _ in range(HELD)))
        claims = claim(store, lease, HELD)
        waits = [Paused(Pause(1, "paid", "event", wanted={"invoice": n}).to_json(), []) for n in range(HELD)]
        assert apply(store, lease, *(decide(job, wait, 0.5) for job, wait in zip(claims, waits, strict=True))) == []
        if analysed:
            connection.execute("analyze holdfast.step, holdfast.job_state")
        event = SendEvent(new_id(), "paid", '{"invoice": 7, "amount": 12}')
        seen = measured(connection, store.ledger.send(event, "tester", "default"))
        assert seen.answer.woke == 1
        assert seen.scanned == {}
        assert seen.by_index["waiting"] <= 10
        assert seen.by_index.get("step_pkey", 0) <= 10
