"""The programs of the README, the tour and the tutorial run and print what the pages show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, State, SyncContext
from tests.docs.console import Console
from tests.docs.guide_blocks import finish, later
from tests.docs.guide_blocks import run as run_block
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("HF-5", "JF-6")

ROOT = Path(__file__).parents[2]


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def run(folder: Path, *command: str, url: str | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    if url is not None:
        environment["HOLDFAST_URL"] = url
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def holdfast(folder: Path, *arguments: str, url: str | None = None) -> str:
    return run(folder, "-m", "holdfast", *arguments, url=url)


def test_readme_has_one_short_example() -> None:
    (example,) = blocks("README.md")
    assert len(example.strip().splitlines()) <= 15


def test_readme_example_prints_the_shown_output(tmp_path: Path) -> None:
    (example,) = blocks("README.md")
    (tmp_path / "receipts.py").write_text(example, encoding="utf-8")
    output = run(tmp_path, "receipts.py").strip()
    assert f"`{output}`" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_worker_process_runs_the_readme_example(tmp_path: Path) -> None:
    (example,) = blocks("README.md")
    (tmp_path / "receipts.py").write_text(example, encoding="utf-8")
    payload = '{"to": "ada@example.com", "invoice": 8}'
    job = holdfast(tmp_path, "enqueue", "send_receipt", payload, "--app", "receipts:app").strip()
    holdfast(tmp_path, "worker", "receipts:app", "--burst")
    shown = holdfast(tmp_path, "jobs", "show", job, "--url", "sqlite:///jobs.db")
    assert "receipt 8 sent to ada@example.com" in shown


@pytest.mark.req("SC-9", "DP-13", "DP-14", "SC-16")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_schedules_events_limits_and_workflows_of_the_tour(request: pytest.FixtureRequest, store: str) -> None:
    with closing(App(request.getfixturevalue(f"{store}_url"), name="readme")) as app:

        @app.job()
        def report(ctx: SyncContext) -> int:
            return sum(value or 0 for value in ctx.results().values())

        names = run_block(blocks("docs/tour.md")[1], app, report=report, Any=Any)
        (limit,) = app.limits.list()
        assert (limit.name, limit.concurrency) == ("warehouse", 1)
        work_off(app)
        assert names["run"].wait(timeout=30).status == "succeeded"
        assert [each.name for each in app.schedules.list()] == ["take_stock"]
        app.send_event("order.paid", {"order": 7})
        with working(app):
            (shipped,) = until(lambda: app.jobs.list(kind="ship", state=State.SUCCEEDED), "the order is shipped")
        assert shipped.payload["event"]["data"] == {"order": 7}


@pytest.mark.req("HF-6", "CX-5", "CX-7")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_steps_and_approval_of_the_tour(request: pytest.FixtureRequest, store: str) -> None:
    done: list[object] = []

    def look_up(order: int) -> str:
        done.append(order)
        return "Cy"

    def pay(order: int, amount: int, by: str) -> str:
        done.append((order, amount))
        return f"paid, says {by}"

    with closing(App(request.getfixturevalue(f"{store}_url"), name="readme")) as app:
        handle = run_block(blocks("docs/tour.md")[0], app, look_up=look_up, pay=pay)["refund"].enqueue(7, 900)
        work_off(app)
        (approval,) = app.approvals.list(approver="ada")
        assert approval.summary == "Refund 900 to Cy?"
        app.approvals.approve(approval.id, by="ada")
        work_off(app)
        assert (handle.state(), done) == (State.RETRY_WAITING, [7])
        later(app, timedelta(hours=1, seconds=1))
        assert finish(app, handle) == "paid, says ada"
    assert done == [7, (7, 900)]


@pytest.mark.slow
def test_tutorial_programs_print_the_same_on_postgresql(postgres_url: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    receipts, first, change, more, _ = blocks("docs/tutorial.md")
    (tmp_path / "receipts.py").write_text(mended(receipts, change), encoding="utf-8")
    (tmp_path / "first.py").write_text(first, encoding="utf-8")
    (tmp_path / "more.py").write_text(more, encoding="utf-8")
    states = [line.split()[1] for line in run(tmp_path, "first.py", url=postgres_url).splitlines()]
    assert states == ["queued", "queued"]
    output = run(tmp_path, "more.py", url=postgres_url)
    assert f"$ python more.py\n{output}```" in page


@pytest.mark.slow
@pytest.mark.timeout(300)  # a dozen processes, one after another
def test_tutorial_works_as_printed(tmp_path: Path) -> None:
    whole = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    page, waiting, _ = whole.partition("## Waiting for a result")
    before, right, after = page.partition("## Fix and redrive it")
    assert waiting
    assert right
    receipts, first, change, more, _ = blocks("docs/tutorial.md")
    for name, content in (("receipts", receipts), ("first", first), ("more", more)):
        (tmp_path / f"{name}.py").write_text(content, encoding="utf-8")
    console = Console(tmp_path, "sqlite:///jobs.db", user="ada")
    try:
        console.follow(before)
        (tmp_path / "receipts.py").write_text(mended(receipts, change), encoding="utf-8")
        console.follow(after)
        console.close()
    finally:
        console.kill()


def mended(receipts: str, change: str) -> str:
    before = '    if not to.endswith("@example.com"):\n'
    assert before in receipts
    return receipts.replace(before, change)
