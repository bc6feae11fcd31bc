"""Events in a kit: their jobs are drained with them, and a successful retry job resolves the first failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from holdfast import App, Backoff, Retry, State
from holdfast.testing import Kit

pytestmark = pytest.mark.req("HF-7", "DP-13", "SC-6")


@pytest.fixture
def app() -> Iterator[App]:
    with closing(App("sqlite:///:memory:", name="shop")) as app:
        yield app


def test_jobs_created_by_events_are_drained(app: App) -> None:
    @app.on("order.paid", payload={"order": "$.data.order"})
    @app.job()
    def pack(order: int) -> None: ...

    attempts: list[int] = []

    @app.on("job.succeeded", kind="pack")
    @app.job(queue="labels", retry=Retry(backoff=Backoff(base=0, cap=0)), retry_as="new_job")
    def label(event: dict[str, Any]) -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("jammed")
        return str(event["job_id"])

    with Kit(app) as kit:
        app.send_event("order.paid", {"order": 7})
        report = kit.drain()
        assert [job.kind for job in report.jobs] == ["pack", "label", "label"]
        assert [job.state for job in report.jobs] == [State.SUCCEEDED, State.FAILED, State.SUCCEEDED]
        assert report.failures == ()
        assert len(app.jobs.chain(report.jobs[1].id)) == 2
