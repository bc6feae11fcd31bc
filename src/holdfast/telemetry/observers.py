"""Who wants to be told of jobs that are sent and run. Nobody, nearly always: then it is one look at two names.

A watcher that fails is no reason for a job to: what it raises is logged once and forgotten.
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
        """What the jobs are to name as their cause, if this made something of the kind."""
        ...

    def over(self, error: BaseException | None) -> None: ...


class Running(Protocol):
    @property
    def trace(self) -> Trace | None: ...

    def over(self, claim: Claim, outcome: Outcome | Settled | None, seconds: float) -> None:
        """None: it was stopped, and others decide what becomes of it."""
        ...


class Watcher(Protocol):
    def send(self, specs: Sequence[JobSpec], tenant: str) -> Sending | None: ...
    def run(self, claim: Claim) -> Running | None: ...


# The worker whose jobs are run here, for log lines.
working_as: ContextVar[str | None] = ContextVar("holdfast_worker", default=None)

watchers: list[Watcher] = []
_told: set[str] = set()
_elsewhere = False


def watched_elsewhere() -> None:
    """In a child process: the worker that it belongs to watches its jobs."""
    global _elsewhere
    _elsewhere = True


def unwatched() -> bool:
    """Nobody wants to be told of a job that is run."""
    return not watchers and (tracing.API not in sys.modules or not active())


def quiet() -> bool:
    """The same of one that is sent, and no trace is current: nothing is to be done."""
    return unwatched() and not tracing.wanted()


def active() -> Sequence[Watcher]:
    """With OpenTelemetry, if the program has set it up by now."""
    if _elsewhere:
        return ()
    if tracing.API in sys.modules:
        from holdfast.telemetry.otel import watcher

        found = watcher()
        if found is not None:
            return (*watchers, found)
    return watchers


@contextmanager
def sending(specs: Sequence[JobSpec], tenant: str) -> Iterator[None]:
    """Around the storing of new jobs: they are given the trace that is current."""
    begun = [one for each in active() if (one := _asked(partial(each.send, specs, tenant))) is not None]
    tracing.stamp(specs, next((one.trace for one in begun if one.trace is not None), None) or tracing.current_trace())
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        for one in reversed(begun):
            _asked(partial(one.over, error))


class Watch:
    """Around one attempt. ``claim`` is what its handler is to be given: the trace in it is that of this attempt."""

    __slots__ = ("_begun", "_since", "claim")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self._since = time.perf_counter()
        self._begun = [one for each in active() if (one := _asked(partial(each.run, claim))) is not None]
        trace = next((one.trace for one in self._begun if one.trace is not None), None)
        if trace is not None:
            self.claim = replace(claim, tags=retagged(claim.tags, trace))

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._since

    def over(self, outcome: Outcome | Settled | None) -> None:
        if self._begun:
            seconds = self.seconds
            for one in reversed(self._begun):
                _asked(partial(one.over, self.claim, outcome, seconds))


def _asked(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except Exception as error:
        name = type(error).__name__
        if name not in _told:
            _told.add(name)
            log.warning("Telemetry failed; jobs continue without it: %s", name)
        return None
