"""The pytest plugin, in separate pytest runs on a small project: fixtures, settings, parallel processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.shop import OWN_URL
from tests.kit.test_database import schemas

pytestmark = [pytest.mark.req("HF-7"), pytest.mark.slow]

JOBS = f"""
import holdfast

app = holdfast.App({OWN_URL!r})

@app.job()
def add(a: int, b: int) -> int:
    return a + b

@app.job()
def twice(a: int) -> None:
    add.enqueue(a, a)
"""

TESTS = """
import pytest
from shop.jobs import add, twice

@pytest.mark.parametrize("number", range(4))
def test_sync(holdfast_kit, number):
    holdfast_kit.assert_not_enqueued()
    twice.enqueue(number)
    assert holdfast_kit.drain().states == {"succeeded": 2}
    holdfast_kit.assert_enqueued(add, a=number, b=number, times=1)
    holdfast_kit.travel("1h")

@pytest.mark.asyncio
@pytest.mark.parametrize("number", range(2))
async def test_async(holdfast_kit, number):
    await twice.aenqueue(number)
    assert (await holdfast_kit.adrain()).attempts == 2
    handle = await add.aenqueue(1, number)
    await holdfast_kit.adrain()
    assert await handle == 1 + number

def test_where(holdfast_kit):
    print("on", holdfast_kit.url)
"""

BARE = "[pytest]\npythonpath = .\nfilterwarnings = error\nasyncio_default_fixture_loop_scope = function\n"
SETTINGS = f"{BARE}holdfast_app = shop.jobs:app\n"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "jobs.py").write_text(JOBS)
    (tmp_path / "test_shop.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    return tmp_path


@pytest.fixture
def run(project: Path) -> Run:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        # With the plugins pytest loads by default and without the settings of this run.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "HOLDFAST_"))
        }
        without = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
        command = [sys.executable, "-m", "pytest", "-rA", *without, *options]
        return subprocess.run(
            command, cwd=project, env=environment, capture_output=True, text=True, timeout=100, check=False
        )

    return run


def outcome(done: subprocess.CompletedProcess[str]) -> str:
    summary = re.search(r"=+ ([^=]*) in [\d.]+s[^\n]*\Z", done.stdout.rstrip())
    assert summary, done.stdout + done.stderr
    return summary.group(1)


@pytest.mark.slow
def test_project_needs_only_the_app_setting(run: Run) -> None:
    done = run()
    assert outcome(done) == "7 passed", done.stdout
    assert "on sqlite:///" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("way", ["option", "setting", "fixture"])
def test_same_tests_run_on_postgres(run: Run, project: Path, postgres_url: str, way: str) -> None:
    options = ["--holdfast-url", postgres_url] if way == "option" else []
    if way == "setting":
        (project / "pytest.ini").write_text(f"{SETTINGS}holdfast_url = {postgres_url}\n")
    if way == "fixture":
        fixture = "import pytest\n@pytest.fixture(scope='session')\ndef holdfast_url(): return {!r}\n"
        (project / "conftest.py").write_text(fixture.format(postgres_url))
    # The option runs all tests; for the other two ways one test shows that the URL is used.
    done = run(*options) if way == "option" else run("-k", "test_where")
    assert outcome(done) == ("7 passed" if way == "option" else "1 passed, 6 deselected"), done.stdout
    assert f"on {postgres_url}" in done.stdout
    assert schemas(postgres_url) == {"holdfast"}, "each test removed its schema"


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_parallel_processes_do_not_interfere(run: Run, request: pytest.FixtureRequest, store: str) -> None:
    url_option = ["--holdfast-url", request.getfixturevalue("postgres_url")] if store == "postgres" else []
    done = run("-n", "2", *url_option)
    assert outcome(done) == "7 passed", done.stdout


def test_app_can_come_from_a_fixture(run: Run, project: Path) -> None:
    (project / "pytest.ini").write_text(BARE)
    (project / "conftest.py").write_text(
        "import pytest\n@pytest.fixture\ndef holdfast_app():\n    from shop.jobs import app\n    return app\n"
    )
    assert outcome(run()) == "7 passed"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("", "set holdfast_app = shop.jobs:app in the settings of pytest"),
        ("holdfast_app = shop.jobs:nothing", "It has these apps: app."),
    ],
)
def test_missing_app_is_reported(run: Run, project: Path, setting: str, message: str) -> None:
    (project / "pytest.ini").write_text(f"{BARE}{setting}\n")
    done = run("-k", "test_where")
    assert "1 error" in outcome(done)
    assert message in done.stdout


def test_failed_assertion_points_at_the_test(run: Run, project: Path) -> None:
    (project / "test_shop.py").write_text(
        "from shop.jobs import add\n"
        "def test_it(holdfast_kit):\n"
        "    add.enqueue(1, 2)\n"
        "    holdfast_kit.assert_enqueued(add, a=7)\n"
    )
    done = run()
    assert outcome(done) == "1 failed"
    assert "test_shop.py:4: AssertionError" in done.stdout
    assert "E       AssertionError: no add with a=7 was enqueued; enqueued jobs:" in done.stdout
    assert "testing/kit.py" not in done.stdout


UNUSED = """
import sys

def test_holdfast_is_not_imported():
    assert not [name for name in sys.modules if name == "holdfast" or name.startswith("holdfast.")]
    assert "_holdfast_pytest" in sys.modules
"""


def test_plugin_imports_nothing_until_it_is_used(run: Run, project: Path) -> None:
    (project / "test_shop.py").write_text(UNUSED)
    (project / "pytest.ini").write_text(f"{BARE}addopts = --strict-config --strict-markers\n")
    assert outcome(run()) == "1 passed"


def test_help_lists_the_options(run: Run) -> None:
    done = run("--help")
    for option in ("--holdfast-url", "holdfast_url", "holdfast_app"):
        assert option in done.stdout
