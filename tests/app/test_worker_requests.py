"""`app.workers`: a real worker reads an operator's request to end with its heartbeat (JF-16)."""

from __future__ import annotations

import threading

import pytest

from holdfast import App, State
from holdfast.errors import NotFound
from tests.support.waiting import until
from tests.support.workers import working

pytestmark = pytest.mark.req("JF-16")


@pytest.mark.parametrize("mode", ["drain", "stop"])
def test_worker_requested_to_end_finishes_its_job_and_exits(app: App, mode: str) -> None:
    started, release = threading.Event(), threading.Event()

    @app.job
    def hold() -> str:
        started.set()
        assert release.wait(30)
        return "done"

    first, second = hold.enqueue(), None
    with working(app, beat=0.5, concurrency=1) as background:
        assert started.wait(30)
        (worker,) = app.workers.list()
        getattr(app.workers, mode)(worker.holder)
        second = hold.enqueue()
        until(lambda: background.worker is not None and background.worker._stopping, "the worker has read the request")
        release.set()
        until(lambda: not background.alive, "the worker has exited")
    assert first.state() is State.SUCCEEDED
    assert second.state() is State.QUEUED, "the worker claimed no more jobs"
    assert app.workers.list() == []
    with pytest.raises(NotFound):
        app.workers.drain(worker.holder)
