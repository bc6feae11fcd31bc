"""Which trace this task or thread works for: that of the current OpenTelemetry span, else the one that was given.

Nothing is imported for it: if the program has no OpenTelemetry, it is not in ``sys.modules``, and that is the answer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from holdfast.engine.job import JobSpec
from holdfast.engine.trace import Trace, is_trace_tag

# From a request's header, from the job in hand, or from whoever said so.
_given: ContextVar[Trace | None] = ContextVar("holdfast_trace", default=None)

API = "opentelemetry.trace"


def current_trace() -> Trace | None:
    """The trace that is current here, if one is."""
    return span_trace() or _given.get()


def wanted() -> bool:
    """Whether there is one; a glance, for the hot path."""
    return _given.get() is not None or (API in sys.modules and span_trace() is not None)


def outgoing_headers() -> dict[str, str]:
    """``traceparent`` (and ``tracestate``) for a call to somebody else; nothing without a trace."""
    trace = current_trace()
    return {} if trace is None else trace.headers()


@contextmanager
def trace_from(parent: str | None, state: str | None = None) -> Iterator[Trace | None]:
    """Work within a trace for the length of the block: ``with trace_from(headers.get("traceparent")): …``. What is
    malformed is none."""
    trace = Trace.parse(parent, state)
    if trace is None:
        yield None
        return
    token = _given.set(trace)
    try:
        yield trace
    finally:
        _given.reset(token)


def bind(trace: Trace | None) -> None:
    """From now on, in this task or call: the job in hand. What was current around the worker is not its."""
    if trace is not None or _given.get() is not None:
        _given.set(trace)


def stamp(specs: Iterable[JobSpec], trace: Trace | None) -> None:
    """Give the jobs this trace, those that have none of their own."""
    if trace is None:
        return
    tags = trace.tags()
    for spec in specs:
        if not any(map(is_trace_tag, spec.tags)):
            spec.tags = (*spec.tags, *tags)


def span_trace() -> Trace | None:
    """Of the current OpenTelemetry span."""
    api: Any = sys.modules.get(API)
    if api is None:
        return None
    return of_span(api.get_current_span())


def of_span(span: Any) -> Trace | None:
    found = span.get_span_context()
    if not found.is_valid:
        return None
    state = found.trace_state.to_header() if found.trace_state else ""
    return Trace(f"{found.trace_id:032x}", f"{found.span_id:016x}", int(found.trace_flags) & 1, state or None)
