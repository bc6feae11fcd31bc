"""Nothing that decides how a job runs changes without an event in the ledger, and a lease cannot be revived, rewritten
or removed under its jobs. The columns come from the catalogue of each store."""

from __future__ import annotations

import pytest

from holdfast.features.assembly import Store
from tests.contract.test_attacks import _populate
from tests.contract.test_triggers_ignore_settings import other
from tests.support.direct_sql import ByHand

pytestmark = pytest.mark.req("CX-4", "CX-9", "DP-7")

# What holds back a waiting job may change without an event: it says why the job waits, not how it runs.
UNRECORDED = {"note", "held_by"}
STATES = ("queued", "retry_waiting", "leased", "running", "succeeded", "failed", "dead", "cancelled", "asking")


def columns(by_hand: ByHand, table: str) -> dict[str, str]:
    if by_hand.name == "sqlite":
        return {row[1]: row[2].lower() for row in by_hand.execute(f"pragma table_info({table})")}
    rows = by_hand.execute(
        "select attname, format_type(atttypid, null) from pg_attribute"
        f" where attrelid = '{table}'::regclass and attnum > 0 and not attisdropped"
    )
    return dict(rows)


def test_no_column_of_a_state_changes_without_an_event(store: Store, by_hand: ByHand) -> None:
    names = _populate(store, by_hand)
    refused, unrecorded = 0, list[str]()
    for column, kind in columns(by_hand, "job_state").items():
        for state in STATES:
            if column in UNRECORDED:
                continue
            statement = f"update job_state set {column} = {other(column, kind)} where id = :job"
            by_hand.begin()
            before = by_hand.execute("select count(*) from event")
            if by_hand.refusal(statement, {"job": names[state]}) is not None:
                refused += 1
            elif by_hand.execute("select count(*) from event") == before:
                unrecorded.append(f"{column} of the {state} job")
            by_hand.rollback()
    assert unrecorded == []
    assert refused > 150


LEASES = {
    "revive an ended lease": "update lease set ended_at = null, ended_why = null where id = :ended",
    "lengthen an ended lease": "update lease set until = {other} where id = :ended",
    "renew an ended lease": "update lease set renewals = renewals + 1 where id = :ended",
    "give a lease another holder": "update lease set holder = 'eve' where id = :lease",
    "give a lease to another tenant": "update lease set tenant = 'acme' where id = :lease",
    "backdate a lease": "update lease set opened_at = {other} where id = :lease",
    "remove the lease of a running job": "delete from lease where id = :lease",
    "remove the lease of a claimed job": "delete from lease where id = :holding",
    "remove all leases": "delete from lease",
    "hide a lease that holds a job from maintenance": "update lease set swept_at = {other} where id = :lease",
}


def test_a_lease_stays_as_it_was(store: Store, by_hand: ByHand) -> None:
    names = _populate(store, by_hand)
    moment = "12345" if by_hand.name == "sqlite" else "timestamptz '2020-01-01'"
    accepted = []
    for attack, statement in LEASES.items():
        used = {name: names[name] for name in ("ended", "lease", "holding") if f":{name}" in statement}
        by_hand.begin()
        refusal = by_hand.refusal(statement.format(other=moment), used)
        by_hand.rollback()
        if refusal is None or "lease" not in refusal:
            accepted.append(attack)
    assert accepted == []
