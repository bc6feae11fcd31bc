"""``JobHandle`` and the options of enqueue, over HTTP."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from holdfast.engine.hints import check_options, no_attribute
from holdfast.engine.job import Dedupe, Event, Job, Verdict
from holdfast.engine.names import check_name
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
from holdfast.remote.http_requests import Pause, Steps, get, post, segment, without_none
from holdfast.remote.responses import read
from holdfast.remote.runners import RemoteNamespace, Runner


class JobOptions(TypedDict, total=False):
    """The options of enqueue, as locally; tenant and actor come from the token."""

    delay: Duration
    run_at: datetime
    deadline: datetime | Duration
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
    """A job for ``enqueue_many``, made by ``client.prepare``. ``own``: the key was generated and is unique."""

    key: str
    own: bool
    body: Mapping[str, Any] = field(repr=False)


def prepare_call(kind: str, payload: Any, options: JobOptions) -> Call:
    """Check a job as far as possible here. Its key is fixed: sent any number of times, it is one job."""
    check_options(options, JobOptions.__annotations__)
    values = {} if payload is None else payload
    encode(values, limit=PAYLOAD_LIMIT)
    fields = with_policies(options)
    key = fields.pop("key", None)
    if not isinstance(fields.get("deadline"), datetime | None):  # HTTP takes a time
        fields["deadline"] = datetime.now(UTC) + timedelta(seconds=seconds(fields["deadline"], "deadline"))
    for name in ("run_at", "deadline"):
        check_aware(fields.get(name), name)
    if "delay" in fields:
        fields["delay"] = seconds(fields["delay"], "delay")
    for name in ("tags", "resources"):
        if isinstance(fields.get(name), tuple):
            fields[name] = list(fields[name])
    body = without_none(kind=check_name(kind, "kind"), payload=values, **fields)
    return Call(new_key() if key is None else check_name(key, "key", limit=255), key is None, body)


def new_key() -> str:
    return f"py-{uuid.uuid4()}"


def check_aware(at: object, name: str) -> None:
    """Refuse a time without a time zone."""
    instant_or_none(at, name)


def timing_options(
    at: datetime | None, delay: Duration | None, max_attempts: int | None, reason: str | None
) -> dict[str, Any]:
    check_aware(at, "the time")
    span = None if delay is None else seconds(delay, "delay")
    return without_none(at=at, delay=span, max_attempts=max_attempts, reason=reason)


def with_policies(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with retry policies as JSON."""
    return {name: _policy(value) if isinstance(value, Retry) else value for name, value in options.items()}


def _policy(retry: Retry) -> dict[str, Any]:
    as_stored_policy(retry)
    return {"max_attempts": retry.max_attempts, "max_crashes": retry.max_crashes, "backoff": retry.backoff.to_json()}


MAX_POLL = 20.0
"""Maximum seconds that one request waits: proxies may close a connection that is idle for much longer."""
OVERTIME = 5.0
"""Seconds after the caller's timeout in which the last response may still arrive."""
MIN_POLL_INTERVAL = 0.2
"""Minimum seconds between two requests to a service that does not wait."""


