"""Steps on the command line: finished steps, current waits, and redriving from a step."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import Backoff, Retry
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, document, error_of
from tests.cli.durable_jobs import asked, begun, go_on
from tests.cli.test_approvals import EVIL, words
from tests.cli.test_jobs import HOSTILE
from tests.support.stores import BROKEN, LATER, forward, history, put_one, state_of, tries, work

pytestmark = pytest.mark.req("HF-6")

UNKNOWN = "01a1de74-eb8c-70f1-843b-cac5f6817387"
SLOW = Retry(max_attempts=3, backoff=Backoff(base=60, jitter=False))


def shown(holdfast: Holdfast, job_id: str) -> list[str]:
    result = holdfast("jobs", "show", job_id)
    assert result.exit_code == 0
    return list(map(words, result.stdout.splitlines()))


def steps(holdfast: Holdfast, job_id: str) -> list[str]:
    lines = shown(holdfast, job_id)
    table = lines[lines.index("Steps") + 2 :]
    return table[: table.index("")]


def why(holdfast: Holdfast, job_id: str) -> str:
    """The `why` line of `jobs show`."""
    (line,) = (line.removeprefix("why ") for line in shown(holdfast, job_id) if line.startswith("why "))
    return line


def listed(holdfast: Holdfast, job_id: str) -> str:
    (row,) = (words(line) for line in holdfast("jobs", "list").stdout.splitlines() if line.startswith(job_id))
    return row


def at(store: Store, seconds: float) -> str:
    moment = store.run(store.clock.now()) + timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"


def test_job_waiting_for_an_event_is_explained(holdfast: Holdfast, store: Store) -> None:
    forward(store)
    until = at(store, 3600)
    job_id = begun(
        store.url,
        ("step", "charge"),
        ("caught", "ship"),
        ("event", ("payment.settled", {"invoice": 7, "ref": "a b"}, "1h")),
    )
    assert why(holdfast, job_id) == f'waits for event payment.settled with invoice = 7, ref = "a b" until {until}'
    assert listed(holdfast, job_id).endswith(f"waits for event payment.settled until {until}")
    one, two, three = steps(holdfast, job_id)
    assert one.startswith("1 step charge done 1 ")
    assert one.endswith(' "charge"')
    assert two.startswith("2 step ship failed 1 ")
    assert two.endswith("ConnectionError: ship is away")
    assert three == f"3 event payment.settled waiting until {until} 1"
    holdfast("send-event", "payment.settled", "invoice=7", "ref=a b")
    assert steps(holdfast, job_id)[2] == '3 event payment.settled done 1 0 ms {"invoice": 7, "ref": "a b"}'
    assert not any(line.startswith("why ") for line in shown(holdfast, job_id))


def test_wait_without_timeout_shows_no_due_time(holdfast: Holdfast, store: Store) -> None:
    job_id = begun(store.url, ("event", ("go", None, None)))
    lines = shown(holdfast, job_id)
    assert "why waits for event go" in lines
    assert "1 event go waiting 1" in steps(holdfast, job_id)
    assert listed(holdfast, job_id).endswith(" waits for event go")
    assert not any(line.startswith("due ") or "again at" in line for line in lines)


def test_sleeping_job_is_explained(holdfast: Holdfast, store: Store) -> None:
    forward(store)
    until = at(store, 7200)
    job_id = begun(store.url, ("sleep", "2h"))
    assert why(holdfast, job_id) == f"sleeps until {until}"
    assert listed(holdfast, job_id).endswith(f" sleeps until {until}")
    assert steps(holdfast, job_id) == [f"1 sleep sleep sleeping until {until} 1"]
    assert holdfast("jobs", "cancel", job_id).exit_code == 0
    assert steps(holdfast, job_id) == ["1 sleep sleep not finished 1"]
    forward(store, 7201)
    assert steps(holdfast, job_id) == ["1 sleep sleep done 1 2 h"]


@pytest.mark.req("CX-5")
def test_job_waiting_for_approval_is_explained(holdfast: Holdfast, store: Store) -> None:
    forward(store)
    expires = at(store, 3600)
    job_id = begun(store.url, ("approval", "big-payment"))
    approval_id = document(holdfast("approvals", "list", "--json"))[0]["id"]
    assert (
        why(holdfast, job_id) == f"waits for approval: big-payment ({approval_id}), 0 of 2 approvals, expires {expires}"
    )
    assert listed(holdfast, job_id).endswith(" waits for approval: big-payment")
    assert steps(holdfast, job_id) == ["1 approval big-payment requested 1"]
    for person in ("ada", "bob"):
        assert f"{0 if person == 'ada' else 1} of 2 approvals" in why(holdfast, job_id)
        holdfast("approvals", "approve", approval_id, "--by", person, "--comment", f"{person} agrees")
    assert steps(holdfast, job_id) == ["1 approval big-payment done 1 0 ms approved by ada, bob: bob agrees"]


def test_step_waiting_for_retry_is_explained(holdfast: Holdfast, store: Store) -> None:
    forward(store)
    again = at(store, 60)
    job_id = begun(store.url, ("fails", ("fetch", SLOW)))
    assert why(holdfast, job_id) == f"step fetch is tried again at {again}, after 1 try: ConnectionError: fetch is away"
    assert listed(holdfast, job_id).endswith(" step fetch failed: fetch is away")
    assert steps(holdfast, job_id) == ["1 step fetch to be tried again 1 ConnectionError: fetch is away"]


def test_waiting_job_without_steps_has_no_explanation(holdfast: Holdfast, store: Store) -> None:
    snoozed = put_one(store)
    work(store, LATER)
    failed = put_one(store, retry=tries(5))
    work(store, BROKEN)
    for job_id in (snoozed, failed):
        assert not any(line.startswith("why ") or line == "Steps" for line in shown(holdfast, job_id))
    assert listed(holdfast, failed).endswith(" broken: it broke")


def test_steps_are_printed_as_json(holdfast: Holdfast, store: Store) -> None:
    approval = asked(store.url, summary="Pay?")
    result = document(holdfast("jobs", "show", approval.job_id, "--json"))
    assert (result["approval"]["id"], result["approval"]["approvals"]) == (approval.id, 0)
    assert [(step["n"], step["kind"], step["name"], step["ended_at"]) for step in result["steps"]] == [
        (1, "approval", "big-payment", None)
    ]
    waits = document(holdfast("jobs", "show", begun(store.url, ("event", ("go", {"n": 7}, None))), "--json"))
    assert (waits["steps"][0]["wanted"], waits["approval"]) == ({"n": 7}, None)


@pytest.mark.req("DP-22")
def test_hostile_step_names_and_values_are_escaped(holdfast: Holdfast, store: Store) -> None:
    text = " ".join(HOSTILE)
    job_id = begun(store.url, ("step", text), ("caught", text), ("event", (text[:90], {text: EVIL}, "1h")))
    for command in (("jobs", "show", job_id), ("jobs", "list")):
        for as_json in ((), ("--json",)):
            printed = holdfast(*command, *as_json).output
            assert not set(printed) & set("\x1b\x07\r\u202e\x9b"), command
    printed = holdfast("jobs", "show", job_id).stdout
    assert printed.count(text[:79]) >= 4
    assert f"waits for event {text[:90]} with {text} = " in printed
    assert f"waits for event {text[:90]}" in holdfast("jobs", "list").stdout


@pytest.mark.req("DP-22")
def test_long_step_value_is_truncated_except_in_json(holdfast: Holdfast, store: Store) -> None:
    long = "y" * 150
    job_id = begun(store.url, ("step", long), ("event", ("go", None, None)))
    assert long not in holdfast("jobs", "show", job_id).stdout
    assert document(holdfast("jobs", "show", job_id, "--json"))["steps"][0]["value"] == long


PLAN = (("step", "charge"), ("step", "page"), ("step", "page"), ("step", "ship"), ("fails", "tell"))
MENDED = (*PLAN[:-1], ("step", "tell"))


@pytest.mark.req("DP-15")
@pytest.mark.parametrize(
    ("given", "done", "reason"),
    [
        ((), ["tell"], None),
        (("--from-step", "4"), ["ship", "tell"], "from step 4 (ship)"),
        (("--from-step", "ship", "--reason", "lost"), ["ship", "tell"], "from step 4 (ship): lost"),
        (("--from-step", "1"), ["charge", "page", "page", "ship", "tell"], "from step 1 (charge)"),
        (("--from-step", "0"), ["charge", "page", "page", "ship", "tell"], "from step 0"),
    ],
)
def test_redrive_from_a_step_repeats_later_steps(
    holdfast: Holdfast, store: Store, given: tuple[str, ...], done: list[str], reason: str | None
) -> None:
    job_id = begun(store.url, *PLAN)
    assert state_of(store, job_id) is State.DEAD_LETTER
    result = holdfast("jobs", "redrive", job_id, *given)
    assert (result.exit_code, result.stdout.splitlines()[1].split()) == (0, [job_id, "queued", "redriven"])
    last = history(store, job_id)[-1]
    assert (last.type, last.meta.get("reason")) == ("redrive", reason)
    assert go_on(store.url, *MENDED) == done
    assert state_of(store, job_id) is State.SUCCEEDED


@pytest.mark.slow
@pytest.mark.req("DP-15", "DP-3")
def test_redrive_from_an_invalid_step_is_refused(holdfast: Holdfast, store: Store) -> None:
    job_id, waits = begun(store.url, *PLAN), begun(store.url, ("sleep", "1h"))
    before = store.run(store.steps.list(job_id, "default"))

    def refused(*given: str) -> tuple[int, list[str]]:
        result = holdfast("jobs", "redrive", *given, "--json")
        return result.exit_code, [verdict["reason"] for verdict in document(result)]

    assert refused(job_id, "--from-step", "6") == (4, ["no_such_step"])
    assert refused(job_id, "--from-step", "pack") == (4, ["no_such_step"])
    assert refused(job_id, "--from-step", "page") == (4, ["step_ambiguous"])
    assert refused(waits, "--from-step", "1") == (4, ["not_dead"])
    assert refused(UNKNOWN, "--from-step", "1") == (3, ["not_found"])
    assert refused(job_id, "--from-step", "1", "--tenant", "acme") == (3, ["not_found"])
    assert "several of its steps have this name" in holdfast("jobs", "redrive", job_id, "--from-step", "page").stdout
    bad = holdfast("jobs", "redrive", job_id, "--from-step", " ", "--json")
    assert (bad.exit_code, error_of(bad)["code"]) == (2, "invalid_name")
    assert store.run(store.steps.list(job_id, "default")) == before
    assert [step.n for step in store.run(store.steps.list(waits, "default"))] == [1]
    assert state_of(store, job_id) is State.DEAD_LETTER


@pytest.mark.slow
@pytest.mark.req("DP-15")
def test_several_jobs_are_redriven_from_the_same_step(holdfast: Holdfast, store: Store) -> None:
    jobs = [begun(store.url, *PLAN) for _ in range(2)]
    short = begun(store.url, ("fails", "charge"))
    given = ("--from-step", "ship", "--max-attempts", "7")
    result = holdfast("jobs", "redrive", jobs[1], short, jobs[0], *given, "--json")
    assert [(verdict["id"], verdict["reason"]) for verdict in document(result)] == [
        (jobs[1], None),
        (short, "no_such_step"),
        (jobs[0], None),
    ]
    assert result.exit_code == 4
    assert sorted(go_on(store.url, *MENDED)) == ["ship", "ship", "tell", "tell"]
    assert {state_of(store, job_id) for job_id in jobs} == {State.SUCCEEDED}
