"""`holdfast jobs list`, `show` and `history`."""

from __future__ import annotations

import json
import re

import pytest

from holdfast.engine.outcome import Failed, Succeeded
from holdfast.engine.steps import RESERVED
from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, document, error_of
from tests.support.stores import BROKEN, claim, forward, open_lease, put, put_one, settle, spec, take, tries, work

UNKNOWN = "01a1de74-eb8c-70f1-843b-cac5f6817387"
ANSI = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = ("[red]x[/red]", "[/]", "[link=file:///etc]y[/link]", ":smile:", "{curly}", "%s %d", "<b>", "☃ ü 漢字", "\\[")


def ids(holdfast: Holdfast, *options: str) -> list[str]:
    result = holdfast("jobs", "list", "--json", *options)
    assert result.exit_code == 0, result.stderr
    return [job["id"] for job in document(result)]


@pytest.mark.req("CX-14", "CX-17")
def test_list_filters_jobs(holdfast: Holdfast, store: Store) -> None:
    plain, mail, tagged = put(store, spec("a"), spec("b", queue="mail", agent="ada"), spec("a", tags=("red",)))
    assert ids(holdfast) == [tagged, mail, plain]
    assert ids(holdfast, "--kind", "b") == [mail]
    assert ids(holdfast, "--queue", "mail") == [mail]
    assert ids(holdfast, "--agent", "ada") == [mail]
    assert ids(holdfast, "--tag", "red") == [tagged]
    assert ids(holdfast, "--state", "queued") == [tagged, mail, plain]
    assert ids(holdfast, "--state", "succeeded") == []
    assert ids(holdfast, "--since", "1h") == [tagged, mail, plain]
    assert ids(holdfast, "--until", "1h") == []
    assert ids(holdfast, "--since", "2020-01-01T00:00:00Z", "--until", "2020-01-02T00:00:00Z") == []


@pytest.mark.req("CX-14")
def test_count_by_state(holdfast: Holdfast, store: Store) -> None:
    put(store, spec("a"), spec("b"), spec("b"))
    work(store)
    counted = document(holdfast("jobs", "count", "--json"))
    assert {state: count for state, count in counted["counts"].items() if count} == {"queued": 2, "succeeded": 1}
    assert re.search(r"queued +2\n", holdfast("jobs", "count", "--kind", "b").stdout)
    assert document(holdfast("jobs", "count", "--state", "queued", "--json"))["counts"]["queued"] == 2


@pytest.mark.req("CX-14")
def test_job_pages_follow_each_other(holdfast: Holdfast, store: Store) -> None:
    put(store, *(spec() for _ in range(7)))
    everything = ids(holdfast)
    pages: list[list[str]] = []
    cursor: list[str] = []
    for _ in range(4):
        result = holdfast("jobs", "list", "--limit", "2", "--json", *cursor)
        pages.append([job["id"] for job in document(result)])
        cursor = ["--after", pages[-1][-1]]
        assert ("There are more: --after " + pages[-1][-1] in result.stderr) == (len(pages) < 4)
    assert [job_id for page in pages for job_id in page] == everything
    assert list(map(len, pages)) == [2, 2, 2, 1]


@pytest.mark.req("CX-14")
def test_list_prints_a_table(holdfast: Holdfast, store: Store) -> None:
    put_one(store, "pay", retry=tries(1))
    work(store, Failed("card_declined", "no\nfunds"))
    header, row = holdfast("jobs", "list").stdout.splitlines()
    assert header.split() == ["id", "kind", "state", "try", "age", "why"]
    assert row.split()[1:4] == ["pay", "dead_letter", "1"]
    assert row.endswith("card_declined: no funds")


@pytest.mark.req("JF-2")
def test_list_respects_tenant(holdfast: Holdfast, store: Store) -> None:
    mine, theirs = put_one(store), put_one(store, tenant="acme")
    assert ids(holdfast) == [mine]
    assert ids(holdfast, "--tenant", "acme") == [theirs]
    assert ids(holdfast, "--all-tenants") == [theirs, mine]
    assert "acme" in holdfast("jobs", "list", "--all-tenants").stdout


