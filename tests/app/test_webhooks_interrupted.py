"""Interrupted deliveries (JF-9): whatever is lost in the request, in the response or before the delivery is logged,
an accepted message is not sent again without need, and any other is sent again under the same id.

tests/egress/test_interrupted.py cuts the request and the response at every byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta

import pytest

from holdfast import App, Backoff, Job, Retry, State, webhooks
from holdfast.app.internals import session_of
from holdfast.engine.states import FINISHED
from holdfast.features.webhooks.model import DELIVER, MAX_REFUSALS
from holdfast.outgoing import EgressPolicy
from tests.app.conftest import NewApp
from tests.support.http_server import Receiver, Turn
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
    with Receiver() as made:
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
    """Id and body of each message, each verified as a receiver would."""
    messages = []
    for request in receiver.asked:
        head, _, body = request.partition(b"\r\n\r\n")
        headers = dict(re.findall(r"(?m)^([^:\s]+): (.*?)\r?$", head.decode()))
        message = webhooks.verify(headers, body, secret)
        messages.append((message.id, message.body))
    return messages


def job_of(app: App, id: str) -> Job:
    return app.jobs.get(id)


def work_until(app: App, condition: Callable[[], bool], what: str) -> None:
    """Run the waiting jobs repeatedly until the condition holds."""

    def done() -> bool:
        work_off(app)
        return condition()

    until(done, what)


def delivered(app: App, id: str) -> None:
    """Work until the job has ended, retries included."""
    work_until(app, lambda: job_of(app, id).state in FINISHED, "the delivery has ended")


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_accepted_message_is_sent_once_despite_a_broken_response(app: App, receiver: Receiver) -> None:
    """The response is cut off, uses an unrequested encoding, never ends, or has more headers than are read."""
    responses: list[Turn] = [
        (None, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nfi", "closed"),
        (None, b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\n\r\nfine", "closed"),
        (None, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nfi\r\n", "open"),
        (None, b"HTTP/1.1 200 OK\r\n" + b"X-Long: %s\r\n" % (b"y" * 900) * 50 + b"\r\nfine", "closed"),
    ]
    left = responses.copy()
    receiver.turn = lambda request: left.pop()
    jobs = [app.webhooks.test("ops") for _ in responses]
    work_off(app)
    assert {job_of(app, job).state for job in jobs} == {State.SUCCEEDED}
    assert len(receiver.asked) == len(responses)
    assert {(each.status, each.error_code) for each in app.webhooks.deliveries("ops")} == {(200, None)}


@pytest.mark.slow
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_unacknowledged_message_is_sent_again_under_its_id(app: App, receiver: Receiver, secret: str) -> None:
    ends: list[Turn] = [(None, b"", "reset"), (None, b"", "closed"), (None, b"HTTP/1.1 200 OK\r\n", "open")]
    ends += [(None, b"nonsense\r\n\r\n", "closed"), (None, BUSY + b"\r\n", "closed"), (None, FINE, "closed")]
    receiver.turn = lambda request: ends.pop(0)
    app.send_event("order.paid", {"order": 7})
    work_until(app, lambda: bool(app.jobs.list(state=State.SUCCEEDED)), "the message was accepted")
    messages = got(receiver, secret)
    assert (len(messages), len(set(messages))) == (6, 1)
    codes = [each.error_code for each in reversed(app.webhooks.deliveries("ops"))]
    broken = ["egress_unreachable", "egress_unreachable", "egress_timeout", "egress_failed"]
    assert codes == [*broken, "webhook_failed", None]


@pytest.mark.parametrize("fate", ["request", "answer"])
def test_lost_delivery_log_entry_does_not_change_the_outcome(postgres_url: str, receiver: Receiver, fate: Fate) -> None:
    """The database is unreachable between the response and its log entry: an accepted message is not sent again, and a
    requested delay is respected."""
    late = b"HTTP/1.1 503 Busy\r\nRetry-After: 7200\r\nContent-Length: 0\r\n\r\n"
    receiver.turn = lambda request: (None, late if b"busy" in request else FINE, "closed")
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
        late_one = job_of(outside, busy.id)
        assert (late_one.state, late_one.error_code) == (State.RETRY_WAITING, "webhook_failed")
        assert late_one.due_at is not None
        assert late_one.due_at - late_one.created_at > timedelta(minutes=110)


def test_gone_disables_only_the_address_that_answered(new_app: NewApp, receiver: Receiver) -> None:
    """While the message is in flight the webhook gets another address or is replaced under the same name: the 410 of
    the old address does not disable it, and the message goes to the new one."""
    with Receiver() as other:
        app = new_app(egress=loopback(receiver, other))
        other.turn = (None, FINE, "closed")

        def moved(request: bytes) -> Turn:
            app.webhooks.set("ops", url=f"{other.url}/new")
            return None, b"HTTP/1.1 410 Gone\r\n\r\n", "closed"

        def replaced(request: bytes) -> Turn:
            app.webhooks.remove("ops")
            app.webhooks.add("ops", f"{other.url}/new", secrets="HOOK")
            return None, b"HTTP/1.1 410 Gone\r\n\r\n", "closed"

        for number, meanwhile in enumerate((moved, replaced), 1):
            app.webhooks.add("ops", f"{receiver.url}/old", secrets="HOOK", retry=AT_ONCE)
            receiver.turn = meanwhile
            job = app.webhooks.test("ops")
            delivered(app, job)
            assert app.webhooks.get("ops").enabled, meanwhile.__name__
            assert (job_of(app, job).state, len(other.asked)) == (State.SUCCEEDED, number)
            app.webhooks.remove("ops")


def test_webhook_changes_while_a_message_is_in_flight(app: App, receiver: Receiver, secret: str) -> None:
    """Disabled: an accepted message is delivered, any other becomes a dead letter. Removed: cancelled. Resent: both are
    sent under one id."""
    responses: list[bytes] = []

    def disabled(request: bytes) -> Turn:
        app.webhooks.disable("ops", reason="moving")
        return None, responses.pop(0), "closed"

    def sent(response: bytes) -> Job:
        responses.append(response)
        job = app.enqueue(DELIVER, {"webhook": "ops", "type": "order.paid"}, retry=AT_ONCE)
        delivered(app, job.id)
        app.webhooks.enable("ops")
        return job_of(app, job.id)

    receiver.turn = disabled
    assert sent(FINE).state is State.SUCCEEDED
    job = sent(BUSY + b"\r\n")
    assert (job.state, job.error_code) == (State.DEAD_LETTER, "webhook_disabled")

    def resent(request: bytes) -> Turn:
        receiver.turn = (None, FINE, "closed")
        (last,) = app.webhooks.deliveries("ops", limit=1)
        app.webhooks.resend("ops", last.message)
        return None, FINE, "closed"

    before = len(receiver.asked)
    app.jobs.redrive(job.id)
    receiver.turn = resent
    delivered(app, job.id)
    work_until(app, lambda: len(receiver.asked) == before + 2, "the message was sent again")
    assert len({id for id, _ in got(receiver, secret)[before - 1 :]}) == 1

    def removed(request: bytes) -> Turn:
        app.webhooks.remove("ops")
        return None, BUSY + b"\r\n", "closed"

    receiver.turn = removed
    last = app.enqueue(DELIVER, {"webhook": "ops", "type": "order.paid"}, retry=AT_ONCE)
    delivered(app, last.id)
    assert last.state() is State.CANCELLED


@pytest.mark.slow
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_refusals_after_an_outage_are_counted_from_the_first_refusal(app: App, receiver: Receiver) -> None:
    """The route returns a little later than the server: failed attempts before that are no refusals."""
    responses = [BUSY + b"\r\n"] * MAX_REFUSALS + [b"HTTP/1.1 404 No\r\n\r\n"] * (MAX_REFUSALS - 1) + [FINE]
    receiver.turn = lambda request: (None, responses.pop(0), "closed")
    job = app.webhooks.test("ops")
    delivered(app, job)
    assert (job_of(app, job).state, job_of(app, job).attempt) == (State.SUCCEEDED, 2 * MAX_REFUSALS)


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
def test_retry_after_never_shortens_the_delay(app: App, receiver: Receiver) -> None:
    """Eleven attempts are meant to last a day: a receiver that requests no delay while it is down must not use them up.
    Deliveries with the same requested delay are retried at different moments."""
    forms = list(FORMS)

    def respond(request: bytes) -> Turn:
        number = int(re.findall(rb'"form":\s*(\d+)', request)[0])
        when = b"Date: Sun, 15 Nov 2026 12:00:00 GMT\r\nRetry-After: " + forms[number]
        return None, BUSY + when + b"\r\n\r\n", "closed"

    receiver.turn = respond
    for number in range(len(forms)):
        app.enqueue(DELIVER, {"webhook": "ops", "type": "order.paid", "data": {"form": number}}, retry=SLOW)
    work_off(app)
    waits = {}
    for job in app.jobs.list(kind=DELIVER, limit=100):
        (retry,) = [
            event
            for event in session_of(app).store.run(session_of(app).store.jobs.history(job.id, "default"))
            if event.type == "retry"
        ]
        assert job.due_at is not None
        assert isinstance(job.payload, dict)
        waits[forms[job.payload["data"]["form"]]] = (job.due_at - retry.at).total_seconds()
    late = {form: wait - max(FORMS[form], 40) for form, wait in waits.items()}
    assert {form: wait for form, wait in late.items() if not -1 <= wait <= 62} == {}
    assert {round(late[form]) for form, delay in FORMS.items() if delay < 40} == {0}
    assert len({late[form] for form, delay in FORMS.items() if delay == 7200}) > 1
