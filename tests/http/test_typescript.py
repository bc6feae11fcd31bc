"""The TypeScript package, built and tested by Node against a real server.

Needs node, npm and the packages of its lock file. Without them the test is skipped, with the reason.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import App, Context
from holdfast.app.internals import session_of
from holdfast.engine.job import Event
from tests.cli.processes import started
from tests.support.features import keep, sweep
from tests.support.stores import forward
from tools import typescript

pytestmark = pytest.mark.req("JF-14")

PACKAGE = Path(__file__).parents[2] / "clients" / "typescript"


def npm(folder: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    command = [shutil.which("npm") or "npm", "--silent", *arguments]
    return subprocess.run(
        command, cwd=folder, env=clean | extra, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package with its development packages."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("NOT TESTED: the TypeScript client, since node or npm is missing")
    copy = tmp_path / "typescript"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("node_modules", "dist"))
    installed = npm(copy, "ci", "--prefer-offline", "--no-audit", "--no-fund")
    if installed.returncode:
        pytest.skip(f"NOT TESTED: the TypeScript client, since npm cannot install: {installed.stderr[-500:]}")
    return copy


@pytest.mark.slow
@pytest.mark.timeout(900)  # npm installs and Node compiles
def test_typescript_package_passes_its_tests_against_a_real_server(package: Path, sqlite_url: str) -> None:
    examples = readme_examples(package)
    with closing(App(sqlite_url)) as app:
        environment = prepared(app)
    built = npm(package, "pack")
    assert built.returncode == 0, built.stdout + built.stderr
    assert "Cancel, Client, Conflict, Events" in _installed(package, built.stdout.split()[-1])
    command = ["serve", "--url", sqlite_url, "--port", "0", "--json", "--log-level", "error"]
    with started(command, cwd=package) as server:
        environment["HOLDFAST_API_URL"] = address_of(server)
        tested = npm(package, "test", **environment)
        assert tested.returncode == 0, tested.stdout[-8_000:] + tested.stderr[-2_000:]
        assert re.search(r"^# fail 0$", tested.stdout, re.MULTILINE), tested.stdout[-2_000:]
        assert environment["HOLDFAST_API_TOKEN"] not in tested.stdout + tested.stderr
        run_examples(package, examples, environment)


def prepared(app: App) -> dict[str, str]:
    """Fill the database for the tests; return the environment that describes it."""

    @app.job()
    async def asks(ctx: Context) -> None:
        await ctx.approval("ts-approval", summary="Go on?")

    @app.job()
    async def reports(ctx: Context) -> dict[str, int]:
        pages = await ctx.step("fetch", lambda: 2)
        await ctx.checkpoint.save(pages, "page")
        await ctx.progress(0.5, "half")
        await ctx.artifact("report.txt", data=b"two pages")
        return {"pages": pages}

    for _ in range(3):
        asks.enqueue()
    finished = reports.enqueue()
    app.run_worker(burst=True)
    keep(session_of(app).store, purge="1d", kind="gone")
    events = [cancelled(app), cancelled(app)]
    for _ in range(2):
        app.enqueue("last", queue="ts-nobody")  # the job of the last event is kept
        forward(session_of(app).store, 2 * 86_400)
        sweep(session_of(app).store)
    session_of(app).store.run(session_of(app).store.clock.set(timedelta(0), None))
    return {
        "HOLDFAST_API_TOKEN": app.tokens.issue("node", roles=["admin"]).text,
        "HOLDFAST_ROOT_TOKEN": app.tokens.issue("root", roles=["admin"], tenant="*").text,
        "HOLDFAST_FINISHED_JOB": finished.id,
        "HOLDFAST_GONE_AFTER": events[0].cursor,
        "HOLDFAST_GONE_THROUGH": str(events[1].seq),
    }


def readme_examples(package: Path) -> list[str]:
    """The examples of the README as programs of the package, so that the strict compiler checks them too."""
    blocks = re.findall(r"```ts\n(.*?)```", (package / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    for number, block in enumerate(blocks):
        (package / "test" / f"readme{number}.ts").write_text(block, encoding="utf-8")
    # The compiler resolves the package's own name by its exports, which are written by this build.
    config = json.loads((package / "tsconfig.json").read_text(encoding="utf-8"))
    config["compilerOptions"]["paths"] = {"@holdfast/client": ["./src/index.ts"]}
    (package / "tsconfig.json").write_text(json.dumps(config), encoding="utf-8")
    return [f"dist/test/readme{number}.js" for number in range(len(blocks))]


def run_examples(package: Path, examples: list[str], environment: dict[str, str]) -> None:
    """The worker of the README runs while its other programs do, and ends on SIGTERM."""
    enqueue, worker, operate = examples
    node = shutil.which("node") or "node"
    with subprocess.Popen(
        [node, worker], cwd=package, env=os.environ | environment, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            for program, expected in (
                (enqueue, ["result { picture: 7, sizes: 3 }", "job thumbnail succeeded"]),
                (operate, ["health warn true"]),
            ):
                ran = subprocess.run(
                    [node, program],
                    cwd=package,
                    env=os.environ | environment,
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
                assert ran.returncode == 0, ran.stderr
                for text in expected:
                    assert text in ran.stdout, ran.stdout
            running.send_signal(signal.SIGTERM)
            _, logged = running.communicate(timeout=30)
        finally:
            running.kill()
    assert running.returncode == 0
    assert json.loads(logged.splitlines()[-1])["message"] == "Worker stopped"
    assert "resized picture 7" in logged


def cancelled(app: App) -> Event:
    """The last event of a job that was cancelled."""
    handle = app.enqueue("gone")
    handle.cancel()
    return session_of(app).store.run(session_of(app).store.ledger.read(None, 100, "default"))[-1]


def _installed(package: Path, packed: str) -> str:
    """The exports of the package when a program installs it as published."""
    program = package.parent / "program"
    into = program / "node_modules" / "@holdfast"
    with tarfile.open(package / packed) as archive:
        names = {name.removeprefix("package/") for name in archive.getnames()}
        archive.extractall(into, filter="data")
    (into / "package").rename(into / "client")
    assert {"LICENSE", "README.md", "dist/src/index.js", "dist/src/index.d.ts"} <= names
    assert not [name for name in names if "test" in name]
    script = 'console.log(Object.keys(await import("@holdfast/client")).sort().slice(0, 4).join(", "))'
    node = [shutil.which("node") or "node", "--input-type=module", "-e", script]
    return subprocess.run(node, cwd=program, capture_output=True, text=True, timeout=60, check=True).stdout


def address_of(server: subprocess.Popen[str]) -> str:
    """The address in the JSON document that the server prints first."""
    assert server.stdout is not None
    text = ""
    for line in server.stdout:
        text += line
        if line.startswith("}"):
            break
    return str(json.loads(text)["address"])


def test_typescript_package_has_no_runtime_dependency_and_no_host_in_its_lock() -> None:
    lock = json.loads((PACKAGE / "package-lock.json").read_text(encoding="utf-8"))
    packages = {name: facts for name, facts in lock["packages"].items() if name}
    assert all(facts["integrity"].startswith("sha512-") for facts in packages.values())
    assert [name for name, facts in packages.items() if "resolved" in facts] == []
    assert [name for name, facts in packages.items() if not facts.get("dev")] == []
    declared = json.loads((PACKAGE / "package.json").read_text(encoding="utf-8"))
    assert "dependencies" not in declared


def test_generated_typescript_files_are_current() -> None:
    for file, text in typescript.generated().items():
        assert file.read_text(encoding="utf-8") == text, f"{file.name} is not current: run `make reference`"
