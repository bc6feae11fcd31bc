"""Durable step records, match rules, named checkpoints, ``Progress``.

Durable steps: what a handler did is remembered in the order in which it did it, and is not done again (HF-6).

A handler that goes on after a crash, a sleep or an answer runs again from its top. Each of its durable calls takes
the next place in order; what is remembered for that place is the call's result, if the name is the same. If it is
not, the code has changed since, and no result can be trusted: ``Script`` says so instead of guessing.
"""

from __future__ import annotations

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
"""In bytes. What waits look for is indexed, with their names and tenants, and an entry of an index has its limit."""
NAME_LIMIT: Final = 200
NO_LIMIT: Final = timedelta(days=99 * 365)
"""A wait without a limit is due in a hundred years; whatever is further off than this was not meant."""
BEFORE_ALL: Final = 0
"""The place of the approval before the handler: its own calls begin at 1."""


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
        """It runs now: it has neither ended, nor waits for a time, an event or people."""
        return self.kind == "step" and self.ended_at is None and self.wake_at is None

    @property
    def is_late(self) -> bool:
        """Its time has come: a sleep is over, an event did not come, a try may be made."""
        return self.wake_at is not None and self.wake_at <= self.now

    @property
    def until(self) -> datetime | None:
        """When a wait is given up, a sleep is over, a try is made; None for what waits as long as it takes."""
        wake = self.wake_at
        return None if wake is None or wake - self.started_at > NO_LIMIT else wake


@dataclass(slots=True)
class StepEntry:
    """A step that is over, about to be written. ``value`` is JSON text; ``took`` is how long it ran, in seconds."""

    n: int
    name: str
    kind: StepKind
    value: str | None = None
    error: dict[str, Any] | None = None
    tries: int = 1
    took: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Without the value, which is text already."""
        facts = {"n": self.n, "name": self.name, "kind": self.kind, "tries": self.tries, "took": round(self.took, 6)}
        return facts | ({"error": self.error} if self.error is not None else {})


@dataclass(slots=True)
class Saved:
    """What is out of the ordinary about an entry: the attempt is no longer ours, or the step was over already."""

    job_id: str
    n: int
    fate: Literal["stale", "kept"]
    value: Any = None


@dataclass(slots=True)
class Pause:
    """What an attempt ends for, to go on later: a time, an event, people. ``delay`` None waits as long as it takes."""

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
        """What a settlement carries, and the child of a worker sends over its socket."""
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
    """The durable calls of one attempt beside those that are remembered from earlier ones.

    What need not be written at once (a failure its handler may yet catch, the answer to ``patched``) is put off until a
    call is written that was made afterwards: then the handler has gone on from there. If there is none, nothing has
    come to depend on it. A place may be empty though later ones are not: of steps that run at once, any may be done
    first.
    """

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._remembered: dict[int, Step] = {}
        self._last = BEFORE_ALL
        self._taken = BEFORE_ALL
        self._put_off: dict[int, tuple[int, StepEntry]] = {}
        self._times: dict[str, int] = {}
        self._named: set[int] = set()

    def remember(self, steps: Sequence[Step]) -> None:
        self._remembered = {step.n: step for step in steps}
        self._last = max(self._remembered, default=BEFORE_ALL)

    def take_place(self) -> int:
        """The place of the next call, taken when it is made: of calls that run at once, the code's order counts."""
        self._taken += 1
        return self._taken

    def take_named(self, name: str) -> tuple[int, str]:
        """The place and the full name of a step that is found by its name. Call it after ``remember``.

        Steps that run at once may come here in any order. A name that is used again becomes ``name (2)``. A step that
        is not remembered gets a place after all others, so that it never takes one that a sibling has.
        """
        times = self._times[name] = self._times.get(name, 0) + 1
        full = name if times == 1 else f"{name} ({times})"
        found = next((n for n, step in self._remembered.items() if (step.name, step.kind) == (full, "step")), None)
        n = max(self._last, self._taken) + 1 if found is None else found
        self._taken = max(self._taken, n)
        self._named.add(n)
        return n, full

    def at(self, n: int, name: str, kind: StepKind) -> Step | None:
        """What is remembered of the call at this place, which must be the one it was."""
        step = self._remembered.get(n)
        if step is not None and (step.name, step.kind) != (name, kind):
            raise StepsChanged(
                f"job {self._job_id}: durable call {n} was {step.kind} {step.name!r} and is now {kind} {name!r}: "
                "the handler's code changed after the job started",
                fix="Restore the old order, or branch with ctx.patched(…).",
            )
        return step

    def patched(self, name: str) -> bool:
        """Whether this attempt goes the new way. An attempt that passed this place by the old code goes the old way."""
        n = self._taken + 1
        step = self._remembered.get(n)
        if step is not None:
            if (step.name, step.kind) != (name, "patch"):
                return False
        elif n < self._last:
            return False
        else:
            self._taken = n
            self.put_off(StepEntry(n, name, "patch"))
        self._taken = n
        return True

    def put_off(self, entry: StepEntry) -> None:
        self._put_off[entry.n] = (self._taken, entry)

    def due_with(self, n: int) -> list[StepEntry]:
        """What is to be written with the call at this place. Steps in threads may put off more meanwhile."""
        if not self._put_off or n in self._named:  # a branch beside the one that failed says nothing about it
            return []
        return [entry for taken, entry in list(self._put_off.values()) if taken < n]

    def written(self, entries: Sequence[StepEntry]) -> None:
        """These are remembered now. Until then they are due: who was to write them may have been cut short."""
        for entry in entries:
            self._put_off.pop(entry.n, None)

    @property
    def steps(self) -> list[Step]:
        """The calls that are remembered from earlier attempts."""
        return [*self._remembered.values()]

    @property
    def left(self) -> list[Step]:
        """What is remembered and was not asked for: of steps that the handler has no more."""
        return [step for n, step in sorted(self._remembered.items()) if n > self._taken]


