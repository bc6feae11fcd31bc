"""The children themselves: they can be killed at any moment, and none outlives its worker, however that ends."""

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

from holdfast.app.process_handlers import Process, process_caller, recipe_for
from holdfast.engine.job import Claim
from holdfast.engine.outcome import Failed, Snoozed, Succeeded
from holdfast.worker.processes import reaper
from holdfast.worker.processes.child import ChildDied
from holdfast.worker.processes.pool import Children
from holdfast.worker.processes.protocol import outcome_from_json, outcome_to_json, record_from_json, record_to_json
from tests.app.conftest import NewApp
from tests.app.proc import children_of, imported, marked, running, until_gone
from tests.app.worker_process import worker_process
from tests.support.stores import claim, open_lease
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")


@pytest.fixture
def labour(url: str, new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported("tests.app.labour", url, monkeypatch)


@pytest.fixture
async def children() -> AsyncIterator[Children]:
    pool = Children(2)
    yield pool
    await pool.aclose()


def caller(labour: ModuleType, children: Children, name: str) -> object:
    kind, client = getattr(labour, name), labour.app._session
    return process_caller(kind, Process(), None, children, recipe_for(client, "holdfast", Process()))


def taken(labour: ModuleType, name: str, *args: object) -> Claim:
    getattr(labour, name).enqueue(*args)
    store = labour.app._store
    (found,) = claim(store, open_lease(store))
    labour.app.close()
    return found


@pytest.mark.req("CX-11", "JF-4")
@pytest.mark.parametrize("kind", ["waits", "holds_the_interpreter"])
async def test_cancelling_the_call_kills_the_child_and_what_it_started(
    labour: ModuleType, children: Children, tmp_path: Path, kind: str
) -> None:
    job = await asyncio.to_thread(taken, labour, kind, str(tmp_path / "marks"))
    call = caller(labour, children, kind)
    running_call = asyncio.create_task(call(job))  # type: ignore[operator]
    pids = await asyncio.to_thread(marked, tmp_path / "marks")
    running_call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running_call
    assert not running(pids[0]), "it was gone before the call came back"
    await asyncio.to_thread(until_gone, *pids)


@pytest.mark.req("CX-11")
async def test_cancelling_while_a_child_starts_leaves_none(labour: ModuleType, children: Children) -> None:
    job = await asyncio.to_thread(taken, labour, "where")
    call = asyncio.create_task(caller(labour, children, "where")(job))  # type: ignore[operator]
    await asyncio.sleep(0)  # it has been started, and has not said a word yet
    (child,) = children._all
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.to_thread(until_gone, child.pid)


@pytest.mark.slow
@pytest.mark.req("CX-15", "JF-4")
@pytest.mark.parametrize("kind", ["waits", "holds_the_interpreter"])
def test_a_killed_worker_leaves_no_process(labour: ModuleType, url: str, tmp_path: Path, kind: str) -> None:
    getattr(labour, kind).enqueue(str(tmp_path / "marks"))
    labour.app.close()
    with worker_process("tests.app.labour", url, tmp_path) as victim:
        child, grandchild = marked(tmp_path / "marks")
        family = children_of(victim.pid)
        assert child in family
        assert len(family) == 2, "the child and the keeper"
        victim.kill()
        victim.wait(timeout=10)
        until_gone(grandchild, *family)


@pytest.mark.slow
@pytest.mark.req("CX-15", "SC-14")
def test_a_copy_of_a_killed_worker_keeps_nothing_alive(labour: ModuleType, url: str, tmp_path: Path) -> None:
    """A handler in the worker has forked: the copy has every file of the worker, and lives on."""
    labour.waits.enqueue(str(tmp_path / "marks"))
    with worker_process("tests.app.labour", url, tmp_path) as victim:
        child, grandchild = marked(tmp_path / "marks")
        labour.leaves_a_copy.enqueue(str(tmp_path / "copy"))
        labour.app.close()
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
def test_a_worker_that_ends_leaves_no_process(labour: ModuleType, url: str, tmp_path: Path) -> None:
    handle = labour.where.enqueue()
    with worker_process("tests.app.labour", url, tmp_path) as worker:
        child, *_ = handle.result(timeout=30)
        family = children_of(worker.pid)
        assert child in family, "it is kept warm"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=20) == 0
    labour.app.close()
    until_gone(*family)


@pytest.mark.slow
@pytest.mark.req("CX-15")
def test_without_its_keeper_a_child_still_dies_with_its_worker(labour: ModuleType, url: str, tmp_path: Path) -> None:
    labour.waits.enqueue(str(tmp_path / "marks"))
    labour.app.close()
    with worker_process("tests.app.labour", url, tmp_path) as victim:
        child, grandchild = marked(tmp_path / "marks")
        (keeper,) = set(children_of(victim.pid)) - {child}
        os.kill(keeper, signal.SIGKILL)
        until_gone(keeper)
        victim.kill()
        victim.wait(timeout=10)
        until_gone(child)
    os.kill(grandchild, signal.SIGKILL)  # nobody was left to see to it, if the kernel was the first


@pytest.mark.slow
@pytest.mark.req("CX-15")
def test_a_keeper_that_was_killed_is_replaced(labour: ModuleType, url: str, tmp_path: Path) -> None:
    labour.waits.enqueue(str(tmp_path / "one"))
    with worker_process("tests.app.labour", url, tmp_path) as victim:
        first = marked(tmp_path / "one")
        (keeper,) = set(children_of(victim.pid)) - {first[0]}
        os.kill(keeper, signal.SIGKILL)
        until_gone(keeper)
        labour.waits.enqueue(str(tmp_path / "two"))
        second = marked(tmp_path / "two")
        labour.app.close()
        until(lambda: len(children_of(victim.pid)) == 3, "there is a keeper again")
        victim.kill()
        victim.wait(timeout=10)
        until_gone(*first, *second)


@pytest.mark.slow
@pytest.mark.req("CX-10")
async def test_a_child_that_dies_idle_is_not_used_again(labour: ModuleType, children: Children) -> None:
    recipe = recipe_for(labour.app._session, "holdfast", Process())
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
async def test_a_child_that_somebody_else_has_waited_for_is_gone(labour: ModuleType, children: Children) -> None:
    """A handler that calls ``os.wait``, or a program that ignores SIGCHLD."""
    child = await children.borrow(recipe_for(labour.app._session, "holdfast", Process()))
    stolen = asyncio.create_task(asyncio.to_thread(os.waitpid, child.pid, 0))
    os.kill(child.pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # we were the first
        await stolen
    assert await child.gone(10.0)
    children.drop(child)


@pytest.mark.slow
@pytest.mark.req("CX-15")
async def test_a_keeper_that_is_stopped_keeps_nobody(labour: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "PATIENCE", 0.2)
    pool = Children(1)
    pool.give_back(await pool.borrow(recipe_for(labour.app._session, "holdfast", Process())), recycle=100)
    pid = pool._reaper.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    await pool.aclose()
    assert not running(pid)


@pytest.mark.req("JF-7", "DP-21")
def test_claims_and_outcomes_go_over_the_wire_and_back(labour: ModuleType) -> None:
    job = taken(labour, "echo", "ü\ud7ff")
    assert record_from_json(Claim, record_to_json(job)) == job
    for outcome in (Succeeded('"x"', {"a": 1}), Failed("c", "m", "t", 1.5, True), Snoozed(3.0, "why")):
        assert outcome_from_json(outcome_to_json(outcome)) == outcome
