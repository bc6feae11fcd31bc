"""Job ids: UUIDv7 (RFC 9562) as lower-case text, created by the application before anything is stored.

Invariant: an id that an ``IdMaker`` returns sorts after all ids that it has returned before, in whichever thread, also
if the clock stands still or is set back. Ids of different processes sort by millisecond. Clock and entropy are
parameters, so that tests can control both.
"""

from __future__ import annotations

import re
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate, count, islice
from typing import Final

from holdfast.errors import InvalidInput

#     48 bits     4         12 bits   2         14 bits   48 bits
#   | unix ms | version | counter | variant | counter | noise |
#
# The counter starts with a random value in its lower 24 of 26 bits and is never set back. When it overflows, the carry
# goes into the time, as the RFC allows: one millisecond for every 67 million ids of a process.
_COUNTER_BITS: Final = 26
_NS: Final = 1_000_000  # in a millisecond
_LOW: Final = (1 << 14) - 1
_SEED_BYTES: Final = 3
_NOISE_BYTES: Final = 6
_MAX_MS: Final = (1 << 48) - 1
_ID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{32}")


def uuid7(unix_ms: int, random: bytes) -> uuid.UUID:
    """A UUIDv7 from a Unix time in milliseconds and 10 random bytes, of which 74 bits are used."""
    if not 0 <= unix_ms <= _MAX_MS:
        raise InvalidInput(f"{unix_ms} ms does not fit the 48 bits of a UUIDv7", code="invalid_id")
    if len(random) != 10:
        raise InvalidInput(f"a UUIDv7 takes 10 random bytes, not {len(random)}", code="invalid_id")
    rand_a = int.from_bytes(random[:2], "big") & 0xFFF
    rand_b = int.from_bytes(random[2:], "big") & ((1 << 62) - 1)
    return uuid.UUID(int=unix_ms << 80 | 0x7 << 76 | rand_a << 64 | 0b10 << 62 | rand_b)


class IdMaker:
    """Creates ascending ids, one by one or in bulk, for any number of threads.

    There is no lock, which a fork or a signal could leave locked: the latest time and the counter each change in one
    call into C, which threads cannot interleave. Both only grow, and so does their sum.
    """

    __slots__ = ("_counter", "_entropy", "_latest_ns")

    def __init__(self, clock_ns: Callable[[], int], entropy: Callable[[int], bytes]) -> None:
        self._entropy = entropy
        self._counter = count(int.from_bytes(entropy(_SEED_BYTES), "big"))
        # The running maximum of the clock, so that a clock that is set back does no harm.
        self._latest_ns = accumulate(iter(clock_ns, None), max, initial=0)
        next(self._latest_ns)  # the initial 0

    def __call__(self) -> str:
        # Drawn for every id, never pooled: after a fork, parent and child continue with the same counter, and only the
        # noise keeps their ids apart.
        noise = self._entropy(_NOISE_BYTES)
        return f"{_head((next(self._latest_ns) // _NS << _COUNTER_BITS) + next(self._counter))}-{noise.hex()}"

    def many(self, n: int) -> list[str]:
        """``n`` ascending ids for one read of the clock and one draw of entropy."""
        if n < 1:
            return []
        # bytes.hex groups from the right: every group is the noise of one id.
        tails = iter(self._entropy(_NOISE_BYTES * n).hex("-", _NOISE_BYTES).split("-"))
        base = next(self._latest_ns) // _NS << _COUNTER_BITS
        # Other threads may draw in between, so the numbers ascend but may have gaps.
        counts = list(islice(self._counter, n))
        ids: list[str] = []
        while len(ids) < n:
            # Counts that differ only in their low 14 bits share the text before them.
            first = counts[len(ids)]
            run = counts[len(ids) : bisect_left(counts, (first | _LOW) + 1)]
            head = _head(base + first)[:-4]
            # ``run`` is first in zip, so that its end does not consume a tail.
            ids += [f"{head}{low & _LOW | 0x8000:x}-{tail}" for low, tail in zip(run, tails, strict=False)]
        return ids


def _head(tick: int) -> str:
    """The text of an id before its last hyphen."""
    ms, high, low = tick >> _COUNTER_BITS, tick & 0x3FFC000, tick & _LOW
    if ms > _MAX_MS:
        raise InvalidInput("the clock is beyond the range of a UUIDv7", code="invalid_id", fix="Pass nanoseconds.")
    # Hyphens after every two bytes, one too many in the first group: cheaper than formatting the groups.
    text = (ms << 32 | high << 2 | low | 0x7000_8000).to_bytes(10, "big").hex("-", 2)
    return text[:4] + text[5:]


def parse_id(text: object) -> str:
    """The id in canonical form: 36 characters, lower case. Any UUID version is accepted."""
    if isinstance(text, uuid.UUID):
        return str(text)
    if isinstance(text, str) and _ID.fullmatch(text):
        return text.lower() if len(text) == 36 else str(uuid.UUID(text))
    shown = repr(text[:40]) if isinstance(text, str) else type(text).__name__
    raise InvalidInput(f"not a job id: {shown}", code="invalid_id", fix="A job id is a UUID.")


_PREFIX = re.compile(r"[0-9a-f][0-9a-f-]{5,34}")


def id_range(prefix: str) -> tuple[str, str] | None:
    """The first and the last id with this prefix; None if no id can have it, or if it is shorter than six
    characters."""
    text = prefix.lower()
    if not _PREFIX.fullmatch(text):
        return None
    digits = text.replace("-", "")
    low, high = (str(uuid.UUID(digits.ljust(32, filler))) for filler in "0f")
    return (low, high) if low.startswith(text) else None


def created_ms(id: str) -> int:
    """The Unix time in milliseconds at which a UUIDv7 was created."""
    text = parse_id(id)
    if text[14] != "7":
        raise InvalidInput(f"{text} has no timestamp: it is not a UUIDv7", code="invalid_id")
    return int(text[:8] + text[9:13], 16)


def id_texts(ids: Iterable[object]) -> list[str]:
    """The ids of a caller, checked to be text. Whether they exist is for the store to decide."""
    result = list(ids)
    for id in result:
        if not isinstance(id, str):
            raise InvalidInput(f"an id must be text, not {type(id).__name__}", code="invalid_id")
    return result  # type: ignore[return-value]
