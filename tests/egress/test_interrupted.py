"""The connection is lost at every byte of the request and of the response, or the response is malformed.

Callers that only need the status (``cut``, as webhooks do) have it when the head of the response has arrived. Errors
in the rest do not invalidate the status; otherwise an accepted message would be sent again and again.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest

from holdfast.errors import EgressError, EgressTimeout, EgressUnreachable
from holdfast.outgoing import Answer, EgressPolicy, Outgoing, send
from tests.support.http_server import End, Receiver

pytestmark = pytest.mark.req("JF-8", "JF-9")

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 26\r\n\r\n"
BODY = b"abcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


async def post(receiver: Receiver, *, cut: bool, total: float = 10.0, timeout: float | None = None) -> Answer:
    policy = EgressPolicy(
        ports=(receiver.port,), allow=("127.0.0.1/32",), cut=cut, max_bytes=1_000, read=5.0, total=total
    )
    return await send(Outgoing("POST", f"{receiver.url}/hook", {"X": "1"}, b"0123456789", timeout), policy)


@pytest.mark.parametrize("end", ["closed", "reset"])
@pytest.mark.parametrize("cut", [True, False])
async def test_response_cut_at_every_byte(receiver: Receiver, end: End, cut: bool) -> None:
    whole = HEAD + BODY
    for size in range(len(whole) + 1):
        receiver.turn = (None, whole[:size], end)
        if size < len(HEAD) or (not cut and size < len(whole)):
            with pytest.raises(EgressError) as caught:
                await post(receiver, cut=cut)
            if size < len(HEAD):  # a reset can overtake the bytes sent before it
                assert isinstance(caught.value, EgressUnreachable), (size, caught.value)
            continue
        try:
            response = await post(receiver, cut=cut)
        except EgressUnreachable:
            assert end == "reset", size  # the reset has overtaken the head
            continue
        assert (response.status, response.truncated) == (200, size < len(whole)), size
        assert BODY.startswith(response.body)
        if end == "closed":
            assert response.body == whole[len(HEAD) : size]


async def test_request_cut_at_every_byte(receiver: Receiver) -> None:
    receiver.turn = (None, HEAD + BODY, "closed")
    await post(receiver, cut=True)
    whole = len(receiver.asked[0])
    for size in range(whole):
        receiver.turn = (size, b"", "reset")
        with pytest.raises(EgressUnreachable):
            await post(receiver, cut=True)


@pytest.mark.parametrize(
    "rest",
    [
        b"content-encoding: br\r\n\r\nxyz",
        b"content-encoding: gzip, gzip\r\n\r\nxyz",
        b"content-encoding: gzip\r\n\r\nnot packed",
        b"content-encoding: gzip\r\n\r\n" + gzip.compress(b"x" * 100)[:20],
        b"content-encoding: gzip\r\n\r\n" + gzip.compress(bytes(50_000_000)),
        b"transfer-encoding: chunked\r\n\r\nffffffffffffffff\r\nabc",
        b"transfer-encoding: chunked\r\n\r\nzz\r\nabc",
        b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n" + b"x: y\r\n" * 50_000,
        b"content-length: 99999999999999999999\r\n\r\nabc",
        b"\r\n" + b"x" * 1_000_000,
        b"".join(b"x-%d: %s\r\n" % (number, b"y" * 1_000) for number in range(60)) + b"\r\nabc",
    ],
    ids=["other_coding", "twice", "lie", "half", "bomb", "chunk", "no_chunk", "trailers", "length", "long", "headers"],
)
async def test_error_after_the_status_does_not_invalidate_it(receiver: Receiver, rest: bytes) -> None:
    receiver.turn = (None, b"HTTP/1.1 204 Fine\r\n" + rest, "closed")
    assert (await post(receiver, cut=True)).status == 204
    receiver.turn = (None, b"HTTP/1.1 200 Fine\r\n" + rest, "closed")
    response = await post(receiver, cut=True)
    assert (response.status, len(response.body) <= 1_000) == (200, True)
    with pytest.raises(EgressError):
        await post(receiver, cut=False)


async def test_endless_body_is_not_waited_for(receiver: Receiver) -> None:
    """The total timeout passes before the body ends: the bytes that arrived are kept, and the status is known."""
    receiver.turn = (None, HEAD + b"abc", "open")
    response = await post(receiver, cut=True, total=0.5)
    assert (response.status, response.body, response.truncated) == (200, b"abc", True)
    with pytest.raises(EgressTimeout):
        await post(receiver, cut=False, total=0.5)
    receiver.turn = (None, HEAD[:-2], "open")
    with pytest.raises(EgressTimeout):
        await post(receiver, cut=True, total=0.3)


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 099 No\r\n\r\n",
        b"HTTP/1.1 101 Other\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 2000 No\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx y: z\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: z\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 300_000 + b"\r\n\r\n",
        b"HTTP/1.1 103 Early\r\n\r\n" * 3 + b"HTTP/1.1 103 Ea",
        b"\0" * 1_000,
        b"SSH-2.0-OpenSSH\r\n",
    ],
)
async def test_malformed_response_raises_an_egress_error(receiver: Receiver, response: bytes) -> None:
    receiver.turn = (None, response, "closed")
    for cut in (True, False):
        with pytest.raises(EgressError):
            await post(receiver, cut=cut)


@pytest.mark.parametrize("status", [200, 299, 304, 599, 600, 999])
async def test_every_valid_status_is_returned(receiver: Receiver, status: int) -> None:
    early = b"HTTP/1.1 103 Early\r\nlink: </x>\r\n\r\n"
    receiver.turn = (None, early + b"HTTP/1.1 %d \r\n\r\n" % status, "closed")
    assert (await post(receiver, cut=True)).status == status
