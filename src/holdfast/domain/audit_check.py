"""Checking the trail, block by block (rule 28, fault 39): what does not fit is named, one flaw a thing that was done.

It holds one block at a time, and besides only what is wrong or late, each up to a bound.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from holdfast.domain.audit import GENESIS, Anchor, Item, Ranges, Seal, digest_of, leaves

What = Literal["event", "action"]
FlawKind = Literal["edited", "deleted", "inserted", "moved", "backdated", "missing", "rewritten", "cut"]

KEPT = 1000  # flaws that are told one by one
COMPARED = 200  # rows that are looked at for having changed places
TOLERANCE = 300_000_000  # microseconds by which a clock may have gone back


@dataclass(frozen=True, slots=True)
class Flaw:
    """``kind`` is what was done, ``what`` to what: an event, an action, a seal."""

    kind: FlawKind
    what: Literal["event", "action", "seal"]
    number: int
    says: str


@dataclass(frozen=True, slots=True)
class Block:
    """A seal and the rows there are in its place. ``purges`` has the numbers (``5-9,12``) that retention took away from
    among them, or is None where the purges are still to come."""

    seal: Seal
    events: Sequence[Item]
    actions: Sequence[Item]
    purges: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class Report:
    ok: bool
    seals: int
    events: int
    actions: int
    purged: int
    """Events that retention took away, which the trail says."""
    unsealed: int
    newest: str | None
    """The anchor of the newest seal that was checked."""
    flaws: tuple[Flaw, ...]
    more: int = 0
    """Flaws beyond those that are told."""


@dataclass
class Check:
    """``start`` is the seal to begin behind, which is taken for granted."""

    start: Seal | None = None
    anchors: Sequence[Anchor] = ()
    last: Seal | None = field(init=False)

    def __post_init__(self) -> None:
        self.last = self.start
        self._flaws: list[Flaw] = []
        self._more = 0
        self._sound = True
        self._counts = {"seals": 0, "event": 0, "action": 0, "purged": 0}
        # By what and number: rows that no seal has so far, digests of rows that are gone, rows that are not as sealed.
        self._extra: dict[tuple[What, int], Item] = {}
        self._gone: dict[tuple[What, int], bytes] = {}
        self._edited: dict[tuple[What, int], tuple[bytes, Item]] = {}
        self._anchored = {anchor.number: anchor for anchor in self.anchors}

    @property
    def seals(self) -> int:
        return self._counts["seals"]

    @property
    def events(self) -> int:
        return self._counts["event"]

    def add(self, block: Block) -> None:
        seal, last = block.seal, self.last
        expected = 1 if last is None else last.number + 1
        gap = seal.number != expected
        whole = seal.is_whole()
        if gap:
            span = f"{expected}" if seal.number == expected + 1 else f"{expected} to {seal.number - 1}"
            self._flaw("missing", "seal", expected, f"seal {span} is gone; what it covered cannot be checked")
        elif whole and self._sound and seal.previous != (GENESIS if last is None else last.digest):
            number = 1 if last is None else last.number
            says = f"seal {number} is not the one that seal {seal.number} was made after"
            self._flaw("rewritten", "seal", number, says)
        if not whole:
            covers = f"what it covers (events {seal.first_seq} to {seal.last_seq}) cannot be checked"
            self._flaw("edited", "seal", seal.number, f"seal {seal.number} is not as it was made; {covers}")
        self._hold_to_anchor(seal)
        # What no seal has is only told from between two seals that say truly where they begin and end.
        between = whole and not gap and self._sound
        self._compare("event", seal.events if whole else b"", block.events, between)
        self._compare("action", seal.actions if whole else b"", block.actions, between)
        self._forgive(block)
        self._sound = whole
        self._counts["seals"] += 1
        self.last = seal

    def end(self, unsealed: int = 0) -> Report:
        """``unsealed`` is how many events and actions wait to be sealed."""
        self._find_moves()
        for what, number in self._edited:
            self._flaw("edited", what, number, f"{what} {number} is not as it was sealed")
        for what, number in self._gone:
            self._flaw("deleted", what, number, f"{what} {number} was sealed and is gone, and no purge says so")
        for (what, number), item in self._extra.items():
            last = self.last
            if last is None or number <= last.base or last.sees(_xid(item)):
                self._flaw("inserted", what, number, f"{what} {number} was put in after its time was sealed")
        for anchor in self._anchored.values():
            if self.start is None or anchor.number > self.start.number:
                newest = 0 if self.last is None else self.last.number
                says = f"seal {anchor.number} was there when the anchor was taken; the chain ends with {newest}"
                self._flaw("cut", "seal", anchor.number, says)
        newest_seal = None if self.last is None else str(Anchor(self.last.number, self.last.digest))
        counts = self._counts
        flaws = tuple(self._flaws)
        checked = (counts["seals"], counts["event"], counts["action"], counts["purged"])
        return Report(not flaws, *checked, unsealed, newest_seal, flaws, self._more)

    def part(self) -> Report:
        """What can be said before its end: what is missing so far may still be excused, and anchors may still come."""
        self._gone.clear()
        self._extra.clear()
        self._anchored.clear()
        return self.end()

    def _hold_to_anchor(self, seal: Seal) -> None:
        anchor = self._anchored.pop(seal.number, None)
        if anchor is not None and anchor.digest != seal.digest:
            self._flaw("rewritten", "seal", seal.number, f"seal {seal.number} is not the one that was anchored")

    def _compare(self, what: What, kept: bytes, rows: Sequence[Item], complete: bool) -> None:
        there = {int(item[0] or 0): item for item in rows}
        for number, digest in leaves(kept):
            self._counts[what] += 1
            item = there.pop(number, None) or self._extra.pop((what, number), None)
            self._extra.pop((what, number), None)
            if item is None:
                self._gone[what, number] = digest
            elif digest_of(what, item) != digest:
                if len(self._edited) < KEPT:
                    self._edited[what, number] = digest, item
                else:
                    self._more += 1
            else:
                self._look_at_time(what, item)
        for number, item in there.items() if complete else ():
            if len(self._extra) < 10 * KEPT:
                self._extra[what, number] = item

    def _look_at_time(self, what: What, item: Item) -> None:
        """A row that was written after a seal was made does not say an earlier time."""
        last = self.last
        at, xid = int(item[8 if what == "event" else 2] or 0), _xid(item)
        if last is None or at >= last.sealed_at - TOLERANCE or (xid is not None and xid <= (last.xid or 0)):
            return
        says = f"{what} {item[0]} says {_time(at)}, and was written after seal {last.number} of {_time(last.sealed_at)}"
        self._flaw("backdated", what, int(item[0] or 0), says)

    def _forgive(self, block: Block) -> None:
        """Take out of what is gone what a purge says it took."""
        purges = list(block.purges or ())
        if block.purges is None:
            purges += [Ranges.purged(_document(a[7])) for a in block.actions if a[4] == "purge"]
        for text in purges:
            gone = sorted(number for what, number in self._gone if what == "event")
            for number in Ranges(text).of(gone):
                del self._gone["event", number]
                self._counts["purged"] += 1
        if block.purges is not None and len(self._gone) > KEPT:  # nothing that comes will excuse them
            for what, number in list(self._gone)[KEPT:]:
                del self._gone[what, number]
                self._more += 1

    def _find_moves(self) -> None:
        """What looks like an edit, a removal or an insertion may be a row that was given another number."""
        places = {**{key: digest for key, (digest, _) in self._edited.items()}, **self._gone}
        rows = {**{key: item for key, (_, item) in self._edited.items()}, **self._extra}
        for (what, number), digest in list(places.items())[:COMPARED]:
            for (kind, now), item in list(rows.items())[:COMPARED]:
                if kind == what and now != number and digest_of(what, (number, *item[1:])) == digest:
                    self._flaw("moved", what, number, f"{what} {number} was given the number {now}")
                    self._gone.pop((what, number), None)
                    self._edited.pop((what, number), None)
                    self._extra.pop((what, now), None)
                    break

    def _flaw(self, kind: FlawKind, what: Literal["event", "action", "seal"], number: int, says: str) -> None:
        if len(self._flaws) < KEPT:
            self._flaws.append(Flaw(kind, what, number, says))
        else:
            self._more += 1


def _document(text: object) -> object:
    try:
        return json.loads(str(text))
    except ValueError:
        return None


def _xid(item: Item) -> int | None:
    return None if item[-1] is None else int(item[-1])


def _time(micros: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
