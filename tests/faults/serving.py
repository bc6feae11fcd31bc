"""The service as a process, all of its pages, and some writes over HTTP with what must be true of them."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Collection
from pathlib import Path
from typing import Any

import httpx2

from holdfast import App, State
from tests.faults.workplace import BROKEN, Line
from tests.support.forkserver import Warm
from tests.support.waiting import until
from tests.support.worker_processes import PATIENCE, ROOT, environment


class Service:
    """`holdfast serve` as a process, on a line with trouble; `app` looks from outside. ``sure``: what is to be enqueued
    is, whatever happens to it on the way once. ``codes`` are those by which it may be said that the store is away."""

    def __init__(
        self, url: str, line: Line, folder: Path, *, sure: bool = True, codes: Collection[str] = ("store_unavailable",)
    ) -> None:
        self.line, self.app = line, App(url)
        self.sure, self._codes = sure, codes
        self._log, out = folder / "serve.log", folder / "address"
        command = ["serve", "--no-auth", "--no-duties", "--port", "0", "--json"]
        extra, program = line.settings.get("extra"), line.settings.get("program")
        env = environment(line.url, folder, extra)
        self._process = Warm(command, cwd=ROOT, env=env, log=out, errors=self._log, program=program)
        address = until(lambda: self._process.poll() is not None or (out.exists() and out.read_text()), "it serves")
        assert isinstance(address, str), self.said()
        self.http = httpx2.Client(base_url=json.loads(address)["address"], timeout=30)

    def said(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def ask(self, method: str, path: str, trouble: Any, body: Any = None) -> httpx2.Response:
        """What is answered is what was asked for, or that the store is away, in the words of the API."""
        if trouble is not None:
            self.line.trouble(trouble, 0.3)
        answer = self.http.request(method, path, json=body, headers={"Accept": "text/html, application/json"})
        self.line.over()
        assert answer.status_code < 500 or answer.status_code == 503, f"{method} {path}: {answer.text}"
        if answer.status_code == 503 and path.startswith(("/api", "/readyz", "/metrics")):
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["code"] in self._codes, answer.text
        return answer

    def asked(self, method: str, path: str, body: Any = None) -> int:
        """How many requests to the database that takes, at most: a connection may have to be opened."""
        before = self.line.asked
        self.ask(method, path, None, body)
        return self.line.asked - before + 3

    def stop(self) -> None:
        self.app.close()
        self.http.close()
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(PATIENCE) == 0, self.said()
        assert not any(word in self.said() for word in BROKEN), self.said()


def pages(service: Service) -> list[str]:
    """All that can be looked at without naming anything, in the API and in the dashboard."""
    paths = service.http.get("/api/v1/openapi.json").json()["paths"]
    api = [
        path for path, event_types in paths.items() if "get" in event_types and "{" not in path and "stream" not in path
    ]
    links = re.findall(r'href="(/[a-z-]*)"', service.http.get("/", headers={"Accept": "text/html"}).text)
    return sorted({*api, *links, "/"} - {"/logout"})


def _enqueue(service: Service, trouble: Any) -> None:
    before = {job.id for job in service.app.jobs.list(limit=1000)}
    answer = service.ask("POST", "/api/v1/jobs", trouble, {"kind": "x", "payload": {"n": 1}})
    after = {job.id for job in service.app.jobs.list(limit=1000)}
    if answer.status_code == 503 and not service.sure:
        assert before == after
        return
    assert (answer.status_code, after - before) == (201, {answer.json()["id"]})


def _cancel(service: Service, trouble: Any) -> None:
    handle = service.app.enqueue("x")
    answer = service.ask("POST", f"/api/v1/jobs/{handle.id}/cancel", trouble)
    if answer.status_code == 503:
        assert handle.state() in (State.QUEUED, State.CANCELLED)
        again = service.http.post(f"/api/v1/jobs/{handle.id}/cancel")
        assert again.status_code in (200, 409)
    assert [event.type for event in handle.history()] == ["enqueue", "cancel"]


def _settle(service: Service, trouble: Any) -> None:
    """What a worker elsewhere does."""
    handle = service.app.enqueue("x", queue="elsewhere")
    lease = service.http.post("/api/v1/leases", json={"queues": ["elsewhere"]}).json()["lease"]
    (job,) = service.http.post(f"/api/v1/leases/{lease}/claim", json={"queues": ["elsewhere"]}).json()["jobs"]
    said = {"job": handle.id, "attempt": job["attempt"], "outcome": "succeeded", "result": 7}
    answer = service.ask("POST", f"/api/v1/leases/{lease}/settle", trouble, said)
    if answer.status_code == 503 and not service.sure:
        answer = service.http.post(f"/api/v1/leases/{lease}/settle", json=said)
    assert answer.status_code == 200
    assert handle.result(timeout=1) == 7
    assert [event.type for event in handle.history()].count("succeed") == 1


WRITES = {"enqueue": _enqueue, "cancel": _cancel, "settle": _settle}
