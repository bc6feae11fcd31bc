"""W3C trace context: which trace a job belongs to, and what in it caused the job. Pure.

It lies with the job as one more tag, ``trace:<traceparent>`` (and ``tracestate:…`` where there is one), which is not
indexed: it comes with the claim, is copied with the job, and costs nothing where there is none (docs/adr/0030). What is
malformed is no trace, and never an error: it came from somebody else's header.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

TAG: Final = "trace:"
STATE_TAG: Final = "tracestate:"
STATE_LIMIT: Final = 512

_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x20-\x7e]{0,200})?")
_STATE: Final = re.compile(rf"[\x20-\x7e]{{1,{STATE_LIMIT}}}")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


@dataclass(frozen=True, slots=True)
class Trace:
    """``span_id`` is that of what caused the job, or of the running attempt where spans are recorded."""

    trace_id: str
    span_id: str
    flags: int = 0
    state: str | None = None

    @classmethod
    def parse(cls, parent: object, state: object = None) -> Trace | None:
        """As two headers say it. Of a version that is not known yet, what we know is read, as the standard asks."""
        found = _PARENT.fullmatch(parent.strip()) if isinstance(parent, str) and len(parent) < 300 else None
        if found is None:
            return None
        version, trace_id, span_id, flags, more = found.groups()
        if version == "ff" or (version == "00" and more) or trace_id == _NO_TRACE or span_id == _NO_SPAN:
            return None
        kept = state.strip() if isinstance(state, str) and _STATE.fullmatch(state) else ""
        return cls(trace_id, span_id, int(flags, 16) & 1, kept or None)

    @classmethod
    def of_tags(cls, tags: Sequence[str]) -> Trace | None:
        """What a job carries among its tags; nearly always there is none."""
        for tag in tags:
            if tag.startswith(TAG):
                states = (other[len(STATE_TAG) :] for other in tags if other.startswith(STATE_TAG))
                return cls.parse(tag[len(TAG) :], next(states, None))
        return None

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    @property
    def sampled(self) -> bool:
        return bool(self.flags & 1)

    def tags(self) -> tuple[str, ...]:
        own = f"{TAG}{self.traceparent}"
        return (own,) if self.state is None else (own, f"{STATE_TAG}{self.state}")

    def headers(self) -> dict[str, str]:
        """For a call to somebody else."""
        own = {"traceparent": self.traceparent}
        return own if self.state is None else own | {"tracestate": self.state}


def is_trace_tag(tag: str) -> bool:
    return tag.startswith((TAG, STATE_TAG))


def plain_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """The tags that people gave."""
    return tuple(tag for tag in tags if not is_trace_tag(tag)) if tags else ()


def retagged(tags: Sequence[str], trace: Trace) -> tuple[str, ...]:
    return (*plain_tags(tags), *trace.tags())
