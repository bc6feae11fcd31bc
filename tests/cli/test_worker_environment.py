"""Workers with full, broken or closed streams, ignored signals, and a lost terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.job import JobSpec
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.cli.processes import COMMAND, environment
from tests.cli.worker_program import Crew, gone
from tests.support.stores import put, put_one, spec, state_of, tries
from tests.support.waiting import until

PROGRAM = """
import os, signal, time
from crew import FOLDER, app, holdfast

ONCE = holdfast.Retry(max_attempts=1)
app.command("program", ["sh", "-c", "exit $0", "{code}"], fields={"code": int}, retry=ONCE, log_dir=FOLDER)

@app.job(process=True, retry=ONCE)
def apart() -> int:
    return os.getpid()

@app.job(retry=ONCE)
def ends_a_fork() -> int:
    there, here = os.pipe()
    fork = os.fork()
    if fork == 0:
        os.write(here, b".")
        time.sleep(600)
        os._exit(0)
    os.read(there, 1)
    os.kill(fork, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
"""


ONCE = tries(1)


def program(code: int) -> JobSpec:
    return spec("program", payload={"code": code}, retry=ONCE)


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    made = Crew(tmp_path / "crew")
    (made.folder / "more.py").write_text(PROGRAM)
    return made


@contextmanager
def begun(crew: Crew, store: Store, *options: str, **how: Any) -> Iterator[subprocess.Popen[Any]]:
    """A worker that holds a job."""
    put_one(store, "hold")
    command = [*COMMAND, "worker", "crew:app", "--poll", "50ms", *options]
    how = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | how
    with subprocess.Popen(command, cwd=crew.folder, env=environment(store.url), **how) as process:
        try:
            until(lambda: len(crew.begun) == 1, "the job is running")
            yield process
        finally:
            process.kill()
            for pid in crew.begun:
                if not gone(pid):
                    os.kill(pid, signal.SIGKILL)


def work_off(crew: Crew, store: Store, *options: str, shell: str = 'exec "$@"', **how: Any) -> int:
    """Run a worker until no job is left; return the exit code."""
    command = ["sh", "-c", shell, "sh", *COMMAND, "worker", "more:app", "--burst", "--poll", "50ms", *options]
    how = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | how
    return subprocess.run(
        command, cwd=crew.folder, env=environment(store.url), timeout=60, check=False, **how
    ).returncode


def full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def broken() -> int:
    """A pipe without a reader."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.slow
@pytest.mark.req("SC-13")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is full")
@pytest.mark.parametrize(
    ("stream", "options"),
    [(full, ()), (full, ("--processes", "1")), (broken, ("--processes", "1"))],
    ids=["full-alone", "full-supervised", "broken-supervised"],
)
def test_log_messages_that_cannot_be_written_do_not_stop_worker(
    sqlite_store: Store, crew: Crew, stream: Callable[[], int], options: tuple[str, ...]
) -> None:
    """As when the disk of the logs is full, or the log collector has died."""
    to = stream()
    with begun(crew, sqlite_store, *options, stderr=to) as process:
        os.close(to)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        crew.let_go()
        assert process.wait(timeout=30) == 0
    assert sqlite_store.run(sqlite_store.health.get("*")).lease_active == 0


@pytest.mark.slow
@pytest.mark.req("SC-14", "SC-13")
@pytest.mark.parametrize("options", [("--json",), ("--processes", "1")], ids=["alone", "supervised"])
def test_worker_runs_with_closed_streams(sqlite_store: Store, crew: Crew, options: tuple[str, ...]) -> None:
    ids = put(sqlite_store, spec("apart", retry=ONCE), program(0))
    assert work_off(crew, sqlite_store, *options, shell='exec "$@" <&- >&- 2>&-') == 0
    assert [state_of(sqlite_store, job_id) for job_id in ids] == [State.SUCCEEDED, State.SUCCEEDED]


@pytest.mark.slow
@pytest.mark.req("SC-14", "SC-13")
@pytest.mark.parametrize("options", [(), ("--processes", "1")], ids=["alone", "supervised"])
def test_failed_command_is_noticed_if_sigchld_is_ignored(
    sqlite_store: Store, crew: Crew, options: tuple[str, ...]
) -> None:
    """A process that ignores SIGCHLD gets no exit codes of its children. The setting is inherited."""
    ids = put(sqlite_store, program(3), program(0), spec("apart", retry=ONCE))

    def ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    assert work_off(crew, sqlite_store, *options, preexec_fn=ignore) == 0
    states = [state_of(sqlite_store, job_id) for job_id in ids]
    assert states == [State.DEAD_LETTER, State.SUCCEEDED, State.SUCCEEDED]


@pytest.mark.slow
@pytest.mark.req("SC-13")
@pytest.mark.parametrize("options", [(), ("--processes", "1")], ids=["alone", "supervised"])
def test_lost_terminal_stops_worker_gracefully(sqlite_store: Store, crew: Crew, options: tuple[str, ...]) -> None:
    """Counted once: a shell that ends passes it on, so that it arrives twice."""

    def heed() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may have been started with ``nohup``

    with begun(crew, sqlite_store, *options, preexec_fn=heed) as process:
        for _ in range(2):
            process.send_signal(signal.SIGHUP)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=0.5)
        crew.let_go()
        assert process.wait(timeout=30) == 0
    assert sqlite_store.run(sqlite_store.health.get("*")).lease_active == 0


