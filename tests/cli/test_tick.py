"""`holdfast tick` as a process, as cron runs it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.cli.processes import call, run, started
from tests.cli.worker_program import Crew
from tests.support.stores import history, job, put, put_one, spec, state_of
from tests.support.waiting import until


@pytest.mark.req("HK-1")
def test_tick_runs_jobs_up_to_limit_and_prints_summary(store: Store, shop: Path) -> None:
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
def test_unfinished_jobs_are_handed_back_after_timeout(store: Store, shop: Path) -> None:
    """A stuck thread does not keep the process alive either."""
    ids = put(store, spec("nap", payload={"seconds": 600}), spec("stuck"))

    def tick() -> dict[str, int]:
        done = call("tick", "shop:app", "--timeout", "300ms", "--json", url=store.url, cwd=shop)
        assert done.returncode == 0, done.stderr
        summary: dict[str, int] = json.loads(done.stdout)
        return summary

    while not (summary := tick())["taken"]:
        pass  # on a busy machine the time is up before the first claim
    assert summary["handed_back"] == 2
    assert {state_of(store, job_id) for job_id in ids} == {State.RETRY_WAITING}


@pytest.mark.slow
@pytest.mark.req("HK-1", "SC-13")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_tick_like_timeout(store: Store, tmp_path: Path, number: signal.Signals) -> None:
    crew = Crew(tmp_path / "crew")
    job_id = put_one(store, "hold")
    with started(["tick", "crew:app", "--json"], cwd=crew.folder, url=store.url) as process:
        until(lambda: len(crew.begun) == 1, "the job is running")
        process.send_signal(number)
        output, messages = process.communicate(timeout=20)
    assert process.returncode == 0, messages
    assert json.loads(output)["handed_back"] == 1
    assert history(store, job_id)[-1].meta["reason"] == "tick_over"


@pytest.mark.slow
@pytest.mark.req("HK-1", "CX-15", "DP-8")
def test_job_of_killed_tick_is_recovered_by_later_tick(store: Store, tmp_path: Path) -> None:
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

    until(again, "a later tick has claimed the job")
    stored = job(store, job_id)
    assert (stored.state, stored.crashes, stored.attempt) == (State.SUCCEEDED, 1, 2)


@pytest.mark.req("DP-22")
@pytest.mark.parametrize(
    "arguments",
    [("nowhere:app",), ("shop:app", "--limit", "0"), ("shop:app", "--timeout", "0"), ("shop:app", "--queues", "a:0")],
)
def test_usage_error_exits_with_2(sqlite_url: str, shop: Path, arguments: tuple[str, ...]) -> None:
    done = call("tick", *arguments, url=sqlite_url, cwd=shop)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


@pytest.mark.req("DP-22")
def test_unreachable_database_exits_with_1(shop: Path) -> None:
    done = call("tick", "shop:app", url="postgresql://nobody@127.0.0.1:1/none", cwd=shop)
    assert (done.returncode, done.stdout) == (1, "")
    assert "[store_unavailable]" in done.stderr
