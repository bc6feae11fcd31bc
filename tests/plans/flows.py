"""The operations under test, with arguments that fit the rows of the large database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
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
from holdfast.features.jobs.store import why
from holdfast.features.retention.model import RetentionRule
from holdfast.stores.flow import Flow, Statement, Steps, flow, reading_at_most
from holdfast.stores.requests import ClaimRequest, JobFilter, SendEvent
from tests.plans.large_database import CLAIMABLE, FINISHED, HELD, LARGEST, LATE, WAITING

MIDDLE = datetime.fromtimestamp(1_700_000_500, UTC)
"""Half a million jobs after the first."""


def job_id(number: int) -> str:
    milliseconds = 1_700_000_000_000 + number
    return f"{milliseconds >> 16:08x}-{milliseconds & 0xFFFF:04x}-7000-8000-{number:012x}"


def approval_id(number: int) -> str:
    return job_id(number).replace("-8000-", "-9000-")


def sending(name: str, data: str, key: str | None = None) -> SendEvent:
    return SendEvent(approval_id(6_000_000), name, data, key)


def lease_id(number: int) -> str:
    return f"00000000-0000-0000-0000-{number:012}"


# Of fifty leases the even ones hold leased jobs, the odd ones running jobs; those from five on are live.
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
    """Each claims up to a hundred jobs."""

    def claim(**changes: Any) -> Flow[Any]:
        usual: dict[str, Any] = {"lease": LEASED, "queues": ("default", "bulk"), "want": 100}
        return store.leases.claim(ClaimRequest(**usual | changes))

    return {
        "claim one": claim(want=1),
        "claim": claim(),
        "claim without begin": claim(begin=False),
        "claim of a kind": claim(kinds=("kind-3",), want=10),
    }


def writes(store: Store) -> dict[str, Flow[Any]]:
    """Each writes up to ten jobs by id."""

    def settle(ending: Any, **details: Any) -> Flow[Any]:
        return store.leases.settle(BEGUN, [Settlement(each, 1, ending, **details) for each in RUNNING], "*")

    error: dict[str, Any] = {"delay": 1.0, "code": "broken", "message": "it broke"}
    return {
        "start": store.leases.start(LEASED, PREFETCHED, "*"),
        "release": store.leases.release(LEASED, PREFETCHED, "*"),
        "settle succeeded": settle("succeeded", result="1"),
        "settle retry": settle("retry", **error),
        "settle dead_letter": settle("dead_letter", **error),
        "settle snooze": settle("snooze", delay=1.0),
        "checkpoint": store.steps.save_checkpoint(RUNNING[0], BEGUN, 1, "x", "1", "*"),
        "renew": store.leases.renew(BEGUN, 30.0, "*"),
        "cancel": store.jobs.operate("cancel", [job_id(FINISHED + 1), job_id(1)], "no", "me", "a"),
        "redrive": store.jobs.operate("redrive", [job_id(1), job_id(101)], "again", "me", "a"),
        "enqueue": store.jobs.enqueue([KEYED], "a"),
    }


def waits(store: Store) -> dict[str, tuple[str | None, Flow[Any]]]:
    """Operations on waits and approvals, with the index that finds their rows; ten jobs at most."""

    def settle(ending: Any, pause: dict[str, Any], **more: Any) -> Flow[Any]:
        settlements = [
            Settlement(each, 1, ending, pause=pause | {name: make(n) for name, make in more.items()})
            for n, each in enumerate(RUNNING)
        ]
        return store.leases.settle(BEGUN, settlements, "*")

    def approval(number: int) -> dict[str, Any]:
        return Question(summary="May it?", approvers=("ada",)).to_json(approval_id(5_000_000 + number), "release", None)

    sleep = {"n": 3, "name": "nap", "kind": "sleep", "delay": 5.0}
    event = {"n": 3, "name": "sent", "kind": "event", "delay": 5.0, "wanted": {"order": 7}}
    entries = [(each, 1, StepEntry(1, "charge", "step", "1")) for each in RUNNING]
    asking = approval_id(WAITING + 7)
    return {
        "save steps": ("step_pkey", store.steps.save(BEGUN, entries, "*")),
        "sleep": (None, settle("pause", sleep)),
        "wait": ("app_event_by_name", settle("pause", event)),
        "request approval": (None, settle("ask", sleep | {"kind": "approval"}, approval=approval)),
        "send an event": ("waiting", store.ledger.send(sending("paid", f'{{"order": {HELD + 7}}}'), "me", "a")),
        "send an event without waits": ("waiting", store.ledger.send(sending("paid", '{"order": -1}'), "me", "a")),
        "send an event with a key": ("app_event_by_key", store.ledger.send(sending("other", "{}", "k"), "me", "a")),
        "approve": ("approval_pkey", store.approvals.decide(asking, Ballot("approve", "ada", "test"), "a")),
        "deny": ("approval_pkey", store.approvals.decide(asking, Ballot("deny", "ada", "test"), "a")),
        "save a token": ("approval_pkey", store.approvals.save_token(asking, "h", "ada", 60.0, "me", "a")),
        "token hashes": ("approval_token_by_approval", store.approvals.token_hashes(asking, "a")),
        "cancel": (None, store.jobs.operate("cancel", [job_id(WAITING + n) for n in range(1, 10)], "no", "me", "a")),
        "rewind": ("step_pkey", store.steps.rewind(job_id(1), 1, "me", "a")),
    }


def inbox(store: Store) -> dict[str, tuple[str, Flow[Any]]]:
    """Pages of fifty approvals of tenant `a`."""
    wanted: dict[str, tuple[str, dict[str, Any]]] = {
        "open": ("approval_inbox", {}),
        "a distant page": ("approval_inbox", {"after": approval_id(WAITING + 40_000)}),
        "approved": ("approval_by_state", {"state": "approved"}),
        "denied": ("approval_by_state", {"state": "denied"}),
        "of one job": ("approval_by_job", {"job_id": job_id(WAITING + 7), "state": None}),
        "what a person may decide": ("approval_inbox", {"approver": "ada"}),
    }
    pages = {
        name: (index, store.approvals.list(ApprovalFilter(tenant="a", **how))) for name, (index, how) in wanted.items()
    }
    return pages | {f"{name}, of bounded size": (index, _bounded(page)) for name, (index, page) in pages.items()}


def _bounded(read: Flow[Any]) -> Flow[Any]:
    """The read as a server runs it: documents beyond a number of bytes are left out."""

    def steps() -> Steps[Any]:
        with reading_at_most(100_000):
            return (yield from read.start())

    return Flow(steps)


# Every third job has the same queue and priority, so the last two are neighbours.
MOVED, LEFT_NEIGHBOUR, RIGHT_NEIGHBOUR = job_id(FINISHED + 8), job_id(FINISHED + 9_998), job_id(FINISHED + 10_001)
POSITIONS = {
    "first": Move(where="first"),
    "last": Move(where="last"),
    "before": Move(where="before", other=RIGHT_NEIGHBOUR),
    "after": Move(where="after", other=LEFT_NEIGHBOUR),
    "first of another priority": Move(where="first", priority=0),
    "last of an unused priority": Move(where="last", priority=7),
}


def reasons(store: Store) -> dict[str, Flow[Any]]:
    """Why a job waits, and related reads, beside a million finished jobs."""
    return {
        "why of a claimable job": why(store, job_id(FINISHED + 7), "a"),
        "why of a running job": why(store, RUNNING[0], "*"),
        "why of a waiting job": why(store, job_id(HELD + 7), "a"),
        "why of a finished job": why(store, job_id(7), "a"),
        "chain": store.jobs.chain(job_id(FINISHED + 7), "a"),
        "active subscriptions": store.subscriptions.active("*"),
    }


def moves(store: Store) -> dict[str, Flow[Any]]:
    return {name: store.jobs.move(MOVED, position, None, "me", "a") for name, position in POSITIONS.items()}


@contextmanager
def neighbours(connection: Any, mark: str, full: bool) -> Iterator[None]:
    """If `full`, there is no free position between the two neighbours meanwhile."""
    table = "holdfast.job_state" if mark == "%s" else "holdfast_job_state"

    def put(position: int) -> None:
        connection.execute("begin")
        # A position does not change without an event, except on SQLite while an operation is signed, as a move is.
        if mark == "%s":
            connection.execute("select set_config('holdfast.tenant', '*', true)")
            connection.execute(f"alter table {table} disable trigger record_transition")
        else:
            connection.execute(
                "update holdfast_clock set now = 1, floor = (select coalesce(max(n), 0) from holdfast_job_state)"
            )
        connection.execute(f"update {table} set position = {mark} where id = {mark}", (position, RIGHT_NEIGHBOUR))
        if mark == "%s":
            connection.execute(f"alter table {table} enable trigger record_transition")
        else:
            connection.execute("update holdfast_clock set now = null, floor = null")
        connection.execute("commit")

    if full:
        put((FINISHED + 9_998) * 100 + 1)
    try:
        yield
    finally:
        if full:
            put((FINISHED + 10_001) * 100)


def maintenance(store: Store) -> dict[str, tuple[str, Flow[Any]]]:
    """Maintenance tasks with the index each must use, a hundred rows at a time."""
    return {
        "promote": ("not_yet_due", store.leases.promote(100)),
        "promote for a tenant": ("not_yet_due", store.leases.promote(100, "a")),
        "expire": ("past_deadline", store.leases.expire(100)),
        "recover": ("held", store.leases.recover(100)),
        "attend": ("approval_due", store.approvals.attend(100)),
        "resume": ("waiting_by_agent", store.agents.resume("sleeper", 100, "a")),
    }


LISTS: dict[str, tuple[str, dict[str, Any]]] = {
    "all": ("by_state", {}),
    "by a common state": ("by_state", {"state": State.SUCCEEDED}),
    "by a rare state": ("by_state", {"state": State.DEAD_LETTER}),
    "by an unused state": ("by_state", {"state": State.CANCELLED}),
    "by kind": ("job_by_kind", {"kind": "kind-3"}),
    "by an unused kind": ("job_by_kind", {"kind": "kind-99"}),
    "by queue": ("job_by_queue", {"queue": "bulk"}),
    "by agent": ("job_by_agent", {"agent": "planner"}),
    "by a common tag": ("job_tag", {"tag": "common"}),
    "by a rare tag": ("job_tag", {"tag": "rare"}),
    "by an unused tag": ("job_tag", {"tag": "none"}),
    "by correlation": ("job_by_correlation", {"correlation_id": "order-99"}),
    "by parent": ("job_by_parent", {"parent_id": job_id(1)}),
    "by time": ("by_state", {"since": MIDDLE, "until": MIDDLE + timedelta(seconds=10)}),
    "a distant page": ("by_state", {"before": job_id(500)}),
    "a distant page, by state": ("by_state", {"before": job_id(9_000), "state": State.DEAD_LETTER}),
    "by kind and queue": ("job_by_", {"kind": "kind-3", "queue": "bulk"}),
    "by agent and state": ("job_by_agent", {"agent": "planner", "state": State.SUCCEEDED}),
    "by tag and kind": ("job_tag", {"tag": "rare", "kind": "kind-3"}),
    "by two tags": ("job_tag", {"tag": ("rare", "common")}),
    "by any of two tags": ("job_tag", {"any_tag": ("common", "rare")}),
    "by limit key": ("job_tag", {"limit_key": "acme"}),
    "by key": ("idempotency", {"key": "key-order-99kind-9"}),
    "by an unused key": ("idempotency", {"key": "none"}),
    "by external reference": ("job_by_external_ref", {"external_ref": "crm"}),
    "by an unused reference": ("job_by_external_ref", {"external_ref": "none"}),
    "by executor": ("job_by_executor", {"executor": "gpu"}),
    "by workflow": ("job_by_workflow", {"workflow_id": job_id(1)}),
    "by a common part": ("node_by_part", {"part": "common"}),
    "by a rare part": ("node_by_part", {"part": "rare"}),
    "by a common template": ("made_from_template", {"template": "common"}),
    "by a rare template": ("made_from_template", {"template": "rare"}),
    "by template version": ("made_from_version", {"template": "common", "template_version": 2}),
    "by a common schedule": ("made_from_schedule", {"schedule": "common"}),
    "by a rare schedule": ("made_from_schedule", {"schedule": "rare"}),
    "by time of a schedule": ("made_from_time", {"scheduled_for": MIDDLE}),
    "by domain": ("job_by_kind", {"domain": "billing"}),
    "by a domain without jobs": ("job_by_kind", {"domain": "unused"}),
}


ALTERNATIVES = frozenset({"by any of two tags", "by domain", "by a domain without jobs"})
"""Built from a page per alternative."""

OF_EVERY_STATE = frozenset({"all", "by time", "a distant page"})
"""Built from a page per state, because no index serves them alone."""


def lists(store: Store) -> dict[str, tuple[str, Flow[Any]]]:
    """With the index each must use; a page of fifty jobs of tenant `a`, which has nearly all."""
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


def dead_letters(store: Store) -> dict[str, tuple[str, Flow[Any]]]:
    """Pages of fifty dead_letters letters and groups, with the index each must use."""

    def groups(**wanted: Any) -> Flow[Any]:
        return store.dead_letters.groups(GroupFilter(tenant="a", **wanted))

    after = f"1700019000.000000/3/g-{9}"
    letters = JobFilter(tenant="a", fingerprint=LARGEST)
    return {
        "newest groups": ("dead_letter_group_newest", groups()),
        "newest groups, next page": ("dead_letter_group_newest", groups(after=after)),
        "largest groups": ("dead_letter_group_largest", groups(order="count")),
        "all groups": ("dead_letter_group_all", groups(resolved=True, after=after)),
        "jobs of a group": ("dead_letter_by_group", store.jobs.list(letters)),
        "jobs of a group, next page": (
            "dead_letter_by_group",
            store.jobs.list(replace(letters, before=job_id(500_000))),
        ),
    }


def batch(store: Store, wanted: dict[str, str]) -> Flow[Any]:
    """The next batch of an operation started in the same transaction, from the middle of the jobs on."""

    @flow()
    def both() -> Steps[int | None]:
        given: dict[str, Any] = wanted | {"state": State(wanted["state"])}
        new, chosen = NewOperation(job_id(7_000_000), "redrive"), JobFilter(tenant="a", until=MIDDLE, **given)
        yield from store.operations.start(new, chosen, "ada", "a").start()
        return (yield from store.operations.work("a").start())

    return both()


def sweeping(store: Store) -> Flow[Any]:
    """Retention on PostgreSQL in one transaction: set a policy, clean ten jobs, purge them, count fifty events."""

    def steps() -> Steps[list[Any]]:
        yield from store.retention.set(RetentionRule.of(purge_after=0.001), "ada", "*").start()
        yield Statement("update holdfast.upkeep set prune_at = 'infinity'")
        swept = yield from store.retention.sweep(10, 100).start()
        for join in ("seqscan", "hashjoin", "mergejoin"):  # as the sweep itself does
            yield Statement(f"set local enable_{join} = off")
        find = "select array_agg(s.id) from holdfast.job_state s where s.id < %s and s.state = 'cleaned'"
        tombstones = (yield Statement(find, (job_id(500),)))[0][0]
        yield Statement("select holdfast.purge_jobs(%s::uuid[])", (tombstones,))
        counted = yield from store.usage.count(50, True).start()
        return [swept, len(tombstones), counted]

    return Flow(steps)


def pages(store: Store, tenant: str) -> dict[str, Flow[Any]]:
    """The reads of the dashboard's pages."""
    return {
        "activity": store.health.activity(tenant),
        "activity by queue": store.health.activity(tenant, "24h", "queue"),
        "figures of queues": store.health.queues(tenant),
        "one queue": store.health.recent(tenant, "queue", "default"),
        "queues and workers": store.health.workers(tenant),
        "tenants": store.tenants.list(tenant, most=1_000, names=50),
        "events of an unknown actor": store.audit.recent_events(EventFilter(tenant=tenant, actor="nobody")),
        "decided approvals": store.approvals.list(
            ApprovalFilter(tenant=tenant, state="approved", newest=True, limit=50)
        ),
    }
