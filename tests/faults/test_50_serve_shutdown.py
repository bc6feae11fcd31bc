"""Fault 50: `holdfast serve` starts and stops while its database is disconnected or silent.

It starts when the database is available, or exits with an error that gives the reason. It stops within its grace with
any requests in progress: streams, long polls, claims, partial uploads. Accepted jobs exist; other callers get an error
for an unknown outcome; and the leases of remote workers stay valid.
"""

from __future__ import annotations

import json
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
import pytest

from holdfast import App
from tests.faults.every_point import every
from tests.faults.scenarios import LEAKS
from tests.faults.test_48_every_request import FATES
from tests.support.forkserver import Warm
from tests.support.proxy import Cut, Fate, Proxy
from tests.support.waiting import until
from tests.support.worker_processes import ROOT, TIMEOUT, environment

pytestmark = pytest.mark.req("JF-14", "SC-13", "CX-15", "DP-8")

HALF = b'{"kind": "half", '


class ServeProcess:
    """A process of `holdfast serve`; ``address`` is set when it serves."""

    def __init__(self, url: str, folder: Path) -> None:
        self._out, self._log = folder / "address", folder / "serve.log"
        command = ["serve", "--no-auth", "--port", "0", "--json"]
        self.process = Warm(command, cwd=ROOT, env=environment(url, folder), log=self._out, errors=self._log)

    @property
    def address(self) -> str | None:
        output = self._out.read_text() if self._out.exists() else ""
        return str(json.loads(output)["address"]) if output.endswith("}\n") else None

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def client(self) -> httpx2.Client:
        """Return a client once the server is ready."""
        address = until(lambda: self.address or self.process.poll() is not None, "it serves, or has ended")
        assert isinstance(address, str), self.log()
        client = httpx2.Client(base_url=address, timeout=30)
        until(lambda: client.get("/readyz").status_code == 200, "it is connected to its database")
        return client

    def wait(self) -> int:
        """Wait for the exit code, not longer than the grace and the time to close."""
        code = self.process.wait(TIMEOUT)
        assert not any(word in self.log() for word in LEAKS), self.log()
        return code


@contextmanager
def serving(url: str) -> Iterator[ServeProcess]:
    with TemporaryDirectory() as folder:
        server = ServeProcess(url, Path(folder))
        try:
            yield server
        finally:
            if server.process.poll() is None:
                server.process.kill()
                server.process.wait(10)


class Background:
    """Requests in background threads."""

    def __init__(self) -> None:
        self.results: dict[str, Any] = {}
        self._threads: list[threading.Thread] = []

    def start(self, name: str, call: Callable[[], Any]) -> None:
        def run() -> None:
            try:
                self.results[name] = call()
            except httpx2.HTTPError as error:
                self.results[name] = error

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def wait(self) -> dict[str, Any]:
        for thread in self._threads:
            thread.join(30)
        return self.results


@contextmanager
def posting(address: str, path: str, body: bytes, length: int | None = None) -> Iterator[socket.socket]:
    """Send a request; with a larger `length` it is incomplete."""
    server = httpx2.URL(address)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {server.host}:{server.port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length or len(body)}\r\n\r\n"
    )
    with socket.create_connection((server.host, server.port or 80)) as connection:
        connection.sendall(head.encode() + body)
        connection.settimeout(60)
        yield connection


