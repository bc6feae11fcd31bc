"""Which of the enqueued jobs are meant, and what to say when none is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from holdfast.engine.job import Job
from holdfast.engine.states import State
from holdfast.engine.trace import plain_tags
from holdfast.engine.units import seconds
from holdfast.errors import InvalidSetting
from holdfast.kind import Kind

# A time that a test works out for itself is never quite the one that its program worked out.
NEAR = timedelta(seconds=5)
NEARLY = timedelta(seconds=1)
LONGEST = 200


def _near(moment: datetime | None, wanted: datetime | None) -> bool:
    if moment is None or wanted is None:
        return moment is wanted
    return abs(moment - wanted) <= NEAR


def _delayed(job: Job) -> timedelta:
    return timedelta(0) if job.run_at is None else job.run_at - job.created_at


def _same_delay(found: timedelta, wanted: Any) -> bool:
    return abs(found - timedelta(seconds=seconds(wanted, "delay"))) <= NEARLY


def _same(found: Any, wanted: Any) -> bool:
    return bool(found == wanted)


def _has_all(found: Sequence[str], wanted: Any) -> bool:
    return {wanted} <= set(found) if isinstance(wanted, str) else set(wanted) <= set(found)


def _same_job(found: str | None, wanted: Any) -> bool:
    return bool(found == getattr(wanted, "id", wanted))


# The options of ``using``, and what else is asked of a job: where it is found, and when it is the one wanted.
OPTIONS: dict[str, tuple[Callable[[Job], Any], Callable[[Any, Any], bool]]] = {
    "state": (lambda job: job.state, _same),
    "queue": (lambda job: job.queue, _same),
    "priority": (lambda job: job.priority, _same),
    "delay": (_delayed, _same_delay),
    "run_at": (lambda job: job.run_at, _near),
    "deadline": (lambda job: job.deadline_at, _near),
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


class Wanted:
    """A kind and what its job must have: options under their own names, everything else is an argument.

    An argument that is called like an option is asked for in ``payload={…}``.
    """

    def __init__(self, kind: Kind[..., Any] | str | None, match: Mapping[str, Any]) -> None:
        self._signature = kind._signature if isinstance(kind, Kind) else None
        self.kind = kind.name if isinstance(kind, Kind) else kind
        payload = match.get("payload", {})
        if not isinstance(payload, Mapping):
            raise InvalidSetting("payload must be a mapping of arguments by name", code="invalid_match")
        self._options = {name: value for name, value in match.items() if name in OPTIONS}
        named = {name: value for name, value in match.items() if name not in OPTIONS and name != "payload"}
        self._arguments = {**payload, **named}

    def __str__(self) -> str:
        asked = [f"{name}={value!r}" for name, value in {**self._arguments, **self._options}.items()]
        return f"{self.kind or 'job'}{' with ' if asked else ''}{', '.join(asked)}"

    def among(self, jobs: Iterable[Job]) -> list[Job]:
        return [job for job in jobs if self.is_kind(job) and not self.differences(job)]

    def is_kind(self, job: Job) -> bool:
        return self.kind is None or job.kind == self.kind

    def differences(self, job: Job) -> list[str]:
        payload = job.payload if isinstance(job.payload, dict) else {}
        found = []
        for name, value in self._arguments.items():
            if name not in payload:
                found.append(f"has no argument {name}")
            elif not self._is_argument(name, payload[name], value):
                found.append(f"{name} is {_short(payload[name])}, not {_short(value)}")
        for name, value in self._options.items():
            read, fits = OPTIONS[name]
            if not fits(read(job), value):
                found.append(f"{name} is {_plainly(read(job))}, not {_plainly(value)}")
        return found

    def _is_argument(self, name: str, stored: Any, value: Any) -> bool:
        """Stored as JSON: a datetime or a dataclass is compared in the form in which it was stored."""
        if stored == value:
            return True
        if self._signature is None:
            return False
        try:
            return bool(stored == self._signature.dump(name, value))
        except Exception:  # whatever was asked for, it is not of the argument's type
            return False


def told(wanted: Wanted, jobs: Sequence[Job], headline: str) -> str:
    """What was asked for and what there is instead; the jobs of the same kind with what is wrong about each."""
    if not jobs:
        return f"{headline}; nothing was"
    lines = [f"{headline}; what was:"]
    for job in sorted(jobs, key=lambda job: not wanted.is_kind(job)):
        lines.append(f"  {describe(job)}")
        if wanted.is_kind(job):
            lines += [f"      {difference}" for difference in wanted.differences(job)]
    return "\n".join(lines)


def describe(job: Job) -> str:
    """One job in one line, as a call with its options."""
    payload = job.payload
    arguments = ", ".join(f"{k}={v!r}" for k, v in payload.items()) if isinstance(payload, dict) else repr(payload)
    said = [f"queue={job.queue}", *(f"tag={tag}" for tag in plain_tags(job.tags))]
    if job.run_at is not None:
        said.append(f"delay={_delayed(job)}")
    if job.idempotency_key is not None:
        said.append(f"key={job.idempotency_key}")
    return f"{job.kind}({_cut(arguments)}) {' '.join(said)}: {job.state}"


def _plainly(value: Any) -> str:
    return str(value) if isinstance(value, datetime | timedelta | State) else _short(value)


def _short(value: Any) -> str:
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
