"""Sealing and checking through the port, and what somebody does who owns the database and takes its guards away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from holdfast.features.assembly import Store
from holdfast.features.audit.model import Anchor, Seal
from holdfast.features.audit.verification import Check, Report
from tests.support.by_hand import ByHand

VERSION = "tests"


def seal(store: Store, want: int = 2000) -> int:
    """Seal all there is, in blocks of ``want``; answers how much that was."""
    total = 0
    while done := store.run(store.audit.seal(VERSION, want)):
        total += done
    return total


def newest(store: Store) -> Seal:
    found = store.run(store.audit.get_seal())
    assert found is not None
    return found


def anchor(store: Store) -> Anchor:
    last = newest(store)
    return Anchor(last.number, last.digest)


def verify(store: Store, anchors: Sequence[Anchor] = (), start: Seal | None = None) -> Report:
    check = Check(start, anchors)
    while (block := store.run(store.audit.block(check.last))) is not None:
        check.add(block)
    return check.end(store.run(store.audit.unsealed(check.last)))


def flaws(store: Store, *anchors: Anchor) -> list[tuple[str, str, int]]:
    """What was done to rows; that the histories of their jobs do not fit then is left out."""
    found = verify(store, anchors).flaws
    return [(flaw.kind, flaw.what, flaw.number) for flaw in found if flaw.what != "job"]


@contextmanager
def unguarded(by_hand: ByHand, *tables: str) -> Iterator[None]:
    """As whoever owns the tables: without their triggers, which are put back."""
    if by_hand.name == "sqlite":
        names = ", ".join(f"'{table}'" for table in tables)
        kept = by_hand.execute(f"select name, sql from sqlite_master where type = 'trigger' and tbl_name in ({names})")
        for name, _ in kept:
            by_hand.execute(f"drop trigger {name}")
        yield
        for _, text in kept:
            by_hand.execute(text)
        return
    for table in tables:
        by_hand.execute(f"alter table {table} disable trigger user")
    yield
    for table in tables:
        by_hand.execute(f"alter table {table} enable trigger user")
