"""Records of durable steps, the script that matches them with the calls of a handler, and reported progress.

A handler that resumes after a crash, a sleep or an approval runs again from the top. Each of its durable calls takes
the next position; the step recorded at that position is the call's result, if the name is the same. If it is not, the
code has changed and no recorded result can be trusted: ``Script`` raises ``StepsChanged`` instead of guessing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from holdfast.engine.names import check_name
from holdfast.engine.payload import canonical, encode
from holdfast.engine.redaction import Redact
from holdfast.errors import InvalidSetting, StepsChanged

StepKind = Literal["step", "sleep", "event", "approval", "patch"]

MATCH_LIMIT: Final = 500
"""In bytes. The match of a wait is indexed with its name and tenant, and the size of an index entry is limited."""
NAME_LIMIT: Final = 200
NO_LIMIT: Final = timedelta(days=99 * 365)
"""A wait without a limit is stored as due in a hundred years, so a time beyond this means no limit."""
COMPARED: Final = 20
"""Calls that are shown side by side when the recorded ones differ from those of the code."""
BEFORE_ALL: Final = 0
"""The position of the approval before the handler: the calls of the handler begin at 1."""

FORK_TAG: Final = "fork:"
"""The tag of a forked job, followed by the id of the job that it was forked from. It has steps before its first
attempt."""

_FORKED: Final = re.compile(rf"{FORK_TAG}[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}")


def origin_of(tags: Sequence[str]) -> str | None:
    """The job that a job with these tags was forked from."""
    return next((tag.removeprefix(FORK_TAG) for tag in tags if _FORKED.fullmatch(tag)), None)


@dataclass(frozen=True, slots=True)
class Step:
    """One recorded durable call. ``ended_at`` is None while it waits or will be retried."""

    job_id: str
    n: int
    name: str
    kind: StepKind
    value: Any
    error: dict[str, Any] | None
    tries: int
    attempt: int
    started_at: datetime
    wake_at: datetime | None
    ended_at: datetime | None
    wanted: dict[str, Any] | None
    """For a wait: the values that the event must have."""
    now: datetime = field(compare=False)
    """Time of the read, by the database's clock."""

    @property
    def over(self) -> bool:
        return self.ended_at is not None

    @property
    def running(self) -> bool:
        """Whether it runs now: it has not ended, and does not wait for a time, an event or an approval."""
        return self.kind == "step" and self.ended_at is None and self.wake_at is None

    @property
    def is_late(self) -> bool:
        """Whether its time has come: a sleep is over, an event has not come in time, a retry is due."""
        return self.wake_at is not None and self.wake_at <= self.now

    @property
    def until(self) -> datetime | None:
        """When a wait times out, a sleep ends or a retry is due; None for a wait without a limit."""
        wake = self.wake_at
        return None if wake is None or wake - self.started_at > NO_LIMIT else wake


