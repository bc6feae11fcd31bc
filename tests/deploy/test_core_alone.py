"""The core without extras: pure Python, and enough to enqueue, work and tick."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

pytestmark = [pytest.mark.req("JF-17"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]

PROGRAM = """
import importlib.metadata, pathlib, sys
import holdfast

app = holdfast.App("sqlite:///jobs.db", name="core")

@app.job
def double(number: int) -> int:
    return number * 2

first = double.enqueue(4)
assert app.tick(limit=10).succeeded == 1
second = double.enqueue(5)
app.run_worker(burst=True)
print(first.result(timeout=1), second.result(timeout=1))
app.close()

for package in importlib.metadata.distributions():
    for path in package.files or []:
        assert path.suffix not in {".so", ".pyd", ".dylib"}, f"{package.name} is compiled: {path}"
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and its dependencies, copied from this one: no network is needed."""
    folder = tmp_path_factory.mktemp("core")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    for name in ("cronsim", "typing_extensions"):
        here = Path(str(distribution(name).locate_file("")))  # an environment may have several folders of packages
        for found in here.glob(f"{name}*"):
            (packages / found.name).symlink_to(found)
    return folder / "venv/bin/python"


def run(python: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=120, env={}
    )


def test_core_needs_no_extra_and_no_compiled_package(alone: Path, tmp_path: Path) -> None:
    done = run(alone, "-c", PROGRAM, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["8", "10"]


def test_missing_cli_extra_is_named(alone: Path, tmp_path: Path) -> None:
    done = run(alone, "-m", "holdfast", "jobs", "list", cwd=tmp_path)
    assert done.returncode != 0
    assert "pip install 'holdfast[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_postgres_extra_is_named(alone: Path, tmp_path: Path) -> None:
    done = run(alone, "-c", "import holdfast; holdfast.App('postgresql://127.0.0.1:1/x').jobs.list()", cwd=tmp_path)
    assert done.returncode != 0
    assert "holdfast[postgres" in done.stderr
