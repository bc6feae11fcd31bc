"""Child processes: they can be killed at any moment, and none outlives its worker, however the worker ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.app.internals import session_of
from holdfast.app.process_handlers import Process, process_caller, recipe_for
from holdfast.engine.job import Claim
from holdfast.engine.outcome import Failed, Snoozed, Succeeded
from holdfast.worker.processes import reaper
from holdfast.worker.processes.child import ChildDied
from holdfast.worker.processes.pool import Children
from holdfast.worker.processes.protocol import outcome_from_json, outcome_to_json, record_from_json, record_to_json
from tests.app.conftest import NewApp
from tests.app.processes import children_of, imported, marked, running, until_gone
from tests.app.worker_process import worker_process
from tests.support.stores import claim, open_lease
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads processes through /proc")


@pytest.fixture
def process_jobs(url: str, new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported("tests.app.process_jobs", url, monkeypatch)


@pytest.fixture
async def children() -> AsyncIterator[Children]:
    pool = Children(2)
    yield pool
    await pool.aclose()


def caller(process_jobs: ModuleType, children: Children, name: str) -> object:
    kind, client = getattr(process_jobs, name), session_of(process_jobs.app)
    return process_caller(kind, Process(), None, children, recipe_for(client, "holdfast", Process()))


def taken(process_jobs: ModuleType, name: str, *args: object) -> Claim:
    getattr(process_jobs, name).enqueue(*args)
    store = session_of(process_jobs.app).store
    (job,) = claim(store, open_lease(store))
    process_jobs.app.close()
    return job


@pytest.mark.req("CX-11", "JF-4")
@pytest.mark.parametrize("kind", ["waits", "holds_the_interpreter"])
async def test_cancelling_the_call_kills_the_child_and_its_descendants(
    process_jobs: ModuleType, children: Children, tmp_path: Path, kind: str
) -> None:
    job = await asyncio.to_thread(taken, process_jobs, kind, str(tmp_path / "marks"))
    call = caller(process_jobs, children, kind)
    running_call = asyncio.create_task(call(job))  # type: ignore[operator]
    pids = await asyncio.to_thread(marked, tmp_path / "marks")
    running_call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running_call
    assert not running(pids[0]), "the child had exited before the call returned"
    await asyncio.to_thread(until_gone, *pids)


@pytest.mark.req("CX-11")
async def test_cancelling_during_child_startup_leaves_no_process(process_jobs: ModuleType, children: Children) -> None:
    job = await asyncio.to_thread(taken, process_jobs, "where")
    call = asyncio.create_task(caller(process_jobs, children, "where")(job))  # type: ignore[operator]
    await asyncio.sleep(0)  # started, but it has not sent anything yet
    (child,) = children._all
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.to_thread(until_gone, child.pid)


@pytest.mark.slow
@pytest.mark.req("CX-15", "JF-4")
@pytest.mark.parametrize("kind", ["waits", "holds_the_interpreter"])
def test_killed_worker_leaves_no_process(process_jobs: ModuleType, url: str, tmp_path: Path, kind: str) -> None:
    getattr(process_jobs, kind).enqueue(str(tmp_path / "marks"))
    process_jobs.app.close()
    with worker_process("tests.app.process_jobs", url, tmp_path) as victim:
        child, grandchild = marked(tmp_path / "marks")
        family = children_of(victim.pid)
        assert child in family
        assert len(family) == 2, "the child and the reaper"
        victim.kill()
        victim.wait(timeout=10)
        until_gone(grandchild, *family)


@pytest.mark.slow
@pytest.mark.req("CX-15", "SC-14")
def test_forked_copy_of_a_killed_worker_keeps_no_child_alive(
    process_jobs: ModuleType, url: str, tmp_path: Path
) -> None:
    """A handler in the worker forked: the copy holds every open file of the worker and keeps running."""
    process_jobs.waits.enqueue(str(tmp_path / "marks"))
    with worker_process("tests.app.process_jobs", url, tmp_path) as victim:
        child, grandchild = marked(tmp_path / "marks")
        process_jobs.leaves_a_copy.enqueue(str(tmp_path / "copy"))
        process_jobs.app.close()
        (copy,) = marked(tmp_path / "copy", 1)
        family = set(children_of(victim.pid)) - {copy}
        try:
            victim.kill()
            victim.wait(timeout=10)
            until_gone(child, grandchild, *family)
            assert running(copy), "or the test proves nothing"
        finally:
            os.kill(copy, signal.SIGKILL)


@pytest.mark.req("CX-15")
def test_worker_that_ends_leaves_no_process(process_jobs: ModuleType, url: str, tmp_path: Path) -> None:
    handle = process_jobs.where.enqueue()
    with worker_process("tests.app.process_jobs", url, tmp_path) as worker:
        child, *_ = handle.result(timeout=30)
        family = children_of(worker.pid)
        assert child in family, "it is kept warm"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=20) == 0
    process_jobs.app.close()
    until_gone(*family)


@pytest.mark.slow
@pytest.mark.req("CX-15")
def test_child_dies_with_its_worker_even_without_the_reaper(process_jobs: ModuleType, url: str, tmp_path: Path) -> None:
    process_jobs.waits.enqueue(str(tmp_path / "marks"))
    process_jobs.app.close()
    with worker_process("tests.app.process_jobs", url, tmp_path) as victim:
        child, grandchild = marked(tmp_path / "marks")
        (reaper_pid,) = set(children_of(victim.pid)) - {child}
        os.kill(reaper_pid, signal.SIGKILL)
        until_gone(reaper_pid)
        victim.kill()
        victim.wait(timeout=10)
        until_gone(child)
    os.kill(grandchild, signal.SIGKILL)  # nothing kills it if the kernel ended the child first


@pytest.mark.slow
@pytest.mark.req("CX-15")
def test_killed_reaper_is_replaced(process_jobs: ModuleType, url: str, tmp_path: Path) -> None:
    process_jobs.waits.enqueue(str(tmp_path / "one"))
    with worker_process("tests.app.process_jobs", url, tmp_path) as victim:
        first = marked(tmp_path / "one")
        (reaper_pid,) = set(children_of(victim.pid)) - {first[0]}
        os.kill(reaper_pid, signal.SIGKILL)
        until_gone(reaper_pid)
        process_jobs.waits.enqueue(str(tmp_path / "two"))
        second = marked(tmp_path / "two")
        process_jobs.app.close()
        until(lambda: len(children_of(victim.pid)) == 3, "there is a reaper again")
        victim.kill()
        victim.wait(timeout=10)
        until_gone(*first, *second)


@pytest.mark.slow
@pytest.mark.req("CX-10")
async def test_idle_child_that_died_is_not_reused(process_jobs: ModuleType, children: Children) -> None:
    recipe = recipe_for(session_of(process_jobs.app), "holdfast", Process())
    child = await children.borrow(recipe)
    children.give_back(child, recycle=100)
    os.kill(child.pid, signal.SIGKILL)
    assert await child.gone(10.0)
    other = await children.borrow(recipe)
    assert other.pid != child.pid
    os.kill(other.pid, signal.SIGKILL)
    with pytest.raises(ChildDied, match=re.escape("killed by signal 9 (SIGKILL)")):
        await other.ask({"run": {}})
    children.drop(other)


@pytest.mark.slow
@pytest.mark.req("CX-10")
async def test_child_reaped_by_other_code_counts_as_gone(process_jobs: ModuleType, children: Children) -> None:
    """A handler calls ``os.wait``, or the program ignores SIGCHLD."""
    child = await children.borrow(recipe_for(session_of(process_jobs.app), "holdfast", Process()))
    stolen = asyncio.create_task(asyncio.to_thread(os.waitpid, child.pid, 0))
    os.kill(child.pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # the pool was first
        await stolen
    assert await child.gone(10.0)
    children.drop(child)


@pytest.mark.slow
@pytest.mark.req("CX-15")
async def test_stopped_reaper_does_not_block_closing(process_jobs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "TIMEOUT", 0.2)
    pool = Children(1)
    pool.give_back(await pool.borrow(recipe_for(session_of(process_jobs.app), "holdfast", Process())), recycle=100)
    pid = pool._reaper.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    await pool.aclose()
    assert not running(pid)


@pytest.mark.req("JF-7", "DP-21")
def test_claims_and_outcomes_round_trip_over_the_wire(process_jobs: ModuleType) -> None:
    job = taken(process_jobs, "echo", "ü\ud7ff")
    assert record_from_json(Claim, record_to_json(job)) == job
    for outcome in (Succeeded('"x"', {"a": 1}), Failed("c", "m", "t", 1.5, True), Snoozed(3.0, "why")):
        assert outcome_from_json(outcome_to_json(outcome)) == outcome
