"""Fault 50: `holdfast serve` while it starts and while it leaves, beside a database that is cut off or silent.

It comes up once the database is there, or ends with an error that says why. It leaves within its grace whatever is
under way: streams, long polls, claims, half of an upload. Whoever was told that something was accepted finds it;
whoever was not is told that nobody knows; and the leases of workers elsewhere outlast it.
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
from tests.faults.test_48_every_request import FATES, every
from tests.faults.workplace import BROKEN, Cut
from tests.support.forkserver import Warm
from tests.support.proxy import Fate, Proxy
from tests.support.waiting import until
from tests.support.worker_processes import PATIENCE, ROOT, environment

pytestmark = pytest.mark.req("JF-14", "SC-13", "CX-15", "DP-8")

HALF = b'{"kind": "half", '


class Serving:
    """The process; ``address`` is there when it serves."""

    def __init__(self, url: str, folder: Path) -> None:
        self._out, self._log = folder / "address", folder / "serve.log"
        command = ["serve", "--no-auth", "--port", "0", "--json"]
        self.process = Warm(command, cwd=ROOT, env=environment(url, folder), log=self._out, errors=self._log)

    @property
    def address(self) -> str | None:
        said = self._out.read_text() if self._out.exists() else ""
        return str(json.loads(said)["address"]) if said.endswith("}\n") else None

    def said(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def begun(self) -> httpx2.Client:
        """A client of it, once it serves and has found its database."""
        address = until(lambda: self.address or self.process.poll() is not None, "it serves, or has ended")
        assert isinstance(address, str), self.said()
        client = httpx2.Client(base_url=address, timeout=30)
        until(lambda: client.get("/readyz").status_code == 200, "it has found its database")
        return client

    def left(self) -> int:
        """Its exit code; it is not waited for any longer than its grace and what it needs to close."""
        code = self.process.wait(PATIENCE)
        assert not any(word in self.said() for word in BROKEN), self.said()
        return code


@contextmanager
def serving(url: str) -> Iterator[Serving]:
    with TemporaryDirectory() as folder:
        made = Serving(url, Path(folder))
        try:
            yield made
        finally:
            if made.process.poll() is None:
                made.process.kill()
                made.process.wait(10)


class Beside:
    """Requests that are under way while the test goes on."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}
        self._threads: list[threading.Thread] = []

    def ask(self, name: str, act: Callable[[], Any]) -> None:
        def run() -> None:
            try:
                self.told[name] = act()
            except httpx2.HTTPError as error:
                self.told[name] = error

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def wait(self) -> dict[str, Any]:
        for thread in self._threads:
            thread.join(30)
        return self.told


@contextmanager
def posting(address: str, path: str, body: bytes, length: int | None = None) -> Iterator[socket.socket]:
    """A request that has been sent, or as much of it as there is."""
    place = httpx2.URL(address)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {place.host}:{place.port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length or len(body)}\r\n\r\n"
    )
    with socket.create_connection((place.host, place.port or 80)) as connection:
        connection.sendall(head.encode() + body)
        connection.settimeout(60)
        yield connection


