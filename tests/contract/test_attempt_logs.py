"""The log of an attempt in the database: written under the fence while it runs, immutable afterwards."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from holdfast.engine.job import Attempt, Claim
from holdfast.errors import StaleLease
from holdfast.features.assembly import Store
from holdfast.features.attempts.model import LogPart
from holdfast.features.retention.model import RetentionRule
from tests.support.direct_sql import ByHand
from tests.support.stores import BROKEN, claim, forward, new_id, open_lease, put, put_one, settle, spec, take


def append(store: Store, held: Claim, n: int, lines: str | None = "a line\n", ref: str | None = None) -> list[str]:
    part = LogPart(held.id, held.attempt, n, lines, ref)
    return store.run(store.attempts.append_log(held.lease, [part], "*"))


def lines(store: Store, job_id: str, attempt: int = 1, tenant: str = "default") -> list[str | None]:
    return [part.lines or part.ref for part in store.run(store.attempts.log(job_id, attempt, tenant))]


def attempt_of(store: Store, job_id: str) -> Attempt:
    return store.run(store.jobs.attempts(job_id, "default"))[-1]


@pytest.mark.req("SC-5", "SC-20")
def test_log_parts_are_accepted_only_from_the_running_attempt(store: Store) -> None:
    job_id = put_one(store)
    held = take(store)
    assert attempt_of(store, job_id).log is None
    assert append(store, held, 1, "one\n") == []
    assert append(store, held, 1, "one\n") == [], "a repeated call whose response was lost changes nothing"
    assert append(store, held, 2, "two\n") == []
    assert lines(store, job_id) == ["one\n", "two\n"]
    assert attempt_of(store, job_id).log == "database"
    assert lines(store, job_id, tenant="acme") == []
    assert append(store, dataclasses.replace(held, attempt=2), 3) == [job_id]
    assert append(store, dataclasses.replace(held, lease=open_lease(store)), 3) == [job_id]
    with pytest.raises(StaleLease):
        append(store, dataclasses.replace(held, lease=new_id()), 3)
    settle(store, held)
    assert append(store, held, 3, "late\n") == [job_id], "the log of an ended attempt is closed"
    assert lines(store, job_id) == ["one\n", "two\n"]


@pytest.mark.req("SC-5")
def test_one_call_appends_for_many_jobs_and_returns_the_stale(store: Store) -> None:
    ids = put(store, *(spec() for _ in range(3)))
    held = claim(store, open_lease(store), 3)
    settle(store, held[1])
    parts = [LogPart(each.id, each.attempt, 1, "x\n") for each in held]
    assert store.run(store.attempts.append_log(held[0].lease, parts, "*")) == [held[1].id]
    assert [len(lines(store, job_id)) for job_id in ids].count(1) == 2


REFUSED = (
    "insert into attempt_log (job_id, tenant, attempt, n, at, lines) values (:id, 'default', 1, 9, {at}, 'forged')",
    "insert into attempt_log (job_id, tenant, attempt, n, at, lines) values (:id, 'default', 2, 1, {at}, 'forged')",
    "update attempt_log set lines = 'forged' where job_id = :id",
    "update attempt_log set n = 7 where job_id = :id",
    "delete from attempt_log where job_id = :id",
)


@pytest.mark.req("SC-5")
@pytest.mark.every_case
@pytest.mark.parametrize("statement", REFUSED)
def test_log_of_an_ended_attempt_cannot_change(store: Store, by_hand: ByHand, statement: str) -> None:
    job_id = put_one(store)
    held = take(store)
    append(store, held, 1)
    settle(store, held)
    at = "0" if by_hand.name == "sqlite" else "now()"
    with pytest.raises(Exception, match=r"immutable: (a|log parts)|attempt_log: "):
        by_hand.execute(statement.format(at=at), {"id": job_id})
    assert lines(store, job_id) == ["a line\n"]


@pytest.mark.req("SC-5", "DP-16")
def test_log_location_is_known_at_once_and_cleaned_with_the_job(store: Store) -> None:
    forward(store)
    job_id = put_one(store)
    first = take(store)
    append(store, first, 1, None, f"file://box/logs/{job_id[:8]}/{job_id}/1/output.log")
    assert attempt_of(store, job_id).log == f"file://box/logs/{job_id[:8]}/{job_id}/1/output.log"
    forward(store, 60)
    store.run(store.leases.recover())  # the worker was lost: it did not report the end of the attempt
    assert attempt_of(store, job_id).outcome == "crashed"
    store.run(store.leases.promote())
    second = take(store)
    append(store, second, 1, None, f"file://box/logs/{job_id[:8]}/{job_id}/2/output.log")
    append(store, second, 2, None, ref := f"artifact://default/{job_id}/{'a' * 64}")
    settle(store, second)
    assert attempt_of(store, job_id).log == ref
    store.run(store.retention.set(RetentionRule.of(clean_after="1h"), "ada", "default"))
    forward(store, 4_000)
    while store.run(store.retention.sweep()).action != "idle":
        pass
    assert lines(store, job_id) == lines(store, job_id, 2) == []
    left = {each.ref for each in _orphans(store, "elsewhere", stored=True)}
    assert left == {ref}, "for an hour, another host does not get the files of this one"
    left = {each.ref for each in _orphans(store, "box", stored=False)}
    assert left == {f"file://box/logs/{job_id[:8]}/{job_id}/"}, "one directory, with all attempts"
    forward(store, 4_000)
    assert len(_orphans(store, "renamed", stored=False)) == 1


def _orphans(store: Store, host: str, *, stored: bool) -> list[Any]:
    return store.run(store.retention.orphans(100, "*", host, stored))


@pytest.mark.req("SC-5")
@pytest.mark.parametrize(
    "part",
    [
        {"lines": None, "ref": None},
        {"lines": "x", "ref": "file://h/x"},
        {"lines": "x" * 200_001},
        {"lines": "x", "n": 0},
        {"lines": "x", "n": 100_001},
    ],
)
def test_invalid_log_parts_are_refused(store: Store, part: dict[str, Any]) -> None:
    job_id = put_one(store)
    held = take(store)
    given: dict[str, Any] = {"job_id": job_id, "attempt": 1, "n": 1, "lines": None, "ref": None} | part
    wrong = LogPart(**given)
    with pytest.raises(Exception, match=r"lines_or_ref|part_bounded|number_bounded"):
        store.run(store.attempts.append_log(held.lease, [wrong], "*"))
    settle(store, held, BROKEN)
