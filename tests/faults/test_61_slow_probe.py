"""Fault 61: clients send half of a request to every port of a worker and of a service, and wait. Each process keeps
file descriptors for its work, answers probes, and runs its jobs."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import urllib.request
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from holdfast import App, Retry
from holdfast.app.internals import session_of
from holdfast.cli import connections, serve
from holdfast.engine.states import State
from holdfast.worker import executor
from tests.faults.test_53_hostile_body import exchange
from tests.support.processes import free_port
from tests.support.waiting import until
from tests.support.worker_processes import Crew
from tests.support.workers import work_off

pytestmark = pytest.mark.req("JF-14", "JF-15")

HALF = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
DESCRIPTORS = 200


def half_requests(stack: ExitStack, port: int, count: int) -> None:
    for _ in range(count):
        with suppress(ConnectionError):
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), timeout=10))).sendall(HALF)


def descriptors(pid: object = "self") -> int:
    """The number of open files of a process; 0 where it cannot be read."""
    folder = Path(f"/proc/{pid}/fd")
    return len(os.listdir(folder)) if folder.exists() else 0


def live(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=5) as answer:
        return bool(answer.status == 200)
    return False


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="sets a limit of another process, as Linux allows")
def test_jobs_run_beside_half_requests_to_the_port_of_the_worker(app: App, crew: Crew) -> None:
    port = free_port()
    worker = crew.start_one(options=("--metrics-port", str(port)))
    until(lambda: live(port), "the worker answers")
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    with ExitStack() as stack:
        half_requests(stack, port, DESCRIPTORS + 50)
        jobs = [app.enqueue("work", {"number": n}) for n in range(5)]
        until(lambda: all(job.state() is State.SUCCEEDED for job in jobs), "the jobs have run")
        assert {job.get().attempt for job in jobs} == {1}
        assert descriptors(worker.pid) < DESCRIPTORS // 2
        assert live(port)


async def test_half_requests_do_not_take_the_connections_of_a_service(
    new_sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 20)
    with closing(App(new_sqlite_url)) as app, ExitStack() as stack:
        session_of(app).make_ready()
        listening = serve.listen("127.0.0.1", 0)
        port = listening.getsockname()[1]
        before = descriptors()
        async with serve.serving(serve.make_web(app, local=False), listening):
            await asyncio.to_thread(half_requests, stack, port, 60)
            answer = await exchange(port, HALF + b"Connection: close\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200")
            # Both ends of a connection are in this process: 60 of the clients, 20 of the service, and some others.
            assert descriptors() - before < 60 + 20 + 15


def test_want_of_file_descriptors_is_not_a_failure_of_the_job(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "AFTER_OUTAGE", (0.0, 0.0))
    monkeypatch.setattr(executor, "MOST_UNCOUNTED", 3)
    fails = [3, 99]

    @app.job(retry=Retry(max_attempts=1))
    def opens(which: int) -> None:
        fails[which] -= 1
        if fails[which] >= 0:
            try:
                raise OSError(errno.EMFILE, "Too many open files")
            except OSError as error:
                raise RuntimeError("cannot connect") from error

    once, always = opens.enqueue(0), opens.enqueue(1)
    while not (once.state().finished and always.state().finished):
        work_off(app)
    assert (once.state(), once.get().attempt) == (State.SUCCEEDED, 4)
    assert always.state() is State.DEAD_LETTER, "a handler that opens too many files itself fails in the end"