def check_step_name(name: object) -> str:
    return check_name(name, "name of the step", limit=NAME_LIMIT)


def check_match(match: Mapping[Any, Any] | None) -> dict[str, Any]:
    """What an event must have: names with plain values, compared as they are."""
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
    """What of an event a wait looks at: the names in ``shape`` with their values, null where there is none.

    7.0 is 7 here: every store compares numbers by their value.
    """
    found = {name: data.get(name) for name in shape}
    return {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in found.items()}


RESERVED: Final = "holdfast:progress"
RUNNING: Final = "holdfast:running"
"""The checkpoint that names the steps that run now; readers see them among the steps."""
MESSAGE_LIMIT: Final = 500


def with_running(steps: Sequence[Step], checkpoints: dict[str, Any], job_id: str, attempt: int | None) -> list[Step]:
    """The steps of a job and those that run now, which its worker has named in a checkpoint of this ``attempt``. Takes
    the checkpoint away. ``attempt`` is None for a job that does not run."""
    said = checkpoints.pop(RUNNING, None)
    if not isinstance(said, Mapping) or said.get("attempt") != attempt:
        return list(steps)
    found = {step.n: step for step in steps}
    for each in said.get("steps", ()):
        known, began = found.get(each["n"]), datetime.fromisoformat(each["started_at"])
        if known is None:
            name, tries = each["name"], each["tries"]
            found[each["n"]] = Step(
                job_id, each["n"], name, "step", None, None, tries, said["attempt"], began, None, None, None, began
            )
        elif not known.over:  # it failed before, and is tried again
            found[each["n"]] = replace(known, started_at=began, wake_at=None, tries=known.tries + 1)
    return [found[n] for n in sorted(found)]


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
        # Some text cannot be stored at all; a word on how far it is must not end the job.
        safe = None if text is None else text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
        return cls(fraction, safe, attempt)

    @classmethod
    def saved(cls, checkpoints: Mapping[str, Any]) -> Progress | None:
        """What a job's checkpoints say, if they say anything."""
        value = checkpoints.get(RESERVED)
        if not isinstance(value, Mapping):
            return None
        return cls(value.get("fraction"), value.get("message"), int(value.get("attempt") or 0))

    def to_json(self) -> str:
        return encode({"fraction": self.fraction, "message": self.message, "attempt": self.attempt})
