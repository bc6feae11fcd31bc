"""Fault 38: each safeguard is removed from a database, and the check that covers it fails.

A check that passes without its safeguard proves nothing. Every test first sees the safeguard refuse, then removes it,
repeats the same, and names the broken invariant.
"""

from __future__ import annotations

import os
import re
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.engine.job import Claim
from holdfast.engine.states import State
from holdfast.features.approvals.model import Approval
from holdfast.features.assembly import Store, open_store
from holdfast.stores.flow import Flow
from holdfast.stores.postgres.store import prepare_connection, run_on
from holdfast.stores.requests import SendEvent
from tests.faults.checker import n3, n5, n5_approvals, n6
from tests.faults.crash_points import FAST_OPTIONS, operations_of, start_worker
from tests.faults.effects import effects, runs
from tests.faults.snapshot import take_snapshot
from tests.faults.workload import enqueue_jobs, wait_for_all
from tests.support.direct_sql import ByHand, PostgresByHand
from tests.support.forkserver import start_call
from tests.support.postgres_roles import OwnedDatabases, as_role
from tests.support.postgres_server import GivenServer, PostgresServer
from tests.support.steps import asking, ballot, entry, keep_token, running, save, say, send, steps, votes, waits
from tests.support.stores import (
    claim,
    enqueue,
    forward,
    new_id,
    open_lease,
    put,
    put_one,
    settle,
    spec,
    state_of,
    take,
)
from tests.support.transactions import Transaction
from tests.support.waiting import until
from tests.support.worker_processes import FOLDER_VARIABLE

pytestmark = pytest.mark.req("ARCH")

POSTGRES = pytest.mark.parametrize("url", ["postgres"], indirect=True)


def drop_trigger(by_hand: ByHand, name: str, table: str) -> None:
    by_hand.execute(f"drop trigger {name}" + ("" if by_hand.name == "sqlite" else f" on {table}"))


def remove_transition_check(by_hand: ByHand) -> None:
    if by_hand.name == "sqlite":
        drop_trigger(by_hand, "guard_transition", "job_state")
    else:
        edit_function(by_hand, "refuse_transition", r"\nbegin\n", "\nbegin\n    return was <> now_is;\n")


def edit_function(by_hand: ByHand, function: str, pattern: str, text: str, *, times: int = 1) -> None:
    """Replace all matches of the pattern in a function of the database."""
    assert isinstance(by_hand, PostgresByHand)
    ((source,),) = by_hand.execute(f"select pg_get_functiondef('{function}'::regproc)")
    changed, count = re.subn(pattern, text, source, flags=re.DOTALL)
    assert count == times, f"{function} no longer contains {pattern!r}: update the pattern"
    by_hand.connection.execute(changed.encode())


def taken_over(store: Store) -> Claim:
    """Return the claim of a lost worker whose job runs on another worker."""
    put_one(store)
    old = take(store)
    forward(store, 60)
    assert store.run(store.leases.recover()).crashed == 1
    store.run(store.leases.promote())
    assert claim(store, open_lease(store, "the other"))
    return old


# -- the fence: N3 ---------------------------------------------------------------------------------------------

ZOMBIE = (
    "update job_state set state = 'succeeded', lease = null, settled_by = :old, finished_at = (select now from present)"
    " where id = :id"
)


def test_zombie_can_settle_without_transition_check(store: Store, by_hand: ByHand) -> None:
    old = taken_over(store)
    params = {"old": old.lease, "id": old.id}
    assert by_hand.refusal(ZOMBIE, params) is not None
    remove_transition_check(by_hand)
    assert by_hand.refusal(ZOMBIE, params) is None
    assert {violation.job for violation in n3(take_snapshot(store.url))} == {old.id}


@POSTGRES
def test_zombie_can_settle_only_without_fence_and_trigger(store: Store, by_hand: ByHand) -> None:
    """Without the condition in the function the trigger refuses; without both, the zombie's result is stored."""
    old = taken_over(store)
    assert settle(store, old) == [old.id]
    fence = r"s\.lease [^\n]*?settle_under\.lease and s\.attempt = o\.attempt\s+and "
    edit_function(by_hand, "settle_under", fence, "", times=2)  # for plain successes, and for other ends
    with pytest.raises(Exception, match="lease token"):
        settle(store, old)
    assert not list(n3(take_snapshot(store.url)))
    remove_transition_check(by_hand)
    assert settle(store, old) == []
    assert {violation.job for violation in n3(take_snapshot(store.url))} == {old.id}


UNFENCED = "SELECT id, 1 FROM holdfast_job_state WHERE id IN (SELECT value FROM json_each(?)) AND ? IS NOT NULL"


