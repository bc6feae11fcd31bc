"""`holdfast tick` as a process: what cron calls."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.cli.crew import Crew
from tests.cli.processes import call, run, started
from tests.support.stores import history, job, put, put_one, spec, state_of
from tests.support.waiting import until


@pytest.mark.req("HK-1")
def test_it_runs_up_to_the_limit_and_prints_a_summary(store: Store, shop: Path) -> None:
    ids = put(store, *(spec("add", payload={"a": n}) for n in range(5)), spec("add", payload={"a": 9}, queue="mail"))
    done = run("tick", "shop:app", "--limit", "3", "--json", url=store.url, cwd=shop)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["taken"], summary["succeeded"], summary["more"]) == (3, 3, True)
    assert summary["ids"] == ids[:3]
    done = run("tick", "shop:app", "--queues", "mail:2,default", url=store.url, cwd=shop)
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()][:2] == [["taken", "3"], ["succeeded", "3"]]
    assert done.stdout.splitlines()[-1].split() == ["more", "no"]
    assert {state_of(store, job_id) for job_id in ids} == {State.SUCCEEDED}


@pytest.mark.req("HK-1", "SC-13")
def test_what_is_not_done_in_time_is_handed_back(store: Store, shop: Path) -> None:
    """A thread that will not end does not keep the process either."""
    ids = put(store, spec("nap", payload={"seconds": 600}), spec("stuck"))

    def tick() -> dict[str, int]:
        done = call("tick", "shop:app", "--timeout", "300ms", "--json", url=store.url, cwd=shop)
        assert done.returncode == 0, done.stderr
        summary: dict[str, int] = json.loads(done.stdout)
        return summary

    while not (summary := tick())["taken"]:
        pass  # on a busy machine the time is up before it has looked
    assert summary["handed_back"] == 2
    assert {state_of(store, job_id) for job_id in ids} == {State.RETRY_WAITING}


@pytest.mark.slow
@pytest.mark.req("HK-1", "SC-13")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_as_if_the_time_were_up(store: Store, tmp_path: Path, number: signal.Signals) -> None:
    crew = Crew(tmp_path / "crew")
    job_id = put_one(store, "hold")
    with started(["tick", "crew:app", "--json"], cwd=crew.folder, url=store.url) as process:
        until(lambda: len(crew.begun) == 1, "the job is running")
        process.send_signal(number)
        said, messages = process.communicate(timeout=20)
    assert process.returncode == 0, messages
    assert json.loads(said)["handed_back"] == 1
    assert history(store, job_id)[-1].meta["reason"] == "tick_over"


@pytest.mark.slow
@pytest.mark.req("HK-1", "CX-15", "DP-8")
def test_killed_half_way_the_next_recovers(store: Store, tmp_path: Path) -> None:
    crew = Crew(tmp_path / "crew")
    job_id = put_one(store, "hold")
    with started(["tick", "crew:app", "--lease", "1s"], cwd=crew.folder, url=store.url) as process:
        until(lambda: len(crew.begun) == 1, "the job is running")
        process.kill()
        process.wait(timeout=10)
    crew.let_go()

    def again() -> bool:
        done = call("tick", "crew:app", "--json", url=store.url, cwd=crew.folder)
        assert done.returncode == 0, done.stderr
        return bool(json.loads(done.stdout)["taken"])

    until(again, "a later tick has taken the job up")
    found = job(store, job_id)
    assert (found.state, found.crashes, found.attempt) == (State.SUCCEEDED, 1, 2)


@pytest.mark.req("DP-22")
@pytest.mark.parametrize(
    "arguments",
    [("nowhere:app",), ("shop:app", "--limit", "0"), ("shop:app", "--timeout", "0"), ("shop:app", "--queues", "a:0")],
)
def test_a_wrong_call_exits_with_2(sqlite_url: str, shop: Path, arguments: tuple[str, ...]) -> None:
    done = call("tick", *arguments, url=sqlite_url, cwd=shop)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


@pytest.mark.req("DP-22")
def test_a_database_that_is_away_is_exit_code_1(shop: Path) -> None:
    done = call("tick", "shop:app", url="postgresql://nobody@127.0.0.1:1/none", cwd=shop)
    assert (done.returncode, done.stdout) == (1, "")
    assert "[store_unavailable]" in done.stderr