@pytest.mark.req("CX-14", "DP-22")
@pytest.mark.parametrize("options", [("--after", "nonsense"), ("--since", "whenever"), ("--until", "-1h")])
def test_list_rejects_invalid_options(holdfast: Holdfast, options: tuple[str, ...]) -> None:
    result = holdfast("jobs", "list", *options, "--json")
    assert result.exit_code == 2
    assert error_of(result)["code"] in {"invalid_id", "invalid_time"}


@pytest.mark.req("CX-14")
def test_empty_list_of_jobs(holdfast: Holdfast) -> None:
    assert document(holdfast("jobs", "list", "--json")) == []
    result = holdfast("jobs", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "No matching jobs" in result.stderr


@pytest.mark.req("CX-4", "SC-5")
def test_show_prints_timeline_attempts_and_result(holdfast: Holdfast, store: Store) -> None:
    forward(store)
    job_id = put_one(store, "pay", payload={"n": 7})
    forward(store, 1.5)
    work(store, Failed("timeout", "too slow", traceback="Traceback: here", after=60.0))
    forward(store, 60)
    store.run(store.leases.promote())
    lease = open_lease(store, "worker 2")
    (held,) = claim(store, lease)
    store.run(store.steps.save_checkpoint(held.id, lease, held.attempt, "page", "3", "*"))
    forward(store, 0.25)
    settle(store, held, Succeeded('{"paid": true}'))
    shown = holdfast("jobs", "show", job_id)
    assert shown.exit_code == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    events = lines[lines.index(["Timeline"]) + 2 : lines.index(["Attempts"]) - 1]
    assert [words[words.index("→") - 1 :] for words in events] == [
        ["enqueue", "→", "queued", "tester"],
        ["queued", "→", "in_progress", "1", "worker-1"],
        ["in_progress", "→", "failed", "1", "worker-1", "timeout:", "too", "slow"],
        ["failed", "→", "retry_waiting", "1", "worker-1", "again", "in", "1", "m"],
        ["retry_waiting", "→", "queued", "1", "maintenance"],
        ["queued", "→", "in_progress", "2", "worker", "2"],
        ["in_progress", "→", "succeeded", "2", "worker", "2"],
    ]
    assert [words[1 : words.index("take")] for words in events if "take" in words] == [["+1.5", "s"], ["+0", "ms"]]
    for part in ('"n": 7', '"paid": true', "page  3", "2 started, 0 lost workers", "state", "succeeded"):
        assert part in shown.stdout
    assert holdfast("jobs", "history", job_id).stdout.splitlines()[1:] == [
        line for line in shown.stdout.splitlines() if "→" in line and "from" not in line
    ]


@pytest.mark.req("CX-4")
def test_a_long_checkpoint_takes_one_line(holdfast: Holdfast, store: Store) -> None:
    job_id = put_one(store)
    lease = open_lease(store)
    (held,) = claim(store, lease)
    messages = json.dumps([{"role": "user", "content": "hello " * 20}] * 50)
    store.run(store.steps.save_checkpoint(held.id, lease, held.attempt, "messages", messages, "*"))
    shown = holdfast("jobs", "show", job_id).stdout.splitlines()
    (line,) = (line for line in shown if "hello" in line)
    assert line.startswith("messages  [{")
    assert line.endswith("…")
    assert len(document(holdfast("jobs", "show", job_id, "--json"))["checkpoints"]["messages"]) == 50


@pytest.mark.req("CX-4")
def test_a_lost_worker_is_counted_and_its_error_is_the_last_one(holdfast: Holdfast, store: Store) -> None:
    job_id = put_one(store)
    lease = open_lease(store)
    claim(store, lease)
    forward(store, 3600)
    store.run(store.leases.recover())
    store.run(store.leases.promote())
    claim(store, open_lease(store))
    shown = [" ".join(line.split()) for line in holdfast("jobs", "show", job_id).stdout.splitlines()]
    assert "attempts 2 started, 1 lost worker" in shown
    assert any(line.startswith("last error worker_lost: ") for line in shown)
    assert not any(line.startswith("error worker_lost") for line in shown)
    assert "worker_lost" not in holdfast("jobs", "list").stdout, "the error of an earlier attempt is no reason to run"
    explained = holdfast("why", job_id).stdout.splitlines()
    assert [line[:2] for line in explained[1:]] == ["- ", "  ", "  ", "  "], "one line per fact"


@pytest.mark.req("SC-5")
def test_job_that_succeeded_after_an_error_shows_none(holdfast: Holdfast, store: Store) -> None:
    job_id = put_one(store)
    work(store, BROKEN)
    assert "error at" in holdfast("jobs", "show", job_id).stdout
    forward(store, 600)
    store.run(store.leases.promote())
    work(store)
    assert "error at" not in holdfast("jobs", "show", job_id).stdout


@pytest.mark.req("CX-4")
def test_show_prints_json(holdfast: Holdfast, store: Store) -> None:
    job_id = put_one(store, payload={"n": 7}, retry=tries(1))
    work(store, BROKEN)
    result = document(holdfast("jobs", "show", job_id, "--json"))
    keys = {
        "job",
        "history",
        "attempts",
        "artifacts",
        "checkpoints",
        "result",
        "agent",
        "steps",
        "approval",
        "made_from",
    }
    keys |= {"parents", "chain", "group", "remade", "references", "liveness", "lease_expired_at", "votes", "forks"}
    assert set(result) == keys
    assert (result["job"]["id"], result["job"]["state"], result["job"]["payload"]) == (job_id, "dead_letter", {"n": 7})
    assert [event["type"] for event in result["history"]] == ["enqueue", "take", "fail", "dead_letter"]
    assert result["history"][0]["at"].endswith("Z")
    assert [attempt["outcome"] for attempt in result["attempts"]] == ["failed"]
    assert (result["result"], result["lease_expired_at"]) == (None, None)
    assert document(holdfast("jobs", "history", job_id, "--json")) == result["history"]


@pytest.mark.req("SC-5")
def test_show_prints_traceback_of_dead_letter(holdfast: Holdfast, store: Store) -> None:
    job_id = put_one(store, retry=tries(1))
    work(store, Failed("broken", "it broke", traceback='File "pay.py", line 3\n[red]boom[/red]'))
    shown = holdfast("jobs", "show", job_id).stdout
    assert 'File "pay.py", line 3\n[red]boom[/red]\n' in shown


@pytest.mark.req("DP-3")
@pytest.mark.parametrize("command", ["show", "history"])
def test_unknown_job_is_not_found(holdfast: Holdfast, store: Store, command: str) -> None:
    theirs = put_one(store, tenant="acme")
    for job_id in (UNKNOWN, theirs):
        result = holdfast("jobs", command, job_id, "--json")
        assert (result.exit_code, error_of(result)["code"]) == (3, "not_found")
    assert holdfast("jobs", command, theirs, "--all-tenants").exit_code == 0
    assert holdfast("jobs", command, theirs[:8]).exit_code == 3


@pytest.mark.slow
@pytest.mark.req("DP-22")
def test_hostile_text_is_printed_literally(holdfast: Holdfast, store: Store) -> None:
    jobs = {}
    for text in HOSTILE:
        jobs[text] = put_one(store, text, payload={text: text}, tags=(text,), retry=tries(1), agent=text)
        work(store, Failed(text, text, traceback=text))
    listed, events = holdfast("jobs", "list").stdout, holdfast("events").stdout
    for text, job_id in jobs.items():
        assert f"{job_id}  {text}  " in listed
        assert f"{text}: {text}\n" in listed
        assert f"{job_id}  {text}  enqueue" in events
        assert holdfast("jobs", "show", job_id).stdout.count(text) >= 6
        assert document(holdfast("jobs", "show", job_id, "--json"))["job"]["payload"] == {text: text}


@pytest.mark.slow
@pytest.mark.req("DP-22")
def test_hostile_text_is_printed_literally_on_a_terminal(
    holdfast: Holdfast, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "250")
    for text in HOSTILE:
        job_id = put_one(store, text, payload={text: text}, retry=tries(1))
        work(store, Failed("broken", text, traceback=text))
        shown = holdfast("jobs", "show", job_id)
        assert shown.exit_code == 0
        assert "\x1b[" in shown.stdout
        assert ANSI.sub("", shown.stdout).count(text) >= 6
    assert all(f" {text} " in ANSI.sub("", holdfast("jobs", "list").stdout) for text in HOSTILE)


@pytest.mark.req("DP-22")
def test_control_characters_are_escaped(holdfast: Holdfast, store: Store) -> None:
    evil = "a\x1b]0;owned\x07\x1b[2Jb\rc\u202ed\x9b1m"
    job_id = put_one(store, payload={"x": evil}, retry=tries(1))
    work(store, Failed("broken", evil, traceback=evil))
    for command in (("jobs", "list"), ("jobs", "show", job_id), ("jobs", "history", job_id), ("events",), ("health",)):
        for as_json in ((), ("--json",)):
            printed = holdfast(*command, *as_json).output
            assert not set(printed) & set("\x1b\x07\r\u202e\x9b"), command
    assert "\\x1b" in holdfast("jobs", "list").stdout


@pytest.mark.req("DP-22")
def test_large_payload_is_truncated_except_in_json(holdfast: Holdfast, store: Store) -> None:
    job_id = put_one(store, payload={"x": "y" * 100_000})
    shown = holdfast("jobs", "show", job_id).stdout
    assert len(shown) < 6_000
    assert "--json prints them" in shown
    assert len(document(holdfast("jobs", "show", job_id, "--json"))["job"]["payload"]["x"]) == 100_000


@pytest.mark.req("CX-8")
def test_progress_is_shown_apart_from_checkpoints(holdfast: Holdfast, store: Store) -> None:
    put_one(store)
    taken = take(store)
    save = store.steps.save_checkpoint
    for name, value in ((RESERVED, '{"fraction": 0.42, "message": "page 7", "attempt": 1}'), ("place", "7")):
        store.run(save(taken.id, taken.lease, taken.attempt, name, value, "*"))
    shown = holdfast("jobs", "show", taken.id).stdout
    assert "42 %: page 7 (attempt 1)" in shown
    assert RESERVED not in shown
    assert "place  7" in shown
    assert RESERVED in document(holdfast("jobs", "show", taken.id, "--json"))["checkpoints"]


@pytest.mark.req("CX-14", "CX-2")
def test_delayed_job_is_marked_and_ids_may_be_abbreviated(holdfast: Holdfast, store: Store) -> None:
    late, other = put(store, spec(delay=3600), spec())
    listed = {line.split()[0]: line for line in holdfast("jobs", "list").stdout.splitlines()[1:]}
    assert "delayed until" in listed[late]
    assert "delayed" not in listed[other]
    for length in range(6, 36):
        found = holdfast("jobs", "show", late[:length], "--json")
        if not other.startswith(late[:length]):
            assert document(found)["job"]["id"] == late
        else:
            assert found.exit_code == 2
            assert "several job ids begin with" in found.stderr
    assert holdfast("jobs", "show", "ffffff").exit_code == 3
    assert holdfast("jobs", "cancel", late[:-1]).exit_code == 0


@pytest.mark.req("SC-9")
def test_schedule_preview_needs_no_database(bare: Holdfast) -> None:
    result = bare(
        "schedules", "preview", "--timing", "0 9 * * MON", "--count", "2", "--url", "sqlite:////nowhere/jobs.db"
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.count(" 09:00") >= 2


@pytest.mark.req("DP-8", "DP-19")
def test_show_says_that_the_worker_of_an_attempt_is_lost(holdfast: Holdfast, store: Store) -> None:
    forward(store)
    running, claimed = put(store, spec(), spec())
    lease = open_lease(store, "worker-7", ttl=30)
    claim(store, lease)
    claim(store, lease, begin=False)
    shown = holdfast("jobs", "show", running).stdout
    assert "running" in shown
    assert "worker lost" not in shown
    assert document(holdfast("jobs", "show", running, "--json"))["lease_expired_at"] is None
    forward(store, 40)
    for job_id, state in ((running, "in_progress"), (claimed, "leased")):
        shown = " ".join(holdfast("jobs", "show", job_id).stdout.split())
        assert re.search(r"worker lost, lease expired \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, waiting for take-over", shown)
        assert "running" not in shown
        result = document(holdfast("jobs", "show", job_id, "--json"))
        assert result["job"]["state"] == state, "the stored state is not changed"
        assert result["lease_expired_at"].endswith("Z")
    store.run(store.leases.recover())
    assert "worker lost" not in holdfast("jobs", "show", running).stdout
