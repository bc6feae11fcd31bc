"""The audit trail's own rules (HF-4, rule 28): the bytes that are hashed, what a seal is, what an anchor says.

Pure, and on purpose independent of the database: a check computes every digest here, from the rows alone. The encoding
is written down in ``docs/guides/audit.md``, so that anybody can do the same with another tool.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from holdfast.errors import InvalidInput

Field = str | int | None
Item = tuple[Field, ...]
"""The fields of an event or an action, in the order they are hashed in; the first is its number."""

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
    """Each field as its length in bytes, a colon and itself; null is a minus. So no field can be taken for another."""
    given = tuple(fields)
    text = "".join(["-" if f is None else f"{len(s := str(f))}:{s}" for f in given])
    if text.isascii():  # a third faster, and nearly always so
        return text.encode()
    return b"".join([b"-" if f is None else b"%d:%b" % (len(b := str(f).encode()), b) for f in given])


def digest_of(what: str, item: Item) -> bytes:
    """``what`` is ``event`` or ``action``."""
    return hashlib.sha256(encoded((what, *item))).digest()


def content_digest(what: str, job_id: str, *texts: str | None) -> bytes:
    """Of a payload, or of a result's value and reference, as stored. The job's id makes equal contents of two jobs
    differ, so that digests cannot be looked up in a table made for all jobs."""
    return hashlib.sha256(encoded((what, job_id, *texts))).digest()


def is_envelope(text: str | None) -> bool:
    """Whether a stored text is encrypted or kept elsewhere: only then can a change of keys alter it."""
    return text is not None and text.startswith('{"$holdfast"') and '"key"' in text


def leaf(number: int, digest: bytes) -> bytes:
    return number.to_bytes(8, "big", signed=True) + digest


def leaves(block: bytes) -> Iterator[tuple[int, bytes]]:
    """The numbers and digests that a seal keeps."""
    for start in range(0, len(block), LEAF):
        yield int.from_bytes(block[start : start + 8], "big", signed=True), block[start + 8 : start + LEAF]


@dataclass(frozen=True, slots=True)
class Seal:
    """One link of the chain. Times are microseconds since 1970: what is hashed is what is kept."""

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
    """For each sealed enqueue event the digest of the payload, for each success that of the result, by the event's
    number; the number is negative if the content was encrypted. None in seals made before there were any."""
    cut: int | None = None
    """Whether there was more to seal than one block takes (1), or nothing above ``floor`` was visible (0)."""

    def computed(self) -> str:
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

    def sealed(self) -> Seal:
        """With its digest."""
        return replace(self, digest=self.computed())

    def is_whole(self) -> bool:
        """Whether it says of itself what it said when it was made."""
        numbers = [number for number, _ in leaves(self.events)]
        counted = (len(numbers), len(self.actions) // LEAF) == (self.event_count, self.action_count)
        ends = (numbers[0], numbers[-1]) if numbers else (None, None)
        return counted and ends == (self.first_seq, self.last_seq) and self.computed() == self.digest

    def sees(self, xid: int | None) -> bool:
        """Whether a transaction had ended when this was sealed."""
        if self.snapshot is None or xid is None:
            return True
        low, high, *open_ = self.snapshot.split(":")
        running = open_[0].split(",") if open_ and open_[0] else []
        return xid < int(low) or (xid < int(high) and str(xid) not in running)


@dataclass(frozen=True, slots=True)
class Sealed:
    """That an event of a job is in a seal; ``digest`` is what it was sealed with."""

    seq: int
    seal: int
    sealed_at: datetime
    digest: str


@dataclass(frozen=True, slots=True)
class Purged:
    """A purge, as its action tells it: the numbers of the events it removed, and for each job the event that says it
    was cleaned. That event is sealed and lists the job's events, so a purge can be checked against the chain."""

    events: frozenset[int]
    cleaned: dict[str, Item]
    """By job."""
    malformed: bool
    """It says something that no purge says."""
    announced: int | None = None
    """Of a purge of a whole partition: the number of the action that listed its events before they were removed."""

    @classmethod
    def of(cls, action: Item) -> Purged:
        changed = _document(action[7])
        if (announced := cls.announcement(changed)) is not None:
            return cls(frozenset(), {}, malformed=False, announced=announced)
        given = changed.get("jobs", {}) if isinstance(changed, dict) else None
        cleaned: dict[str, Item] = {}
        for job, fields in given.items() if isinstance(given, dict) else ():
            if _JOB.fullmatch(job) and isinstance(fields, list) and len(fields) == 8 and isinstance(fields[0], int):
                seq, kind, source, attempt, at, actor, meta, xid = fields
                cleaned[job] = (
                    *(seq, job, action[1], kind, "clean", source, "cleaned", attempt, at, actor, meta, xid),
                )
        malformed = not isinstance(given, dict) or len(cleaned) < len(given)
        return cls(frozenset(Ranges(Ranges.purged(changed)).numbers()), cleaned, malformed)

    @staticmethod
    def announcement(changed: Any) -> int | None:
        number = changed.get("announced") if isinstance(changed, dict) else None
        return number if isinstance(number, int) and not isinstance(number, bool) else None

    @property
    def unlisted(self) -> frozenset[int]:
        """Events that are in the purge and that none of its jobs says it had."""
        return self.events.difference(*(self.listed(item) or {int(item[0] or 0)} for item in self.cleaned.values()))

    @staticmethod
    def listed(clean: Item) -> frozenset[int] | None:
        """The events of a job, as the event lists them that says it was cleaned; None if it is older than that."""
        meta = _document(clean[10])
        text = meta.get("events") if isinstance(meta, dict) else None
        if not isinstance(text, str) or not _RANGES.fullmatch(text):
            return None
        return frozenset({*Ranges(text).numbers(), int(clean[0] or 0)})


