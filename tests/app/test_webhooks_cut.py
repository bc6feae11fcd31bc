"""Deliveries that are cut off (JF-9): whatever is lost on the way there, on the way back or between the answer and its
note, a message that was taken is not sent again without need, and one that was not is sent again under the same id.

At every byte of the request and of the answer: tests/egress/test_cut.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta

import pytest

from holdfast import App, Backoff, Job, Retry, State, webhooks
from holdfast.engine.states import FINISHED
from holdfast.features.webhooks.model import DELIVER, MAX_REFUSALS
from holdfast.outgoing import EgressPolicy
from tests.app.conftest import NewApp
from tests.support.http_server import Receiver, Turn, receiving
from tests.support.proxy import Fate, Proxy
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("JF-9", "SC-15")

AT_ONCE = Retry(max_attempts=11, backoff=Backoff(base=0, cap=0))
FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"
SLOW = Retry(max_attempts=11, backoff=Backoff(base=40, jitter=False))
BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    made = webhooks.new_secret()
    monkeypatch.setenv("HOLDFAST_SECRET_HOOK", made)
    return made


def loopback(*receivers: Receiver) -> EgressPolicy:
    return EgressPolicy(ports=tuple(each.port for each in receivers), allow=("127.0.0.0/8",), read=0.5, total=2.0)


@pytest.fixture
def app(new_app: NewApp, receiver: Receiver) -> App:
    made = new_app(egress=loopback(receiver))
    made.webhooks.add("ops", f"{receiver.url}/ops", secrets="HOOK", wants="order.*", retry=AT_ONCE)
    return made


def got(receiver: Receiver, secret: str) -> list[tuple[str, bytes]]:
    """Id and body of each message, every one of them checked as a receiver would."""
    found = []
    for asked in receiver.asked:
        head, _, body = asked.partition(b"\r\n\r\n")
        headers = dict(re.findall(r"(?m)^([^:\s]+): (.*?)\r?$", head.decode()))
        message = webhooks.verify(headers, body, secret)
        found.append((message.id, message.body))
    return found


def one(app: App, id: str) -> Job:
    found = app.jobs.get(id)
    return found


def at_work(app: App, condition: Callable[[], bool], what: str) -> None:
    """Work off what there is, again and again, until it has come about."""

    def look() -> bool:
        work_off(app)
        return condition()

    until(look, what)


def delivered(app: App, id: str) -> None:
    """Work until the job has ended, retries included."""
    at_work(app, lambda: one(app, id).state in FINISHED, "the delivery has ended")


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_what_was_taken_is_sent_once_whatever_is_wrong_with_the_rest(app: App, receiver: Receiver) -> None:
    """Cut off, packed as nobody asked, dripping for ever, and with more headers than are read."""
    turns: list[Turn] = [
        (None, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nfi", "closed"),
        (None, b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\n\r\nfine", "closed"),
        (None, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nfi\r\n", "open"),
        (None, b"HTTP/1.1 200 OK\r\n" + b"X-Long: %s\r\n" % (b"y" * 900) * 50 + b"\r\nfine", "closed"),
    ]
    left = turns.copy()
    receiver.turn = lambda asked: left.pop()
    jobs = [app.webhooks.test("ops") for _ in turns]
    work_off(app)
    assert {one(app, job).state for job in jobs} == {State.SUCCEEDED}
    assert len(receiver.asked) == len(turns)
    assert {(each.status, each.error_code) for each in app.webhooks.deliveries("ops")} == {(200, None)}


@pytest.mark.slow
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_taken_and_not_said_it_comes_again_under_its_id(app: App, receiver: Receiver, secret: str) -> None:
    ends: list[Turn] = [(None, b"", "reset"), (None, b"", "closed"), (None, b"HTTP/1.1 200 OK\r\n", "open")]
    ends += [(None, b"nonsense\r\n\r\n", "closed"), (None, BUSY + b"\r\n", "closed"), (None, FINE, "closed")]
    receiver.turn = lambda asked: ends.pop(0)
    app.send_event("order.paid", {"order": 7})
    at_work(app, lambda: bool(app.jobs.list(state=State.SUCCEEDED)), "it was taken")
    messages = got(receiver, secret)
    assert (len(messages), len(set(messages))) == (6, 1)
    codes = [each.error_code for each in reversed(app.webhooks.deliveries("ops"))]
    broken = ["egress_unreachable", "egress_unreachable", "egress_timeout", "egress_failed"]
    assert codes == [*broken, "webhook_failed", None]


@pytest.mark.parametrize("fate", ["request", "answer"])
def test_a_note_that_is_lost_changes_nothing_of_what_was_said(
    postgres_url: str, receiver: Receiver, fate: Fate
) -> None:
    """The database is away between the answer and its line in the log: what was taken is not sent again, and who asked
    for time is given it."""
    late = b"HTTP/1.1 503 Busy\r\nRetry-After: 7200\r\nContent-Length: 0\r\n\r\n"
    receiver.turn = lambda asked: (None, late if b"busy" in asked else FINE, "closed")
    with (
        closing(App(postgres_url, enqueued_by="tester")) as outside,
        Proxy(postgres_url) as proxy,
        closing(App(proxy.url, name="tests", egress=loopback(receiver))) as app,
    ):
        outside.webhooks.add("ops", f"{receiver.url}/ops", secrets="HOOK", retry=AT_ONCE)
        proxy.cut(b"note_webhook_delivery", fate, times=2)
        given = {"webhook": "ops", "type": "order.paid"}
        taken = outside.enqueue(DELIVER, given, retry=AT_ONCE)
        busy = outside.enqueue(DELIVER, given | {"data": {"busy": 1}}, retry=AT_ONCE)
        with working(app):
            ended = {State.SUCCEEDED, State.RETRY_WAITING, State.DEAD_LETTER}
            until(lambda: {taken.state(), busy.state()} <= ended, "both attempts have ended")
        assert (proxy.cuts, len(receiver.asked)) == (2, 2)
        assert taken.state() is State.SUCCEEDED
        late_one = one(outside, busy.id)
        assert (late_one.state, late_one.error_code) == (State.RETRY_WAITING, "webhook_failed")
        assert late_one.due_at is not None
        assert late_one.due_at - late_one.created_at > timedelta(minutes=110)


def test_gone_is_said_of_the_address_that_was_asked(new_app: NewApp, receiver: Receiver) -> None:
    """While the message is under way the webhook is given another address, or is another one of the same name: that is
    not disabled by what the old one says, and the message goes there."""
    with receiving() as other:
        app = new_app(egress=loopback(receiver, other))
        other.turn = (None, FINE, "closed")

        def moved(asked: bytes) -> Turn:
            app.webhooks.set("ops", url=f"{other.url}/new")
            return None, b"HTTP/1.1 410 Gone\r\n\r\n", "closed"

        def replaced(asked: bytes) -> Turn:
            app.webhooks.remove("ops")
            app.webhooks.add("ops", f"{other.url}/new", secrets="HOOK")
            return None, b"HTTP/1.1 410 Gone\r\n\r\n", "closed"

        for number, meanwhile in enumerate((moved, replaced), 1):
            app.webhooks.add("ops", f"{receiver.url}/old", secrets="HOOK", retry=AT_ONCE)
            receiver.turn = meanwhile
            job = app.webhooks.test("ops")
            delivered(app, job)
            assert app.webhooks.get("ops").enabled, meanwhile.__name__
            assert (one(app, job).state, len(other.asked)) == (State.SUCCEEDED, number)
            app.webhooks.remove("ops")


def test_what_is_done_to_an_webhook_while_a_message_is_under_way(app: App, receiver: Receiver, secret: str) -> None:
    """Disabled: what was taken is delivered, what was not is a dead letter to be redriven. Removed: cancelled. Sent
    again: both go out, under one id."""
    says: list[bytes] = []

    def disabled(asked: bytes) -> Turn:
        app.webhooks.disable("ops", reason="it is moved")
        return None, says.pop(0), "closed"

    def sent(answer: bytes) -> Job:
        says.append(answer)
        job = app.enqueue(DELIVER, {"webhook": "ops", "type": "order.paid"}, retry=AT_ONCE)
        delivered(app, job.id)
        app.webhooks.enable("ops")
        return one(app, job.id)

    receiver.turn = disabled
    assert sent(FINE).state is State.SUCCEEDED
    job = sent(BUSY + b"\r\n")
    assert (job.state, job.error_code) == (State.DEAD_LETTER, "webhook_disabled")

    def resent(asked: bytes) -> Turn:
        receiver.turn = (None, FINE, "closed")
        (last,) = app.webhooks.deliveries("ops", limit=1)
        app.webhooks.resend("ops", last.message)
        return None, FINE, "closed"

    before = len(receiver.asked)
    app.jobs.redrive(job.id)
    receiver.turn = resent
    delivered(app, job.id)
    at_work(app, lambda: len(receiver.asked) == before + 2, "it was sent again")
    assert len({id for id, _ in got(receiver, secret)[before - 1 :]}) == 1

    def removed(asked: bytes) -> Turn:
        app.webhooks.remove("ops")
        return None, BUSY + b"\r\n", "closed"

    receiver.turn = removed
    last = app.enqueue(DELIVER, {"webhook": "ops", "type": "order.paid"}, retry=AT_ONCE)
    delivered(app, last.id)
    assert last.state() is State.CANCELLED


@pytest.mark.slow
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_refusal_after_an_outage_is_counted_from_the_first_refusal(app: App, receiver: Receiver) -> None:
    """Its route is back a little later than its server: what was tried before that is no refusal."""
    says = [BUSY + b"\r\n"] * MAX_REFUSALS + [b"HTTP/1.1 404 No\r\n\r\n"] * (MAX_REFUSALS - 1) + [FINE]
    receiver.turn = lambda asked: (None, says.pop(0), "closed")
    job = app.webhooks.test("ops")
    delivered(app, job)
    assert (one(app, job).state, one(app, job).attempt) == (State.SUCCEEDED, 2 * MAX_REFUSALS)


FORMS = {
    b"0": 0,
    b"5": 0,
    b"7200": 7200,
    b" 7200.5 ": 7200,
    b"Sun, 15 Nov 2026 14:00:00 GMT": 7200,
    b"Sunday, 15-Nov-26 14:00:00 GMT": 7200,
    b"Sun Nov 15 14:00:00 2026": 7200,
    b"Sun, 15 Nov 2026 11:00:00 GMT": 0,
    b"Fri, 31 Dec 9999 23:59:59 GMT": 86_400,
    b"Fri, 31 Dec 9999 23:59:59 -2359": 0,
    b"9" * 90: 86_400,
    b"-7200": 0,
    b"7200, 7200": 0,
    b"\xff": 0,
    b"soon": 0,
    b"": 0,
}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_retry_after_in_each_form_never_makes_it_sooner(app: App, receiver: Receiver) -> None:
    """Eleven tries are meant for a day: a receiver that asks for no time at all while it is down must not use them up.
    And those who were told the same do not come back at the same moment."""
    forms = list(FORMS)

    def says(asked: bytes) -> Turn:
        number = int(re.findall(rb'"form":\s*(\d+)', asked)[0])
        when = b"Date: Sun, 15 Nov 2026 12:00:00 GMT\r\nRetry-After: " + forms[number]
        return None, BUSY + when + b"\r\n\r\n", "closed"

    receiver.turn = says
    for number in range(len(forms)):
        app.enqueue(DELIVER, {"webhook": "ops", "type": "order.paid", "data": {"form": number}}, retry=SLOW)
    work_off(app)
    waits = {}
    for job in app.jobs.list(kind=DELIVER, limit=100):
        (retry,) = [
            event for event in app._store.run(app._store.jobs.history(job.id, "default")) if event.type == "retry"
        ]
        assert job.due_at is not None
        assert isinstance(job.payload, dict)
        waits[forms[job.payload["data"]["form"]]] = (job.due_at - retry.at).total_seconds()
    late = {form: wait - max(FORMS[form], 40) for form, wait in waits.items()}
    assert {form: wait for form, wait in late.items() if not -1 <= wait <= 62} == {}
    assert {round(late[form]) for form, asked in FORMS.items() if asked < 40} == {0}
    assert len({late[form] for form, asked in FORMS.items() if asked == 7200}) > 1
