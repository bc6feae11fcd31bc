"""The hooks for structlog and Sentry, with their current releases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import sentry_sdk
import structlog
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from holdfast import App, Retry
from holdfast.integrations.sentry import sentry_context
from holdfast.integrations.structlog import log_context
from tests.support.workers import work_off

pytestmark = pytest.mark.req("HF-13")


@pytest.fixture
def app(sqlite_url: str) -> Iterator[App]:
    with closing(App(sqlite_url, name="tests")) as app:
        yield app


def test_structlog_context_names_the_job(app: App) -> None:
    seen: list[dict[str, Any]] = []
    app.hooks.include(log_context())

    def sync_one() -> None:
        seen.append(structlog.contextvars.get_contextvars())

    async def async_one() -> None:
        sync_one()

    handles = [app.job(each).using(correlation_id="r-1").enqueue() for each in (sync_one, async_one)]
    work_off(app, concurrency=1)
    assert [each["job_id"] for each in seen] == [handle.id for handle in handles]
    assert seen[0] | {"job_id": ""} == {
        "job_id": "",
        "kind": "sync_one",
        "attempt": 1,
        "tenant": "default",
        "correlation_id": "r-1",
    }


class MemoryTransport(Transport):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        event: Any = envelope.get_event()
        self.events.append(event)


def test_sentry_events_name_the_job(app: App) -> None:
    transport = MemoryTransport()
    app.hooks.include(sentry_context())

    @app.job(retry=Retry(max_attempts=1))
    def fails() -> None:
        raise ValueError("no")

    with sentry_sdk.isolation_scope() as scope:
        client = sentry_sdk.Client("http://key@127.0.0.1/1", transport=transport, default_integrations=False)
        scope.set_client(client)
        handle = fails.enqueue()
        work_off(app)
        client.close()
    (event,) = transport.events
    assert event["exception"]["values"][0]["type"] == "ValueError"
    assert (event["tags"]["job_id"], event["transaction"]) == (handle.id, "fails")
