"""A role without grants floods the channel that workers listen on: they stay as fast as before and do not spin."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.stores.postgres import listener
from holdfast.worker.claim_order import MAX_EMPTY_CLAIMS
from tests.support.postgres_roles import as_role, ensure_roles
from tests.support.waiting import until
from tests.support.workers import working

pytestmark = pytest.mark.req("JF-7", "CX-11")

OUTSIDER = "holdfast_outsider"
MESSAGES = 100_000


@pytest.fixture
def app(postgres_url: str) -> Iterator[App]:
    made = App(postgres_url)

    @made.job("ping")
    def ping() -> str:
        return "pong"

    made.migrate()
    with closing(made):
        yield made


@pytest.fixture
def outsider(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        ensure_roles(admin, OUTSIDER)
    with psycopg.connect(as_role(postgres_url, OUTSIDER), autocommit=True) as connection:
        yield connection


def flood(outsider: psycopg.Connection[Any], payload: str) -> None:
    """The server sends equal notifications of one transaction once, so constant payloads need a transaction each."""
    if " n" in payload or "(n" in payload:
        for start in range(0, MESSAGES, 1000):
            numbers = f"generate_series({start}, {start + 999}) n"
            outsider.execute(f"select pg_notify('holdfast', {payload}) from {numbers}".encode())
    else:
        outsider.execute(
            f"do $$ begin for i in 1 .. {MESSAGES} loop perform pg_notify('holdfast', {payload}); commit;"
            " end loop; end $$".encode()
        )


def notification(outsider: psycopg.Connection[Any], app: App) -> str:
    """The notification about the queue, which any role can receive and repeat."""
    outsider.execute("listen holdfast")
    app.enqueue("ping").result(timeout=30)
    (notice, *_) = outsider.notifies(timeout=10, stop_after=1)
    outsider.execute("unlisten holdfast")
    return notice.payload


@pytest.mark.slow
def test_notifications_after_empty_claims_are_deferred(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted instead of timed, unlike the test below, which a slow machine passes anyway."""
    monkeypatch.setattr("holdfast.worker.worker.NOTIFICATION_DELAY", 60.0)
    exchanges = 0
    exchange = session_of(app).store.leases.exchange

    def counted(*arguments: Any) -> Any:
        nonlocal exchanges
        exchanges += 1
        return exchange(*arguments)

    with working(app, poll=60.0) as beside:
        worker = beside.worker
        assert worker is not None
        until(lambda: worker._asleep, "it has claimed everything")
        monkeypatch.setattr(session_of(app).store.leases, "exchange", counted)
        for _ in range(2 * MAX_EMPTY_CLAIMS):
            before, end = exchanges, time.monotonic() + 0.3
            worker._on_notification("default")
            while exchanges == before and time.monotonic() < end:
                time.sleep(0.005)
    assert exchanges <= MAX_EMPTY_CLAIMS + 4  # two are under way at a time, and one ends the lease


@pytest.mark.slow
def test_many_empty_notifications_are_passed_on_as_one(
    app: App, outsider: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each makes every worker read the head of every queue."""
    monkeypatch.setattr(listener, "EVERYTHING_PAUSE", 60.0)
    received: list[str] = []
    stop = session_of(app).store.listen(received.append, lambda: ("default",), lambda: ("default",))
    until(lambda: "default" in received, "its queue is announced")
    received.clear()
    for _ in range(50):
        outsider.execute("select pg_notify('holdfast', '')")
        time.sleep(0.005)
    app.enqueue("ping")
    until(lambda: "default" in received, "it is notified of jobs all the same")
    stop()
    assert received.count("") <= 2


@pytest.mark.slow
@pytest.mark.parametrize("payload", ["anything", "nothing", "repeated notification", "not a hash"])
def test_notification_flood_does_not_slow_or_spin_workers(
    app: App, outsider: psycopg.Connection[Any], payload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchanges = 0
    exchange = session_of(app).store.leases.exchange

    def counted(*arguments: Any) -> Any:
        nonlocal exchanges
        exchanges += 1
        return exchange(*arguments)

    monkeypatch.setattr(session_of(app).store.leases, "exchange", counted)
    with working(app, poll=5.0):
        expression = {
            "anything": "md5(n::text)",
            "nothing": "''",
            "repeated notification": f"'{notification(outsider, app)}'",
            "not a hash": "repeat('ä', 1000) || n",
        }[payload]
        exchanges, began = 0, time.monotonic()
        flood(outsider, expression)
        assert app.enqueue("ping").result(timeout=30) == "pong", "the job runs despite the flood"
        took = time.monotonic() - began
    # Notifications without a job are delayed by 20 ms; two claims may be in flight, and the first twenty are free.
    assert exchanges <= 40 + 2 * took / 0.02
    if payload in ("anything", "not a hash"):
        assert exchanges <= 10 + took, "unknown names cause no query"
