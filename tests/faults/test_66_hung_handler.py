"""Fault 66: a handler never returns. Its worker lives and renews its lease, so nothing takes the job over; health lists
it within a minute."""

from __future__ import annotations

import threading

import pytest

from holdfast import App
from holdfast.app.internals import session_of
from tests.support.stores import forward
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("DP-19")


def test_hung_handler_is_visible_within_a_minute(app: App) -> None:
    hang = threading.Event()
    begun = threading.Event()

    @app.job()
    def export(hangs: bool = False) -> None:
        if hangs:
            begun.set()
            hang.wait(60)

    for _ in range(3):
        export.enqueue()
    work_off(app)
    with working(app, lease_ttl=3600.0):
        hung = export.enqueue(hangs=True)
        assert begun.wait(20)
        try:
            assert app.health.get().long_running == ()
            forward(session_of(app).store, 60.0)
            health = app.health.get()
            assert [(each.id, each.kind) for each in health.long_running] == [(hung.id, export.name)]
            assert "long_running" in {reason.code for reason in health.reasons}
        finally:
            hang.set()
        until(lambda: app.jobs.get(hung.id).state.finished, "the job ends")
    assert app.health.get().long_running == ()
