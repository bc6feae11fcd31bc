"""``History``: what a job has recorded, as data: its facts, payload, durable steps and checkpoints.

``jobs.histories`` reads it from a database and ``steps/replay.py`` runs code against it. As a file it is one line of
JSON per job, which holds everything that a replay needs: no database, key or artifact store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

from holdfast.engine.job import Claim, Job, References
from holdfast.engine.payload import decode, encode
from holdfast.engine.states import State
from holdfast.engine.steps import Step, StepKind
from holdfast.errors import HoldfastError, InvalidInput, NotFound
from holdfast.features.workflows.model import ParentResult

FORMAT: Final = 1
LINE_LIMIT: Final = 256 * 1024 * 1024
"""The most bytes of one history. More is not read."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a job that a handler can read, and its state when the history was read."""

    id: str
    tenant: str
    kind: str
    queue: str
    state: State
    attempt: int
    retries: int
    crashes: int
    max_attempts: int
    max_crashes: int
    priority: int
    position: int
    created_at: datetime
    deadline_at: datetime | None
    correlation_id: str | None
    parent_id: str | None
    workflow_id: str | None
    agent: str | None
    tags: tuple[str, ...]

    @classmethod
    def of(cls, job: Job) -> Facts:
        return cls(**{each.name: getattr(job, each.name) for each in fields(cls)})


