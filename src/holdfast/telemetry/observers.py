"""The watchers of jobs that are enqueued and run. Usually there are none, and the check costs two name lookups.

A watcher that fails does not make a job fail: its errors are logged, each type once.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from holdfast.engine.job import Claim, JobSpec
from holdfast.engine.outcome import Outcome, Settled
from holdfast.engine.trace import Trace, retagged
from holdfast.telemetry import tracing

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


def unobserved() -> bool:
    """Whether no watcher is active: a job that runs is not observed."""
    return not watchers and (tracing.API not in sys.modules or not active())


def nothing_to_observe() -> bool:
    """Whether no watcher is active and no trace is current: an enqueue needs neither."""
    return unobserved() and not tracing.wanted()


def active() -> Sequence[Watcher]:
    """The active watchers, with that of OpenTelemetry if the program has set it up."""
    if _elsewhere:
        return ()
    if tracing.API in sys.modules:
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
    tracing.stamp(specs, trace or tracing.current_trace())
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
