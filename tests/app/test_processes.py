"""Handlers in processes of their own: how they run, fail, are killed, and what that costs whom."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast import App, Backoff, Process, Retry, State, Trace, trace_from
from holdfast.app import process_handlers
from holdfast.errors import InvalidSetting
from tests.app.conftest import NewApp
from tests.app.proc import children_of, imported, marked, running, until_gone
from tests.support.workers import work_off, working

ONCE = Retry(max_attempts=1)
AT_ONCE = Backoff(base=0.0, jitter=False)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")


@pytest.fixture
def labour(url: str, new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    module = imported("tests.app.labour", url, monkeypatch)
    before = set(children_of(os.getpid()))
    yield module
    module.app.close()
    until_gone(*set(children_of(os.getpid())) - before)  # with the worker went all it had started


def attempt(app: App, job_id: str, number: int = 0) -> Any:
    return app._session.run(app._session.store.jobs.attempts(job_id, "default"))[number]


@pytest.mark.slow
@pytest.mark.req("JF-7")
def test_a_handler_runs_in_a_warm_child_of_its_own_session(labour: ModuleType) -> None:
    handles = [labour.where.enqueue() for _ in range(3)]
    work_off(labour.app, concurrency=1)
    found = [handle.result() for handle in handles]
    pid, group, session, parent = found[0]
    assert pid == group == session != os.getpid()
    assert parent == os.getpid()
    assert found == [found[0]] * 3, "one child served all three"


@pytest.mark.slow
@pytest.mark.req("JF-13")
def test_a_trace_goes_with_the_job_into_the_child(labour: ModuleType) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with trace_from(parent):
        handle = labour.traced.enqueue()
    plain = labour.traced.enqueue()
    work_off(labour.app, concurrency=1)
    assert (handle.result(), plain.result()) == ({"traceparent": parent}, Trace.of_job(plain.id, ()).headers())


@pytest.mark.slow
@pytest.mark.req("JF-7")
def test_children_are_recycled(labour: ModuleType) -> None:
    handles = [labour.seldom.enqueue() for _ in range(5)]
    work_off(labour.app, concurrency=1)
    one, two, three, four, five = (handle.result() for handle in handles)
    assert one == two != three == four != five


@pytest.mark.slow
@pytest.mark.req("JF-7")
def test_no_more_children_than_slots_and_the_idle_make_room(labour: ModuleType) -> None:
    """`nice` and `where` need different children; with one slot there is only one at a time."""
    handles = [labour.where.enqueue(), labour.nice.enqueue(), labour.where.enqueue()]
    work_off(labour.app, concurrency=1)
    first, niceness, second = (handle.result() for handle in handles)
    assert niceness - os.nice(0) == 5
    assert first[0] != second[0], "the first one had to go"


@pytest.mark.slow
@pytest.mark.req("JF-7", "DP-21")
def test_a_hostile_payload_comes_back_as_it_was(labour: ModuleType) -> None:
    values = [
        {"$.__class__": "os.system", "x": ["'; rm -rf /", "\u2028\r\n\x7f", "é😀", 10**400, 0.1, None, True]},
        "\\u0000 is harmless",
        "x" * 900_000,
        {"__proto__": {"a": [[[[[]]]]]}, "end": True, "run": {}},
    ]
    handles = [labour.echo.enqueue(value) for value in values]
    work_off(labour.app, concurrency=1)
    for handle, value in zip(handles, values, strict=True):
        assert handle.result() == {"value": value, "kind": "echo", "attempt": 1}


@pytest.mark.slow
@pytest.mark.req("JF-7", "CX-8", "DP-10")
def test_the_context_works_in_a_child(labour: ModuleType) -> None:
    with working(labour.app):
        handle = labour.keeps.using(retry=Retry(max_attempts=2, backoff=AT_ONCE)).enqueue()
        seen, child_id = handle.result(timeout=30)
    assert seen == 1
    child = labour.app.jobs.get(child_id)
    assert (child.parent_id, child.enqueued_by) == (handle.id, f"job {handle.id}")


@pytest.mark.slow
@pytest.mark.req("JF-7", "DP-22", "SC-5")
def test_an_error_comes_back_with_all_that_is_known_of_it(
    labour: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    handle = labour.raises.using(retry=ONCE).enqueue("no such\nthing")
    work_off(labour.app)
    job = handle.get()
    assert (job.state, job.error_code, job.error_message) == (State.DEAD_LETTER, "LookupError", "no such\nthing")
    ended = attempt(labour.app, handle.id)
    assert (ended.outcome, job.crashes) == ("failed", 0)
    assert "in raises" in ended.traceback
    assert "labour.py" in ended.traceback
    out, err = capfd.readouterr()
    assert "to stdout" in out
    assert "in the log" in err


@pytest.mark.slow
@pytest.mark.req("JF-7")
def test_a_handler_that_exits_politely_has_failed(labour: ModuleType) -> None:
    handle = labour.leaves.using(retry=ONCE).enqueue(3)
    after = labour.where.enqueue()
    work_off(labour.app, concurrency=1)
    assert (handle.get().error_code, handle.get().crashes) == ("SystemExit", 0)
    assert after.result()[0]


@pytest.mark.slow
@pytest.mark.req("CX-9", "CX-11")
@pytest.mark.parametrize(
    ("what", "state", "code"),
    [
        ("retry", State.RETRY_WAITING, "retry_asked"),
        ("retry by its own rule", State.RETRY_WAITING, "retry_asked"),
        ("reject", State.DEAD_LETTER, "bad_invoice"),
        ("cancel", State.CANCELLED, None),
        ("give up", State.DEAD_LETTER, "LookupError"),
    ],
)
def test_what_a_handler_says_by_raising_comes_through(
    labour: ModuleType, what: str, state: State, code: str | None
) -> None:
    handle = labour.says.enqueue(what)
    work_off(labour.app)
    job = handle.get()
    assert (job.state, attempt(labour.app, handle.id).error_code) == (state, code)
    if state is State.RETRY_WAITING:
        waits = job.due_at - attempt(labour.app, handle.id).ended_at
        assert round(waits.total_seconds(), -1) == (3600 if what == "retry" else 7200)


@pytest.mark.slow
@pytest.mark.req("CX-9", "DP-10")
def test_it_may_put_its_job_off_and_have_children(labour: ModuleType) -> None:
    handle = labour.puts_off.enqueue()
    work_off(labour.app)
    assert [event.type for event in handle.history()] == ["enqueue", "take", "snooze"]
    (child,) = labour.app.jobs.list(parent_id=handle.id)
    assert (child.kind, child.state) == ("in_here", State.SUCCEEDED)


@pytest.mark.slow
@pytest.mark.req("HF-3")
def test_it_may_complete_in_a_transaction_of_its_own(labour: ModuleType) -> None:
    handle = labour.completes.enqueue()
    work_off(labour.app)
    assert [event.type for event in handle.history()] == ["enqueue", "take", "succeed"]
    assert handle.state() is State.SUCCEEDED


@pytest.mark.slow
@pytest.mark.req("DP-22")
def test_what_the_worker_knows_to_be_secret_is_not_told_by_a_child(labour: ModuleType) -> None:
    labour.app.redact("canary-of-the-worker")
    handle = labour.says.using(retry=ONCE).enqueue("tell")
    work_off(labour.app)
    assert handle.get().error_message is not None
    assert "canary" not in str(handle.get())
    assert "canary" not in str(handle.history())


@pytest.mark.req("JF-4", "SC-5")
def test_a_timeout_kills_for_real(labour: ModuleType, tmp_path: Path) -> None:
    before = labour.where.enqueue()  # its process is there by then: to start one may take longer than the time limit
    handle = labour.hangs.using(retry=ONCE).enqueue(str(tmp_path / "marks"))
    after = labour.where.enqueue()
    work_off(labour.app, concurrency=1)
    job = handle.get()
    assert (job.state, job.error_code, job.retries, job.crashes) == (State.DEAD_LETTER, "timeout", 0, 0)
    child, grandchild = marked(tmp_path / "marks")
    assert before.result()[0] == child != after.result()[0]
    until_gone(child, grandchild)


@pytest.mark.req("CX-11")
def test_cancelling_a_running_job_kills_it(labour: ModuleType, tmp_path: Path) -> None:
    with working(labour.app, concurrency=1):
        handle = labour.waits.enqueue(str(tmp_path / "marks"))
        pids = marked(tmp_path / "marks")
        handle.cancel("not wanted any more")
        until_gone(*pids)
        assert labour.where.enqueue().result(timeout=30), "its slot is free"
    assert (handle.state(), attempt(labour.app, handle.id).outcome) == (State.CANCELLED, "cancelled")


@pytest.mark.slow
@pytest.mark.req("CX-11", "SC-13")
def test_what_a_stopping_worker_hands_back_is_killed(labour: ModuleType, tmp_path: Path) -> None:
    with working(labour.app, grace=0.0) as beside:
        handle = labour.waits.enqueue(str(tmp_path / "marks"))
        child, grandchild = marked(tmp_path / "marks")
        assert running(grandchild)
        beside.ask_to_stop()
    until_gone(child, grandchild)
    job = handle.get()
    assert job.state in (State.RETRY_WAITING, State.QUEUED)  # the worker's promoter may have been quicker than its end
    assert (job.retries, job.crashes) == (0, 0)


@pytest.mark.slow
@pytest.mark.req("CX-10")
def test_the_memory_limit_is_a_failure_with_a_name(labour: ModuleType) -> None:
    within, beyond = labour.swells.enqueue(1_000_000), labour.swells.using(retry=ONCE).enqueue(1 << 30)
    after = labour.swells.enqueue(1_000_000)
    work_off(labour.app, concurrency=1)
    assert (within.result(), after.result()) == (1_000_000, 1_000_000)
    job = beyond.get()
    assert (job.state, job.error_code, job.crashes) == (State.DEAD_LETTER, "memory_limit", 0)
    assert "192 MB" in (job.error_message or "")
    assert "MemoryError" in attempt(labour.app, beyond.id).traceback


@pytest.mark.slow
@pytest.mark.req("CX-10", "SC-5")
@pytest.mark.parametrize(
    ("kind", "payload", "how"),
    [
        ("segfaults", {}, "signal 11 (SIGSEGV)"),
        ("is_killed", {}, "signal 9 (SIGKILL)"),
        ("exits", {"code": 0}, "exit code 0"),
    ],
)
def test_a_job_whose_process_dies_is_buried_at_the_crash_limit(
    labour: ModuleType, kind: str, payload: dict[str, Any], how: str
) -> None:
    """And the worker goes on: everything else is done, before, in between and after."""
    with working(labour.app, concurrency=2):
        policy = Retry(max_attempts=1, max_crashes=1, backoff=AT_ONCE)
        poison = labour.app.enqueue(kind, payload, retry=policy)
        others = [labour.where.enqueue() for _ in range(4)]
        job = poison.wait(timeout=60)
        assert all(other.result(timeout=30) for other in others)
        assert labour.where.enqueue().result(timeout=30)
    assert (job.state, job.error_code, job.crashes, job.retries) == (State.DEAD_LETTER, "process_died", 2, 0)
    assert how in (job.error_message or "")
    event_types = [event.type for event in poison.history()]
    assert event_types == ["enqueue", "take", "crash", "retry", "due", "take", "crash", "bury"]
    assert attempt(labour.app, poison.id).outcome == "crashed"


@pytest.mark.slow
@pytest.mark.req("CX-10", "HK-1")
def test_a_tick_runs_them_too(labour: ModuleType) -> None:
    labour.where.enqueue()
    labour.segfaults.enqueue()
    done = labour.app.tick(limit=5)
    assert (done.taken, done.succeeded, done.crashed) == (2, 1, 1)


@pytest.mark.slow
@pytest.mark.req("CX-10")
def test_what_a_dead_process_leaves_is_killed(labour: ModuleType, tmp_path: Path) -> None:
    handle = labour.dies_and_leaves.using(retry=Retry(max_crashes=0)).enqueue(str(tmp_path / "marks"))
    work_off(labour.app)
    assert handle.get().error_code == "process_died"
    until_gone(*marked(tmp_path / "marks"))


@pytest.mark.slow
@pytest.mark.req("JF-7", "DP-22")
def test_a_module_that_cannot_be_imported_is_a_clear_failure(
    labour: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(labour.BROKEN_IMPORT, str(os.getpid()))
    handle = labour.where.using(retry=ONCE).enqueue()
    work_off(labour.app)
    job = handle.get()
    assert (job.state, job.error_code, job.crashes) == (State.DEAD_LETTER, "import_failed", 0)
    assert "this module does not like children" in (job.error_message or "")


@pytest.mark.req("JF-7", "DP-22")
def test_a_python_that_does_not_start_is_a_clear_failure(labour: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    handles = [labour.where.using(retry=ONCE).enqueue() for _ in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        work_off(labour.app, max_jobs=1)
    monkeypatch.setattr(process_handlers, "_BOOT", "raise SystemExit(7)")
    work_off(labour.app, max_jobs=1)
    assert [handle.get().error_code for handle in handles] == ["child_not_started"] * 2
    assert "No such file" in (handles[0].get().error_message or "")
    assert "exit code 7" in (handles[1].get().error_message or "")


@pytest.mark.req("JF-7")
def test_what_cannot_be_run_so_is_refused_when_it_is_declared(app: App) -> None:
    with pytest.raises(InvalidSetting) as local:

        @app.job(process=True)
        def inside() -> None: ...

    assert local.value.code == "not_importable"
    for settings, code in (
        ({"memory": "much"}, "invalid_size"),
        ({"memory": "1MB"}, "invalid_size"),
        ({"recycle": 0}, "invalid_setting"),
        ({"niceness": -1}, "invalid_setting"),
    ):
        with pytest.raises(InvalidSetting) as refused:
            Process(**settings)
        assert refused.value.code == code
    for given in ("yes", 1, {"memory": "1GB"}):
        with pytest.raises(InvalidSetting) as refused:
            app.job(process=given)  # type: ignore[call-overload]
        assert refused.value.code == "invalid_setting"
    assert app._kinds == {}


@pytest.mark.req("JF-7")
def test_a_database_in_memory_cannot_be_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    module = imported("tests.app.labour", "sqlite:///:memory:", monkeypatch)
    with pytest.raises(InvalidSetting) as refused:
        module.app.worker()
    assert refused.value.code == "not_shareable"
    module.app.close()


@pytest.mark.slow
@pytest.mark.req("CX-15", "JF-7")
def test_a_copy_of_the_process_does_not_answer_for_it(labour: ModuleType) -> None:
    """Two answers to one question, and every job from then on would have had the result of the one before."""
    handles = [labour.forks.enqueue(number) for number in range(4)]
    exits = labour.exits_in_a_task.enqueue()
    work_off(labour.app, concurrency=1)
    assert [handle.result(timeout=1) for handle in handles] == [0, 1, 2, 3]
    assert (exits.get().state, exits.get().error_code) == (State.DEAD_LETTER, "SystemExit")


@pytest.mark.slow
@pytest.mark.req("CX-10", "JF-4")
@pytest.mark.parametrize("text", ["hello", "\n"])
def test_what_a_handler_writes_on_our_line_is_no_answer(labour: ModuleType, text: str) -> None:
    """It was taken for the length of an answer to come, and waited for."""
    handle = labour.writes_where_it_should_not.enqueue(text)
    work_off(labour.app)
    assert handle.state() is State.DEAD_LETTER
    (attempt,) = labour.app._session.run(labour.app._session.store.jobs.attempts(handle.id, handle.tenant))
    assert (attempt.outcome, attempt.error_code) == ("crashed", "process_died")
    assert "foreign data" in attempt.error_message


@pytest.mark.slow
@pytest.mark.req("CX-10", "JF-4")
def test_a_handler_that_closes_every_file_has_crashed(labour: ModuleType) -> None:
    handle = labour.closes_every_file.enqueue()
    work_off(labour.app)
    assert handle.state() is State.DEAD_LETTER
