"""One row at least of every table, made by real work: what `spoiling` copies and spoils; and every read of the port."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast import App, Context, Retry
from holdfast.features.approvals.model import ApprovalFilter
from holdfast.features.audit.store import ActionFilter, EventFilter
from holdfast.features.dead_letters.model import GroupFilter
from holdfast.features.jobs.views import story, why
from holdfast.stores.flow import Flow
from holdfast.stores.requests import JobFilter
from tests.faults.spoiling import Row
from tests.support.operations import operation
from tests.support.workers import work_off

URL = "https://hooks.example/in"


def furnish(app: App) -> None:
    @app.job("rich", retry=Retry(max_attempts=1))
    async def rich(ctx: Context, n: int) -> dict[str, int]:
        await ctx.checkpoint.save(3, "half")
        await ctx.step("one", lambda: 1)
        await ctx.artifact("file", "s3://bucket/file")
        await ctx.progress(0.5, "half")
        if n == 2:
            raise ValueError("broken")
        if n == 3:
            await ctx.approval("approval", summary="May it?", expires_in="10d", remind_every="1d")
        if n == 4:
            await ctx.sleep("10d")
        return {"n": n}

    kind = app._kinds["rich"].kind
    using = {"tags": ["red"], "key": "k", "source_ref": "s3://in", "agent": "planner", "correlation_id": "order"}
    app.agents.set("planner", kind="rich")
    app.enqueue("rich", {"n": 1}, **using)  # type: ignore[arg-type]
    for n in (2, 3, 4):
        kind.enqueue(n)
    flow = app.workflow("publish")
    first = flow.add(kind, 5, name="first")
    flow.add(kind, 6, after=first, name="last")
    flow.start()
    app.subscriptions.set("follow", "job.succeeded", "elsewhere")
    app.webhooks.add("hook", URL, secrets="HOOK", wants=["job.dead_letter"])
    app.connectors.set("http.request", hosts=["api.example"])
    app.templates.set("letter", "elsewhere", {"n": 1})
    app.schedules.add("daily", "0 9 * * *", kind="elsewhere", payload={"n": 1})
    app.limits.set(queue="mail", concurrency=3, rate="5/s")
    app.pauses.set(queue="shut", reason="closed", tenant="default")
    app.payload_rules.set("mail", max_bytes=1_000_000)
    app.retention.set(kind="mail", clean_after="900d")
    app.tenants.set("acme", title="Acme", max_pending=1000)
    app.tokens.issue("ci", roles=["viewer"])
    app.reservations.set("00000000-0000-7000-8000-000000000001", queue="private", ttl="1h", reason="mine")
    app.send_event("paid", {"order": 7}, key="once")
    work_off(app, queues=("default",))
    for _ in zip(range(101), app.events.read("reader", page=1), strict=False):
        pass
    (approval,) = app.approvals.list()
    app.approvals.issue_token(approval.id, person="ada", expires_in="1h")
    app.schedules.run("daily")
    (group,) = app.dead_letters.groups()
    (dead,) = app.dead_letters.jobs(group.fingerprint)
    app.dead_letters.redrive_as(dead.id, {"n": 1})
    app.operations.start("redrive", reason="again", kind="rich", state="dead_letter")
    app._store.run(app._store.usage.count(1000, True))
    app.audit.seal()
    app.enqueue("rich", {"n": 9}, queue="mail")


def reads(app: App, rows: dict[str, list[Row]]) -> Iterator[tuple[str, Flow[Any]]]:
    """Everything that can be read, of each thing that is in the rows."""
    store, all_of = app._store, "*"
    for one in (
        "pauses.list",
        "limits.list",
        "connectors.list",
        "consumers.list",
        "webhooks.list",
        "subscriptions.list",
        "payload_rules.list",
    ):
        yield one, operation(store, one)(all_of)
    for one in (
        "schedules.list",
        "templates.list",
        "agents.list",
        "workflows.list",
        "reservations.list",
        "operations.list",
        "retention.list",
        "tokens.list",
    ):
        yield one, operation(store, one)(all_of)
    for one in (
        "tenants.list",
        "health.get",
        "health.activity",
        "health.workers",
        "jobs.counts",
        "subscriptions.active",
        "queues.list",
        "health.statistics",
    ):
        yield one, operation(store, one)(all_of)
    yield "executors", store.executors.list()
    yield "approvals", store.approvals.list(ApprovalFilter(tenant=all_of, state=None))
    yield "actions", store.audit.actions(ActionFilter(tenant=all_of))
    yield "recent_events", store.audit.recent_events(EventFilter(tenant=all_of))
    yield "dead_letter_groups", store.dead_letters.groups(GroupFilter(tenant=all_of, resolved=True))
    yield "events_after", store.ledger.read(None, 1000, all_of)
    yield "app_events_after", store.ledger.read_sent(None, 1000, all_of)
    yield "usage", store.usage.list(("tenant",), all_of)
    yield "preview_retention", store.retention.preview(all_of)
    yield "due_schedules", store.schedules.due(("rich",), 100, all_of)
    yield "next_operation", store.operations.next(all_of)
    yield "list_jobs", store.jobs.list(JobFilter(tenant=all_of, limit=1000))
    yield "notes", store.jobs.notes(JobFilter(tenant=all_of, limit=1000))
    yield "seal", store.audit.get_seal()
    jobs = {str(row["job_id"]) for table in rows.values() for row in table if row.get("job_id")}
    for job in sorted(jobs):
        if len(job) == 36:
            for name in (
                "jobs.get",
                "jobs.history",
                "jobs.attempts",
                "jobs.artifacts",
                "jobs.checkpoints",
                "jobs.result",
                "steps.list",
                "jobs.references",
            ):
                yield name, operation(store, name)(job, all_of)
            for name in (
                "templates.made_from",
                "jobs.chain",
                "jobs.circumstances",
                "dead_letters.group_of",
                "dead_letters.remade",
                "workflows.parent_results",
                "tenants.next_share",
            ):
                yield name, operation(store, name)(job, all_of)
            yield "story", story(store, job, all_of)
            yield "why", why(store, job, all_of)
    for approval in rows.get("approval", []):
        if len(str(approval["id"])) == 36:
            yield "votes", store.approvals.votes(approval["id"], all_of)
            yield "approval", store.approvals.get(approval["id"], all_of)
    for row in rows.get("workflow", []):
        if len(str(row["id"])) == 36:
            yield "graph", store.workflows.graph(row["id"], all_of)
    for row in rows.get("schedule", []):
        if len(str(row["id"])) == 36:
            yield "fires", store.schedules.fires(row["id"], all_of)
    for row in rows.get("webhook", []):
        if len(str(row["id"])) == 36:
            yield "webhook_deliveries", store.webhooks.deliveries(row["id"], all_of, 100)
    for row in rows.get("subscription", []):
        if len(str(row["id"])) == 36:
            yield "deliveries", store.subscriptions.deliveries(row["id"], all_of, False, 100)
