"""Fault 3: a worker process exits before, within and after each of its writes, one test per crash point.

Before a write nothing has happened. Within one, on a store whose writes are several statements, nothing may have
happened. After one, everything has happened but the worker has no response. In all cases another worker recovers.
"""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from holdfast.features.assembly import open_store
from holdfast.features.dead_letters.model import NewOperation
from holdfast.features.events.model import NewSubscription
from holdfast.stores.requests import JobFilter
from tests.faults.checker import RECOVERY_LIMIT, check
from tests.faults.crash_points import EXIT_CODE, CrashPoint, When, recorded_operations, start_worker
from tests.faults.effects import effects
from tests.faults.workload import AT_ONCE, PATIENT, wait_for_all
from tests.support.operations import operations
from tests.support.steps import asking
from tests.support.stores import FINAL, claim, new_id, open_lease, put, settle, spec
from tests.support.transactions import Consumer
from tests.support.waiting import until

pytestmark = pytest.mark.req("CX-15", "SC-11", "SC-19", "DP-8")

# Operations that only operators, tests, consumers and other runtimes call. All others, also new ones, are a worker's.
# Some of a worker's are tested elsewhere: `webhooks.note_delivery` in test_27, `leases.quarantine` in test_51, those of
# orphaned files in tests/app. `schedules.add`, `.change` and `.declare` are parts of the flow `schedules.fire`.
NOT_WORKER_WRITES = {
    *("agents.disable", "agents.drain", "agents.enable", "agents.resume", "agents.set", "approvals.decide"),
    *("approvals.save_token", "approvals.token_hashes", "attempts.append_log", "clock.set", "connectors.remove"),
    *("connectors.set", "consumers.remove", "consumers.reset", "dead_letters.note", "dead_letters.redrive_as"),
    *("executors.set", "executors.remove", "jobs.fill_payload_index", "jobs.move", "jobs.operate"),
    *("jobs.remove_payload_index", "jobs.reschedule", "jobs.watch", "leases.claim", "leases.release"),
    *("leases.request_stop", "leases.quarantine", "leases.settle", "leases.start", "ledger.save_cursor"),
    *("ledger.send", "limits.remove", "limits.set", "operations.cancel", "operations.start", "pauses.remove"),
    *("pauses.set", "payload_rules.declare", "payload_rules.remove", "payload_rules.reseal"),
    *("payload_rules.reseal_part", "payload_rules.set", "queues.set_aging", "reservations.release"),
    *("reservations.set", "retention.find_orphans", "retention.forget_orphans", "retention.orphans"),
    *("retention.remove", "retention.set", "schedules.add", "schedules.change", "schedules.declare", "schedules.run"),
    *("steps.add_artifact", "steps.rewind", "subscriptions.failed", "subscriptions.pause", "subscriptions.remove"),
    *("subscriptions.resume", "subscriptions.set", "templates.enqueue", "templates.remove", "templates.set"),
    *("tenants.pin", "tenants.remove", "tenants.set", "tenants.set_fair", "tenants.set_registered_only"),
    *("tenants.unpin", "tokens.end_session", "tokens.issue", "tokens.open_session", "tokens.revoke", "tokens.used"),
    *("webhooks.add", "webhooks.change", "webhooks.disable", "webhooks.enable", "webhooks.note_delivery"),
    *("webhooks.remove", "workflows.cancel", "workflows.extend", "workflows.resume", "workflows.start"),
}
READS = {
    *("agents.get", "agents.list", "approvals.get", "approvals.list", "approvals.token", "approvals.votes"),
    *("attempts.log", "audit.actions", "audit.block", "audit.fingerprints", "audit.get_seal", "audit.recent_events"),
    *("audit.sealed", "audit.unsealed", "clock.now", "connectors.get", "connectors.list", "consumers.list"),
    *("dead_letters.group", "dead_letters.group_of", "dead_letters.groups", "dead_letters.remade", "executors.list"),
    *("health.activity", "health.get", "health.latest", "health.queues", "health.recent", "health.statistics"),
    *("health.workers", "jobs.artifacts", "jobs.attempts", "jobs.by_payload", "jobs.capped_counts", "jobs.chain"),
    *("jobs.checkpoints", "jobs.circumstances", "jobs.counts", "jobs.get", "jobs.history", "jobs.list", "jobs.notes"),
    *("jobs.payload_indexes", "jobs.references", "jobs.result", "leases.cancellations", "leases.holdings"),
    *("ledger.cursor", "ledger.end", "ledger.read", "ledger.read_sent", "limits.list", "operations.get"),
    *("operations.list", "operations.next", "pauses.list", "payload_rules.list", "payload_rules.sealed_parts"),
    *("payload_rules.sealed_payloads", "queues.list", "reservations.get", "reservations.list", "retention.list"),
    *("retention.preview", "schedules.declared", "schedules.due", "schedules.fires", "schedules.get"),
    *("schedules.list", "steps.requires_approval", "steps.list", "subscriptions.active", "subscriptions.behind"),
    *("subscriptions.deliveries", "subscriptions.get", "subscriptions.list", "templates.get", "templates.list"),
    *("templates.made_from", "templates.scheduled_at", "templates.versions", "tenants.fair_queues", "tenants.list"),
    *("tenants.next_share", "tenants.pinned", "tenants.pins", "tenants.registered_only", "tokens.find"),
    *("tokens.list", "usage.list", "webhooks.deliveries", "webhooks.get", "webhooks.list", "workflows.failure"),
    *("workflows.get", "workflows.graph", "workflows.list", "workflows.members", "workflows.name_of"),
    *("workflows.named", "workflows.parent_results"),
}
EFFECTS = {"claiming", "settling"}
STORES = ("sqlite", "postgres")
WHEN: tuple[When, ...] = ("before", "after")
TYPES = sorted(operations() - NOT_WORKER_WRITES - READS)


