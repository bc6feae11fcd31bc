"""W3C trace context: the trace of a job, and the span that caused the job.

The trace of the producer is stored with the job as a tag, ``trace:<traceparent>`` (and ``tracestate:…``). The tag is
not indexed: it is part of the claim, is copied with the job, and costs nothing if there is none (docs/adr/0024). A
malformed header counts as no trace, never as an error. The trace of a job without such a tag is derived from its id
(``Trace.of_job``), so every execution has a trace id and nothing more is stored.
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
    """A trace context. ``span_id`` is the span that enqueued the job, or that of the running attempt where spans
    are recorded."""

    trace_id: str
    span_id: str
    flags: int = 0
    state: str | None = None

    @classmethod
    def parse(cls, parent: object, state: object = None) -> Trace | None:
        """Read the two headers; None if malformed. Of a later version only the known part is read, as the standard
        requires."""
        match = _PARENT.fullmatch(parent.strip()) if isinstance(parent, str) and len(parent) < 300 else None
        if match is None:
            return None
        version, trace_id, span_id, flags, more = match.groups()
        if version == "ff" or (version == "00" and more) or trace_id == _NO_TRACE or span_id == _NO_SPAN:
            return None
        valid_state = state.strip() if isinstance(state, str) and _STATE.fullmatch(state) else ""
        return cls(trace_id, span_id, int(flags, 16) & 1, valid_state or None)

    @classmethod
    def of_job(cls, job_id: str, tags: Sequence[str]) -> Trace:
        """The trace of a job: the one it was enqueued with, else one whose trace id is the job's id."""
        given = cls.of_tags(tags) if tags else None
        if given is not None:
            return given
        digits = job_id.replace("-", "").lower()
        return cls(digits, digits[16:])  # a UUID has 128 bits, like a trace id; its second half is never zero

    @classmethod
    def of_tags(cls, tags: Sequence[str]) -> Trace | None:
        """The trace of the producer, if there is one."""
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
        """The headers for an outgoing call."""
        own = {"traceparent": self.traceparent}
        return own if self.state is None else own | {"tracestate": self.state}


def is_trace_tag(tag: str) -> bool:
    return tag.startswith((TAG, STATE_TAG))


def plain_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """The tags without those of the trace."""
    return tuple(tag for tag in tags if not is_trace_tag(tag)) if tags else ()


def retagged(tags: Sequence[str], trace: Trace) -> tuple[str, ...]:
    return (*plain_tags(tags), *trace.tags())
