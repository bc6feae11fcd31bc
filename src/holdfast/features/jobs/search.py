"""Search jobs with words: ``state:dead_letter kind:mail payload.order_id:7 "connection refused"``. One parser for
Python, the command line, the HTTP API and the search box of the dashboard.

A qualifier is a name, a colon and a value, quoted where it has blanks in it (``\\"`` is a quotation mark). All of them
must hold. ``payload.customer.id:7`` compares a key of the payload. A word without a name is searched in the code and
the message of a job's error, whatever its case.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from holdfast.engine.ids import parse_id
from holdfast.engine.job import Job
from holdfast.engine.names import check_name
from holdfast.engine.states import State
from holdfast.engine.units import seconds
from holdfast.errors import InvalidInput, InvalidSetting
from holdfast.features.payloads.model import HIDDEN
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
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PART = re.compile(
    rf"(?:(?P<name>payload(?:\.(?:{_QUOTED}|[^\s\".:]+))+|[A-Za-z_]+):)?"
    rf'(?:(?P<quoted>{_QUOTED})|(?P<plain>[^\s"]+))(?=\s|$)|(?P<other>\S+)'
)
_KEY = re.compile(rf'{_QUOTED}|[^\s".:]+')


@dataclass(frozen=True, slots=True)
class PayloadTerm:
    """A key of the payload, by its path, and the value it must have, as text: a string, or a number, ``true``,
    ``false`` or ``null`` as JSON writes it."""

    path: tuple[str, ...]
    value: str

    def fits(self, payload: object) -> bool:
        """Never for a payload that is restricted, sealed or kept elsewhere: what is not shown is not found either."""
        if not isinstance(payload, Mapping) or payload.keys() & NOT_SHOWN:
            return False
        for key in self.path:
            if isinstance(payload, Mapping) and key in payload:
                payload = payload[key]
            elif isinstance(payload, list) and key.isdecimal() and int(key) < len(payload):
                payload = payload[int(key)]
            else:
                return False
        return _scalar(payload) == self.value

    @property
    def indexable(self) -> bool:
        """Whether both databases write such a value as the payload has it: not so for fractions and truth values."""
        return self.value not in ("true", "false", "null") and not _FRACTION.fullmatch(self.value)

    def __str__(self) -> str:
        keys = (key if _PLAIN.fullmatch(key) else _quote(key) for key in self.path)
        value = self.value if _PLAIN.fullmatch(self.value) else _quote(self.value)
        return f"{'.'.join(('payload', *keys))}:{value}"


NOT_SHOWN: Final = frozenset({"$holdfast", HIDDEN})
DEEPEST: Final = 20
"""Keys in a path."""
_FRACTION = re.compile(r"-?\d+(?:\.\d+)?[eE][+-]?\d+|-?\d+\.\d+|-?\d{19,}")
_PLAIN = re.compile(r'[^\s".:\\]+')


def _scalar(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int | float):
        with suppress(ValueError):  # an integer with too many digits to be written
            return repr(value)
    return None


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _unquote(text: str) -> str:
    return re.sub(r'\\(["\\])', r"\1", text[1:-1]) if text.startswith('"') else text


@dataclass(frozen=True, slots=True)
class Search:
    """What was asked for: names of a ``JobFilter`` with their values, keys of the payload, and words of the error."""

    given: Mapping[str, Any]
    words: tuple[str, ...] = ()
    payload: tuple[PayloadTerm, ...] = ()

    @property
    def examines(self) -> bool:
        """Whether jobs have to be read one by one: only the names of a filter are in an index."""
        return bool(self.words or self.payload)

    def filter(self, tenant: str, **page: Any) -> JobFilter:
        return JobFilter(**{"tenant": tenant, **self.given, **page})

    def fits(self, job: Job) -> bool:
        """Whether the words are in its error and the keys in its payload; the filter is the store's to keep."""
        said = f"{job.error_code or ''} {job.error_message or ''}".lower()
        return all(word in said for word in self.words) and all(term.fits(job.payload) for term in self.payload)

    def holds(self, job: Job) -> bool:
        """Whether the names of the filter hold for a job that was found in another way."""
        for name, value in self.given.items():
            if name == "tag":
                holds = value in job.tags
            elif name in ("since", "until"):
                holds = (job.created_at >= value) is (name == "since")
            else:
                holds = getattr(job, name) == value
            if not holds:
                return False
        return True


def names_a_time(text: str) -> bool:
    """Whether it has to be known what time it is, which is a question to the store; if not, ``NEVER`` will do."""
    return _TIMED.search(text) is not None


def parse(text: str, now: datetime) -> Search:
    """``now`` is the store's present, which ``since:1h`` counts from."""
    if len(text) > LONGEST:
        raise _invalid(f"a search has at most {LONGEST:,} characters")
    given: dict[str, Any] = {}
    words: list[str] = []
    terms: list[PayloadTerm] = []
    for part in _PART.finditer(text):
        if part["other"]:
            raise _invalid(f"{part['other'][:50]!r} has a quotation mark too few or too many")
        value = part["plain"] if part["quoted"] is None else _unquote(part["quoted"])
        if (part["name"] or "").startswith("payload."):
            terms.append(_term(part["name"], value))
            continue
        name = (part["name"] or "").lower()
        if not name and part["quoted"] is None and value.lower().startswith("payload.") and ":" in value:
            raise _invalid(
                f"{value[:50]!r} is no key and value", "Write payload.order_id:7, or put the word into quotes."
            )
        if not name:
            words += [value.strip().lower()] if value.strip() else []
            continue
        if name not in NAMES:
            raise _invalid(
                f"there is no {name}: in a search",
                f"There are {', '.join(f'{each}:' for each in NAMES)} and payload.KEY:."
                " Put what is meant literally into quotes.",
            )
        if NAMES[name] in given:
            raise _invalid(f"{name}: is given twice, and a job has one of it")
        given[NAMES[name]] = _value(name, value, now)
    if len(words) > WORDS:
        raise _invalid(f"a search has at most {WORDS} words without a name")
    return Search(given, tuple(words), tuple(terms))


def _term(name: str, value: str) -> PayloadTerm:
    path = tuple(_unquote(key) for key in _KEY.findall(name.removeprefix("payload")))
    if len(path) > DEEPEST:
        raise _invalid(f"a path has at most {DEEPEST} keys")
    if "\0" in name or "\0" in value:
        raise _invalid("a search cannot contain NUL")
    return PayloadTerm(path, value)


def index_path(text: object) -> tuple[str, ...]:
    """The keys of a path that can be indexed: ``payload.customer.id``."""
    if not isinstance(text, str) or not _INDEXED.fullmatch(text):
        raise InvalidSetting(
            f"cannot index {text!r}",
            code="invalid_path",
            fix="Name a key of the payload: payload.order_id, or payload.customer.id. Keys of an index consist of"
            " letters, digits, _ and -, begin with a letter or _, and are at most eight.",
        )
    return tuple(text.split(".")[1:])


_INDEXED = re.compile(r"payload(?:\.[A-Za-z_][A-Za-z0-9_-]{0,63}){1,8}", re.ASCII)


def written(search: Search) -> str:
    """The same as text again: for a link to it."""
    parts = []
    for name, field in NAMES.items():
        value = search.given.get(field)
        if value is not None:
            said = value.isoformat() if isinstance(value, datetime) else str(value)
            parts.append(f'{name}:"{said}"' if re.search(r"\s", said) else f"{name}:{said}")
    parts += [str(term) for term in search.payload]
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