def prepare(store_url: str) -> list[str]:
    """Create work for every operation: jobs to claim, fail, save, spawn, promote and expire, a job of a lost worker, a
    job with steps, an approval that expires, and a dead letter with a bulk redrive."""
    with closing(open_store(store_url)) as store:
        (dead,) = put(store, spec("work", payload={"number": 8}, retry=PATIENT))
        settle(store, claim(store, open_lease(store, "gave up")), FINAL)
        everything = JobFilter(tenant="default")
        store.run(store.operations.start(NewOperation(new_id(), "redrive"), everything, "ada", "default"))
        (lost,) = put(store, spec("work", payload={"number": 1}, retry=PATIENT))
        lease = open_lease(store, "lost before")
        assert claim(store, lease)
        store.run(store.leases.end(lease, "lost", "*"))
        now = store.run(store.clock.now())
        payload = {"payload": {"number": 7}}
        follow = NewSubscription.of("follow", "job.enqueue", "work", kind="spawn", start="beginning", options=payload)  # type: ignore[arg-type]
        store.run(store.subscriptions.set(follow, new_id(), "ada", "default"))
        return [
            lost,
            *put(
                store,
                spec("work", payload={"number": 2, "nap": 0.3}, retry=PATIENT),  # long enough for heartbeats
                spec("awork", payload={"number": 3}, retry=PATIENT),
                spec("save", payload={"steps": 2}, retry=PATIENT),
                spec("flaky", payload={"fails": 1}, retry=AT_ONCE),
                spec("spawn", payload={"number": 4}, retry=PATIENT),
                spec("work", payload={"number": 5}, retry=PATIENT, delay=0.001),
                spec("work", payload={"number": 6}, retry=PATIENT, deadline_at=now + timedelta(microseconds=1)),
                spec("walk", payload={"steps": 3}, retry=PATIENT),
            ),
            asking(store, expires_in=0.000001).job_id,
            dead,
        ]


