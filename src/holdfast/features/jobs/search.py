"""Search jobs with words: ``state:dead_letter kind:mail payload.order_id:7 "connection refused"``. Python, the command
line, the HTTP API and the search box of the dashboard share this parser.

A qualifier is a name, a colon and a value; quote values that contain spaces (``\\"`` is a quotation mark). All
qualifiers must match. ``payload.customer.id:7`` compares a key of the payload. A word without a name is searched in the
code and the message of a job's error, ignoring case.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from holdfast.engine.job import EVERY_TENANT, Job
from holdfast.engine.payload import decode_for_display
from holdfast.engine.states import State
from holdfast.engine.units import seconds
from holdfast.errors import InvalidInput, InvalidSetting
from holdfast.stores.flow import Steps, flow, read_together
from holdfast.stores.job_filters import BY_NAME, BY_WORD, Filter, checked
from holdfast.stores.job_pages import MOST
from holdfast.stores.requests import Counted, JobFilter

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

MAX_LENGTH: Final = 1_000
MAX_WORDS: Final = 10
"""Words without a name, and keys of the payload."""
MAX_KEYS: Final = 20
"""Keys in a path."""

NEVER: Final = datetime.min.replace(tzinfo=UTC)
_TIMED = re.compile(r"(since|until|scheduled_for):", re.IGNORECASE)
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PART = re.compile(
    rf"(?:(?P<name>payload(?:\.(?:{_QUOTED}|[^\s\".:]+))+|[A-Za-z_]+):)?"
    rf'(?:(?P<quoted>{_QUOTED})|(?P<plain>[^\s"]+))(?=\s|$)|(?P<other>\S+)'
)
_KEY = re.compile(rf'{_QUOTED}|[^\s".:]+')


@dataclass(frozen=True, slots=True)
class PayloadTerm:
    """A key of the payload, by its path, and the value it must have: the text of a string, or a number, ``true``,
    ``false`` or ``null`` as in JSON."""

    path: tuple[str, ...]
    value: str

    def fits(self, scalar: str | None) -> bool:
        """Whether the value at the path, as JSON text, is the wanted one. None is what is not there, or not shown."""
        return scalar is not None and _scalar(decode_for_display(scalar)) == self.value

    @property
    def indexable(self) -> bool:
        """Whether both databases index this value with the text that JSON has. They do not for fractions and
        booleans."""
        return self.value not in ("true", "false", "null") and not _FRACTION.fullmatch(self.value)


_FRACTION = re.compile(r"-?\d+(?:\.\d+)?[eE][+-]?\d+|-?\d+\.\d+|-?\d{19,}")


def _scalar(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int | float):
        with suppress(ValueError):  # Python refuses to format very long integers
            return repr(value)
    return None


def _unquote(text: str) -> str:
    return re.sub(r'\\(["\\])', r"\1", text[1:-1]) if text.startswith('"') else text


@dataclass(frozen=True, slots=True)
class Search:
    """A parsed search: fields of a ``JobFilter`` with their values, keys of the payload, and words of the error."""

    given: Mapping[str, Any]
    words: tuple[str, ...] = ()
    payload: tuple[PayloadTerm, ...] = ()

    @property
    def examines(self) -> bool:
        """Whether jobs have to be read one by one: words and most keys of payloads are in no index."""
        return bool(self.words or self.payload)

    def filter(self, tenant: str, **page: Any) -> JobFilter:
        return JobFilter(**{"tenant": tenant, **self.given, **page})

    def fits(self, job: Job, scalars: Sequence[str | None]) -> bool:
        """Whether the job's error contains the words and its payload the keys. The store applies the filter, and reads
        the scalars of the payload's keys."""
        error = f"{job.error_code or ''} {job.error_message or ''}".lower()
        return all(word in error for word in self.words) and all(
            term.fits(scalar) for term, scalar in zip(self.payload, scalars, strict=True)
        )

    def holds(self, job: Job) -> bool:
        """Whether a job that was read without the filter passes it."""
        return all(BY_NAME[name].holds(job, value) for name, value in self.given.items())


def needs_clock(text: str) -> bool:
    """Whether the search contains a time, so that parsing needs the store's clock; ``NEVER`` suffices otherwise."""
    return _TIMED.search(text) is not None


