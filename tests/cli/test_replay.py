"""``holdfast replay`` and ``holdfast jobs export-history``: an old release runs jobs, a new one replays them."""

from __future__ import annotations

import json
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import App, Context
from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, document, error_of
from tests.cli.processes import call, run
from tests.support.workers import work_off

pytestmark = pytest.mark.req("HF-10")

NEW = """
import holdfast

app = holdfast.App()
ran = []

def charge(cents: int) -> str:
    raise AssertionError("a step runs")

@app.job()
async def pay(ctx: holdfast.Context, cents: int) -> str:
    ref = await ctx.step("{first}", charge, cents)
    await ctx.wait_for_event("settled", match={{"ref": ref}}, timeout="1d")
    return ref

@app.job(process=True)
def in_process(ctx: holdfast.SyncContext) -> str:
    return ctx.step("{first}", charge, 1)
"""


def old(store: Store, *cents: int) -> list[str]:
    """Run jobs of the old release until they wait; return their ids."""
    with closing(App(store.url, name="tests")) as app:

        @app.job()
        async def pay(ctx: Context, cents: int) -> str:
            ref = await ctx.step("charge", lambda: f"ref-{cents}")
            await ctx.wait_for_event("settled", match={"ref": ref}, timeout="1d")
            return str(ref)

        @app.job()
        async def in_process(ctx: Context) -> str:
            return str(await ctx.step("charge", lambda: "ref"))

        @app.job()
        async def unknown(ctx: Context) -> None:
            await ctx.step("charge", lambda: 1)
            await ctx.sleep("1h")

        unknown.enqueue()
        done = in_process.enqueue()
        ids = [pay.enqueue(each).id for each in cents]
        work_off(app)
        return [*ids, done.id]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A folder with a release that renames the first step, and one that does not."""
    (tmp_path / "same.py").write_text(NEW.format(first="charge"))
    (tmp_path / "renamed.py").write_text(NEW.format(first="take"))
    return tmp_path


def replay(
    store: Store, release: Path, *arguments: str, typed: bytes | None = None
) -> subprocess.CompletedProcess[str]:
    if typed is None:
        return call("replay", *arguments, url=store.url, cwd=release)
    return run("replay", *arguments, url=store.url, cwd=release, input=typed)


@pytest.mark.slow
def test_a_deployment_is_checked(store: Store, release: Path) -> None:
    first, second, done = old(store, 100, 200)
    fine = replay(store, release, "same:app", "--since", "1d")
    assert (fine.returncode, fine.stdout) == (0, "")
    assert "4 jobs: 3 compatible, 1 skipped." in fine.stderr
    assert "skipped: unknown: this app declares no job 'unknown'" in fine.stderr
    broken = replay(store, release, "renamed:app")
    assert broken.returncode == 1
    assert done not in broken.stdout  # finished: only with --since
    assert sorted(line for line in broken.stdout.splitlines() if line.startswith("pay")) == sorted(
        f"pay {job} (retry_waiting): job {job}: durable call 1 was step 'charge' and is now step 'take': the handler's "
        "code changed after the job started [steps_changed]"
        for job in (first, second)
    )
    assert broken.stdout.count("  recorded: step 'charge'\n  called:   step 'take'\n") == 2
    since = replay(store, release, "renamed:app", "--since", "1d", "--json")
    report = json.loads(since.stdout)
    assert (since.returncode, report["histories"]) == (1, 4)
    assert report["counts"] == {"different": 3, "skipped": 1}
    assert {each["job_id"] for each in report["different"]} == {first, second, done}
    assert report["different"][0]["difference"]["recorded"]["name"] == "charge"
    one = replay(store, release, "renamed:app", done, "--json")
    assert json.loads(one.stdout)["histories"] == 1
    some = replay(store, release, "renamed:app", "--kind", "unknown")
    assert (some.returncode, "1 job: " in some.stderr) == (0, True)


def test_histories_in_a_file(store: Store, holdfast: Holdfast, release: Path) -> None:
    first, *_ = old(store, 100)
    file = release / "histories.jsonl"
    written = holdfast("jobs", "export-history", "--kind", "pay", "--output", str(file), "--json")
    assert document(written) == {"file": str(file), "jobs": 1}
    assert file.stat().st_mode & 0o777 == 0o600
    assert "ref-100" in file.read_text()
    nowhere = call("replay", "renamed:app", "--file", str(file), url="sqlite:///none.db", cwd=release)
    assert (nowhere.returncode, first in nowhere.stdout) == (1, True)
    assert not (release / "none.db").exists()
    printed = holdfast("jobs", "export-history", first, "--redact")
    assert "ref-100" not in printed.stdout
    assert json.loads(printed.stdout)["payload"] == {"cents": 0}
    file.write_text("{}\n")
    refused = replay(store, release, "same:app", "--file", str(file), "--json")
    assert (refused.returncode, json.loads(refused.stderr)["error"]["code"]) == (2, "invalid_history")


@pytest.mark.slow
def test_one_job_under_the_debugger(store: Store, release: Path) -> None:
    job, done = old(store, 100)
    debugged = replay(store, release, "same:app", job, "--debug", typed=b"p cents\nn\nn\np ref\nc\n")
    assert (debugged.returncode, debugged.stderr) == (0, "1 job: 1 compatible.\n")
    assert '-> ref = await ctx.step("charge", charge, cents)' in debugged.stdout
    assert "(Pdb) 100" in debugged.stdout
    assert "'ref-100'" in debugged.stdout
    in_thread = replay(store, release, "same:app", done, "--debug", typed=b"c\n")
    assert (in_thread.returncode, 'return ctx.step("charge", charge, 1)' in in_thread.stdout) == (0, True)
    left = replay(store, release, "renamed:app", job, "--debug", typed=b"q\n")
    assert (left.returncode, left.stderr) == (0, "No job with a history matches.\n")


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        (("01a1de74-eb8c-70f1-843b-cac5f6817387",), "invalid_app", 2),
        (("same:app", "renamed:app"), "invalid_app", 2),
        (("nowhere:app",), "module_not_found", 2),
        (("same:app", "01a1de74-eb8c-70f1-843b-cac5f6817387"), "not_found", 3),
        (("same:app", "--debug"), "conflicting_options", 2),
        (("same:app", "--file", "x", "--kind", "pay"), "conflicting_options", 2),
        (("same:app", "--file", "x"), "file_not_found", 3),
        (("same:app", "--timeout", "0"), "invalid_duration", 2),
        (("same:app", "--since", "soon"), "invalid_time", 2),
    ],
    ids=str,
)
def test_wrong_use(sqlite_store: Store, release: Path, arguments: tuple[str, ...], code: str, exit_code: int) -> None:
    refused = replay(sqlite_store, release, *arguments, "--json")
    assert (json.loads(refused.stderr)["error"]["code"], refused.returncode) == (code, exit_code), refused.stderr
    assert refused.stdout == ""


def test_export_of_an_unknown_job(holdfast: Holdfast) -> None:
    unknown = "01a1de74-eb8c-70f1-843b-cac5f6817387"
    assert error_of(holdfast("jobs", "export-history", unknown, "--json"))["code"] == "not_found"
    assert (
        error_of(holdfast("jobs", "export-history", unknown, "--kind", "a", "--json"))["code"] == "conflicting_options"
    )
    assert holdfast("jobs", "export-history").stdout == ""
