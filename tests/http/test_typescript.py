"""The TypeScript package, built and tested by Node against the real service (JF-14).

It takes node, npm and the packages of its lock file; where they are not to be had it is skipped, and says so.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import App, Context
from holdfast.engine.job import Event
from tests.cli.processes import started
from tests.support.retention import keep, sweep
from tests.support.stores import forward

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
    """A copy of the package, with what it needs."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("NOT TESTED: the TypeScript client, since there is no node or no npm here")
    copy = tmp_path / "typescript"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("node_modules", "dist"))
    installed = npm(copy, "ci", "--prefer-offline", "--no-audit", "--no-fund")
    if installed.returncode:
        pytest.skip(f"NOT TESTED: the TypeScript client, since npm cannot install: {installed.stderr[-500:]}")
    return copy


@pytest.mark.slow
@pytest.mark.timeout(900)  # what it needs is installed, built and run by others than us
def test_the_package_against_the_real_service(package: Path, sqlite_url: str) -> None:
    with closing(App(sqlite_url)) as app:

        @app.job()
        async def asks(ctx: Context) -> None:
            await ctx.approval("ts-approval", summary="Go on?")

        asks.enqueue()
        asks.enqueue()
        app.run_worker(burst=True)
        keep(app._store, purge="1d", kind="gone")
        places = [cancelled(app), cancelled(app)]
        for _ in range(2):
            app.enqueue("last", queue="ts-nobody")  # the job of the last event stays
            forward(app._store, 2 * 86_400)
            sweep(app._store)
        app._store.run(app._store.clock.set(timedelta(0), None))
        token = app.tokens.issue("node", roles=["admin"]).text
    built = npm(package, "pack")
    assert built.returncode == 0, built.stdout + built.stderr
    assert "Client, Conflict, EventsGone" in _installed(package, built.stdout.split()[-1])
    command = ["serve", "--url", sqlite_url, "--port", "0", "--json", "--log-level", "error"]
    gone = {"HOLDFAST_GONE_AFTER": places[0].cursor, "HOLDFAST_GONE_THROUGH": str(places[1].seq)}
    with started(command, cwd=package) as server:
        tested = npm(package, "test", HOLDFAST_API_URL=address_of(server), HOLDFAST_API_TOKEN=token, **gone)
    assert tested.returncode == 0, tested.stdout[-8_000:] + tested.stderr[-2_000:]
    assert re.search(r"^# pass 26$", tested.stdout, re.MULTILINE), tested.stdout[-2_000:]
    assert token not in tested.stdout + tested.stderr


def cancelled(app: App) -> Event:
    """The last event of a job that was cancelled."""
    handle = app.enqueue("gone")
    handle.cancel()
    return app._store.run(app._store.ledger.read(None, 100, "default"))[-1]


def _installed(package: Path, packed: str) -> str:
    """What a program finds that has installed what would be published from a clone in which nothing was built."""
    program = package.parent / "program"
    into = program / "node_modules" / "@holdfast"
    with tarfile.open(package / packed) as archive:
        names = {name.removeprefix("package/") for name in archive.getnames()}
        archive.extractall(into, filter="data")
    (into / "package").rename(into / "client")
    (program / "node_modules" / "zod").symlink_to(package / "node_modules" / "zod")
    assert {"LICENSE", "README.md", "dist/src/index.js", "dist/src/index.d.ts"} <= names
    assert not [name for name in names if "test" in name]
    script = 'console.log(Object.keys(await import("@holdfast/client")).sort().slice(0, 4).join(", "))'
    node = [shutil.which("node") or "node", "--input-type=module", "-e", script]
    return subprocess.run(node, cwd=program, capture_output=True, text=True, timeout=60, check=True).stdout


def address_of(server: subprocess.Popen[str]) -> str:
    """The JSON document that it prints first."""
    assert server.stdout is not None
    text = ""
    for line in server.stdout:
        text += line
        if line.startswith("}"):
            break
    return str(json.loads(text)["address"])


def test_its_lock_names_no_host_and_no_other_dependency() -> None:
    lock = json.loads((PACKAGE / "package-lock.json").read_text(encoding="utf-8"))
    packages = {name: facts for name, facts in lock["packages"].items() if name}
    assert all(facts["integrity"].startswith("sha512-") for facts in packages.values())
    assert [name for name, facts in packages.items() if "resolved" in facts] == []
    assert [name for name, facts in packages.items() if not facts.get("dev")] == ["node_modules/zod"]
    declared = json.loads((PACKAGE / "package.json").read_text(encoding="utf-8"))
    assert list(declared["dependencies"]) == ["zod"]
