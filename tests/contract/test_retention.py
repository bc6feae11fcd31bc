"""Retention: which jobs are cleaned and purged, when, and which never are (DP-16, CX-12)."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import pytest

from holdfast.engine.job import EVERY_TENANT, Job
from holdfast.engine.outcome import Failed, Outcome, Succeeded
from holdfast.engine.states import State
from holdfast.engine.steps import StepEntry
from holdfast.errors import InvalidSetting
from holdfast.features.assembly import Store, open_store
from holdfast.features.audit.store import ActionFilter
from holdfast.features.dead_letters.model import NewOperation
from holdfast.features.events.model import NewSubscription
from holdfast.features.limits.model import ReservationRequest
from holdfast.features.retention.model import ANY, Retention, RetentionRule
from holdfast.features.tokens.model import new_token
from holdfast.stores.requests import JobFilter
from tests.support.direct_sql import ByHand
from tests.support.features import flaws, issuing, keep, naming, open_session, seal, sent, sweep, webhook
from tests.support.ledger import all_jobs, read_events
from tests.support.schedules import add, decided, firing
from tests.support.steps import approve, asking, keep_token
from tests.support.stores import (
    DONE,
    FINAL,
    apply,
    claim,
    decide_on,
    enqueue,
    forward,
    history,
    job,
    new_id,
    open_lease,
    put,
    put_one,
    settle,
    spec,
    state_of,
    take,
    tries,
    types_of,
    work,
)
from tests.support.workflows import Flow

CANARY = "canary-4711"


def policy_for(policies: Iterable[Retention], tenant: str, kind: str, state: str) -> Retention | None:
    """The policy that applies: of those that match, one that names the tenant wins, then the kind, then the state."""
    matching = [policy for policy in policies if _matches(policy, tenant, kind, state)]
    return min(
        matching, key=lambda policy: (policy.tenant == ANY, policy.kind == ANY, policy.state == ANY), default=None
    )


def _matches(policy: Retention, tenant: str, kind: str, state: str) -> bool:
    return (
        policy.tenant in (ANY, tenant)
        and policy.kind in (ANY, kind)
        and (policy.state == state or (policy.state == ANY and state != "dead_letter"))
    )


@pytest.mark.req("DP-16", "CX-12")
def test_most_specific_policy_applies_alone(store: Store) -> None:
    """As the pure function decides, for every tenant, kind and end; without a policy nothing is removed."""
    ends: dict[State, Outcome | None] = {State.SUCCEEDED: DONE, State.DEAD_LETTER: FINAL, State.CANCELLED: None}
    jobs = {}
    for tenant in ("acme", "default"):
        for kind in ("mail", "report"):
            for state, outcome in ends.items():
                job_id = put_one(store, kind, tenant=tenant)
                if outcome is None:
                    store.run(store.jobs.operate("cancel", [job_id], None, "ada", tenant))
                else:
                    settle(store, take(store), outcome)
                jobs[job_id] = (tenant, kind, state)
    forward(store, 86_400 * 3650)
    assert sweep(store)["clean"] == 0
    keep(store, "1h")
    keep(store, kind="report")  # for ever
    keep(store, "2h", state="cancelled", tenant="acme")
    keep(store, "3h", kind="report", state="succeeded", tenant="acme")
    keep(store, "4h", kind="mail", state="dead_letter", tenant="default")
    policies = store.run(store.retention.list(EVERY_TENANT))
    for hours in (0.5, 1.5, 2.5, 3.5, 4.5):
        # The jobs ended long ago: the clock moves back to `hours` after that.
        store.run(store.clock.set(timedelta(0), job(store, next(iter(jobs))).created_at + timedelta(hours=hours)))
        keep(store, f"{100 + hours}h", kind="other")  # a changed policy restarts all passes
        sweep(store)
        for job_id, (tenant, kind, state) in jobs.items():
            policy = policy_for(policies, tenant, kind, state)
            due = policy is not None and policy.clean_after is not None and policy.clean_after < hours * 3600
            assert state_of(store, job_id) == (State.CLEANED if due else state), (hours, tenant, kind, state)
    assert [state_of(store, each) for each, (_, _, end) in jobs.items() if end is State.DEAD_LETTER].count(
        State.CLEANED
    ) == 1


@pytest.mark.req("DP-16", "CX-4")
def test_cleaning_removes_job_data_and_keeps_the_ledger(store: Store, by_hand: ByHand) -> None:
    """After cleaning, a word of its payload, result, checkpoints, steps, artifacts and error is in the ledger only."""
    job_id = put_one(store, payload={"word": CANARY}, tags=("blue",), key="k-1", retry=tries(2))
    held = take(store)
    for name in ("mine", "progress"):
        assert store.run(store.steps.save_checkpoint(job_id, held.lease, 1, name, f'{{"at": "{CANARY}"}}', "*"))
    assert store.run(store.steps.add_artifact(job_id, held.lease, 1, "file", f"s3://{CANARY}", "*"))
    store.run(store.steps.save(held.lease, [(job_id, 1, StepEntry(1, "s", "step", f'"{CANARY}"'))], "*"))
    settle(store, held, Failed("broken", f"bad {CANARY}", traceback=f"at {CANARY}", note={"log": CANARY}))
    forward(store, 1000)
    store.run(store.leases.promote())
    settle(store, take(store), Succeeded(f'"{CANARY}"'))
    assert naming(by_hand, CANARY) >= {"job", "checkpoint", "artifact", "step", "event", "result"}
    before = history(store, job_id)
    keep(store, "1h")
    forward(store, 3500)
    assert sweep(store)["clean"] == 0
    forward(store, 200)
    assert sweep(store)["clean"] == 1
    assert naming(by_hand, CANARY) == {"event"}
    stored, after = job(store, job_id), history(store, job_id)
    assert (stored.state, stored.payload, stored.tags) == (State.CLEANED, {}, ("blue",))
    assert [event.type for event in after] == [*(event.type for event in before), "clean"]
    assert after[-1].actor == "retention"
    assert after[:-1] == before, "the ledger is unchanged"
    (again,) = enqueue(store, spec(key="k-1", payload={"word": CANARY}))
    assert (again.id, again.created) == (job_id, False)
    assert sweep(store)["clean"] == 0


@pytest.mark.req("DP-16", "CX-12")
def test_purged_job_leaves_no_trace(store: Store, by_hand: ByHand) -> None:
    """Keys, tags, approvals, votes, the schedule and event that made it, its workflow are gone; its keys are free."""
    pending = asking(store, quorum=2)
    keep_token(store, pending.id, "h")
    approve(store, pending.id)
    store.run(store.jobs.operate("cancel", [pending.job_id], None, "ada", "default"))
    schedule = add(store)
    assert schedule.next_fire_at is not None
    fired = firing(schedule.next_fire_at)
    assert store.run(store.schedules.fire([decided(schedule, fired)], "*")) == 1
    follow = NewSubscription.of("follow", "job.enqueue", "followed", kind="report", start="beginning")
    store.run(store.subscriptions.set(follow, new_id(), "ada", "default"))
    assert store.run(store.subscriptions.feed("follow", 100, "default")).made == 1
    flow = Flow(store, {"a": (), "b": "a"})
    flow.start()
    keyed = put_one(store, payload={"x": 1}, key="k-1", content_key="c-1", dedupe="skip", tags=("blue", "red"))
    ids = [
        pending.job_id,
        keyed,
        *flow.ids.values(),
        *(result.id for result in _all(store) if result.kind != "mail.send"),
    ]
    while claimed := claim(store, open_lease(store), 100):
        settle(store, claimed)
    while store.run(store.subscriptions.feed("follow", 100, "default")).seen:
        pass
    keep(store, "1h", "2h")
    forward(store, 3700)
    assert sweep(store)["clean"] == len(set(ids))
    seal(store)
    forward(store, 3700)
    stays = put_one(store)  # the newest row of SQLite's ledger stays
    while store.run(store.subscriptions.feed("follow", 100, "default")).seen:
        pass
    assert sweep(store)["purge"] == len(set(ids))
    everything = repr({table: rows for table, rows in by_hand.contents().items() if table != "action"})
    assert [name for name in (*ids, pending.id, flow.id) if name in everything] == []
    assert flaws(store) == [], "the seals hold without the purged events"
    assert by_hand.execute("select count(*) from fire") == by_hand.execute("select count(*) from delivery") == [(0,)]
    assert enqueue(store, spec(key="k-1", payload={"y": 2}, content_key="c-1", dedupe="skip"))[0].created
    assert state_of(store, stays) is State.QUEUED


def _all(store: Store) -> list[Job]:
    return list(all_jobs(store))


@pytest.mark.req("DP-16", "DP-12")
def test_purge_waits_for_consumers_and_subscriptions(store: Store) -> None:
    """Events that a consumer or a paused subscription has not read stay, and the report names it."""
    put(store, *(spec() for _ in range(3)))
    work(store, want=3)
    (first,) = store.run(store.ledger.read(None, 1, "*"))
    assert store.run(store.ledger.save_cursor("slow", first.cursor, None, "*"))
    follow = NewSubscription.of("follow", "job.succeed", "followed", kind="other", start="beginning")
    store.run(store.subscriptions.set(follow, new_id(), "ada", "default"))
    store.run(store.subscriptions.pause("follow", None, "ada", "default"))
    keep(store, None, "1h")
    forward(store, 4000)
    assert sweep(store) == {"clean": 3, "purge": 0, "prune": 0, "held": 3}
    (result,) = [each for each in store.run(store.retention.preview("*")) if each.action == "purge"]
    assert (result.due, result.held, result.held_by) == (3, 3, "consumer slow")
    put_one(store)
    last = read_events(store, after=first.cursor)[-1]
    assert store.run(store.ledger.save_cursor("slow", last.cursor, first.cursor, "*"))
    forward(store, 30)
    sweep(store)
    (result,) = [each for each in store.run(store.retention.preview("*")) if each.action == "purge"]
    assert (result.due, result.held_by) == (3, "subscription follow")
    store.run(store.subscriptions.resume("follow", True, "default"))
    forward(store, 30)
    assert sweep(store)["purge"] == 3


@pytest.mark.req("DP-16", "DP-14", "SC-6")
def test_jobs_needed_by_workflows_and_retries_stay(store: Store) -> None:
    """Jobs of a workflow stay until all of it has ended without a dead letter; so does a job whose retry is open."""
    flow = Flow(store, {"a": (), "b": "a", "c": "b"})
    flow.start()
    settle(store, take(store))
    settle(store, take(store), FINAL)  # b is dead and may be redriven: it would read the result of a
    first = put_one(store, "again", retry=tries(3), retry_as="new_job")
    settle(store, take(store), Failed("broken", "it broke"))
    (second,) = (result.id for result in _all(store) if result.retry_of == first)
    keep(store, "1h", "100h")
    forward(store, 10_000)
    assert sweep(store)["clean"] == 0
    store.run(store.jobs.operate("discard", [flow.ids["b"]], "no", "ada", "default"))
    store.run(store.leases.promote())
    settle(store, take(store))
    forward(store, 90_000)  # the next pass starts at the first job
    assert sweep(store)["clean"] == 5
    assert [state_of(store, each) for each in (first, second)] == [State.CLEANED] * 2
    put_one(store)
    forward(store, 400_000)
    assert sweep(store)["purge"] == 4, "the first job waits until its retry is purged"
    forward(store, 90_000)
    assert sweep(store)["purge"] == 1


@pytest.mark.req("DP-16", "DP-15")
def test_dead_letters_are_removed_only_by_their_own_policy(store: Store) -> None:
    """Retention discards them first, which is recorded in their ledger and counted in their workflow."""
    alone = put_one(store)
    settle(store, take(store), FINAL)
    flow = Flow(store, {"a": (), "b": "a"})
    flow.start()
    settle(store, take(store), FINAL)
    keep(store, "1h")
    forward(store, 100_000)
    assert sweep(store)["clean"] == 0
    keep(store, "1h", "100h", state="dead_letter", tenant="default")
    assert sweep(store)["clean"] == 2
    assert types_of(store, alone)[-3:] == ["dead_letter", "discard", "clean"]
    stored = store.run(store.workflows.get(flow.id, "default"))
    assert stored is not None
    assert (stored.counts.dead, stored.counts.cancelled, stored.counts.skipped) == (0, 1, 1)
    put_one(store)
    forward(store, 400_000)
    assert sweep(store)["purge"] == 2, "by the policy for dead letters"
    assert state_of(store, flow.ids["b"]) is State.CLEANED


@pytest.mark.req("DP-16")
def test_concurrent_sweeps_in_small_slices_purge_each_job_once(store: Store, store_url: str) -> None:
    put(store, *(spec() for _ in range(60)))
    work(store, want=60)
    keep(store, None, "1h")
    put_one(store)
    forward(store, 4000)

    def sweep_some(number: int) -> int:
        with closing(open_store(store_url)) as own:
            return sweep(own, want=3 + number, look=7)["purge"]

    with ThreadPoolExecutor(3) as pool:
        done = sum(pool.map(sweep_some, range(3)))
    put_one(store)  # the newest row of SQLite's ledger stays
    forward(store, 20)
    done += sweep(store)["purge"]
    assert done == 60
    assert len(_all(store)) == 2


@pytest.mark.req("DP-16")
def test_policies_are_checked_replaced_and_removed(store: Store) -> None:
    with pytest.raises(InvalidSetting, match="clean_after must be shorter"):
        RetentionRule.of(clean_after="2d", purge_after="1d")
    with pytest.raises(InvalidSetting, match="not a state of retention policies"):
        RetentionRule.of(state="queued")
    declared = RetentionRule.of("mail", purge_after="30d", declared=True)
    assert store.run(store.retention.set(declared, "prog", "acme")).declared
    assert keep(store, "1d", kind="mail", tenant="acme").purge_after is None
    assert store.run(store.retention.set(declared, "prog", "acme")).clean_after == 86_400, "the operator's policy stays"
    keep(store, "2d")
    assert [each.tenant for each in store.run(store.retention.list("acme"))] == ["*", "acme"]
    assert [each.tenant for each in store.run(store.retention.list("other"))] == ["*"]
    assert not store.run(store.retention.remove("mail", "*", "ada", "other"))
    assert store.run(store.retention.remove("mail", "*", "ada", "acme"))
    assert len(store.run(store.retention.preview("*"))) == 1


@pytest.mark.req("DP-16", "JF-1")
def test_sweep_of_one_tenant_touches_no_other(store: Store) -> None:
    mine, other = put_one(store, tenant="acme"), put_one(store, tenant="other")
    work(store, want=2)
    keep(store, "1h", tenant="acme")
    keep(store, "1h", tenant="other")
    forward(store, 4000)
    assert sweep(store, tenant="acme")["clean"] == 1
    assert (state_of(store, mine), state_of(store, other)) == (State.CLEANED, State.SUCCEEDED)


@pytest.mark.req("DP-16", "SC-9")
def test_bookkeeping_is_pruned_by_its_age(store: Store, by_hand: ByHand) -> None:
    """Ended leases, tokens of decided approvals, old fires of a schedule except the latest, application events."""
    schedule = add(store)
    due = schedule.next_fire_at
    assert due is not None
    assert store.run(store.schedules.fire([decided(schedule, firing(due))], "*")) == 1
    settle(store, take(store))
    schedule = store.run(store.schedules.get(schedule.name, "default")) or schedule
    assert store.run(store.schedules.fire([decided(schedule, firing(schedule.next_fire_at or due))], "*")) == 1
    pending = asking(store)
    keep_token(store, pending.id, "h")
    approve(store, pending.id)
    for lease in by_hand.execute("select id from lease"):
        store.run(store.leases.end(str(lease[0]), "done", "*"))
    store.run(store.leases.recover())
    live = open_lease(store)
    store.run(store.clock.set(timedelta(0), due + timedelta(days=400)))
    store.run(store.leases.renew(live, 30.0, "*"))
    sweep(store)
    assert by_hand.execute("select count(*) from fire") == [(1,)]
    assert by_hand.execute("select count(*) from approval_token") == [(0,)]
    assert len(by_hand.execute("select id from lease")) <= 1
    assert apply(store, live, *map(decide_on, claim(store, live))) == []


@pytest.mark.req("DP-16", "HF-4")
def test_ended_tokens_reservations_and_operations_are_pruned(store: Store, by_hand: ByHand) -> None:
    """Sessions after a week, webhook calls after a month, tokens, reservations and bulk operations after ninety days,
    groups of dead letters after a year; not a day before, and never by hand. The audit trail records how many were
    pruned, and the seals hold.
    """
    run = store.run
    text = new_token()
    token = run(store.tokens.issue(issuing(text, expires="3000d"), "ada", "default"))
    assert open_session(store, text, ttl=60.0)[1] is not None
    kept = run(store.tokens.issue(issuing(), "ada", "default"))
    request = ReservationRequest(new_id(), "queue", "mail", 60.0, "by hand")
    assert run(store.reservations.set(request, "ada", "default")).state == "active"
    assert run(store.reservations.release(request.id, "done", "ada", "default"))
    hook = webhook(store)
    assert run(store.webhooks.note_delivery(sent(hook.id, new_id()), "default"))
    put_one(store)
    settle(store, take(store), FINAL)
    operation = NewOperation(new_id(), "discard", reason="old")
    run(store.operations.start(operation, JobFilter(tenant="default", state=State.DEAD_LETTER), "ada", "default"))
    while run(store.operations.work("*")) is not None:
        pass
    run(store.tokens.revoke(token.id, "ada", "default"))
    seal(store)
    tables = ("api_token", "webhook_delivery", "reservation", "operation", "dead_letter_group")

    def left() -> tuple[int, ...]:
        sweep(store)
        return tuple(len(by_hand.execute(f"select 1 from {table}")) for table in tables)

    for days, expected in ((6, (3, 1, 1, 1, 1)), (2, (2, 1, 1, 1, 1)), (23, (2, 0, 1, 1, 1)), (58, (2, 0, 1, 1, 1))):
        forward(store, days * 86_400)
        assert left() == expected, days
        for table in ("api_token", "reservation", "operation"):
            assert by_hand.refusal(f"delete from {table}") is not None, (days, table)
    forward(store, 2 * 86_400)
    assert left() == (1, 0, 0, 0, 1)
    forward(store, 275 * 86_400)
    assert left() == (1, 0, 0, 0, 0)
    assert [each.id for each in run(store.tokens.list("default", True, None, 9))] == [kept.id]
    pruned = run(store.audit.actions(ActionFilter(tenant=EVERY_TENANT, type="prune")))
    assert sorted((each.subject, each.actor) for each in pruned) == [
        ("operation", "retention"),
        ("reservation", "retention"),
        ("token", "retention"),
        ("token", "retention"),
    ]
    assert flaws(store) == []


@pytest.mark.req("DP-16", "CX-18", "HK-5")
def test_purge_waits_for_the_usage_count_only(store: Store) -> None:
    """Every event is counted before it is purged; clean events are not counted, and hold nothing back."""
    put(store, spec(), spec())
    work(store, want=2)
    keep(store, None, "1h")
    while store.run(store.usage.count()):
        pass
    put(store, spec(), spec())
    work(store, want=2)  # these are not counted yet
    forward(store, 4000)
    put_one(store)  # the newest row of SQLite's ledger stays
    swept = []
    while (each := store.run(store.retention.sweep())).action != "idle":
        swept.append(each)
    assert sum(each.done for each in swept if each.action == "clean") == 4
    (purge,) = [each for each in swept if each.action == "purge"]
    assert (purge.done, purge.held, purge.held_by) == (2, 2, "usage")


@pytest.mark.req("DP-16")
def test_purge_removes_error_messages_everywhere(store: Store, by_hand: ByHand) -> None:
    """The message of a dead letter is in its job, its ledger and its group; before the purge it cannot be removed from
    the group.
    """
    forward(store)
    put_one(store)
    settle(store, take(store), Failed("broken", "canary-4711 broke", final=True, traceback="line of canary-4711"))
    assert naming(by_hand, "canary-4711") >= {"event", "job_state", "dead_letter_group"}
    with pytest.raises(Exception, match="maintained by triggers"):
        by_hand.execute("update dead_letter_group set error_message = '[purged]'")
    keep(store, None, "1h", state="dead_letter")
    forward(store, 4_000)
    purged = sweep(store)["purge"]
    put_one(store)  # on SQLite the newest event stays until there is another
    forward(store, 120)
    assert purged + sweep(store)["purge"] == 1
    assert naming(by_hand, "canary-4711") == set()
    assert by_hand.execute("select error_code, error_message, times, open from dead_letter_group") == [
        ("broken", "[purged]", 1, 0)
    ]
    with pytest.raises(Exception, match="maintained by triggers"):
        by_hand.execute("update dead_letter_group set error_message = '[purged]', times = 9")
    settle(store, take(store), Failed("broken", "canary-4712 broke", final=True))
    assert "dead_letter_group" in naming(by_hand, "canary-4712"), "the next sample has its own message"
