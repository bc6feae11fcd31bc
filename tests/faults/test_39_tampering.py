"""Fault 39: the owner of the database disables its guards and changes the past. `audit verify` names each change."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.features.assembly import Store, open_store
from holdfast.features.audit.model import Anchor
from holdfast.features.audit.operations import Audit, verify_file
from holdfast.stores.session import Session
from tests.support.direct_sql import ByHand, open_by_hand, unguarded
from tests.support.features import anchor, flaws, seal, verify
from tests.support.stores import BROKEN, put, spec, work

pytestmark = pytest.mark.req("HF-4", "CX-4")


@pytest.fixture(params=["sqlite_url", "postgres_url"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with closing(open_store(request.getfixturevalue(request.param))) as opened:
        opened.migrate()
        yield opened


@pytest.fixture
def owner(store: Store) -> Iterator[ByHand]:
    """A connection of the tables' owner, to a database with ten jobs and three seals."""
    for _ in range(3):
        put(store, *(spec() for _ in range(3)))
        work(store, BROKEN)
        work(store, want=2)
        seal(store)
    put(store, spec())
    assert verify(store).ok
    with closing(open_by_hand(store.url)) as connection:
        yield connection


def event_numbers(owner: ByHand) -> list[int]:
    return [row[0] for row in owner.execute("select seq from event order by seq")]


def test_edited_event_is_reported(store: Store, owner: ByHand) -> None:
    one, two = event_numbers(owner)[4], event_numbers(owner)[9]
    with unguarded(owner, "event"):
        owner.execute("update event set actor = 'nobody' where seq = :n", {"n": one})
        owner.execute("""update event set meta = '{"error_code": "other"}' where seq = :n""", {"n": two})
    assert flaws(store) == [("edited", "event", one), ("edited", "event", two)]
    assert str(one) in verify(store).flaws[0].says


def test_deleted_events_are_reported(store: Store, owner: ByHand) -> None:
    deleted = event_numbers(owner)[3:6]
    with unguarded(owner, "event"):
        owner.execute(f"delete from event where seq between {deleted[0]} and {deleted[-1]}")
    assert flaws(store) == [("deleted", "event", number) for number in deleted]


def test_swapped_events_are_reported(store: Store, owner: ByHand) -> None:
    one, two = event_numbers(owner)[2], event_numbers(owner)[-6]  # in different blocks
    with unguarded(owner, "event"):
        for was, becomes in ((one, -1), (two, one), (-1, two)):
            owner.execute("update event set seq = :becomes where seq = :was", {"was": was, "becomes": becomes})
    assert sorted(flaws(store)) == [("moved", "event", one), ("moved", "event", two)]


COLUMNS = "job_id, tenant, kind, type, from_state, to_state, attempt, at, actor"


def test_event_inserted_into_the_past_is_reported(store: Store, owner: ByHand) -> None:
    """The event has the id of an old transaction; with a new one it would be sealed as a late commit."""
    first, some = event_numbers(owner)[0], event_numbers(owner)[5]
    more = COLUMNS if owner.name == "sqlite" else f"{COLUMNS}, xid"
    with unguarded(owner, "event"):
        owner.execute(f"insert into event (seq, {more}) select {first - 1}, {more} from event where seq = {some}")
    assert flaws(store) == [("inserted", "event", first - 1)]


def test_backdated_event_is_reported(store: Store, owner: ByHand) -> None:
    last = event_numbers(owner)[-1]
    hour = "3600000000" if owner.name == "sqlite" else "interval '1 hour'"
    old = COLUMNS.replace(" at,", f" at - {hour},")
    with unguarded(owner, "event"):
        owner.execute(f"insert into event (seq, {COLUMNS}) select {last + 1}, {old} from event where seq = {last}")
    seal(store)
    assert flaws(store) == [("backdated", "event", last + 1)]