def parse(text: str, now: datetime) -> Search:
    """Parse a search. ``now`` is the store's time, from which ``since:1h`` counts back."""
    if len(text) > MAX_LENGTH:
        raise _invalid(f"a search has at most {MAX_LENGTH:,} characters")
    given: dict[str, Any] = {}
    words: list[str] = []
    terms: list[PayloadTerm] = []
    for part in _PART.finditer(text):
        if part["other"]:
            raise _invalid(f"unbalanced quotation marks in {part['other'][:50]!r}")
        value = part["plain"] if part["quoted"] is None else _unquote(part["quoted"])
        if (part["name"] or "").startswith("payload."):
            terms.append(_term(part["name"], value))
            continue
        name = (part["name"] or "").lower()
        if not name and part["quoted"] is None and value.lower().startswith("payload.") and ":" in value:
            raise _invalid(
                f"expected a key and a value, got {value[:50]!r}",
                "Write payload.order_id:7, or put the word into quotes.",
            )
        if not name:
            words += [value.strip().lower()] if value.strip() else []
            continue
        if name not in BY_WORD:
            raise _invalid(
                f"unknown qualifier {name}:",
                f"Qualifiers: {', '.join(f'{qualifier}:' for qualifier in BY_WORD)} and payload.KEY:."
                " Put literal text into quotes.",
            )
        condition = BY_WORD[name]
        if condition.name in given and condition.values != "texts":
            raise _invalid(f"{name}: is given twice")
        parsed = parse_value(condition, value, now)
        given[condition.name] = given.get(condition.name, ()) + parsed if condition.values == "texts" else parsed
    if max(len(words), len(terms)) > MAX_WORDS:
        raise _invalid(
            f"a search has at most {MAX_WORDS} {'keys' if len(terms) > MAX_WORDS else 'words without a name'}"
        )
    return Search(checked(given, frozenset(BY_NAME)), tuple(words), tuple(terms))


def _term(name: str, value: str) -> PayloadTerm:
    path = tuple(_unquote(key) for key in _KEY.findall(name.removeprefix("payload")))
    if len(path) > MAX_KEYS:
        raise _invalid(f"a path has at most {MAX_KEYS} keys")
    if "\0" in name or "\0" in value:
        raise _invalid("a search cannot contain NUL")
    return PayloadTerm(path, value)


def index_path(text: object) -> tuple[str, ...]:
    """The keys of a path that can be indexed, such as ``payload.customer.id``."""
    if not isinstance(text, str) or not _INDEXED.fullmatch(text):
        raise InvalidSetting(
            f"cannot index {text!r}",
            code="invalid_path",
            fix="Name a key of the payload: payload.order_id, or payload.customer.id. Keys of an index consist of"
            " letters, digits, _ and -, begin with a letter or _, and are at most eight.",
        )
    return tuple(text.split(".")[1:])


_INDEXED = re.compile(r"payload(?:\.[A-Za-z_][A-Za-z0-9_-]{0,63}){1,8}", re.ASCII)


def narrowed(search: Search, **given: Any) -> Search:
    """The search with more conditions; None values are ignored. A condition that contradicts the text is refused."""
    more = {name: value for name, value in given.items() if value is not None}
    if "tag" in more and "tag" in search.given:
        more["tag"] = tuple(dict.fromkeys((*search.given["tag"], *more["tag"])))
        search = replace(search, given={name: value for name, value in search.given.items() if name != "tag"})
    twice = [name for name in more if name in search.given and search.given[name] != more[name]]
    if twice:
        raise _invalid(f"{twice[0]} is given twice, with two values")
    return replace(search, given={**search.given, **more})


def parse_value(condition: Filter, text: str, now: datetime) -> Any:
    """The value of a filter from its text in a search, a parameter or an option."""
    if condition.values == "state":
        return _state(text)
    if condition.values == "time":
        return moment(text, now)
    if condition.values == "number":
        if not text.isascii() or not text.isdecimal() or len(text) > 9:
            raise _invalid(f"{condition.qualifier} must be a number, not {text[:50]!r}")
        return int(text)
    return condition.check(text)


def _state(value: str) -> State:
    try:
        return State(value.lower().replace("-", "_"))
    except ValueError:
        raise _invalid(f"unknown state {value[:50]!r}", f"States: {', '.join(State)}.") from None


def check_search(text: object, limit: object) -> None:
    """Check the arguments of ``app.jobs.search``."""
    if not isinstance(text, str):
        raise InvalidInput(f"a search is text, not {type(text).__name__}", code="invalid_search")
    if not isinstance(limit, int) or not 1 <= limit <= MOST:
        raise InvalidSetting(f"limit must be from 1 to {MOST:,}", code="invalid_limit")


def moment(value: str, now: datetime) -> datetime:
    """Parse a time, a date, or a duration before ``now``."""
    try:
        return now - timedelta(seconds=seconds(value, "time"))
    except InvalidSetting:
        pass
    try:
        parsed = datetime.fromisoformat(value)
        return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _invalid(
            f"{value[:50]!r} is not a time", "Use 90s, 1h30m, 2d, 2027-01-31 or 2027-01-31T09:00Z."
        ) from None


def _invalid(message: str, fix: str | None = None) -> InvalidInput:
    return InvalidInput(message, code="invalid_search", fix=fix)


# --- run a search ---


@dataclass(frozen=True, slots=True)
class Page:
    """Jobs, and for those that wait a note about what they wait for."""

    jobs: list[Job]
    notes: dict[str, dict[str, Any]]


@flow(writes=False)
def page(store: Store, job_filter: JobFilter) -> Steps[Page]:
    """A page of jobs. Reads the notes in one more query, and only if a job of the page may wait."""
    jobs = yield from store.jobs.list(job_filter).start()
    if not any(_may_wait(job) for job in jobs):
        return Page(jobs, {})
    notes = yield from store.jobs.notes(job_filter).start()
    return Page(jobs, {job.id: notes[job.id] for job in jobs if _may_wait(job) and job.id in notes})


