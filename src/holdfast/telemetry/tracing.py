"""The current trace of a task or thread: that of the OpenTelemetry span, else a given one, else that of the job.

OpenTelemetry is never imported here: if the program uses it, it is in ``sys.modules``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from holdfast.engine.job import JobSpec
from holdfast.engine.trace import Trace, is_trace_tag

# From a request's header, from the running job's tags, or from `trace_from`; or the id of the running job, from which
# its trace is derived when it is needed. One variable, because every job sets it.
_given: ContextVar[Trace | str | None] = ContextVar("holdfast_trace", default=None)

API = "opentelemetry.trace"


def current_trace() -> Trace | None:
    """The current trace. Inside a handler there is always one."""
    trace = span_trace() or _given.get()
    return Trace.of_job(trace, ()) if isinstance(trace, str) else trace


def wanted() -> bool:
    """Whether there is a current trace; cheap, for the hot path."""
    return _given.get() is not None or (API in sys.modules and span_trace() is not None)


def outgoing_headers() -> dict[str, str]:
    """Trace headers (``traceparent``, ``tracestate``) for an outgoing call; empty without a trace."""
    trace = current_trace()
    return {} if trace is None else trace.headers()


@contextmanager
def trace_from(parent: str | None, state: str | None = None) -> Iterator[Trace | None]:
    """Make a trace current in the block: ``with trace_from(headers.get("traceparent")): …``. A malformed header counts
    as no trace."""
    trace = Trace.parse(parent, state)
    if trace is None:
        yield None
        return
    token = _given.set(trace)
    try:
        yield trace
    finally:
        _given.reset(token)


def bind(job_id: str, tags: Sequence[str]) -> None:
    """Make the trace of a job the current one in this task or call, instead of that of the worker."""
    _given.set((Trace.of_tags(tags) if tags else None) or job_id)


def stamp(specs: Iterable[JobSpec], trace: Trace | None) -> None:
    """Give this trace to the jobs that have none."""
    if trace is None:
        return
    tags = trace.tags()
    for spec in specs:
        if not any(map(is_trace_tag, spec.tags)):
            spec.tags = (*spec.tags, *tags)


def span_trace() -> Trace | None:
    """The trace of the current OpenTelemetry span."""
    api: Any = sys.modules.get(API)
    if api is None:
        return None
    return of_span(api.get_current_span())


def of_span(span: Any) -> Trace | None:
    context = span.get_span_context()
    if not context.is_valid:
        return None
    state = context.trace_state.to_header() if context.trace_state else ""
    return Trace(f"{context.trace_id:032x}", f"{context.span_id:016x}", int(context.trace_flags) & 1, state or None)