@dataclass(slots=True)
class StepEntry:
    """A step that is over, to be written. ``value`` is JSON text; ``took`` is its run time in seconds."""

    n: int
    name: str
    kind: StepKind
    value: str | None = None
    error: dict[str, Any] | None = None
    tries: int = 1
    took: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Without the value, which is text already."""
        values = {"n": self.n, "name": self.name, "kind": self.kind, "tries": self.tries, "took": round(self.took, 6)}
        return values | ({"error": self.error} if self.error is not None else {})


@dataclass(slots=True)
class Saved:
    """A special result for an entry: the worker no longer holds the attempt (``stale``), or the step was over already
    (``kept``), with its value."""

    job_id: str
    n: int
    fate: Literal["stale", "kept"]
    value: Any = None


@dataclass(slots=True)
class Pause:
    """What a suspended attempt waits for: a time, an event or an approval. Without ``delay`` there is no time limit."""

    n: int
    name: str
    kind: StepKind
    delay: float | None = None
    until: datetime | None = None
    tries: int = 1
    error: dict[str, Any] | None = None
    wanted: dict[str, Any] | None = None
    since: float = 0.0
    approval: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """For the settlement, and for the socket between a worker and its child process."""
        values = {
            "n": self.n,
            "name": self.name,
            "kind": self.kind,
            "delay": self.delay,
            "until": None if self.until is None else self.until.isoformat(),
            "tries": self.tries,
            "error": self.error,
            "wanted": self.wanted,
            "since": self.since or None,
            "approval": self.approval,
        }
        return {name: value for name, value in values.items() if value is not None}


class Script:
    """Matches the durable calls of one attempt with the steps that earlier attempts have recorded.

    Entries that need not be written at once (a failure that the handler may catch, the result of ``patched``) are
    deferred until a call that was made later is written, because only then the handler has continued from there. If
    there is no later call, nothing depends on them. A position may be empty while later ones are not: steps that run at
    once may end in any order.
    """

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._recorded: dict[int, Step] = {}
        self._last_recorded = BEFORE_ALL
        self._position = self._ordered = BEFORE_ALL
        self._deferred: dict[int, tuple[int, StepEntry]] = {}
        self._uses: dict[str, int] = {}
        self._named: set[int] = set()
        self._decisions: dict[int, Step] = {}
        self._called: dict[int, str] = {}

    def remember(self, steps: Sequence[Step]) -> None:
        self._recorded = {step.n: step for step in steps}
        self._last_recorded = max(self._recorded, default=BEFORE_ALL)
        self._decisions = {
            step.n: step for step in steps if step.kind == "approval" and step.over and step.n != BEFORE_ALL
        }

    def next_position(self) -> int:
        """Take the position of the next call, when it is made: calls that run at once have the order of the code."""
        self._ordered = n = self._following()
        self._position = max(self._position, n)
        return n

    def _following(self) -> int:
        """The position after the last ordered call, without those of steps that are identified by their name: a branch
        that runs at once may have taken later ones already."""
        n = self._ordered + 1
        while n in self._named:
            n += 1
        return n

    def named_position(self, name: str) -> tuple[int, str]:
        """The position and the full name of a step that is identified by its name. Call it after ``remember``.

        Steps that run at once may call this in any order. A name that is used again becomes ``name (2)``. A step that
        is not recorded gets a position after all others, so that it never takes the position of a sibling.
        """
        uses = self._uses[name] = self._uses.get(name, 0) + 1
        full = name if uses == 1 else f"{name} ({uses})"
        recorded = next((n for n, step in self._recorded.items() if (step.name, step.kind) == (full, "step")), None)
        n = max(self._last_recorded, self._position) + 1 if recorded is None else recorded
        self._position = max(self._position, n)
        self._named.add(n)
        return n, full

    def at(self, n: int, name: str, kind: StepKind, content_hash: str | None = None) -> Step | None:
        """The recorded step at this position. Raises ``StepsChanged`` if it was another call, or an approval of another
        question: ``content_hash`` is the hash of this one."""
        step = self._recorded.get(n)
        self._called[n] = f"{kind} {name}"
        if step is not None and (step.name, step.kind) != (name, kind):
            changed = StepsChanged(
                f"job {self._job_id}: durable call {n} was {step.kind} {step.name!r} and is now {kind} {name!r}: "
                "the handler's code changed after the job started",
                fix="Restore the old order, or branch with ctx.patched(…).",
            )
            changed.steps = self._compared(n)
            raise changed
        if step is not None and kind == "approval" and step.over:
            if step.value["content_hash"] != content_hash:
                raise StepsChanged(
                    f"job {self._job_id}: approval {name!r} was {step.value['state']} with another question "
                    "(its summary, data or form): the decision does not apply to this one",
                    code="question_changed",
                )
            self._decisions.pop(n, None)
        return step

    def _compared(self, n: int) -> tuple[dict[str, Any], ...]:
        """The calls around call ``n``: as they were recorded, and as this attempt has made them."""
        numbers = sorted({*self._recorded, *self._called} - {BEFORE_ALL})
        first = max(0, numbers.index(n) - COMPARED // 2)
        return tuple(
            {
                "n": number,
                "recorded": None if (step := self._recorded.get(number)) is None else f"{step.kind} {step.name}",
                "called": self._called.get(number),
            }
            for number in numbers[first : first + COMPARED]
        )

    def not_asked(self, before: int | None = None) -> StepsChanged | None:
        """The error of a recorded decision before this position (or at any) that the handler has not asked for."""
        if not self._decisions:
            return None
        n = min(self._decisions)
        if before is not None and n >= before:
            return None
        step = self._decisions[n]
        return StepsChanged(
            f"job {self._job_id}: approval {step.name!r} was {step.value['state']}, and the handler no longer asks for "
            "it: its code changed after the job asked",
            code="approval_not_asked",
        )

    def patched(self, name: str, retired: bool = False) -> bool:
        """Whether this attempt takes the new path. A job that passed this position with the old code stays on the old
        path. ``retired``: there is no old path any more, and jobs that have not recorded the patch do not record it."""
        n = self._following()
        step = self._recorded.get(n)
        if retired and (step is None or (step.name, step.kind) != (name, "patch")):
            return True
        if step is not None:
            if (step.name, step.kind) != (name, "patch"):
                return False
        elif n < self._last_recorded:
            return False
        self.next_position()
        self._called[n] = f"patch {name}"
        if step is None:
            self.defer(StepEntry(n, name, "patch"))
        return True

    def defer(self, entry: StepEntry) -> None:
        self._deferred[entry.n] = (self._position, entry)

    def deferred_before(self, n: int) -> list[StepEntry]:
        """The deferred entries to write with the call at this position. Steps in threads may defer more meanwhile."""
        if not self._deferred or n in self._named:  # a parallel branch does not show that the handler has continued
            return []
        return [entry for position, entry in list(self._deferred.values()) if position < n]

    def written(self, entries: Sequence[StepEntry]) -> None:
        """Called after a successful write. Until then the entries stay deferred, as the write may be cancelled."""
        for entry in entries:
            self._deferred.pop(entry.n, None)

    @property
    def steps(self) -> list[Step]:
        """The recorded steps of earlier attempts."""
        return [*self._recorded.values()]

    @property
    def first(self) -> Step | None:
        """The recorded approval before the handler."""
        return self._recorded.get(BEFORE_ALL)

    @property
    def unused(self) -> list[Step]:
        """Recorded steps after the last call of this attempt: the handler no longer makes them."""
        return [step for n, step in sorted(self._recorded.items()) if n > self._position]


def check_step_name(name: object) -> str:
    return check_name(name, "name of the step", limit=NAME_LIMIT)


def check_match(match: Mapping[Any, Any] | None) -> dict[str, Any]:
    """Check the match of a wait: names with plain values, compared as they are."""
    values = dict(match or {})
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, str | int | bool | None):
            raise InvalidSetting(
                "match must be an object whose values are text, whole numbers, booleans or null", code="invalid_match"
            )
    if len(canonical(values).encode()) > MATCH_LIMIT:
        raise InvalidSetting(f"match is larger than {MATCH_LIMIT:,} bytes", code="invalid_match")
    return values


def projection(data: Mapping[str, Any], shape: Sequence[str]) -> dict[str, Any]:
    """The values of an event that a wait compares: the names in ``shape`` with their values, null if missing.

    7.0 becomes 7: every store compares numbers by their value.
    """
    values = {name: data.get(name) for name in shape}
    return {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in values.items()}


RESERVED: Final = "holdfast:progress"
RUNNING: Final = "holdfast:running"
"""The checkpoint that lists the running steps; readers see them among the steps."""
MESSAGE_LIMIT: Final = 500


def with_running(steps: Sequence[Step], checkpoints: dict[str, Any], job_id: str, attempt: int | None) -> list[Step]:
    """The recorded steps of a job and the running ones, which its worker lists in a checkpoint of this ``attempt``. The
    checkpoint is removed. ``attempt`` is None for a job that does not run."""
    checkpoint = checkpoints.pop(RUNNING, None)
    if not isinstance(checkpoint, Mapping) or checkpoint.get("attempt") != attempt:
        return list(steps)
    result = {step.n: step for step in steps}
    for running in checkpoint.get("steps", ()):
        n, began = running["n"], datetime.fromisoformat(running["started_at"])
        known = result.get(n)
        if known is None:
            name, tries = running["name"], running["tries"]
            result[n] = Step(
                job_id, n, name, "step", None, None, tries, checkpoint["attempt"], began, None, None, None, began
            )
        elif not known.over:  # it failed before, and is retried
            result[n] = replace(known, started_at=began, wake_at=None, tries=known.tries + 1)
    return [result[n] for n in sorted(result)]


@dataclass(frozen=True, slots=True)
class Progress:
    """Reported progress. ``fraction`` is from 0 to 1, or None if unknown; ``attempt`` is the attempt that reported
    it."""

    fraction: float | None
    message: str | None
    attempt: int

    @classmethod
    def of(cls, fraction: object, message: object, attempt: int, redact: Redact) -> Progress:
        if fraction is not None:
            number = isinstance(fraction, (int, float)) and not isinstance(fraction, bool)
            if not number or not 0 <= fraction <= 1:  # type: ignore[operator]
                raise InvalidSetting("the fraction must be a number from 0 to 1", code="invalid_progress")
            fraction = float(fraction)  # type: ignore[arg-type]
        text = None if message is None else redact(str(message), MESSAGE_LIMIT)
        # Replace characters that cannot be stored: a progress report must not end the job.
        safe = None if text is None else text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
        return cls(fraction, safe, attempt)

    @classmethod
    def saved(cls, checkpoints: Mapping[str, Any]) -> Progress | None:
        """The progress in a job's checkpoints, if there is any."""
        value = checkpoints.get(RESERVED)
        if not isinstance(value, Mapping):
            return None
        return cls(value.get("fraction"), value.get("message"), int(value.get("attempt") or 0))

    def to_json(self) -> str:
        return encode({"fraction": self.fraction, "message": self.message, "attempt": self.attempt})
