"""Each block of the schedules guide runs on both stores and does what the text says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest

from holdfast import App
from tests.docs.guide_blocks import blocks, run
from tests.support.schedules import MONDAY, at, attend, made, set_time

pytestmark = pytest.mark.req("SC-8", "SC-9")


@pytest.fixture
def app(url: str) -> Iterator[App]:
    with closing(App(url, name="shop", enqueued_by="tester")) as app:
        yield app


def test_blocks_of_the_schedules_guide(app: App) -> None:
    declared, templates = blocks("schedules")
    own = 'app = holdfast.App("sqlite:///jobs.db", name="shop")\n'
    assert own in declared
    run(declared.replace(own, ""), app)
    set_time(app, MONDAY)  # 08:00 UTC is 09:00 in Paris: not in the future
    attend(app)
    run(templates, app)
    at(app, MONDAY + timedelta(minutes=15))
    often, first, version = made(app, "report")[-1], *made(app, "report")[:2]
    assert often.payload == {"scope": "quarter of an hour"}
    assert (first.payload, first.queue, first.max_attempts) == ({"scope": "month"}, "slow", 3)
    assert (version.payload, version.idempotency_key) == ({"scope": "March"}, "m-3")
    at(app, MONDAY + timedelta(days=1))
    assert sorted(job.enqueued_by for job in made(app, "report")[-2:]) == ["schedule often", "schedule report"]
    history = app.schedules.history("report")
    assert [fire.due_at for fire in history] == [MONDAY + timedelta(days=1)]
