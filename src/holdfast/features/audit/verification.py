"""Verify the audit trail block by block and report one flaw per manipulation.

Each block is compared with its seal. Each job whose first event is in the block must have a legal history that ends in
the job's state. Payloads and results must equal what was sealed, and the events that a purge names must prove it.
Memory is bounded: the check holds one block at a time, and bounded collections of rows that do not match so far.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from holdfast.engine.states import State, Step, replay
from holdfast.features.audit.model import (
    GENESIS,
    MAX_FLAWS,
    Anchor,
    Flaw,
    FlawKind,
    Item,
    Purged,
    Ranges,
    Report,
    Seal,
    Thing,
    announced_events,
    content_digest,
    digest_of,
    leaves,
    withdrawn,
)

What = Literal["event", "action"]

_HEX = re.compile(r"[0-9a-f]{64}")
MAX_MOVES_COMPARED = 200
"""Rows and digests that are compared with each other to detect renumbered rows."""
CLOCK_TOLERANCE = 300_000_000
"""Microseconds by which a clock may have gone back."""


@dataclass(frozen=True, slots=True)
class Trail:
    """All events of a job, in order, and its state; None if there is no such job."""

    job_id: str
    state: str | None
    steps: Sequence[tuple[int, str, str | None, str]]
    """Number, type, from, to."""
    consistent: bool = True
    """Whether the job's tenant, kind and enqueuing actor equal those in its events."""


@dataclass(frozen=True, slots=True)
class Content:
    """The current payload or result of a job; ``seq`` is the number of its enqueue or succeed event."""

    seq: int
    what: Literal["payload", "result"]
    job_id: str
    state: str | None
    digest: bytes | None
    """None if the job has no such content."""
    resealed: Sequence[str] = ()
    """Digests recorded by key rotations, hexadecimal."""
    replaced: str | None = None
    """The digest in the newest replace event of the payload, hexadecimal."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The database's evidence about a purge: the sealed digests of the events it names, and the jobs it names that
    still exist."""

    sealed: Mapping[int, bytes]
    alive: frozenset[str]


@dataclass(frozen=True, slots=True)
class Stray:
    """A row without the rows it belongs to."""

    job_id: str
    says: str


@dataclass(frozen=True, slots=True)
class Tail:
    """The rows after the last seal, and rows that belong to no block."""

    unsealed: int = 0
    """Events and actions that wait to be sealed."""
    purges: Sequence[Item] = ()
    """The unsealed actions that are purges."""
    proofs: Mapping[int, Proof] = field(default_factory=dict)
    strays: Sequence[Stray] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """A seal and the current rows of its range. ``purges`` has the numbers (``5-9,12``) of the events that retention
    removed from the range; None in a file, where the purges are in later blocks."""

    seal: Seal
    events: Sequence[Item]
    actions: Sequence[Item]
    purges: Sequence[str] | None = None
    trails: Sequence[Trail] = ()
    """The histories of the jobs whose first event is in this block."""
    contents: Sequence[Content] = ()
    proofs: Mapping[int, Proof] | None = None
    """By the number of the action; None if there is no database to query."""


