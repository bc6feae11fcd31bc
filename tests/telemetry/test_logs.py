"""JSON log lines (JF-13): their fields, redaction, and one line per record, whatever logs it."""

from __future__ import annotations

import io
import json
import logging
import logging.config
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from holdfast import App, Backoff, Context, Reject, Retry, RetryLater, SyncContext, configure_logging, trace_from
from holdfast.app.internals import session_of
from holdfast.errors import InvalidSetting
from holdfast.features.tokens.model import scopes_of
from holdfast.server.app import make_service
from holdfast.server.auth import Identity
from holdfast.telemetry.logs import HANDLER
from tests.app.conftest import NewApp
from tests.support.workers import work_off

pytestmark = pytest.mark.req("JF-13")

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CANARY, GIVEN, VAULT = "canary-environment-7f3a", "canary-given-91bc", "canary-vault-d0e4"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """The output of ``configure_logging`` for all log records."""
    root, jobs = logging.getLogger(), logging.getLogger("holdfast.jobs")
    before = root.level, jobs.level
    output = io.StringIO()
    configure_logging(level="debug", stream=output)
    yield output
    root.handlers[:] = [each for each in root.handlers if each.get_name() != HANDLER]
    root.setLevel(before[0])
    jobs.setLevel(before[1])


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_job_log_lines_have_their_fields_and_no_canary(
    new_app: NewApp, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMTP_PASSWORD", CANARY)
    app = new_app(tenant="acme")
    app.redact(VAULT)
    theirs = logging.getLogger("shop.mail")
    everything = f"{CANARY} {GIVEN} {VAULT} api_key=canary-named-1"

    @app.job(queue="mail")
    def sends(ctx: SyncContext, password: str) -> None:
        ctx.log.info("sending\r\nforged: %s\x1b[2J\u202e", everything, extra={"token": "canary-extra-1", "n": 7})
        theirs.info("connected with %s", everything, extra={"password": "canary-extra-2", "who": [GIVEN]})
        try:
            raise ValueError(everything)
        except ValueError:
            theirs.exception("it failed")
            ctx.log.exception("it failed")

    @app.job(queue="mail", retry=Retry(max_attempts=1))
    async def fails(ctx: Context, password: str) -> None:
        raise ConnectionError(f"no: {everything}")

    with trace_from(PARENT):
        job = sends.enqueue(password=GIVEN)
    bad = fails.enqueue(password=GIVEN)
    work_off(app, queues=("mail",))
    logging.getLogger("holdfast.worker").warning("outside of a job: %s", CANARY)

    text = stream.getvalue()
    assert "canary" not in text
    assert "\x1b" not in text
    assert "\\u202e" not in text
    all_lines = lines(stream)  # each one is a single line of JSON
    about = [line for line in all_lines if line.get("job") == job.id]
    assert len(about) == 5
    for line in about:
        assert line["worker"].startswith("worker ")
        fields = {name: line[name] for name in ("trace_id", "span_id", "kind", "queue", "tenant", "attempt")}
        assert fields == {
            "trace_id": PARENT[3:35],
            "span_id": PARENT[36:52],
            "kind": "sends",
            "queue": "mail",
            "tenant": "acme",
            "attempt": 1,
        }
        assert line["timestamp"].endswith("Z")
    first = about[0]
    assert first["message"].startswith("sending forged: [redacted]")
    assert (first["level"], first["logger"], first["n"], first["token"]) == (
        "info",
        "holdfast.job.sends",
        7,
        "[redacted]",
    )
    assert about[1]["password"] == "[redacted]"
    assert (about[2]["error"], "in sends" in about[2]["traceback"]) == ("ValueError", True)
    assert "in sends" in about[3]["traceback"]
    ended = about[4]
    assert (ended["logger"], ended["outcome"], ended["duration"] > 0) == ("holdfast.jobs", "succeeded", True)
    (failed,) = [line for line in all_lines if line.get("job") == bad.id]
    assert (failed["level"], failed["error"], failed["outcome"]) == ("warning", "ConnectionError", "failed")
    assert failed["duration"] > 0
    assert failed["trace_id"] == bad.id.replace("-", "")


def messages(app: App, stream: io.StringIO, kind: str) -> list[tuple[str, str]]:
    """The level and the message of the lines about jobs of a kind, without their ids."""
    return [
        (line["level"], line["message"].replace(line["job"], "ID"))
        for line in lines(stream)
        if line.get("kind") == kind
    ]


@pytest.mark.req("DP-22")
def test_a_failure_says_in_which_attempt_and_what_follows(app: App, stream: io.StringIO) -> None:
    steady = Retry(max_attempts=2, backoff=Backoff(base=0.001, jitter=False))

    @app.job(retry=steady)
    def fails() -> None:
        raise ConnectionError("no answer")

    @app.job(retry=steady)
    def requests() -> None:
        raise RetryLater(0, "not there")

    @app.job(retry=Retry(max_attempts=3, backoff=Backoff(base=3600.0)))
    def jitters(ctx: SyncContext) -> None:
        if ctx.attempt == 1:
            ctx.snooze(0)
        raise ConnectionError("no answer")

    @app.job
    def rejects() -> None:
        raise Reject("no_stock", "none left")

    for kind in (fails, requests, jitters, rejects):
        kind.enqueue()
    for _ in range(3):
        work_off(app)
    assert messages(app, stream, "fails") == [
        ("warning", "Job ID (fails) failed (attempt 1 of 2): ConnectionError: no answer; retry in 1 ms"),
        ("warning", "Job ID (fails) failed (attempt 2 of 2): ConnectionError: no answer; now a dead letter"),
    ]
    assert messages(app, stream, "requests") == [
        ("info", "Job ID (requests) requested a retry (attempt 1 of 2): not there; retry at once"),
        ("warning", "Job ID (requests) failed (attempt 2 of 2): retry_asked: not there; now a dead letter"),
    ]
    snoozed, failed = messages(app, stream, "jitters")
    assert snoozed[1].startswith("Job ID (jitters) snoozed after ")
    failure = "attempt 2, failure 1 of 3"
    assert failed[1] == f"Job ID (jitters) failed ({failure}): ConnectionError: no answer; retry within 5 m"
    [(_, rejected)] = messages(app, stream, "rejects")
    assert rejected.endswith("failed (attempt 1 of 10): no_stock: none left; now a dead letter")


@pytest.mark.req("DP-22")
def test_a_tick_logs_a_failure_once(app: App, stream: io.StringIO) -> None:
    @app.job
    def fails() -> None:
        raise ConnectionError("no answer")

    fails.enqueue()
    app.tick()
    assert len([line for line in lines(stream) if "no answer" in line["message"]]) == 1


def test_canary_is_found_without_redaction(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that the search works: here nothing is redacted."""
    monkeypatch.setattr("holdfast.engine.redaction.Redactor.__call__", lambda self, text, limit=2000: text[:limit])
    logging.getLogger("any").warning("password=canary-1")
    assert "canary-1" in stream.getvalue()


def test_configure_logging_keeps_existing_handlers() -> None:
    own, again, stream = logging.NullHandler(), io.StringIO(), io.StringIO()
    root = logging.getLogger()
    level = root.level
    root.addHandler(own)
    try:
        first = configure_logging(stream=again)
        assert configure_logging(json=False, jobs=False, stream=stream) is not first
        assert own in root.handlers
        assert [each for each in root.handlers if each.get_name() == HANDLER] != [first]
        logging.getLogger("any").warning("a\nb password=hunter22 %s", "\x07")
        assert again.getvalue() == ""
        assert stream.getvalue().endswith(" warning any: a b password=[redacted] \n")
        with pytest.raises(InvalidSetting) as refused:
            configure_logging(level="loud")
        assert refused.value.code == "unknown_option"
    finally:
        root.removeHandler(own)
        root.handlers[:] = [each for each in root.handlers if each.get_name() != HANDLER]
        root.setLevel(level)
    made: Any = logging.config.DictConfigurator({"version": 1}).configure_formatter(
        {"()": "holdfast.telemetry.logs.JsonLines"}
    )
    record = logging.makeLogRecord(
        {"name": "x", "msg": "m", "level_": 1, "message_": 2, "inf": float("inf"), "odd\nname": "v" * 9_000}
    )
    fields = json.loads(made.format(record))
    unfit = json.loads(made.format(logging.makeLogRecord({"msg": "%d is no number", "args": ("x",)})))
    assert unfit["message"].startswith("%d is no number (its arguments do not fit")
    assert (fields["inf"], fields["odd name"][:3], len(fields["odd name"])) == ("inf", "vvv", 2_000)


@pytest.mark.slow
async def test_service_logs_each_request_with_route_actor_and_trace(sqlite_url: str, stream: io.StringIO) -> None:
    app = App(sqlite_url, name="tests")
    session_of(app).make_ready()
    known = Identity("ada", "acme", scopes_of(["viewer"]))
    service = make_service(app, authenticate=lambda request: known if "authorization" in request.headers else None)
    transport = httpx2.ASGITransport(service, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        logging.getLogger().setLevel(logging.INFO)
        await client.get("/static/live.js")  # each page has several of these
        ours = {"authorization": "Bearer canary-token-1", "traceparent": PARENT}
        await client.get("/metrics?secret=canary-query", headers=ours)
        await client.get("/metrics", headers={"traceparent": "00-broken"})
        await client.get("/canary-path/%0aforged", headers=ours)
        await client.get("/livez")
    await app.aclose()
    requests = [line for line in lines(stream) if line["logger"] == "holdfast.http"]  # the client logs too
    assert "canary" not in json.dumps(requests)
    assert [(line["message"], line.get("actor"), line.get("tenant")) for line in requests] == [
        ("GET /metrics 200", "ada", "acme"),
        ("GET unmatched 401", None, None),
        ("GET unmatched 404", "ada", "acme"),
        ("GET /livez 200", None, None),
    ]
    assert [line.get("trace_id") for line in requests] == [PARENT[3:35], None, PARENT[3:35], None]
    assert all(line["duration"] > 0 for line in requests)
