"""`holdfast jobs cancel`, `redrive`, `discard`, `replace-payload`, `reschedule` and `move`: one result per id."""

from __future__ import annotations

import pytest

from holdfast.engine.outcome import Snoozed
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, document, error_of
from tests.support.features import order_of
from tests.support.stores import BROKEN, history, job, put, put_one, spec, state_of, tries, work

pytestmark = pytest.mark.req("DP-3")

UNKNOWN = "01a1de74-eb8c-70f1-843b-cac5f6817387"


def dead(store: Store) -> str:
    job_id = put_one(store, retry=tries(1), priority=100)
    work(store, BROKEN)
    assert state_of(store, job_id) == State.DEAD_LETTER
    return job_id


def test_cancel_records_reason(holdfast: Holdfast, store: Store) -> None:
    job_id = put_one(store)
    result = holdfast("jobs", "cancel", job_id.upper(), "--reason", "wrong [red]month[/red]")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split() == [job_id, "cancelled", "cancelled"]
    last = history(store, job_id)[-1]
    assert (last.type, last.meta["reason"]) == ("cancel", "wrong [red]month[/red]")
    assert last.actor
    assert "wrong [red]month[/red]" in holdfast("jobs", "history", job_id).stdout


def test_dead_letter_is_redriven_and_discarded(holdfast: Holdfast, store: Store) -> None:
    job_id = dead(store)
    assert holdfast("jobs", "redrive", job_id).exit_code == 0
    assert state_of(store, job_id) == State.QUEUED
    work(store, BROKEN)
    assert holdfast("jobs", "discard", job_id, "--reason", "gone").exit_code == 0
    assert state_of(store, job_id) == State.CANCELLED


@pytest.mark.req("DP-26")
def test_payload_of_a_waiting_job_is_replaced(holdfast: Holdfast, store: Store) -> None:
    job_id = put_one(store, "mail", payload={"to": "a"})
    command = ("jobs", "replace-payload", job_id, '{"to": "b"}', "--reason", "wrong address")
    refused = holdfast(*command, "--json")
    assert (refused.exit_code, error_of(refused)["code"]) == (4, "not_replaceable")
    assert holdfast("payload-rules", "set", "mail", "--replaceable").exit_code == 0
    assert "replaceable" in holdfast("payload-rules", "list").stdout
    assert holdfast(*command).stdout.splitlines()[1].split() == [job_id, "queued", "replaced"]
    assert job(store, job_id).payload == {"to": "b"}
    assert (history(store, job_id)[-1].type, history(store, job_id)[-1].meta["reason"]) == ("replace", "wrong address")
    work(store, Snoozed(60.0))
    assert holdfast("jobs", "replace-payload", job_id, '{"to": "c"}', "--reason", "x").exit_code == 0
    assert 'payload of attempt 1: {"to": "b"}' in holdfast("jobs", "show", job_id).stdout
    assert document(holdfast("jobs", "show", job_id, "--json"))["attempts"][0]["payload"] == {"to": "b"}
    assert holdfast("jobs", "replace-payload", job_id, "{", "--reason", "x").exit_code == 2
    assert holdfast("jobs", "replace-payload", job_id, "{}", "--reason", " ").exit_code == 2


@pytest.mark.req("CX-22", "CX-23")
def test_external_reference_and_tags_select_jobs(holdfast: Holdfast, store: Store) -> None:
    both, one = put(store, spec(tags=("a", "b")), spec(tags=("a",)))
    changed = holdfast("jobs", "set-external-ref", both, "crm-1")
    assert changed.stdout.splitlines()[1].split()[:2] == [both, "queued"]

    def listed(*options: str) -> list[str]:
        return [each["id"] for each in document(holdfast("jobs", "list", *options, "--json"))]

    assert listed("--external-ref", "crm-1") == [both]
    assert listed("--tag", "a", "--tag", "b") == [both]
    assert listed("--any-tag", "b", "--any-tag", "none") == [both]
    assert listed("--tag", "a") == [one, both]
    assert holdfast("jobs", "set-external-ref", both, "--remove").exit_code == 0
    assert listed("--external-ref", "crm-1") == []
    assert holdfast("jobs", "set-external-ref", both).exit_code == 2
    assert holdfast("jobs", "set-external-ref", UNKNOWN, "x").exit_code == 3
    assert listed("--worker", "nobody", "--template", "x", "--template-version", "1") == []


def test_each_id_has_one_result(holdfast: Holdfast, store: Store) -> None:
    waiting, other = put(store, spec(), spec())
    ended = dead(store)
    result = holdfast("jobs", "cancel", waiting, ended, UNKNOWN, other, waiting, "--json")
    assert result.exit_code == 4
    assert [(verdict["id"], verdict["refused"], verdict["reason"]) for verdict in document(result)] == [
        (waiting, False, None),
        (ended, True, "already_finished"),
        (UNKNOWN, True, "not_found"),
        (other, False, None),
    ]


def test_exit_code_distinguishes_refused_and_unknown_jobs(holdfast: Holdfast, store: Store) -> None:
    waiting, ended = put_one(store, delay=60), dead(store)
    assert holdfast("jobs", "cancel", UNKNOWN).exit_code == 3
    assert holdfast("jobs", "cancel", ended).exit_code == 4
    assert holdfast("jobs", "redrive", waiting).exit_code == 4
    assert holdfast("jobs", "redrive", UNKNOWN, ended).exit_code == 3
    result = holdfast("jobs", "discard", waiting, UNKNOWN, "--reason", "x")
    assert result.exit_code == 4
    assert "refused: it is not a dead letter [not_dead]" in result.stdout
    assert "refused: no such job in this tenant [not_found]" in result.stdout


