"""Webhooks to a receiver that is there (JF-9, SC-15): every notice arrives signed, and its answers are heeded."""

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
from holdfast.errors import Conflict, InvalidSetting, NotFound
from holdfast.features.webhooks.model import DELIVER
from holdfast.outgoing import EgressPolicy
from tests.app.conftest import NewApp
from tests.app.test_killed_worker import begun, worker
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
    """Id and body of each message, every one of them checked as a receiver would."""
    found = [webhooks.verify(asked.headers, asked.body, secret) for asked in web.asked if asked.path == path]
    return [(each.id, each.json()) for each in found]


def at_work(app: App, condition: Callable[[], bool], what: str) -> None:
    """Work off what there is, again and again, until it has come about."""

    def look() -> bool:
        work_off(app)
        return condition()

    until(look, what)


def script(web: Web, path: str, *answers: tuple[Any, ...]) -> None:
    """These answers one after the other, the last one for ever."""
    left = list(answers)

    def page(asked: Page) -> None:
        asked.answer(*(left.pop(0) if len(left) > 1 else left[0]))

    web.pages[path] = page


def jobs_by_id(app: App) -> dict[str, Job]:
    return {job.id: job for job in app.jobs.list(limit=200)}


def dump(url: str) -> str:
    with closing(open_by_hand(url)) as by_hand:
        return "\n".join(str(by_hand.execute(f"select * from {table}")) for table in by_hand.tables())


def test_every_notice_reaches_the_receiver(new_app: NewApp, url: str, tmp_path: Path, web: Web, secret: str) -> None:
    """A worker is killed with a job in its hands, a job fails, asks and ends well, a schedule misses its times, another
    webhook is gone: each is told once, signed, and without what is restricted or secret."""
    app = new_app(egress=loopback(web))

    @app.job(retry=Retry(max_attempts=1), rules=PayloadPolicy(restricted=True))
    def fails(card: str) -> None:
        raise ValueError(f"card {card} was declined")

    @app.job()
    async def asks(ctx: Context) -> None:
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
        until(lambda: begun(tmp_path), "the first worker has begun")
        victim.kill()
        victim.wait(timeout=10)
    app._store.run(app._store.clock.set(timedelta(days=1), None))  # its lease is over, and a day of times is missed
    failed, asking = fails.enqueue(CARD), asks.enqueue()
    app.webhooks.test("gone")
    with working(app):
        until(lambda: {body["type"] for _, body in received(web, secret)} >= WANTED, "each notice has come")
        held.result(timeout=30)
        until(lambda: app.jobs.list(kind=DELIVER, state=State.QUEUED) == [], "all that was made was sent")
    messages = received(web, secret)
    about = {(body["type"], body["data"].get("job_id")): body for _, body in messages}
    assert about["job.crashed", held.id]["data"]["meta"]["error_code"] == "worker_lost"
    assert about["job.succeeded", held.id]["data"]["kind"] == "hold"
    assert about["job.dead_letter", failed.id]["data"]["to_state"] == "dead_letter"
    assert about["job.failed", failed.id]["data"]["meta"]["error_code"] == "ValueError"
    approval = about["job.approval_needed", asking.id]["data"]["meta"]["approval_id"]
    assert app.approvals.get(approval).approval.job_id == asking.id
    (missed,) = [body for _, body in messages if body["type"] == "schedule.missed"]
    assert (missed["data"]["data"]["schedule"], missed["data"]["data"]["count"] > 20) == ("hourly", True)
    (disabled,) = [body for _, body in messages if body["type"] == "webhook.disabled"]
    assert disabled["data"]["data"]["webhook"] == "gone"
    assert not app.webhooks.get("gone").enabled
    assert max(Counter(id for id, _ in messages).values()) == 1
    assert {body["data"].get("kind") for _, body in messages} <= {"fails", "asks", "hold", None}  # none of its own
    sent = "\n".join(asked.body.decode() + str(asked.headers) for asked in web.asked)
    assert CARD not in sent
    assert secret.removeprefix("whsec_") not in sent + dump(url)
    log = app.webhooks.deliveries("ops", limit=200)
    assert {each.message for each in log} == {id for id, _ in messages}
    assert {(each.status, each.error_code, each.excerpt) for each in log} == {(200, None, "fine")}


def test_a_message_is_the_same_each_time_and_can_be_sent_again(one: App, web: Web, secret: str) -> None:
    script(web, "/ops", (500, b"down"), (503, b"", {"retry-after": "0"}), (200, b"\x1b[31mgot " + secret.encode()))
    one.webhooks.add("ops", f"{web.url}/ops", secrets="OPS_HOOK", wants=["order.paid"], retry=AT_ONCE)
    with pytest.raises(Conflict, match="already"):
        one.webhooks.add("ops", web.url, secrets="X")
    one.send_event("order.paid", {"order": 7})
    at_work(one, lambda: len(web.asked) == 3, "it was accepted")
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


