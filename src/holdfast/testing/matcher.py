"""``JobMatcher``: compare enqueued jobs with what a test expects, and explain the differences."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from holdfast.engine.job import Job
from holdfast.engine.states import State
from holdfast.engine.trace import plain_tags
from holdfast.engine.units import seconds
from holdfast.errors import InvalidArguments, InvalidSetting
from holdfast.kind import Kind

# A test and the program under test compute a time at slightly different moments.
TIME_TOLERANCE = timedelta(seconds=5)
DELAY_TOLERANCE = timedelta(seconds=1)
MAX_SHOWN = 200


def _same_time(actual: datetime | None, expected: datetime | None) -> bool:
    if actual is None or expected is None:
        return actual is expected
    return abs(actual - expected) <= TIME_TOLERANCE


def _delay_of(job: Job) -> timedelta:
    return timedelta(0) if job.run_at is None else job.run_at - job.created_at


def _same_delay(actual: timedelta, expected: Any) -> bool:
    return abs(actual - timedelta(seconds=seconds(expected, "delay"))) <= DELAY_TOLERANCE


def _same(actual: Any, expected: Any) -> bool:
    return bool(actual == expected)


def _has_all(actual: Sequence[str], expected: Any) -> bool:
    return {expected} <= set(actual) if isinstance(expected, str) else set(expected) <= set(actual)


def _same_job(actual: str | None, expected: Any) -> bool:
    return bool(actual == getattr(expected, "id", expected))


# Options that a test can match: how to read each from a job, and how to compare it.
OPTIONS: dict[str, tuple[Callable[[Job], Any], Callable[[Any, Any], bool]]] = {
    "state": (lambda job: job.state, _same),
    "queue": (lambda job: job.queue, _same),
    "priority": (lambda job: job.priority, _same),
    "delay": (_delay_of, _same_delay),
    "run_at": (lambda job: job.run_at, _same_time),
    "deadline": (lambda job: job.deadline_at, _same_time),
    "key": (lambda job: job.idempotency_key, _same),
    "tags": (lambda job: job.tags, _has_all),
    "tenant": (lambda job: job.tenant, _same),
    "parent": (lambda job: job.parent_id, _same_job),
    "correlation_id": (lambda job: job.correlation_id, _same),
    "causation_id": (lambda job: job.causation_id, _same),
    "workflow_id": (lambda job: job.workflow_id, _same),
    "external_ref": (lambda job: job.external_ref, _same),
    "agent": (lambda job: job.agent, _same),
    "enqueued_by": (lambda job: job.enqueued_by, _same),
}


class JobMatcher:
    """Matches jobs by kind, options and arguments. A name that is not an option is an argument.

    An argument that has the name of an option is matched by ``payload={…}``.
    """

    def __init__(self, kind: Kind[..., Any] | str | None, match: Mapping[str, Any]) -> None:
        self._signature = kind._signature if isinstance(kind, Kind) else None
        self.kind = kind.name if isinstance(kind, Kind) else kind
        payload = match.get("payload", {})
        if not isinstance(payload, Mapping):
            raise InvalidSetting("payload must be a mapping of arguments by name", code="invalid_match")
        self._options = {name: value for name, value in match.items() if name in OPTIONS}
        arguments = {name: value for name, value in match.items() if name not in OPTIONS and name != "payload"}
        self._arguments = {**payload, **arguments}
        if isinstance(kind, Kind):
            _check_arguments(kind, self._arguments)

    def __str__(self) -> str:
        parts = [f"{name}={value!r}" for name, value in {**self._arguments, **self._options}.items()]
        return f"{self.kind or 'job'}{' with ' if parts else ''}{', '.join(parts)}"

    def among(self, jobs: Iterable[Job]) -> list[Job]:
        return [job for job in jobs if self.is_kind(job) and not self.differences(job)]

    def is_kind(self, job: Job) -> bool:
        return self.kind is None or job.kind == self.kind

    def differences(self, job: Job) -> list[str]:
        payload = job.payload if isinstance(job.payload, dict) else {}
        result = []
        for name, value in self._arguments.items():
            if name not in payload:
                result.append(f"has no argument {name}")
            elif not self._is_argument(name, payload[name], value):
                result.append(f"{name} is {_short(payload[name])}, not {_short(value)}")
        for name, value in self._options.items():
            read, fits = OPTIONS[name]
            if not fits(read(job), value):
                result.append(f"{name} is {_readable(read(job))}, not {_readable(value)}")
        return result

    def _is_argument(self, name: str, stored: Any, value: Any) -> bool:
        """Compare an argument with its stored form, which is JSON: a datetime or a dataclass is converted first."""
        if stored == value:
            return True
        if self._signature is None:
            return False
        try:
            return bool(stored == self._signature.dump(name, value))
        except Exception:  # the expected value does not have the type of the argument
            return False


def _check_arguments(kind: Kind[..., Any], arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that no job of the kind can have: ``assert_not_enqueued`` would pass for a misspelled one."""
    for name in arguments:
        if name not in kind.parameters:
            near = difflib.get_close_matches(name, [*kind.parameters, *OPTIONS], 1)
            raise InvalidArguments(
                f"{kind.name} has no argument {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
                fix=f"Its arguments are {', '.join(kind.parameters) or 'none'}; options are {', '.join(OPTIONS)}.",
            )


def explain(expected: JobMatcher, jobs: Sequence[Job], headline: str) -> str:
    """Return the headline with a list of the enqueued jobs; those of the expected kind with their differences."""
    if not jobs:
        return f"{headline}; there are no jobs"
    lines = [f"{headline}; enqueued jobs:"]
    for job in sorted(jobs, key=lambda job: not expected.is_kind(job)):
        lines.append(f"  {describe(job)}")
        if expected.is_kind(job):
            lines += [f"      {difference}" for difference in expected.differences(job)]
    return "\n".join(lines)


def describe(job: Job) -> str:
    """Return a job as one line: a call with its options and its state."""
    payload = job.payload
    arguments = ", ".join(f"{k}={v!r}" for k, v in payload.items()) if isinstance(payload, dict) else repr(payload)
    options = [f"queue={job.queue}", *(f"tag={tag}" for tag in plain_tags(job.tags))]
    if job.run_at is not None:
        options.append(f"delay={_delay_of(job)}")
    if job.idempotency_key is not None:
        options.append(f"key={job.idempotency_key}")
    return f"{job.kind}({_cut(arguments)}) {' '.join(options)}: {job.state}"


def _readable(value: Any) -> str:
    return str(value) if isinstance(value, datetime | timedelta | State) else _short(value)


def _short(value: Any) -> str:
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
