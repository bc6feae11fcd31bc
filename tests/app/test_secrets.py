"""Canary secrets in arguments, environment, errors and messages must appear in no row and no log line.

The payload itself contains the handler's arguments; that is its purpose. Nothing else may contain them.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from holdfast import App, Cancel, Context, Reject, Retry, RetryLater, SyncContext
from holdfast.errors import InvalidSetting
from holdfast.telemetry.logs import JsonLines, TextLines
from tests.app.conftest import NewApp
from tests.support.direct_sql import open_by_hand
from tests.support.workers import work_off

pytestmark = pytest.mark.req("DP-22")

ONCE = Retry(max_attempts=1)

GIVEN = "canary-given-7f3a"
ENVIRONMENT = "canary-environment-91bc"
REGISTERED = "canary-registered-d0e4"
LATE = "canary-late-55aa"
NAMED = "canary-named-c21b"
CANARIES = (GIVEN, ENVIRONMENT, REGISTERED, LATE, NAMED)


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Everything that is logged, as the command line prints it, in both formats."""
    stream = io.StringIO()
    handlers = [logging.StreamHandler(stream) for _ in range(2)]
    handlers.append(logging.StreamHandler(stream))  # and with a plain formatter
    for handler, formatter in zip(handlers, (TextLines(), JsonLines(), logging.Formatter("%(message)s")), strict=True):
        handler.setFormatter(formatter)
        logging.getLogger().addHandler(handler)
    before = logging.getLogger().level
    logging.getLogger().setLevel(logging.DEBUG)
    yield stream
    logging.getLogger().setLevel(before)
    for handler in handlers:
        logging.getLogger().removeHandler(handler)


def declare(app: App) -> dict[str, Any]:
    everything = " ".join(CANARIES[:4]) + f" api_key={NAMED}"

    def raises(ctx: SyncContext, password: str) -> None:
        try:
            raise KeyError({"token": NAMED, "note": everything})
        except KeyError as error:
            raise ConnectionError(f"cannot log in with {password}: {everything}") from error

    async def araises(ctx: Context, password: str) -> None:
        raise ExceptionGroup(everything, [ValueError(everything)])

    def retries(ctx: SyncContext, password: str) -> None:
        raise RetryLater(after=1, message=everything)

    def rejects(ctx: SyncContext, password: str) -> None:
        raise Reject("no_good", everything)

    def cancels(ctx: SyncContext, password: str) -> None:
        raise Cancel(everything)

    def snoozes(ctx: SyncContext, password: str) -> None:
        ctx.snooze(3600, everything)

    def reports(ctx: SyncContext, password: str) -> None:
        ctx.progress(0.5, everything)

    def logs(ctx: SyncContext, password: str) -> None:
        ctx.log.info("with %s and %s", password, everything)
        try:
            raise ValueError(everything)
        except ValueError:
            ctx.log.exception("it failed: %s", everything)

    def invalid(ctx: SyncContext, password: str) -> Any:
        return {"x": object(), "y": everything}

    handlers = (raises, araises, retries, rejects, cancels, snoozes, reports, logs, invalid)
    return {handler.__name__: app.job(retry=ONCE)(handler) for handler in handlers}


def rows(url: str) -> dict[str, str]:
    with closing(open_by_hand(url)) as by_hand:
        return {table: repr(content) for table, content in by_hand.contents().items()}


def test_no_canary_leaves_the_payload(
    new_app: NewApp, url: str, logged: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMTP_PASSWORD", ENVIRONMENT)
    app = new_app()
    app.redact(REGISTERED)
    kinds = declare(app)

    @app.job()
    def learns() -> None:
        app.redact(LATE)  # a value just read from a vault

    learns.enqueue()
    work_off(app)
    handles = {name: kind.enqueue(password=GIVEN) for name, kind in kinds.items()}
    work_off(app)
    assert all(handle.get().attempt == 1 for handle in handles.values())

    tables = rows(url)
    assert GIVEN in tables["job"]  # the payload
    for canary in CANARIES:
        assert canary not in logged.getvalue()
        leaks = [table for table, text in tables.items() if canary in text and (table, canary) != ("job", GIVEN)]
        assert leaks == [], canary
    # Only the secrets are removed.
    job = handles["raises"].get()
    assert job.error_code == "ConnectionError"
    assert str(job.error_message).startswith("cannot log in with [redacted]: [redacted]")
    trace = handles["raises"].history()[-2].meta["traceback"]
    assert "in raises" in trace
    assert "direct cause" in trace
    assert "with [redacted] and [redacted]" in logged.getvalue()


def test_canary_is_found_without_redaction(
    new_app: NewApp, url: str, logged: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that the search works: here nothing is redacted."""
    monkeypatch.setattr("holdfast.engine.redaction.Redactor.__call__", lambda self, text, limit=2000: text[:limit])
    app = new_app()
    handles = [kind.enqueue(password=GIVEN) for kind in declare(app).values()]
    work_off(app)
    assert handles
    tables = rows(url)
    assert all(REGISTERED in tables[table] for table in ("job_state", "event", "checkpoint"))
    assert REGISTERED in logged.getvalue()


def test_additional_secret_names_are_redacted(new_app: NewApp) -> None:
    app = new_app(secret_names=("pesel",))

    @app.job(retry=ONCE)
    def fails(pesel: str) -> None:
        raise ValueError(f"who is {pesel}?")

    handle = fails.enqueue("44051401359")
    work_off(app)
    assert handle.get().error_message == "who is [redacted]?"


def test_repository_errors_are_redacted(app: App) -> None:
    app.redact(REGISTERED)
    repository = app.repository()
    job_id = repository.enqueue("resize")
    repository.claim()
    repository.mark_failure(job_id, f"no luck with {REGISTERED}")
    job = app.jobs.get(job_id)
    assert job.error_message == "no luck with [redacted]"
    repository.close()


def test_too_short_secret_is_refused(app: App) -> None:
    with pytest.raises(InvalidSetting) as caught:
        app.redact("abc")
    assert caught.value.code == "secret_too_short"


def test_job_cannot_forge_log_lines(app: App, logged: io.StringIO) -> None:
    hostile = "one\r\n2030-01-01 error holdfast.worker: forged\x1b[2J\u2028two\u202e"

    @app.job("forge", retry=ONCE)
    def forges(ctx: SyncContext) -> None:
        ctx.log.warning(hostile)
        raise ValueError(hostile)

    forges.enqueue()
    work_off(app)
    text = logged.getvalue()
    assert "forged" in text
    assert not any(line.startswith("2030") for line in text.splitlines())
    assert "\x1b" not in text


def test_log_line_names_its_job(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.job()
    def says(ctx: SyncContext, n: int) -> None:
        ctx.log.info("number %d", n, extra={"page": 7})

    handle = says.using(correlation_id="c-1").enqueue(3)
    with caplog.at_level(logging.INFO, "holdfast.job.says"):
        work_off(app)
    (record,) = [record for record in caplog.records if record.name == "holdfast.job.says"]
    fields = {name: getattr(record, name) for name in ("job_id", "kind", "attempt", "tenant", "correlation_id", "page")}
    assert fields == {
        "job_id": handle.id,
        "kind": "says",
        "attempt": 1,
        "tenant": "default",
        "correlation_id": "c-1",
        "page": 7,
    }
    assert (record.getMessage(), record.funcName) == ("number 3", "says")