EXAMINED_JOBS = 2_000
"""Jobs that one call compares with conditions that no index covers. The page then ends with a ``next``."""
EXAMINED_SECONDS = 1.0
"""The call ends earlier after this time: the database reads payloads that may be large."""
BATCH = 200
FIRST_BATCH = 10
"""Jobs of the first query. The next ones grow while they are fast: with large payloads, 10 take a tenth of a second."""


@dataclass(frozen=True, slots=True)
class SearchPage:
    """A page of jobs that match a search. ``next`` continues it: the next page has the jobs before this id."""

    jobs: list[Job]
    notes: dict[str, dict[str, Any]]
    next: str | None


@flow(writes=False)
def matching(
    store: Store, search: Search, tenant: str, limit: int, before: str | None = None, payloads: bool = False
) -> Steps[SearchPage]:
    """A page of the jobs that match a search, newest first."""
    if not search.examines:
        # One more than requested, to know whether there is another page.
        job_filter = search.filter(tenant, limit=limit + 1, before=before, payloads=payloads)
        result = yield from page(store, job_filter).start()
        jobs = result.jobs[:limit]
        return SearchPage(jobs, result.notes, jobs[-1].id if len(result.jobs) > limit else None)
    jobs, cursor, examined, size = [], before, 0, FIRST_BATCH
    term = (yield from _indexed(store, search, tenant)) if search.payload else None
    until = time.monotonic() + EXAMINED_SECONDS
    while examined < EXAMINED_JOBS and (not examined or time.monotonic() < until):
        begun = time.monotonic()
        size = min(size, EXAMINED_JOBS - examined)
        batch, last = yield from _candidates(store, search, tenant, cursor, term, size)
        for job, scalars in batch:
            cursor, examined = job.id, examined + 1
            if search.fits(job, scalars) and search.holds(job):
                jobs.append(job)
                if len(jobs) == limit:
                    return SearchPage((yield from _complete(store, jobs, payloads)), {}, cursor)
        if last is None:
            return SearchPage((yield from _complete(store, jobs, payloads)), {}, None)
        cursor, examined = last, examined + size - len(batch)
        size = min(BATCH, 2 * size) if time.monotonic() - begun < EXAMINED_SECONDS / 10 else FIRST_BATCH
    return SearchPage((yield from _complete(store, jobs, payloads)), {}, cursor)


def _complete(store: Store, jobs: list[Job], payloads: bool) -> Steps[list[Job]]:
    """The jobs, with their payloads if they are wanted."""
    if not payloads:
        return jobs
    whole: list[Job] = []
    for job in jobs:
        whole += [(yield from store.jobs.get(job.id, job.tenant).start()) or job]
    return whole


def _indexed(store: Store, search: Search, tenant: str) -> Steps[PayloadTerm | None]:
    """The first payload term that an index covers, if any."""
    terms = [term for term in search.payload if term.indexable]
    if not terms or "fingerprint" in search.given or tenant == EVERY_TENANT:
        return None
    indexes = yield from store.jobs.payload_indexes().start()
    return next((term for term in terms if ".".join(("payload", *term.path)) in indexes), None)


def _candidates(
    store: Store, search: Search, tenant: str, before: str | None, term: PayloadTerm | None, size: int
) -> Steps[tuple[Sequence[tuple[Job, Sequence[str | None]]], str | None]]:
    """The next jobs that may match, newest first, with the values of the payload's keys; and the id of the last of
    them, None if there are no more."""
    job_filter = search.filter(tenant, limit=size, before=before, payloads=False)
    paths, of_ids = [each.path for each in search.payload], None
    if term is not None:
        of_ids = yield from store.jobs.by_payload(term.path, term.value, tenant, before, size).start()
    if paths:
        found = yield from store.jobs.with_keys(job_filter, paths, of_ids).start()
    else:
        found = [(job, ()) for job in (yield from store.jobs.list(job_filter).start())]
    ids = of_ids if of_ids is not None else [job.id for job, _ in found]
    return found, ids[-1] if len(ids) == size else None


@flow(writes=False)
def listed(
    store: Store, search: Search, tenant: str, limit: int, before: str | None, most: int
) -> Steps[tuple[SearchPage, Counted | None]]:
    """The page, and the number of jobs in each state. The counts are None if the search has any condition but a state:
    no index can count those."""
    jobs = matching(store, search, tenant, limit, before).start()
    if search.examines or search.given.keys() - {"state"}:
        return (yield from jobs), None
    counts = store.jobs.capped_counts(JobFilter(tenant=tenant), most).start()
    return (yield from read_together(jobs, counts))


def _may_wait(job: Job) -> bool:
    waits = job.state in (State.RETRY_WAITING, State.WAITING_FOR_APPROVAL)
    return waits or (job.state is State.QUEUED and job.workflow_id is not None)
