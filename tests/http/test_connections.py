"""Connections of the client: per process, per event loop, kept for a while, and enough for all requests."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn

from holdfast import errors
from holdfast.engine.operation import adrive, drive
from holdfast.remote import Client, Retrying, transport
from holdfast.remote.http_requests import get, post
from tests.http.conftest import Driver
from tests.http.scripted_server import Echo, Hostile, event
from tests.support.waiting import until

pytestmark = pytest.mark.req("JF-14")

Drive = Callable[..., Driver]

ONCE = Retrying(tries=1)


async def request_path(client: Client, word: object) -> Any:
    """Make a request; the server responds with its path."""
    return await adrive(client._request(get(f"/{word}")), client._aperform)


FORKING = """
import json, os, sys
from holdfast.engine.operation import drive
from holdfast.remote import Client, HttpxTransport, Retrying
from holdfast.remote.http_requests import get

def asked(client, word):
    try:
        return drive(client._request(get(f"/{word}")), client._perform)["path"] == f"/api/v1/{word}"
    except Exception as error:
        return getattr(error, "code", repr(error))

def forked(client):
    asked(client, "before")
    read, write = os.pipe()
    child = os.fork()
    who = "child" if child == 0 else "parent"
    found = sorted({asked(client, f"{who}-{n}") for n in range(5)}, key=str)
    if child == 0:
        os.write(write, json.dumps(found).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return [found, json.loads(os.read(read, 10_000))]

import httpx2
own = forked(Client(sys.argv[1], retrying=Retrying(tries=1)))
theirs = Client(sys.argv[1], retrying=Retrying(tries=1), transport=HttpxTransport(httpx2.Client()))
print(json.dumps([own, forked(theirs)]))
"""


@pytest.mark.slow
def test_forked_child_does_not_share_connections_with_its_parent() -> None:
    # The server alternates between the two, so that shared connections would mix up responses.
    barrier = threading.Barrier(2)

    def hold(path: str) -> None:
        if not path.endswith("/before"):
            wait_for_other(barrier)

    with Echo(hold) as server:
        run = subprocess.run([sys.executable, "-c", FORKING, server.url], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    own, theirs = json.loads(run.stdout)
    assert own == [[True], [True]]
    # A given httpx client cannot be copied: an error is better than responses of the other process.
    assert theirs == [[True], ["client_elsewhere"]]


def wait_for_other(barrier: threading.Barrier) -> None:
    try:
        barrier.wait(0.1)
    except threading.BrokenBarrierError:
        barrier.reset()


LOOPING = """
import asyncio, json, sys
import httpx2
from holdfast.engine.operation import adrive
from holdfast.remote import AsyncHttpxTransport, Client, Retrying
from holdfast.remote.http_requests import get

def looped(client):
    async def together():
        asked = (adrive(client._request(get(f"/{n}")), client._aperform) for n in range(3))
        return [each["path"][-1:] for each in await asyncio.gather(*asked)]

    def run(act):
        try:
            return asyncio.run(act)
        except Exception as error:
            return getattr(error, "code", repr(error))

    return [run(together()), run(together()), run(together()), run(client.aclose())]

own = looped(Client(sys.argv[1], retrying=Retrying(tries=1)))
given = AsyncHttpxTransport(httpx2.AsyncClient())
print(json.dumps([own, looped(Client(sys.argv[1], retrying=Retrying(tries=1), async_transport=given))]))
"""


@pytest.mark.slow
def test_client_can_be_used_on_several_event_loops() -> None:
    with Echo() as server:
        run = subprocess.run([sys.executable, "-c", LOOPING, server.url], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    own, given = json.loads(run.stdout)
    assert own == [["0", "1", "2"]] * 3 + [None]
    assert given[:3] == [["0", "1", "2"], "client_elsewhere", "client_elsewhere"]


def test_closing_a_client_ends_a_follower_that_waits_for_events(drive: Drive) -> None:
    """The follower fails at once although the service stays silent."""
    waiting, ended = threading.Event(), threading.Event()
    in_time: list[bool] = []

    def streams(connection: socket.socket, _: bytes) -> None:
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        connection.sendall((head + event(1)).encode())
        in_time.append(ended.wait(20))

    with Hostile(streams) as server:
        driver = drive(server.url, timeout=60.0)
        with pytest.raises(errors.InvalidSetting) as raised:
            _follow_until_closed(driver, waiting)
        ended.set()
        until(lambda: in_time != [], "the service has ended")
        assert in_time == [True]
        assert raised.value.code == "client_closed"
        with pytest.raises(errors.InvalidSetting, match="closed"):
            driver.do(lambda client: client.jobs.get("7"))


def _follow_until_closed(driver: Driver, waiting: threading.Event) -> None:
    """Follow from this thread or loop; another closes the client after the first event, when the follower asks for the
    second. A client that is closed a moment before that must fail in the same way."""
    client = driver.client

    def close_when_waiting() -> None:
        assert waiting.wait(20)
        client.close()

    async def follow() -> None:
        async for _ in client.events.follow():
            waiting.set()

    async def follow_and_close() -> None:
        following = asyncio.create_task(follow())
        assert await asyncio.to_thread(waiting.wait, 20)
        await client.aclose()
        await following

    if driver.blocking:
        closer = threading.Thread(target=close_when_waiting)
        closer.start()
        try:
            for _ in client.events.follow():
                waiting.set()
        finally:
            closer.join(20)
    else:
        driver.loop.run_until_complete(follow_and_close())


def test_a_dropped_or_cancelled_follower_leaves_no_connection_behind() -> None:
    gone = threading.Semaphore(0)

    def streams(connection: socket.socket, _: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: here\nid: 5\n\n")
        if connection.recv(1) == b"":
            gone.release()

    async def left(url: str) -> None:
        async with Client(url, retrying=ONCE) as client:
            for times in (1, 2):
                items = client.events.afollow()
                first = asyncio.ensure_future(anext(items))
                await asyncio.to_thread(until, lambda times=times: len(server.heard) == times, "the request arrived")
                first.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await first
                del items, first
                gc.collect()
                assert await asyncio.to_thread(gone.acquire, timeout=5)

    with Hostile(streams) as server:
        asyncio.run(left(server.url))


def test_waiting_requests_do_not_block_others() -> None:
    many = 130
    waiting, proceed = threading.Semaphore(0), threading.Event()

    def hold(path: str) -> None:
        if "/wait" in path:
            waiting.release()
            proceed.wait(30)

    async def run_all(url: str) -> None:
        async with Client(url, retrying=ONCE, timeout=30) as client:
            tasks = [asyncio.create_task(request_path(client, f"wait-{n}")) for n in range(many)]
            await asyncio.to_thread(waiting.acquire)
            assert (await asyncio.wait_for(request_path(client, "now"), 20))["path"] == "/api/v1/now"
            proceed.set()
            assert len(await asyncio.gather(*tasks)) == many

    with Echo(hold) as server:
        try:
            asyncio.run(run_all(server.url))
        finally:
            proceed.set()
        assert len(server.connections) > many


def test_idle_connection_is_dropped_before_the_service_does() -> None:
    assert uvicorn.Config("app").timeout_keep_alive > transport.KEEPALIVE
    with Echo() as server, Client(server.url, retrying=ONCE) as client:
        cancel = post("/jobs/7/cancel")  # not retried, because it is not idempotent
        for _ in range(2):
            assert drive(client._request(cancel), client._perform)["path"].endswith("/cancel")
        assert len(server.connections) == 1  # the connection is reused
        server.connections[0].shutdown(socket.SHUT_RDWR)  # silently, as servers do
        assert drive(client._request(cancel), client._perform)["path"].endswith("/cancel")
        assert len(server.connections) == 2
