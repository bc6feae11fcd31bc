"""`holdfast demo`: it ends by itself, its summary is correct, and no worker is left running."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.features.assembly import open_store
from tests.support.ledger import all_jobs, check_ledger

COMMAND = (sys.executable, "-m", "holdfast", "demo")
STARTED = re.compile(r"started worker \d+ with pid (\d+)")
NUMBERS = {"lost": 0, "run_twice": 0, "illegal": 0, "ledger_ok": True, "ok": True, "problems": []}

pytestmark = pytest.mark.req("CX-15", "CX-4")


def environment(tmp_path: Path) -> dict[str, str]:
    """A HOLDFAST_URL that must not be used, and a folder for temporary files."""
    return {**os.environ, "HOLDFAST_URL": "sqlite:////nowhere/at/all.db", "TMPDIR": str(tmp_path)}


def run_demo(tmp_path: Path, *options: str) -> tuple[dict[str, Any], str]:
    done = subprocess.run(
        [*COMMAND, "--json", *options],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout), done.stderr


def check(summary: dict[str, Any], jobs: int, store: str) -> None:
    assert {name: summary[name] for name in NUMBERS} == NUMBERS
    assert (summary["accepted"], summary["store"]) == (jobs, store)
    assert summary["dead_letter"] == jobs // 100
    assert summary["succeeded"] == jobs - jobs // 100
    assert summary["retried"] >= jobs // 10
    assert summary["recovered"] >= 1
    assert summary["held"] >= 1
    assert summary["seconds"] < 30
    ends = [worker["end"] for worker in summary["workers"]]
    assert sorted(ends) == ["killed", "stopped", "stopped", "stopped"]
    assert [worker["pid"] for worker in summary["workers"] if worker["end"] == "killed"] == [summary["killed"]]
    assert not any(alive(worker["pid"]) for worker in summary["workers"])


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")  # a zombie counts as dead
    return not (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")


@pytest.mark.slow
@pytest.mark.req("SC-1")
def test_demo_on_a_new_sqlite_file(tmp_path: Path) -> None:
    summary, messages = run_demo(tmp_path)
    check(summary, 2000, "sqlite")
    assert "SIGKILL" in messages
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.req("SC-1")
def test_kept_file_matches_the_summary(tmp_path: Path) -> None:
    summary, messages = run_demo(tmp_path, "--jobs", "200", "--keep")
    check(summary, 200, "sqlite")
    assert f"--url '{summary['url']}'" in messages
    store = open_store(summary["url"])
    try:
        check_ledger(store)
        assert len(list(all_jobs(store, tenant="demo"))) == 200
    finally:
        store.close()


@pytest.mark.slow
def test_demo_on_postgresql_can_be_repeated(tmp_path: Path, empty_postgres_url: str) -> None:
    tenants = set()
    for _ in range(2):
        summary, messages = run_demo(tmp_path, "--jobs", "200", "--url", empty_postgres_url)
        check(summary, 200, "postgresql")
        tenants.add(summary["tenant"])
        password = empty_postgres_url.partition("@")[0].rpartition(":")[2]
        assert password not in messages + json.dumps(summary)
    assert len(tenants) == 2


@pytest.mark.slow
def test_summary_is_printed_for_people(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--jobs", "100"], env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"✓ lost +0\n", done.stdout)
    assert "✗" not in done.stdout


@contextmanager
def under_way(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A demo with its workers started, and their pids."""
    log = tmp_path / "messages"
    with log.open("w") as output:
        demo = subprocess.Popen(
            [*COMMAND, "--json"], env=environment(tmp_path), stdout=output, stderr=output, text=True
        )
    try:
        deadline = time.monotonic() + 60
        while len(pids := [int(pid) for pid in STARTED.findall(log.read_text())]) < 3:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield demo, pids
    finally:
        if demo.poll() is None:
            demo.kill()
        demo.wait()
        log.unlink()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_demo_stops_its_workers(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with under_way(tmp_path) as (demo, pids):
        demo.send_signal(number)
        assert demo.wait(timeout=60) == code
        assert not any(map(alive, pids))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_workers_of_a_killed_demo_stop_by_themselves(tmp_path: Path) -> None:
    with under_way(tmp_path) as (demo, pids):
        demo.kill()
        demo.wait()
        deadline = time.monotonic() + 60
        while any(map(alive, pids)):
            assert time.monotonic() < deadline, pids
            time.sleep(0.05)
