"""The programs of the guides for users of Celery and Procrastinate do what their comments say."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from holdfast import State
from tests.docs.guide_blocks import blocks, finish
from tests.support.workers import work_off

pytestmark = pytest.mark.req("HF-5", "JF-6")


@pytest.fixture
def url(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HOLDFAST_URL", url)
    return url


def program(page: str) -> dict[str, Any]:
    """The names of the program after it has run as a script."""
    (block,) = blocks(page)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(block, page, "exec"), names)
    return names


def test_program_of_the_celery_guide(url: str) -> None:
    names = program("from-celery")
    with closing(names["app"]) as app:
        assert finish(app, names["run"][names["book"]]) == "Spring: 1.webp, 2.webp, 3.webp"
        assert names["one"].result(timeout=5) == "7.webp"
        assert names["late"].get().due_at is not None
        assert names["late"].get().priority == 5
        assert [each.name for each in app.schedules.list()] == ["tidy"]
        assert [each.name for each in app.subscriptions.list()] == ["tell on job.dead_letter"]
        attempts = {job.payload["picture"]: job.attempt for job in app.jobs.list(kind="convert", state="succeeded")}
        assert attempts == {1: 1, 2: 2, 3: 1, 7: 1}


def test_program_of_the_procrastinate_guide(url: str) -> None:
    names = program("from-procrastinate")
    with closing(names["app"]) as app:
        first, again = names["first"], names["again"]
        assert (first.created, again.created, first.id) == (True, False, again.id)
        work_off(app, queues=("mail", "default"))
        assert names["one"].result(timeout=5) == "hello Ada"
        assert (names["locked"].result(timeout=5), first.result(timeout=5)) == (7, 8)
        assert [handle.result(timeout=5) for handle in names["batch"]] == ["hello Cy", "hello Di"]
        assert names["late"].state() == State.QUEUED
        assert [each.name for each in app.schedules.list()] == ["tidy"]
        assert app.limits.list()[0].concurrency == 1