def test_edited_deleted_or_replaced_seal_is_reported(store: Store, owner: ByHand) -> None:
    saved_anchor = anchor(store)
    first = owner.execute("select digest from seal where number = 1")[0][0]
    with unguarded(owner, "seal"):
        owner.execute("update seal set version = 'other' where number = 2")
        assert flaws(store, saved_anchor) == [("edited", "seal", 2)]
        owner.execute("delete from seal where number = 2")
        assert flaws(store) == [("missing", "seal", 2)]
        owner.execute("delete from seal where number > 1")
    assert verify(store).ok  # therefore an anchor is kept outside the database
    assert flaws(store, saved_anchor) == [("cut", "seal", 3)]
    with unguarded(owner, "event"):
        owner.execute(f"update event set actor = 'nobody' where seq = {event_numbers(owner)[-3]}")
    seal(store)  # a new end of the chain over forged events
    assert verify(store, [Anchor(1, first)]).ok
    assert flaws(store, saved_anchor) == [("cut", "seal", 3)]


@pytest.mark.slow
def test_rehashed_seal_does_not_match_the_next(store: Store, owner: ByHand) -> None:
    second = store.run(store.audit.get_seal(2))
    assert second is not None
    forged = dataclasses.replace(second, version="other").with_digest()
    with unguarded(owner, "seal"):
        values = {"digest": forged.digest, "version": forged.version}
        owner.execute("update seal set digest = :digest, version = :version where number = 2", values)
    assert flaws(store) == [("rewritten", "seal", 2)]
    assert flaws(store, Anchor(2, second.digest)) == [("rewritten", "seal", 2)] * 2  # the anchor reports it as well


def test_truncated_ledger_is_reported_by_anchor(store: Store, owner: ByHand) -> None:
    seal(store)
    saved_anchor = anchor(store)
    with unguarded(owner, "event", "seal"):
        owner.execute(f"delete from event where seq > {event_numbers(owner)[-4]}")
        owner.execute("delete from seal where number >= 3")
    # The jobs still exist; only the anchor reports the missing seals.
    assert {flaw.what for flaw in verify(store).flaws} <= {"job"}
    assert ("cut", "seal", 4) in flaws(store, saved_anchor)


def test_edited_or_deleted_action_is_reported(store: Store, owner: ByHand) -> None:
    for label in ("gpu", "cpu", "tpu"):
        store.run(store.executors.set(label, "executor", "ada"))
    seal(store)
    first = owner.execute("select min(seq) from action")[0][0]
    with unguarded(owner, "action"):
        owner.execute("update action set actor = 'bob' where seq = :n", {"n": first})
        owner.execute("delete from action where seq = :n", {"n": first + 1})
    assert flaws(store) == [("edited", "action", first), ("deleted", "action", first + 1)]


@pytest.mark.slow
def test_exported_file_is_verified_without_database(store: Store, owner: ByHand, tmp_path: Path) -> None:
    audit = Audit(Session(store, tenant="*", name="tests", actor="ada"))
    audit.seal()
    assert audit.export(tmp_path / "trail.jsonl") == 4
    report = verify_file(tmp_path / "trail.jsonl", [audit.anchor()])
    assert (report.ok, report.seals, report.events) == (True, 4, len(event_numbers(owner)))
    lines = (tmp_path / "trail.jsonl").read_text().splitlines(keepends=True)
    spot = next(n for n, line in enumerate(lines) if '"type":"dead_letter"' in line or '"type":"retry"' in line)
    edited = [*lines[:spot], lines[spot].replace('"actor":"', '"actor":"not '), *lines[spot + 1 :]]
    (tmp_path / "edited.jsonl").write_text("".join(edited))
    assert [flaw.kind for flaw in verify_file(tmp_path / "edited.jsonl").flaws] == ["edited"]
    (tmp_path / "short.jsonl").write_text("".join([*lines[:spot], *lines[spot + 1 :]]))
    assert [flaw.kind for flaw in verify_file(tmp_path / "short.jsonl").flaws] == ["deleted"]
    (tmp_path / "cut.jsonl").write_text("".join(lines[:-2]))
    assert verify_file(tmp_path / "cut.jsonl").ok
    assert [f.kind for f in verify_file(tmp_path / "cut.jsonl", [str(audit.anchor())]).flaws] == ["cut"]
