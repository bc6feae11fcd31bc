"""`holdfast approvals approve`, `deny` and `token`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from holdfast import config
from holdfast.engine.states import State
from holdfast.features.approvals.model import Vote
from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, document, error_of
from tests.cli.durable_jobs import FORM, asked
from tests.cli.processes import run
from tests.support.stores import history, state_of

pytestmark = pytest.mark.req("CX-5", "CX-7", "DP-3")

UNKNOWN = "01a1de74-eb8c-70f1-843b-cac5f6817387"


def votes(store: Store, approval_id: str) -> list[Vote]:
    return store.run(store.approvals.votes(approval_id, "*"))


def refused(result: Result) -> tuple[int, str]:
    return result.exit_code, error_of(result)["code"]


def later(store: Store, span: timedelta) -> None:
    store.run(store.clock.set(span, None))


def issued(holdfast: Holdfast, approval_id: str, *options: str) -> str:
    result = holdfast("approvals", "token", approval_id, *options)
    assert result.exit_code == 0, result.stderr
    (token,) = result.stdout.splitlines()
    return token


def test_an_approval_is_named_by_the_first_characters_of_its_id(holdfast: Holdfast, store: Store) -> None:
    one, two = asked(store.url), asked(store.url)
    prefix = one.id[:30]
    assert one.id in holdfast("approvals", "show", prefix).stdout
    assert holdfast("approvals", "token", prefix).exit_code == 0
    assert refused(holdfast("approvals", "deny", one.id[:6], "--json")) == (2, "invalid_id"), "two begin with that"
    assert refused(holdfast("approvals", "show", "ffffffff", "--json")) == (3, "not_found")
    assert holdfast("approvals", "approve", prefix).exit_code == 0
    assert (len(votes(store, one.id)), votes(store, two.id)) == (1, [])


def test_approve_records_operating_user_and_comment(holdfast: Holdfast, store: Store) -> None:
    approval = asked(store.url)
    result = holdfast("approvals", "approve", approval.id.upper(), "--comment", "fine [red]with[/red] me")
    assert result.exit_code == 0
    header, row = result.stdout.splitlines()
    assert header.split() == ["id", "state", "answer"]
    assert row.split() == [approval.id, "approved", "job", approval.job_id, "continues"]
    (vote,) = votes(store, approval.id)
    assert (vote.person, vote.verdict, vote.how) == (config.operating_user(), "approve", "cli")
    assert vote.comment == "fine [red]with[/red] me"
    last = history(store, approval.job_id)[-1]
    assert (last.type, last.actor) == ("approve", config.operating_user())


def test_deny_fails_or_resumes_job_with_reason(holdfast: Holdfast, store: Store) -> None:
    approval = asked(store.url, form=FORM)
    result = holdfast("approvals", "deny", approval.id, "--by", "bob", "--comment", "too much")
    assert (result.exit_code, result.stdout.splitlines()[1].split()[1:]) == (
        0,
        ["denied", "job", approval.job_id, "has", "failed"],
    )
    assert state_of(store, approval.job_id) is State.FAILED
    assert history(store, approval.job_id)[-1].meta["error_message"] == "denied by bob: too much"
    other = asked(store.url, on_deny="resume")
    assert holdfast("approvals", "deny", other.id, "--comment", " ").stdout.endswith("continues\n")
    assert votes(store, other.id)[0].comment is None


def test_decision_prints_approval_as_json(holdfast: Holdfast, store: Store) -> None:
    approval = asked(store.url)
    result = document(holdfast("approvals", "deny", approval.id, "--by", "ada", "--json"))
    assert (result["id"], result["state"], result["approvals"], result["quorum"]) == (approval.id, "denied", 0, 1)
    assert result["decided_at"].endswith("Z")


def test_open_approval_reports_missing_approvals(holdfast: Holdfast, store: Store) -> None:
    approval = asked(store.url, approvers=["ada", "bob", "eve"], quorum=3)
    result = holdfast("approvals", "approve", approval.id, "--by", "ada")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1] == f"{approval.id}  open   1 of 3 approvals: 2 more needed"
    as_json = document(holdfast("approvals", "approve", approval.id, "--by", "bob", "--json"))
    assert (as_json["state"], as_json["approvals"], as_json["quorum"]) == ("open", 2, 3)
    assert state_of(store, approval.job_id) is State.WAITING_FOR_APPROVAL
    assert "continues" in holdfast("approvals", "approve", approval.id, "--by", "eve").stdout


@pytest.mark.slow
def test_refused_decision_has_its_code(holdfast: Holdfast, store: Store) -> None:
    approval = asked(store.url, approvers=["ada", "bob", "tester"], quorum=2, not_requester=True)

    def approve(*options: str) -> tuple[int, str]:
        return refused(holdfast("approvals", "approve", approval.id, *options, "--json"))

    assert approve("--by", "mallory") == (4, "not_an_approver")
    assert approve("--by", "tester") == (4, "requester_may_not_decide")
    assert approve("--by", " ") == (2, "invalid_name")
    assert holdfast("approvals", "approve", approval.id, "--by", "ada").exit_code == 0
    assert approve("--by", "ada") == (4, "already_voted")
    assert holdfast("approvals", "deny", approval.id, "--by", "bob").exit_code == 0
    assert approve("--by", "bob") == (4, "already_decided")
    result = holdfast("approvals", "deny", approval.id, "--by", "bob")
    assert (result.exit_code, result.stdout) == (4, "")
    assert "error: the decision does not count: it has been decided already [already_decided]" in result.stderr
    assert len(votes(store, approval.id)) == 2


def test_unknown_approval_is_not_found(holdfast: Holdfast, store: Store) -> None:
    approval = asked(store.url)
    for event_type in ("approve", "deny", "token"):
        assert refused(holdfast("approvals", event_type, UNKNOWN, "--json")) == (3, "not_found")
        assert refused(holdfast("approvals", event_type, approval.id, "--tenant", "acme", "--json")) == (3, "not_found")
        assert refused(holdfast("approvals", event_type, "no-id", "--json")) == (2, "invalid_id")
    assert votes(store, approval.id) == []
    assert holdfast("approvals", "approve", approval.id, "--all-tenants").exit_code == 0


def test_expired_approval_cannot_be_decided(holdfast: Holdfast, store: Store) -> None:
    approval = asked(store.url, expires_in="1h", form=FORM)
    later(store, timedelta(hours=2))
    assert "over" in holdfast("approvals", "list").stdout
    # Expiry is reported before the empty form.
    assert refused(holdfast("approvals", "approve", approval.id, "--json")) == (4, "approval_expired")
    store.run(store.approvals.attend())
    assert refused(holdfast("approvals", "approve", approval.id, "--json")) == (4, "already_decided")
    assert document(holdfast("approvals", "list", "--state", "expired", "--json"))[0]["id"] == approval.id


def test_approval_of_cancelled_job_cannot_be_decided(holdfast: Holdfast, store: Store) -> None:
    approval = asked(store.url)
    assert holdfast("jobs", "cancel", approval.job_id).exit_code == 0
    assert refused(holdfast("approvals", "approve", approval.id, "--json")) == (4, "already_decided")
    assert "withdrawn" in holdfast("approvals", "list", "--state", "withdrawn").stdout


@pytest.mark.parametrize(
    ("given", "data"),
    [
        (
            ("--field", "limit=5", "--field", "reason=7", "--field", "urgent=yes"),
            {"limit": 5, "reason": "7", "urgent": True},
        ),
        (
            ("--field", "limit=5", "--field", "reason=a=b", "--field", "colour=red"),
            {"limit": 5, "reason": "a=b", "colour": "red"},
        ),
        (("--data", '{"limit": 5, "reason": "x"}'), {"limit": 5, "reason": "x"}),
        (("--data", '{"limit": 5, "reason": "x"}', "--field", "limit=6"), {"limit": 6, "reason": "x"}),
    ],
)
def test_form_is_filled_in_from_options(
    holdfast: Holdfast, sqlite_store: Store, given: tuple[str, ...], data: Any
) -> None:
    approval = asked(sqlite_store.url, form=FORM)
    result = holdfast("approvals", "approve", approval.id, *given, "--url", sqlite_store.url)
    assert result.exit_code == 0, result.stderr
    assert votes(sqlite_store, approval.id)[0].data == data


def test_form_is_read_from_a_file(holdfast: Holdfast, store: Store, tmp_path: Path) -> None:
    approval = asked(store.url, form=FORM)
    path = tmp_path / "answer.json"
    path.write_text('{"limit": 5, "reason": "☃"}')
    assert holdfast("approvals", "approve", approval.id, "--data", f"@{path}").exit_code == 0
    assert votes(store, approval.id)[0].data == {"limit": 5, "reason": "☃"}


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ((), "form_invalid"),
        (("--field", "limit=5"), "form_invalid"),
        (("--field", "limit=five", "--field", "reason=x"), "form_invalid"),
        (("--field", "limit=5000", "--field", "reason=x"), "form_invalid"),
        (("--field", "limit=5", "--field", "reason=x", "--field", "size=3"), "form_invalid"),
        (("--field", "limit=5", "--field", "limit=6"), "conflicting_options"),
        (("--field", "limit"), "usage"),
        (("--field", "=5"), "usage"),
        (("--data", "{"), "payload_not_json"),
        (("--data", "NaN"), "payload_not_finite"),
        (("--data", "@/no/such/file"), "unreadable_file"),
        (("--data", "[1]"), "form_invalid"),
        (("--data", "[1]", "--field", "limit=5"), "conflicting_options"),
        (("--data", '{"x": "' + "y" * 70_000 + '"}'), "payload_too_large"),
    ],
)
def test_answer_that_violates_form_is_rejected(
    holdfast: Holdfast, sqlite_store: Store, given: tuple[str, ...], code: str
) -> None:
    approval = asked(sqlite_store.url, form=FORM)
    result = holdfast("approvals", "approve", approval.id, *given, "--url", sqlite_store.url, "--json")
    assert refused(result) == (2, code)
    assert votes(sqlite_store, approval.id) == []
    if code == "form_invalid":
        assert f"holdfast approvals show {approval.id}" in error_of(result)["fix"]


def test_data_without_a_form_is_stored_as_given(holdfast: Holdfast, store: Store) -> None:
    approval = asked(store.url)
    given = ("--field", "n=7", "--field", "text=seven", "--field", 'quoted="7"', "--field", "list=[1]")
    assert holdfast("approvals", "approve", approval.id, *given).exit_code == 0
    assert votes(store, approval.id)[0].data == {"n": 7, "text": "seven", "quoted": "7", "list": [1]}


@pytest.mark.req("CX-6")
def test_token_is_shown_once_and_decides_once(holdfast: Holdfast, store: Store) -> None:
    approval = asked(store.url, approvers=["ada", "bob"], quorum=2)
    result = holdfast("approvals", "token", approval.id, "--for", "ada", "--expires-in", "2d")
    (token,) = result.stdout.splitlines()
    assert token.startswith("hfa_")
    assert "not shown again" in result.stderr
    assert token not in result.stderr
    output = holdfast("approvals", "approve", "-", input=f"{token}\n")
    assert output.exit_code == 0, output.stderr
    assert token not in output.output
    assert (votes(store, approval.id)[0].person, votes(store, approval.id)[0].how) == ("ada", "cli")
    again = holdfast("approvals", "approve", "-", "--json", input=token)
    assert refused(again) == (4, "token_used")
    assert token not in again.output
    # The decision is Bob's, even if another person uses the token.
    link = issued(holdfast, approval.id, "--for", "bob", "--service", "https://jobs.example.com/")
    base, _, token_of_bob = link.rpartition("/")
    assert base == "https://jobs.example.com/decide"
    assert holdfast("approvals", "deny", token_of_bob, "--by", "mallory").exit_code == 0
    assert votes(store, approval.id)[1].person == "bob"
    for command in (("show", approval.id), ("list", "--state", "all")):
        assert token not in holdfast("approvals", *command, "--json").output


@pytest.mark.req("CX-6")
def test_token_without_person_needs_by_option(holdfast: Holdfast, store: Store) -> None:
    approval = asked(store.url)
    result = document(holdfast("approvals", "token", approval.id, "--json"))
    assert (result["approval_id"], result["person"], result["expires_in"]) == (approval.id, None, None)
    nameless = holdfast("approvals", "approve", result["token"], "--json")
    assert refused(nameless) == (4, "person_required")
    assert "--by" in error_of(nameless)["fix"]
    assert holdfast("approvals", "approve", result["token"], "--by", "ada").exit_code == 0
    assert votes(store, approval.id)[0].person == "ada"


@pytest.mark.req("CX-6")
def test_forged_expired_and_malformed_tokens_are_rejected(holdfast: Holdfast, store: Store) -> None:
    approval = asked(store.url, approvers=["ada"])
    short = issued(holdfast, approval.id, "--for", "ada", "--expires-in", "1h")
    forged = short[:-1] + ("x" if short[-1] != "x" else "y")
    assert refused(holdfast("approvals", "approve", forged, "--json")) == (4, "token_unknown")
    later(store, timedelta(hours=2))
    assert refused(holdfast("approvals", "approve", short, "--json")) == (4, "token_expired")
    for_another = holdfast("approvals", "token", approval.id, "--for", "mallory", "--json")
    assert refused(for_another) == (4, "not_an_approver")
    assert "no token is issued" in error_of(for_another)["message"]
    assert refused(holdfast("approvals", "token", approval.id, "--expires-in", "soon", "--json")) == (
        2,
        "invalid_duration",
    )
    # A malformed token is not printed: it may contain most of a valid one.
    for broken in (short[:-30], short.removeprefix("h"), ""):
        result = holdfast("approvals", "approve", "-", "--json", input=broken)
        assert refused(result) == (2, "invalid_id")
        assert not broken or broken[:20] not in result.output
    assert holdfast("approvals", "approve", "-", "--data", "-", input="x").exit_code == 2
    assert votes(store, approval.id) == []


@pytest.mark.slow
@pytest.mark.req("CX-6", "DP-22")
def test_token_is_read_from_stdin(store: Store) -> None:
    approval = asked(store.url, form=FORM)
    made = run("approvals", "token", approval.id, "--for", "ada", url=store.url)
    given = ("--field", "limit=5", "--field", "reason=x", "--json")
    done = run("approvals", "approve", "-", *given, url=store.url, input=made.stdout.encode())
    assert (done.returncode, done.stderr) == (0, "")
    assert '"state": "approved"' in done.stdout
