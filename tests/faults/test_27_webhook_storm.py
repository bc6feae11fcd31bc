"""Fault 27: a webhook receiver returns 500, hangs, and resets the connection after it read a message; a worker is
killed between the response and the end of the job. Every event is finally accepted, with one id, and deliveries that
failed together are not retried together.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter, defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import Backoff, Retry, State, webhooks
from holdfast.app.internals import session_of
from holdfast.features.webhooks.model import DELIVER
from holdfast.outgoing import EgressPolicy
from tests.app.conftest import NewApp, new_app
from tests.app.worker_process import worker_process
from tests.support.http_server import Page, Web, running
from tests.support.waiting import until
from tests.support.workers import working

__all__ = ["new_app"]

pytestmark = pytest.mark.req("JF-9", "SC-15", "DP-12")

EVENTS = 24
RETRY = Retry(max_attempts=20, backoff=Backoff(base=1.0, factor=1.0, cap=1.0), max_crashes=10)


class Storm:
    """A receiver that responds to each message with an error, a hang and a reset, and then accepts it."""

    RESPONSES = ("error", "hang", "reset", "accept")

    def __init__(self, web: Web, secret: str) -> None:
        self._web, self._secret = web, secret
        self._lock = threading.Lock()
        self.bodies: dict[str, list[bytes]] = defaultdict(list)
        self.signatures: dict[str, list[str]] = defaultdict(list)
        self.accepted: Counter[str] = Counter()
        web.pages["/hooks"] = self.page

    def page(self, page: Page) -> None:
        headers = {name.lower(): value for name, value in page.headers.items()}
        with self._lock:
            request = next(each for each in reversed(self._web.asked) if each.headers == headers)
            message = webhooks.verify(request.headers, request.body, self._secret)
            attempt = len(self.bodies[message.id])
            self.bodies[message.id].append(request.body)
            self.signatures[message.id].append(request.headers["webhook-signature"])
        response = self.RESPONSES[min(attempt, 3)]
        if response == "error":
            page.answer(500, b"not now")
        elif response == "hang":
            self._web.over.wait(30)
        elif response == "reset":  # the message was read, but there is no response
            page.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            page.connection.close()
        else:
            page.answer(200)
            with self._lock:
                self.accepted[message.id] += 1


@pytest.mark.slow
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_every_event_is_delivered_with_one_id(new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = webhooks.new_secret()
    monkeypatch.setenv("HOLDFAST_SECRET_STORM", secret)
    with running() as web:
        storm = Storm(web, secret)
        app = new_app(egress=EgressPolicy(ports=(web.port,), allow=("127.0.0.0/8",), read=0.5, total=2.0))
        app.webhooks.add("storm", f"{web.url}/hooks", secrets="STORM", wants="order.*", retry=RETRY)
        for number in range(EVENTS):
            app.send_event("order.paid", {"order": number})
        with working(app, concurrency=EVENTS):
            done = lambda: len(app.jobs.list(kind=DELIVER, state=State.SUCCEEDED, limit=200)) == EVENTS  # noqa: E731
            until(done, "every event was delivered", limit=90)
        assert len(storm.accepted) == EVENTS
        messages = [webhooks.Message(id, 0, bodies[0]).json() for id, bodies in storm.bodies.items()]
        assert sorted(each["data"]["data"]["order"] for each in messages) == list(
            range(EVENTS)
        )  # N6: none skipped, none twice
        for id, bodies in storm.bodies.items():
            assert len(bodies) >= 4, id
            assert len(set(bodies)) == 1, id
        assert max(len(set(signatures)) for signatures in storm.signatures.values()) > 1  # one signature per attempt
        histories = [
            session_of(app).store.run(session_of(app).store.jobs.history(job.id, "default"))
            for job in app.jobs.list(kind=DELIVER, limit=200)
        ]
        retries = [next(event for event in each if event.type == "retry") for each in histories]
        # The delays are random to the millisecond, so hardly two are equal.
        delays = {round((datetime.fromisoformat(each.meta["due_at"]) - each.at).total_seconds(), 3) for each in retries}
        assert len(delays) > EVENTS // 2
        log = {(each.status, each.error_code) for each in app.webhooks.deliveries("storm", limit=200)}
        assert log >= {(500, "webhook_failed"), (None, "egress_timeout"), (None, "egress_unreachable"), (200, None)}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_killed_worker_repeats_the_same_webhook_message(new_app: NewApp, url: str, tmp_path: Path) -> None:
    """The receiver delays its response; the worker is killed; another worker delivers the message again."""
    secret = webhooks.new_secret()
    received: list[webhooks.Message] = []
    with running() as web:

        def page(request: Page) -> None:
            received.append(webhooks.verify(web.asked[-1].headers, web.asked[-1].body, secret))
            if len(received) == 1:
                web.over.wait(30)
            request.answer(200)

        web.pages["/hooks"] = page
        environment: Any = {"HOLDFAST_SECRET_STORM": secret, "PORT": str(web.port)}
        app = new_app()
        app.webhooks.add("storm", f"{web.url}/hooks", secrets="STORM", retry=RETRY)
        job = app.webhooks.test("storm")
        with worker_process("tests.faults.webhook_worker_app", url, tmp_path, lease=1.0, **environment) as victim:
            until(lambda: received, "the first worker has sent it")
            victim.kill()
            victim.wait(timeout=10)
        with worker_process("tests.faults.webhook_worker_app", url, tmp_path, lease=30.0, **environment):
            until(lambda: app.jobs.get(job).state is State.SUCCEEDED, "the second worker has delivered it")
    assert len(received) == 2
    assert (received[0].id, received[0].body) == (received[1].id, received[1].body)
    event_types = [
        event.type for event in session_of(app).store.run(session_of(app).store.jobs.history(job, "default"))
    ]
    assert event_types.count("lease_expired") == event_types.count("succeed") == 1
