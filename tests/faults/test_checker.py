"""The checker accepts a sound database and reports a manipulated copy for each invariant.

The copies are SQLite files without triggers: with them the database would refuse every manipulation.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.features.assembly import open_store
from tests.faults.checker import Violation, check, effect_violations, n1, n2, n3, n4, n5, n5_approvals, n6
from tests.faults.effects import record_effect
from tests.faults.snapshot import Snapshot, take_snapshot
from tests.support.sqlite_names import on_sqlite
from tests.support.steps import asking, deny, waiting
from tests.support.stores import BROKEN, claim, forward, open_lease, put, settle, spec, tries

pytestmark = pytest.mark.req("ARCH")

DONE, LOST, HELD, WAITING, ASKING, DENIED, PAUSED = range(7)
RECOVERED = 5.0


class Copy:
    """A file without triggers, with jobs that are done, done after a lost worker, held, queued, waiting for approval,
    denied, and waiting for an event."""

    def __init__(self, path: Path, ids: list[str]) -> None:
        self.url, self.ids = f"sqlite:///{path}", ids
        self._connection = sqlite3.connect(path, isolation_level=None)
        for (name,) in self._connection.execute("select name from sqlite_schema where type = 'trigger'").fetchall():
            self._connection.execute(f"drop trigger {name}")

    def tamper(self, sql: str, **params: object) -> None:
        done = self._connection.execute(on_sqlite(sql), params).rowcount
        assert done > 0, "the statement changes nothing"

    @property
    def snapshot(self) -> Snapshot:
        return take_snapshot(self.url)

    def seen(self) -> list[tuple[int, str]]:
        rows = self._connection.execute("select seq, job_id from holdfast_event order by seq").fetchall()
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
        assert store.run(store.leases.recover()).crashed == 1
        store.run(store.leases.promote())
        lease = open_lease(store, "second", ttl=1000)
        again, held = claim(store, lease, 2)
        assert (again.id, held.id) == (second.id, ids[HELD])
        store.run(store.steps.save_checkpoint(held.id, lease, 1, "progress", "1", "*"))
        settle(store, again)
        open_, denied = asking(store), asking(store)
        deny(store, denied.id)
        ids += [open_.job_id, denied.job_id, waiting(store, timeout=60.0)]
    with closing(Copy(path, ids)) as copy:
        yield copy


def invariants(violations: Iterator[Violation]) -> set[tuple[str, str]]:
    return {(violation.invariant, violation.job) for violation in violations}


def test_sound_database_passes(copy: Copy) -> None:
    check(copy.url, copy.ids, ended=False, within=RECOVERED, seen=copy.seen())
    with pytest.raises(AssertionError, match="has not ended"):
        check(copy.url, copy.ids)


@pytest.mark.parametrize("table", ["job", "job_state", "event"])
def test_n1_reports_missing_job(copy: Copy, table: str) -> None:
    column = "job_id" if table == "event" else "id"
    copy.tamper(f"delete from {table} where {column} = :id", id=copy.ids[DONE])
    assert ("N1", copy.ids[DONE]) in invariants(n1(copy.snapshot, copy.ids))


def test_n1_reports_job_under_swept_lease(copy: Copy) -> None:
    copy.tamper("update lease set ended_at = 1, ended_why = 'expired', swept_at = 1 where holder = 'second'")
    assert ("N1", copy.ids[HELD]) in invariants(n1(copy.snapshot, copy.ids))


def test_n1_reports_job_that_was_never_accepted(copy: Copy) -> None:
    assert ("N1", copy.ids[WAITING]) in invariants(n1(copy.snapshot, copy.ids[:WAITING]))
    assert not invariants(n1(copy.snapshot, copy.ids[:WAITING], uncertain=copy.ids[WAITING:]))


def test_n1_reports_missed_wakeup(copy: Copy) -> None:
    copy.tamper("update step set ended_at = 1, value = '{}' where job_id = :id", id=copy.ids[PAUSED])
    assert invariants(n1(copy.snapshot, copy.ids)) == {("N1", copy.ids[PAUSED])}


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
def test_n5_reports_approval_that_contradicts_its_job(copy: Copy, sql: str, job: int) -> None:
    assert not invariants(n5_approvals(copy.snapshot))
    copy.tamper(sql, id=copy.ids[job])
    assert invariants(n5_approvals(copy.snapshot)) == {("N5", copy.ids[job])}


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
def test_n2_reports_events_after_the_end(copy: Copy, event_type: str, was: str, now: str) -> None:
    copy.tamper(EVENT, id=copy.ids[DONE], type=event_type, was=was, now=now)
    assert ("N2", copy.ids[DONE]) in invariants(n2(copy.snapshot))
    assert not invariants(n2(copy.snapshot)) - {("N2", copy.ids[DONE])}


@pytest.mark.slow
def test_n3_reports_result_of_previous_holder(copy: Copy) -> None:
    copy.tamper("update event set actor = 'first' where job_id = :id and type = 'succeed'", id=copy.ids[LOST])
    assert invariants(n3(copy.snapshot)) == {("N3", copy.ids[LOST])}


@pytest.mark.slow
def test_n3_reports_result_of_previous_attempt(copy: Copy) -> None:
    copy.tamper("update event set attempt = 1 where job_id = :id and type = 'succeed'", id=copy.ids[LOST])
    assert invariants(n3(copy.snapshot)) == {("N3", copy.ids[LOST])}


@pytest.mark.slow
def test_n3_reports_job_under_wrong_lease(copy: Copy) -> None:
    copy.tamper(
        "update job_state set lease = (select id from lease where holder = 'first') where state = 'in_progress'"
    )
    assert invariants(n3(copy.snapshot)) == {("N3", copy.ids[HELD])}


@pytest.mark.slow
def test_n3_reports_progress_of_unknown_attempt(copy: Copy) -> None:
    copy.tamper("update checkpoint set attempt = 2")
    assert invariants(n3(copy.snapshot)) == {("N3", copy.ids[HELD])}


def test_n3_reports_late_step_of_previous_attempt(copy: Copy) -> None:
    """The first attempt stores a step after the second has begun."""
    step = "insert into step (job_id, n, tenant, name, kind, attempt, started_at, ended_at)"
    ended = "(select max(at) + 1 from event where job_id = :id)"
    copy.tamper(f"{step} values (:id, 1, 'default', 'charge', 'step', 2, 0, {ended})", id=copy.ids[LOST])
    assert not invariants(n3(copy.snapshot))
    copy.tamper(f"{step} values (:id, 2, 'default', 'charge', 'step', 1, 0, {ended})", id=copy.ids[LOST])
    assert invariants(n3(copy.snapshot)) == {("N3", copy.ids[LOST])}


@pytest.mark.parametrize("event_type", ["lease_expired", "take"])
def test_n4_reports_late_recovery(copy: Copy, event_type: str) -> None:
    late = "update event set at = at + 60000000 where job_id = :id and type = :type and attempt = :attempt"
    copy.tamper(late, id=copy.ids[LOST], type=event_type, attempt=1 if event_type == "lease_expired" else 2)
    assert invariants(n4(copy.snapshot, RECOVERED)) == {("N4", copy.ids[LOST])}


def test_n5_reports_state_that_contradicts_ledger(copy: Copy) -> None:
    copy.tamper("update job_state set state = 'cancelled' where id = :id", id=copy.ids[DONE])
    assert invariants(n5(copy.snapshot)) == {("N5", copy.ids[DONE])}


def test_n5_reports_missing_event(copy: Copy) -> None:
    copy.tamper("delete from event where job_id = :id and type = 'retry'", id=copy.ids[LOST])
    assert invariants(n5(copy.snapshot)) == {("N5", copy.ids[LOST])}


def test_n5_reports_wrong_attempt_count(copy: Copy) -> None:
    copy.tamper("update job_state set attempt = 1 where id = :id", id=copy.ids[LOST])
    assert invariants(n5(copy.snapshot)) == {("N5", copy.ids[LOST])}


def test_n6_reports_skipped_and_reordered_events(copy: Copy) -> None:
    seen = copy.seen()
    assert not invariants(n6(copy.snapshot, [*seen, *seen[3:5]])), "repeated events are allowed"
    assert invariants(n6(copy.snapshot, seen[:-1])) == {("N6", seen[-1][1])}
    own = [event for event in seen if event[1] == copy.ids[LOST]]
    swapped = [event for event in seen if event != own[0]] + [own[0]]
    assert invariants(n6(copy.snapshot, swapped)) == {("N6", copy.ids[LOST])}
    assert invariants(n6(copy.snapshot, [*seen, (10_000, "nobody")])) == {("N6", "-")}


def test_effect_without_attempt_is_reported(copy: Copy, tmp_path: Path) -> None:
    record_effect(tmp_path, copy.ids[DONE], 1)
    record_effect(tmp_path, copy.ids[LOST], 2)
    assert not invariants(effect_violations(copy.snapshot, tmp_path))
    record_effect(tmp_path, copy.ids[WAITING], 1)
    assert invariants(effect_violations(copy.snapshot, tmp_path)) == {("N3", copy.ids[WAITING])}


def test_success_without_effect_is_reported(copy: Copy, tmp_path: Path) -> None:
    record_effect(tmp_path, copy.ids[LOST], 1)
    assert invariants(effect_violations(copy.snapshot, tmp_path)) == {("N2", copy.ids[LOST])}


def test_redriven_dead_letter_may_end_twice(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/lives.db"
    with closing(open_store(url)) as store:
        store.migrate()
        (job,) = put(store, spec(retry=tries(1)))
        lease = open_lease(store)
        settle(store, claim(store, lease), BROKEN)
        store.run(store.jobs.operate("redrive", [job], None, "ada", "default"))
        settle(store, claim(store, lease))
    check(url, [job])
