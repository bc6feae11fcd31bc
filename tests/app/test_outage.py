"""The server stops while jobs run: the worker recovers and settles what it finished."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from typing import Any

import psycopg
import pytest

from holdfast import App, State
from holdfast.errors import StoreError
from holdfast.features.assembly import open_store
from holdfast.stores.postgres import store
from holdfast.worker import shutdown
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import until
from tests.support.workers import working

pytestmark = [pytest.mark.req("CX-15", "SC-19"), pytest.mark.slow]


def state_of(url: str, job_id: str) -> Any:
    """Read with a separate connection, so that no pool of the app has to recover first."""
    try:
        with psycopg.connect(url, connect_timeout=2) as connection:
            connection.execute("select set_config('holdfast.tenant', '*', false)")
            row = connection.execute("select state::text, attempt from holdfast.job_state where id = %s", (job_id,))
            return row.fetchone()
    except psycopg.OperationalError:
        return None


# A busy worker meets the outage with a claim or maintenance; one without a free slot with the settlement itself.
BUSY: dict[str, Any] = {"lease_ttl": 60.0, "sweep_every": 0.3}
FULL: dict[str, Any] = {"lease_ttl": 60.0, "sweep_every": 1000.0, "promote_every": 1000.0, "concurrency": 1}


@pytest.mark.parametrize("options", [BUSY, FULL], ids=["busy", "full"])
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_restart_while_a_job_runs(own_server: PostgresServer, own_url: str, mode: Any, options: dict[str, Any]) -> None:
    started, release = threading.Event(), threading.Event()
    with closing(App(own_url)) as app, closing(App(own_url)) as worker_app:

        @worker_app.job()
        def slow() -> str:
            started.set()
            assert release.wait(60)
            return "done"

        handle = app.enqueue("slow")
        waiting = app.enqueue("slow", queue="later")
        with working(worker_app, **options) as background:
            assert started.wait(20)
            own_server.restart(mode)
            release.set()
            until(lambda: state_of(own_url, handle.id) == ("succeeded", 1), "the result is settled", limit=60)
            assert background.alive
        assert state_of(own_url, waiting.id) == ("queued", 0)


def test_outage_while_a_job_ends(own_server: PostgresServer, own_url: str) -> None:
    """The handler returns while the server is down: its result is kept until the server returns."""
    started, release, returned = threading.Event(), threading.Event(), threading.Event()
    with closing(App(own_url)) as app, closing(App(own_url)) as worker_app:

        @worker_app.job()
        def slow() -> str:
            started.set()
            assert release.wait(60)
            returned.set()
            return "done"

        handle = app.enqueue("slow")
        with working(worker_app, **FULL):
            assert started.wait(20)
            own_server.stop("fast")
            try:
                release.set()
                assert returned.wait(20)
                with pytest.raises(StoreError), closing(open_store(own_url)) as opened:
                    opened.schema()
            finally:
                own_server.start()
            until(lambda: state_of(own_url, handle.id) == ("succeeded", 1), "the result is settled", limit=60)
        assert handle.get().state is State.SUCCEEDED
        assert handle.result(timeout=30) == "done"


def test_stopping_worker_does_not_wait_for_an_unreachable_server(
    own_server: PostgresServer,
    own_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its maintenance tasks would have waited for connections one after another, for minutes."""
    monkeypatch.setattr(shutdown, "LAST_WRITES", 0.5)
    monkeypatch.setattr(store, "CONNECT_WITHIN", 600.0)
    started = threading.Event()
    with closing(App(own_url, answer_within=600.0)) as app, closing(App(own_url, answer_within=600.0)) as worker_app:

        @worker_app.job()
        async def slow() -> None:
            started.set()
            await asyncio.sleep(60)

        app.enqueue("slow")
        options = {"lease_ttl": 60.0, "promote_every": 0.02, "concurrency": 1, "grace": 0.1}
        with working(worker_app, **options) as background:
            assert started.wait(20)
            own_server.stop("fast")
            until(lambda: "Database unavailable" in caplog.text, "maintenance has met the outage")
            background.ask_to_stop()
            until(lambda: not background.alive, "the worker has exited", limit=25)
        # A heartbeat would renew the lease, and the jobs under it, when the server returns.
        until(
            lambda: "holdfast-heartbeat" not in {each.name for each in threading.enumerate()},
            "the heartbeat has stopped",
        )
        own_server.start()
