"""The audit trail: the bytes that are hashed, seals and anchors.

This module is independent of the database on purpose: a verification computes every digest here, from the rows alone.
``docs/guides/audit.md`` documents the encoding, so that another tool can do the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar, Literal

from holdfast.errors import InvalidInput

Field = str | int | None
Item = tuple[Field, ...]
"""The fields of an event or an action, in the order in which they are hashed; the first is its number."""

EVENT_FIELDS = (
    *("seq", "job_id", "tenant", "kind", "type", "from_state", "to_state", "attempt", "at", "actor", "meta", "xid"),
)
ACTION_FIELDS = (
    *("seq", "tenant", "at", "actor", "type", "subject", "name", "changed", "first_seq", "last_seq", "xid"),
)
GENESIS = "0" * 64
LEAF = 40  # bytes: the number in 8, its digest in 32
_JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RANGES = re.compile(r"\d{1,19}(-\d{1,19})?(,\d{1,19}(-\d{1,19})?)*")


def encoded(fields: Iterable[Field]) -> bytes:
    """Encode each field as its length in bytes, a colon and the value, or a minus for null. Fields encoded like this
    cannot be confused with each other."""
    values = tuple(fields)
    text = "".join(["-" if f is None else f"{len(s := str(f))}:{s}" for f in values])
    if text.isascii():  # nearly always, and a third faster
        return text.encode()
    return b"".join([b"-" if f is None else b"%d:%b" % (len(b := str(f).encode()), b) for f in values])


def digest_of(what: str, item: Item) -> bytes:
    """The digest of an event or an action; ``what`` is ``event`` or ``action``."""
    return hashlib.sha256(encoded((what, *item))).digest()


def content_digest(what: str, job_id: str, *texts: str | None) -> bytes:
    """The digest of a stored payload, or of a result's value and reference. It includes the job's id, so that equal
    contents of two jobs have different digests and a precomputed table of digests is useless."""
    return hashlib.sha256(encoded((what, job_id, *texts))).digest()


def is_envelope(text: str | None) -> bool:
    """Whether a stored text is encrypted or in the artifact store: only then can a key rotation change it."""
    return text is not None and text.startswith('{"$holdfast"') and '"key"' in text


def leaf(number: int, digest: bytes) -> bytes:
    return number.to_bytes(8, "big", signed=True) + digest


def leaves(block: bytes) -> Iterator[tuple[int, bytes]]:
    """The numbers and digests in a seal's block of bytes."""
    for start in range(0, len(block), LEAF):
        yield int.from_bytes(block[start : start + 8], "big", signed=True), block[start + 8 : start + LEAF]


