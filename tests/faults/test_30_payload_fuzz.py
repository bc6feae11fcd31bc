"""Fault 30: hostile values in arguments, results, errors, reasons and progress are refused clearly or stored unchanged.

Whatever the value and its path, the job ends, its worker continues, and the job can be read.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest

from holdfast import App, Retry, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.engine.outcome import Failed, Snoozed
from holdfast.errors import InvalidInput
from holdfast.features.assembly import Store
from tests.faults.checker import check
from tests.support.direct_sql import open_by_hand
from tests.support.stores import history, job, put_one, settle, take
from tests.support.workers import work_off

pytestmark = pytest.mark.req("DP-3", "DP-22", "SC-19", "CX-15")

ONCE = Retry(max_attempts=1)


def deep(levels: int) -> list[Any]:
    nest: list[Any] = []
    for _ in range(levels):
        nest = [nest]
    return nest


def recursive() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


REFUSED: dict[str, Any] = {
    "nan": float("nan"),
    "infinity": float("inf"),
    "nul": "a\0b",
    "lone surrogate": "a\ud800b",
    "5,000 digits": 10**5_000,
    "20,000 deep": deep(20_000),
    "two megabytes": "x" * 2_000_000,
    "holds itself": recursive(),
    "bytes": b"raw",
    "a set": {1},
    "an object": object(),
    "keys that are no text": {1: "one"},
    "a nul in a key": {"a\0b": 1},
}
KEPT: dict[str, Any] = {
    "1,000 digits": 10**999,
    "the smallest float": 5e-324,
    "all of unicode": "".join(map(chr, [*range(1, 0x300), 0x2028, 0x2029, 0xFFFD, 0xFFFF, 0x1F600, 0x10FFFF])),
    "what looks like an escape": "\\u0000 \\ud800 %s {} '; drop table job; --",
    "99 deep": deep(98),
    "an empty key": {"": {"": ""}},
    "nearly a megabyte": "ä" * 500_000,
}


@pytest.fixture
def echo_app(app: App) -> App:
    """The app with a job that returns its argument."""

    @app.job(retry=ONCE)
    def echo(value: Any) -> Any:
        return value

    return app


# -- arguments -------------------------------------------------------------------------------------------------


def test_unsupported_argument_is_refused(app: App) -> None:
    for value in REFUSED.values():
        for payload in ({"value": value}, {"value": [{"deeper": value}]}):
            with pytest.raises(InvalidInput) as refused:
                app.enqueue("echo", payload)
            assert refused.value.code.startswith(("payload_", "invalid_")), refused.value
            assert len(str(refused.value)) < 500, "the message does not repeat the value"
    assert app.jobs.list() == []


def test_supported_values_round_trip(echo_app: App) -> None:
    handles = {name: echo_app.enqueue("echo", {"value": value}) for name, value in KEPT.items()}
    work_off(echo_app)
    for name, handle in handles.items():
        assert repr(handle.result(timeout=20)) == repr(KEPT[name]), name
        assert handle.get().payload == {"value": KEPT[name]}, name


@pytest.mark.parametrize("value", [1.7976931348623157e308, 1e23, -0.0])
def test_floats_round_trip(echo_app: App, value: float) -> None:
    handle = echo_app.enqueue("echo", {"value": value})
    work_off(echo_app)
    assert repr(handle.get().payload["value"]) == repr(value)
    assert repr(handle.result(timeout=20)) == repr(value)


@pytest.mark.parametrize("name", ["nul", "lone surrogate"])
def test_unsupported_names_and_keys_are_refused(app: App, name: str) -> None:
    text = REFUSED[name]
    options: list[dict[str, Any]] = [
        *({option: text} for option in ("key", "queue", "tenant", "correlation_id", "external_ref", "agent")),
        {"tags": [text]},
    ]
    for option in options:
        with pytest.raises(InvalidInput):
            app.enqueue("echo", {"value": 1}, **option)
    with pytest.raises(InvalidInput):
        app.enqueue(f"echo{text}", {"value": 1})
    assert app.jobs.list() == []


# -- handlers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["returned", "raised", "saved"])
def test_hostile_value_of_handler_ends_only_its_job(app: App, how: str) -> None:
    @app.job(retry=ONCE)
    def hostile(ctx: SyncContext, name: str) -> Any:
        value = REFUSED[name]
        if how == "raised":
            raise RuntimeError(value if isinstance(value, str) else type(value).__name__)
        if how == "saved":
            ctx.checkpoint.save(value)
        return value

    @app.job(retry=ONCE)
    def plain() -> str:
        return "done"

    bad = {name: hostile.enqueue(name) for name in REFUSED}
    good = plain.enqueue()
    work_off(app)
    assert good.result(timeout=20) == "done"
    for name, handle in bad.items():
        ended = handle.get()
        assert ended.state is State.DEAD_LETTER, name
        code = str(ended.error_code)
        if how == "raised":
            assert code == "RuntimeError", name
        elif (how, name) == ("saved", "two megabytes") and session_of(app).store.url.startswith("postgres"):
            assert code == "no_artifact_store"  # SQLite has one, and there the result is too large
        else:
            assert code.startswith("payload_"), name
        assert ended.error_message
        assert len(ended.error_message) <= 2_000
        assert handle.history()[-1].type == "dead_letter"
    check(session_of(app).store.url, [*(handle.id for handle in bad.values()), good.id])


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_long_error_message_does_not_flood_the_log(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.job(retry=ONCE)
    def loud(text: str) -> None:
        raise RuntimeError(text * 100_000)

    for text in ("x", "\r\n"):
        loud.enqueue(text)
    work_off(app)
    longest = max(len(record.getMessage()) for record in caplog.records)
    assert caplog.records
    caplog.clear()
    assert longest < 5_000


@pytest.mark.parametrize("name", ["nul", "lone surrogate", "two megabytes"])
def test_reason_and_error_accept_any_text(app: App, name: str) -> None:
    text = REFUSED[name]
    first, second = (put_one(session_of(app).store) for _ in range(2))
    assert settle(session_of(app).store, take(session_of(app).store), Snoozed(0.0, text)) == []
    assert settle(session_of(app).store, take(session_of(app).store), Failed(text, text, text, final=True)) == []
    assert job(session_of(app).store, first).state is State.RETRY_WAITING
    assert history(session_of(app).store, first)[-1].meta["reason"]
    assert job(session_of(app).store, second).state is State.DEAD_LETTER
    check(session_of(app).store.url, [first, second], ended=False)


@pytest.mark.parametrize("name", ["nul", "lone surrogate", "two megabytes"])
def test_operator_reason_is_stored_or_refused_as_invalid(app: App, name: str) -> None:
    """No error of the database driver escapes."""
    waiting = put_one(session_of(app).store)
    try:
        app.jobs.cancel(waiting, reason=REFUSED[name])
    except InvalidInput:
        assert job(session_of(app).store, waiting).state is State.QUEUED
    else:
        assert job(session_of(app).store, waiting).state is State.CANCELLED
        assert history(session_of(app).store, waiting)[-1].meta["reason"]


# -- payloads inserted with SQL --------------------------------------------------------------------------------

DIGITS = "5,000 digits"
RAW = {
    "1e400": '{"value": 1e400}',
    "nul": '{"value": "a\\u0000b"}',
    "lone surrogate": '{"value": "a\\ud800b"}',
    DIGITS: '{"value": ' + "9" * 5_000 + "}",
    "900 deep": '{"value": ' + "[" * 900 + "]" * 900 + "}",
    "20,000 deep": '{"value": ' + "[" * 20_000 + "]" * 20_000 + "}",
    "two megabytes": json.dumps({"value": "x" * 2_000_000}),
    "no object": "[1, 2]",
    "nothing": "null",
    "other arguments": '{"volume": 1}',
    "the same key twice": '{"value": 1, "value": 2}',
}


def insert(store: Store, payload: str) -> list[str]:
    """Insert a job as another language would; returns its id, or nothing if the database refuses it."""
    with closing(open_by_hand(store.url)) as by_hand:
        before = {str(row[0]) for row in by_hand.execute("select id from job")}
        text = "insert into job (kind, tenant, max_attempts, payload) values ('echo', 'default', 1, :payload)"
        refusal = by_hand.refusal(text, {"payload": payload})
        new = {str(row[0]) for row in by_hand.execute("select id from job")} - before
    assert len(new) == (refusal is None)
    return list(new)


def test_inserted_payload_is_refused_or_its_job_ends(url: str) -> None:
    """The database refuses the payload, or the worker ends the job; the next job is not delayed."""
    with closing(App(url)) as app:
        app.migrate()

        @app.job(retry=ONCE)
        def echo(value: Any) -> Any:
            return value

        ids = {name: inserted[0] for name, text in RAW.items() if (inserted := insert(session_of(app).store, text))}
        behind = echo.enqueue("behind")
        work_off(app)
        assert behind.result(timeout=20) == "behind"
        snapshot = check(url, [*ids.values(), behind.id])
    ends = {name: snapshot.rows[job].state for name, job in ids.items()}
    print(ends)
    fine = {"the same key twice"} | ({"two megabytes"} & ends.keys())
    assert {name for name, end in ends.items() if end is State.SUCCEEDED} <= fine
    assert set(ends.values()) <= {State.SUCCEEDED, State.DEAD_LETTER}


def check_readable(app: App, *texts: str) -> None:
    """Check that a strange row does not break the list that contains it."""
    app.migrate()
    strange = [job for text in texts for job in insert(session_of(app).store, text)]
    good = put_one(session_of(app).store)
    assert {each.id for each in app.jobs.list()} == {good, *strange}
    for each in app.jobs.list():
        assert app.jobs.get(each.id) == each


def test_inserted_payloads_are_readable(url: str) -> None:
    with closing(App(url)) as app:
        check_readable(app, *(text for name, text in RAW.items() if name != DIGITS))


def test_number_of_5000_digits_is_readable(url: str) -> None:
    with closing(App(url)) as app:
        check_readable(app, RAW[DIGITS])
