"""The watchers of jobs that are enqueued and run, and the current trace of a task or thread: that of the OpenTelemetry
span, else a given one, else that of the job.

Usually there are no watchers, and the check costs two name lookups. A watcher that fails does not make a job fail: its
errors are logged, each type once. OpenTelemetry is never imported here: if the program uses it, it is in
``sys.modules``.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from holdfast.engine.job import Claim, JobSpec
from holdfast.engine.outcome import Outcome, Settled
from holdfast.engine.trace import Trace, is_trace_tag, retagged

log = logging.getLogger("holdfast.telemetry")

T = TypeVar("T")


class Sending(Protocol):
    @property
    def trace(self) -> Trace | None:
        """The trace to store with the jobs, if the watcher has created a span."""
        ...

    def over(self, error: BaseException | None) -> None: ...


class Running(Protocol):
    @property
    def trace(self) -> Trace | None: ...

    def over(self, claim: Claim, outcome: Outcome | Settled | None, seconds: float) -> None:
        """Called when the attempt has ended. The outcome is None if the worker stopped it."""
        ...


class Watcher(Protocol):
    def send(self, specs: Sequence[JobSpec], tenant: str) -> Sending | None: ...
    def run(self, claim: Claim) -> Running | None: ...


# The name of the current worker, for log lines.
working_as: ContextVar[str | None] = ContextVar("holdfast_worker", default=None)

watchers: list[Watcher] = []
_logged: set[str] = set()
_elsewhere = False


def disable_in_child() -> None:
    """To be called in a child process: its worker already watches its jobs."""
    global _elsewhere
    _elsewhere = True


@contextmanager
def muted() -> Iterator[None]:
    """No watcher is active within the block."""
    global _elsewhere
    before, _elsewhere = _elsewhere, True
    try:
        yield
    finally:
        _elsewhere = before


def unobserved() -> bool:
    """Whether no watcher is active: a job that runs is not observed."""
    return not watchers and (API not in sys.modules or not active())


def nothing_to_observe() -> bool:
    """Whether no watcher is active and no trace is current: an enqueue needs neither."""
    return unobserved() and not wanted()


def active() -> Sequence[Watcher]:
    """The active watchers, with that of OpenTelemetry if the program has set it up."""
    if _elsewhere:
        return ()
    if API in sys.modules:
        from holdfast.telemetry.otel import watcher

        otel = watcher()
        if otel is not None:
            return (*watchers, otel)
    return watchers


@contextmanager
def sending(specs: Sequence[JobSpec], tenant: str) -> Iterator[None]:
    """Observe the block, in which new jobs are stored. The jobs get the current trace."""
    started = [_guarded(partial(watcher.send, specs, tenant)) for watcher in active()]
    observations = [observation for observation in started if observation is not None]
    trace = next((observation.trace for observation in observations if observation.trace is not None), None)
    stamp(specs, trace or current_trace())
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        for observation in reversed(observations):
            _guarded(partial(observation.over, error))


class Watch:
    """Observes one attempt. ``claim`` is the claim for the handler: it has the trace of this attempt."""

    __slots__ = ("_observations", "_since", "claim")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self._since = time.perf_counter()
        started = [_guarded(partial(watcher.run, claim)) for watcher in active()]
        self._observations = [observation for observation in started if observation is not None]
        trace = next((observation.trace for observation in self._observations if observation.trace is not None), None)
        if trace is not None:
            self.claim = replace(claim, tags=retagged(claim.tags, trace))

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._since

    def over(self, outcome: Outcome | Settled | None) -> None:
        if self._observations:
            seconds = self.seconds
            for observation in reversed(self._observations):
                _guarded(partial(observation.over, self.claim, outcome, seconds))


def _guarded(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except Exception as error:
        name = type(error).__name__
        if name not in _logged:
            _logged.add(name)
            log.warning("Telemetry failed; jobs continue without it: %s", name)
        return None


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