def test_zombie_can_store_step_without_fence(store: Store, by_hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker that holds the job would then use the zombie's result."""
    old = taken_over(store)
    forward(store, 1)
    assert [saved.fate for saved in save(store, old, entry(1, '"late"'))] == ["stale"]
    assert not list(n3(take_snapshot(store.url)))
    if by_hand.name == "sqlite":
        monkeypatch.setattr("holdfast.stores.sqlite.steps._HELD", UNFENCED)
    else:
        edit_function(by_hand, "save_steps", r"and s\.lease is not distinct from save_steps\.lease\s", "")
        edit_function(
            by_hand, "save_steps", r"join held h on h\.id = o\.job and h\.attempt = o\.attempt\s+on", _ANY_HOLDER
        )
    save(store, old, entry(1, '"late"'))
    assert [step.value for step in steps(store, old.id)] == ["late"]
    if by_hand.name == "postgres":  # SQLite's step takes its attempt from the job
        assert {violation.job for violation in n3(take_snapshot(store.url))} == {old.id}


_ANY_HOLDER = "join held h on h.id = o.job on"


# -- tokens: CX-6 --------------------------------------------------------------------------------------------------


def use(store: Store, approval: Approval, person: str) -> str | None:
    return say(store, approval.id, ballot(person, token_hash="h")).reason


def test_token_can_be_reused_without_token_check(store: Store, by_hand: ByHand) -> None:
    approval = asking(store, quorum=5)
    keep_token(store, approval.id, "h")
    assert [use(store, approval, person) for person in ("ada", "bob")] == [None, "token_used"]
    again = "update approval_token set used_at = null"
    assert "used once" in (by_hand.refusal(again) or "")
    drop_trigger(by_hand, "guard_token_update" if by_hand.name == "sqlite" else "guard_update", "approval_token")
    assert by_hand.refusal(again) is None
    assert use(store, approval, "bob") is None
    assert len(votes(store, approval.id)) == 2


@POSTGRES
def test_token_can_be_reused_only_without_function_check_and_trigger(store: Store, by_hand: ByHand) -> None:
    """Without the condition in the function the trigger refuses; without both, the token is reusable."""
    approval = asking(store, quorum=5)
    keep_token(store, approval.id, "h")
    assert use(store, approval, "ada") is None
    edit_function(by_hand, "decide_approval", r"when v_token\.used_at is not null then 'token_used'\s", "")
    with pytest.raises(Exception, match="used once"):
        use(store, approval, "bob")
    assert len(votes(store, approval.id)) == 1
    drop_trigger(by_hand, "guard_update", "approval_token")
    assert use(store, approval, "bob") is None
    assert len(votes(store, approval.id)) == 2


# -- decisions: N5 ---------------------------------------------------------------------------------------------------


def test_job_can_continue_undecided_without_transition_check(store: Store, by_hand: ByHand) -> None:
    job = asking(store).job_id
    leave = "update job_state set state = 'queued', approval_id = null where id = :id"
    assert "has no such decision" in (by_hand.refusal(leave, {"id": job}) or "")
    if by_hand.name == "sqlite":
        drop_trigger(by_hand, "guard_transition", "job_state")
        drop_trigger(by_hand, "withdraw_approval", "job_state")
    else:
        edit_function(by_hand, "approvals_on_transition", r"\nbegin\n", "\nbegin\n    return;\n")
    assert by_hand.refusal(leave, {"id": job}) is None
    assert {violation.job for violation in n5_approvals(take_snapshot(store.url))} == {job}


# -- waits and events: N1 --------------------------------------------------------------------------------------------


@POSTGRES
def test_wake_up_is_lost_without_second_check(store: Store, by_hand: ByHand) -> None:
    """The deterministic form of a race that `tests/contract` tries at random: the job starts to wait, the event is
    sent, and only then the job's transaction commits. Neither waits for the other."""

    def meet() -> str:
        job, held = running(store)
        with psycopg.connect(store.url) as suspending:
            prepare_connection(suspending)
            run_on(suspending, store.leases.settle(held.lease, [waits(held, job)], "*"))
            assert send(store, job).woke == 0  # the wait is not committed, so it is not visible
            suspending.commit()
        assert state_of(store, job) is State.RETRY_WAITING
        store.run(store.leases.promote())
        return job

    assert state_of(store, meet()) is State.QUEUED
    edit_function(by_hand, "recheck_waits", r"w.check_at <= p_now", "false")
    assert state_of(store, meet()) is State.RETRY_WAITING


@POSTGRES
def test_wake_up_is_lost_without_waiting_for_open_senders(store: Store, by_hand: ByHand) -> None:
    """The event is sent, the job starts to wait and is checked, and only then the sender commits: the wait must be
    checked again, however many other events were committed meanwhile."""

    def meet() -> str:
        job, held = running(store)
        with psycopg.connect(store.url) as sending:
            prepare_connection(sending)
            event = SendEvent(new_id(), job, "{}", None, None)
            assert run_on(sending, store.ledger.send(event, "till", "default")).woke == 0
            store.run(store.leases.settle(held.lease, [waits(held, job)], "*"))
            store.run(store.leases.promote())
            assert state_of(store, job) is State.RETRY_WAITING
            sending.commit()
        forward(store, 10)
        store.run(store.leases.promote())
        return job

    assert state_of(store, meet()) is State.QUEUED
    assert by_hand.execute("select count(*) from unsure_wait") == [(0,)]
    edit_function(by_hand, "oldest_sender", r"return \(select", "return null; return (select")
    assert state_of(store, meet()) is State.RETRY_WAITING


# -- transitions and the ledger: N5 -------------------------------------------------------------------------------


def test_job_can_skip_states_without_transition_check(store: Store, by_hand: ByHand) -> None:
    job = put_one(store)
    leap = "update job_state set state = 'succeeded', finished_at = (select now from present) where id = :id"
    assert "illegal transition" in (by_hand.refusal(leap, {"id": job}) or "")
    remove_transition_check(by_hand)
    assert by_hand.refusal(leap, {"id": job}) is None
    assert {violation.job for violation in n5(take_snapshot(store.url))} == {job}


def test_ledger_misses_events_without_recording_trigger(store: Store, by_hand: ByHand) -> None:
    jobs = put(store, spec(), spec())
    assert not list(n5(take_snapshot(store.url)))
    drop_trigger(by_hand, "record_transition", "job_state")
    settle(store, claim(store, open_lease(store)))
    assert {violation.job for violation in n5(take_snapshot(store.url))} == {jobs[0]}


# -- limits and keys --------------------------------------------------------------------------------------------

PLANS = ("hashjoin", "mergejoin", "hashagg", "sort", "material", "memoize", "bitmapscan", "indexscan", "seqscan")
NAIVE = (
    "update job_state set state = 'leased', lease = :lease where id in"
    " (select id from job_state where queue = 'default' and state = 'queued' and due_at is null"
    " order by priority desc, position, id limit 1 for update skip locked) returning id"
)


@POSTGRES
def test_claim_exceeds_limit_without_materialized(store: Store, by_hand: ByHand) -> None:
    put(store, *(spec() for _ in range(50)))
    by_hand.execute("analyze job_state")
    lease = open_lease(store)
    for plan in PLANS:
        by_hand.execute(f"set enable_{plan} = off")
    assert len(by_hand.execute(f"select id from claim_many('{lease}', array['default'], 1, false)")) == 1
    assert len(by_hand.execute(NAIVE, {"lease": lease})) > 1


@POSTGRES
def test_idempotency_key_has_two_jobs_without_unique_constraint(store: Store, by_hand: ByHand) -> None:
    def created() -> list[bool]:
        return [enqueue(store, spec(key="order-7"))[0].created for _ in range(2)]

    assert created() == [True, False]
    by_hand.execute("alter table idempotency drop constraint idempotency_pkey")
    assert created() != [False, False]


# -- tenants: N7 --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_owner_reads_every_tenant_without_forced_row_security(postgres_server: PostgresServer | GivenServer) -> None:
    databases = OwnedDatabases(postgres_server)
    try:
        with databases.fresh() as dsn:
            url = as_role(dsn, databases.owner)
            with closing(open_store(url)) as store:
                put_one(store, tenant="acme")
            with closing(PostgresByHand(url, tenant="umbrella")) as owner:
                assert owner.execute("select count(*) from job") == [(0,)]
                owner.execute("alter table job no force row level security")
                assert owner.execute("select count(*) from job") == [(1,)]
    finally:
        databases.close()


# -- heartbeats: N4 ----------------------------------------------------------------------------------------------


def _serve_without_heartbeats(url: str, folder: str) -> None:
    """Run a worker whose renewals are dropped."""
    os.environ["HOLDFAST_URL"], os.environ[FOLDER_VARIABLE] = url, folder
    from tests.faults.worker_app import app

    run = session_of(app).store.run

    def run_without_renewals(flow: Flow[object]) -> object:
        return True if "leases.renew" in operations_of(flow) else run(flow)

    session_of(app).store.run = run_without_renewals  # type: ignore[method-assign, assignment]
    app.run_worker(burst=False, **FAST_OPTIONS)


@pytest.mark.slow
def test_healthy_worker_loses_its_job_without_heartbeats(app: App, folder: Path) -> None:
    """The number of runs is what `test_28_loop_block.py` checks."""
    worker = start_call(_serve_without_heartbeats, session_of(app).store.url, str(folder))
    (job,) = enqueue_jobs(app, 1, nap=4.0)  # time for another process to start
    try:
        until(lambda: effects(folder), "the job runs")
        other = start_worker(session_of(app).store.url, folder, burst=False)
        try:
            wait_for_all(app, 1)
        finally:
            other.kill()
            other.join(10)
    finally:
        worker.kill()
        worker.join(10)
    assert runs(folder)[job] > 1


# -- commit order: N6 --------------------------------------------------------------------------------------------------


@POSTGRES
def test_consumer_misses_late_commit_without_snapshots(store: Store, by_hand: ByHand) -> None:
    """The consumer reads events above the last number it saw, as most outboxes do."""
    seen: list[tuple[int, str]] = []

    def poll() -> None:
        last = max((seq for seq, _ in seen), default=0)
        rows = by_hand.execute("select seq, job_id from event where seq > :last order by seq", {"last": last})
        seen.extend((seq, str(job)) for seq, job in rows)

    late = Transaction(store)
    (missed,) = late.enqueue()
    put_one(store)
    poll()
    late.end()
    poll()
    assert {violation.job for violation in n6(take_snapshot(store.url), seen)} == {missed}
