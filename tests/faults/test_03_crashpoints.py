"""Fault 3: a worker's process is gone at every boundary it has with the database, one test a point.

Before a write nothing has happened; within one, on a store whose writes are several statements, nothing must have;
after one, all of it has and nobody was told. Whichever it is, another worker makes good of it.
"""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.features.assembly import open_store
from holdfast.features.dead_letters.model import NewOperation
from holdfast.features.events.model import Subscribing
from holdfast.stores.requests import JobFilter
from tests.faults.checker import IN_TIME, check
from tests.faults.crashing import GONE, Point, When, flows, start
from tests.faults.effects import effects
from tests.faults.load import AT_ONCE, PATIENT
from tests.faults.waiting import all_ended
from tests.support.operations import operations
from tests.support.steps import asking
from tests.support.stores import FINAL, claim, new_id, open_lease, put, settle, spec
from tests.support.transactions import Consumer
from tests.support.waiting import until

pytestmark = pytest.mark.req("CX-15", "SC-11", "SC-19", "DP-8")

# What only people, tests, consumers and other runtimes call; the rest are a worker's, also those that come later.
NOT_A_WORKERS = {
    "jobs.operate",
    "clock.set",
    "ledger.save_cursor",
    "leases.claim",
    "leases.settle",
    "leases.start",
    "leases.release",
    "steps.add_artifact",
    "attempts.append_log",
    "jobs.watch",
}
NOT_A_WORKERS |= {
    "jobs.reschedule",
    "jobs.move",
    "ledger.send",
    "steps.rewind",
    "approvals.decide",
    "approvals.save_token",
    "approvals.token_hashes",
}
NOT_A_WORKERS |= {"limits.set", "limits.remove", "reservations.set", "reservations.release", "queues.set_aging"}
NOT_A_WORKERS |= {"agents.set", "agents.disable", "agents.drain", "agents.enable", "agents.resume"}
NOT_A_WORKERS |= {"templates.set", "templates.remove", "templates.enqueue", "schedules.run"}
NOT_A_WORKERS |= {"schedules.add", "schedules.change", "schedules.declare"}  # parts of the flow called schedules.fire
NOT_A_WORKERS |= {"workflows.start", "workflows.extend", "workflows.cancel", "workflows.resume"}
READS = {
    "ledger.read",
    "ledger.cursor",
    "clock.now",
    "jobs.get",
    "jobs.list",
    "jobs.history",
    "jobs.attempts",
    "jobs.artifacts",
    "jobs.checkpoints",
    "attempts.log",
}
READS |= {
    "jobs.result",
    "health.get",
    "health.statistics",
    "jobs.counts",
    "leases.cancellations",
    "leases.holdings",
    "agents.get",
    "agents.list",
    "steps.asks_first",
    "jobs.notes",
}
READS |= {
    "steps.list",
    "approvals.get",
    "approvals.list",
    "approvals.votes",
    "workflows.get",
    "workflows.list",
    "workflows.graph",
    "workflows.named",
    "workflows.parent_results",
    "workflows.failure",
    "workflows.members",
    "workflows.name_of",
}
READS |= {
    "templates.get",
    "templates.list",
    "templates.versions",
    "templates.made_from",
    "templates.scheduled_at",
    "schedules.get",
    "schedules.list",
    "schedules.declared",
}
READS |= {"schedules.due", "schedules.fires", "limits.list", "reservations.get", "reservations.list", "queues.list"}
NOT_A_WORKERS |= {
    "subscriptions.pause",
    "subscriptions.resume",
    "subscriptions.remove",
    "consumers.reset",
    "consumers.remove",
}
NOT_A_WORKERS |= {
    "tenants.set",
    "tenants.remove",
    *("tenants.set_fair", "tenants.pin", "tenants.unpin", "jobs.fill_payload_index", "jobs.remove_payload_index"),
    "tenants.set_registered_only",
    "retention.find_orphans",
}
NOT_A_WORKERS |= {
    "executors.add",
    "executors.remove",
    "pauses.set",
    "pauses.remove",
    "subscriptions.failed",
    "subscriptions.set",
}
READS |= {"audit.recent_events"}
READS |= {
    "ledger.read_sent",
    "jobs.chain",
    "jobs.circumstances",
    "executors.list",
    "consumers.list",
    "subscriptions.get",
    "subscriptions.list",
}
READS |= {
    "subscriptions.active",
    "subscriptions.deliveries",
    "subscriptions.behind",
    "pauses.list",
    "health.activity",
    "health.latest",
    "health.queues",
    "health.recent",
    "health.workers",
}
NOT_A_WORKERS |= {
    "payload_rules.set",
    "payload_rules.remove",
    "payload_rules.declare",
    "payload_rules.reseal",
    "payload_rules.reseal_part",
}
READS |= {"payload_rules.list", "jobs.references", "payload_rules.sealed_payloads", "payload_rules.sealed_parts"}
READS |= {"tenants.pins", "tenants.pinned", "jobs.by_payload", "jobs.payload_indexes"}
READS |= {"tenants.list", "tenants.fair_queues", "tenants.next_share", "tenants.registered_only", "approvals.token"}
NOT_A_WORKERS |= {
    "retention.orphans",
    "retention.forget_orphans",
}  # of one with an artifact store: tests/app/test_orphaned_files.py
NOT_A_WORKERS |= {
    "leases.request_stop",
    "dead_letters.note",
    "dead_letters.redrive_as",
    "operations.start",
    "operations.cancel",
}
READS |= {
    "dead_letters.groups",
    "dead_letters.group",
    "dead_letters.group_of",
    "dead_letters.remade",
    "operations.get",
    "operations.list",
    "operations.next",
}
READS |= {"audit.get_seal", "audit.block", "audit.unsealed", "audit.sealed", "audit.fingerprints", "audit.actions"}
NOT_A_WORKERS |= {"webhooks.add", "webhooks.change", "webhooks.disable", "webhooks.enable", "webhooks.remove"}
NOT_A_WORKERS |= {"webhooks.note_delivery"}  # of a worker that delivers: tests/faults/test_27_webhook_storm.py
NOT_A_WORKERS |= {"connectors.set", "connectors.remove"}
NOT_A_WORKERS |= {"leases.set_aside"}  # after a row was refused: tests/faults/test_51_bad_row.py
READS |= {"connectors.get", "connectors.list"}
READS |= {"webhooks.get", "webhooks.list", "webhooks.deliveries"}
DOES = {"claiming", "settling"}
STORES = ("sqlite", "postgres")
WHEN: tuple[When, ...] = ("before", "after")
NOT_A_WORKERS |= {"retention.set", "retention.remove"}
NOT_A_WORKERS |= {"tokens.issue", "tokens.revoke", "tokens.open_session", "tokens.end_session", "tokens.used"}
READS |= {"tokens.find", "tokens.list"}
READS |= {"retention.list", "retention.preview", "usage.list", "ledger.end", "jobs.capped_counts"}
TYPES = sorted(operations() - NOT_A_WORKERS - READS)