def test_whoever_may_enqueue_signs_nothing_that_would_be_taken_for_ours(one: App, web: Web, secret: str) -> None:
    """A receiver believes what was signed: that a job was approved, or that a schedule was missed."""
    one.webhooks.add("ops", web.url, secrets="OPS_HOOK", wants=["job.*", "order.*"])
    told = {"name": "job.approve", "job_id": "x", "to_state": "queued"}
    forged: list[dict[str, Any]] = [
        {"event": told},
        {"event": {"name": "order.paid", "data": {}}},
        {"type": "job.approved", "data": {}},
        {"type": "schedule.missed"},
        {"type": "ping"},
        {"type": "order.paid", "message": "msg_1"},
    ]
    jobs = [one.enqueue(DELIVER, {"webhook": "ops", **each}) for each in forged]
    work_off(one)
    assert {one.jobs.get(job.id).error_code for job in jobs} == {"webhook_not_yours"}
    for name in ("job.bury", "job.", "schedule.missed", "webhook.disabled"):
        with pytest.raises(InvalidSetting, match="reserved_name"):
            one.send_event(name)
    assert (web.asked, one.webhooks.deliveries("ops")) == ([], [])


@pytest.mark.slow
def test_what_the_receiver_says_is_heeded(one: App, web: Web, secret: str) -> None:
    """Retry-After, a redirect, a refusal, 410; the rest of what an answer can mean is in the unit tests."""
    web.says("/later", 429, headers={"retry-after": "7200"})
    web.says("/moved", 302, headers={"location": f"{web.url}/elsewhere"})
    web.says("/no", 404, b"no such tenant")
    web.says("/gone", 410)
    jobs = {}
    for name in ("later", "moved", "no", "gone"):
        one.webhooks.add(name, f"{web.url}/{name}", secrets="OPS_HOOK", wants="none.such", retry=AT_ONCE)
        jobs[name] = one.webhooks.test(name)
    at_work(one, lambda: len(one.jobs.list(state=State.DEAD_LETTER)) == 3, "the refusals were given up")
    later, moved, no, gone = (jobs_by_id(one)[id] for id in jobs.values())
    asked = Counter(each.path for each in web.asked)
    assert later.state is State.RETRY_WAITING
    assert later.due_at is not None
    assert timedelta(minutes=115) < later.due_at - later.created_at < timedelta(minutes=125)
    assert (moved.error_code, moved.attempt, asked["/elsewhere"]) == ("webhook_refused", 5, 0)
    assert (no.error_code, no.attempt, asked["/no"]) == ("webhook_refused", 5, 5)
    assert (gone.state, gone.error_code, gone.attempt) == (State.DEAD_LETTER, "webhook_gone", 1)
    disabled = one.webhooks.get("gone")
    assert disabled.disabled_reason == "the receiver responded that it is gone (410)"
    assert jobs["gone"] in str(disabled.disabled_by)
    one.enqueue(DELIVER, {"webhook": "gone", "type": "order.paid"})
    waiting = one.enqueue(DELIVER, {"webhook": "no", "type": "order.paid"})
    one.webhooks.remove("no")
    work_off(one)
    assert Counter(each.path for each in web.asked)["/gone"] == 1  # nothing more was sent there
    assert waiting.state() is State.CANCELLED
    (dead,) = one.jobs.list(state=State.DEAD_LETTER, limit=1)
    assert dead.error_code == "webhook_disabled"
    web.says("/gone")
    one.webhooks.enable("gone")
    one.jobs.redrive(dead.id)
    work_off(one)
    assert received(web, secret, "/gone")[-1][1]["type"] == "order.paid"


def test_secrets_are_found_by_name_and_changed_without_a_gap(
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
    monkeypatch.setenv("OPS_HOOK_2", new)  # not meant for webhooks
    monkeypatch.setenv("HOLDFAST_SECRET_acme__OPS_HOOK_2", new)  # another tenant's
    work_off(one)
    assert web.asked == []
    monkeypatch.setenv("HOLDFAST_SECRET_OPS_HOOK_2", new)
    at_work(one, lambda: web.asked != [], "with its secret it is sent")
    for known in (secret, new):
        assert len(received(web, known)) == 1
    assert one.webhooks.rotate_secret("ops", "OPS_HOOK_2", keep=0).secrets == ("OPS_HOOK_2",)
    one.webhooks.test("ops")
    work_off(one)
    assert len(received(web, new)) == 2
    assert new.removeprefix("whsec_") not in dump(one._store.url)


def test_no_webhook_leads_to_what_is_ours(one: App, web: Web, secret: str) -> None:
    """Nothing is allowed: the guard refuses loopback, and the log says so and not where it leads."""
    one._outbound.policy = EgressPolicy(ports=(web.port,))
    one.webhooks.add("ops", f"{web.url}/ops?token=7", secrets="OPS_HOOK", retry=Retry(max_attempts=1))
    job = one.webhooks.test("ops")
    work_off(one)
    found = one.jobs.get(job)
    assert found is not None
    assert (found.state, found.error_code, web.asked) == (State.DEAD_LETTER, "egress_refused", [])
    (noted,) = one.webhooks.deliveries("ops")
    assert (noted.status, noted.error_code) == (None, "egress_refused")
    assert "token" not in json.dumps(one.webhooks.get("ops").described(), default=str)
