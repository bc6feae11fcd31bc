"""Fault 3: a worker's process is gone at every boundary it has with the database, one test a point.

Before a write nothing has happened; within one, on a store whose writes are several statements, nothing must have;
after one, all of it has and nobody was told. Whichever it is, another worker makes good of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.features.assembly import Verbs, open_store
from holdfast.features.dead_letters.model import Starting
from holdfast.features.events.model import Subscribing
from holdfast.stores.requests import JobFilter
from tests.faults.checker import IN_TIME, check
from tests.faults.crashing import GONE, Point, When, flows, start
from tests.faults.effects import effects
from tests.faults.load import AT_ONCE, PATIENT
from tests.faults.waiting import all_ended
from tests.support.databases import TemplateDatabases
from tests.support.ledger import check_ledger
from tests.support.people import asking
from tests.support.stores import FINAL, claim, new_id, open_lease, put, settle, spec
from tests.support.transactions import Consumer

pytestmark = pytest.mark.req("CX-15", "SC-11", "SC-19", "DP-8")

# What only people, tests, consumers and other runtimes call; the rest are a worker's, also those that come later.
NOT_A_WORKERS = {"operate", "set_clock", "save_cursor", "claim", "settle", "start", "release", "add_artifact", "watch"}
NOT_A_WORKERS |= {"reschedule", "move", "send_event", "rewind", "decide_gate", "keep_gate_token", "gate_hashes"}
NOT_A_WORKERS |= {"set_limit", "remove_limit", "reserve", "release_reservation", "set_aging"}
NOT_A_WORKERS |= {"register_agent", "disable_agent", "drain_agent", "enable_agent", "resume_agent"}
NOT_A_WORKERS |= {"put_template", "remove_template", "enqueue_made", "run_schedule"}
NOT_A_WORKERS |= {"add_schedule", "change_schedule", "declare_schedules"}  # parts of the flow called fire_schedules
NOT_A_WORKERS |= {"start_workflow", "add_to_workflow", "cancel_workflow", "resume_workflow"}
READS = {"events_after", "cursor_of", "now", "get", "list_jobs", "history", "attempts", "artifacts", "checkpoints"}
READS |= {"result", "health", "pulse", "counts", "recalls", "holdings", "agent", "agents", "asks_first", "notes"}
READS |= {"steps", "gate", "gates", "votes", "workflow", "workflows", "graph", "named", "parent_results"}
READS |= {"template", "templates", "template_versions", "made_from", "schedule", "schedules", "declared_schedules"}
READS |= {"due_schedules", "fires", "limits", "reservation", "reservations", "queue_settings"}
NOT_A_WORKERS |= {
    "pause_subscription",
    "resume_subscription",
    "delete_subscription",
    "reset_consumer",
    "remove_consumer",
}
NOT_A_WORKERS |= {"set_tenant", "remove_tenant", "set_fair", "set_registered_only", "find_leftovers"}
NOT_A_WORKERS |= {"add_executor", "remove_executor", "pause", "resume", "subscription_failed", "save_subscription"}
READS |= {"recent_events"}
READS |= {"app_events_after", "chain", "circumstances", "executors", "consumers", "subscription", "subscriptions"}
READS |= {"active_subscriptions", "deliveries", "behind", "switches", "hour", "standing"}
NOT_A_WORKERS |= {"set_payload_rule", "delete_payload_rule", "declare_rules", "reseal", "reseal_part"}
READS |= {"payload_rules", "references", "sealed_payloads", "sealed_parts"}
READS |= {"tenants", "fair_queues", "turn_of", "registered_only", "gate_token"}
NOT_A_WORKERS |= {"leftovers", "forget_leftovers"}  # of one with an artifact store: tests/app/test_leftovers.py
NOT_A_WORKERS |= {"note_dead_letters", "redrive_as", "start_operation", "cancel_operation"}
READS |= {"dead_letter_groups", "dead_letter_group", "group_of", "remade", "operation", "operations", "next_operation"}
READS |= {"seal", "block", "tail", "sealed", "fingerprints", "actions"}
NOT_A_WORKERS |= {"add_endpoint", "change_endpoint", "disable_endpoint", "enable_endpoint", "remove_endpoint"}
NOT_A_WORKERS |= {"note_endpoint_delivery"}  # of a worker that delivers: tests/faults/test_27_webhook_storm.py
NOT_A_WORKERS |= {"set_connector", "remove_connector"}
NOT_A_WORKERS |= {"set_aside"}  # after a row was refused: tests/faults/test_51_bad_row.py
READS |= {"connector", "connectors"}
READS |= {"endpoint", "endpoints", "endpoint_deliveries"}
DOES = {"claiming", "settling"}
STORES = ("sqlite", "postgres")
WHEN: tuple[When, ...] = ("before", "after")
NOT_A_WORKERS |= {"set_retention", "delete_retention"}
NOT_A_WORKERS |= {"issue_token", "revoke_token", "open_session", "end_session", "token_used"}
READS |= {"token_of", "tokens"}
READS |= {"retentions", "preview_retention", "usage", "ledger_end", "capped_counts"}
VERBS = sorted({name for name in dir(Verbs) if not name.startswith("_")} - NOT_A_WORKERS - READS)


def prepare(store_url: str) -> list[str]:
    """Something for every verb: to take, to fail, to save, to spawn, to promote, to expire, a lost worker's job, steps,
    a question that nobody answers in time, and a dead letter that is to be redriven in bulk."""
    with closing(open_store(store_url)) as store:
        (dead,) = put(store, spec("work", payload={"number": 8}, retry=PATIENT))
        settle(store, claim(store, open_lease(store, "gave up")), FINAL)
        everything = JobFilter(tenant="default")
        store.run(store.verbs.start_operation(Starting(new_id(), "redrive"), everything, "ada", "default"))
        (lost,) = put(store, spec("work", payload={"number": 1}, retry=PATIENT))
        lease = open_lease(store, "lost before")
        assert claim(store, lease)
        store.run(store.verbs.end_lease(lease, "lost", "*"))
        now = store.run(store.verbs.now())
        payload = {"payload": {"number": 7}}
        follow = Subscribing.of("follow", "job.enqueue", "work", kind="spawn", start="beginning", options=payload)  # type: ignore[arg-type]
        store.run(store.verbs.save_subscription(follow, new_id(), "ada", "default"))
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


def play(app: App, folder: Path, point: Point | None) -> None:
    url = app.store.url
    ids = prepare(url)
    consumer = Consumer(app.store, 3)
    consumer.poll()
    victim = start(url, folder, point, burst=True)
    victim.join(60)
    if point is not None and victim.exitcode == 0:
        pytest.skip(f"no worker comes to {point}")
    assert victim.exitcode == (0 if point is None else GONE), (folder / "crashing.log").read_text()
    consumer.poll()
    rescuer = start(url, folder, burst=False)
    try:
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
    assert [step.verb for step in picture.ledgers[ids[10]]].count("redrive") == 1
    _steps_were_done_once(app, folder, ids[8])
    steps = [step.verb for step in picture.ledgers[ids[4]]]
    # It may have died with its worker instead of failing. Either way each end has one retry, not none, not two (SC-12).
    assert steps.count("fail") <= 1
    assert steps.count("retry") == steps.count("fail") + steps.count("lapse")


def _steps_were_done_once(app: App, folder: Path, job: str) -> None:
    """One that is remembered was not done again: the attempt that is written with it is the last that did it."""
    done = {step.name: step.attempt for step in app.store.run(app.store.verbs.steps(job, "default"))}
    assert sorted(done) == ["step 1", "step 2", "step 3"]
    for name, attempt in done.items():
        assert max(effect.attempt for effect in effects(folder, name) if effect.job == job) == attempt, name


# -- the points ------------------------------------------------------------------------------------------------

# A point is mostly waiting for a lease to lapse, so several are played at a time, each on a database of its own; every
# test then asks for the end of its own.
AT_A_TIME = 5

CASES: list[tuple[str, Point]] = [
    *((store, Point(verb, when)) for store in STORES for verb in VERBS for when in WHEN),
    # On PostgreSQL a verb is one statement, and the server commits it: there is no within.
    *(("sqlite", Point(verb, "within")) for verb in VERBS),
    *((store, Point(verb, "after", nth=2)) for store in STORES for verb in ("claiming", "renew_lease")),
    *((store, Point("settling", when)) for store in STORES for when in WHEN),
    ("sqlite", Point("settling", "within")),
]


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    sqlite_template: Path,
    postgres_databases: TemplateDatabases,
) -> Iterator[dict[object, Future[None]]]:
    """The ends of all points that were chosen for this run."""

    base = tmp_path_factory.mktemp("points")  # here: the factory is not for several threads

    def one(case: tuple[str, Point]) -> None:
        store, point = case
        place = base / f"{store} {point}"
        place.mkdir()
        with ExitStack() as stack:
            if store == "postgres":
                url = stack.enter_context(postgres_databases.fresh())
            else:
                url = f"sqlite:///{shutil.copyfile(sqlite_template, place / 'jobs.db')}"
            app = stack.enter_context(closing(App(url, name="tests", enqueued_by="tester")))
            play(app, place, point)
            check_ledger(app.store)

    with postgres_databases.fresh(), ThreadPoolExecutor(AT_A_TIME) as pool:  # the template is there before they begin
        specs = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
        chosen = [spec.params["case"] for spec in specs if spec is not None and "case" in spec.params]
        yield {case: pool.submit(one, case) for case in chosen}


@pytest.mark.sample(8)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]}")
def test_gone(played: dict[object, Future[None]], case: tuple[str, Point]) -> None:
    played[case].result(timeout=100)


def test_every_write_of_a_worker_is_a_point(app: App, folder: Path) -> None:
    """A verb that is new comes by itself; one that is no verb has to be looked at."""
    play(app, folder, None)
    # Some reads do not say that they only read; and nobody here has left anything in an artifact store.
    assert flows(folder) <= set(VERBS) | DOES | READS | {"leftovers"}
    assert {"open_lease", "renew_lease", "end_lease", "enqueue", "save_checkpoint", *DOES} <= flows(folder)