@pytest.mark.slow
@pytest.mark.req("SC-13")
def test_worker_under_nohup_ignores_lost_terminal(sqlite_store: Store, crew: Crew) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with begun(crew, sqlite_store, "--processes", "1", preexec_fn=ignore) as process:
        process.send_signal(signal.SIGHUP)
        crew.let_go()
        other = put_one(sqlite_store, "nap")
        until(lambda: state_of(sqlite_store, other) == State.SUCCEEDED, "the worker continues")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


@pytest.mark.slow
@pytest.mark.req("SC-13", "JF-7")
def test_signal_to_a_fork_does_not_stop_worker(sqlite_store: Store, crew: Crew) -> None:
    """As at the end of a `multiprocessing.Pool`: it terminates its processes, which are forks of the worker."""
    command = [*COMMAND, "worker", "more:app", "--poll", "50ms"]
    with subprocess.Popen(command, cwd=crew.folder, env=environment(sqlite_store.url)) as process:
        try:
            for kind in ("ends_a_fork", "nap"):
                job_id = put_one(sqlite_store, kind, retry=ONCE)
                until(lambda wanted=job_id: state_of(sqlite_store, wanted) == State.SUCCEEDED, kind)  # type: ignore[misc]
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()


FIRST = """
import ctypes, os, signal, sys, time
from holdfast.cli.main import fork_init

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # orphans become children of this process, as of pid 1
fork_init()

def children_of(pid):
    return open(f"/proc/{pid}/task/{pid}/children").read().split()

for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.2)
        os._exit(0)
    os.wait()
latest = time.monotonic() + 20
while len(children_of(os.getppid())) > 1:
    assert time.monotonic() < latest, "zombies"
    time.sleep(0.01)
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
print("alone", flush=True)
while not heard:  # a signal that comes before signal.pause() would not end it
    time.sleep(0.01)
time.sleep(0.2)
os._exit(40 + len(heard)) if sys.argv[1] == "exit" else os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
@pytest.mark.req("CX-15", "SC-13")
@pytest.mark.parametrize(("how", "code"), [("exit", 41), ("killed", 137)])
def test_pid_1_reaps_orphans_and_forwards_signals(how: str, code: int) -> None:
    """A signal sent to both, as from a terminal, counts once."""
    with subprocess.Popen(
        [sys.executable, "-c", FIRST, how], stdout=subprocess.PIPE, start_new_session=True, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "alone\n", "no zombie is left"
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(timeout=30) == code
