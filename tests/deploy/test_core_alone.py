"""The core without extras: pure Python, and enough to enqueue, work and tick. `make demo` and `make dev` with the
packages of requirements/runtime.txt alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.req("JF-17")

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
    link(packages, "cronsim", "typing_extensions")
    return folder / "venv/bin/python"


def link(packages: Path, *names: str) -> None:
    """Make distributions of this environment importable from another folder of packages."""
    for name in names:
        found = distribution(name)
        for top in {Path(file).parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            here = Path(str(found.locate_file(top)))  # an environment may have several folders of packages
            if here.exists() and not (packages / top).exists():
                (packages / top).symlink_to(here)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the packages of requirements/runtime.txt, as `make demo` makes one."""
    folder = tmp_path_factory.mktemp("runtime") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "holdfast.pth").write_text(str(ROOT / "src"))
    lock = (ROOT / "requirements/runtime.txt").read_text(encoding="utf-8")
    entries = [Requirement(line.rstrip(" \\")) for line in lock.splitlines() if line[:1].isalnum()]
    link(packages, *(each.name for each in entries if each.marker is None or each.marker.evaluate()))
    return folder / "bin/python"


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


@pytest.mark.slow
def test_demo_needs_only_the_runtime_packages(runtime: Path, tmp_path: Path) -> None:
    done = run(runtime, "-m", "holdfast", "demo", "--jobs", "60", "--workers", "2", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"]


def test_development_server_needs_only_the_runtime_packages(runtime: Path, tmp_path: Path) -> None:
    program = "import holdfast.cli.commands, holdfast.cli.worker, holdfast.server.app"
    done = run(runtime, "-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("target", ["demo", "dev"])
def test_first_commands_install_only_the_runtime_packages(target: str, tmp_path: Path) -> None:
    new = f"RUN_VENV={tmp_path / 'new'}"
    done = subprocess.run(["make", "-n", target, new], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.findall(r"--requirement (\S+)", done.stdout) == ["requirements/runtime.txt"]
    assert "--require-hashes" in done.stdout