def test_job_of_another_tenant_is_not_found(holdfast: Holdfast, store: Store) -> None:
    theirs = put_one(store, tenant="acme")
    assert holdfast("jobs", "cancel", theirs).exit_code == 3
    assert state_of(store, theirs) == State.QUEUED
    assert holdfast("jobs", "cancel", theirs, "--tenant", "acme").exit_code == 0


def test_malformed_id_prevents_the_whole_call(holdfast: Holdfast, store: Store) -> None:
    job_id = put_one(store)
    result = holdfast("jobs", "cancel", job_id, "not-an-id", "--json")
    assert (result.exit_code, error_of(result)["code"]) == (2, "invalid_id")
    assert state_of(store, job_id) == State.QUEUED


def test_discard_requires_a_reason(holdfast: Holdfast, store: Store) -> None:
    job_id = dead(store)
    assert holdfast("jobs", "discard", job_id).exit_code == 2
    blank = holdfast("jobs", "discard", job_id, "--reason", "  ", "--json")
    assert (blank.exit_code, error_of(blank)["code"]) == (2, "reason_required")
    assert state_of(store, job_id) == State.DEAD_LETTER


@pytest.mark.req("JF-5")
def test_job_is_rescheduled(holdfast: Holdfast, store: Store) -> None:
    job_id, ended = put_one(store, delay=3600.0), dead(store)
    result = holdfast("jobs", "reschedule", job_id, "--in", "10m", "--max-attempts", "9", "--reason", "at noon")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split() == [job_id, "queued", "rescheduled"]
    last = history(store, job_id)[-1]
    assert (last.type, last.meta["reason"], last.meta["max_attempts"]) == ("reschedule", "at noon", 9)
    assert last.actor == last.meta["by"]
    assert "reschedule" in holdfast("jobs", "history", job_id).stdout
    assert holdfast("jobs", "reschedule", job_id).exit_code == 0
    assert job(store, job_id).due_at is None
    assert holdfast("jobs", "reschedule", job_id, "--at", "2090-01-31T09:00:00+02:00").exit_code == 0
    assert str(job(store, job_id).due_at) == "2090-01-31 07:00:00+00:00"
    refused = holdfast("jobs", "reschedule", ended)
    assert refused.exit_code == 4
    assert "[not_waiting]" in refused.stdout
    assert holdfast("jobs", "reschedule", UNKNOWN).exit_code == 3


@pytest.mark.req("JF-5")
@pytest.mark.parametrize(
    "options",
    [
        ("--at", "2090-01-31T09:00:00"),
        ("--in", "soon"),
        ("--in", "5m", "--at", "2090-01-31T09:00:00Z"),
        ("--max-attempts", "0"),
        ("--max-attempts", "102"),
    ],
)
def test_reschedule_rejects_invalid_options(holdfast: Holdfast, store: Store, options: tuple[str, ...]) -> None:
    assert holdfast("jobs", "reschedule", put_one(store), *options).exit_code == 2


@pytest.mark.req("JF-5", "DP-15")
def test_redrive_sets_max_attempts(holdfast: Holdfast, store: Store) -> None:
    job_id = dead(store)
    assert holdfast("jobs", "redrive", job_id, "--max-attempts", "7").exit_code == 0
    assert job(store, job_id).max_attempts == 7


@pytest.mark.req("SC-3")
def test_job_is_moved_within_its_queue(holdfast: Holdfast, store: Store) -> None:
    a, b, c = put(store, spec(), spec(), spec())
    result = holdfast("jobs", "move", c, "--first", "--reason", "the auditors are here")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split() == [c, "queued", "moved"]
    last = history(store, c)[-1]
    assert (last.type, last.meta["to"], last.meta["reason"]) == ("move", "first", "the auditors are here")
    assert holdfast("jobs", "move", c, "--after", b).exit_code == 0
    assert holdfast("jobs", "move", b, "--before", a.upper()).exit_code == 0
    assert holdfast("jobs", "move", a, "--last").exit_code == 0
    assert order_of(store) == [b, c, a]
    assert holdfast("jobs", "move", a, "--priority", "7").exit_code == 0
    assert holdfast("jobs", "move", c, "--first", "--priority", "7").exit_code == 0
    assert order_of(store) == [c, a, b]
    answer = document(holdfast("jobs", "move", b, "--first", "--json"))
    assert answer == [{"id": b, "state": "queued", "refused": False, "reason": None}]


@pytest.mark.req("SC-3")
def test_invalid_move_is_refused(holdfast: Holdfast, store: Store) -> None:
    job_id, ended, in_other_queue = put_one(store), dead(store), put_one(store, queue="mail")
    for options, code in (
        ((ended, "--first"), "not_waiting"),
        ((in_other_queue, "--before", ended), "other_queue"),
        ((in_other_queue, "--before", UNKNOWN), "target_not_found"),
    ):
        refused = holdfast("jobs", "move", *options)
        assert (refused.exit_code, f"[{code}]" in refused.stdout) == (4, True), refused.stdout
    assert holdfast("jobs", "move", UNKNOWN, "--last").exit_code == 3
    for wrong in ((), ("--first", "--last"), ("--before", in_other_queue, "--priority", "3"), ("--priority", "high")):
        assert holdfast("jobs", "move", job_id, *wrong).exit_code == 2