@dataclass(frozen=True, slots=True)
class Seal:
    """One link of the chain. Times are microseconds since 1970, as they are hashed."""

    number: int
    previous: str
    digest: str
    events: bytes
    actions: bytes
    event_count: int
    action_count: int
    first_seq: int | None
    last_seq: int | None
    floor: int
    action_floor: int
    base: int
    snapshot: str | None
    sealed_at: int
    version: str
    xid: int | None
    contents: bytes | None = None
    """The digest of the payload for each sealed enqueue event and of the result for each success, by the event's
    number; the number is negative if the content was encrypted. None in seals of versions without content digests."""
    cut: int | None = None
    """1 if there was more to seal than fits into one block, 0 if nothing above ``floor`` was visible."""

    def computed_digest(self) -> str:
        head = encoded(
            (
                *("seal", self.number, self.previous, self.event_count, self.action_count, self.floor),
                *(self.action_floor, self.base, self.snapshot, self.sealed_at, self.version, self.xid),
            )
        )
        if self.contents is None:
            return hashlib.sha256(head + self.events + self.actions).hexdigest()
        tail = encoded(("contents", len(self.contents) // LEAF, self.cut))
        return hashlib.sha256(head + self.events + self.actions + tail + self.contents).hexdigest()

    def with_digest(self) -> Seal:
        return replace(self, digest=self.computed_digest())

    def is_intact(self) -> bool:
        """Whether the seal's columns still agree with each other and with its digest."""
        numbers = [number for number, _ in leaves(self.events)]
        counts_match = (len(numbers), len(self.actions) // LEAF) == (self.event_count, self.action_count)
        ends = (numbers[0], numbers[-1]) if numbers else (None, None)
        return counts_match and ends == (self.first_seq, self.last_seq) and self.computed_digest() == self.digest

    def sees(self, xid: int | None) -> bool:
        """Whether the transaction had ended when this seal was made."""
        if self.snapshot is None or xid is None:
            return True
        low, high, *open_ = self.snapshot.split(":")
        running = open_[0].split(",") if open_ and open_[0] else []
        return xid < int(low) or (xid < int(high) and str(xid) not in running)


@dataclass(frozen=True, slots=True)
class Sealed:
    """An event of a job that is in a seal, with the digest it was sealed with."""

    seq: int
    seal: int
    sealed_at: datetime
    digest: str


@dataclass(frozen=True, slots=True)
class Purged:
    """A purge as its action records it: the numbers of the events it removed, and the clean event of each job. A clean
    event is sealed and lists the job's events, so a purge can be checked against the chain."""

    events: frozenset[int]
    cleaned: dict[str, Item]
    """The clean event of each job, by the job's id."""
    malformed: bool
    """Whether the action is not what a purge records."""
    announced: int | None = None
    """For a purge of a whole partition: the number of the action that listed its events before they were removed."""

    @classmethod
    def of(cls, action: Item) -> Purged:
        changed = _document(action[7])
        if (announced := cls.announcement(changed)) is not None:
            return cls(frozenset(), {}, malformed=False, announced=announced)
        jobs = changed.get("jobs", {}) if isinstance(changed, dict) else None
        cleaned: dict[str, Item] = {}
        for job, fields in jobs.items() if isinstance(jobs, dict) else ():
            if _JOB.fullmatch(job) and isinstance(fields, list) and len(fields) == 8 and isinstance(fields[0], int):
                seq, kind, source, attempt, at, actor, meta, xid = fields
                cleaned[job] = (
                    *(seq, job, action[1], kind, "clean", source, "cleaned", attempt, at, actor, meta, xid),
                )
        malformed = not isinstance(jobs, dict) or len(cleaned) < len(jobs)
        return cls(frozenset(Ranges(Ranges.purged(changed)).numbers()), cleaned, malformed)

    @staticmethod
    def announcement(changed: Any) -> int | None:
        number = changed.get("announced") if isinstance(changed, dict) else None
        return number if isinstance(number, int) and not isinstance(number, bool) else None

    @property
    def unlisted(self) -> frozenset[int]:
        """Events of the purge that none of its jobs' clean events lists."""
        return self.events.difference(*(self.listed(item) or {int(item[0] or 0)} for item in self.cleaned.values()))

    @staticmethod
    def listed(clean: Item) -> frozenset[int] | None:
        """The events of a job that its clean event lists; None if an older version wrote it without the list."""
        meta = _document(clean[10])
        text = meta.get("events") if isinstance(meta, dict) else None
        if not isinstance(text, str) or not _RANGES.fullmatch(text):
            return None
        return frozenset({*Ranges(text).numbers(), int(clean[0] or 0)})


def announced_events(action: Item) -> str:
    """The numbers of the events that an announcement lists."""
    return Ranges.purged(_document(action[7]))


def withdrawn(action: Item) -> int | None:
    """The number of the announcement that this action withdraws."""
    return Purged.announcement(_document(action[7]))


def _document(text: object) -> Any:
    try:
        return json.loads(str(text))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Action:
    """A change of the configuration. Actions are the ledger of everything that is not a job."""

    seq: int
    tenant: str
    at: datetime
    actor: str
    type: str
    subject: str
    name: str
    changed: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Anchor:
    """The number and digest of a seal, stored outside the database. With an anchor, a verification detects that the
    chain was truncated or replaced up to this seal."""

    number: int
    digest: str

    SHOWN: ClassVar[dict[str, Any]] = {"anchor": str}

    def __str__(self) -> str:
        return f"{self.number}:{self.digest}"

    def described(self) -> dict[str, Any]:
        return {"number": self.number, "digest": self.digest, "anchor": str(self)}

    @classmethod
    def of(cls, text: object) -> Anchor:
        """Parse ``42:3f…``. Text after a space is a comment."""
        match = re.match(r"\s*(\d{1,18}):([0-9a-f]{64})(\s|\Z)", text if isinstance(text, str) else "")
        if match is None:
            raise InvalidInput(
                "an anchor is a number, a colon and 64 hexadecimal digits, as `holdfast audit anchor` prints it",
                code="invalid_anchor",
            )
        return cls(int(match.group(1)), match.group(2))


FlawKind = (
    Literal["edited", "deleted", "inserted", "moved", "backdated", "postdated"]
    | Literal["missing", "rewritten", "cut", "broken", "forged"]
)
Thing = Literal["event", "action", "seal", "payload", "result", "job"]
MAX_FLAWS = 1000
"""Flaws that a report lists; more are only counted."""


@dataclass(frozen=True, slots=True)
class Flaw:
    """One manipulation: ``kind`` is what was done, ``what`` names the sort of row, ``says`` is the message.

    ``number`` is the number of the event, action or seal; for a payload or result that of its enqueue or succeed
    event; for a job that of its first event, or 0 if it has none.
    """

    kind: FlawKind
    what: Thing
    number: int
    says: str


@dataclass(frozen=True, slots=True)
class Report:
    ok: bool
    seals: int
    events: int
    actions: int
    purged: int
    """Events that retention removed, as recorded in the trail."""
    unsealed: int
    newest: str | None
    """The anchor of the newest seal that was checked."""
    flaws: tuple[Flaw, ...]
    more: int = 0
    """The number of flaws that are not listed."""

    def followed_by(self, rest: Report) -> Report:
        """The report of a chain of which this is the first part."""
        flaws = (*self.flaws, *rest.flaws)
        return Report(
            ok=self.ok and rest.ok,
            seals=self.seals + rest.seals,
            events=self.events + rest.events,
            actions=self.actions + rest.actions,
            purged=self.purged + rest.purged,
            unsealed=rest.unsealed,
            newest=rest.newest or self.newest,
            flaws=flaws[:MAX_FLAWS],
            more=self.more + rest.more + max(0, len(flaws) - MAX_FLAWS),
        )


@dataclass(frozen=True, slots=True)
class PartialReport:
    """``next`` is the seal to continue with, or None at the end of the chain."""

    report: Report
    next: int | None


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all its keys, including duplicates."""


def normalized_json(text: str | None) -> str | None:
    """A JSON document in its normal form, in which a database server prints its binary JSON: keys ordered by length and
    then by bytes, a space after each colon and comma, numbers in full. Text that is not JSON is returned unchanged."""
    if text is None or text == "{}":
        return text
    try:
        return _rendered(json.loads(text, object_pairs_hook=_Pairs, parse_float=Decimal, parse_constant=str))
    except (ValueError, RecursionError):
        return text


def _rendered(value: Any) -> str:
    if isinstance(value, _Pairs):
        pairs = sorted(value, key=lambda pair: (len(pair[0].encode()), pair[0].encode()))
        return "{" + ", ".join(f"{_text(key)}: {_rendered(inner)}" for key, inner in pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_rendered, value)) + "]"
    if isinstance(value, Decimal):
        return format(value, "f")
    return _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class Ranges:
    """Numbers written as ``5-9,12``: the events that a purge removed."""

    def __init__(self, text: str) -> None:
        self._ranges = [
            (int(low), int(high or low)) for low, _, high in (r.partition("-") for r in text.split(",") if r)
        ]

    @classmethod
    def purged(cls, changed: Any) -> str:
        """The event numbers that a purge's action lists; empty if the list is malformed."""
        text = changed.get("events") if isinstance(changed, dict) else None
        return text if isinstance(text, str) and _RANGES.fullmatch(text) else ""

    def numbers(self) -> Iterator[int]:
        for low, high in self._ranges:
            yield from range(low, min(high, low + 1_000_000) + 1)

    def of(self, numbers: Sequence[int]) -> set[int]:
        """The members of ``numbers`` (ascending) that are in the ranges."""
        result, position = set(), 0
        for number in numbers:
            while position < len(self._ranges) and self._ranges[position][1] < number:
                position += 1
            if position < len(self._ranges) and self._ranges[position][0] <= number:
                result.add(number)
        return result

    @staticmethod
    def text(numbers: Iterable[int]) -> str:
        """Format ``numbers``, which must be ascending."""
        parts: list[list[int]] = []
        for number in numbers:
            if parts and parts[-1][1] == number - 1:
                parts[-1][1] = number
            else:
                parts.append([number, number])
        return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


FIRST_BATCH = 10
READ_AT_ONCE = 2 * 1024 * 1024
"""Characters of payloads and results that one query reads, about."""


def next_batch(size: int, characters: int) -> int:
    """The number of events whose payloads and results to read next, after ``size`` of them had that many characters."""
    return max(1, min(200, size * READ_AT_ONCE // max(1, characters)))
