"""Nothing that decides how a job runs changes without an event in the ledger, and a lease cannot be revived, rewritten,
shortened or removed under its jobs. The columns come from the catalogue of each store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import pytest

from holdfast.features.agents.model import Definition
from holdfast.features.assembly import Store
from tests.contract.test_attacks import _populate
from tests.contract.test_triggers_ignore_settings import other
from tests.support.direct_sql import ByHand
from tests.support.stores import claim, open_lease, put_one

pytestmark = pytest.mark.req("CX-4", "CX-9", "DP-7")

STATES = ("queued", "retry_waiting", "leased", "running", "succeeded", "failed", "dead", "cancelled", "asking")
HELD = ("delayed", "child", "parked", "postponed")
WAITING = ("queued", "retry_waiting", *HELD)
# Columns that say why a job waits, and until when. They change together, as operations hold jobs back and release them.
HOLDING = ("due_at", "note", "held_by")
NO_LIMIT = '["default","kind","mail.other"]'
NOTES: tuple[dict[str, Any], ...] = (
    {"other": 1},
    {"held": "parents"},
    {"held": "agent_disabled"},
    {"held": "limit", "by": "nolimit"},
    {"held": "limit", "by": NO_LIMIT},
    {"moved": {"to": "first"}},
    {"moved": {"to": "first"}, "rescheduled": "now"},
    {"rescheduled": "now", "held": "agent_disabled"},
    {"replaced": {"size": 1}, "held": "parents"},
    {"retried_as": "7"},
)
# A release that operations do too: the job was held back, and a claim decides again.
RELEASED = {"due_at": "null", "note": "null", "held_by": "null"}

Changes = dict[str, str]


def columns(by_hand: ByHand, table: str) -> dict[str, str]:
    if by_hand.name == "sqlite":
        return {row[1]: row[2].lower() for row in by_hand.execute(f"pragma table_info({table})")}
    rows = by_hand.execute(
        "select attname, format_type(atttypid, null) from pg_attribute"
        f" where attrelid = '{table}'::regclass and attnum > 0 and not attisdropped"
    )
    return dict(rows)


class Jobs:
    """Jobs in every state, and waiting ones that are held back for each reason."""

    def __init__(self, store: Store, by_hand: ByHand) -> None:
        self.by_hand = by_hand
        self.names = _populate(store, by_hand)
        self.columns = columns(by_hand, "job_state")
        names = {
            "delayed": put_one(store, delay=1e8),
            "parked": put_one(store, queue="gpu", uses=("resource:gpu-0",)),
        }
        store.run(store.agents.set(Definition(id="planner", name="Planner"), "default"))
        names["postponed"] = put_one(store, queue="gpu", agent="planner")
        store.run(store.agents.disable("planner", "it loops", "ada", "default"))
        assert claim(store, open_lease(store), 5, queues=["gpu"]) == []
        self.names |= names
        for name, why in (("child", "parents"), ("parked", "limit"), ("postponed", "agent_disabled")):
            ((note,),) = by_hand.execute("select note from job_state where id = :job", {"job": self.names[name]})
            assert why in str(note)
        self.before = {name: self.snapshot(name) for name in (*STATES, *HELD)}

    def values(self, column: str) -> tuple[str, ...]:
        if column == "due_at":
            moments = ("0", "4102444800000000", "9223372036854775807")
            times = ("'2000-01-01'", "'2100-01-01'", "'infinity'")
            return ("null", *(moments if self.by_hand.name == "sqlite" else times))
        if column == "note":
            return ("null", *(f"'{json.dumps(note)}'" for note in NOTES))
        if column == "held_by":
            return ("null", "'nolimit'", f"'{NO_LIMIT}'")
        return (other(column, self.columns[column]),)

    def snapshot(self, name: str) -> Any:
        """The row, the number of events, and whether its time has come."""
        return self.by_hand.execute(
            "select s.*, (select count(*) from event), s.due_at <= (select now from present) from job_state s"
            " where s.id = :job",
            {"job": self.names[name]},
        )[0]

    def accepts(self, name: str, *statements: Changes) -> str | None:
        """The first of these updates of a job that changes it without an event; None if there is none. Everything is
        rolled back."""
        by_hand, before = self.by_hand, self.before[name]
        by_hand.begin()
        try:
            for changes in statements:
                if by_hand.refusal(_update(changes), {"job": self.names[name]}) is not None:
                    return None
                *row, events, _ = after = self.snapshot(name)
                # A job whose time has come may be queued.
                promoted = before[-1] and changes.get("due_at") == "null"
                released = name in ("parked", "postponed") and RELEASED.items() >= changes.items() >= {
                    ("due_at", "null")
                }
                if events == before[-2] and row != list(before[:-2]) and not promoted and not released:
                    return f"{name}: {changes}"
                before = after
            return None
        finally:
            by_hand.rollback()

    def holding(self) -> Iterator[Changes]:
        """Every combination of values for the columns that hold back a job, each of which may also stay as it is."""
        for values in product(*((None, *self.values(column)) for column in HOLDING)):
            if any(values):
                yield {column: value for column, value in zip(HOLDING, values, strict=True) if value is not None}


def test_no_column_of_a_state_changes_without_an_event(store: Store, by_hand: ByHand) -> None:
    jobs = Jobs(store, by_hand)
    accepted = [
        jobs.accepts(name, {column: value})
        for column in jobs.columns
        for value in jobs.values(column)
        for name in (*STATES, *HELD)
    ]
    assert [change for change in accepted if change] == []
    assert len(accepted) > 400


@pytest.mark.slow
def test_no_two_columns_change_together_without_an_event(store: Store, by_hand: ByHand) -> None:
    jobs = Jobs(store, by_hand)
    accepted = [
        jobs.accepts(name, {first: a, second: b})
        for first, second in combinations(jobs.columns, 2)
        if {first, second} & set(HOLDING)
        for a, b in product(jobs.values(first), jobs.values(second))
        for name in (*WAITING, "leased", "failed", "succeeded")
    ]
    assert [change for change in accepted if change] == []
    assert len(accepted) > 4000


@pytest.mark.slow
def test_no_sequence_of_updates_changes_when_a_job_runs(store: Store, by_hand: ByHand) -> None:
    """Two statements, each of any values for the time and the reason that hold back a job: the first prepares what the
    second would need."""
    jobs = Jobs(store, by_hand)
    second = [
        {column: value for column, value in zip(HOLDING, values, strict=True) if value}
        for values in product(jobs.values("due_at"), (None, "null", *jobs.values("note")[-5:]), (None, "null"))
    ]
    accepted = []
    for name, changes in product(WAITING, jobs.holding()):
        accepted.append(jobs.accepts(name, changes))
        by_hand.begin()
        passed = by_hand.refusal(_update(changes), {"job": jobs.names[name]}) is None
        by_hand.rollback()
        accepted += [jobs.accepts(name, changes, more) for more in second if passed]
    assert [change for change in accepted if change] == []
    assert len(accepted) > 1000


def test_limit_that_exists_can_hold_back_a_job(store: Store, by_hand: ByHand) -> None:
    """As claims do: only a job that could be claimed, and until it is released."""
    jobs = Jobs(store, by_hand)
    bucket = '["default","kind","mail.send"]'
    never = jobs.values("due_at")[-1]
    hold = {"due_at": never, "note": f"'{json.dumps({'held': 'limit', 'by': bucket})}'", "held_by": f"'{bucket}'"}
    assert jobs.accepts("queued", hold) is not None
    assert jobs.accepts("queued", hold, {"due_at": "null"}) is not None
    for name in (*STATES, *HELD):
        if name != "queued":
            assert jobs.accepts(name, hold) is None
    by_hand.execute(_update(hold), {"job": jobs.names["queued"]})
    later = {"due_at": jobs.values("due_at")[2], "note": "null", "held_by": "null"}
    assert by_hand.refusal(_update(later), {"job": jobs.names["queued"]}) is not None
    by_hand.execute(_update(RELEASED), {"job": jobs.names["queued"]})
    ((due,),) = by_hand.execute("select due_at from job_state where id = :job", {"job": jobs.names["queued"]})
    assert due is None


def _update(changes: Changes) -> str:
    return (
        f"update job_state set {', '.join(f'{column} = {value}' for column, value in changes.items())} where id = :job"
    )


LEASES = {
    "revive an ended lease": "update lease set ended_at = null, ended_why = null where id = :ended",
    "lengthen an ended lease": "update lease set until = {other} where id = :ended",
    "renew an ended lease": "update lease set renewals = renewals + 1 where id = :ended",
    "give a lease another holder": "update lease set holder = 'eve' where id = :lease",
    "give a lease to another tenant": "update lease set tenant = 'acme' where id = :lease",
    "backdate a lease": "update lease set opened_at = {other} where id = :lease",
    "shorten a lease that holds a job": "update lease set until = {other} where id = :lease",
    "set back the renewal of a lease": "update lease set renewed_at = {other} where id = :lease",
    "lower the renewals of a lease": "update lease set renewals = -1 where id = :lease",
    "renew a lease in the future": "update lease set renewed_at = {later} where id = :lease",
    "shorten a lease as after a change of the clock": "update lease set until = {other}, renewed_at = {other}"
    " where id = :lease",
    "remove the lease of a running job": "delete from lease where id = :lease",
    "remove the lease of a claimed job": "delete from lease where id = :holding",
    "remove all leases": "delete from lease",
    "hide a lease that holds a job from maintenance": "update lease set swept_at = {other} where id = :lease",
}


def test_a_lease_stays_as_it_was(store: Store, by_hand: ByHand) -> None:
    names = _populate(store, by_hand)
    moment = "12345" if by_hand.name == "sqlite" else "timestamptz '2020-01-01'"
    later = "4102444800000000" if by_hand.name == "sqlite" else "timestamptz '2100-01-01'"
    accepted = []
    for attack, statement in LEASES.items():
        used = {name: names[name] for name in ("ended", "lease", "holding") if f":{name}" in statement}
        by_hand.begin()
        refusal = by_hand.refusal(statement.format(other=moment, later=later), used)
        by_hand.rollback()
        if refusal is None or "lease" not in refusal:
            accepted.append(attack)
    assert accepted == []
