"""Whose connections are whose: of one process, of one event loop, kept for a while, and enough for all (JF-14)."""

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
from holdfast.remote import Client, Retrying, transport
from holdfast.remote.http_requests import get, post
from tests.http.conftest import Driver
from tests.http.echo import echoing
from tests.http.hostile import event, hostile
from tests.support.waiting import until

pytestmark = pytest.mark.req("JF-14")

Drive = Callable[..., Driver]

ONCE = Retrying(tries=1)


async def asked(client: Client, word: object) -> Any:
    """The path that the server was asked for, as it says."""
    return await client._adrive(client._request(get(f"/{word}")))


FORKING = """
import json, os, sys
from holdfast.remote import Client, HttpxTransport, Retrying
from holdfast.remote.http_requests import get

def asked(client, word):
    try:
        return client._drive(client._request(get(f"/{word}")))["path"] == f"/api/v1/{word}"
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
def test_a_fork_is_not_given_the_answers_of_its_parent() -> None:
    # The server answers the two in turn, so that they would meet on one connection.
    turn = threading.Barrier(2)

    def hold(path: str) -> None:
        if not path.endswith("/before"):
            with_the_other(turn)

    with echoing(hold) as server:
        run = subprocess.run([sys.executable, "-c", FORKING, server.url], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    own, theirs = json.loads(run.stdout)
    assert own == [[True], [True]]
    # Of a client that was given nobody can make a second one: better none than somebody else's answers.
    assert theirs == [[True], ["client_elsewhere"]]


def with_the_other(turn: threading.Barrier) -> None:
    try:
        turn.wait(0.1)
    except threading.BrokenBarrierError:
        turn.reset()


LOOPING = """
import asyncio, json, sys
import httpx2
from holdfast.remote import AsyncHttpxTransport, Client, Retrying
from holdfast.remote.http_requests import get

def looped(client):
    async def together():
        asked = (client._adrive(client._request(get(f"/{n}"))) for n in range(3))
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
def test_a_client_may_be_used_on_one_event_loop_after_the_other() -> None:
    with echoing() as server:
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

    with hostile(streams) as server:
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
                await asyncio.to_thread(until, lambda times=times: len(server.heard) == times, "it was asked")
                first.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await first
                del items, first
                gc.collect()
                assert await asyncio.to_thread(gone.acquire, timeout=5)

    with hostile(streams) as server:
        asyncio.run(left(server.url))


def test_what_waits_keeps_nobody_else_from_asking() -> None:
    many = 130
    waiting, go_on = threading.Semaphore(0), threading.Event()

    def hold(path: str) -> None:
        if "/wait" in path:
            waiting.release()
            go_on.wait(30)

    async def all_of_them(url: str) -> None:
        async with Client(url, retrying=ONCE, timeout=30) as client:
            tasks = [asyncio.create_task(asked(client, f"wait-{n}")) for n in range(many)]
            await asyncio.to_thread(waiting.acquire)
            assert (await asyncio.wait_for(asked(client, "now"), 20))["path"] == "/api/v1/now"
            go_on.set()
            assert len(await asyncio.gather(*tasks)) == many

    with echoing(hold) as server:
        try:
            asyncio.run(all_of_them(server.url))
        finally:
            go_on.set()
        assert len(server.connections) > many


def test_an_idle_connection_is_given_up_before_the_service_does() -> None:
    assert uvicorn.Config("app").timeout_keep_alive > transport.KEEPALIVE
    with echoing() as server, Client(server.url, retrying=ONCE) as client:
        cancel = post("/jobs/7/cancel")  # what may not be sent again
        for _ in range(2):
            assert client._drive(client._request(cancel))["path"].endswith("/cancel")
        assert len(server.connections) == 1  # it is kept
        server.connections[0].shutdown(socket.SHUT_RDWR)  # without a word, as servers do
        assert client._drive(client._request(cancel))["path"].endswith("/cancel")
        assert len(server.connections) == 2
