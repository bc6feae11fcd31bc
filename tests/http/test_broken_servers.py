"""The client against broken servers: a clear error with a code, in bounded time, without the token."""

from __future__ import annotations

import json
import logging
import socket
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import errors
from holdfast.errors import NotFound
from holdfast.remote import Client, Retrying, transport
from tests.http.conftest import SOON, TOKEN, Driver
from tests.http.scripted_server import Hostile, Script, answers, half, hangs_up

pytestmark = pytest.mark.req("JF-14")

Drive = Callable[..., Driver]

# Complete responses are handled by the same code in both forms.
one_form = pytest.mark.parametrize("form", ["blocking"])

HTML = answers(200, "<html>" + "x" * 5_000, "text/html")
BUSY = answers(503, "<html>busy</html>", "text/html")


def problem(status: int, code: str, **more: Any) -> Script:
    body = {"type": f"urn:holdfast:error:{code}", "code": code, "detail": "so it is", **more}
    return answers(status, json.dumps(body), "application/problem+json")


def refusal(drive: Drive, server: Hostile, act: Callable[[Any], Any] | None = None, **settings: Any) -> Any:
    """The raised error, which must not contain the token."""
    driver = drive(server.url, **settings)
    with pytest.raises(errors.HoldfastError) as raised:
        driver.do(act or (lambda client: client.jobs.get("7")))
    shown = "".join(traceback.format_exception(raised.value)) + repr(raised.value) + repr(driver.client)
    assert TOKEN not in shown
    return raised.value


@one_form
def test_unexpected_response_is_reported(drive: Drive) -> None:
    shown = {
        "a page": HTML,
        "half of JSON": answers(200, '{"job": {"id": '),
        "other JSON": answers(200, '{"job": {"id": 7}}'),
        "a list": answers(200, "[1, 2]"),
        "deep": answers(200, "[" * 100_000),
        "an error page": answers(500, f"<h1>{TOKEN}</h1>\x1b[31m", "text/html"),
        "an unknown status": answers(418, "{}"),
    }
    for what, script in shown.items():
        with Hostile(script) as server:
            error = refusal(drive, server)
            assert (type(error), error.code) == (errors.StoreError, "unexpected_answer"), what
            assert len(server.heard) == 1, what  # a retry would not help
            assert len(str(error)) < 800, what
            assert "\x1b" not in str(error), what


@one_form
def test_problem_responses_become_local_exceptions(drive: Drive) -> None:
    known: list[tuple[Script, type[Exception], str]] = [
        (problem(409, "wrong_state", error="Conflict"), errors.Conflict, "wrong_state"),
        (problem(409, "stale_lease", error="StaleLease"), errors.StaleLease, "stale_lease"),
        (problem(422, "payload_too_deep", error="InvalidPayload"), errors.InvalidPayload, "payload_too_deep"),
        (problem(403, "missing_scope"), errors.Refused, "missing_scope"),
        (problem(401, "unauthenticated"), errors.Refused, "unauthenticated"),
        (problem(409, "x", error="os.system"), errors.Conflict, "x"),  # an unknown class name is ignored
        (problem(500, "internal_error"), errors.StoreError, "internal_error"),
        (problem(404, "no_such_route"), errors.StoreError, "no_such_route"),  # the route is missing, not the job
        (problem(409, "y", detail=f"you sent {TOKEN}\r\nx", fix=TOKEN), errors.Conflict, "y"),
    ]
    for script, kind, code in known:
        with Hostile(script) as server:
            error = refusal(drive, server, lambda client: client.jobs.get("7"))
            assert (type(error), error.code) == (kind, code)
            assert "\n" not in str(error)
            assert len(server.heard) == 1


def test_busy_and_lost_requests_are_retried_then_given_up(drive: Drive) -> None:
    for script in (BUSY, hangs_up, half(b'{"job": '), problem(503, "store_unavailable", error="StoreUnavailable")):
        with Hostile(script) as server:
            error = refusal(drive, server)
            assert (type(error), error.code) == (errors.StoreUnavailable, "store_unavailable")
            assert len(server.heard) == SOON.tries
    for status, code, kind in (
        (503, "schema_mismatch", errors.SchemaMismatch),  # a retry would not migrate it
        (503, "paused", errors.Refused),
        (429, "tenant_full", errors.Refused),
    ):
        with Hostile(problem(status, code, error=kind.__name__)) as server:
            assert type(refusal(drive, server, lambda client: client.enqueue("mail"))) is kind
            assert len(server.heard) == 1


def test_only_safe_requests_are_retried(drive: Drive) -> None:
    with Hostile(hangs_up) as server:
        error = refusal(drive, server, lambda client: client.jobs.cancel("7"))
        assert "it is unknown whether it was carried out" in str(error)
        assert len(server.heard) == 1
    with Hostile(BUSY, hangs_up, half(b"{"), answers(201, '{"id": "7", "created": true, "reason": null}')) as server:
        handle = drive(server.url).do(lambda client: client.enqueue("mail", {"to": "ada"}))
        assert (handle.id, handle.created, len(server.heard)) == ("7", True, 4)
        keys = {line for each in server.heard for line in each.split(b"\r\n") if line.lower().startswith(b"idempot")}
        assert len(keys) == 1  # made once


