"""Searching jobs with words: ``state:dead_letter kind:mail since:1h "connection refused"``. One parser for the HTTP API
and the search box of the dashboard.

A qualifier is a name, a colon and a value, quoted where it has blanks in it. All of them must hold. What has no name
is looked for in the code and the message of a job's error, whatever its case.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from holdfast.engine.ids import parse_id
from holdfast.engine.job import Job
from holdfast.engine.names import check_name
from holdfast.engine.states import State
from holdfast.engine.units import seconds
from holdfast.errors import InvalidInput, InvalidSetting
from holdfast.stores.requests import JobFilter

LONGEST: Final = 1_000
WORDS: Final = 10
"""How many words without a name there may be."""

# The name in a search, and that in a filter.
NAMES: Final[Mapping[str, str]] = {
    "state": "state",
    "kind": "kind",
    "queue": "queue",
    "agent": "agent",
    "executor": "executor",
    "tag": "tag",
    "correlation": "correlation_id",
    "parent": "parent_id",
    "group": "fingerprint",
    "since": "since",
    "until": "until",
}

NEVER: Final = datetime.min.replace(tzinfo=UTC)
_TIMED = re.compile(r"(since|until):", re.IGNORECASE)
_PART = re.compile(r'(?:(?P<name>[A-Za-z_]+):)?(?:"(?P<quoted>[^"]*)"|(?P<plain>[^\s"]+))(?=\s|$)|(?P<other>\S+)')


@dataclass(frozen=True, slots=True)
class Search:
    """What was asked for: the names of a ``JobFilter`` with their values, and words of the error."""

    given: Mapping[str, Any]
    words: tuple[str, ...] = ()

    def filter(self, tenant: str, **page: Any) -> JobFilter:
        return JobFilter(**{"tenant": tenant, **self.given, **page})

    def fits(self, job: Job) -> bool:
        """Whether the words are in its error; the filter is the store's to keep."""
        said = f"{job.error_code or ''} {job.error_message or ''}".lower()
        return all(word in said for word in self.words)


def names_a_time(text: str) -> bool:
    """Whether it has to be known what time it is, which is a question to the store; if not, ``NEVER`` will do."""
    return _TIMED.search(text) is not None


def parse(text: str, now: datetime) -> Search:
    """``now`` is the store's present, which ``since:1h`` counts from."""
    if len(text) > LONGEST:
        raise _invalid(f"a search has at most {LONGEST:,} characters")
    given: dict[str, Any] = {}
    words: list[str] = []
    for part in _PART.finditer(text):
        if part["other"]:
            raise _invalid(f"{part['other'][:50]!r} has a quotation mark too few or too many")
        value = part["plain"] if part["quoted"] is None else part["quoted"]
        name = (part["name"] or "").lower()
        if not name:
            words += [value.strip().lower()] if value.strip() else []
            continue
        if name not in NAMES:
            raise _invalid(
                f"there is no {name}: in a search",
                f"There are {', '.join(f'{each}:' for each in NAMES)}. Put what is meant literally into quotes.",
            )
        if NAMES[name] in given:
            raise _invalid(f"{name}: is given twice, and a job has one of it")
        given[NAMES[name]] = _value(name, value, now)
    if len(words) > WORDS:
        raise _invalid(f"a search has at most {WORDS} words without a name")
    return Search(given, tuple(words))


def written(search: Search) -> str:
    """The same as text again: for a link to it."""
    parts = []
    for name, field in NAMES.items():
        value = search.given.get(field)
        if value is not None:
            said = value.isoformat() if isinstance(value, datetime) else str(value)
            parts.append(f'{name}:"{said}"' if re.search(r"\s", said) else f"{name}:{said}")
    return " ".join([*parts, *(f'"{word}"' if re.search(r"[\s:]", word) else word for word in search.words)])


def narrowed(search: Search, **given: Any) -> Search:
    """With these besides, where they are not None; what the text says of the same is refused."""
    more = {name: value for name, value in given.items() if value is not None}
    twice = [name for name in more if name in search.given and search.given[name] != more[name]]
    if twice:
        raise _invalid(f"{twice[0]} is given twice, with two values")
    return dataclasses.replace(search, given={**search.given, **more})


def _value(name: str, value: str, now: datetime) -> Any:
    how = _READ.get(name)
    return check_name(value, name, limit=255) if how is None else how(value, now)


def _state(value: str, _: datetime) -> State:
    try:
        return State(value.lower().replace("-", "_"))
    except ValueError:
        raise _invalid(f"there is no state {value[:50]!r}", f"States: {', '.join(State)}.") from None


def moment(value: str, now: datetime) -> datetime:
    """A time, a day, or how long ago."""
    try:
        return now - timedelta(seconds=seconds(value, "time"))
    except InvalidSetting:
        pass
    try:
        found = datetime.fromisoformat(value)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _invalid(f"{value[:50]!r} is no time", "Use 90s, 1h30m, 2d, 2027-01-31 or 2027-01-31T09:00Z.") from None


_READ: Final[Mapping[str, Callable[[str, datetime], Any]]] = {
    "state": _state,
    "since": moment,
    "until": moment,
    "parent": lambda value, _: parse_id(value),
}


def _invalid(message: str, fix: str | None = None) -> InvalidInput:
    return InvalidInput(message, code="invalid_search", fix=fix)