def prepare(store_url: str) -> list[str]:
    """Rows for every operation: to take, to fail, to save, to spawn, to promote, to expire, a lost worker's job, steps,
    a question that nobody answers in time, and a dead letter that is to be redriven in bulk."""
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
        follow = Subscribing.of("follow", "job.enqueue", "work", kind="spawn", start="beginning", options=payload)  # type: ignore[arg-type]
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


def play(app: App, folder: Path, case: tuple[str, Point] | None) -> None:
    url, point = app._store.url, None if case is None else case[1]
    ids = prepare(url)
    consumer = Consumer(app._store, 3)
    consumer.poll()
    victim = start(url, folder, point, burst=True)
    victim.join(60)
    if point is not None and victim.exitcode == 0:
        pytest.skip(f"no worker comes to {point}")
    assert victim.exitcode == (0 if point is None else GONE), (folder / "crashing.log").read_text()
    consumer.poll()
    rescuer = start(url, folder, burst=False)
    try:
        # The dead letter counts as ended until the operation has redriven it.
        until(lambda: all(each.state != "running" for each in app.operations.list()), "the operation is done", 60)
        all_ended(app, len(ids) + 2)  # and the one child, and the one that an event made
    finally:
        rescuer.kill()
        rescuer.join(10)
    consumer.drain()
    others = sorted({event.job_id for event in consumer.seen} - set(ids))
    assert len(others) == 2
    seen = [(event.seq, event.job_id) for event in consumer.seen]
    picture = check(url, [*ids, *others], folder=folder, within=IN_TIME, seen=seen)
    ends = [picture.rows[job].state for job in [*ids, *others]]
    assert ends == [*[State.SUCCEEDED] * 7, State.FAILED, State.SUCCEEDED, State.FAILED, *[State.SUCCEEDED] * 3]
    assert [step.type for step in picture.ledgers[ids[10]]].count("redrive") == 1
    _steps_were_done_once(app, folder, ids[8])
    steps = [step.type for step in picture.ledgers[ids[4]]]
    # It may have died with its worker instead of failing. Either way each end has one retry, not none, not two (SC-12).
    assert steps.count("fail") <= 1
    assert steps.count("retry") == steps.count("fail") + steps.count("lapse")


def _steps_were_done_once(app: App, folder: Path, job: str) -> None:
    """One that is remembered was not done again: the attempt that is written with it is the last that did it."""
    done = {step.name: step.attempt for step in app._store.run(app._store.steps.list(job, "default"))}
    assert sorted(done) == ["step 1", "step 2", "step 3"]
    for name, attempt in done.items():
        assert max(effect.attempt for effect in effects(folder, name) if effect.job == job) == attempt, name


# -- the points ------------------------------------------------------------------------------------------------

AT_A_TIME = 5

CASES: list[tuple[str, Point]] = [
    *((store, Point(operation, when)) for store in STORES for operation in TYPES for when in WHEN),
    # On PostgreSQL an operation is one statement, and the server commits it: there is no within.
    *(("sqlite", Point(operation, "within")) for operation in TYPES),
    *((store, Point(operation, "after", nth=2)) for store in STORES for operation in ("claiming", "leases.renew")),
    *((store, Point("settling", when)) for store in STORES for when in WHEN),
    ("sqlite", Point("settling", "within")),
]


@pytest.mark.sample(8)
@pytest.mark.turns(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]}")
def test_gone(played: dict[object, Future[None]], case: tuple[str, Point]) -> None:
    played[case].result(timeout=100)


def test_every_write_of_a_worker_is_a_point(app: App, folder: Path) -> None:
    """An operation that is new comes by itself; one that is no operation has to be looked at."""
    play(app, folder, None)
    # Some reads do not say that they only read; and nobody here has left anything in an artifact store.
    assert flows(folder) <= set(TYPES) | DOES | READS | {"retention.orphans"}
    assert {"leases.open", "leases.renew", "leases.end", "jobs.enqueue", "steps.save_checkpoint", *DOES} <= flows(
        folder
    )