@dataclass(frozen=True, slots=True)
class EnqueueResponse:
    """The response to an enqueue."""

    id: str | None
    created: bool
    reason: str | None = None
    detail: str | None = None
    tenant: str | None = None

    def as_created(self) -> EnqueueResponse:
        """For a generated key: if the job existed already, an earlier request made it, whose response was lost."""
        return EnqueueResponse(self.id, True, tenant=self.tenant) if self.reason == "duplicate_key" else self


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended, if it has. ``id`` is the last job of a chain whose retries are new jobs."""

    id: str
    state: State
    finished: bool
    value: Any = None
    ref: str | None = None
    sealed: bool = False
    error_code: str | None = None
    error_message: str | None = None


class JobHandle(RemoteNamespace):
    """A job of the service. ``created`` is False if an earlier job has the same key, or if one of many was refused;
    ``reason`` then has the code, and ``detail`` a message if there is one."""

    def __init__(self, runner: Runner, response: EnqueueResponse) -> None:
        super().__init__(runner)
        self.id = response.id or ""
        self.tenant = response.tenant
        self.created = response.created
        self.reason, self.detail = response.reason, response.detail

    def __repr__(self) -> str:
        return f"JobHandle(id={self.id!r}, created={self.created!r}, reason={self.reason!r})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("Handle", self, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    @operation
    def get(self) -> Steps[Job]:
        return (yield from get_job(self, self.id))

    aget = awaited(get)

    @operation
    def state(self) -> Steps[State]:
        return (yield from get_job(self, self.id)).state

    astate = awaited(state)

    @operation
    def history(self) -> Steps[list[Event]]:
        return (yield from read_history(self, self.id))

    ahistory = awaited(history)

    @operation
    def log(
        self, attempt: int | None = None, *, offset: int | None = None, tail: int | None = None
    ) -> Steps[AttemptLog]:
        """The log of an attempt, by default the last: see ``client.jobs.log``."""
        return (yield from read_log(self, self.id, attempt, offset, tail))

    alog = awaited(log)

    @operation
    def progress(self) -> Steps[Progress | None]:
        """The progress that the handler reported, if any."""
        response = yield from self._request(get(f"/jobs/{segment(self.id)}"))
        return Progress.saved(read(dict[str, Any], response.get("checkpoints", {})))

    aprogress = awaited(progress)

    @operation
    def wait(self, timeout: Duration | None = None) -> Steps[Job]:
        """Wait until the job has ended (a dead letter has), or raise ``WaitTimeout``; the job continues then. If its
        retries are new jobs, wait for the last one and return it."""
        outcome = yield from self._ended(timeout)
        return (yield from get_job(self, outcome.id))

    await_end = awaited(wait)

    @operation
    def result(self, timeout: Duration | None = None) -> Steps[Any]:
        """Wait for the end and return the result of the handler; ``JobFailed`` if it did not succeed."""
        outcome = yield from self._ended(timeout)
        if outcome.state is not State.SUCCEEDED:
            error = f": {outcome.error_message} ({outcome.error_code})" if outcome.error_code else ""
            raise JobFailed(
                f"job {outcome.id} is {outcome.state}{error}", fix=f"Read the reason: holdfast jobs show {outcome.id}"
            )
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
            started = time.monotonic()
            left = MAX_POLL if end is None else min(MAX_POLL, max(0.0, end - started))
            request = get(f"/jobs/{segment(self.id)}/result", wait=round(left, 3), patience=left)
            outcome = yield from self._read(Outcome, replace(request, until=until))
            if outcome.finished:
                return outcome
            now = time.monotonic()
            if end is not None and now >= end:
                raise WaitTimeout(f"job {self.id} had not finished after {seconds(timeout or 0, 'timeout'):g} s")
            if now - started < MIN_POLL_INTERVAL:
                yield Pause(MIN_POLL_INTERVAL)

    @operation
    def cancel(self, reason: str | None = None) -> Steps[Verdict]:
        return (yield from change_job(self, self.id, "cancel", without_none(reason=reason)))

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
        """Run it at another time; without a time or a delay, immediately. ``Conflict`` if it is not waiting."""
        body = timing_options(at, delay, max_attempts, reason)
        return (yield from change_job(self, self.id, "reschedule", body))

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
        """Move it within its queue. ``Conflict`` if it is not waiting."""
        body = without_none(first=first, last=last, before=before, after=after, priority=priority, reason=reason)
        return (yield from change_job(self, self.id, "move", body))

    amove = awaited(move)


# --- shared by JobHandle and client.jobs ---


def get_job(namespace: RemoteNamespace, job_id: str) -> Steps[Job]:
    response = yield from namespace._request(get(f"/jobs/{segment(job_id)}"))
    return read(Job, response.get("job") if isinstance(response, dict) else None)


def read_log(
    namespace: RemoteNamespace, job_id: str, attempt: int | None, offset: int | None, tail: int | None
) -> Steps[AttemptLog]:
    check_window(offset, tail)
    request = get(f"/jobs/{segment(job_id)}/log", attempt=check_attempt(attempt), offset=offset, tail=tail)
    return (yield from namespace._read(AttemptLog, request))


def read_history(namespace: RemoteNamespace, job_id: str) -> Steps[list[Event]]:
    return (yield from namespace._all(Event, f"/jobs/{segment(job_id)}/history"))


def change_job(namespace: RemoteNamespace, job_id: str, action: str, body: dict[str, Any]) -> Steps[Verdict]:
    return (yield from namespace._read(Verdict, post(f"/jobs/{segment(job_id)}/{action}", body)))
