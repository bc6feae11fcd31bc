"""Handlers in child processes: how they run, fail and are killed, and how each end is counted."""

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
from holdfast.app.internals import kinds_of, session_of
from holdfast.errors import InvalidSetting
from tests.app.conftest import NewApp
from tests.app.processes import children_of, imported, marked, running, until_gone
from tests.support.workers import work_off, working

ONCE = Retry(max_attempts=1)
AT_ONCE = Backoff(base=0.0, jitter=False)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads processes through /proc")


@pytest.fixture
def process_jobs(url: str, new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    module = imported("tests.app.process_jobs", url, monkeypatch)
    before = set(children_of(os.getpid()))
    yield module
    module.app.close()
    until_gone(*set(children_of(os.getpid())) - before)  # the worker takes everything it started with it


def attempt(app: App, job_id: str, number: int = 0) -> Any:
    return session_of(app).run(session_of(app).store.jobs.attempts(job_id, "default"))[number]


@pytest.mark.slow
@pytest.mark.req("JF-7")
def test_handler_runs_in_a_warm_child_with_its_own_session(process_jobs: ModuleType) -> None:
    handles = [process_jobs.where.enqueue() for _ in range(3)]
    work_off(process_jobs.app, concurrency=1)
    results = [handle.result() for handle in handles]
    pid, group, session, parent = results[0]
    assert pid == group == session != os.getpid()
    assert parent == os.getpid()
    assert results == [results[0]] * 3, "one child served all three"


@pytest.mark.slow
@pytest.mark.req("JF-13")
def test_trace_is_passed_to_the_child(process_jobs: ModuleType) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with trace_from(parent):
        handle = process_jobs.traced.enqueue()
    plain = process_jobs.traced.enqueue()
    work_off(process_jobs.app, concurrency=1)
    assert (handle.result(), plain.result()) == ({"traceparent": parent}, Trace.of_job(plain.id, ()).headers())


@pytest.mark.slow
@pytest.mark.req("JF-7")
def test_children_are_recycled(process_jobs: ModuleType) -> None:
    handles = [process_jobs.seldom.enqueue() for _ in range(5)]
    work_off(process_jobs.app, concurrency=1)
    one, two, three, four, five = (handle.result() for handle in handles)
    assert one == two != three == four != five


@pytest.mark.slow
@pytest.mark.req("JF-7")
def test_children_never_exceed_slots_and_idle_ones_are_replaced(process_jobs: ModuleType) -> None:
    """`nice` and `where` need different children; with one slot there is only one at a time."""
    handles = [process_jobs.where.enqueue(), process_jobs.nice.enqueue(), process_jobs.where.enqueue()]
    work_off(process_jobs.app, concurrency=1)
    first, niceness, second = (handle.result() for handle in handles)
    assert niceness - os.nice(0) == 5
    assert first[0] != second[0], "the first child was replaced"


@pytest.mark.slow
@pytest.mark.req("JF-7", "DP-21")
def test_hostile_payload_round_trips(process_jobs: ModuleType) -> None:
    values = [
        {"$.__class__": "os.system", "x": ["'; rm -rf /", "\u2028\r\n\x7f", "é😀", 10**400, 0.1, None, True]},
        "\\u0000 is harmless",
        "x" * 900_000,
        {"__proto__": {"a": [[[[[]]]]]}, "end": True, "run": {}},
    ]
    handles = [process_jobs.echo.enqueue(value) for value in values]
    work_off(process_jobs.app, concurrency=1)
    for handle, value in zip(handles, values, strict=True):
        assert handle.result() == {"value": value, "kind": "echo", "attempt": 1}


@pytest.mark.slow
@pytest.mark.req("JF-7", "CX-8", "DP-10")
def test_context_works_in_a_child(process_jobs: ModuleType) -> None:
    with working(process_jobs.app):
        handle = process_jobs.keeps.using(retry=Retry(max_attempts=2, backoff=AT_ONCE)).enqueue()
        seen, child_id = handle.result(timeout=30)
    assert seen == 1
    child = process_jobs.app.jobs.get(child_id)
    assert (child.parent_id, child.enqueued_by) == (handle.id, f"job {handle.id}")


@pytest.mark.slow
@pytest.mark.req("JF-7", "DP-22", "SC-5")
def test_error_in_a_child_is_recorded_with_its_traceback(
    process_jobs: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    handle = process_jobs.raises.using(retry=ONCE).enqueue("no such\nthing")
    work_off(process_jobs.app)
    job = handle.get()
    assert (job.state, job.error_code, job.error_message) == (State.DEAD_LETTER, "LookupError", "no such\nthing")
    ended = attempt(process_jobs.app, handle.id)
    assert (ended.outcome, job.crashes) == ("failed", 0)
    assert "in raises" in ended.traceback
    assert "process_jobs.py" in ended.traceback
    out, err = capfd.readouterr()
    assert "to stdout" in out
    assert "in the log" in err


@pytest.mark.slow
@pytest.mark.req("JF-7")
def test_handler_that_calls_exit_fails(process_jobs: ModuleType) -> None:
    handle = process_jobs.leaves.using(retry=ONCE).enqueue(3)
    after = process_jobs.where.enqueue()
    work_off(process_jobs.app, concurrency=1)
    assert (handle.get().error_code, handle.get().crashes) == ("SystemExit", 0)
    assert after.result()[0]


@pytest.mark.slow
@pytest.mark.req("CX-9", "CX-11")
@pytest.mark.parametrize(
    ("what", "state", "code"),
    [
        ("retry", State.RETRY_WAITING, "retry_asked"),
        ("retry with its own backoff", State.RETRY_WAITING, "retry_asked"),
        ("reject", State.DEAD_LETTER, "bad_invoice"),
        ("cancel", State.CANCELLED, None),
        ("give up", State.DEAD_LETTER, "LookupError"),
    ],
)
def test_control_exceptions_work_in_a_child(
    process_jobs: ModuleType, what: str, state: State, code: str | None
) -> None:
    handle = process_jobs.raises_control.enqueue(what)
    work_off(process_jobs.app)
    job = handle.get()
    assert (job.state, attempt(process_jobs.app, handle.id).error_code) == (state, code)
    if state is State.RETRY_WAITING:
        waits = job.due_at - attempt(process_jobs.app, handle.id).ended_at
        assert round(waits.total_seconds(), -1) == (3600 if what == "retry" else 7200)


@pytest.mark.slow
@pytest.mark.req("CX-9", "DP-10")
def test_child_can_snooze_and_spawn_children(process_jobs: ModuleType) -> None:
    handle = process_jobs.snoozes.enqueue()
    work_off(process_jobs.app)
    assert [event.type for event in handle.history()] == ["enqueue", "take", "snooze"]
    (child,) = process_jobs.app.jobs.list(parent_id=handle.id)
    assert (child.kind, child.state) == ("in_here", State.SUCCEEDED)


@pytest.mark.slow
@pytest.mark.req("HF-3")
def test_child_can_complete_its_job_in_a_transaction(process_jobs: ModuleType) -> None:
    handle = process_jobs.completes.enqueue()
    work_off(process_jobs.app)
    assert [event.type for event in handle.history()] == ["enqueue", "take", "succeed"]
    assert handle.state() is State.SUCCEEDED


@pytest.mark.slow
@pytest.mark.req("DP-22")
def test_worker_secrets_are_redacted_in_errors_of_a_child(process_jobs: ModuleType) -> None:
    process_jobs.app.redact("canary-of-the-worker")
    handle = process_jobs.raises_control.using(retry=ONCE).enqueue("leak")
    work_off(process_jobs.app)
    assert handle.get().error_message is not None
    assert "canary" not in str(handle.get())
    assert "canary" not in str(handle.history())


@pytest.mark.req("JF-4", "SC-5")
def test_timeout_kills_the_child_and_its_descendants(process_jobs: ModuleType, tmp_path: Path) -> None:
    before = process_jobs.where.enqueue()  # warms up the child: starting one may take longer than the timeout
    handle = process_jobs.hangs.using(retry=ONCE).enqueue(str(tmp_path / "marks"))
    after = process_jobs.where.enqueue()
    work_off(process_jobs.app, concurrency=1)
    job = handle.get()
    assert (job.state, job.error_code, job.retries, job.crashes) == (State.DEAD_LETTER, "timeout", 0, 0)
    child, grandchild = marked(tmp_path / "marks")
    assert before.result()[0] == child != after.result()[0]
    until_gone(child, grandchild)


@pytest.mark.req("CX-11")
def test_cancelling_a_running_job_kills_its_child(process_jobs: ModuleType, tmp_path: Path) -> None:
    with working(process_jobs.app, concurrency=1):
        handle = process_jobs.waits.enqueue(str(tmp_path / "marks"))
        pids = marked(tmp_path / "marks")
        handle.cancel("not wanted any more")
        until_gone(*pids)
        assert process_jobs.where.enqueue().result(timeout=30), "its slot is free"
    assert (handle.state(), attempt(process_jobs.app, handle.id).outcome) == (State.CANCELLED, "cancelled")


@pytest.mark.slow
@pytest.mark.req("CX-11", "SC-13")
def test_stopping_worker_kills_the_children_of_jobs_it_hands_back(process_jobs: ModuleType, tmp_path: Path) -> None:
    with working(process_jobs.app, grace=0.0) as background:
        handle = process_jobs.waits.enqueue(str(tmp_path / "marks"))
        child, grandchild = marked(tmp_path / "marks")
        assert running(grandchild)
        background.ask_to_stop()
    until_gone(child, grandchild)
    job = handle.get()
    assert job.state in (State.RETRY_WAITING, State.QUEUED)  # the worker may have promoted it before it ended
    assert (job.retries, job.crashes) == (0, 0)


@pytest.mark.slow
@pytest.mark.req("CX-10")
def test_exceeding_the_memory_limit_is_a_failure_with_its_own_code(process_jobs: ModuleType) -> None:
    within, beyond = process_jobs.swells.enqueue(1_000_000), process_jobs.swells.using(retry=ONCE).enqueue(1 << 30)
    after = process_jobs.swells.enqueue(1_000_000)
    work_off(process_jobs.app, concurrency=1)
    assert (within.result(), after.result()) == (1_000_000, 1_000_000)
    job = beyond.get()
    assert (job.state, job.error_code, job.crashes) == (State.DEAD_LETTER, "memory_limit", 0)
    assert "192 MB" in (job.error_message or "")
    assert "MemoryError" in attempt(process_jobs.app, beyond.id).traceback


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
def test_job_whose_child_dies_is_dead_lettered_at_the_crash_limit(
    process_jobs: ModuleType, kind: str, payload: dict[str, Any], how: str
) -> None:
    """The worker continues: other jobs run before, in between and after."""
    with working(process_jobs.app, concurrency=2):
        policy = Retry(max_attempts=1, max_crashes=1, backoff=AT_ONCE)
        poison = process_jobs.app.enqueue(kind, payload, retry=policy)
        others = [process_jobs.where.enqueue() for _ in range(4)]
        job = poison.wait(timeout=60)
        assert all(other.result(timeout=30) for other in others)
        assert process_jobs.where.enqueue().result(timeout=30)
    assert (job.state, job.error_code, job.crashes, job.retries) == (State.DEAD_LETTER, "process_died", 2, 0)
    assert how in (job.error_message or "")
    event_types = [event.type for event in poison.history()]
    assert event_types == ["enqueue", "take", "crash", "retry", "due", "take", "crash", "dead_letter"]
    assert attempt(process_jobs.app, poison.id).outcome == "crashed"


@pytest.mark.slow
@pytest.mark.req("CX-10", "HK-1")
def test_tick_runs_child_processes(process_jobs: ModuleType) -> None:
    process_jobs.where.enqueue()
    process_jobs.segfaults.enqueue()
    done = process_jobs.app.tick(limit=5)
    assert (done.taken, done.succeeded, done.crashed) == (2, 1, 1)


@pytest.mark.slow
@pytest.mark.req("CX-10")
def test_processes_left_by_a_dead_child_are_killed(process_jobs: ModuleType, tmp_path: Path) -> None:
    handle = process_jobs.dies_and_leaves.using(retry=Retry(max_crashes=0)).enqueue(str(tmp_path / "marks"))
    work_off(process_jobs.app)
    assert handle.get().error_code == "process_died"
    until_gone(*marked(tmp_path / "marks"))


@pytest.mark.slow
@pytest.mark.req("JF-7", "DP-22")
def test_import_error_in_a_child_is_reported(process_jobs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(process_jobs.BROKEN_IMPORT, str(os.getpid()))
    handle = process_jobs.where.using(retry=ONCE).enqueue()
    work_off(process_jobs.app)
    job = handle.get()
    assert (job.state, job.error_code, job.crashes) == (State.DEAD_LETTER, "import_failed", 0)
    assert "this module cannot be imported in a child" in (job.error_message or "")


@pytest.mark.req("JF-7", "DP-22")
def test_child_that_cannot_start_is_reported(process_jobs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    handles = [process_jobs.where.using(retry=ONCE).enqueue() for _ in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        work_off(process_jobs.app, max_jobs=1)
    monkeypatch.setattr(process_handlers, "_BOOT", "raise SystemExit(7)")
    work_off(process_jobs.app, max_jobs=1)
    assert [handle.get().error_code for handle in handles] == ["child_not_started"] * 2
    assert "No such file" in (handles[0].get().error_message or "")
    assert "exit code 7" in (handles[1].get().error_message or "")


@pytest.mark.req("JF-7")
def test_invalid_process_declarations_are_refused(app: App) -> None:
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
    assert kinds_of(app) == {}


@pytest.mark.req("JF-7")
def test_in_memory_database_cannot_use_child_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = imported("tests.app.process_jobs", "sqlite:///:memory:", monkeypatch)
    with pytest.raises(InvalidSetting) as refused:
        module.app.worker()
    assert refused.value.code == "not_shareable"
    module.app.close()


@pytest.mark.slow
@pytest.mark.req("CX-15", "JF-7")
def test_forked_copy_of_a_child_does_not_answer_for_it(process_jobs: ModuleType) -> None:
    """With two responses to one request, every later job would get the result of the job before it."""
    handles = [process_jobs.forks.enqueue(number) for number in range(4)]
    exits = process_jobs.exits_in_a_task.enqueue()
    work_off(process_jobs.app, concurrency=1)
    assert [handle.result(timeout=1) for handle in handles] == [0, 1, 2, 3]
    assert (exits.get().state, exits.get().error_code) == (State.DEAD_LETTER, "SystemExit")


@pytest.mark.slow
@pytest.mark.req("CX-10", "JF-4")
@pytest.mark.parametrize("text", ["hello", "\n"])
def test_foreign_data_on_the_channel_is_a_crash(process_jobs: ModuleType, text: str) -> None:
    """It used to be read as the length of a response, which was then waited for."""
    handle = process_jobs.writes_where_it_should_not.enqueue(text)
    work_off(process_jobs.app)
    assert handle.state() is State.DEAD_LETTER
    (attempt,) = session_of(process_jobs.app).run(
        session_of(process_jobs.app).store.jobs.attempts(handle.id, handle.tenant)
    )
    assert (attempt.outcome, attempt.error_code) == ("crashed", "process_died")
    assert "foreign data" in (attempt.error_message or "")


@pytest.mark.slow
@pytest.mark.req("CX-10", "JF-4")
def test_handler_that_closes_every_file_crashes(process_jobs: ModuleType) -> None:
    handle = process_jobs.closes_every_file.enqueue()
    work_off(process_jobs.app)
    assert handle.state() is State.DEAD_LETTER