def run_case(app: App, folder: Path, case: tuple[str, CrashPoint] | None) -> None:
    url, point = session_of(app).store.url, None if case is None else case[1]
    ids = prepare(url)
    consumer = Consumer(session_of(app).store, 3)
    consumer.poll()
    victim = start_worker(url, folder, point, burst=True)
    victim.join(60)
    if point is not None and victim.exitcode == 0:
        pytest.skip(f"no worker reaches {point}")
    assert victim.exitcode == (0 if point is None else EXIT_CODE), (folder / "worker.log").read_text()
    consumer.poll()
    rescuer = start_worker(url, folder, burst=False)
    try:
        # The dead letter counts as ended until the bulk operation has redriven it.
        until(lambda: all(each.state != "running" for each in app.operations.list()), "the operation is done", 60)
        wait_for_all(app, len(ids) + 2)  # plus the child and the job of the subscription
    finally:
        rescuer.kill()
        rescuer.join(10)
    consumer.drain()
    others = sorted({event.job_id for event in consumer.seen} - set(ids))
    assert len(others) == 2
    seen = [(event.seq, event.job_id) for event in consumer.seen]
    snapshot = check(url, [*ids, *others], folder=folder, within=RECOVERY_LIMIT, seen=seen)
    ends = [snapshot.rows[job].state for job in [*ids, *others]]
    assert ends == [*[State.SUCCEEDED] * 7, State.FAILED, State.SUCCEEDED, State.FAILED, *[State.SUCCEEDED] * 3]
    assert [event.type for event in snapshot.ledgers[ids[10]]].count("redrive") == 1
    _check_steps_ran_once(app, folder, ids[8])
    steps = [event.type for event in snapshot.ledgers[ids[4]]]
    # The job may have crashed with its worker instead of failing. Either way each end has exactly one retry (SC-12).
    assert steps.count("fail") <= 1
    assert steps.count("retry") == steps.count("fail") + steps.count("lease_expired")


def _check_steps_ran_once(app: App, folder: Path, job: str) -> None:
    """A stored step was not run again: the attempt stored with it is the last that ran it."""
    done = {
        step.name: step.attempt for step in session_of(app).store.run(session_of(app).store.steps.list(job, "default"))
    }
    assert sorted(done) == ["step 1", "step 2", "step 3"]
    for name, attempt in done.items():
        assert max(effect.attempt for effect in effects(folder, name) if effect.job == job) == attempt, name


# -- the points ------------------------------------------------------------------------------------------------

CONCURRENT_CASES = 5

CASES: list[tuple[str, CrashPoint]] = [
    *((store, CrashPoint(operation, when)) for store in STORES for operation in TYPES for when in WHEN),
    # On PostgreSQL an operation is one statement that the server commits: there is no point within it.
    *(("sqlite", CrashPoint(operation, "within")) for operation in TYPES),
    *((store, CrashPoint(operation, "after", nth=2)) for store in STORES for operation in ("claiming", "leases.renew")),
    *((store, CrashPoint("settling", when)) for store in STORES for when in WHEN),
    ("sqlite", CrashPoint("settling", "within")),
]


@pytest.mark.sample(8)
@pytest.mark.turns(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]}")
def test_jobs_recover_from_crash(case_results: dict[object, Future[None]], case: tuple[str, CrashPoint]) -> None:
    case_results[case].result(timeout=100)


def test_every_worker_write_is_a_crash_point(app: App, folder: Path) -> None:
    """New operations become crash points automatically; other writes must be added here."""
    run_case(app, folder, None)
    # Some reads are not marked as reads, and these tests have no artifact store.
    recorded = recorded_operations(folder)
    assert recorded <= set(TYPES) | EFFECTS | READS | {"retention.orphans"}
    assert {
        "leases.open",
        "leases.renew",
        "leases.end",
        "jobs.enqueue",
        "steps.save_checkpoint",
        *EFFECTS,
    } <= recorded_operations(folder)
