"""`holdfast worker --processes N`: a supervisor and its children, killed and signalled in every way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.run_worker import STOPPING, STOPPING_NOW
from holdfast.cli.supervisor import LONGEST_PAUSE, pause_after
from holdfast.cli.worker_process import SUPERVISOR_ENDED, Reports
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.cli.processes import call, environment, run, wait_for_output
from tests.cli.worker_program import Crew, gone
from tests.support.stores import history, job, put, put_one, spec, state_of
from tests.support.waiting import until


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    return Crew(tmp_path / "crew")


def live_leases(store: Store) -> int:
    return store.run(store.health.get("*")).lease_active


def stop(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    process.send_signal(signal.SIGTERM)
    output, messages = process.communicate(timeout=30)
    return process.returncode, output, messages


@pytest.mark.slow
@pytest.mark.req("SC-13", "JF-7")
def test_processes_share_jobs_and_summary_adds_up(store: Store, crew: Crew) -> None:
    ids = put(store, *(spec("meet") for _ in range(40)))
    options = ("--processes", "2", "--concurrency", "4", "--burst", "--json")
    done = run("worker", "crew:app", *options, url=store.url, cwd=crew.folder)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["jobs"], summary["restarts"], summary["clean"]) == (40, 0, True)
    assert sum(child["jobs"] for child in summary["processes"]) == 40
    assert all(child["jobs"] for child in summary["processes"])
    assert {state_of(store, job_id) for job_id in ids} == {State.SUCCEEDED}
    assert len({history(store, job_id)[-1].actor for job_id in ids}) == 2
    assert live_leases(store) == 0


@pytest.mark.slow
@pytest.mark.req("SC-13")
def test_max_jobs_counts_per_process(store: Store, crew: Crew) -> None:
    put(store, *(spec("nap", payload={"seconds": 0.01}) for _ in range(20)))
    done = run("worker", "crew:app", "--processes", "2", "--max-jobs", "3", "--json", url=store.url, cwd=crew.folder)
    assert done.returncode == 0, done.stderr
    assert [child["jobs"] for child in json.loads(done.stdout)["processes"]] == [3, 3]


@pytest.mark.slow
@pytest.mark.req("CX-15", "SC-13")
def test_killed_child_is_replaced_and_its_job_recovered(store: Store, crew: Crew) -> None:
    ids = put(store, spec("hold"), spec("hold"))
    with crew.working(store, "--processes", "2", "--concurrency", "1", "--lease", "2s", "--json") as process:
        until(lambda: len(set(crew.begun)) == 2, "each child holds a job")
        victim = crew.begun[0]
        os.kill(victim, signal.SIGKILL)
        until(lambda: len(set(crew.begun)) == 3, "another process runs the victim's job")
        crew.let_go()
        until(lambda: all(state_of(store, job_id) == State.SUCCEEDED for job_id in ids), "both are done")
        code, output, messages = stop(process)
    assert code == 0, messages
    assert json.loads(output)["restarts"] == 1
    assert sorted(job(store, job_id).crashes for job_id in ids) == [0, 1]
    lines = [json.loads(line) for line in messages.splitlines()]
    assert any(f"pid {victim}) was killed by SIGKILL" in line["message"] for line in lines)
    assert {line["process"] for line in lines if line["logger"] == "holdfast.worker"} <= {1, 2}


@pytest.mark.slow
@pytest.mark.req("CX-15", "SC-13")
def test_children_drain_and_exit_when_supervisor_is_killed(store: Store, crew: Crew) -> None:
    ids = put(store, spec("hold"), spec("hold"))
    with crew.working(store, "--processes", "2", "--concurrency", "1") as process:
        until(lambda: len(set(crew.begun)) == 2, "each child holds a job")
        process.kill()
        for _ in range(2):  # until then a child may take another job
            wait_for_output(process, SUPERVISOR_ENDED)
        late = put_one(store, "nap")
        crew.let_go()
        until(lambda: all(map(gone, crew.begun)), "the children have ended")
    assert {state_of(store, job_id) for job_id in ids} == {State.SUCCEEDED}
    assert state_of(store, late) == State.QUEUED
    assert live_leases(store) == 0


@pytest.mark.slow
@pytest.mark.req("SC-13")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_lets_running_jobs_finish(store: Store, crew: Crew, number: signal.Signals) -> None:
    ids = put(store, spec("hold"), spec("hold"))
    with crew.working(store, "--processes", "2", "--concurrency", "1") as process:
        until(lambda: len(set(crew.begun)) == 2, "each child holds a job")
        process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        crew.let_go()
        _, messages = process.communicate(timeout=30)
    assert process.returncode == 0, messages
    assert "Traceback" not in messages
    assert {state_of(store, job_id) for job_id in ids} == {State.SUCCEEDED}
    assert all(map(gone, crew.begun))


@pytest.mark.slow
@pytest.mark.req("SC-13")
def test_second_signal_hands_jobs_back_at_once(store: Store, crew: Crew) -> None:
    job_id = put_one(store, "hold")
    with crew.working(store, "--processes", "2", "--grace", "10m") as process:
        until(lambda: len(crew.begun) == 1, "the job is running")
        process.send_signal(signal.SIGTERM)
        wait_for_output(process, STOPPING)  # otherwise both might count as one
        code, _, messages = stop(process)
    assert code == 0, messages
    handed_back = next(event for event in history(store, job_id) if event.type == "snooze")
    assert handed_back.meta["reason"] == "worker_stopped"
    stored = job(store, job_id)  # the other worker may have promoted it before it stopped
    assert (stored.attempt, stored.retries, stored.crashes) == (1, 0, 0)


@pytest.mark.slow
@pytest.mark.req("SC-13")
def test_signal_to_all_processes_counts_once(store: Store, crew: Crew) -> None:
    """As sent by a service manager: the children get it twice, from it and from the supervisor."""
    job_id = put_one(store, "hold")
    with crew.working(store, "--processes", "1", "--grace", "10m") as process:
        until(lambda: len(crew.begun) == 1, "the job is running")
        os.kill(crew.begun[0], signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)  # one after the other, otherwise the child might count both as one
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        crew.let_go()
        _, messages = process.communicate(timeout=30)
    assert process.returncode == 0, messages
    assert state_of(store, job_id) == State.SUCCEEDED


@pytest.mark.slow
@pytest.mark.req("SC-13")
def test_third_signal_kills_children_and_reports_it(store: Store, crew: Crew) -> None:
    put_one(store, "jam")
    with crew.working(store, "--processes", "1") as process:
        until(lambda: len(crew.begun) == 1, "the child is blocked")
        process.send_signal(signal.SIGTERM)
        for message in (STOPPING, STOPPING_NOW):
            wait_for_output(process, message)
            process.send_signal(signal.SIGTERM)
        _, messages = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "did not stop in time" in messages
    assert gone(crew.begun[0])


@pytest.mark.slow
@pytest.mark.req("SC-13")
@pytest.mark.parametrize("kill_first", [False, True], ids=["supervisor-signalled", "supervisor-killed"])
def test_blocked_child_is_ended(sqlite_store: Store, crew: Crew, kill_first: bool) -> None:
    put_one(sqlite_store, "jam")
    with crew.working(sqlite_store, "--processes", "1", "--grace", "100ms") as process:
        until(lambda: len(crew.begun) == 1, "the child is blocked")
        process.send_signal(signal.SIGKILL if kill_first else signal.SIGTERM)
        until(lambda: gone(crew.begun[0]), "the child has ended")
        process.wait(timeout=10)
    assert process.returncode == (-signal.SIGKILL if kill_first else 1)


@pytest.mark.slow
@pytest.mark.req("DP-22")
def test_configuration_error_is_reported_once(sqlite_url: str, crew: Crew) -> None:
    done = call("worker", "nowhere:app", "--processes", "3", url=sqlite_url, cwd=crew.folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("[module_not_found]") == 1


@pytest.mark.slow
@pytest.mark.req("DP-22")
def test_supervisor_gives_up_if_no_child_ever_started(crew: Crew) -> None:
    unreachable = "postgresql://nobody@127.0.0.1:1/none"
    done = call("worker", "crew:app", "--processes", "2", "--burst", url=unreachable, cwd=crew.folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("ended with exit code 1") == 3
    assert "error: no worker started in 3 attempts [workers_failed]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.req("SC-13")
def test_supervisor_keeps_trying_after_a_child_had_started(store: Store, crew: Crew) -> None:
    """A deployment may break the program for a while: the supervisor must be there when it works again."""
    program = (crew.folder / "crew.py").read_text()
    put_one(store, "hold")
    with crew.working(store, "--processes", "1", "--lease", "1s") as process:
        until(lambda: len(crew.begun) == 1, "the job is running")
        tried = crew.folder / "tried"
        (crew.folder / "crew.py").write_text(f"open({str(tried)!r}, 'a').write('.')\nimport no_such_library\n")
        os.kill(crew.begun[0], signal.SIGKILL)
        # More attempts than for a worker that never started.
        until(lambda: tried.exists() and tried.stat().st_size > 3, "the supervisor keeps trying")
        assert process.poll() is None
        (crew.folder / "crew.py").write_text(program)
        until(lambda: len(set(crew.begun)) == 2, "the job runs again")
        crew.let_go()
        code, _, messages = stop(process)
    assert code == 0, messages
    assert messages.count("[import_failed]") >= 2


@pytest.mark.slow
@pytest.mark.req("SC-13")
def test_missing_python_is_retried(sqlite_store: Store, crew: Crew, tmp_path: Path) -> None:
    """As when a deployment recreates the environment of a running supervisor."""
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    path = os.pathsep.join(filter(None, sys.path))
    command = [str(python), "-m", "holdfast", "worker", "crew:app", "--processes", "1", "--lease", "1s"]
    put_one(sqlite_store, "hold")
    with subprocess.Popen(
        command,
        cwd=crew.folder,
        env=environment(sqlite_store.url) | {"PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        until(lambda: len(crew.begun) == 1, "the job is running")
        python.rename(tmp_path / "moved")
        os.kill(crew.begun[0], signal.SIGKILL)
        wait_for_output(process, "cannot be started")
        assert process.poll() is None
        (tmp_path / "moved").rename(python)
        until(lambda: len(set(crew.begun)) == 2, "the job runs again")
        crew.let_go()
        process.send_signal(signal.SIGTERM)
        _, messages = process.communicate(timeout=30)
    assert process.returncode == 0, messages


@pytest.mark.req("CX-15", "SC-13")
def test_stopped_supervisor_does_not_block_its_workers() -> None:
    """It does not read reports then, and the socket buffers only a few minutes of them."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reports = Reports(theirs)
        for taken in range(5_000):  # a blocking send would stop the worker's loop
            reports.send(taken=taken, files=["x" * 50])
        ours.setblocking(False)
        lines = b""
        while b'"taken": 4999' not in lines:
            lines += ours.recv(65_536)
            reports.send()
        received = [json.loads(line) for line in lines.splitlines()]
    assert received[0]["taken"] == 0
    assert received[-1] == {"taken": 4999, "files": ["x" * 50]}


@pytest.mark.req("ARCH")
def test_restart_delay_grows_up_to_a_limit() -> None:
    pauses = [pause_after(deaths) for deaths in range(12)]
    assert pauses[:4] == [0.5, 0.5, 1.0, 2.0]
    assert pauses[-1] == LONGEST_PAUSE
    assert pause_after(10**9) == LONGEST_PAUSE


@pytest.mark.req("DP-22")
@pytest.mark.parametrize("options", [("--processes", "0"), ("--reload", "--burst"), ("--reload", "--processes", "2")])
def test_conflicting_options_are_rejected(sqlite_url: str, crew: Crew, options: tuple[str, ...]) -> None:
    done = call("worker", "crew:app", *options, url=sqlite_url, cwd=crew.folder)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
