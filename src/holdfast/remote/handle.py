"""Enqueue options and ``Handle`` of a remote job."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, TypedDict

from holdfast.engine.job import Dedupe, Event, Job, Verdict
from holdfast.engine.names import check_name, check_options
from holdfast.engine.operation import awaited, operation
from holdfast.engine.payload import encode
from holdfast.engine.retry import Retry, as_stored_policy
from holdfast.engine.states import State
from holdfast.engine.steps import Progress
from holdfast.engine.times import instant_or_none
from holdfast.engine.units import Duration, seconds
from holdfast.errors import JobFailed, Refused, WaitTimeout
from holdfast.features.attempts.model import AttemptLog, check_attempt, check_window
from holdfast.kind import PAYLOAD_LIMIT
from holdfast.remote.http_requests import Pause, Steps, get, given, post, segment
from holdfast.remote.responses import read
from holdfast.remote.runners import RemoteNamespace, Runner


class JobOptions(TypedDict, total=False):
    """What a job may be enqueued with, as locally; whose it is and who asked is the token's to say."""

    delay: Duration
    run_at: datetime
    deadline: datetime
    queue: str
    priority: int
    key: str
    dedupe: Dedupe
    tags: Sequence[str]
    parent: str
    correlation_id: str
    causation_id: str
    external_ref: str
    agent: str
    executor: str
    limit_key: str
    resources: Sequence[str]
    retry: Retry | str
    retry_as: Literal["new_job"]
    source_ref: str
    target_ref: str
    payload_ref: str


@dataclass(frozen=True, slots=True)
class Call:
    """For ``enqueue_many``; made by ``client.prepare``. ``own``: the key is ours, and nobody else has it."""

    key: str
    own: bool
    body: Mapping[str, Any] = field(repr=False)


def prepared(kind: str, payload: Any, options: JobOptions) -> Call:
    """Checked as far as it can be here. The key is made once: however often it is sent, it is one job."""
    check_options(options, JobOptions.__annotations__)
    values = {} if payload is None else payload
    encode(values, limit=PAYLOAD_LIMIT)
    said: dict[str, Any] = dict(options)
    key = said.pop("key", None)
    for name in ("run_at", "deadline"):
        aware(said.get(name), name)
    if "delay" in said:
        said["delay"] = seconds(said["delay"], "delay")
    if isinstance(said.get("retry"), Retry):
        said["retry"] = policy(said["retry"])
    for name in ("tags", "resources"):
        if isinstance(said.get(name), tuple):
            said[name] = list(said[name])
    body = given(kind=check_name(kind, "kind"), payload=values, **said)
    return Call(new_key() if key is None else check_name(key, "key", limit=255), key is None, body)


def new_key() -> str:
    return f"py-{uuid.uuid4()}"


def aware(moment: object, what: str) -> None:
    instant_or_none(moment, what)


def another_time(
    at: datetime | None, delay: Duration | None, max_attempts: int | None, reason: str | None
) -> dict[str, Any]:
    aware(at, "the time")
    span = None if delay is None else seconds(delay, "delay")
    return given(at=at, delay=span, max_attempts=max_attempts, reason=reason)


def policy(retry: Retry) -> dict[str, Any]:
    as_stored_policy(retry)
    return {"max_attempts": retry.max_attempts, "max_crashes": retry.max_crashes, "backoff": retry.backoff.to_json()}


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


class JobHandle(RemoteNamespace):
    """``created`` is False when an earlier job stands for this one, or when one of many was refused; ``reason`` then
    says why, and ``detail`` in words where there is more to say."""

    def __init__(self, runner: Runner, placed: Placed) -> None:
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

    @operation
    def get(self) -> Steps[Job]:
        return (yield from one_job(self, self.id))

    aget = awaited(get)

    @operation
    def state(self) -> Steps[State]:
        return (yield from one_job(self, self.id)).state

    astate = awaited(state)

    @operation
    def history(self) -> Steps[list[Event]]:
        return (yield from history_of(self, self.id))

    ahistory = awaited(history)

    @operation
    def log(
        self, attempt: int | None = None, *, offset: int | None = None, tail: int | None = None
    ) -> Steps[AttemptLog]:
        """What an attempt has logged, the last one by default: see ``client.jobs.log``."""
        return (yield from log_of(self, self.id, attempt, offset, tail))

    alog = awaited(log)

    @operation
    def progress(self) -> Steps[Progress | None]:
        """How far the handler said it is, if it said anything."""
        answer = yield from self._ask(get(f"/jobs/{segment(self.id)}"))
        return Progress.saved(read(dict[str, Any], answer.get("checkpoints", {})))

    aprogress = awaited(progress)

    @operation
    def wait(self, timeout: Duration | None = None) -> Steps[Job]:
        """Wait until the job has ended (a dead letter has), or raise ``WaitTimeout``; the job goes on then. Of a job
        whose retries are jobs of their own it is the last one that is waited for, and answered."""
        outcome = yield from self._ended(timeout)
        return (yield from one_job(self, outcome.id))

    await_end = awaited(wait)

    @operation
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

    aresult = awaited(result)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.aresult().__await__()

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
                raise WaitTimeout(f"job {self.id} had not finished after {timeout}")
            if now - begun < SHORTEST_ROUND:
                yield Pause(SHORTEST_ROUND)

    @operation
    def cancel(self, reason: str | None = None) -> Steps[Verdict]:
        return (yield from changed(self, self.id, "cancel", given(reason=reason)))

    acancel = awaited(cancel)

    @operation
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

    areschedule = awaited(reschedule)

    @operation
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

    amove = awaited(move)


# --- what handles and the client both do ---


def one_job(noun: RemoteNamespace, job_id: str) -> Steps[Job]:
    answer = yield from noun._ask(get(f"/jobs/{segment(job_id)}"))
    return read(Job, answer.get("job") if isinstance(answer, dict) else None)


def log_of(
    noun: RemoteNamespace, job_id: str, attempt: int | None, offset: int | None, tail: int | None
) -> Steps[AttemptLog]:
    check_window(offset, tail)
    asking = get(f"/jobs/{segment(job_id)}/log", attempt=check_attempt(attempt), offset=offset, tail=tail)
    return (yield from noun._read(AttemptLog, asking))


def history_of(noun: RemoteNamespace, job_id: str) -> Steps[list[Event]]:
    return (yield from noun._pages(Event, f"/jobs/{segment(job_id)}/history"))


def changed(noun: RemoteNamespace, job_id: str, word: str, body: dict[str, Any]) -> Steps[Verdict]:
    return (yield from noun._read(Verdict, post(f"/jobs/{segment(job_id)}/{word}", body)))
