"""The server goes away in the middle: the worker comes back by itself and settles what it has finished."""

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
    """On a connection of its own, so that no pool of ours has to recover first."""
    try:
        with psycopg.connect(url, connect_timeout=2) as connection:
            connection.execute("select set_config('holdfast.tenant', '*', false)")
            row = connection.execute("select state::text, attempt from holdfast.job_state where id = %s", (job_id,))
            return row.fetchone()
    except psycopg.OperationalError:
        return None


# A busy worker meets the outage with a claim or a duty; one without a free slot meets it with the settlement itself.
BUSY: dict[str, Any] = {"lease_ttl": 60.0, "sweep_every": 0.3}
FULL: dict[str, Any] = {"lease_ttl": 60.0, "sweep_every": 1000.0, "promote_every": 1000.0, "concurrency": 1}


@pytest.mark.parametrize("options", [BUSY, FULL], ids=["busy", "full"])
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_in_the_middle_of_a_job(
    own_server: PostgresServer, own_url: str, mode: Any, options: dict[str, Any]
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    with closing(App(own_url)) as app, closing(App(own_url)) as elsewhere:

        @elsewhere.job()
        def slow() -> str:
            begun.set()
            assert go_on.wait(60)
            return "done"

        handle = app.enqueue("slow")
        waiting = app.enqueue("slow", queue="later")
        with working(elsewhere, **options) as beside:
            assert begun.wait(20)
            own_server.restart(mode)
            go_on.set()
            until(lambda: state_of(own_url, handle.id) == ("succeeded", 1), "settled by itself", limit=60)
            assert beside.alive
        assert state_of(own_url, waiting.id) == ("queued", 0)


def test_an_outage_while_a_job_ends(own_server: PostgresServer, own_url: str) -> None:
    """The handler returns while there is no server: its result is kept until there is one again."""
    begun, go_on, returned = threading.Event(), threading.Event(), threading.Event()
    with closing(App(own_url)) as app, closing(App(own_url)) as elsewhere:

        @elsewhere.job()
        def slow() -> str:
            begun.set()
            assert go_on.wait(60)
            returned.set()
            return "done"

        handle = app.enqueue("slow")
        with working(elsewhere, **FULL):
            assert begun.wait(20)
            own_server.stop("fast")
            try:
                go_on.set()
                assert returned.wait(20)
                with pytest.raises(StoreError), closing(open_store(own_url)) as opened:
                    opened.schema()
            finally:
                own_server.start()
            until(lambda: state_of(own_url, handle.id) == ("succeeded", 1), "settled by itself", limit=60)
        assert handle.get().state is State.SUCCEEDED
        assert handle.result(timeout=30) == "done"


def test_a_worker_that_is_asked_to_stop_does_not_wait_for_a_server_that_is_away(
    own_server: PostgresServer,
    own_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its duties would have waited one after another, for minutes, for connections that nobody gives them."""
    monkeypatch.setattr(shutdown, "LAST_WRITES", 0.5)
    monkeypatch.setattr(store, "CONNECT_WITHIN", 600.0)
    begun = threading.Event()
    with closing(App(own_url, answer_within=600.0)) as app, closing(App(own_url, answer_within=600.0)) as elsewhere:

        @elsewhere.job()
        async def slow() -> None:
            begun.set()
            await asyncio.sleep(60)

        app.enqueue("slow")
        options = {"lease_ttl": 60.0, "promote_every": 0.02, "concurrency": 1, "grace": 0.1}
        with working(elsewhere, **options) as beside:
            assert begun.wait(20)
            own_server.stop("fast")
            until(lambda: "Database unavailable" in caplog.text, "its duties have met the outage")
            beside.ask_to_stop()
            until(lambda: not beside.alive, "it has left", limit=25)
        # A beat would keep the lease, and whatever was run under it, when the server is back.
        until(lambda: "holdfast-heartbeat" not in {each.name for each in threading.enumerate()}, "its heart is still")
        own_server.start()
