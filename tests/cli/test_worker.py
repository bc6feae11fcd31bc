"""`holdfast worker` as a process: it runs jobs and stops cleanly whatever its handlers do."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holdfast.cli.run_worker import STOPPING
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from holdfast.stores.requests import JobFilter
from tests.cli.conftest import SHOP
from tests.cli.processes import call, run, started, wait_for_output
from tests.support.direct_sql import open_by_hand
from tests.support.proxy import Proxy
from tests.support.stores import history, job, put, put_one, spec, state_of


@contextmanager
def serving(shop: Path, store: Store, *options: str) -> Iterator[subprocess.Popen[str]]:
    with started(["worker", "shop:app", "--poll", "50ms", *options], cwd=shop, url=store.url) as process:
        yield process


@pytest.mark.slow
@pytest.mark.req("CX-15")
def test_burst_runs_jobs_of_its_queues_and_exits(store: Store, shop: Path) -> None:
    ids = put(store, *(spec("add", payload={"a": n}) for n in range(5)), spec("add", payload={"a": 9}, queue="mail"))
    done = run("worker", "shop:app", "--burst", "--json", url=store.url, cwd=shop)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["jobs"] == 5
    assert all(json.loads(line)["level"] for line in done.stderr.splitlines())
    result = store.run(store.jobs.result(ids[2], "*"))
    assert result is not None
    assert result.value == 3
    assert state_of(store, ids[5]) == State.QUEUED
    run("worker", "shop:app", "--burst", "--queues", "default, mail", url=store.url, cwd=shop)
    assert state_of(store, ids[5]) == State.SUCCEEDED


@pytest.mark.req("DP-22")
def test_at_debug_there_is_a_line_for_each_job(store: Store, shop: Path) -> None:
    for level, lines in (("debug", 1), ("info", 0)):
        job_id = put_one(store, "add", payload={"a": 1})
        done = call("worker", "shop:app", "--burst", "--log-level", level, url=store.url, cwd=shop)
        lines_of_job = [line for line in done.stderr.splitlines() if f"Job {job_id} (add) succeeded in " in line]
        assert len(lines_of_job) == lines, done.stderr


@pytest.mark.req("DP-19", "DP-22")
@pytest.mark.parametrize("options", [("--metrics-port", "0"), ("--processes", "1"), ("--app-typo",)])
def test_with_json_logs_every_line_on_stderr_is_json(store: Store, shop: Path, options: tuple[str, ...]) -> None:
    put_one(store, "add", payload={"a": 1})
    target = "shop:ap" if options == ("--app-typo",) else "shop:app"
    options = () if target == "shop:ap" else options
    done = call("worker", target, "--burst", "--log-format", "json", *options, url=store.url, cwd=shop)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all(line["level"] and line["timestamp"] for line in lines)
    if target == "shop:ap":
        [error] = lines
        assert (error["level"], error["code"]) == ("error", "app_not_found")
        assert error["fix"]
        return
    messages = [line["message"] for line in lines]
    assert any("add" in message and "default" in message for message in messages), "the start"
    assert any("1 attempt" in message for message in messages), "the end"
    assert not any(message.startswith("[1]") for message in messages), "the number has its own field"


@pytest.mark.slow
@pytest.mark.req("SC-11")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
@pytest.mark.parametrize("times", [1, 3])
def test_startup_is_retried_when_server_restarts(store: Store, shop: Path, times: int) -> None:
    job_id = put_one(store, "add", payload={"a": 1})
    with Proxy(store.url) as proxy:
        proxy.cut(b"select name, digest", times=times)
        done = run("worker", "shop:app", "--burst", url=proxy.url, cwd=shop)
        assert (done.returncode, proxy.cuts) == (0, times), done.stderr
    assert done.stderr.count("Not started, retrying") == times
    assert state_of(store, job_id) == State.SUCCEEDED


@pytest.mark.slow
@pytest.mark.req("DP-22")
def test_unreachable_server_is_reported_without_password(shop: Path) -> None:
    done = run("worker", "shop:app", "--burst", url="postgresql://nobody:geheim@127.0.0.1:1/none", cwd=shop)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: the database cannot be reached" in done.stderr
    assert "geheim" not in done.stderr


@pytest.mark.req("JF-2")
def test_worker_serves_one_tenant_or_all(store: Store, shop: Path) -> None:
    mine, theirs = (put_one(store, "add", payload={"a": 1}, tenant=name) for name in ("mine", "theirs"))
    call("worker", "shop:app", "--burst", "--tenant", "mine", url=store.url, cwd=shop)
    assert (state_of(store, mine), state_of(store, theirs)) == (State.SUCCEEDED, State.QUEUED)
    call("worker", "shop:app", "--burst", url=store.url, cwd=shop)
    assert state_of(store, theirs) == State.SUCCEEDED


@pytest.mark.req("CX-15")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_lets_running_job_finish(store: Store, shop: Path, number: signal.Signals) -> None:
    job_id = put_one(store, "nap", payload={"seconds": 1})
    with serving(shop, store) as process:
        wait_for_output(process, "the handler runs")
        process.send_signal(number)
        _, messages = process.communicate(timeout=20)
    assert process.returncode == 0, messages
    assert "Traceback" not in messages
    assert state_of(store, job_id) == State.SUCCEEDED


@pytest.mark.slow
@pytest.mark.req("CX-15")
def test_second_signal_hands_job_back_at_once(store: Store, shop: Path) -> None:
    job_id = put_one(store, "nap", payload={"seconds": 600})
    with serving(shop, store, "--grace", "10m") as process:
        wait_for_output(process, "the handler runs")
        process.send_signal(signal.SIGTERM)
        wait_for_output(process, STOPPING)  # otherwise both might count as one
        process.send_signal(signal.SIGTERM)
        _, messages = process.communicate(timeout=20)
    assert process.returncode == 0, messages
    stored = job(store, job_id)
    # It is due at once, so a running maintenance task may have promoted it already.
    assert stored.state in (State.RETRY_WAITING, State.QUEUED)
    assert (stored.retries, stored.crashes) == (0, 0)
    (handed_back,) = [event for event in history(store, job_id) if event.type == "snooze"]
    assert handed_back.meta["reason"] == "worker_stopped"


@pytest.mark.slow
@pytest.mark.req("CX-15")
def test_stuck_thread_does_not_keep_process_alive(store: Store, shop: Path) -> None:
    job_id = put_one(store, "stuck")
    with serving(shop, store, "--grace", "100ms") as process:
        wait_for_output(process, "the handler runs")
        stopped_at = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, messages = process.communicate(timeout=20)
    assert process.returncode == 0, messages
    assert time.monotonic() - stopped_at < 10
    assert state_of(store, job_id) in (State.RETRY_WAITING, State.QUEUED)


@pytest.mark.req("DP-22")
@pytest.mark.parametrize(
    ("target", "code", "message"),
    [
        ("nowhere:app", "module_not_found", "module 'nowhere' not found"),
        ("shop:nothing", "app_not_found", "It has these apps: app."),
        ("shop:number", "not_an_app", "shop:number is an int, not an App"),
        ("shop:add", "not_an_app", "shop:add is a Kind, not an App"),
        (":app", "invalid_app", "module:attribute"),
        ("broken", "import_failed", "NameError: name 'undefined' is not defined (broken.py, line 3)"),
        ("lacking:app", "import_failed", "No module named 'no_such_library'"),
    ],
)
def test_app_that_cannot_be_imported_is_reported(
    sqlite_url: str, shop: Path, target: str, code: str, message: str
) -> None:
    done = call("worker", target, "--burst", url=sqlite_url, cwd=shop)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"[{code}]" in done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.req("JF-7")
def test_weighted_queues_are_all_served(store: Store, shop: Path) -> None:
    ids = put(store, *(spec("add", payload={"a": 1}, queue=name) for name in ("mail", "default", "a:b")))
    left = put_one(store, "add", payload={"a": 1}, queue="other")
    options = ("--queues", "mail:3,default,a:b:2", "--concurrency", "1")
    done = call("worker", "shop:app", "--burst", *options, url=store.url, cwd=shop)
    assert done.returncode == 0, done.stderr
    assert {state_of(store, job_id) for job_id in ids} == {State.SUCCEEDED}
    assert state_of(store, left) == State.QUEUED


@pytest.mark.req("JF-7")
@pytest.mark.parametrize(("queues", "served"), [("a,b", {"a"}), ("a:1,b:1", {"a", "b"})])
def test_weights_keep_a_full_queue_from_starving_another(
    store: Store, shop: Path, queues: str, served: set[str]
) -> None:
    put(store, *(spec("add", payload={"a": 1}, queue=name) for name in ("a", "b") for _ in range(40)))
    options = ("--queues", queues, "--concurrency", "1", "--max-jobs", "40")
    done = call("worker", "shop:app", *options, url=store.url, cwd=shop)
    assert done.returncode == 0, done.stderr
    ended = store.run(store.jobs.list(JobFilter(tenant="*", state=State.SUCCEEDED, limit=100)))
    assert {job.queue for job in ended} == served


@pytest.mark.req("DP-6")
def test_lease_has_label_of_executor(store: Store, shop: Path) -> None:
    put_one(store, "add", payload={"a": 1})
    options = ("--executor", "gpu", "--no-notify", "--burst")
    done = call("worker", "shop:app", *options, url=store.url, cwd=shop)
    assert done.returncode == 0, done.stderr
    with closing(open_by_hand(store.url)) as by_hand:
        assert by_hand.execute("select name from lease") == [("gpu",)]


@pytest.mark.req("DP-22")
@pytest.mark.parametrize(
    "options",
    [
        ("--lease", "0"),
        ("--lease", "x"),
        ("--queues", " , "),
        ("--queues", "mail:0"),
        ("--queues", "mail:1001"),
        ("--queues", ":3"),
        ("--concurrency", "0"),
        ("--poll", "0s"),
        ("--executor", ""),
    ],
)
def test_invalid_options_are_rejected(sqlite_url: str, shop: Path, options: tuple[str, ...]) -> None:
    done = call("worker", "shop:app", "--burst", *options, url=sqlite_url, cwd=shop)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.req("DP-22")
def test_url_option_overrides_environment_but_not_app(store: Store, shop: Path) -> None:
    job_id = put_one(store, "add", payload={"a": 1})
    done = call("worker", "shop:app", "--burst", "--url", store.url, cwd=shop)
    assert done.returncode == 0, done.stderr
    assert state_of(store, job_id) == State.SUCCEEDED
    (shop / "fixed.py").write_text(SHOP.replace("App()", "App('sqlite:///:memory:')"))
    refused = call("worker", "fixed:app", "--burst", "--url", store.url, cwd=shop)
    assert refused.returncode == 2
    assert "conflicting_options" in refused.stderr
