"""The checker itself: a sound database passes, and of each invariant a doctored copy is caught.

The copies are SQLite files whose triggers were dropped: with them, the database itself would refuse every one of
these.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.features.assembly import open_store
from tests.faults.checker import Violation, check, n1, n2, n3, n4, n5, n5_approvals, n6, outside
from tests.faults.effects import leave
from tests.faults.picture import Picture, take_picture
from tests.support.steps import asking, deny, waiting
from tests.support.stores import BROKEN, claim, forward, open_lease, put, settle, spec, tries

pytestmark = pytest.mark.req("ARCH")

DONE, LOST, HELD, WAITING, ASKING, DENIED, PAUSED = range(7)
RECOVERED = 5.0


class Copy:
    """A file that somebody has tampered with: one job done, one lost once and done, one held, one waiting, one that
    asks people, one that they denied, one that waits for an event."""

    def __init__(self, path: Path, ids: list[str]) -> None:
        self.url, self.ids = f"sqlite:///{path}", ids
        self._connection = sqlite3.connect(path, isolation_level=None)
        for (name,) in self._connection.execute("select name from sqlite_schema where type = 'trigger'").fetchall():
            self._connection.execute(f"drop trigger {name}")

    def tamper(self, sql: str, **params: object) -> None:
        done = self._connection.execute(sql, params).rowcount
        assert done > 0, "the test tampers with nothing"

    @property
    def picture(self) -> Picture:
        return take_picture(self.url)

    def seen(self) -> list[tuple[int, str]]:
        rows = self._connection.execute("select seq, job_id from event order by seq").fetchall()
        return [(seq, job) for seq, job in rows]

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Copy]:
    path = tmp_path / "jobs.db"
    with closing(open_store(f"sqlite:///{path}")) as store:
        store.migrate()
        forward(store)
        ids = put(store, *(spec() for _ in range(4)))
        first, second = claim(store, open_lease(store, "first", ttl=10), 2)
        settle(store, first)
        forward(store, 11)
        assert store.run(store.leases.reap()).crashed == 1
        store.run(store.leases.promote())
        lease = open_lease(store, "second", ttl=1000)
        again, held = claim(store, lease, 2)
        assert (again.id, held.id) == (second.id, ids[HELD])
        store.run(store.steps.save_checkpoint(held.id, lease, 1, "progress", "1", "*"))
        settle(store, again)
        open_, denied = asking(store), asking(store)
        deny(store, denied.id)
        ids += [open_.job_id, denied.job_id, waiting(store, timeout=60.0)]
    with closing(Copy(path, ids)) as made:
        yield made


def invariants(found: Iterator[Violation]) -> set[tuple[str, str]]:
    return {(violation.invariant, violation.job) for violation in found}


def test_a_sound_database_passes(copy: Copy) -> None:
    check(copy.url, copy.ids, ended=False, within=RECOVERED, seen=copy.seen())
    with pytest.raises(AssertionError, match="has not ended"):
        check(copy.url, copy.ids)


@pytest.mark.parametrize("table", ["job", "job_state", "event"])
def test_n1_a_job_that_is_gone(copy: Copy, table: str) -> None:
    column = "job_id" if table == "event" else "id"
    copy.tamper(f"delete from {table} where {column} = :id", id=copy.ids[DONE])
    assert ("N1", copy.ids[DONE]) in invariants(n1(copy.picture, copy.ids))


def test_n1_a_job_that_nobody_will_free(copy: Copy) -> None:
    copy.tamper("update lease set ended_at = 1, ended_why = 'lapsed', swept_at = 1 where holder = 'second'")
    assert ("N1", copy.ids[HELD]) in invariants(n1(copy.picture, copy.ids))


def test_n1_a_job_that_nobody_asked_for(copy: Copy) -> None:
    assert ("N1", copy.ids[WAITING]) in invariants(n1(copy.picture, copy.ids[:WAITING]))
    assert not invariants(n1(copy.picture, copy.ids[:WAITING], perhaps=copy.ids[WAITING:]))


def test_n1_a_job_that_sleeps_over_its_event(copy: Copy) -> None:
    copy.tamper("update step set ended_at = 1, value = '{}' where job_id = :id", id=copy.ids[PAUSED])
    assert invariants(n1(copy.picture, copy.ids)) == {("N1", copy.ids[PAUSED])}


APPROVAL = "(select approval_id from job_state where id = :id)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sql", "job"),
    [
        (f"update approval set state = 'approved', decided_at = 1 where id = {APPROVAL}", ASKING),
        (f"delete from approval where id = {APPROVAL}", ASKING),
        ("update job_state set approval_id = 'another' where id = :id", ASKING),
        ("update approval set state = 'open', decided_at = null where job_id = :id", DENIED),
        ("update approval set state = 'approved' where job_id = :id", DENIED),
        (
            "update vote set verdict = 'approve' where approval_id = (select id from approval where job_id = :id)",
            DENIED,
        ),
        ("update event set type = 'approve' where job_id = :id and type = 'deny'", DENIED),
        ("update event set type = 'ask', to_state = 'waiting_for_approval' where job_id = :id and type = 'take'", HELD),
    ],
)
def test_n5_a_approval_that_does_not_agree_with_its_job(copy: Copy, sql: str, job: int) -> None:
    assert not invariants(n5_approvals(copy.picture))
    copy.tamper(sql, id=copy.ids[job])
    assert invariants(n5_approvals(copy.picture)) == {("N5", copy.ids[job])}


EVENT = (
    "insert into event (job_id, tenant, kind, type, from_state, to_state, attempt, at, actor)"
    " select job_id, tenant, kind, :type, :was, :now, attempt, at, actor from event where job_id = :id"
    " order by seq desc limit 1"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event_type", "was", "now"),
    [("succeed", "in_progress", "succeeded"), ("cancel", "queued", "cancelled"), ("due", "retry_waiting", "queued")],
)
def test_n2_a_job_that_ended_and_went_on(copy: Copy, event_type: str, was: str, now: str) -> None:
    copy.tamper(EVENT, id=copy.ids[DONE], type=event_type, was=was, now=now)
    assert ("N2", copy.ids[DONE]) in invariants(n2(copy.picture))
    assert not invariants(n2(copy.picture)) - {("N2", copy.ids[DONE])}


@pytest.mark.slow
def test_n3_a_result_of_the_holder_before(copy: Copy) -> None:
    copy.tamper("update event set actor = 'first' where job_id = :id and type = 'succeed'", id=copy.ids[LOST])
    assert invariants(n3(copy.picture)) == {("N3", copy.ids[LOST])}


@pytest.mark.slow
def test_n3_a_result_of_the_attempt_before(copy: Copy) -> None:
    copy.tamper("update event set attempt = 1 where job_id = :id and type = 'succeed'", id=copy.ids[LOST])
    assert invariants(n3(copy.picture)) == {("N3", copy.ids[LOST])}


@pytest.mark.slow
def test_n3_a_job_in_the_wrong_hands(copy: Copy) -> None:
    copy.tamper(
        "update job_state set lease = (select id from lease where holder = 'first') where state = 'in_progress'"
    )
    assert invariants(n3(copy.picture)) == {("N3", copy.ids[HELD])}


@pytest.mark.slow
def test_n3_progress_of_an_attempt_that_never_was(copy: Copy) -> None:
    copy.tamper("update checkpoint set attempt = 2")
    assert invariants(n3(copy.picture)) == {("N3", copy.ids[HELD])}


def test_n3_a_step_of_the_attempt_before(copy: Copy) -> None:
    """The first attempt was lost and the second has begun: what it says it did comes too late."""
    step = "insert into step (job_id, n, tenant, name, kind, attempt, started_at, ended_at)"
    ended = "(select max(at) + 1 from event where job_id = :id)"
    copy.tamper(f"{step} values (:id, 1, 'default', 'charge', 'step', 2, 0, {ended})", id=copy.ids[LOST])
    assert not invariants(n3(copy.picture))
    copy.tamper(f"{step} values (:id, 2, 'default', 'charge', 'step', 1, 0, {ended})", id=copy.ids[LOST])
    assert invariants(n3(copy.picture)) == {("N3", copy.ids[LOST])}


@pytest.mark.parametrize("event_type", ["lapse", "take"])
def test_n4_a_job_that_waited_too_long_for_its_rescue(copy: Copy, event_type: str) -> None:
    late = "update event set at = at + 60000000 where job_id = :id and type = :type and attempt = :attempt"
    copy.tamper(late, id=copy.ids[LOST], type=event_type, attempt=1 if event_type == "lapse" else 2)
    assert invariants(n4(copy.picture, RECOVERED)) == {("N4", copy.ids[LOST])}


def test_n5_a_state_that_the_ledger_does_not_lead_to(copy: Copy) -> None:
    copy.tamper("update job_state set state = 'cancelled' where id = :id", id=copy.ids[DONE])
    assert invariants(n5(copy.picture)) == {("N5", copy.ids[DONE])}


def test_n5_a_step_that_was_taken_out(copy: Copy) -> None:
    copy.tamper("delete from event where job_id = :id and type = 'retry'", id=copy.ids[LOST])
    assert invariants(n5(copy.picture)) == {("N5", copy.ids[LOST])}


def test_n5_an_attempt_that_was_not_counted(copy: Copy) -> None:
    copy.tamper("update job_state set attempt = 1 where id = :id", id=copy.ids[LOST])
    assert invariants(n5(copy.picture)) == {("N5", copy.ids[LOST])}


def test_n6_an_event_that_was_skipped_or_came_late(copy: Copy) -> None:
    seen = copy.seen()
    assert not invariants(n6(copy.picture, [*seen, *seen[3:5]])), "twice is allowed"
    assert invariants(n6(copy.picture, seen[:-1])) == {("N6", seen[-1][1])}
    own = [event for event in seen if event[1] == copy.ids[LOST]]
    swapped = [event for event in seen if event != own[0]] + [own[0]]
    assert invariants(n6(copy.picture, swapped)) == {("N6", copy.ids[LOST])}
    assert invariants(n6(copy.picture, [*seen, (10_000, "nobody")])) == {("N6", "-")}


def test_effects_that_the_ledger_does_not_know(copy: Copy, tmp_path: Path) -> None:
    leave(tmp_path, copy.ids[DONE], 1)
    leave(tmp_path, copy.ids[LOST], 2)
    assert not invariants(outside(copy.picture, tmp_path))
    leave(tmp_path, copy.ids[WAITING], 1)
    assert invariants(outside(copy.picture, tmp_path)) == {("N3", copy.ids[WAITING])}


def test_a_success_that_left_no_effect(copy: Copy, tmp_path: Path) -> None:
    leave(tmp_path, copy.ids[LOST], 1)
    assert invariants(outside(copy.picture, tmp_path)) == {("N2", copy.ids[LOST])}


def test_a_dead_letter_that_was_redriven_has_two_lives(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/lives.db"
    with closing(open_store(url)) as store:
        store.migrate()
        (job,) = put(store, spec(retry=tries(1)))
        lease = open_lease(store)
        settle(store, claim(store, lease), BROKEN)
        store.run(store.jobs.operate("redrive", [job], None, "ada", "default"))
        settle(store, claim(store, lease))
    check(url, [job])