@dataclass(frozen=True, slots=True)
class History:
    """The recorded history of one job."""

    job: Facts
    payload: Any
    steps: tuple[Step, ...]
    checkpoints: dict[str, Any]
    references: References = field(default_factory=References)
    parents: tuple[ParentResult, ...] = ()
    """The results of the jobs that it depends on in its workflow."""
    scheduled_at: datetime | None = None
    questions: tuple[tuple[int, str], ...] = ()
    """The open approvals: position, and hash of the question that people see."""
    redacted: bool = False
    hidden: str | None = None
    """Why its values are missing, and it cannot be replayed."""

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def finished(self) -> bool:
        return self.job.state.finished

    def claim(self) -> Claim:
        """The claim of the attempt that would run next; of a finished job, of its last one."""
        job = self.job
        again = job.state in (State.QUEUED, State.RETRY_WAITING, State.WAITING_FOR_APPROVAL, State.DEAD_LETTER)
        values = {name: getattr(job, name) for name in job.__slots__ if name != "state"}
        values |= {"attempt": max(1, job.attempt + again), "lease": "replay", "payload": encode_any(self.payload)}
        return Claim(**values, backoff=None)

    def to_json(self) -> str:
        """One line, without its end."""
        return json.dumps({"format": FORMAT, **_plain(self)}, default=_plain, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> History:
        """Read one line; ``InvalidInput`` if it is not a history."""
        try:
            values = decode(text)
        except HoldfastError as error:
            raise _invalid(f"it is not JSON: {error.message}") from None
        if not isinstance(values, dict) or "job" not in values:
            raise _invalid("it is not a JSON object with a job")
        if (version := values.pop("format", None)) != FORMAT:
            raise _invalid(f"its format is {version!r}, and this release reads {FORMAT}", newer=True)
        history: History = _record(cls, values, "the history")
        return history

    def redact(self) -> History:
        """The same without the texts and numbers of payload, values and events, in a form that has their types."""
        steps = (
            replace(each, value=_masked_value(each), error=_masked_error(each.error), wanted=_masked(each.wanted))
            for each in self.steps
        )
        return replace(
            self,
            payload=_masked(self.payload),
            steps=tuple(steps),
            checkpoints={name: _masked(value) for name, value in self.checkpoints.items()},
            references=References(),
            parents=tuple(replace(each, value=_masked(each.value), ref=None) for each in self.parents),
            redacted=True,
        )


def encode_any(value: object) -> str:
    return encode(value, limit=LINE_LIMIT)


def read_histories(path: str | PathLike[str]) -> Iterator[History]:
    """The histories in a file of JSON lines. An error names the line."""
    try:
        with Path(path).open("rb") as file:
            number = 0
            while line := file.readline(LINE_LIMIT + 1):
                number += 1
                if len(line) > LINE_LIMIT:
                    raise InvalidInput(
                        f"{path}, line {number}: more than {LINE_LIMIT:,} bytes", code="history_too_large"
                    )
                if not line.strip():
                    continue
                try:
                    yield History.from_json(line)
                except InvalidInput as error:
                    where = f"{path}, line {number}: {error.message}"
                    raise InvalidInput(where, code=error.code, fix=error.fix) from None
    except OSError as error:
        raise NotFound(f"file {path} cannot be read: {error.strerror}", code="file_not_found") from None


def _invalid(why: str, *, newer: bool = False) -> InvalidInput:
    fix = "Install the release that wrote the file." if newer else "Write the file with: holdfast jobs export-history"
    return InvalidInput(f"this is not the history of a job: {why}", code="invalid_history", fix=fix)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else {f.name: getattr(value, f.name) for f in fields(value)}


def _record(kind: type[Any], values: object, what: str) -> Any:
    """Build a dataclass from JSON by the types of its fields. Unknown names are ignored: a later release may add one
    without changing the format."""
    if not isinstance(values, Mapping):
        raise _invalid(f"{what} is not an object")
    hints, arguments = _hints(kind), dict[str, Any]()  # type: ignore[arg-type]
    for each in fields(kind):
        if each.name in values:
            arguments[each.name] = _converted(hints[each.name], values[each.name], f"{each.name} of {what}")
    try:
        return kind(**arguments)
    except TypeError:
        missing = sorted({each.name for each in fields(kind)} - arguments.keys())
        raise _invalid(f"{what} lacks one of {', '.join(missing)}") from None


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


_TIMES: Final = (datetime, datetime | None)
_RECORDS: Final[Mapping[Any, type[Any]]] = {Facts: Facts, References: References}
_LISTS: Final[Mapping[Any, type[Any]]] = {tuple[Step, ...]: Step, tuple[ParentResult, ...]: ParentResult}
_PLAIN: Final[Mapping[Any, tuple[type, ...]]] = {
    str: (str,),
    str | None: (str, type(None)),
    int: (int,),
    bool: (bool,),
    dict[str, Any]: (dict,),
    dict[str, Any] | None: (dict, type(None)),
}


def _converted(kind: Any, value: Any, what: str) -> Any:
    if kind in _RECORDS:
        return _record(_RECORDS[kind], value, what)
    try:
        if kind in _LISTS:
            return tuple(_record(_LISTS[kind], each, f"{what} {n}") for n, each in enumerate(_listed(value), 1))
        if kind is State:
            return State(value)
        if kind == StepKind and value not in get_args(StepKind):
            raise ValueError
        if kind in _TIMES:
            return None if value is None and kind is not datetime else _zoned(value)
        if kind == tuple[str, ...]:
            return tuple(_checked((str,), each) for each in _listed(value))
        if kind == tuple[tuple[int, str], ...]:
            return tuple((_checked((int,), n), _checked((str,), text)) for n, text in map(_listed, _listed(value)))
        return _checked(_PLAIN[kind], value) if kind in _PLAIN else value
    except (TypeError, ValueError):
        raise _invalid(f"{what} is not what it should be") from None


def _listed(value: Any) -> list[Any]:
    return _checked((list,), value)  # type: ignore[no-any-return]


def _checked(kinds: tuple[type, ...], value: Any) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise TypeError
    return value


def _zoned(value: Any) -> datetime:
    moment = datetime.fromisoformat(_checked((str,), value))
    if moment.tzinfo is None:
        raise ValueError
    return moment


# --- redaction ---

_UUID: Final = re.compile(r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}")
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIME: Final = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?")
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?")


def _masked(value: Any) -> Any:
    """The shape of a value: keys, lists, booleans and null. Text that is an id, a time or a number stays one."""
    match value:
        case bool() | None:
            return value
        case int():
            return 0
        case float():
            return 0.0
        case str():
            return _masked_text(value)
        case list():
            return [_masked(each) for each in value]
        case dict():
            return {name: _masked(each) for name, each in value.items()}
    return value


def _masked_text(text: str) -> str:
    if _UUID.fullmatch(text):
        return "00000000-0000-0000-0000-000000000000"
    if _DATE.fullmatch(text):
        return "2000-01-01"
    if found := _TIME.fullmatch(text):
        return f"2000-01-01T00:00:00{found[3] or ''}"
    if _NUMBER.fullmatch(text):
        return "0"
    return re.sub(r"\w", "x", text)


def _masked_value(step: Step) -> Any:
    """The value of a step. Of events and approvals, the parts that people and programs wrote are masked."""
    value = step.value
    if step.kind not in ("event", "approval") or not isinstance(value, dict):
        return _masked(value)
    if step.kind == "event":
        return value | {"data": _masked(value.get("data")), "sent_by": "x"}
    votes = [
        vote | {"person": "x", "comment": _masked(vote.get("comment")), "data": _masked(vote.get("data"))}
        for vote in value.get("votes", ())
    ]
    return value | {"votes": votes}


def _masked_error(error: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if error is None else error | {"message": _masked(error.get("message"))}
