"""The testing guide: its program, settings and tests are a project that passes on both stores."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.req("HF-7"), pytest.mark.slow]

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "testing.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def run(folder: Path, *options: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "HOLDFAST_"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", *options]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    return done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    program, *tests = blocks("python")
    (settings,) = blocks("ini")
    (tmp_path / "shop.py").write_text(program, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text(f"{settings}asyncio_default_fixture_loop_scope = function\n", encoding="utf-8")
    for number, text in enumerate(tests):
        (tmp_path / f"test_{number}.py").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_tests_of_the_guide_pass(project: Path, request: pytest.FixtureRequest, store: str) -> None:
    options = ["--holdfast-url", request.getfixturevalue("postgres_url")] if store == "postgres" else []
    written = sum(len(re.findall(r"def test_", text)) for text in blocks("python"))
    assert written >= 12
    output = run(project, "-W", "error", *options)
    passed = re.search(r"^=+ (\d+) passed in", output, re.MULTILINE)
    assert passed, output
    assert int(passed[1]) >= written  # parametrized tests count once per case


@pytest.mark.slow
def test_failed_assertion_prints_the_shown_message(project: Path) -> None:
    (project / "test_it.py").write_text(
        "from shop import charge, place_order\n"
        "def test_it(holdfast_kit):\n"
        "    place_order.enqueue(7, 'ada@example.com', 4_200)\n"
        "    holdfast_kit.drain()\n"
        "    holdfast_kit.assert_enqueued(charge, cents=9)\n",
        encoding="utf-8",
    )
    (printed,) = blocks("text")
    output = [
        line.removeprefix("E       ") for line in run(project, "test_it.py").splitlines() if line.startswith("E ")
    ]
    assert output == printed.splitlines()
