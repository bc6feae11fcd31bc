"""``http.request`` (JF-8, JF-11): reachable targets, mapping of responses to outcomes, and secrecy of secrets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Backoff, Context, Handle, Retry, State
from holdfast.app.internals import session_of
from holdfast.errors import InvalidArguments
from holdfast.features.connectors.http_request import SecretProvider
from holdfast.outgoing import EgressPolicy
from tests.app.conftest import NewApp
from tests.support.http_server import Page, Web, running
from tests.support.workers import work_off

CANARY = "canary-4f1c9a7e-never-to-be-seen"
ONCE = Retry(max_attempts=1)


@pytest.fixture
def url(sqlite_url: str) -> str:
    """The store does not matter here; the contract tests of the connector settings run on both."""
    return sqlite_url


@pytest.fixture
def web() -> Iterator[Web]:
    with running() as server:
        yield server


def reaching(web: Web, **more: Any) -> EgressPolicy:
    usual: dict[str, Any] = {"allow": ("127.0.0.1/32",), "ports": (web.port,), "plain_secrets": True}
    return EgressPolicy(**(usual | more))


def secrets(name: str, tenant: str) -> str | None:
    return {("RATES_TOKEN", "default"): CANARY, ("RATES_TOKEN", "acme"): "another-secret"}.get((name, tenant))


@pytest.fixture
def app(new_app: NewApp, web: Web) -> App:
    made = new_app(egress=reaching(web), secrets=secrets)
    made.connectors.set("http.request", hosts=["127.0.0.1"])
    return made


def send_request(app: App, **payload: Any) -> Handle[Any]:
    handle = app.enqueue("http.request", payload, retry=ONCE)
    work_off(app)
    return handle


def refused(app: App, **payload: Any) -> str:
    """The error code of a request that ended as a dead letter."""
    handle = send_request(app, **payload)
    job = handle.get()
    assert job.state is State.DEAD_LETTER
    assert job.error_code is not None
    return job.error_code


@pytest.mark.req("JF-8")
def test_response_of_a_request_is_the_job_result(app: App, web: Web) -> None:
    web.says("/rates", 200, b'{"eur": 1.1}', {"content-type": "application/json", "etag": "v1", "set-cookie": "s=1"})
    web.says("/text", 201, "grüß".encode(), {"x-own": "kept"})
    web.says("/image", 200, b"\x89PNG\0\xff")
    web.says("/long", 200, b"x" * 100_000)
    handle = send_request(
        app, method="POST", url=f"{web.url}/rates?day=1", json={"day": 1}, headers={"X-Trace": "abc"}, timeout=5
    )
    response = handle.result()
    assert (response["status"], response["json"], response["size"]) == (200, {"eur": 1.1}, 12)
    assert response["headers"] == {"content-type": "application/json", "etag": "v1"}
    request = web.asked[0]
    assert (request.method, request.path, json.loads(request.body)) == ("POST", "/rates?day=1", {"day": 1})
    assert request.headers["content-type"] == "application/json"
    assert request.headers["idempotency-key"] == f"default:http.request:{handle.id}"
    assert request.headers["x-trace"] == "abc"
    text = send_request(app, url=f"{web.url}/text", keep=["X-Own"]).result()
    assert (text["status"], text["body"], text["headers"]["x-own"]) == (201, "grüß", "kept")
    assert "idempotency-key" not in web.asked[1].headers  # a GET can be repeated safely
    for path, body in (("/image", b"\x89PNG\0\xff"), ("/long", b"x" * 100_000)):
        response = send_request(app, url=web.url + path).result()
        assert app.artifacts is not None
        assert app.artifacts.get(response["artifact"], tenant="default") == body
    assert send_request(app, url=f"{web.url}/none", expect=[404]).result()["status"] == 404


@pytest.mark.req("JF-8", "CX-8")
def test_temporary_errors_are_retried_and_others_are_rejected(app: App, web: Web) -> None:
    answers = [(503, {"Retry-After": "0"}), (429, {"Retry-After": "0"}), (200, {})]

    def busy(page: Page) -> None:
        status, headers = answers.pop(0)
        page.answer(status, b"busy", headers)

    web.pages["/busy"] = busy
    at_once = Retry(max_attempts=5, backoff=Backoff(base=0, cap=0))
    handle = app.enqueue("http.request", {"url": f"{web.url}/busy", "method": "POST"}, retry=at_once)
    for _ in range(3):
        work_off(app)
    assert handle.result()["body"] == "busy"
    assert {request.headers["idempotency-key"] for request in web.asked} == {f"default:http.request:{handle.id}"}
    web.says("/later", 503, b"", {"Retry-After": "7200", "Date": "Mon, 16 Nov 2026 08:00:00 GMT"})
    later = app.enqueue("http.request", {"url": f"{web.url}/later"}, retry=Retry(max_attempts=5))
    work_off(app)
    job = later.get()
    assert (job.state, job.error_code) == (State.RETRY_WAITING, "http_unavailable")
    assert job.due_at is not None
    assert 7_000 < (job.due_at - session_of(app).run(session_of(app).store.clock.now())).total_seconds() <= 7_260
    web.says("/wrong", 422, b"no such\r\ncurrency", {})
    handle = app.enqueue("http.request", {"url": f"{web.url}/wrong"}, retry=Retry(max_attempts=5))
    work_off(app)
    job = handle.get()
    assert (job.state, job.error_code) == (State.DEAD_LETTER, "http_rejected")
    assert job.error_message == f"{web.url} answered 422: no such currency"
    assert 422 in [event.meta.get("status") for event in handle.history()]


@pytest.mark.slow
@pytest.mark.req("JF-8", "JF-11")
def test_requests_refused_by_policy_or_settings_are_not_retried(app: App, web: Web, new_app: NewApp) -> None:
    web.says("/big", 200, b"x" * 3_000)
    assert refused(app, url="http://127.0.0.1:1/") == "egress_refused"  # this port is not allowed
    assert refused(app, url=f"http://localhost:{web.port}/") == "egress_refused"  # this host is not allowed
    assert refused(app, url="http://169.254.169.254/latest/meta-data") == "egress_refused"
    assert refused(app, url=f"{web.url}/big", max_bytes=1_000) == "egress_too_large"
    app.connectors.set("http.request", max_bytes="2KB")
    assert refused(app, url=f"{web.url}/big", max_bytes=1_000_000) == "egress_too_large"
    app.connectors.set("http.request", enabled=False)
    assert refused(app, url=f"{web.url}/big") == "connector_disabled"
    app.connectors.remove("http.request")
    assert refused(app, url=f"{web.url}/big") == "connector_not_set"
    assert len(web.asked) == 2
    closed = new_app()  # the default policy refuses loopback, whatever a tenant has set
    closed.connectors.set("http.request", hosts=[f"127.0.0.1:{web.port}"])
    assert refused(closed, url=f"{web.url}/big") == "egress_refused"
    assert len(web.asked) == 2


@pytest.mark.req("JF-8", "JF-11")
def test_payload_with_a_secret_is_refused(app: App) -> None:
    for headers in (
        {"Authorization": "Bearer abc"},
        {"X-Api-Key": "12345678"},
        {"cookie": "session=1"},
        {"X-Other": "Bearer eyJhbGciOi.eyJzdWIiOi.sig"},
        {"X-Other": "sk_live_0123456789abcdef"},
    ):
        with pytest.raises(InvalidArguments, match="secret_in_payload"):
            app.enqueue("http.request", {"url": "https://example.com/", "headers": headers})
    for wrong in (
        {"body": "a", "json": 1},
        {"timeout": 0},
        {"headers": {"X": {"secret": "lower"}}},
        {"headers": {"X": 1}},
        {"headers": {"X Y": "z"}},
        {"unknown": 1},
    ):
        with pytest.raises(InvalidArguments):
            app.enqueue("http.request", {"url": "https://example.com/", **wrong})
    assert list(app.jobs.list()) == []


@pytest.mark.slow
@pytest.mark.req("JF-11")
def test_secrets_are_given_by_name_and_leave_no_trace(
    app: App, web: Web, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The server receives the canary in a header and echoes it in every way it can; no trace of it is stored."""
    caplog.set_level(logging.DEBUG)
    echo = f"you said {CANARY}".encode()
    web.says("/echo", 200, echo, {"etag": CANARY})
    web.says("/file", 200, echo * 5_000)
    web.says("/denied", 403, echo)
    web.says("/down", 500, echo)
    web.says("/away", 302, echo, {"location": f"https://elsewhere.example/?{CANARY}"})
    app.connectors.set(
        "http.request",
        headers={"Authorization": {"secret": "RATES_TOKEN", "prefix": "Bearer "}, "Accept": "text/plain"},
        secrets=["RATES_TOKEN"],
    )
    own = {"headers": {"X-Token": {"secret": "RATES_TOKEN"}, "accept": "text/html"}}
    handles = [send_request(app, url=web.url + path, **own) for path in ("/echo", "/file", "/denied", "/down")]
    handles.append(send_request(app, url=f"{web.url}/away", redirects=3))
    handles.append(send_request(app, url=f"{web.url}:x/", **own))

    @app.job(retry=ONCE)
    def careless() -> None:
        logging.getLogger("shop").info("unrelated")
        raise ValueError(f"could not use {CANARY}")

    handles.append(careless.enqueue())
    work_off(app)
    assert handles[-1].get().error_message == "could not use [redacted]"
    assert web.asked[0].headers["authorization"] == f"Bearer {CANARY}"
    assert (web.asked[0].headers["x-token"], web.asked[0].headers["accept"]) == (CANARY, "text/html")
    assert handles[0].result()["body"] == "you said [redacted]"
    seen = [caplog.text, *capsys.readouterr(), repr(app), repr(app._outbound)]
    for handle in handles:
        job = handle.get()
        attempts = session_of(app).run(session_of(app).store.jobs.attempts(handle.id, handle.tenant))
        seen += [repr(job), repr(attempts), repr(handle.history()), repr(app.jobs.why(handle.id))]
    assert CANARY not in "".join(seen)
    written = [path for path in tmp_path.parent.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    assert written == []
    database = Path(session_of(app).store.url.removeprefix("sqlite:///"))
    folder = [path for path in database.parent.rglob("*") if path.is_file()]
    assert database in folder
    assert [path for path in folder if CANARY.encode() in path.read_bytes()] == []


@pytest.mark.req("JF-11", "JF-1")
def test_secrets_belong_to_a_tenant_and_need_its_permission(
    new_app: NewApp, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app(egress=reaching(web), secrets=secrets)
    web.says("/", 200, b"fine")
    with app.tenant("acme"):
        app.connectors.set("http.request", hosts=["127.0.0.1"], secrets=["RATES_TOKEN", "NOT_THERE"])
    with app.tenant("other"):
        app.connectors.set("http.request", hosts=["127.0.0.1"])
    header = {"X-Token": {"secret": "RATES_TOKEN"}}
    ends = {}
    for tenant in ("acme", "other", "none"):
        with app.tenant(tenant):
            ends[tenant] = app.enqueue("http.request", {"url": web.url, "headers": header}, retry=ONCE)
    with app.tenant("acme"):
        missing = app.enqueue("http.request", {"url": web.url, "headers": {"X": {"secret": "NOT_THERE"}}}, retry=ONCE)
    work_off(app, tenant="*")
    assert ends["acme"].result()["body"] == "fine"
    assert [request.headers["x-token"] for request in web.asked] == ["another-secret"]
    codes = [each.get().error_code for each in (ends["other"], ends["none"], missing)]
    assert codes == ["secret_not_allowed", "connector_not_set", "secret_missing"]


@pytest.mark.req("JF-11")
def test_secrets_are_not_sent_over_plain_http(new_app: NewApp, web: Web) -> None:
    app = new_app(egress=reaching(web, plain_secrets=False), secrets=secrets)
    app.connectors.set("http.request", hosts=["127.0.0.1"], secrets=["RATES_TOKEN"])
    assert refused(app, url=web.url, headers={"X-Token": {"secret": "RATES_TOKEN"}}) == "egress_refused"
    assert web.asked == []


@pytest.mark.req("JF-11")
def test_environment_provides_only_connector_secrets(
    new_app: NewApp, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "not-for-connectors")
    monkeypatch.setenv("HOLDFAST_SECRET_RATES_TOKEN", "of-the-default-tenant")
    monkeypatch.setenv("HOLDFAST_SECRET_a_2Db__RATES_TOKEN", "of-another-tenant")
    app = new_app(egress=reaching(web))
    web.says("/", 200, b"fine")
    for tenant in ("default", "a-b", "acme"):
        with app.tenant(tenant):
            app.connectors.set("http.request", hosts=["127.0.0.1"], secrets=["RATES_TOKEN", "DATABASE_PASSWORD"])
            for name in ("RATES_TOKEN", "DATABASE_PASSWORD"):
                app.enqueue("http.request", {"url": web.url, "headers": {"X-Token": {"secret": name}}}, retry=ONCE)
    work_off(app, tenant="*")
    assert sorted(request.headers["x-token"] for request in web.asked) == ["of-another-tenant", "of-the-default-tenant"]


@pytest.mark.req("JF-8")
def test_headers_hook_and_async_secret_provider_are_used(new_app: NewApp, web: Web) -> None:
    async def vault(name: str, tenant: str) -> str | None:
        return f"{tenant}/{name}"

    provider: SecretProvider = vault

    def headers(ctx: Context) -> dict[str, str]:
        return {"traceparent": f"00-{ctx.job_id.replace('-', '')}-0000000000000001-01"}

    app = new_app(egress=reaching(web), secrets=provider, outgoing_headers=headers)
    app.connectors.set("http.request", hosts=["127.0.0.1"], secrets=["RATES_TOKEN"])
    web.says("/", 200, b"fine")
    handle = send_request(app, url=web.url, headers={"X-Token": {"secret": "RATES_TOKEN"}})
    assert handle.result()["body"] == "fine"
    assert web.asked[0].headers["traceparent"] == f"00-{handle.id.replace('-', '')}-0000000000000001-01"
    assert web.asked[0].headers["x-token"] == "default/RATES_TOKEN"