def answered(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and document; 0 where there is no answer."""
    found = b""
    try:
        while piece := connection.recv(65536):
            found += piece
    except ConnectionError:
        pass
    if not found:
        return 0, {}
    head, _, body = found.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def follow(address: str, begun: threading.Event) -> str:
    """Everything that a stream tells until it ends."""
    with httpx2.Client(base_url=address, timeout=60) as own, own.stream("GET", "/api/v1/events/stream") as answer:
        lines = []
        for line in answer.iter_lines():
            lines.append(line)
            begun.set()
    return "\n".join(lines)


def started_through(url: str, cut: Cut | None) -> int:
    """It comes up, takes a job, and leaves; how many requests to the database its start took."""
    with Proxy(url) as proxy, closing(App(url)) as app:
        if cut is not None:
            proxy.cut_nth(*cut, 0.3)
        with serving(proxy.url) as service, closing(service.begun()) as client:
            asked = proxy.asked
            proxy.cut_none()
            answer = client.post("/api/v1/jobs", json={"kind": "x", "payload": {}})
            assert (answer.status_code, app.jobs.get(answer.json()["id"]) is not None) == (201, True), answer.text
            service.process.send_signal(signal.SIGTERM)
            assert service.left() == 0, service.said()
    return asked


@pytest.mark.slow
def test_some_requests_of_a_start(postgres_url: str, choice: random.Random) -> None:
    cut = (choice.randint(1, 20), choice.choice(FATES))
    print(cut)
    started_through(postgres_url, cut)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("fate", FATES)
def test_every_request_of_a_start(postgres_url: str, fate: Fate) -> None:
    asked = started_through(postgres_url, None)
    every([(number, fate) for number in range(1, asked + 1)], lambda cut: started_through(postgres_url, cut))


def asked_to_leave_at(url: str, number: int) -> None:
    """SIGTERM when it has asked so often: it has begun nothing yet, or leaves in order."""
    with Proxy(url) as proxy, serving(proxy.url) as service:
        until(lambda: proxy.asked >= number or service.address, "it has come so far")
        service.process.send_signal(signal.SIGTERM)
        code = service.left()
        assert code in (0, -signal.SIGTERM), (code, service.said())
        assert code == 0 or service.address is None


def test_asked_to_leave_while_it_starts(postgres_url: str, choice: random.Random) -> None:
    number = choice.randint(0, 20)
    print(number)
    asked_to_leave_at(postgres_url, number)


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_asked_to_leave_at_every_request_of_its_start(postgres_url: str) -> None:
    for number in range(25):
        asked_to_leave_at(postgres_url, number)


@pytest.mark.slow
def test_without_a_database_it_waits_says_so_once_and_can_be_stopped() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with serving(f"postgresql://someone@127.0.0.1:{port}/none") as service:
        until(lambda: "Database unavailable" in service.said(), "it says that it waits")
        assert service.process.poll() is None
        service.process.send_signal(signal.SIGTERM)
        service.left()
        assert service.said().count("Database unavailable") == 1


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_it_leaves_a_silent_database_and_keeps_what_it_has_accepted(postgres_url: str) -> None:
    """All that can be under way is, when nothing comes from the database any more and it is asked to leave."""
    with Proxy(postgres_url) as proxy, closing(App(postgres_url)) as app:
        with serving(proxy.url) as service, closing(service.begun()) as client:
            accepted = client.post("/api/v1/jobs", json={"kind": "x", "payload": {}, "queue": "elsewhere"}).json()["id"]
            lease = client.post("/api/v1/leases", json={"queues": ["elsewhere"], "ttl": 120}).json()["lease"]
            beside, following = Beside(), threading.Event()
            address, claim = service.address or "", f"/api/v1/leases/{lease}/claim"
            beside.ask("stream", lambda: follow(address, following))
            assert following.wait(30)
            with (
                posting(address, claim, b'{"queues": ["nothing"], "wait": 20}') as poll,
                posting(address, "/api/v1/jobs", HALF, 100) as upload,
            ):
                client.get("/livez")  # those before it have been let in
                proxy.blackhole()
                with (
                    posting(address, claim, b'{"queues": ["elsewhere"]}') as taking,
                    posting(address, "/api/v1/jobs", b'{"kind": "y"}') as write,
                ):
                    client.get("/livez")
                    service.process.send_signal(signal.SIGTERM)
                    assert service.left() == 0
                    told = {each: answered(each) for each in (poll, upload, taking, write)}
        proxy.restore()
        assert isinstance(beside.wait()["stream"], str)  # it came to its end
        cut_off = told.pop(upload)  # by the service that leaves, or because the body took too long
        assert (cut_off[0], cut_off[1]["code"]) in ((503, "store_unavailable"), (408, "body_too_slow"))
        for status, document in told.values():
            assert status in (200, 201, 503), document
            assert status != 503 or document["code"] == "store_unavailable"
        assert app.jobs.get(accepted) is not None
        # The worker elsewhere goes on with its lease, at another service: what it took in that claim it is told of.
        with serving(postgres_url) as service, closing(service.begun()) as client:
            held = client.post(f"/api/v1/leases/{lease}/renew").json()["jobs"]
            if not held:
                held = client.post(f"/api/v1/leases/{lease}/claim", json={"queues": ["elsewhere"]}).json()["jobs"]
            assert [each["id"] for each in held] == [accepted]
            service.process.send_signal(signal.SIGTERM)
            assert service.left() == 0


@pytest.mark.slow
def test_asked_twice_it_leaves_at_once(postgres_url: str) -> None:
    """Half of an upload is waited for as long as the grace lasts, and not when it is asked again: then it is not even
    answered."""
    with serving(postgres_url) as service, closing(service.begun()) as client:
        with posting(service.address or "", "/api/v1/jobs", HALF, 100) as upload:
            client.get("/livez")
            service.process.send_signal(signal.SIGTERM)
            until(lambda: refused(client), "it takes no more requests")
            service.process.send_signal(signal.SIGTERM)
            assert service.left() == 0
            assert answered(upload)[0] in (0, 503)
        assert "timeout graceful shutdown exceeded" not in service.said()


def refused(client: httpx2.Client) -> bool:
    try:
        with httpx2.Client(base_url=client.base_url, timeout=5) as another:
            return another.get("/livez").status_code >= 500
    except httpx2.HTTPError:
        return True


@pytest.mark.slow
def test_killed_it_has_lost_nothing_that_it_accepted(postgres_url: str) -> None:
    with closing(App(postgres_url)) as app, serving(postgres_url) as service, closing(service.begun()) as client:
        accepted: list[str] = []

        def enqueue() -> None:
            while True:
                answer = client.post("/api/v1/jobs", json={"kind": "x", "payload": {}})
                assert answer.status_code == 201
                accepted.append(answer.json()["id"])

        beside = Beside()
        beside.ask("writes", enqueue)
        until(lambda: len(accepted) > 10, "some were accepted")
        service.process.kill()
        service.process.wait(10)
        assert isinstance(beside.wait()["writes"], httpx2.HTTPError)
        found = {job.id for job in app.jobs.list(limit=1000)}
        assert set(accepted) <= found
        assert len(found) <= len(accepted) + 1
