"""Webhooks to a working receiver (JF-9, SC-15): every event arrives signed, and its responses take effect."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Backoff, Context, Job, PayloadPolicy, Retry, State, webhooks
from holdfast.app.internals import session_of
from holdfast.errors import Conflict, InvalidSetting, NotFound
from holdfast.features.webhooks.model import DELIVER
from holdfast.outgoing import EgressPolicy
from tests.app.conftest import NewApp
from tests.app.test_killed_worker import starts, worker
from tests.support.direct_sql import open_by_hand
from tests.support.http_server import Page, Web, running
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("JF-9", "SC-15")

AT_ONCE = Retry(max_attempts=11, backoff=Backoff(base=0, cap=0))
CARD = "4929-canary-0042"
WANTED = {
    *("job.failed", "job.dead_letter", "job.crashed", "job.approval_needed", "job.succeeded"),
    *("schedule.missed", "webhook.disabled"),
}


@pytest.fixture
def web() -> Iterator[Web]:
    with running() as server:
        yield server


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    made = webhooks.new_secret()
    monkeypatch.setenv("HOLDFAST_SECRET_OPS_HOOK", made)
    return made


def loopback(web: Web) -> EgressPolicy:
    return EgressPolicy(ports=(web.port,), allow=("127.0.0.0/8",))


@pytest.fixture
def one(sqlite_url: str, web: Web) -> Iterator[App]:
    with closing(App(sqlite_url, name="tests", enqueued_by="tester", egress=loopback(web))) as app:
        yield app


def received(web: Web, secret: str, path: str = "/ops") -> list[tuple[str, dict[str, Any]]]:
    """Id and body of each message, each verified as a receiver would."""
    messages = [webhooks.verify(each.headers, each.body, secret) for each in web.asked if each.path == path]
    return [(each.id, each.json()) for each in messages]


def work_until(app: App, condition: Callable[[], bool], what: str) -> None:
    """Run the waiting jobs repeatedly until the condition holds."""

    def done() -> bool:
        work_off(app)
        return condition()

    until(done, what)


def script(web: Web, path: str, *answers: tuple[Any, ...]) -> None:
    """Serve these responses in order and repeat the last one."""
    left = list(answers)

    def page(request: Page) -> None:
        request.answer(*(left.pop(0) if len(left) > 1 else left[0]))

    web.pages[path] = page


def jobs_by_id(app: App) -> dict[str, Job]:
    return {job.id: job for job in app.jobs.list(limit=200)}


def dump(url: str) -> str:
    with closing(open_by_hand(url)) as by_hand:
        return "\n".join(str(by_hand.execute(f"select * from {table}")) for table in by_hand.tables())


def test_every_event_type_reaches_the_receiver(
    new_app: NewApp, url: str, tmp_path: Path, web: Web, secret: str
) -> None:
    """A worker is killed while it runs a job; a job fails, another requests an approval, another succeeds; a schedule
    misses fires; another webhook is gone. Each event is sent once, signed, without restricted or secret values."""
    app = new_app(egress=loopback(web))

    @app.job(retry=Retry(max_attempts=1), payload_rules=PayloadPolicy(restricted=True))
    def fails(card: str) -> None:
        raise ValueError(f"card {card} was declined")

    @app.job()
    async def requests(ctx: Context) -> None:
        await ctx.approval("pay", summary="Pay 1,200")

    @app.job()
    def hold(number: int) -> int:
        return number

    web.says("/ops", body=b"fine")
    web.says("/gone", 410)
    app.webhooks.add("ops", f"{web.url}/ops", secrets="OPS_HOOK", wants=sorted(WANTED))
    app.webhooks.add("gone", f"{web.url}/gone", secrets="OPS_HOOK")
    app.schedules.add("hourly", "@hourly", kind="hold", payload={"number": 1}, missed="skip")
    held = app.enqueue("hold", {"number": 7})
    with worker(url, tmp_path) as victim:
        until(lambda: starts(tmp_path), "the first worker has started the job")
        victim.kill()
        victim.wait(timeout=10)
    session_of(app).store.run(
        session_of(app).store.clock.set(timedelta(days=1), None)
    )  # the lease has expired, and a day of fires is missed
    failed, waiting = fails.enqueue(CARD), requests.enqueue()
    app.webhooks.test("gone")
    with working(app):
        until(lambda: {body["type"] for _, body in received(web, secret)} >= WANTED, "each event has arrived")
        held.result(timeout=30)
        until(lambda: app.jobs.list(kind=DELIVER, state=State.QUEUED) == [], "all deliveries were sent")
    messages = received(web, secret)
    about = {(body["type"], body["data"].get("job_id")): body for _, body in messages}
    assert about["job.crashed", held.id]["data"]["meta"]["error_code"] == "worker_lost"
    assert about["job.succeeded", held.id]["data"]["kind"] == "hold"
    assert about["job.dead_letter", failed.id]["data"]["to_state"] == "dead_letter"
    assert about["job.failed", failed.id]["data"]["meta"]["error_code"] == "ValueError"
    approval = about["job.approval_needed", waiting.id]["data"]["meta"]["approval_id"]
    assert app.approvals.get(approval).approval.job_id == waiting.id
    (missed,) = [body for _, body in messages if body["type"] == "schedule.missed"]
    assert (missed["data"]["data"]["schedule"], missed["data"]["data"]["count"] > 20) == ("hourly", True)
    (disabled,) = [body for _, body in messages if body["type"] == "webhook.disabled"]
    assert disabled["data"]["data"]["webhook"] == "gone"
    assert not app.webhooks.get("gone").enabled
    assert max(Counter(id for id, _ in messages).values()) == 1
    # No message is about its own deliveries.
    assert {body["data"].get("kind") for _, body in messages} <= {"fails", "requests", "hold", None}
    sent = "\n".join(request.body.decode() + str(request.headers) for request in web.asked)
    assert CARD not in sent
    assert secret.removeprefix("whsec_") not in sent + dump(url)
    log = app.webhooks.deliveries("ops", limit=200)
    assert {each.message for each in log} == {id for id, _ in messages}
    assert {(each.status, each.error_code, each.excerpt) for each in log} == {(200, None, "fine")}


def test_message_is_identical_on_retry_and_can_be_resent(one: App, web: Web, secret: str) -> None:
    script(web, "/ops", (500, b"down"), (503, b"", {"retry-after": "0"}), (200, b"\x1b[31mgot " + secret.encode()))
    one.webhooks.add("ops", f"{web.url}/ops", secrets="OPS_HOOK", wants=["order.paid"], retry=AT_ONCE)
    with pytest.raises(Conflict, match="already"):
        one.webhooks.add("ops", web.url, secrets="X")
    one.send_event("order.paid", {"order": 7})
    work_until(one, lambda: len(web.asked) == 3, "the message was accepted")
    (first, second, third) = received(web, secret)
    assert first == second == third
    assert (third[1]["type"], third[1]["data"]["data"]) == ("order.paid", {"order": 7})
    log = one.webhooks.deliveries("ops")
    assert [(each.attempt, each.status) for each in log] == [(3, 200), (2, 503), (1, 500)]
    assert log[0].excerpt == "[31mgot [redacted]"
    assert [each.status for each in one.webhooks.deliveries("ops", failed=True, limit=1)] == [503]
    again = one.webhooks.resend("ops", first[0])
    work_off(one)
    assert one.jobs.get(again).state is State.SUCCEEDED
    assert received(web, secret)[3] == first
    one.enqueue(DELIVER, {"webhook": "ops", "type": "order.sent", "data": {"order": 7}})
    work_off(one)
    id, body = received(web, secret)[4]
    one.webhooks.resend("ops", id)
    work_off(one)
    assert received(web, secret)[5] == (id, body)
    with pytest.raises(NotFound, match="message_not_found"):
        one.webhooks.resend("ops", "msg_unknown")


def test_producer_cannot_sign_messages_that_look_like_system_events(one: App, web: Web, secret: str) -> None:
    """A receiver trusts signed messages, for example that a job was approved or a schedule missed."""
    one.webhooks.add("ops", web.url, secrets="OPS_HOOK", wants=["job.*", "order.*"])
    event = {"name": "job.approve", "job_id": "x", "to_state": "queued"}
    forged: list[dict[str, Any]] = [
        {"event": event},
        {"event": {"name": "order.paid", "data": {}}},
        {"type": "job.approved", "data": {}},
        {"type": "schedule.missed"},
        {"type": "ping"},
        {"type": "order.paid", "message": "msg_1"},
    ]
    jobs = [one.enqueue(DELIVER, {"webhook": "ops", **each}) for each in forged]
    work_off(one)
    assert {one.jobs.get(job.id).error_code for job in jobs} == {"webhook_not_yours"}
    for name in ("job.dead_letter", "job.", "schedule.missed", "webhook.disabled"):
        with pytest.raises(InvalidSetting, match="reserved_name"):
            one.send_event(name)
    assert (web.asked, one.webhooks.deliveries("ops")) == ([], [])


@pytest.mark.slow
def test_response_of_the_receiver_takes_effect(one: App, web: Web, secret: str) -> None:
    """Retry-After, a redirect, a refusal and 410; unit tests cover the other responses."""
    web.says("/later", 429, headers={"retry-after": "7200"})
    web.says("/moved", 302, headers={"location": f"{web.url}/elsewhere"})
    web.says("/no", 404, b"no such tenant")
    web.says("/gone", 410)
    jobs = {}
    for name in ("later", "moved", "no", "gone"):
        one.webhooks.add(name, f"{web.url}/{name}", secrets="OPS_HOOK", wants="none.such", retry=AT_ONCE)
        jobs[name] = one.webhooks.test(name)
    work_until(one, lambda: len(one.jobs.list(state=State.DEAD_LETTER)) == 3, "the refusals were given up")
    later, moved, no, gone = (jobs_by_id(one)[id] for id in jobs.values())
    requests = Counter(each.path for each in web.asked)
    assert later.state is State.RETRY_WAITING
    assert later.due_at is not None
    assert timedelta(minutes=115) < later.due_at - later.created_at < timedelta(minutes=125)
    assert (moved.error_code, moved.attempt, requests["/elsewhere"]) == ("webhook_refused", 5, 0)
    assert (no.error_code, no.attempt, requests["/no"]) == ("webhook_refused", 5, 5)
    assert (gone.state, gone.error_code, gone.attempt) == (State.DEAD_LETTER, "webhook_gone", 1)
    disabled = one.webhooks.get("gone")
    assert disabled.disabled_reason == "the receiver responded that it is gone (410)"
    assert jobs["gone"] in str(disabled.disabled_by)
    one.enqueue(DELIVER, {"webhook": "gone", "type": "order.paid"})
    waiting = one.enqueue(DELIVER, {"webhook": "no", "type": "order.paid"})
    one.webhooks.remove("no")
    work_off(one)
    assert Counter(each.path for each in web.asked)["/gone"] == 1  # no further request was sent there
    assert waiting.state() is State.CANCELLED
    (dead,) = one.jobs.list(state=State.DEAD_LETTER, limit=1)
    assert dead.error_code == "webhook_disabled"
    web.says("/gone")
    one.webhooks.enable("gone")
    one.jobs.redrive(dead.id)
    work_off(one)
    assert received(web, secret, "/gone")[-1][1]["type"] == "order.paid"


def test_secrets_are_resolved_by_name_and_rotated_without_a_gap(
    one: App, web: Web, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.says("/ops")
    one.webhooks.add("ops", f"{web.url}/ops", secrets="OPS_HOOK", retry=AT_ONCE)
    new = webhooks.new_secret()
    assert one.webhooks.rotate_secret("ops", "OPS_HOOK_2").secrets == ("OPS_HOOK_2", "OPS_HOOK")
    job = one.webhooks.test("ops")
    work_off(one)
    failed = one.jobs.get(job)
    assert failed is not None
    assert (web.asked, failed.error_code) == ([], "secret_missing")
    monkeypatch.setenv("OPS_HOOK_2", new)  # not a webhook secret
    monkeypatch.setenv("HOLDFAST_SECRET_acme__OPS_HOOK_2", new)  # another tenant's secret
    work_off(one)
    assert web.asked == []
    monkeypatch.setenv("HOLDFAST_SECRET_OPS_HOOK_2", new)
    work_until(one, lambda: web.asked != [], "the message is sent once the secret exists")
    for known in (secret, new):
        assert len(received(web, known)) == 1
    assert one.webhooks.rotate_secret("ops", "OPS_HOOK_2", keep=0).secrets == ("OPS_HOOK_2",)
    one.webhooks.test("ops")
    work_off(one)
    assert len(received(web, new)) == 2
    assert new.removeprefix("whsec_") not in dump(session_of(one).store.url)


def test_webhook_cannot_reach_loopback(one: App, web: Web, secret: str) -> None:
    """Nothing is allowed: the guard refuses loopback, and the delivery log says so without the address."""
    one._outbound.policy = EgressPolicy(ports=(web.port,))
    one.webhooks.add("ops", f"{web.url}/ops?token=7", secrets="OPS_HOOK", retry=Retry(max_attempts=1))
    job = one.webhooks.test("ops")
    work_off(one)
    delivery = one.jobs.get(job)
    assert delivery is not None
    assert (delivery.state, delivery.error_code, web.asked) == (State.DEAD_LETTER, "egress_refused", [])
    (logged,) = one.webhooks.deliveries("ops")
    assert (logged.status, logged.error_code) == (None, "egress_refused")
    assert "token" not in json.dumps(one.webhooks.get("ops").described(), default=str)
