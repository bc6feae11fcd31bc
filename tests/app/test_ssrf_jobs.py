"""Jobs cannot reach forbidden targets: a worker runs jobs that any producer could write against a receiver on this
machine that counts requests. (`tests/egress` tests the sender alone.)"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from holdfast import App, Retry, State, webhooks
from holdfast.features.webhooks.model import DELIVER
from holdfast.outgoing import EgressPolicy
from tests.support.http_server import Web, running
from tests.support.workers import work_off

pytestmark = pytest.mark.req("JF-8", "JF-9")

ONCE = Retry(max_attempts=1)
PUBLIC = "8.8.8.8"
METADATA = [
    *("http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/", "http://168.63.129.16/"),
    *("http://2852039166/", "http://0xa9fea9fe/", "http://100.100.100.200/", "http://[::ffff:169.254.169.254]/"),
]
HERE = "127.0.0.1 127.1 2130706433 0x7f000001 0177.0.0.1 0.0.0.0 localhost [::1] [::ffff:127.0.0.1] [::] 127.0.0.2"


@pytest.fixture
def web() -> Iterator[Web]:
    with running() as server:
        server.says("/secret", 200, b"the canary")
        yield server


def loopback(web: Web) -> list[str]:
    return [f"http://{host}:{web.port}/secret" for host in HERE.split()]


class Names:
    """A resolver that returns a different address for each query."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers, self.queries = list(answers), 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.queries += 1
        return self._answers[min(self.queries, len(self._answers)) - 1] if host.endswith(".example") else [host]


def egress(web: Web, **more: Any) -> EgressPolicy:
    """The default policy plus the receiver's port, so that only the address can be refused."""
    usual: dict[str, Any] = {"ports": (80, 443, web.port), "total": 20.0}
    return EgressPolicy(**(usual | more))


def requested(app: App, *urls: str, **more: Any) -> list[tuple[str, str | None]]:
    """The outcomes of jobs that request these URLs."""
    handles = [app.enqueue("http.request", {"url": url, **more}, retry=ONCE) for url in urls]
    work_off(app)
    return [(handle.state(), handle.get().error_code) for handle in handles]


def delivered(app: App, *urls: str) -> list[tuple[str, str | None]]:
    handles = []
    for number, url in enumerate(urls):
        app.webhooks.add(f"hook{number}", url, secrets="OPS_HOOK")
        payload = {"webhook": f"hook{number}", "type": "note", "data": {}}
        handles.append(app.enqueue(DELIVER, payload, retry=ONCE))
    work_off(app)
    return [(handle.state(), handle.get().error_code) for handle in handles]


@pytest.mark.slow
@pytest.mark.parametrize("send", [requested, delivered])
def test_no_job_reaches_loopback_or_metadata_addresses(
    sqlite_url: str, web: Web, send: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET_OPS_HOOK", webhooks.new_secret())
    with closing(App(sqlite_url, egress=egress(web))) as app:
        app.connectors.set("http.request")
        urls = [*loopback(web), *METADATA]
        ends = send(app, *urls)
        assert [url for url, end in zip(urls, ends, strict=True) if end[0] is not State.DEAD_LETTER] == []
        # Spellings that the local resolver does not accept are unreachable; all others are refused.
        assert {code for _, code in ends} <= {"egress_refused", "egress_unreachable"}, ends
        assert ends[0][1] == ends[-1][1] == "egress_refused"
        assert all("canary" not in str(job.error_message) for job in app.jobs.list(limit=100))
    assert web.asked == []


@pytest.mark.slow
@pytest.mark.parametrize("send", [requested, delivered])
def test_rebound_name_is_refused(sqlite_url: str, web: Web, send: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the checked address is the one connected to, and one bad address refuses the name."""
    monkeypatch.setenv("HOLDFAST_SECRET_OPS_HOOK", webhooks.new_secret())
    for answers in ([["127.0.0.1"]], [[PUBLIC, "127.0.0.1"]], [["::ffff:127.0.0.1"]], [["169.254.169.254"]]):
        names = Names(*answers)
        with closing(App(sqlite_url, egress=egress(web, resolver=names))) as app:
            app.connectors.set("http.request")
            (end,) = send(app, f"http://evil.example:{web.port}/secret")
            assert end == (State.DEAD_LETTER, "egress_refused"), answers
            if send is delivered:
                app.webhooks.remove("hook0")
        assert names.queries == 1
    assert web.asked == []


def test_redirect_cannot_lead_to_a_forbidden_target(sqlite_url: str, web: Web) -> None:
    with closing(App(sqlite_url, egress=egress(web, allow=("127.0.0.1/32",)))) as app:
        app.connectors.set("http.request")
        other = f"http://127.0.0.2:{web.port}/secret"
        targets = [other, "http://169.254.169.254/", "file:///etc/passwd", "//[::1]/secret"]
        for number, target in enumerate(targets):
            web.says(f"/go{number}", 302, headers={"location": target})
        urls = [f"{web.url}/go{number}" for number in range(len(targets))]
        assert requested(app, *urls, redirects=5) == [(State.DEAD_LETTER, "egress_refused")] * len(targets)
        assert sorted(request.path for request in web.asked) == [f"/go{number}" for number in range(len(targets))]
        web.asked.clear()
        # Control: the first of the two addresses is allowed, and its content is read.
        assert requested(app, f"{web.url}/secret") == [(State.SUCCEEDED, None)]


def test_webhook_follows_no_redirect(sqlite_url: str, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET_OPS_HOOK", webhooks.new_secret())
    web.says("/go", 302, headers={"location": f"{web.url}/secret"})
    with closing(App(sqlite_url, egress=egress(web, allow=("127.0.0.1/32",)))) as app:
        ((state, _),) = delivered(app, f"{web.url}/go")
        assert state is State.DEAD_LETTER
    assert {request.path for request in web.asked} == {"/go"}
