"""Fault 39: whoever owns the database takes its guards away and changes the past. The check names what was done."""

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
    """Ten jobs, three seals; and a connection of whoever owns the tables."""
    for _ in range(3):
        put(store, *(spec() for _ in range(3)))
        work(store, BROKEN)
        work(store, want=2)
        seal(store)
    put(store, spec())
    assert verify(store).ok
    with closing(open_by_hand(store.url)) as connection:
        yield connection


def numbers(owner: ByHand) -> list[int]:
    return [row[0] for row in owner.execute("select seq from event order by seq")]


def test_an_event_that_was_edited_is_named(store: Store, owner: ByHand) -> None:
    one, two = numbers(owner)[4], numbers(owner)[9]
    with unguarded(owner, "event"):
        owner.execute("update event set actor = 'nobody' where seq = :n", {"n": one})
        owner.execute("""update event set meta = '{"error_code": "other"}' where seq = :n""", {"n": two})
    assert flaws(store) == [("edited", "event", one), ("edited", "event", two)]
    assert str(one) in verify(store).flaws[0].says


def test_an_event_that_was_deleted_is_named(store: Store, owner: ByHand) -> None:
    gone = numbers(owner)[3:6]
    with unguarded(owner, "event"):
        owner.execute(f"delete from event where seq between {gone[0]} and {gone[-1]}")
    assert flaws(store) == [("deleted", "event", number) for number in gone]


def test_events_that_changed_places_are_named(store: Store, owner: ByHand) -> None:
    one, two = numbers(owner)[2], numbers(owner)[-6]  # in other blocks
    with unguarded(owner, "event"):
        for was, becomes in ((one, -1), (two, one), (-1, two)):
            owner.execute("update event set seq = :becomes where seq = :was", {"was": was, "becomes": becomes})
    assert sorted(flaws(store)) == [("moved", "event", one), ("moved", "event", two)]


COLUMNS = "job_id, tenant, kind, type, from_state, to_state, attempt, at, actor"


def test_an_event_that_was_put_into_the_past_is_named(store: Store, owner: ByHand) -> None:
    """As one of a transaction that has long ended; one of a new transaction would be sealed as a late committer."""
    first, some = numbers(owner)[0], numbers(owner)[5]
    more = COLUMNS if owner.name == "sqlite" else f"{COLUMNS}, xid"
    with unguarded(owner, "event"):
        owner.execute(f"insert into event (seq, {more}) select {first - 1}, {more} from event where seq = {some}")
    assert flaws(store) == [("inserted", "event", first - 1)]


def test_an_event_with_a_time_of_the_past_is_named(store: Store, owner: ByHand) -> None:
    last = numbers(owner)[-1]
    hour = "3600000000" if owner.name == "sqlite" else "interval '1 hour'"
    old = COLUMNS.replace(" at,", f" at - {hour},")
    with unguarded(owner, "event"):
        owner.execute(f"insert into event (seq, {COLUMNS}) select {last + 1}, {old} from event where seq = {last}")
    seal(store)
    assert flaws(store) == [("backdated", "event", last + 1)]


def test_a_seal_that_was_edited_removed_or_made_anew_is_named(store: Store, owner: ByHand) -> None:
    kept = anchor(store)
    first = owner.execute("select digest from seal where number = 1")[0][0]
    with unguarded(owner, "seal"):
        owner.execute("update seal set version = 'other' where number = 2")
        assert flaws(store, kept) == [("edited", "seal", 2)]
        owner.execute("delete from seal where number = 2")
        assert flaws(store) == [("missing", "seal", 2)]
        owner.execute("delete from seal where number > 1")
    assert verify(store).ok  # which is why an anchor is kept elsewhere
    assert flaws(store, kept) == [("cut", "seal", 3)]
    with unguarded(owner, "event"):
        owner.execute(f"update event set actor = 'nobody' where seq = {numbers(owner)[-3]}")
    seal(store)  # a whole new end of the chain, over what is not true
    assert verify(store, [Anchor(1, first)]).ok
    assert flaws(store, kept) == [("cut", "seal", 3)]


@pytest.mark.slow
def test_a_seal_that_was_hashed_anew_does_not_fit_the_next(store: Store, owner: ByHand) -> None:
    second = store.run(store.audit.get_seal(2))
    assert second is not None
    forged = dataclasses.replace(second, version="other").with_digest()
    with unguarded(owner, "seal"):
        values = {"digest": forged.digest, "version": forged.version}
        owner.execute("update seal set digest = :digest, version = :version where number = 2", values)
    assert flaws(store) == [("rewritten", "seal", 2)]
    assert flaws(store, Anchor(2, second.digest)) == [("rewritten", "seal", 2)] * 2  # the anchor says so, too


def test_a_tail_of_events_that_was_cut_with_its_seals_is_found_by_an_anchor(store: Store, owner: ByHand) -> None:
    seal(store)
    kept = anchor(store)
    with unguarded(owner, "event", "seal"):
        owner.execute(f"delete from event where seq > {numbers(owner)[-4]}")
        owner.execute("delete from seal where number >= 3")
    assert {flaw.what for flaw in verify(store).flaws} <= {
        "job"
    }  # their jobs are still there: only the anchor tells of the seals
    assert ("cut", "seal", 4) in flaws(store, kept)


def test_an_action_that_was_edited_or_deleted_is_named(store: Store, owner: ByHand) -> None:
    for label in ("gpu", "cpu", "tpu"):
        store.run(store.executors.add(label, "executor", "ada"))
    seal(store)
    first = owner.execute("select min(seq) from action")[0][0]
    with unguarded(owner, "action"):
        owner.execute("update action set actor = 'bob' where seq = :n", {"n": first})
        owner.execute("delete from action where seq = :n", {"n": first + 1})
    assert flaws(store) == [("edited", "action", first), ("deleted", "action", first + 1)]


@pytest.mark.slow
def test_an_exported_file_is_checked_by_itself(store: Store, owner: ByHand, tmp_path: Path) -> None:
    audit = Audit(Session(store, tenant="*", name="tests", actor="ada"))
    audit.seal()
    assert audit.export(tmp_path / "trail.jsonl") == 4
    report = verify_file(tmp_path / "trail.jsonl", [audit.anchor()])
    assert (report.ok, report.seals, report.events) == (True, 4, len(numbers(owner)))
    lines = (tmp_path / "trail.jsonl").read_text().splitlines(keepends=True)
    spot = next(n for n, line in enumerate(lines) if '"type":"bury"' in line or '"type":"retry"' in line)
    edited = [*lines[:spot], lines[spot].replace('"actor":"', '"actor":"not '), *lines[spot + 1 :]]
    (tmp_path / "edited.jsonl").write_text("".join(edited))
    assert [flaw.kind for flaw in verify_file(tmp_path / "edited.jsonl").flaws] == ["edited"]
    (tmp_path / "short.jsonl").write_text("".join([*lines[:spot], *lines[spot + 1 :]]))
    assert [flaw.kind for flaw in verify_file(tmp_path / "short.jsonl").flaws] == ["deleted"]
    (tmp_path / "cut.jsonl").write_text("".join(lines[:-2]))
    assert verify_file(tmp_path / "cut.jsonl").ok
    assert [f.kind for f in verify_file(tmp_path / "cut.jsonl", [str(audit.anchor())]).flaws] == ["cut"]
