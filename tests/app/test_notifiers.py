"""Notifiers (HF-20): people are told in Slack, Teams, by e-mail and webhook, with links that open the decision page."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
import pytest

from holdfast import App, Context, PayloadPolicy, Retry, webhooks
from holdfast.app.internals import session_of
from holdfast.errors import InvalidSetting
from holdfast.features.notifiers.model import DELIVER, NotifierDraft, quiet_until
from holdfast.features.notifiers.operations import tell_health
from holdfast.outgoing import EgressPolicy
from holdfast.server.app import make_service
from tests.app.conftest import NewApp
from tests.egress.test_tls import certificate
from tests.support.channels import PASSWORD, USER, Mailbox, Slack, mail_server
from tests.support.http_server import Web, running
from tests.support.stores import forward
from tests.support.workers import work_off

pytestmark = pytest.mark.req("HF-20")

BOARD = "https://jobs.example.com/board"


@pytest.fixture
def web() -> Iterator[Web]:
    with running() as server:
        yield server


def loopback(*ports: int, tls: ssl.SSLContext | None = None) -> EgressPolicy:
    async def here(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    return EgressPolicy(ports=ports, allow=("127.0.0.0/8",), plain_secrets=True, tls=tls, resolver=here)


@pytest.fixture
def told(new_app: NewApp, web: Web, monkeypatch: pytest.MonkeyPatch) -> tuple[App, Slack]:
    """An app whose notifier ``ops`` posts to a Slack on this machine."""
    slack = Slack(web)
    monkeypatch.setenv("HOLDFAST_SECRET_OPS_SLACK", slack.url)
    app = new_app(egress=loopback(web.port))
    declare(app)
    wants = ["approvals", "dead_letters"]
    app.notifiers.set("ops", channel="slack", secrets="OPS_SLACK", dashboard=BOARD, wants=wants)
    return app, slack


def declare(app: App) -> None:
    @app.job
    async def pay(ctx: Context, amount: int, approvers: list[str] | None = None) -> str:
        decision = await ctx.approval("big", summary=f"Pay {amount} <!channel>?", approvers=approvers or [])
        return decision.by or ""

    @app.job(retry=Retry(max_attempts=1))
    async def fails(why: str) -> None:
        raise ValueError(why)

    @app.job(retry=Retry(max_attempts=1), payload_rules=PayloadPolicy(restricted=True))
    async def secretly(ctx: Context, card: str) -> None:
        await ctx.approval("card", summary=f"Charge {card}?")


def link_in(message: dict[str, Any]) -> str:
    (url,) = [block["elements"][0]["url"] for block in message["blocks"] if block["type"] == "actions"]
    return str(url)


def results(app: App) -> list[Any]:
    store = session_of(app).store
    found = [store.run(store.jobs.result(each.id, "default")) for each in app.jobs.list(kind=DELIVER)]
    return [each.value for each in found if each is not None]


def wait(app: App) -> None:
    work_off(app)
    work_off(app)  # the event that a job caused at its end


def test_people_decide_through_the_link_and_opening_it_decides_nothing(told: tuple[App, Slack]) -> None:
    app, slack = told
    job = app.enqueue("pay", {"amount": 900})
    wait(app)
    (message,) = slack.messages
    assert "Pay 900 <!channel>?" in json.dumps(message["blocks"])
    assert "<" not in message["text"], "only plain_text elements have what jobs say"
    link = urlsplit(link_in(message))
    assert link_in(message).startswith(f"{BOARD}/decide/hfa_")
    service = make_service(app, authenticate=lambda _: None)

    async def follow() -> None:
        transport = httpx2.ASGITransport(service)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
            path = link.path.removeprefix("/board")
            for _ in range(3):  # as mail scanners and previews do
                assert (await http.get(path)).status_code == 200
            assert app.approvals.list(job_id=job.id)[0].state == "open"
            decided = await http.post(path, data={"verdict": "approve", "by": "ada"})
            assert decided.status_code == 200, decided.text
            again = await http.post(path, data={"verdict": "deny", "by": "eve"})
            assert again.status_code == 409, "a token decides once"

    asyncio.run(follow())
    wait(app)
    assert job.result(timeout="5s") == "ada"
    assert len(slack.messages) == 1


def test_named_approvers_get_a_link_behind_the_login(told: tuple[App, Slack]) -> None:
    app, slack = told
    app.enqueue("pay", {"amount": 1, "approvers": ["ada"]})
    wait(app)
    (message,) = slack.messages
    assert link_in(message) == f"{BOARD}/approvals/{app.approvals.list()[0].id}"


def test_restricted_texts_stay_behind_the_login(told: tuple[App, Slack]) -> None:
    app, slack = told
    app.enqueue("secretly", {"card": "4929-canary"})
    wait(app)
    (message,) = slack.messages
    assert "/approvals/" in link_in(message)
    assert "canary" not in json.dumps(message)


def test_dead_letter_is_told_once_and_redacted(told: tuple[App, Slack]) -> None:
    app, slack = told
    job = app.enqueue("fails", {"why": "password=hunter2hunter2 <https://evil.example|click> @channel"})
    wait(app)
    (message,) = slack.messages
    assert (job.id in json.dumps(message), "hunter2" in json.dumps(message)) == (True, False)
    assert link_in(message) == f"{BOARD}/jobs/{job.id}"
    wait(app)
    assert len(slack.messages) == 1


def test_channel_that_is_down_stops_nothing_and_is_told_later(told: tuple[App, Slack]) -> None:
    app, slack = told
    slack.down = True
    app.enqueue("fails", {"why": "x"})
    wait(app)
    done = app.enqueue("pay", {"amount": 5})
    wait(app)
    (waiting,) = [each for each in app.approvals.list() if each.job_id == done.id]
    app.approvals.approve(waiting.id, by="ada")
    work_off(app)
    assert (done.result(timeout="5s"), slack.messages) == ("ada", [])
    slack.down = False
    forward(session_of(app).store, 3_600)
    wait(app)
    assert [each["text"] for each in slack.messages] == ["Dead letter: fails"], "the approval is decided: not told"
    assert {"skipped": "no longer open"} in results(app)


def test_quiet_hours_delay_a_message_except_critical_health(told: tuple[App, Slack]) -> None:
    app, slack = told
    now = forward(session_of(app).store, 0)
    hours = f"{(now.hour - 1) % 24:02}:00-{(now.hour + 1) % 24:02}:00"
    app.notifiers.set("ops", quiet=hours)
    app.enqueue("fails", {"why": "x"})
    wait(app)
    assert slack.messages == []
    (waiting,) = app.jobs.list(kind=DELIVER)
    assert (waiting.state, waiting.due_at is not None) == ("retry_waiting", True)
    app.notifiers.test("ops")
    wait(app)
    assert [each["text"] for each in slack.messages] == ["Test message of notifier ops"]
    forward(session_of(app).store, 2 * 3_600)
    wait(app)
    assert slack.messages[-1]["text"] == "Dead letter: fails"


def test_what_stays_open_is_escalated_also_when_the_first_channel_is_down(
    told: tuple[App, Slack], web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, slack = told
    night = Slack(web, "/night")
    monkeypatch.setenv("HOLDFAST_SECRET_NIGHT", night.url)
    with pytest.raises(InvalidSetting):
        app.notifiers.set("ops", escalate_after="30m", escalation="ops")
    app.notifiers.set("night", channel="slack", secrets="NIGHT", wants="health", escalate_after="30m", escalation="ops")
    app.notifiers.set("ops", escalate_after="30m", escalation="night")
    slack.down = True
    open_one, decided = app.enqueue("pay", {"amount": 1}), app.enqueue("pay", {"amount": 2})
    wait(app)
    assert night.messages == []
    (waiting,) = app.approvals.list(job_id=decided.id)
    app.approvals.deny(waiting.id, by="ada")
    forward(session_of(app).store, 1_801)
    wait(app)
    assert [each["text"] for each in night.messages] == ["Escalated: Approval needed: big"]
    assert open_one.id in json.dumps(night.messages)
    forward(session_of(app).store, 3_600)
    wait(app)
    assert len(night.messages) == 1
    escalations = [each for each in app.jobs.list(kind=DELIVER) if each.enqueued_by.startswith("notifier")]
    assert len(escalations) == 2, "channels that escalate to each other come to an end"


def test_change_of_health_is_told_once_by_any_number_of_workers(told: tuple[App, Slack]) -> None:
    app, slack = told
    store = session_of(app).store
    app.notifiers.set("ops", wants="health")
    assert asyncio.run(tell_health(store, "*")) == 0
    app.enqueue("nobody", {})
    forward(store, 3_600)

    async def several() -> list[int]:
        try:
            return await asyncio.gather(*(tell_health(store, "*") for _ in range(4)))
        finally:
            await store.leave_loop()

    assert sorted(asyncio.run(several())) == [0, 0, 0, 1]
    wait(app)
    first = slack.messages[0]  # the worker that delivers it may find, and tell, that the health is better
    assert re.fullmatch(r"Health is (warn|critical) \(was ok\)", first["text"])
    assert link_in(first) == f"{BOARD}/system"


def test_enqueued_job_cannot_pretend_that_something_happened(told: tuple[App, Slack]) -> None:
    app, slack = told
    job = app.enqueue(DELIVER, {"notifier": "ops", "message": {"type": "health", "verdict": "critical"}})
    wait(app)
    assert (job.get().state, job.get().error_code, slack.messages) == ("dead_letter", "notifier_not_yours", [])


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The contexts of a mail server called mail.example, and of a client that trusts it."""
    path = certificate(tmp_path, "mail.example")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    return server, ssl.create_default_context(cafile=str(path))


