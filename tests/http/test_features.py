"""The other features through the client: its results equal those of the local app."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast import App, Context, Retry, errors
from holdfast.errors import NotFound
from holdfast.features.audit import operations
from holdfast.features.audit.operations import verify_file
from tests.app.conftest import NewApp
from tests.http.conftest import BELOW, Driver, service_of
from tests.support.http_server import serving
from tests.support.waiting import until
from tests.support.workers import working

pytestmark = pytest.mark.req("JF-14")

Drive = Callable[..., Driver]

async_form = pytest.mark.parametrize(("url", "form"), [("sqlite", "awaiting")], indirect=["url"])
both_forms = pytest.mark.parametrize(
    ("url", "form"), [("sqlite", "blocking"), ("postgres", "awaiting")], indirect=["url"]
)


@pytest.fixture
def worker(new_app: NewApp) -> App:
    app = new_app()

    @app.job()
    async def pay(ctx: Context, amount: int) -> str:
        decision = await ctx.approval("big", summary=f"Pay {amount}?", form={"type": "object"})
        return f"paid {amount} ({decision.by})" if hasattr(decision, "by") else f"paid {amount}"

    @app.job()
    def fetch(n: int) -> int:
        return n

    @app.job(retry=Retry(max_attempts=1))
    def broken() -> None:
        raise ValueError("no paper")

    return app


@async_form
def test_approvals_are_listed_and_decided(base: str, drive: Drive, worker: App) -> None:
    client = drive(base)
    yes = client.do(lambda c: c.enqueue("pay", {"amount": 7}))
    no = client.do(lambda c: c.enqueue("pay", {"amount": 8}))
    worker.run_worker(burst=True)
    approvals = client.do(lambda c: c.approvals.list())
    assert approvals == list(worker.approvals.list())
    assert client.take(lambda c: c.approvals.every(name="big")) == approvals
    first, second = sorted(approvals, key=lambda approval: approval.job_id != yes.id)
    assert client.do(lambda c: c.approvals.get(first.id)).job.id == yes.id
    assert client.do(lambda c: c.approvals.approve(first.id, comment="fine", data={})) == "approved"
    assert client.do(lambda c: c.approvals.deny(second.id, comment="no")) == "denied"
    with pytest.raises(errors.Refused) as raised:
        client.do(lambda c: c.approvals.approve(first.id))
    assert raised.value.code == "already_decided"
    token = client.do(lambda c: c.enqueue("pay", {"amount": 9}))
    worker.run_worker(burst=True)
    open_approval = client.do(lambda c: c.approvals.list(job_id=token.id))[0]
    assert client.do(lambda c: c.approvals.issue_token(open_approval.id, person="ada")).startswith("hfa_")
    assert client.do(lambda c: c.jobs.handle(yes.id).result(timeout=10)).startswith("paid 7")
    votes = client.do(lambda c: c.approvals.get(first.id)).votes
    assert [(vote.person, vote.comment) for vote in votes] == [("a tester", "fine")]
    with pytest.raises(errors.JobFailed):
        client.do(lambda c: c.jobs.handle(no.id).result(timeout=10))


@async_form
def test_schedules_templates_and_workflows(base: str, drive: Drive, worker: App) -> None:
    client = drive(base)
    made = client.do(
        lambda c: c.schedules.add("nightly/1", "0 3 * * *", kind="fetch", tz="Europe/Paris", payload={"n": 1})
    )
    assert made == worker.schedules.get("nightly/1") == client.do(lambda c: c.schedules.get("nightly/1"))
    with pytest.raises(NotFound):
        client.do(lambda c: c.schedules.get("none"))
    assert client.do(lambda c: c.schedules.edit("nightly/1", timing="0 4 * * *")).timing == "0 4 * * *"
    assert client.do(lambda c: c.schedules.preview("nightly/1", 3)) == worker.schedules.preview("nightly/1", 3)
    assert client.do(lambda c: c.schedules.pause("nightly/1")).state == "paused"
    assert client.do(lambda c: c.schedules.resume("nightly/1")).state == "active"
    ran = client.do(lambda c: c.schedules.run("nightly/1"))
    (fire,) = client.do(lambda c: c.schedules.history("nightly/1"))
    assert fire.job_id == ran
    assert client.do(lambda c: c.schedules.history("nightly/1", before=fire.due_at)) == []
    client.do(lambda c: c.schedules.remove("nightly/1"))
    assert client.do(lambda c: c.schedules.list()) == []

    put = client.do(lambda c: c.templates.set("t", "fetch", {"n": 5}, queue="slow", retry=Retry(max_attempts=2)))
    assert put == worker.templates.get("t") == client.do(lambda c: c.templates.list())[0]
    from_it = client.do(lambda c: c.templates.using(tags=["x"]).enqueue("t", n=6))
    job = client.do(lambda c: c.jobs.get(from_it.id))
    assert (job.payload, job.queue, job.tags, job.max_attempts) == ({"n": 6}, "slow", ("x",), 2)
    assert len(client.do(lambda c: c.templates.versions("t"))) == 1
    client.do(lambda c: c.templates.remove("t"))
    with pytest.raises(NotFound):
        client.do(lambda c: c.templates.get("t"))

    plan = client.client.workflow("publish", key="once")
    a = plan.add("fetch", {"n": 1}, name="a")
    b = plan.add("fetch", {"n": 2})
    plan.add("fetch", {"n": 3}, name="last", after=[a, b])
    plan.on_failure("tell", {"channel": "ops"})
    plan.on_success("tell", step="a")
    started = client.do(lambda c: plan.start())
    assert (started.created, sorted(started.jobs)) == (True, ["a", "fetch-2", "last"])
    assert client.do(lambda c: plan.start()).created is False
    more = client.do(lambda c: c.workflows.extend(started.id))
    more.add("fetch", {"n": 4}, name="more", after="last")
    assert sorted(client.do(lambda c: more.start() if client.blocking else more.astart()).jobs) == ["more"]
    graph = client.do(lambda c: c.workflows.graph(started.id))
    assert graph == worker.workflows.graph(started.id)
    assert client.do(lambda c: c.workflows.get(started.id)) == worker.workflows.get(started.id)
    assert [(each.fires, each.step_id) for each in graph.callbacks] == [
        ("failure", None),
        ("success", started.jobs["a"]),
    ]
    worker.run_worker(burst=True)
    worker.run_worker(burst=True)
    (callback,) = worker.jobs.list(kind="tell")
    assert callback.id == graph.callbacks[1].job_id
    (done,) = client.do(lambda c: c.workflows.list(over=True))
    assert (done.id, done.status) == (started.id, "succeeded")
    with pytest.raises(errors.Conflict) as raised:
        client.do(lambda c: c.workflows.cancel(started.id))
    assert raised.value.code == "already_finished"


@async_form
def test_dead_letters_are_redriven_in_bulk(base: str, drive: Drive, worker: App) -> None:
    client = drive(base)
    once = Retry(max_attempts=1)
    client.do(lambda c: c.enqueue_many(c.prepare("broken", retry=once, tags=["t"]) for _ in range(3)))
    worker.run_worker(burst=True)
    (group,) = client.do(lambda c: c.dead_letters.groups())
    assert group == worker.dead_letters.groups()[0]
    assert client.do(lambda c: c.dead_letters.note(group.fingerprint, "the printer")).note == "the printer"
    letters = client.do(lambda c: c.dead_letters.jobs(group.fingerprint))
    assert len(letters) == 3
    new = client.do(lambda c: c.dead_letters.redrive_as(letters[0].id, {}))
    assert client.do(lambda c: c.jobs.details(new)).remade[0].job_id == letters[0].id
    client.do(lambda c: c.jobs.cancel(new))
    operation = client.do(lambda c: c.dead_letters.redrive(group.fingerprint, reason="mended", delay="2h"))
    assert operation.run_at == operation.created_at + timedelta(hours=2)
    worker.operations.run(operation.id)
    assert client.do(lambda c: c.operations.wait(operation.id, timeout=10)).done == 2
    assert client.do(lambda c: c.operations.list())[0].id == operation.id
    assert {job.due_at for job in client.do(lambda c: c.jobs.list(state="queued"))} == {operation.run_at}
    at = operation.created_at + timedelta(days=1)
    assert client.do(lambda c: c.operations.start("redrive", kind="none", at=at)).run_at == at
    cancelled = client.do(lambda c: c.operations.start("cancel", kind="broken", tag="t", reason="enough"))
    assert cancelled.wanted["kind"] == "broken"
    assert client.do(lambda c: c.operations.cancel(cancelled.id, reason="no")).cancelled_reason == "no"
    with pytest.raises(errors.InvalidInput) as raised:
        client.do(lambda c: c.operations.start("cancel"))
    assert raised.value.code == "nothing_named"


@both_forms
def test_events_are_paged_and_followed(base: str, drive: Drive, worker: App) -> None:
    client = drive(base)
    before = client.do(lambda c: c.enqueue_many(c.prepare("fetch", {"n": n}) for n in range(210)))
    seen = client.take(lambda c: c.events.list())
    assert [event.job_id for event in seen] == [handle.id for handle in before]
    assert seen[:5] == list(worker.events.read("me", page=5))[:5]
    assert client.take(lambda c: c.events.list(after=seen[199].cursor)) == seen[200:]
    # The remaining events after a cursor, and then new events of another client.
    other = drive(base)
    late = threading.Timer(0.3, lambda: other.do(lambda c: c.jobs.cancel(before[0].id, before[1].id)))
    late.start()
    result = client.take(lambda c: c.events.follow(after=seen[-2].cursor), most=3)
    late.join()
    assert [(event.type, event.job_id) for event in result] == [
        ("enqueue", before[-1].id),
        ("cancel", before[0].id),
        ("cancel", before[1].id),
    ]
    sent = client.do(lambda c: c.send_event("order.paid", {"order": 7}, key="7"))
    assert sent.created
    assert client.do(lambda c: c.send_event("order.paid", {"order": 7}, key="7")).created is False
    with pytest.raises(errors.InvalidInput) as raised:
        client.take(lambda c: c.events.follow(after="nonsense"))
    assert raised.value.code == "invalid_cursor"


@async_form
def test_health_usage_settings_reservations_and_tokens(base: str, drive: Drive, worker: App) -> None:
    client = drive(base)
    client.do(lambda c: c.enqueue("fetch", {"n": 1}, agent="bot"))
    worker.run_worker(burst=True)
    assert client.do(lambda c: c.health.get()).verdict == worker.health.get().verdict
    client.do(lambda c: c.usage.count())
    assert client.do(lambda c: c.usage.list(by=["kind"])) == worker.usage.list(by=["kind"])
    two_days_ago = (datetime.now(UTC) - timedelta(days=2)).date()
    assert client.do(lambda c: c.usage.list(by="day", since=two_days_ago))[0].succeeded == 1
    paused = client.do(lambda c: c.pauses.set(queue="mail", reason="SMTP is down", until="1h"))
    assert client.do(lambda c: c.pauses.list()) == worker.pauses.list() == [paused]
    client.do(lambda c: c.pauses.remove(queue="mail"))
    assert client.do(lambda c: c.queues.set_aging("mail", every="1m")) == client.do(lambda c: c.queues.list())[0]
    assert client.do(lambda c: c.queues.set_aging("mail", every=None)) is None
    assert client.do(lambda c: c.limits.set(queue="mail", concurrency=2)) == client.do(lambda c: c.limits.list())[0]
    client.do(lambda c: c.limits.remove(queue="mail"))
    for act in (
        lambda c: c.limits.set(kind="call", rate=(100, "1m")),
        lambda c: c.limits.set(kind="call", rate=(100, timedelta(minutes=1))),
    ):
        made = client.do(act)
        assert (made.rate, made.per) == (100, 60.0)
    agent = client.do(lambda c: c.agents.set("bot", retry=Retry(max_attempts=3)))
    assert agent == worker.agents.get("bot") == client.do(lambda c: c.agents.get("bot"))
    assert client.do(lambda c: c.agents.disable("bot", reason="rude")).disabled_reason == "rude"
    assert client.do(lambda c: c.agents.enable("bot")).disabled is False
    assert client.do(lambda c: c.agents.list())[0].id == "bot"
    rule = client.do(lambda c: c.payload_rules.set("fetch", max_bytes="64KB"))
    assert client.do(lambda c: c.payload_rules.list()) == [rule]
    client.do(lambda c: c.payload_rules.remove("fetch"))
    kept = client.do(lambda c: c.retention.set(kind="fetch", purge_after="30d"))
    assert client.do(lambda c: c.retention.list()) == [kept]
    assert client.do(lambda c: c.retention.preview())[0].kind == "fetch"
    assert client.do(lambda c: c.archives.list()) == []
    client.do(lambda c: c.retention.remove(kind="fetch"))
    one = client.do(lambda c: c.subscriptions.set("receipts", "order.paid", kind="fetch", payload={"n": 1}))
    assert client.do(lambda c: c.subscriptions.pause("receipts", reason="x")).paused_reason == "x"
    assert client.do(lambda c: c.subscriptions.resume("receipts")).paused_at is None
    assert client.do(lambda c: c.subscriptions.get("receipts")).id == one.id == worker.subscriptions.list()[0].id
    assert client.do(lambda c: c.subscriptions.deliveries("receipts")) == []
    assert client.do(lambda c: c.subscriptions.behind("receipts")) == 0
    client.do(lambda c: c.subscriptions.remove("receipts"))
    assert client.do(lambda c: c.subscriptions.list()) == []
    assert client.do(lambda c: c.consumers.list()) == worker.consumers.list()
    assert client.do(lambda c: c.reservations.list()) == []
    mine = client.do(lambda c: c.reservations.set(str(uuid4()), resource="gpu-0", ttl="1m", reason="measuring"))
    assert (mine.state, mine.running, mine.ahead, mine.what) == ("active", 0, 0, "resource gpu-0")
    kept = client.do(lambda c: c.reservations.set(mine.id, resource="gpu-0", ttl="1m"))
    assert kept.expires_at >= mine.expires_at
    assert client.do(lambda c: c.reservations.get(mine.id)) == worker.reservations.get(mine.id)
    client.do(lambda c: c.reservations.release(mine.id, reason="measured"))
    assert client.do(lambda c: c.reservations.list(ended=True))[0].ended_why == "measured"
    with pytest.raises(NotFound):
        client.do(lambda c: c.reservations.get("01900000-0000-7000-8000-000000000000"))
    assert client.do(lambda c: c.tenants.list())[0].name == "default"
    assert client.do(lambda c: c.executors.list()) == []
    actions = client.do(lambda c: c.audit.actions(limit=500))
    assert actions == worker.audit.actions(limit=500)
    assert {action.actor for action in actions if action.subject == "limit"} == {"a tester"}
    issued = client.do(lambda c: c.tokens.issue("ci", roles=["producer"], expires="90d"))
    assert issued.text.startswith("hf_")
    assert issued.text not in repr(issued)
    assert client.do(lambda c: c.tokens.list()) == [issued.token]
    assert client.do(lambda c: c.tokens.revoke(issued.token.id)).revoked_by == "a tester"
    ran = client.do(lambda c: c.tick(limit=1))
    assert ran.taken == 0


@both_forms
def test_jobs_are_claimed_and_settled_over_http(base: str, drive: Drive, worker: App) -> None:
    client = drive(base)
    client.do(lambda c: c.enqueue_many(c.prepare("resize", {"n": n}) for n in range(3)))
    lease = client.do(lambda c: c.leases.open("py", kinds=["resize"], queues=["default"], slots=2)).lease
    first, second = client.do(lambda c: c.leases.claim(lease, kinds=["resize"], want=2, wait=1))
    assert (first.payload, first.attempt) == ({"n": 0}, 1)
    client.do(lambda c: c.leases.checkpoint(lease, first, "rows", {"done": 10}))
    client.do(lambda c: c.leases.progress(lease, first, 0.5, "half"))
    assert client.do(lambda c: c.jobs.handle(first.id).progress()).fraction == 0.5
    assert {held.id for held in client.do(lambda c: c.leases.renew(lease)).jobs} == {first.id, second.id}
    assert client.do(lambda c: c.leases.settle(lease, first, result={"ok": True})).settled
    assert client.do(lambda c: c.leases.settle(lease, first, result={"ok": True})).settled  # repeated
    failed = client.do(
        lambda c: c.leases.settle(lease, second, "retry", error={"type": "Busy", "message": "later"}, after="1h")
    )
    assert failed.ending == "retry"
    assert worker.jobs.get(second.id).error_code == "Busy"
    (third,) = client.do(lambda c: c.leases.claim(lease, want=5))
    assert client.do(lambda c: c.leases.release(lease, third))[0].settled
    client.do(lambda c: c.leases.end(lease))
    with pytest.raises(errors.StaleLease):
        client.do(lambda c: c.leases.settle(lease, third, result=1))
    assert client.do(lambda c: c.jobs.handle(first.id).result(timeout=5)) == {"ok": True}


@async_form
@pytest.mark.req("JF-9", "JF-14")
def test_webhooks_and_connectors(base: str, drive: Drive, worker: App) -> None:
    client = drive(base)
    settings = {"secrets": "OPS_HOOK", "wants": "job.failed", "queue": "hooks"}
    made = client.do(lambda c: c.webhooks.add("ops", "https://ops.example.com/hooks", **settings))
    assert made == worker.webhooks.get("ops") == client.do(lambda c: c.webhooks.list())[0]
    changed = client.do(lambda c: c.webhooks.set("ops", secrets=["NEW"], queue=None, priority=3))
    assert (changed.secrets, changed.job_options) == (("NEW",), {"priority": 3})
    assert client.do(lambda c: c.webhooks.rotate_secret("ops", "NEXT")).secrets == ("NEXT", "NEW")
    assert client.do(lambda c: c.webhooks.disable("ops", reason="rude")).disabled_reason == "rude"
    assert client.do(lambda c: c.webhooks.enable("ops", skip=True)).enabled
    assert worker.jobs.get(client.do(lambda c: c.webhooks.test("ops"))).kind == "webhook.deliver"
    assert client.do(lambda c: c.webhooks.deliveries("ops", failed=True)) == []
    with pytest.raises(NotFound, match="message_not_found"):
        client.do(lambda c: c.webhooks.resend("ops", "msg_none"))
    client.do(lambda c: c.webhooks.remove("ops"))
    with pytest.raises(NotFound, match="webhook_not_found"):
        client.do(lambda c: c.webhooks.get("ops"))
    kept = client.do(lambda c: c.connectors.set("http.request", hosts=["a.example.com"], timeout="5s", max_bytes="1MB"))
    assert kept == worker.connectors.get("http.request") == client.do(lambda c: c.connectors.list())[0]
    assert client.do(lambda c: c.connectors.get("http.request")).timeout == 5.0
    client.do(lambda c: c.connectors.remove("http.request"))
    assert worker.connectors.list() == []


@async_form
@pytest.mark.req("DP-25")
def test_registries_through_a_token_for_every_tenant(app: App, drive: Drive, worker: App) -> None:
    with serving(service_of(app, tenant="*")) as origin:
        client = drive(origin + BELOW)
        assert client.do(lambda c: c.kinds.set("fetch", "Fetch it.")) == worker.kinds.get("fetch")
        assert client.do(lambda c: c.kinds.list()) == [client.do(lambda c: c.kinds.get("fetch"))]
        paid = client.do(lambda c: c.event_types.set("paid", domain="billing", schema={"required": ["order"]}))
        assert paid == worker.event_types.get("paid") == client.do(lambda c: c.event_types.get("paid"))
        assert client.do(lambda c: c.event_types.list(domain="billing")) == [paid]
        assert client.do(lambda c: c.policies.set(unknown_event_types="refuse")) == worker.policies.get()
        assert client.do(lambda c: c.policies.get()) == worker.policies.get()
        assert client.do(lambda c: c.policies.unregistered()) == []
        client.do(lambda c: c.event_types.remove("paid"))
        client.do(lambda c: c.kinds.remove("fetch"))
        assert client.do(lambda c: c.kinds.list()) == worker.event_types.list() == []


@both_forms
@pytest.mark.req("HF-4", "HF-5")
def test_the_ledger_is_sealed_verified_and_exported(app: App, drive: Drive, worker: App, tmp_path: Path) -> None:
    with serving(service_of(app, tenant="*")) as origin:
        client = drive(origin + BELOW)
        for n in range(3):
            worker.enqueue("fetch", {"n": n})
            assert client.do(lambda c: c.audit.seal()) == 1
        anchor = client.do(lambda c: c.audit.anchor())
        assert anchor == worker.audit.anchor()
        steps: list[tuple[int, int]] = []
        with pytest.MonkeyPatch.context() as patch:  # one seal per request
            for part in (operations.Audit.verify_some.program, operations.Audit.export_some.program):
                patch.setattr(part, "__kwdefaults__", {**(part.__kwdefaults__ or {}), "seals": 1})
            report = client.do(lambda c: c.audit.verify(anchors=[anchor], progress=lambda *done: steps.append(done)))
            exported = client.do(lambda c: c.audit.export(tmp_path / "trail.jsonl", since="1h"))
        assert report == worker.audit.verify(anchors=[anchor])
        assert (report.ok, report.seals, exported) == (True, 3, 3)
        assert verify_file(tmp_path / "trail.jsonl", [anchor]).events == 3
        job = worker.jobs.list(limit=1)[0].id
        assert client.do(lambda c: c.audit.get(job)) == worker.audit.get(job)


@both_forms
@pytest.mark.req("HF-5")
def test_workers_and_their_figures(app: App, base: str, drive: Drive, worker: App) -> None:
    client = drive(base)
    with working(worker):
        until(lambda: worker.workers.list() != [], "the worker is listed")
        (running,) = client.do(lambda c: c.workers.list())
        assert (running.id, running.pid) == (worker.workers.list()[0].id, os.getpid())
        assert [each.id for each in client.do(lambda c: c.health.statistics()).workers] == [running.id]
        with pytest.raises(errors.Refused) as refused:  # it serves every tenant
            client.do(lambda c: c.workers.drain(running.id))
        assert refused.value.code == "not_for_a_tenant"
        with serving(service_of(app, tenant="*")) as origin:
            asked = drive(origin + BELOW).do(lambda c: c.workers.drain(running.id[:8]))
            assert asked.id == running.id
    with pytest.raises(NotFound, match="worker_not_found"):
        client.do(lambda c: c.workers.stop("01a2b3c4"))
    assert client.do(lambda c: c.health.activity(range="15m", by="kind")).range == "15m"
    with pytest.raises(errors.Refused, match="artifact store") as local:
        client.do(lambda c: c.retention.remove_orphans())
    assert local.value.code == "local_only"


@both_forms
def test_unknown_options_are_refused_before_a_request(app: App, base: str, drive: Drive) -> None:
    client = drive(base)
    app.limits.set(concurrency=3)
    for wrong in (
        lambda c: c.limits.remove(queu="mail"),
        lambda c: c.limits.set(queu="mail", concurrency=1),
        lambda c: c.agents.set("billing", max_paylod="1KB"),
        lambda c: c.agents.list(most=1),
    ):
        with pytest.raises(errors.InvalidSetting) as refused:
            client.do(wrong)
        assert refused.value.code == "unknown_option"
    with pytest.raises(errors.InvalidSetting) as local:
        app.limits.remove(queu="mail")  # type: ignore[call-arg]
    with pytest.raises(errors.InvalidSetting) as remote:
        client.do(lambda c: c.limits.remove(queu="mail"))
    assert (str(remote.value), remote.value.fix) == (str(local.value), local.value.fix)
    with pytest.raises(errors.Refused) as of_operators:
        client.do(lambda c: c.limits.get(tenant="default"))
    assert of_operators.value.code == "local_only"
    assert [limit.scope for limit in app.limits.list()] == ["all"]
