"""`holdfast approvals list` and `show`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, document, error_of
from tests.cli.durable_jobs import FORM, asked
from tests.cli.processes import run
from tests.cli.test_jobs import ANSI, HOSTILE
from tests.support.stores import forward

pytestmark = pytest.mark.req("CX-5", "CX-7")

UNKNOWN = "01a1de74-eb8c-70f1-843b-cac5f6817387"
EVIL = "a\x1b]0;owned\x07\x1b[2Jb\rc\u202ed\x9b1m"


def ids(holdfast: Holdfast, *options: str) -> list[str]:
    result = holdfast("approvals", "list", "--json", *options)
    assert result.exit_code == 0, result.stderr
    return [approval["id"] for approval in document(result)]


def words(line: str) -> str:
    return " ".join(line.split())


def test_open_approvals_are_listed_oldest_first(holdfast: Holdfast, store: Store) -> None:
    forward(store)
    first = asked(store.url, approvers=["ada", "bob"], quorum=2, expires_in="2h")
    forward(store, 60)
    second = asked(store.url, "refund", summary="Give it\nback", not_requester=True)
    assert holdfast("approvals", "approve", first.id, "--by", "ada").exit_code == 0
    forward(store, 60)
    header, *rows = holdfast("approvals", "list").stdout.splitlines()
    assert header.split() == ["id", "name", "age", "left", "approvals", "approvers", "summary"]
    assert words(rows[0]) == f"{first.id} big-payment 2 m 1 h 58 m 1/2 ada, bob Pay 12,000"
    assert words(rows[1]) == f"{second.id} refund 1 m 0/1 anyone, but not tester Give it back"


@pytest.mark.slow
def test_list_filters_approvals(holdfast: Holdfast, store: Store) -> None:
    one = asked(store.url, approvers=["ada"], escalate_after="1h", escalate_to=["boss"])
    two = asked(store.url, "refund")
    three = asked(store.url)
    assert holdfast("approvals", "deny", three.id).exit_code == 0
    assert ids(holdfast) == [one.id, two.id]
    assert ids(holdfast, "--approver", "ada") == [one.id, two.id]
    assert ids(holdfast, "--approver", "boss") == [two.id]
    assert ids(holdfast, "--name", "refund") == [two.id]
    assert ids(holdfast, "--job", one.job_id.upper()) == [one.id]
    assert ids(holdfast, "--state", "denied") == [three.id]
    assert ids(holdfast, "--state", "approved") == []
    assert ids(holdfast, "--state", "all") == [one.id, two.id, three.id]
    assert "denied" in holdfast("approvals", "list", "--state", "all").stdout


def test_approval_pages_follow_each_other(holdfast: Holdfast, store: Store) -> None:
    everything = [asked(store.url, f"approval {n}").id for n in range(3)]
    first = holdfast("approvals", "list", "--limit", "2", "--json")
    assert [approval["id"] for approval in document(first)] == everything[:2]
    assert f"There are more: --after {everything[1]}" in first.stderr
    last = holdfast("approvals", "list", "--limit", "2", "--after", everything[1], "--json")
    assert [approval["id"] for approval in document(last)] == everything[2:]
    assert last.stderr == ""


@pytest.mark.req("JF-1")
def test_list_and_show_respect_tenant(holdfast: Holdfast, store: Store) -> None:
    mine, theirs = asked(store.url), asked(store.url, tenant="acme")
    assert ids(holdfast) == [mine.id]
    assert ids(holdfast, "--tenant", "acme") == [theirs.id]
    assert ids(holdfast, "--all-tenants") == [mine.id, theirs.id]
    assert "acme" in holdfast("approvals", "list", "--all-tenants").stdout
    hidden = holdfast("approvals", "show", theirs.id, "--json")
    assert (hidden.exit_code, error_of(hidden)["code"]) == (3, "not_found")
    shown = holdfast("approvals", "show", theirs.id, "--all-tenants")
    assert shown.exit_code == 0
    assert f"holdfast approvals approve {theirs.id} --tenant acme" in shown.stderr


def test_empty_list_of_approvals(holdfast: Holdfast) -> None:
    assert document(holdfast("approvals", "list", "--json")) == []
    result = holdfast("approvals", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "No open approvals" in result.stderr


@pytest.mark.parametrize("options", [("--after", "nonsense"), ("--job", "nonsense"), ("--state", "lost")])
def test_list_rejects_invalid_filters(holdfast: Holdfast, options: tuple[str, ...]) -> None:
    result = holdfast("approvals", "list", *options, "--json")
    assert result.exit_code == 2
    assert error_of(result)["code"] in {"invalid_id", "usage"}


def test_show_prints_everything_about_an_approval(holdfast: Holdfast, store: Store) -> None:
    forward(store)
    approval = asked(
        store.url,
        data={"to": "ACME"},
        form=FORM,
        approvers=["ada", "bob"],
        quorum=2,
        expires_in="2h",
        remind_every="30m",
        escalate_after="1h",
        escalate_to=["boss"],
    )
    answer = ("--field", "limit=5", "--field", "reason=spring", "--comment", "fine")
    assert holdfast("approvals", "approve", approval.id, "--by", "ada", *answer).exit_code == 0
    forward(store, 90)
    shown = holdfast("approvals", "show", approval.id)
    assert shown.exit_code == 0
    facts = dict(line.split(None, 1) for line in shown.stdout.splitlines()[1:9])
    assert facts["summary"] == "Pay 12,000"
    assert facts["state"] == "open"
    assert facts["requested"].endswith("1 m 30 s ago")
    assert facts["approvers"] == "ada, bob"
    assert facts["approvals"] == "1 of 2"
    assert facts["expires"].endswith("in 1 h 58 m; then it is denied")
    assert "0 so far, the next " in facts["reminders"]
    assert facts["escalation"].startswith("not yet; ")
    lines = list(map(words, shown.stdout.splitlines()))
    assert f"job pay {approval.job_id} waiting_for_approval, enqueued by tester" in lines
    assert '"to": "ACME"' in lines
    assert "limit whole number yes 5 at least 1, at most 1000 in euros" in lines
    assert "reason text yes spring" in lines
    assert "urgent yes or no no" in lines
    assert "colour text or nothing no red, green" in lines
    assert lines[-1].endswith('ada approve cli fine {"limit": 5, "reason": "spring"}')
    wanted = f"  holdfast approvals approve {approval.id} --by WHO --field limit=5 --field reason=spring\n"
    assert wanted in shown.stderr
    assert f"  holdfast approvals deny {approval.id} --by WHO --comment '…'\n" in shown.stderr


def test_show_prints_json_and_decided_approvals(holdfast: Holdfast, store: Store) -> None:
    approval = asked(store.url, data={"n": 7}, approvers=["ada"], expires_in="1h", on_deny="resume")
    result = document(holdfast("approvals", "show", approval.id, "--json"))
    assert set(result) == {"approval", "votes", "job"}
    assert (result["approval"]["data"], result["approval"]["approvals"], result["votes"]) == ({"n": 7}, 0, [])
    assert result["job"]["id"] == approval.job_id
    holdfast("approvals", "deny", approval.id, "--by", "ada")
    shown = holdfast("approvals", "show", approval.id)
    assert "To decide it" not in shown.stderr
    assert "expires" not in shown.stdout
    assert "decided" in shown.stdout
    assert document(holdfast("approvals", "show", approval.id, "--json"))["votes"][0]["person"] == "ada"


def test_form_without_named_fields_is_shown_as_schema(holdfast: Holdfast, store: Store) -> None:
    approval = asked(store.url, form={"type": "object", "minProperties": 1})
    shown = holdfast("approvals", "show", approval.id)
    assert '"minProperties": 1' in shown.stdout
    assert "--data '{…}'" in shown.stderr


def test_unknown_approval_is_not_found(holdfast: Holdfast, store: Store) -> None:
    approval = asked(store.url)
    for other_id in (UNKNOWN, approval.job_id):
        result = holdfast("approvals", "show", other_id, "--json")
        assert (result.exit_code, error_of(result)["code"]) == (3, "not_found")
    assert "approvals list --job" in holdfast("approvals", "show", approval.job_id).stderr
    bad = holdfast("approvals", "show", approval.id[:5], "--json")
    assert (bad.exit_code, error_of(bad)["code"]) == (2, "invalid_id")


@pytest.mark.req("DP-22")
@pytest.mark.parametrize("terminal", [False, True])
def test_hostile_text_is_printed_literally(
    holdfast: Holdfast, store: Store, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "1000")
    text = " ".join(HOSTILE)
    form = {"properties": {text: {"type": text, "enum": [text], "description": text}}, "required": [text]}
    approval = asked(store.url, text, summary=text, data={text: text}, approvers=[text, "ada"], quorum=2, form=form)
    options = ("--by", text, "--comment", text, "--data", json.dumps({text: text}))
    result = holdfast("approvals", "approve", approval.id, *options)
    assert result.exit_code == 0, result.stderr
    listed = ANSI.sub("", holdfast("approvals", "list", "--name", text).stdout)
    assert listed.count(text) == 3
    shown = holdfast("approvals", "show", approval.id)
    assert shown.exit_code == 0
    assert ANSI.sub("", shown.stdout).count(text) == 10  # besides JSON documents, where it is escaped
    assert document(holdfast("approvals", "show", approval.id, "--json"))["approval"]["data"] == {text: text}


@pytest.mark.req("DP-22")
def test_control_characters_are_escaped(holdfast: Holdfast, store: Store) -> None:
    form = {"properties": {EVIL: {"type": [EVIL], "enum": [EVIL], "description": EVIL, "pattern": EVIL}}}
    approval = asked(store.url, summary=EVIL, data={EVIL: EVIL}, form=form, quorum=2)
    result = holdfast("approvals", "approve", approval.id, "--comment", EVIL, "--data", "{}")
    assert result.exit_code == 0
    for command in (("list",), ("show", approval.id)):
        for as_json in ((), ("--json",)):
            printed = holdfast("approvals", *command, *as_json).output
            assert not set(printed) & set("\x1b\x07\r\u202e\x9b"), command
    assert "\\x1b" in holdfast("approvals", "list").stdout


@pytest.mark.slow
@pytest.mark.req("DP-22")
def test_list_prints_one_line_per_approval_into_a_pipe(store: Store) -> None:
    approval = asked(store.url, summary="Pay " + "and pay " * 30, approvers=[f"person {n}" for n in range(9)])
    done = run("approvals", "list", url=store.url)
    header, row = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert header.startswith("id ")
    assert row.startswith(approval.id)
    assert "person 8" in row
    assert "\x1b" not in done.stdout


@pytest.mark.req("DP-22")
def test_large_question_is_truncated_except_in_json(holdfast: Holdfast, store: Store) -> None:
    data: Any = {"x": "y" * 60_000}
    approval = asked(store.url, data=data, summary="z" * 2_000)
    shown = holdfast("approvals", "show", approval.id).stdout
    assert len(shown) < 8_000
    assert "--json prints them" in shown
    assert document(holdfast("approvals", "show", approval.id, "--json"))["approval"]["data"] == data
    assert len(holdfast("approvals", "list").stdout) < 1_000