@dataclass
class Check:
    """A verification in progress. ``start`` is the seal before the first block, which is trusted."""

    start: Seal | None = None
    anchors: Sequence[Anchor] = ()
    last: Seal | None = field(init=False)

    def __post_init__(self) -> None:
        self.last = self.start
        self._flaws: list[Flaw] = []
        self._more = 0
        self._sound = True
        self._counts = {"seals": 0, "event": 0, "action": 0, "purged": 0}
        # By type and number: rows that are in no seal so far, digests of missing rows, rows that differ from the seal.
        self._extra: dict[tuple[What, int], Item] = {}
        self._gone: dict[tuple[What, int], bytes] = {}
        self._edited: dict[tuple[What, int], tuple[bytes, Item]] = {}
        self._anchored = {anchor.number: anchor for anchor in self.anchors}
        # Reported last: where events were changed, the histories of their jobs are broken as a consequence.
        self._broken: list[Flaw] = []
        # Announced purges that were not withdrawn: the numbers of their events, by the number of the announcement.
        self._announced: dict[int, str] = {}
        # The newest seal that was made when nothing above its floor was visible.
        self._complete: Seal | None = None

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
        intact = seal.is_intact()
        if gap:
            span = f"{expected}" if seal.number == expected + 1 else f"{expected} to {seal.number - 1}"
            self._flaw("missing", "seal", expected, f"seal {span} is missing; the rows it covered cannot be checked")
        elif intact and self._sound and seal.previous != (GENESIS if last is None else last.digest):
            number = 1 if last is None else last.number
            says = f"seal {number} is not the predecessor that seal {seal.number} was made with"
            self._flaw("rewritten", "seal", number, says)
        if not intact:
            covers = f"the rows it covers (events {seal.first_seq} to {seal.last_seq}) cannot be checked"
            self._flaw("edited", "seal", seal.number, f"seal {seal.number} was changed; {covers}")
        self._check_anchor(seal)
        # Inserted rows can only be recognized between two intact, adjacent seals, whose bounds are known.
        bounded = intact and not gap and self._sound
        self._compare("event", seal.events if intact else b"", block.events, bounded, seal.sealed_at)
        self._compare("action", seal.actions if intact else b"", block.actions, bounded, seal.sealed_at)
        self._remove_purged(block)
        if intact:
            for action in block.actions:
                if action[4] == "purge":
                    # The first block sealed after an upgrade may contain purges recorded by the older version.
                    old = seal.contents is None or (last is not None and last.contents is None)
                    proof = None if block.proofs is None else block.proofs.get(int(action[0] or 0))
                    self._check_purge(action, proof, old)
            self._compare_contents(seal, block.contents)
            self._note_announcements(block.actions)
        for trail in block.trails:
            self._check_history(trail)
        self._sound = intact
        self._counts["seals"] += 1
        self.last = seal
        if seal.cut == 0:
            self._complete = seal

    def _note_announcements(self, actions: Iterable[Item]) -> None:
        """Called after the purges of the same block are checked: an announcement is sealed before its purge."""
        for action in actions:
            if action[4] == "announce":
                self._announced[int(action[0] or 0)] = announced_events(action)
            elif action[4] == "withdraw":
                self._announced.pop(withdrawn(action) or 0, None)

    def end(self, tail: Tail | None = None) -> Report:
        tail = tail or Tail()
        unsealed = tail.unsealed
        for action in tail.purges:
            proof = tail.proofs.get(int(action[0] or 0))
            self._check_purge(action, proof, old=self.last is None or self.last.contents is None)
        self._find_moves()
        for what, number in self._edited:
            self._flaw("edited", what, number, f"{what} {number} was changed after it was sealed")
        for what, number in self._gone:
            self._flaw("deleted", what, number, f"{what} {number} was sealed and is missing, and no purge recorded it")
        for (what, number), item in self._extra.items():
            last = self.last
            if last is None or number <= last.base or last.sees(_xid(item)):
                self._flaw("inserted", what, number, f"{what} {number} was inserted after its range was sealed")
        for anchor in self._anchored.values():
            if self.start is None or anchor.number > self.start.number:
                newest = 0 if self.last is None else self.last.number
                says = f"seal {anchor.number} existed when the anchor was taken; the chain ends with seal {newest}"
                self._flaw("cut", "seal", anchor.number, says)
        self._broken += [Flaw("broken", "job", 0, f"job {stray.job_id} {stray.says}") for stray in tail.strays]
        for flaw in self._broken:
            self._flaw(flaw.kind, flaw.what, flaw.number, flaw.says)
        newest_seal = None if self.last is None else str(Anchor(self.last.number, self.last.digest))
        counts = self._counts
        flaws = tuple(self._flaws)
        checked = (counts["seals"], counts["event"], counts["action"], counts["purged"])
        return Report(not flaws, *checked, unsealed, newest_seal, flaws, self._more)

    def part(self) -> Report:
        """The report of a check of the database that stops early. Rows that are in no seal so far and anchors do not
        count: later blocks may contain them. Missing rows do: a block has the purges that explain them."""
        self._extra.clear()
        self._anchored.clear()
        return self.end()

    def _check_anchor(self, seal: Seal) -> None:
        anchor = self._anchored.pop(seal.number, None)
        if anchor is not None and anchor.digest != seal.digest:
            self._flaw("rewritten", "seal", seal.number, f"seal {seal.number} is not the one that was anchored")

    def _compare(self, what: What, sealed: bytes, rows: Sequence[Item], bounded: bool, sealed_at: int) -> None:
        """Compare rows with the digests of their seal. Rows that are not in the seal count only if it is bounded."""
        items: dict[int, Item] = {}
        for row in rows:
            number = int(row[0] or 0)
            if number in items:  # no unique key spans the partitions
                self._flaw("inserted", what, number, f"{what} {number} exists twice")
            items[number] = row
        for number, digest in leaves(sealed):
            self._counts[what] += 1
            item = items.pop(number, None) or self._extra.pop((what, number), None)
            self._extra.pop((what, number), None)
            if item is None:
                self._gone[what, number] = digest
            elif digest_of(what, item) != digest:
                if len(self._edited) < MAX_FLAWS:
                    self._edited[what, number] = digest, item
                else:
                    self._more += 1
            else:
                self._check_time(what, item, sealed_at)
        for number, item in items.items() if bounded else ():
            if len(self._extra) < 10 * MAX_FLAWS:
                self._extra[what, number] = item

    def _check_time(self, what: What, item: Item, sealed_at: int) -> None:
        """A row written after a seal has neither an earlier time nor an earlier transaction than that seal, and no row
        has a time after its own seal."""
        last, number = self.last, int(item[0] or 0)
        at, xid = int(item[8 if what == "event" else 2] or 0), _xid(item)
        complete = self._complete
        floor = 0 if complete is None else complete.floor if what == "event" else complete.action_floor
        if complete is not None and xid is not None and number > max(floor, complete.base) and complete.sees(xid):
            says = f"{what} {number} names a transaction that had ended when seal {complete.number} was made"
            self._flaw("inserted", what, number, says)
        elif at > sealed_at + CLOCK_TOLERANCE:
            says = f"{what} {number} has the time {_time(at)}, but was sealed at {_time(sealed_at)}"
            self._flaw("postdated", what, number, says)
        elif last is not None and at < last.sealed_at - CLOCK_TOLERANCE and (xid is None or xid > (last.xid or 0)):
            sealed = f"seal {last.number} of {_time(last.sealed_at)}"
            says = f"{what} {number} has the time {_time(at)}, but was written after {sealed}"
            self._flaw("backdated", what, number, says)

    def _check_history(self, trail: Trail) -> None:
        """The events of a job must be legal transitions that end in the job's state."""
        first = trail.steps[0][0]
        says = None
        if trail.state is None:
            says = f"job {trail.job_id} has events and no state"
        else:
            try:
                steps = (
                    Step(event_type, None if was is None else State(was), State(to))
                    for _, event_type, was, to in trail.steps
                )
                ends = replay(steps)
                if not trail.consistent:
                    says = f"the tenant, kind or enqueuing actor of job {trail.job_id} differs from its events"
                elif ends != trail.state:
                    says = f"job {trail.job_id} is {trail.state}, but its events end with {ends}"
            except ValueError as error:
                says = f"the events of job {trail.job_id} are not a legal history: {error}"
        if says is not None and len(self._broken) < MAX_FLAWS:
            self._broken.append(Flaw("broken", "job", first, says))

    def _compare_contents(self, seal: Seal, contents: Iterable[Content]) -> None:
        if seal.contents is None:
            return
        digests = {abs(number): (digest, number < 0) for number, digest in leaves(seal.contents)}
        sealed = {number for number, _ in leaves(seal.events)}
        for content in contents:
            digest, encrypted = digests.get(content.seq, (None, False))
            if content.replaced is not None:  # the replace event was compared with its own seal
                digest = bytes.fromhex(content.replaced) if _HEX.fullmatch(content.replaced) else b""
            if content.digest == digest or content.seq not in sealed or ("event", content.seq) in self._edited:
                continue
            # The contents of a cleaned job are deleted. Its clean event was compared with its seal.
            if content.state == "cleaned" and content.digest in (
                None,
                content_digest("payload", content.job_id, "{}"),
            ):
                continue
            if (
                (encrypted or content.replaced is not None)
                and content.digest is not None
                and content.digest.hex() in content.resealed
            ):
                continue
            kind: FlawKind = "inserted" if digest is None else "deleted" if content.digest is None else "edited"
            happened = {
                "inserted": "was added after",
                "deleted": "was removed after",
                "edited": "was changed after",
            }
            says = f"the {content.what} of job {content.job_id} {happened[kind]} event {content.seq} was sealed"
            self._flaw(kind, content.what, content.seq, says)

    def _check_purge(self, action: Item, proof: Proof | None, old: bool) -> None:
        """A purge must name jobs that no longer exist, and the sealed clean event of each, which lists its events.
        ``old``: the purge may have been recorded by a version that named no jobs."""
        number, purged = int(action[0] or 0), Purged.of(action)
        if purged.announced is not None:
            granted = self.start is not None and purged.announced <= self.start.action_floor
            if purged.announced not in self._announced and not granted:
                says = f"action {number} is a purge whose announcement no earlier seal contains"
                self._flaw("forged", "action", number, says)
            return
        if purged.malformed or not purged.cleaned:
            if purged.malformed or not old:
                self._flaw("forged", "action", number, f"action {number} is a purge that names no jobs")
            return
        certain = True
        for job, clean in purged.cleaned.items():
            listed, seq = Purged.listed(clean), int(clean[0] or 0)
            if proof is None:
                certain = certain and listed is not None
                continue
            sealed = proof.sealed.get(seq)
            wrong = sealed is not None and sealed != digest_of("event", clean)
            if wrong or (sealed is None and any(event in proof.sealed for event in listed or ())):
                says = f"action {number} is a purge of job {job}, which was not cleaned according to its sealed events"
                self._flaw("forged", "action", number, says)
            elif sealed is not None and listed is None:
                certain = False  # cleaned by a version that did not list a job's events
            if job in proof.alive:
                self._flaw("forged", "action", number, f"action {number} is a purge of job {job}, which still exists")
        unlisted = [event for event in sorted(purged.unlisted) if proof is None or event in proof.sealed]
        if unlisted and certain:
            events = Ranges.text(unlisted)[:200]
            says = f"action {number} is a purge of events {events}, which belong to none of the jobs it names"
            self._flaw("forged", "action", number, says)

    def _remove_purged(self, block: Block) -> None:
        """Remove the events that a purge recorded from the missing rows."""
        purges = list(block.purges or ())
        if block.purges is None:
            for purged in (Purged.of(action) for action in block.actions if action[4] == "purge"):
                if purged.announced is None:
                    purges.append(Ranges.text(sorted(purged.events)))
                else:
                    purges.append(self._announced.get(purged.announced, ""))
        for text in purges:
            gone = sorted(number for what, number in self._gone if what == "event")
            for number in Ranges(text).of(gone):
                del self._gone["event", number]
                self._counts["purged"] += 1
        if block.purges is not None and len(self._gone) > MAX_FLAWS:  # no later block can explain them
            for what, number in list(self._gone)[MAX_FLAWS:]:
                del self._gone[what, number]
                self._more += 1

    def _find_moves(self) -> None:
        """Detect rows that were renumbered, which otherwise look like edits, deletions or insertions."""
        digests = {**{key: digest for key, (digest, _) in self._edited.items()}, **self._gone}
        rows = {**{key: item for key, (_, item) in self._edited.items()}, **self._extra}
        for (what, number), digest in list(digests.items())[:MAX_MOVES_COMPARED]:
            for (kind, now), item in list(rows.items())[:MAX_MOVES_COMPARED]:
                if kind == what and now != number and digest_of(what, (number, *item[1:])) == digest:
                    self._flaw("moved", what, number, f"{what} {number} was given the number {now}")
                    self._gone.pop((what, number), None)
                    self._edited.pop((what, number), None)
                    self._extra.pop((what, now), None)
                    break

    def _flaw(self, kind: FlawKind, what: Thing, number: int, says: str) -> None:
        if len(self._flaws) < MAX_FLAWS:
            self._flaws.append(Flaw(kind, what, number, says))
        else:
            self._more += 1


def _xid(item: Item) -> int | None:
    return None if item[-1] is None else int(item[-1])


def _time(micros: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