def read_response(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Read the status and the document; 0 without a response."""
    response = b""
    try:
        while piece := connection.recv(65536):
            response += piece
    except ConnectionError:
        pass
    if not response:
        return 0, {}
    head, _, body = response.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def follow(address: str, started: threading.Event) -> str:
    """Read an event stream to its end."""
    with httpx2.Client(base_url=address, timeout=60) as own, own.stream("GET", "/api/v1/events/stream") as response:
        lines = []
        for line in response.iter_lines():
            lines.append(line)
            started.set()
    return "\n".join(lines)


def start_and_stop(url: str, cut: Cut | None) -> int:
    """Start the server, enqueue a job and stop it. Returns the database requests of its start."""
    with Proxy(url) as proxy, closing(App(url)) as app:
        if cut is not None:
            proxy.inject(cut, 0.3)
        with serving(proxy.url) as server, closing(server.client()) as client:
            requests = proxy.requests
            proxy.clear()
            response = client.post("/api/v1/jobs", json={"kind": "x", "payload": {}})
            assert (response.status_code, app.jobs.get(response.json()["id"]) is not None) == (201, True), response.text
            server.process.send_signal(signal.SIGTERM)
            assert server.wait() == 0, server.log()
    return requests


@pytest.mark.slow
def test_start_survives_some_lost_requests(postgres_url: str, choice: random.Random) -> None:
    cut = (choice.randint(1, 20), choice.choice(FATES))
    print(cut)
    start_and_stop(postgres_url, cut)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("fate", FATES)
def test_start_survives_every_lost_request(postgres_url: str, fate: Fate) -> None:
    requests = start_and_stop(postgres_url, None)
    every([(number, fate) for number in range(1, requests + 1)], lambda cut: start_and_stop(postgres_url, cut))


def stop_during_start(url: str, number: int) -> None:
    """Send SIGTERM at that database request: the server has not started, or stops cleanly."""
    with Proxy(url) as proxy, serving(proxy.url) as server:
        until(lambda: proxy.requests >= number or server.address, "it has reached that request")
        server.process.send_signal(signal.SIGTERM)
        code = server.wait()
        assert code in (0, -signal.SIGTERM), (code, server.log())
        assert code == 0 or server.address is None


def test_server_can_be_stopped_while_it_starts(postgres_url: str, choice: random.Random) -> None:
    number = choice.randint(0, 20)
    print(number)
    stop_during_start(postgres_url, number)


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_server_can_be_stopped_at_every_request_of_its_start(postgres_url: str) -> None:
    for number in range(25):
        stop_during_start(postgres_url, number)


@pytest.mark.slow
def test_server_without_database_waits_logs_once_and_can_be_stopped() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with serving(f"postgresql://someone@127.0.0.1:{port}/none") as server:
        until(lambda: "Database unavailable" in server.log(), "it logs that it waits")
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        server.wait()
        assert server.log().count("Database unavailable") == 1


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_server_stops_while_database_is_silent_and_loses_no_accepted_job(postgres_url: str) -> None:
    """A stream, a long poll, a partial upload, a claim and a write are in progress when the database stops responding
    and the server is stopped."""
    with Proxy(postgres_url) as proxy, closing(App(postgres_url)) as app:
        with serving(proxy.url) as server, closing(server.client()) as client:
            accepted = client.post("/api/v1/jobs", json={"kind": "x", "payload": {}, "queue": "elsewhere"}).json()["id"]
            lease = client.post("/api/v1/leases", json={"queues": ["elsewhere"], "ttl": 120}).json()["lease"]
            background, following = Background(), threading.Event()
            address, claim = server.address or "", f"/api/v1/leases/{lease}/claim"
            background.start("stream", lambda: follow(address, following))
            assert following.wait(30)
            with (
                posting(address, claim, b'{"queues": ["nothing"], "wait": 20}') as poll,
                posting(address, "/api/v1/jobs", HALF, 100) as upload,
            ):
                client.get("/livez")  # the requests before it have been accepted
                proxy.blackhole()
                with (
                    posting(address, claim, b'{"queues": ["elsewhere"]}') as taking,
                    posting(address, "/api/v1/jobs", b'{"kind": "y"}') as write,
                ):
                    client.get("/livez")
                    server.process.send_signal(signal.SIGTERM)
                    assert server.wait() == 0
                    responses = {each: read_response(each) for each in (poll, upload, taking, write)}
        proxy.restore()
        assert isinstance(background.wait()["stream"], str)  # the stream ended
        partial = responses.pop(upload)  # refused because the server stops, or because the body is too slow
        assert (partial[0], partial[1]["code"]) in ((503, "store_unavailable"), (408, "body_too_slow"))
        for status, document in responses.values():
            assert status in (200, 201, 503), document
            assert status != 503 or document["code"] == "store_unavailable"
        assert app.jobs.get(accepted) is not None
        # The remote worker continues with its lease at another server, which returns the jobs of that claim.
        with serving(postgres_url) as server, closing(server.client()) as client:
            held = client.post(f"/api/v1/leases/{lease}/renew").json()["jobs"]
            if not held:
                held = client.post(f"/api/v1/leases/{lease}/claim", json={"queues": ["elsewhere"]}).json()["jobs"]
            assert [each["id"] for each in held] == [accepted]
            server.process.send_signal(signal.SIGTERM)
            assert server.wait() == 0


@pytest.mark.slow
def test_second_signal_stops_the_server_at_once(postgres_url: str) -> None:
    """The server waits for a partial upload during its grace; a second signal ends the wait without a response."""
    with serving(postgres_url) as server, closing(server.client()) as client:
        with posting(server.address or "", "/api/v1/jobs", HALF, 100) as upload:
            client.get("/livez")
            server.process.send_signal(signal.SIGTERM)
            until(lambda: refused(client), "it accepts no more requests")
            server.process.send_signal(signal.SIGTERM)
            assert server.wait() == 0
            assert read_response(upload)[0] in (0, 503)
        assert "timeout graceful shutdown exceeded" not in server.log()


def refused(client: httpx2.Client) -> bool:
    try:
        with httpx2.Client(base_url=client.base_url, timeout=5) as another:
            return another.get("/livez").status_code >= 500
    except httpx2.HTTPError:
        return True


@pytest.mark.slow
def test_killed_server_loses_no_accepted_job(postgres_url: str) -> None:
    with closing(App(postgres_url)) as app, serving(postgres_url) as server, closing(server.client()) as client:
        accepted: list[str] = []

        def enqueue() -> None:
            while True:
                response = client.post("/api/v1/jobs", json={"kind": "x", "payload": {}})
                assert response.status_code == 201
                accepted.append(response.json()["id"])

        background = Background()
        background.start("writes", enqueue)
        until(lambda: len(accepted) > 10, "some jobs are accepted")
        server.process.kill()
        server.process.wait(10)
        assert isinstance(background.wait()["writes"], httpx2.HTTPError)
        jobs = {job.id for job in app.jobs.list(limit=1000)}
        assert set(accepted) <= jobs
        assert len(jobs) <= len(accepted) + 1
