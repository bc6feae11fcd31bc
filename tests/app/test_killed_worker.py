"""Worker processes killed with SIGKILL while they work: others finish their jobs, and no job ends twice (CX-15)."""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from holdfast import App, Retry, State
from holdfast.app.internals import session_of
from tests.app.worker_process import worker_process
from tests.support.waiting import until

worker = partial(worker_process, "tests.app.killable_jobs", lease=1.0)
rescuer = partial(worker, lease=30.0)  # its own lease must not expire, however busy the machine is


def starts(folder: Path) -> list[tuple[int, int, int]]:
    """(pid, number, attempt) of every start, as recorded by the handlers."""
    marks = folder / "begun"
    if not marks.exists():
        return []
    rows = []
    for line in marks.read_text().splitlines():
        pid, number, attempt = line.split()
        rows.append((int(pid), int(number), int(attempt)))
    return rows


@pytest.mark.req("CX-15", "SC-4", "DP-8", "CX-10")
def test_jobs_of_a_killed_worker_are_finished_by_another(app: App, url: str, tmp_path: Path) -> None:
    session_of(app).make_ready()
    held = [app.enqueue("hold", {"number": n}) for n in range(4)]
    with ExitStack() as stack:
        victim = stack.enter_context(worker(url, tmp_path))
        until(lambda: len(starts(tmp_path)) == 4, "all slots of the first worker are in use")
        others = app.enqueue_many([app.prepare("quick", {"number": n}) for n in range(20)])
        victim.kill()
        victim.wait(timeout=10)
        (tmp_path / "go").touch()
        assert [handle.state() for handle in held] == [State.IN_PROGRESS] * 4  # no worker has noticed yet
        stack.enter_context(rescuer(url, tmp_path))
        assert [handle.result(timeout=30) for handle in held] == [0, 1, 2, 3]
        assert [handle.result(timeout=30) for handle in others] == list(range(20))
    for handle in held:
        job = handle.get()
        assert (job.state, job.attempt, job.crashes, job.retries) == (State.SUCCEEDED, 2, 1, 0)
        event_types = [event.type for event in handle.history()]
        assert event_types == ["enqueue", "take", "lease_expired", "retry", "due", "take", "succeed"]
    marks = starts(tmp_path)
    assert Counter(pid for pid, _, _ in marks)[victim.pid] == 4
    assert Counter(number for _, number, _ in marks) == Counter(dict.fromkeys(range(4), 2))
    assert all(handle.get().attempt == 1 for handle in others)


@pytest.mark.slow
@pytest.mark.req("CX-15", "CX-10")
def test_no_job_is_lost_when_every_worker_is_killed(app: App, url: str, tmp_path: Path) -> None:
    session_of(app).make_ready()
    handles = [app.enqueue("hold", {"number": n}) for n in range(6)]  # more than the slots of one worker
    with worker(url, tmp_path) as one, worker(url, tmp_path) as two:
        until(lambda: len(starts(tmp_path)) == 6, "both workers run jobs")
        for process in (one, two):
            process.kill()
            process.wait(timeout=10)
    assert {handle.state() for handle in handles} == {State.IN_PROGRESS}
    (tmp_path / "go").touch()
    with rescuer(url, tmp_path):
        assert [handle.result(timeout=30) for handle in handles] == list(range(6))
    assert all([event.type for event in handle.history()].count("succeed") == 1 for handle in handles)


@pytest.mark.slow
@pytest.mark.req("CX-10", "CX-15")
def test_job_that_kills_its_worker_every_time_is_dead_lettered(app: App, url: str, tmp_path: Path) -> None:
    session_of(app).make_ready()
    handle = app.enqueue("poison", retry=Retry(max_attempts=5, max_crashes=1))
    for attempt in (1, 2):
        with worker(url, tmp_path) as victim:
            victim.wait(timeout=30)
        assert (victim.returncode, handle.get().attempt) == (-signal.SIGKILL, attempt)
    with rescuer(url, tmp_path):
        job = handle.wait(timeout=30)
        assert app.enqueue("quick", {"number": 1}).result(timeout=30) == 1
    assert (job.state, job.attempt, job.crashes, job.retries) == (State.DEAD_LETTER, 2, 2, 0)
    assert job.error_code == "worker_lost"
