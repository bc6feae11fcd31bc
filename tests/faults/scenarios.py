"""Workloads that run over a link with one fault at any request: a worker, the maintenance tasks, the HTTP server.

``fault`` is what the link accepts: it begins with the number of the request and the kind of the fault.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2

from holdfast import App, Retry, State
from holdfast.app.internals import maintenance_tasks, session_of
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.states import FINISHED
from holdfast.features.assembly import open_store
from holdfast.worker.maintenance import MaintenanceTask, run_once, standard_tasks
from tests.faults.checker import check
from tests.faults.database_links import Databases, Link
from tests.faults.durable_jobs import RESULT
from tests.faults.effects import effects, runs
from tests.faults.workload import AT_ONCE, state_counts
from tests.support.features import keep
from tests.support.forkserver import Warm
from tests.support.ledger import check_ledger, read_events
from tests.support.proxy import Proxy
from tests.support.stores import claim, open_lease, put, spec, work
from tests.support.waiting import until
from tests.support.worker_processes import ROOT, TIMEOUT, Crew, environment

LEAKS = ("Traceback", "never retrieved", "was destroyed but it is pending", "never awaited")
"""Messages that must not occur in the log of a process."""
ONCE = Retry(max_attempts=1, max_crashes=100)
Ends = Counter[tuple[str, tuple[str, ...]]]
"""The number of jobs by kind and ledger."""


# -- a worker ------------------------------------------------------------------------------------------------------


class WorkerScenario:
    """One worker processes jobs in many states. A lasting fault lasts ``duration`` seconds."""

    def __init__(
        self,
        databases: Callable[[Callable[[str], None]], Databases],
        folder: Path,
        link: Callable[[str, Path], AbstractContextManager[Link]] = lambda url, _: Proxy(url),
        duration: float = 2.5,  # longer than a lease of one second and its sweep
    ) -> None:
        self._folder = folder
        self._link = link
        self._duration = duration
        self.ids: dict[str, str] = {}
        self._databases = databases(self._prepare)

    def close(self) -> None:
        self._databases.close()

    def _prepare(self, url: str) -> None:
        """One order has its approval, another also its event; the other jobs are new."""
        with closing(App(url, name="tests", enqueued_by="tester")) as app:
            app.migrate()
            self.ids = {kind: _put(app, kind, pause=0.01) for kind in ("order", "order_in_thread")}
            last = self.ids["order_in_thread"]
            with Crew(url, self._folder, lease=30.0) as crew:
                crew.start_one()
                until(lambda: len(app.approvals.list()) == 2, "both orders wait for approval")
                (approval,) = app.approvals.list(job_id=last)
                app.approvals.approve(approval.id, by="ada")
                until(lambda: _waits_for_event(app, last), "one order waits for its event")
            for approval in app.approvals.list():
                app.approvals.approve(approval.id, by="ada")
            app.send_event("shipped", {"job": last, "what": "parcel 7"})
            self.ids |= {kind: _put(app, kind) for kind in ("work", "awork", "flaky", "save", "walk", "ahold")}
            self.ids |= {"spawn": _put(app, "spawn", number=1), "fail": _put(app, "fail", ONCE, text="no")}

    def run(self, fault: tuple[Any, ...] | None, *, at_shutdown: bool = False) -> int:
        """Process all jobs with one worker. The fault counts requests from its start, or from its shutdown. Returns
        the number of requests."""
        with self._databases.fresh() as url, TemporaryDirectory() as temporary:
            folder = Path(temporary)
            shutil.copy(self._folder / "effects", folder)
            with (
                self._link(url, folder) as link,
                Crew(link.url, folder, lease=1.0, concurrency=16, **link.settings) as crew,
            ):
                requests = self._work(url, link, crew, fault, at_shutdown)
                log = crew.said()
                code = crew.members[-1].wait()
                # It may be killed during shutdown, or never reach its statement.
                assert code == 0 or (code == -9 and _kills(fault) and len(crew.members) == 1), log
            assert not any(leak in log for leak in LEAKS), log
            self._check(url, folder)
            return requests

    def _work(self, url: str, link: Link, crew: Crew, fault: tuple[Any, ...] | None, at_shutdown: bool) -> int:
        with closing(App(url, name="tests", enqueued_by="tester")) as app:
            if fault is not None and not at_shutdown:
                link.inject(fault, self._duration)
            crew.start_one(options=("--poll", "500ms"))
            for condition, what in (
                (lambda: self.ids["ahold"] in runs(crew.folder), "it runs the job to be cancelled"),
                (lambda: app.jobs.cancel(self.ids["ahold"]), "that job is cancelled"),
                (lambda: self._all_ended(app), "all jobs have ended"),
                (lambda: effects(crew.folder, "stopped") or len(crew.members) > 1, "the cancelled handler has stopped"),
            ):
                self._wait(condition, what, crew, _kills(fault))
            before = link.requests
            if fault is not None and at_shutdown:
                link.inject(fault, self._duration)
            crew.members[-1].ask_to_stop()
            crew.members[-1].wait()
            return link.requests - before if at_shutdown else before

    def _wait(self, condition: Callable[[], object], what: str, crew: Crew, killed: bool) -> None:
        """Wait for the condition. If the worker is killed, start another."""

        def done() -> object:
            if crew.members[-1].alive:
                return condition()
            if killed and len(crew.members) == 1:
                crew.start_one(options=("--poll", "500ms"))
                return False
            return True

        try:
            until(done, what)
            assert crew.alive or (killed and len(crew.members) == 1), f"the worker ended before {what}"
        except AssertionError as error:
            raise AssertionError(f"{error}\n{crew.said()}") from None

    def _all_ended(self, app: App) -> bool:
        if _waits_for_event(app, self.ids["order"]):
            app.send_event("shipped", {"job": self.ids["order"], "what": "parcel 7"})
        counts = state_counts(app)
        return sum(counts.values()) == len(self.ids) + 1 == sum(counts.get(state, 0) for state in FINISHED)

    def _check(self, url: str, folder: Path) -> None:
        with closing(open_store(url)) as store:
            check_ledger(store)
            results = {kind: store.run(store.jobs.result(job, "*")) for kind, job in self.ids.items()}
        with closing(App(url)) as app:
            (child,) = {job.id for job in app.jobs.list(kind="work")} - {self.ids["work"]}
        snapshot = check(url, {*self.ids.values(), child}, folder=folder)
        ends = {kind: snapshot.rows[job].state for kind, job in self.ids.items()}
        assert ends.pop("ahold") is State.CANCELLED
        assert ends.pop("fail") is State.DEAD_LETTER
        assert set(ends.values()) == {State.SUCCEEDED}, ends
        for kind in ("order", "order_in_thread"):
            assert (result := results[kind]) is not None
            assert result.value == RESULT


def _kills(fault: tuple[Any, ...] | None) -> bool:
    return fault is not None and fault[1] == "killed"


def _put(app: App, kind: str, retry: Retry = AT_ONCE, **payload: object) -> str:
    return put(session_of(app).store, spec(kind, payload=payload, retry=retry))[0]


def _waits_for_event(app: App, job: str) -> bool:
    steps = session_of(app).store.run(session_of(app).store.steps.list(job, "*"))
    return bool(steps) and steps[-1].kind == "event" and not steps[-1].over


# -- maintenance ---------------------------------------------------------------------------------------------------


class MaintenanceScenario:
    """A database with work for every maintenance task."""

    def __init__(
        self,
        databases: Callable[[Callable[[str], None]], Databases],
        link: Callable[[str], AbstractContextManager[Link]] = Proxy,
    ) -> None:
        self._link = link
        self._databases = databases(_prepare_maintenance)

    def close(self) -> None:
        self._databases.close()

    def run(self, fault: tuple[Any, ...] | None) -> tuple[int, Ends]:
        """Run the tasks once with the fault, then until nothing is left. Returns the requests of the first run, and how
        the jobs ended."""
        with self._databases.fresh() as url:
            with self._link(url) as link, closing(_scheduled_app(link.url)) as app:
                if fault is not None:
                    link.inject(fault, 0.3)
                asyncio.run(_run_maintenance(app))
                requests = link.requests
            with closing(_scheduled_app(url)) as app:
                for _ in range(3):
                    asyncio.run(_run_maintenance(app))
                assert [operation.state for operation in app.operations.list()] == ["done"]
            with closing(open_store(url)) as store:
                check_ledger(store)
                ledgers: dict[str, list[str]] = {}
                kinds: dict[str, str] = {}
                for event in read_events(store):
                    ledgers.setdefault(event.job_id, []).append(event.type)
                    kinds[event.job_id] = event.kind
            return requests, Counter((kinds[job], tuple(event_types)) for job, event_types in ledgers.items())


def _scheduled_app(url: str) -> App:
    """Declare the scheduled kinds: schedules create only jobs with a handler."""
    app = App(url)
    for kind in ("scheduled", "followed"):
        app.job(kind)(lambda: None)
    return app


def _prepare_maintenance(url: str) -> None:
    """Create the work, then advance the clock by three hours so that all of it is due."""
    with closing(_scheduled_app(url)) as app:
        store = session_of(app).store
        store.migrate()
        app.schedules.add("hourly", "every 1h", kind="scheduled", missed="all")
        app.subscriptions.set("after", on="job.succeed", kind="followed", of_kind="done")
        keep(store, "2h", kind="done")
        put(store, *(spec("done") for _ in range(3)))
        work(store, want=3)
        put(store, *(spec("lost") for _ in range(2)))
        claim(store, open_lease(store), 2)
        put(store, *(spec("unwanted", queue="unwanted") for _ in range(3)))
        app.operations.start("cancel", queue="unwanted")
        app.enqueue("delayed", delay="1h")
        app.enqueue("overdue", deadline=datetime.now(UTC) + timedelta(hours=1), queue="late")
        store.run(store.clock.set(timedelta(hours=3), None))


async def _run_maintenance(app: App) -> None:
    """Run all tasks one after another, as a worker does."""
    tasks = (*maintenance_tasks(app, EVERY_TENANT, 0, 0), *standard_tasks(EVERY_TENANT, promote_every=0, sweep_every=0))
    for first in tasks:
        task: MaintenanceTask | None = first
        while task is not None:
            await run_once(task, session_of(app).store)
            task = task.then
    await app.aclose()


# -- the HTTP server -----------------------------------------------------------------------------------------------


class Server:
    """A process of `holdfast serve` on a link; `app` reads the database directly.

    ``reliable``: an enqueue succeeds despite one fault. ``codes``: the error codes for an unavailable database.
    """

    def __init__(
        self,
        url: str,
        link: Link,
        folder: Path,
        *,
        reliable: bool = True,
        codes: Collection[str] = ("store_unavailable",),
    ) -> None:
        self.link, self.app = link, App(url)
        self.reliable, self._codes = reliable, codes
        self._log, out = folder / "serve.log", folder / "address"
        command = ["serve", "--no-auth", "--no-maintenance", "--port", "0", "--json"]
        extra, program = link.settings.get("extra"), link.settings.get("program")
        env = environment(link.url, folder, extra)
        self._process = Warm(command, cwd=ROOT, env=env, log=out, errors=self._log, program=program)
        address = until(lambda: self._process.poll() is not None or (out.exists() and out.read_text()), "it serves")
        assert isinstance(address, str), self.log()
        self.http = httpx2.Client(base_url=json.loads(address)["address"], timeout=30)

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def request(self, method: str, path: str, fault: Any, body: Any = None) -> httpx2.Response:
        """Send a request with a fault. The response is the requested one, or a 503 with a problem document."""
        if fault is not None:
            self.link.inject(fault, 0.3)
        response = self.http.request(method, path, json=body, headers={"Accept": "text/html, application/json"})
        self.link.clear()
        assert response.status_code < 500 or response.status_code == 503, f"{method} {path}: {response.text}"
        if response.status_code == 503 and path.startswith(("/api", "/readyz", "/metrics")):
            assert response.headers["content-type"] == "application/problem+json"
            assert response.json()["code"] in self._codes, response.text
        return response

    def count_requests(self, method: str, path: str, body: Any = None) -> int:
        """Count the database requests of an HTTP request, plus three for a connection that may have to be opened."""
        before = self.link.requests
        self.request(method, path, None, body)
        return self.link.requests - before + 3

    def pages(self) -> list[str]:
        """Return all pages of the API and the dashboard without path parameters."""
        paths = self.http.get("/api/v1/openapi.json").json()["paths"]
        api = [path for path, methods in paths.items() if "get" in methods and "{" not in path and "stream" not in path]
        links = re.findall(r'href="(/[a-z-]*)"', self.http.get("/", headers={"Accept": "text/html"}).text)
        return sorted({*api, *links, "/"} - {"/logout"})

    def stop(self) -> None:
        self.app.close()
        self.http.close()
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(TIMEOUT) == 0, self.log()
        assert not any(leak in self.log() for leak in LEAKS), self.log()


def _enqueue(server: Server, fault: Any) -> None:
    before = {job.id for job in server.app.jobs.list(limit=1000)}
    response = server.request("POST", "/api/v1/jobs", fault, {"kind": "x", "payload": {"n": 1}})
    after = {job.id for job in server.app.jobs.list(limit=1000)}
    if response.status_code == 503 and not server.reliable:
        assert before == after
        return
    assert (response.status_code, after - before) == (201, {response.json()["id"]})


def _cancel(server: Server, fault: Any) -> None:
    handle = server.app.enqueue("x")
    response = server.request("POST", f"/api/v1/jobs/{handle.id}/cancel", fault)
    if response.status_code == 503:
        assert handle.state() in (State.QUEUED, State.CANCELLED)
        again = server.http.post(f"/api/v1/jobs/{handle.id}/cancel")
        assert again.status_code in (200, 409)
    assert [event.type for event in handle.history()] == ["enqueue", "cancel"]


def _settle(server: Server, fault: Any) -> None:
    handle = server.app.enqueue("x", queue="elsewhere")
    lease = server.http.post("/api/v1/leases", json={"queues": ["elsewhere"]}).json()["lease"]
    (job,) = server.http.post(f"/api/v1/leases/{lease}/claim", json={"queues": ["elsewhere"]}).json()["jobs"]
    body = {"job": handle.id, "attempt": job["attempt"], "outcome": "succeeded", "result": 7}
    response = server.request("POST", f"/api/v1/leases/{lease}/settle", fault, body)
    if response.status_code == 503 and not server.reliable:
        response = server.http.post(f"/api/v1/leases/{lease}/settle", json=body)
    assert response.status_code == 200
    assert handle.result(timeout=1) == 7
    assert [event.type for event in handle.history()].count("succeed") == 1


WRITES = {"enqueue": _enqueue, "cancel": _cancel, "settle": _settle}
