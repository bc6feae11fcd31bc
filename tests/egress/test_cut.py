"""The connection is lost at every byte of the request and of the answer, or says what nobody should say.

Whoever only wants to know how it was taken (``cut``, as webhooks do) knows it when the head of the answer is there:
what is wrong with the rest of it does not unsay the status, else a message that was taken is sent again and again.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest

from holdfast.errors import EgressError, EgressTimeout, EgressUnreachable
from holdfast.outgoing import Answer, EgressPolicy, Outgoing, send
from tests.support.http_server import End, Receiver, receiving

pytestmark = pytest.mark.req("JF-8", "JF-9")

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 26\r\n\r\n"
BODY = b"abcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


async def post(receiver: Receiver, *, cut: bool, total: float = 10.0, timeout: float | None = None) -> Answer:
    policy = EgressPolicy(
        ports=(receiver.port,), allow=("127.0.0.1/32",), cut=cut, max_bytes=1_000, read=5.0, total=total
    )
    return await send(Outgoing("POST", f"{receiver.url}/hook", {"X": "1"}, b"0123456789", timeout), policy)


@pytest.mark.parametrize("end", ["closed", "reset"])
@pytest.mark.parametrize("cut", [True, False])
async def test_an_answer_cut_at_every_byte(receiver: Receiver, end: End, cut: bool) -> None:
    whole = HEAD + BODY
    for size in range(len(whole) + 1):
        receiver.turn = (None, whole[:size], end)
        if size < len(HEAD) or (not cut and size < len(whole)):
            with pytest.raises(EgressError) as caught:
                await post(receiver, cut=cut)
            if size < len(HEAD):  # a reset can outrun what was said before it
                assert isinstance(caught.value, EgressUnreachable), (size, caught.value)
            continue
        try:
            answer = await post(receiver, cut=cut)
        except EgressUnreachable:
            assert end == "reset", size  # it has outrun the head
            continue
        assert (answer.status, answer.truncated) == (200, size < len(whole)), size
        assert BODY.startswith(answer.body)
        if end == "closed":
            assert answer.body == whole[len(HEAD) : size]


async def test_a_request_cut_at_every_byte(receiver: Receiver) -> None:
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
async def test_what_is_wrong_behind_the_status_does_not_unsay_it(receiver: Receiver, rest: bytes) -> None:
    receiver.turn = (None, b"HTTP/1.1 204 Fine\r\n" + rest, "closed")
    assert (await post(receiver, cut=True)).status == 204
    receiver.turn = (None, b"HTTP/1.1 200 Fine\r\n" + rest, "closed")
    answer = await post(receiver, cut=True)
    assert (answer.status, len(answer.body) <= 1_000) == (200, True)
    with pytest.raises(EgressError):
        await post(receiver, cut=False)


async def test_a_body_that_does_not_end_is_not_waited_for(receiver: Receiver) -> None:
    """The time for the whole is over before it ends: what has come is taken, and it was said how it was taken."""
    receiver.turn = (None, HEAD + b"abc", "open")
    answer = await post(receiver, cut=True, total=0.5)
    assert (answer.status, answer.body, answer.truncated) == (200, b"abc", True)
    with pytest.raises(EgressTimeout):
        await post(receiver, cut=False, total=0.5)
    receiver.turn = (None, HEAD[:-2], "open")
    with pytest.raises(EgressTimeout):
        await post(receiver, cut=True, total=0.3)


@pytest.mark.parametrize(
    "says",
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
async def test_what_is_no_answer_is_an_error_of_ours(receiver: Receiver, says: bytes) -> None:
    receiver.turn = (None, says, "closed")
    for cut in (True, False):
        with pytest.raises(EgressError):
            await post(receiver, cut=cut)


@pytest.mark.parametrize("status", [200, 299, 304, 599, 600, 999])
async def test_any_status_that_can_be_read_is_told(receiver: Receiver, status: int) -> None:
    early = b"HTTP/1.1 103 Early\r\nlink: </x>\r\n\r\n"
    receiver.turn = (None, early + b"HTTP/1.1 %d \r\n\r\n" % status, "closed")
    assert (await post(receiver, cut=True)).status == status