def test_mail_is_sent_encrypted_with_a_token_for_each_approver(
    new_app: NewApp, tls: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox = Mailbox()
    with mail_server(mailbox, tls[0]) as port:
        url = f"smtp://{quote(USER)}:{quote(PASSWORD)}@mail.example:{port}"
        monkeypatch.setenv("HOLDFAST_SECRET_MAIL", url)
        app = new_app(egress=loopback(port, tls=tls[1]))
        declare(app)
        to = ["ada@example.com", "bob@example.com"]
        app.notifiers.set(
            "mail",
            channel="email",
            secrets="MAIL",
            sender="jobs@example.com",
            recipients=to,
            dashboard=BOARD,
            wants=["approvals", "dead_letters"],
        )
        job = app.enqueue("pay", {"amount": 7, "approvers": ["ada@example.com", "carol"]})
        wait(app)
        assert [each for each, _ in mailbox.mails] == [[each] for each in to]
        assert mailbox.sessions == [(True, True)] * 2, "encrypted, with a login"
        (ada, bob) = (str(mail.get_content()) for _, mail in mailbox.mails)
        (token,) = re.findall(r"/decide/(hfa_\S+)", ada)
        assert ("/approvals/" in bob, "/decide/" in bob) == (True, False), "bob is no approver"
        assert mailbox.mails[0][1]["Subject"] == "Approval needed: big"
        app.approvals.approve(token)
        wait(app)
        assert job.result(timeout="5s") == "ada@example.com", "the token names its person"
        assert PASSWORD not in str(app.jobs.list(limit=50))
        mailbox.busy = True
        app.enqueue("fails", {"why": "line\r\nBcc: eve@example.com"})
        wait(app)
        assert len(mailbox.mails) == 2
        mailbox.busy, mailbox.refused = False, {"bob@example.com"}
        forward(session_of(app).store, 600)
        wait(app)
        assert mailbox.mails[-1][0] == ["ada@example.com"]
        assert mailbox.mails[-1][1]["Bcc"] is None
        assert {"sent": 1, "refused": 1} in results(app)


def test_mail_is_not_sent_without_the_encryption_or_to_a_network_that_is_closed(
    new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox = Mailbox()
    with mail_server(mailbox) as port:  # offers no STARTTLS
        app = new_app(egress=loopback(port))
        sender = {"sender": "jobs@example.com", "recipients": "ada@example.com"}
        app.notifiers.set("mail", channel="email", secrets="MAIL", **sender)  # type: ignore[arg-type]
        for url, code in (
            (f"smtp://u:longenough@mail.example:{port}", "egress_unreachable"),
            (f"smtp+plain://u:longenough@mail.example:{port}", "invalid_notifier"),
            ("https://mail.example/", "invalid_notifier"),
        ):
            monkeypatch.setenv("HOLDFAST_SECRET_MAIL", url)
            job = app.jobs.get(app.notifiers.test("mail"))
            wait(app)
            assert app.jobs.get(job.id).error_code == code, url
        monkeypatch.setenv("HOLDFAST_SECRET_MAIL", f"smtp+plain://127.0.0.1:{port}")
        closed = new_app(egress=EgressPolicy())
        refused = closed.notifiers.test("mail")
        wait(closed)
        assert (closed.jobs.get(refused).error_code, mailbox.mails) == ("egress_refused", [])
        opened = app.notifiers.test("mail")
        wait(app)
        assert (app.jobs.get(opened).state, len(mailbox.mails)) == ("succeeded", 1)


def test_teams_and_webhooks_get_their_own_forms(new_app: NewApp, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = webhooks.new_secret()
    for name, value in (("TEAMS", f"{web.url}/teams"), ("HOOK", f"{web.url}/hook"), ("SIGN", secret)):
        monkeypatch.setenv(f"HOLDFAST_SECRET_{name}", value)
    web.says("/teams", 202)
    web.says("/hook", 204)
    app = new_app(egress=loopback(web.port))
    declare(app)
    app.notifiers.set("teams", channel="teams", secrets="TEAMS", dashboard=BOARD)
    app.notifiers.set("hook", channel="webhook", secrets=["HOOK", "SIGN"], wants="dead_letters", kind="fail*")
    job = app.enqueue("fails", {"why": "[click](https://evil.example) **now**"})
    wait(app)
    asked = {each.path: each for each in web.asked}
    (attachment,) = json.loads(asked["/teams"].body)["attachments"]
    card = attachment["content"]
    assert (attachment["contentType"], card["type"]) == ("application/vnd.microsoft.card.adaptive", "AdaptiveCard")
    assert card["actions"][0]["url"] == f"{BOARD}/jobs/{job.id}"
    assert "](" not in json.dumps(card), "text of a job is no markup"
    message = webhooks.verify(asked["/hook"].headers, asked["/hook"].body, secret)
    assert (message.json()["type"], message.json()["data"]["job_id"]) == ("notice.dead_letter", job.id)


def test_disabled_or_removed_notifier_tells_nothing(told: tuple[App, Slack]) -> None:
    app, slack = told
    app.notifiers.set("ops", enabled=False)
    app.enqueue("fails", {"why": "x"})
    wait(app)
    app.notifiers.set("ops", enabled=True)
    app.notifiers.remove("ops")
    assert [each.name for each in app.subscriptions.list() if "ops" in each.name] == []
    app.enqueue("fails", {"why": "x"})
    wait(app)
    assert slack.messages == []


@pytest.mark.parametrize(
    "options",
    [
        {"channel": "fax"},
        {"secrets": ["A", "B"]},
        {"channel": "webhook"},
        {"wants": ["everything"]},
        {"wants": []},
        {"recipients": ["ada@example.com"]},
        {"channel": "email", "sender": "jobs@example.com"},
        {"channel": "email", "sender": "x\r\nBcc: y", "recipients": ["ada@example.com"]},
        {"dashboard": "javascript:alert(1)"},
        {"quiet": "22-7"},
        {"quiet": "22:00-22:00"},
        {"quiet": "22:00-07:00 Mars/Olympus"},
        {"escalate_after": "5m"},
        {"escalate_after": "90d", "escalation": "night"},
        {"enabled": 1},
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        NotifierDraft.of("ops", None, {"channel": "slack", "secrets": ["OPS_SLACK"]} | options)


def test_quiet_hours_follow_the_clock_on_the_wall() -> None:
    def ends(hours: str, *at: int) -> datetime | None:
        return quiet_until(hours, datetime(*at, tzinfo=UTC))  # type: ignore[arg-type, misc]

    night = "22:00-07:00 Europe/Paris"
    assert ends(night, 2026, 7, 1, 20, 30) == datetime(2026, 7, 2, 5, tzinfo=UTC)
    assert ends(night, 2026, 7, 2, 4, 59) == datetime(2026, 7, 2, 5, tzinfo=UTC)
    assert ends(night, 2026, 7, 2, 5, 0) is None
    assert ends(night, 2026, 3, 28, 23, 0) == datetime(2026, 3, 29, 5, tzinfo=UTC), "the night when the clock changes"
    assert ends("12:00-13:00", 2026, 7, 1, 12, 30) == datetime(2026, 7, 1, 13, tzinfo=UTC)
    assert ends("12:00-13:00", 2026, 7, 1, 11, 59) is None