def announced_events(action: Item) -> str:
    """The numbers of the events that an announcement lists."""
    return Ranges.purged(_document(action[7]))


def withdrawn(action: Item) -> int | None:
    """The announcement that this action takes back."""
    return Purged.announcement(_document(action[7]))


def _document(text: object) -> Any:
    try:
        return json.loads(str(text))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Action:
    """Something that was done to the configuration: the ledger of what is no job's."""

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
    """The newest seal, kept elsewhere: with it nobody can cut off or replace the chain up to there unnoticed."""

    number: int
    digest: str

    def __str__(self) -> str:
        return f"{self.number}:{self.digest}"

    @classmethod
    def of(cls, text: object) -> Anchor:
        """``42:3f…``; what follows a space is for people."""
        found = re.match(r"\s*(\d{1,18}):([0-9a-f]{64})(\s|\Z)", text if isinstance(text, str) else "")
        if found is None:
            raise InvalidInput(
                "an anchor is a number, a colon and 64 hexadecimal digits, as `holdfast audit anchor` prints it",
                code="invalid_anchor",
            )
        return cls(int(found.group(1)), found.group(2))


class _Pairs(list[tuple[str, Any]]):
    """An object with all its keys, also one that is there twice."""


def normal(text: str | None) -> str | None:
    """A JSON document in its one normal form: shorter keys first, then by their bytes, a space after colon and comma,
    numbers in full. (So a server prints its own binary form of one.) What is not JSON stays as it is."""
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
    """Numbers written as ``5-9,12``: those of the events that a purge took away."""

    def __init__(self, text: str) -> None:
        self._ranges = [
            (int(low), int(high or low)) for low, _, high in (r.partition("-") for r in text.split(",") if r)
        ]

    @classmethod
    def purged(cls, changed: Any) -> str:
        """The numbers that an action says a purge took: none, if it does not say so properly."""
        text = changed.get("events") if isinstance(changed, dict) else None
        return text if isinstance(text, str) and _RANGES.fullmatch(text) else ""

    def numbers(self) -> Iterator[int]:
        for low, high in self._ranges:
            yield from range(low, min(high, low + 1_000_000) + 1)

    def of(self, numbers: Sequence[int]) -> set[int]:
        """Those of ``numbers`` (ascending) that are in it."""
        found, place = set(), 0
        for number in numbers:
            while place < len(self._ranges) and self._ranges[place][1] < number:
                place += 1
            if place < len(self._ranges) and self._ranges[place][0] <= number:
                found.add(number)
        return found

    @staticmethod
    def text(numbers: Iterable[int]) -> str:
        """``numbers`` ascend."""
        parts: list[list[int]] = []
        for number in numbers:
            if parts and parts[-1][1] == number - 1:
                parts[-1][1] = number
            else:
                parts.append([number, number])
        return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
