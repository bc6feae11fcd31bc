"""The async form of operations that wait, write files or use several transactions does what the sync form does."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import App, Retry
from holdfast.errors import NotFound, WaitTimeout
from holdfast.features.audit.operations import verify_file
from tests.app.conftest import NewApp

pytestmark = pytest.mark.req("HF-5")


@pytest.fixture
def app(new_app: NewApp, tmp_path: Path) -> App:
    app = new_app(artifacts=tmp_path / "artifacts")

    @app.job(retry=Retry(max_attempts=1))
    async def work(event: object = None) -> None: ...

    @app.job(retry=Retry(max_attempts=1))
    async def fails() -> None:
        raise ValueError("no")

    return app


async def test_subscription_calls(app: App) -> None:
    made = await app.subscriptions.aset("follow", "order.paid", "work", start="beginning")
    await app.asend_event("order.paid", {"order": 7})
    assert await app.subscriptions.abehind(made.name) == 1
    assert (await app.subscriptions.apause("follow", reason="not now")).paused_reason == "not now"
    assert (await app.subscriptions.aresume("follow")).paused_at is None
    assert [one.name for one in await app.subscriptions.alist()] == ["follow"]
    await app.atick()
    assert [each.job_id is not None for each in await app.subscriptions.adeliveries(made.name)] == [True]
    await app.subscriptions.aremove("follow")
    with pytest.raises(NotFound):
        await app.subscriptions.aget("follow")
    with pytest.raises(NotFound):
        await app.subscriptions.aremove("follow")
    await app.aclose()


async def test_consumer_calls(app: App) -> None:
    sent = await app.asend_event("order.paid", {"order": 7})
    assert [event.id async for event in app.events.aread_sent("mirror")] == [sent.id]
    assert [consumer.name for consumer in await app.consumers.alist()] == ["mirror"]
    await app.consumers.areset("mirror")
    assert [event.id for event in app.events.read_sent("mirror")] == [sent.id]
    await app.consumers.aremove("mirror")
    assert await app.consumers.alist() == []
    await app.aclose()


async def test_audit_calls(app: App, tmp_path: Path) -> None:
    job = await app.aenqueue("work")
    assert await app.audit.aseal() > 0
    anchor = await app.audit.aanchor()
    assert anchor == app.audit.anchor()
    seen: list[tuple[int, int]] = []
    assert (await app.audit.averify(anchors=[anchor], progress=lambda *far: seen.append(far))).ok
    assert seen
    assert (await app.audit.averify_some(seals=1)).report.ok
    assert await app.audit.aget(job.id) == app.audit.get(job.id)
    file = tmp_path / "trail.jsonl"
    assert await app.audit.aexport(file) == 1
    assert verify_file(file, [anchor]).ok
    await app.aclose()


async def test_bulk_operation_calls(app: App) -> None:
    for _ in range(3):
        await app.aenqueue("fails")
    await app.atick()
    started = await app.operations.astart("redrive", kind="fails")
    with pytest.raises(WaitTimeout):
        await app.operations.await_end(started.id, timeout=0)
    assert (await app.operations.arun(started.id)).done == 3
    assert (await app.operations.await_end(started.id)).over
    await app.aclose()


async def test_retention_and_usage_calls(app: App) -> None:
    await app.aenqueue("work")
    await app.atick()
    assert await app.usage.acount() > 0
    assert await app.usage.acount() == 0
    assert await app.usage.alist() == app.usage.list()
    await app.retention.aset(kind="work", clean_after="1d")
    assert [one.kind for one in await app.retention.alist()] == ["work"]
    assert await app.retention.apreview() == app.retention.preview()
    assert await app.retention.asweep() == {"clean": 0, "purge": 0, "prune": 0, "delete": 0}
    assert await app.retention.aremove_orphans() == 0
    await app.retention.aremove(kind="work")
    assert await app.retention.alist() == []
    await app.aclose()


async def test_tenant_and_executor_calls(app: App) -> None:
    assert await app.tenants.aset_fair_queues(False) == []
    assert await app.tenants.aset_fair_queues(queue="mail") == await app.tenants.afair_queues() == ["mail"]
    assert await app.tenants.apins() == []
    assert not await app.tenants.aregistered_only()
    await app.tenants.aset_registered_only()
    assert await app.tenants.aregistered_only()
    await app.executors.aset("gpu")
    assert [one.label for one in await app.executors.alist()] == ["gpu"]
    await app.executors.aremove("gpu")
    assert await app.executors.alist() == []
    await app.aclose()


async def test_rule_limit_and_health_calls(app: App) -> None:
    await app.payload_rules.aset("work", max_bytes="1KB")
    assert (await app.payload_rules.aeffective("work")).max_bytes == 1024
    assert await app.payload_rules.acheck("work", {"a": "x" * 2_000}) is not None
    assert await app.payload_rules.aget("work") == app.payload_rules.get("work")
    await app.payload_rules.aremove("work")
    await app.limits.aset(queue="mail", concurrency=5)
    assert (await app.limits.aget(queue="mail")) == app.limits.get(queue="mail")
    assert (await app.health.aget()).verdict == app.health.get().verdict
    assert (await app.health.astatistics()).queues == app.health.statistics().queues
    assert len((await app.health.aactivity()).points) == len(app.health.activity().points)
    await app.aclose()


async def test_workflow_extension_calls(app: App) -> None:
    plan = app.workflow("publish")
    plan.add("work", name="first")
    run = await plan.astart()
    more = await app.workflows.aextend(run.id)
    more.add("work", after="first", name="second")
    await more.astart()
    assert {node.label for node in (await app.workflows.agraph(run.id)).nodes} == {"first", "second"}
    assert await run.astatus() == run.status() == "active"
    await app.atick(limit=10)
    assert (await run.await_end(timeout=10)).status == "succeeded"
    await app.aclose()
