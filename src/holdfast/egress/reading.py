"""Reading an answer without trusting it: so many bytes of headers, of body, and of what the body is when unpacked.

What is packed is unpacked in pieces, and none of them can be larger than what is still allowed: a bomb of a few
kilobytes ends after the first megabyte, not after the last gigabyte (rule 5).

Where the policy cuts, the status is what counts: it stands when the head is there, and whatever is wrong behind it (too
much, too slow, broken off, packed in some other way) is left out.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterable, Sequence
from typing import Final

from holdfast.egress.policy import EgressPolicy
from holdfast.errors import EgressError, EgressTooLarge

PACKED: Final = {"gzip": 31, "x-gzip": 31, "deflate": 47}
"""What zlib is told for each."""
BEGINNING: Final = 2.0
"""How many seconds the beginning of a body is waited for, where no more than that is wanted."""
SPARE: Final = 0.05
"""So much earlier than the time for everything is over, which would take the status along."""


def headers_of(raw: Sequence[tuple[bytes, bytes]], policy: EgressPolicy) -> tuple[tuple[str, str], ...]:
    size, taken = 0, []
    for name, value in raw:
        size += len(name) + len(value) + 4
        if size <= policy.max_header_bytes:
            taken.append((name.decode("latin-1").lower(), value.decode("latin-1")))
    if size > policy.max_header_bytes and not policy.cut:
        raise EgressTooLarge(f"the answer has {size:,} bytes of headers; {policy.max_header_bytes:,} are taken")
    return tuple(taken)


async def body_of(
    pieces: AsyncIterable[bytes], headers: Sequence[tuple[str, str]], policy: EgressPolicy, until: float
) -> tuple[bytes, bool]:
    """The body, unpacked, and whether something of it was left out. ``until`` is when the loop's clock says that all is
    over."""
    made = bytearray()
    if not policy.cut:
        await _read(pieces, headers, policy, made)
        return bytes(made), False
    try:
        async with asyncio.timeout_at(min(asyncio.get_running_loop().time() + BEGINNING, until - SPARE)):
            left_out = await _read(pieces, headers, policy, made)
    except (EgressError, TimeoutError):
        left_out = True
    return bytes(made[: policy.max_bytes]), left_out


async def _read(
    pieces: AsyncIterable[bytes], headers: Sequence[tuple[str, str]], policy: EgressPolicy, made: bytearray
) -> bool:
    """Into ``made``, so that what has come is there also when the rest does not; whether it was more than is taken."""
    named = dict(headers)
    length = named.get("content-length", "")
    if not policy.cut and length.isdecimal() and len(length) < 20 and int(length) > policy.max_bytes:
        raise _too_large(policy)
    unpack = _unpacker(named.get("content-encoding", ""))
    received = 0
    async for piece in pieces:
        received += len(piece)
        made += piece if unpack is None else unpack.some(piece, policy.max_bytes + 1 - len(made))
        if received > policy.max_bytes or len(made) > policy.max_bytes:
            if not policy.cut:
                raise _too_large(policy)
            return True
    if unpack is not None and received and not unpack.whole:
        raise EgressError("the answer ends in the middle of what is packed")
    return False


class Unpacker:
    """One member after the other: gzip allows several."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._member = zlib.decompressobj(bits)

    @property
    def whole(self) -> bool:
        return self._member.eof

    def some(self, piece: bytes, most: int) -> bytes:
        """What the piece is when unpacked, or its first ``most`` bytes."""
        made = b""
        try:
            while piece and len(made) < most:
                if self._member.eof:
                    self._member = zlib.decompressobj(self._bits)
                made += self._member.decompress(piece, most - len(made))
                piece = self._member.unused_data
        except zlib.error:
            raise EgressError("the answer is not packed as it says") from None
        return made


def _unpacker(coding: str) -> Unpacker | None:
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return None
    if coding not in PACKED:  # not asked for; several, one in the other, are a bomb's manner
        raise EgressError("the answer is packed in a way that was not asked for")
    return Unpacker(PACKED[coding])


def _too_large(policy: EgressPolicy) -> EgressTooLarge:
    return EgressTooLarge(f"the answer has more than {policy.max_bytes:,} bytes")