@pytest.mark.slow
def test_refused_and_silent_servers_are_unavailable_in_time(drive: Drive) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(errors.StoreUnavailable):
        drive(f"http://127.0.0.1:{port}").do(lambda client: client.jobs.get("7"))

    def silent(connection: socket.socket, _: bytes) -> None:
        server.over.wait(20)

    def drips(connection: socket.socket, _: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
        while not server.over.wait(0.05):
            connection.sendall(b" ")

    for script in (silent, drips):
        with Hostile(script) as server:
            begun = time.monotonic()
            refusal(drive, server, timeout=0.4, retrying=Retrying(tries=2, first=0.01))
            assert time.monotonic() - begun < 10
            assert len(server.heard) <= 2  # on a busy machine a try may end before the server sees it


def test_wait_for_a_job_is_not_extended_by_a_silent_service(drive: Drive) -> None:
    def silent(connection: socket.socket, _: bytes) -> None:
        server.over.wait(20)

    with Hostile(silent) as server:
        client = drive(server.url, timeout=0.4, retrying=Retrying(tries=5, first=0.01))
        with pytest.raises(errors.StoreUnavailable):
            client.do(lambda c: c.jobs.handle("7").result(timeout=0.3))
        assert len(server.heard) <= 1  # another try would start after the caller's timeout


def test_endless_response_is_cut(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_RESPONSE", 100_000)
    with Hostile(answers(200, b" " * 300_000)) as server:
        assert "larger than" in str(refusal(drive, server, retrying=Retrying(tries=1)))


@pytest.mark.slow
def test_redirect_does_not_leak_the_token(drive: Drive) -> None:
    with Hostile(answers(200, "{}")) as other:
        for location in (f"{other.url}/api/v1/jobs/7", "//127.0.0.2/x", "http://[", "/elsewhere", "ftp://127.0.0.1/"):
            for status in (301, 307):
                with Hostile(answers(status, "", Location=location)) as server:
                    assert refusal(drive, server).code == "redirected"
                    assert len(server.heard) == 1
        assert other.heard == []
    with Hostile(
        answers(307, "", Location="/api/v1/jobs/8?x=1"), problem(404, "not_found", error="NotFound")
    ) as server:
        with pytest.raises(NotFound):
            drive(server.url).do(lambda client: client.jobs.get("7"))
        assert b"GET /api/v1/jobs/8?x=1 " in server.heard[1]
        assert TOKEN.encode() in server.heard[1]
    with Hostile(answers(308, "", Location="/api/v1/x")) as server:
        assert refusal(drive, server).code == "redirected"  # a redirect loop
        assert len(server.heard) < 10


def test_retry_after_is_obeyed_up_to_a_limit(drive: Drive) -> None:
    empty = answers(200, '{"items": [], "next": null}')
    with Hostile(answers(503, "", Retry_After="0.5"), answers(429, "", Retry_After="nonsense"), empty) as server:
        begun = time.monotonic()
        assert drive(server.url).do(lambda client: client.jobs.list()) == []
        assert time.monotonic() - begun >= 0.5
    with Hostile(answers(503, "", Retry_After="3600"), empty) as server:
        assert refusal(drive, server).code == "store_unavailable"
        assert len(server.heard) == 1


def test_repeated_stream_events_are_yielded_once(drive: Drive) -> None:
    def event(seq: int) -> str:
        facts = {"seq": seq, "job_id": "7", "tenant": "t", "kind": "k", "type": "enqueue", "from_state": None}
        facts |= {"to_state": "queued", "attempt": 0, "at": "2027-01-31T09:00:00Z", "actor": "a", "meta": {}}
        return f"event: job.enqueue\nid: c{seq}\ndata: {json.dumps(facts)}\n\n"

    def stream(*parts: str) -> Script:
        return answers(200, "retry: 1\n\n" + "".join(parts), "text/event-stream")

    # Numbers are assigned when a row is written: a later commit may have a smaller one.
    script = (stream(event(5), event(3), "data: half"), BUSY, stream(event(3), "event: lagged\ndata: {}\n\n", event(6)))
    with Hostile(*script, answers(200, "[]")) as server:
        driver = drive(server.url)
        assert [each.seq for each in driver.take(lambda client: client.events.follow(), most=3)] == [5, 3, 6]
        cursors = [
            next((x for x in each.split(b"\r\n") if x.lower().startswith(b"last-")), b"") for each in server.heard
        ]
        assert [cursor.rpartition(b" ")[2] for cursor in cursors] == [b"", b"c3", b"c3"]
        with pytest.raises(errors.StoreError) as raised:
            driver.take(lambda client: client.events.follow())
        assert raised.value.code == "unexpected_answer"


@one_form
def test_pagination_that_never_ends_is_reported(drive: Drive) -> None:
    with Hostile(answers(200, '{"items": [], "next": "a"}')) as server:
        assert refusal(drive, server, lambda client: client.jobs.history("7")).code == "unexpected_answer"


def test_token_is_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Hostile(answers(200, '{"items": [], "next": null}')) as server, Client(server.url, token=TOKEN) as client:
        assert client.jobs.list() == []
        assert f"Bearer {TOKEN}".encode() in server.heard[0]
        link = client._runner.link
        shown = [repr(client), repr(client.events), repr(link), repr(client.jobs.handle("7"))]
    assert TOKEN not in caplog.text + "".join(shown)


@pytest.mark.parametrize(
    ("url", "token"),
    [
        ("jobs.example.com", ""),
        ("ftp://jobs.example.com", ""),
        ("http://", ""),
        ("http://a:99999999", ""),
        ("http://user:" + "secret@jobs.example.com", ""),
        ("http://jobs.example.com?x=1", ""),
        ("http://jobs.example.com", "hf_a\r\nX-Evil: 1"),
        ("http://jobs.example.com", "hf_ä"),
    ],
)
def test_invalid_url_or_token_is_rejected_at_once(url: str, token: str) -> None:
    with pytest.raises(errors.InvalidSetting) as raised:
        Client(url, token=token)
    assert "secret" not in str(raised.value)
    assert "Evil" not in str(raised.value)
