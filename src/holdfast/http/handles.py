"""A handle on a job of a service: look at it, wait for it, cancel it, as with the local one."""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, TypeVar

from holdfast.engine.job import Event, Job, Verdict
from holdfast.engine.states import State
from holdfast.engine.steps import Progress
from holdfast.engine.units import Duration, seconds
from holdfast.errors import JobFailed, Refused, WaitTimeout
from holdfast.http.calls import another_time
from holdfast.http.colours import Noun, verb
from holdfast.http.reading import read
from holdfast.http.runners import Awaiting, Runner
from holdfast.http.wire import Pause, Steps, get, given, post, segment

C = TypeVar("C", bound=Runner)

LONGEST_POLL = 20.0
"""Seconds that one request waits at most: what lies in between may not keep an idle connection much longer."""
OVERTIME = 5.0
"""Seconds after a caller's time in which the last answer may still come: it is on its way."""
SHORTEST_ROUND = 0.2
"""A service that does not wait is not asked more often than this."""


@dataclass(frozen=True, slots=True)
class Placed:
    """What became of a job that was to be enqueued."""

    id: str | None
    created: bool
    reason: str | None = None
    detail: str | None = None
    tenant: str | None = None

    def as_ours(self) -> Placed:
        """Asked for under a key that nobody else has: if it was there already, that was us, in a try whose answer was
        lost."""
        return Placed(self.id, True, tenant=self.tenant) if self.reason == "duplicate_key" else self


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended, if it has. ``id`` is that of its last try, where each is a job of its own."""

    id: str
    state: State
    finished: bool
    value: Any = None
    ref: str | None = None
    sealed: bool = False
    error_code: str | None = None
    error_message: str | None = None


class JobHandle(Noun[C], Generic[C]):
    """``created`` is False when an earlier job stands for this one, or when one of many was refused; ``reason`` then
    says why, and ``detail`` in words where there is more to say."""

    def __init__(self, runner: C, placed: Placed) -> None:
        super().__init__(runner)
        self.id = placed.id or ""
        self.tenant = placed.tenant
        self.created = placed.created
        self.reason, self.detail = placed.reason, placed.detail

    def __repr__(self) -> str:
        return f"JobHandle(id={self.id!r}, created={self.created!r}, reason={self.reason!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    @verb
    def job(self) -> Steps[Job]:
        return (yield from one_job(self, self.id))

    @verb
    def state(self) -> Steps[State]:
        return (yield from one_job(self, self.id)).state

    @verb
    def history(self) -> Steps[list[Event]]:
        return (yield from history_of(self, self.id))

    @verb
    def progress(self) -> Steps[Progress | None]:
        """How far the handler said it is, if it said anything."""
        answer = yield from self._ask(get(f"/jobs/{segment(self.id)}"))
        return Progress.saved(read(dict[str, Any], answer.get("checkpoints", {})))

    @verb
    def wait(self, timeout: Duration | None = None) -> Steps[Job]:
        """Wait until the job has ended (a dead letter has), or raise ``WaitTimeout``; the job goes on then. Of a job
        whose retries are jobs of their own it is the last one that is waited for, and answered."""
        outcome = yield from self._ended(timeout)
        return (yield from one_job(self, outcome.id))

    @verb
    def result(self, timeout: Duration | None = None) -> Steps[Any]:
        """Wait for the end and return what the handler returned; ``JobFailed`` if it did not succeed."""
        outcome = yield from self._ended(timeout)
        if outcome.state is not State.SUCCEEDED:
            error = f": {outcome.error_message} ({outcome.error_code})" if outcome.error_code else ""
            raise JobFailed(f"job {outcome.id} is {outcome.state}{error}")
        if outcome.sealed:
            raise Refused(
                f"the result of job {outcome.id} is sealed: only programs that have the key can open it",
                code="result_sealed",
            )
        return outcome.value

    def __await__(self: JobHandle[Awaiting]) -> Generator[Any, None, Any]:
        return self.result().__await__()

    def _ended(self, timeout: Duration | None) -> Steps[Outcome]:
        limit = None if timeout is None else seconds(timeout, "timeout")
        end = None if limit is None else time.monotonic() + limit
        until = math.inf if end is None else end + min(OVERTIME, self._runner.link.timeout)
        while True:
            begun = time.monotonic()
            left = LONGEST_POLL if end is None else min(LONGEST_POLL, max(0.0, end - begun))
            request = get(f"/jobs/{segment(self.id)}/result", wait=round(left, 3), patience=left)
            outcome = yield from self._read(Outcome, replace(request, until=until))
            if outcome.finished:
                return outcome
            now = time.monotonic()
            if end is not None and now >= end:
                raise WaitTimeout(f"job {self.id} had not ended after {timeout}")
            if now - begun < SHORTEST_ROUND:
                yield Pause(SHORTEST_ROUND)

    @verb
    def cancel(self, reason: str | None = None) -> Steps[Verdict]:
        return (yield from changed(self, self.id, "cancel", given(reason=reason)))

    @verb
    def reschedule(
        self,
        at: datetime | None = None,
        delay: Duration | None = None,
        *,
        max_attempts: int | None = None,
        reason: str | None = None,
    ) -> Steps[Verdict]:
        """Run it at another time; with neither a time nor a delay, at once. ``Conflict`` if it does not wait."""
        body = another_time(at, delay, max_attempts, reason)
        return (yield from changed(self, self.id, "reschedule", body))

    @verb
    def move(
        self,
        *,
        first: bool = False,
        last: bool = False,
        before: str | None = None,
        after: str | None = None,
        priority: int | None = None,
        reason: str | None = None,
    ) -> Steps[Verdict]:
        """Give it another place in its queue. ``Conflict`` if it does not wait."""
        body = given(first=first, last=last, before=before, after=after, priority=priority, reason=reason)
        return (yield from changed(self, self.id, "move", body))


# --- what handles and the client both do ---


def one_job(noun: Noun[Any], job_id: str) -> Steps[Job]:
    answer = yield from noun._ask(get(f"/jobs/{segment(job_id)}"))
    return read(Job, answer.get("job") if isinstance(answer, dict) else None)


def history_of(noun: Noun[Any], job_id: str) -> Steps[list[Event]]:
    return (yield from noun._pages(Event, f"/jobs/{segment(job_id)}/history"))


def changed(noun: Noun[Any], job_id: str, word: str, body: dict[str, Any]) -> Steps[Verdict]:
    return (yield from noun._read(Verdict, post(f"/jobs/{segment(job_id)}/{word}", body)))
