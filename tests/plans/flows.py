"""The operations to be looked at, with arguments that fit the rows that `filling` has made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from holdfast.engine.job import JobSpec
from holdfast.engine.order import Move
from holdfast.engine.settlement import Settlement
from holdfast.engine.states import State
from holdfast.engine.steps import StepEntry
from holdfast.features.approvals.model import ApprovalFilter, Ballot, Question
from holdfast.features.assembly import Store
from holdfast.features.audit.store import EventFilter
from holdfast.features.dead_letters.model import GroupFilter, NewOperation
from holdfast.features.jobs.views import why
from holdfast.features.retention.model import RetentionRule
from holdfast.stores.flow import Flow, Statement, Steps, flow
from holdfast.stores.requests import ClaimRequest, JobFilter, SendEvent
from tests.plans.filling import CLAIMABLE, FINISHED, HELD, LATE, WAITING
from tests.plans.filling_dead import LARGEST

MIDDLE = datetime.fromtimestamp(1_700_000_500, UTC)
"""Half a million jobs after the first."""


def job_id(number: int) -> str:
    milliseconds = 1_700_000_000_000 + number
    return f"{milliseconds >> 16:08x}-{milliseconds & 0xFFFF:04x}-7000-8000-{number:012x}"


def approval_id(number: int) -> str:
    return job_id(number).replace("-8000-", "-9000-")


def telling(name: str, data: str, key: str | None = None) -> SendEvent:
    return SendEvent(approval_id(6_000_000), name, data, key)


def lease_id(number: int) -> str:
    return f"00000000-0000-0000-0000-{number:012}"


# Of fifty leases the even ones hold what is leased, the odd ones what has begun; those from five on are live.
LEASED, BEGUN = lease_id(10), lease_id(11)
PREFETCHED = [job_id(n) for n in range(LATE + 1, HELD + 1) if n % 50 == 10][:10]
RUNNING = [job_id(n) for n in range(LATE + 1, HELD + 1) if n % 50 == 11][:10]
KEYED = JobSpec(
    id=job_id(5_000_000),
    kind="kind-1",
    payload="{}",
    enqueued_by="test",
    source_system="tests",
    tags=("new",),
    key="k",
    content_key="c",
    parent_id=job_id(CLAIMABLE),
)


def claims(store: Store) -> dict[str, Flow[Any]]:
    """Each takes up to a hundred."""

    def claim(**changes: Any) -> Flow[Any]:
        usual: dict[str, Any] = {"lease": LEASED, "queues": ("default", "bulk"), "want": 100}
        return store.leases.claim(ClaimRequest(**usual | changes))

    return {
        "claim one": claim(want=1),
        "claim": claim(),
        "claim, not begun": claim(begin=False),
        "claim of a kind": claim(kinds=("kind-3",), want=10),
    }


def writes(store: Store) -> dict[str, Flow[Any]]:
    """Each touches up to ten jobs by their ids."""

    def settle(ending: Any, **details: Any) -> Flow[Any]:
        return store.leases.settle(BEGUN, [Settlement(each, 1, ending, **details) for each in RUNNING], "*")

    error: dict[str, Any] = {"delay": 1.0, "code": "broken", "message": "it broke"}
    return {
        "start": store.leases.start(LEASED, PREFETCHED, "*"),
        "release": store.leases.release(LEASED, PREFETCHED, "*"),
        "settle succeeded": settle("succeeded", result="1"),
        "settle retry": settle("retry", **error),
        "settle bury": settle("bury", **error),
        "settle snooze": settle("snooze", delay=1.0),
        "checkpoint": store.steps.save_checkpoint(RUNNING[0], BEGUN, 1, "x", "1", "*"),
        "renew": store.leases.renew(BEGUN, 30.0, "*"),
        "cancel": store.jobs.operate("cancel", [job_id(FINISHED + 1), job_id(1)], "no", "me", "a"),
        "redrive": store.jobs.operate("redrive", [job_id(1), job_id(101)], "again", "me", "a"),
        "enqueue": store.jobs.enqueue([KEYED], "a"),
    }


def people(store: Store) -> dict[str, tuple[str | None, Flow[Any]]]:
    """What has to do with waiting, with the index that finds what it is about; ten jobs at most."""

    def settle(ending: Any, pause: dict[str, Any], **more: Any) -> Flow[Any]:
        settlements = [
            Settlement(each, 1, ending, pause=pause | {name: make(n) for name, make in more.items()})
            for n, each in enumerate(RUNNING)
        ]
        return store.leases.settle(BEGUN, settlements, "*")

    def approval(number: int) -> dict[str, Any]:
        return Question(summary="May it?", approvers=("ada",)).to_json(approval_id(5_000_000 + number), "release", None)

    sleep = {"n": 3, "name": "nap", "kind": "sleep", "delay": 5.0}
    event = {"n": 3, "name": "told", "kind": "event", "delay": 5.0, "wanted": {"order": 7}}
    entries = [(each, 1, StepEntry(1, "charge", "step", "1")) for each in RUNNING]
    asking = approval_id(WAITING + 7)
    return {
        "save steps": ("step_pkey", store.steps.save(BEGUN, entries, "*")),
        "sleep": (None, settle("pause", sleep)),
        "wait": ("app_event_by_name", settle("pause", event)),
        "ask": (None, settle("ask", sleep | {"kind": "approval"}, approval=approval)),
        "send an event": ("waiting", store.ledger.send(telling("paid", f'{{"order": {HELD + 7}}}'), "me", "a")),
        "send one for nobody": ("waiting", store.ledger.send(telling("paid", '{"order": -1}'), "me", "a")),
        "send one with a key": ("app_event_by_key", store.ledger.send(telling("other", "{}", "k"), "me", "a")),
        "approve": ("approval_pkey", store.approvals.decide(asking, Ballot("approve", "ada", "test"), "a")),
        "deny": ("approval_pkey", store.approvals.decide(asking, Ballot("deny", "ada", "test"), "a")),
        "keep a token": ("approval_pkey", store.approvals.save_token(asking, "h", "ada", 60.0, "me", "a")),
        "hashes": ("approval_token_by_approval", store.approvals.token_hashes(asking, "a")),
        "cancel": (None, store.jobs.operate("cancel", [job_id(WAITING + n) for n in range(1, 10)], "no", "me", "a")),
        "rewind": ("step_pkey", store.steps.rewind(job_id(1), 1, "me", "a")),
    }


def inbox(store: Store) -> dict[str, tuple[str, Flow[Any]]]:
    """Pages of fifty approvals of tenant `a`."""
    wanted: dict[str, tuple[str, dict[str, Any]]] = {
        "what is open": ("approval_inbox", {}),
        "a page far behind": ("approval_inbox", {"after": approval_id(WAITING + 40_000)}),
        "what was approved": ("approval_by_state", {"state": "approved"}),
        "what was denied": ("approval_by_state", {"state": "denied"}),
        "of one job": ("approval_by_job", {"job_id": job_id(WAITING + 7), "state": None}),
        "what somebody may decide": ("approval_inbox", {"approver": "ada"}),
    }
    return {
        name: (index, store.approvals.list(ApprovalFilter(tenant="a", **how))) for name, (index, how) in wanted.items()
    }


# Every third is of the same queue and priority, so the last two stand next to each other.
MOVED, ASIDE, BESIDE = job_id(FINISHED + 8), job_id(FINISHED + 9_998), job_id(FINISHED + 10_001)
PLACES = {
    "first": Move(where="first"),
    "last": Move(where="last"),
    "before": Move(where="before", other=BESIDE),
    "after": Move(where="after", other=ASIDE),
    "first of another priority": Move(where="first", priority=0),
    "last of a priority that nobody has": Move(where="last", priority=7),
}


def whys(store: Store) -> dict[str, Flow[Any]]:
    """Why a job waits, and what there is around it: beside a million that have ended."""
    return {
        "why it is claimable": why(store, job_id(FINISHED + 7), "a"),
        "why it runs": why(store, RUNNING[0], "*"),
        "why it waits": why(store, job_id(HELD + 7), "a"),
        "why it is over": why(store, job_id(7), "a"),
        "chain": store.jobs.chain(job_id(FINISHED + 7), "a"),
        "active subscriptions": store.subscriptions.active("*"),
    }


def moves(store: Store) -> dict[str, Flow[Any]]:
    return {name: store.jobs.move(MOVED, place, None, "me", "a") for name, place in PLACES.items()}


@contextmanager
def shoulder_to_shoulder(connection: Any, mark: str, full: bool) -> Iterator[None]:
    """For a while there is no free place between the two."""
    table = "holdfast.job_state" if mark == "%s" else "job_state"

    def put(position: int) -> None:
        connection.execute("begin")
        # A place does not change without an event; on SQLite it may for whoever signs, as a move does.
        if mark == "%s":
            connection.execute("select set_config('holdfast.tenant', '*', true)")
            connection.execute(f"alter table {table} disable trigger record_transition")
        else:
            connection.execute("update clock set now = 1, floor = (select coalesce(max(n), 0) from job_state)")
        connection.execute(f"update {table} set position = {mark} where id = {mark}", (position, BESIDE))
        if mark == "%s":
            connection.execute(f"alter table {table} enable trigger record_transition")
        else:
            connection.execute("update clock set now = null, floor = null")
        connection.execute("commit")

    if full:
        put((FINISHED + 9_998) * 100 + 1)
    try:
        yield
    finally:
        if full:
            put((FINISHED + 10_001) * 100)


def duties(store: Store) -> dict[str, tuple[str, Flow[Any]]]:
    """With the index each is to use. A hundred at a time."""
    return {
        "promote": ("not_yet_due", store.leases.promote(100)),
        "promote for a tenant": ("not_yet_due", store.leases.promote(100, "a")),
        "expire": ("past_deadline", store.leases.expire(100)),
        "reap": ("held", store.leases.reap(100)),
        "attend": ("approval_due", store.approvals.attend(100)),
        "resume": ("waiting_by_agent", store.agents.resume("sleeper", 100, "a")),
    }


LISTS: dict[str, tuple[str, dict[str, Any]]] = {
    "all": ("by_state", {}),
    "by a common state": ("by_state", {"state": State.SUCCEEDED}),
    "by a rare state": ("by_state", {"state": State.DEAD_LETTER}),
    "by a state that none is in": ("by_state", {"state": State.CANCELLED}),
    "by kind": ("job_by_kind", {"kind": "kind-3"}),
    "by a kind that none is of": ("job_by_kind", {"kind": "kind-99"}),
    "by queue": ("job_by_queue", {"queue": "bulk"}),
    "by agent": ("job_by_agent", {"agent": "planner"}),
    "by a common tag": ("job_tag", {"tag": "common"}),
    "by a rare tag": ("job_tag", {"tag": "rare"}),
    "by a tag that none has": ("job_tag", {"tag": "none"}),
    "by correlation": ("job_by_correlation", {"correlation_id": "order-99"}),
    "by parent": ("job_by_parent", {"parent_id": job_id(1)}),
    "by time": (
        "by_state",
        {
            "since": datetime.fromtimestamp(1_700_000_500, UTC),
            "until": datetime.fromtimestamp(1_700_000_510, UTC),
        },
    ),
    "a page far behind": ("by_state", {"before": job_id(500)}),
    "a page far behind, by state": ("by_state", {"before": job_id(9_000), "state": State.DEAD_LETTER}),
    "by kind and queue": ("job_by_", {"kind": "kind-3", "queue": "bulk"}),
    "by agent and state": ("job_by_agent", {"agent": "planner", "state": State.SUCCEEDED}),
    "by tag and kind": ("job_tag", {"tag": "rare", "kind": "kind-3"}),
}


OF_EVERY_STATE = frozenset({"all", "by time", "a page far behind"})
"""Made of a page of each state, since there is no index for them alone."""


def lists(store: Store) -> dict[str, tuple[str, Flow[Any]]]:
    """With the index each is to use; a page of fifty of tenant `a`, who has nearly all."""
    return {name: (index, store.jobs.list(JobFilter(tenant="a", **wanted))) for name, (index, wanted) in LISTS.items()}


def reads(store: Store) -> dict[str, tuple[str, Flow[Any]]]:
    one = job_id(FINISHED + 7)
    events = "event_by_job" if store.embedded else "event_pkey"
    return {
        "get": ("job_state", store.jobs.get(one, "a")),
        "history": (events, store.jobs.history(one, "a")),
        "attempts": (events, store.jobs.attempts(one, "a")),
        "checkpoints": ("checkpoint", store.jobs.checkpoints(one, "a")),
        "result": ("result", store.jobs.result(one, "a")),
        "steps": ("step_pkey", store.steps.list(job_id(HELD + 7), "a")),
        "approval": ("approval_pkey", store.approvals.get(approval_id(WAITING + 7), "a")),
        "votes": ("vote_pkey", store.approvals.votes(approval_id(WAITING + 7), "a")),
    }


def dead(store: Store) -> dict[str, tuple[str, Flow[Any]]]:
    """Pages of fifty of dead letters and their groups, and the index that each walks."""

    def groups(**wanted: Any) -> Flow[Any]:
        return store.dead_letters.groups(GroupFilter(tenant="a", **wanted))

    after = f"1700019000.000000/3/g-{9}"
    letters = JobFilter(tenant="a", fingerprint=LARGEST)
    return {
        "the newest groups": ("dead_letter_group_newest", groups()),
        "the next of them": ("dead_letter_group_newest", groups(after=after)),
        "the largest groups": ("dead_letter_group_largest", groups(order="count")),
        "all groups": ("dead_letter_group_all", groups(resolved=True, after=after)),
        "jobs of a group": ("dead_letter_by_group", store.jobs.list(letters)),
        "the next of those": ("dead_letter_by_group", store.jobs.list(replace(letters, before=job_id(500_000)))),
    }


def batch(store: Store, wanted: dict[str, str]) -> Flow[Any]:
    """The next batch of an operation that is started in the same transaction, from the middle of the jobs on."""

    @flow()
    def both() -> Steps[int | None]:
        given: dict[str, Any] = wanted | {"state": State(wanted["state"])}
        new, chosen = NewOperation(job_id(7_000_000), "redrive"), JobFilter(tenant="a", until=MIDDLE, **given)
        yield from store.operations.start(new, chosen, "ada", "a").start()
        return (yield from store.operations.work("a").start())

    return both()


def sweeping(store: Store) -> Flow[Any]:
    """Retention on PostgreSQL, all in one transaction: a policy, clean ten, purge them, count fifty events."""

    def steps() -> Steps[list[Any]]:
        yield from store.retention.set(RetentionRule.of(purge_after=0.001), "ada", "*").start()
        yield Statement("update holdfast.upkeep set prune_at = 'infinity'")
        swept = yield from store.retention.sweep(10, 100).start()
        for join in ("seqscan", "hashjoin", "mergejoin"):  # as the sweep itself has it
            yield Statement(f"set local enable_{join} = off")
        find = "select array_agg(s.id) from holdfast.job_state s where s.id < %s and s.state = 'cleaned'"
        tombstones = (yield Statement(find, (job_id(500),)))[0][0]
        yield Statement("select holdfast.purge_jobs(%s::uuid[])", (tombstones,))
        counted = yield from store.usage.count(50, True).start()
        return [swept, len(tombstones), counted]

    return Flow(steps)


def screens(store: Store, tenant: str) -> dict[str, Flow[Any]]:
    """What the screens of the dashboard are drawn from."""
    return {
        "activity": store.health.activity(tenant),
        "activity by queue": store.health.activity(tenant, "24h", "queue"),
        "figures of queues": store.health.queues(tenant),
        "one queue": store.health.recent(tenant, "queue", "default"),
        "queues and workers": store.health.workers(tenant),
        "tenants": store.tenants.list(tenant, most=1_000, names=50),
        "events of nobody": store.audit.recent_events(EventFilter(tenant=tenant, actor="nobody")),
        "decided approvals": store.approvals.list(
            ApprovalFilter(tenant=tenant, state="approved", newest=True, limit=50)
        ),
    }
