"""The environment of each peer, created on first use under ``.bench/`` from the pinned files beside its driver."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.peers.catalog import Subject

HERE = Path(__file__).parent
ROOT = HERE.parents[1] / ".bench"


class EnvironmentFailed(RuntimeError):
    """An environment could not be created: the peer is skipped, and the run continues."""


def command(subject: Subject) -> list[str]:
    """Return the command that starts the driver. Its environment is created if needed."""
    files = HERE / subject.folder
    if subject.runtime == "project":
        return [sys.executable, str(files / "driver.py")]
    home = ROOT / subject.folder
    if subject.runtime == "python":
        _make(home, files / "requirements.txt", _make_python)
        return [str(home / "bin" / "python"), str(files / "driver.py")]
    _make(home, files / "package.json", _make_node)
    # Node looks for packages beside the file that imports them.
    for source in (files / "driver.mjs", HERE / "link" / "link.mjs"):
        shutil.copy(source, home / source.name)
    return [str(home / "node_modules" / ".bin" / "node"), str(home / "driver.mjs")]


def variables() -> dict[str, str]:
    """Return the environment variables of a driver: ours, without those that affect libraries."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "HOLDFAST", "PYTHON"))}
    return {**kept, "PYTHONPATH": str(HERE / "link"), "NODE_ENV": "production"}


def _make(home: Path, pins: Path, how: Callable[[Path, Path], None]) -> None:
    """Create the environment again if the pins or the interpreter have changed."""
    wanted = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()
    stamp = home / "made-from"
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    print(f"… making the environment of {home.name}", file=sys.stderr, flush=True)
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    how(home, pins)
    stamp.write_text(wanted)


def _make_python(home: Path, pins: Path) -> None:
    _run(sys.executable, "-m", "venv", str(home))
    _run(str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--requirement", str(pins))


def _make_node(home: Path, pins: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise EnvironmentFailed("no npm")
    shutil.copy(pins, home / "package.json")
    # The pinned Node is installed as a package, so that npm's version does not matter.
    _run(npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error", cwd=home)


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EnvironmentFailed(f"{Path(command[0]).name} failed: {(done.stdout + done.stderr)[-600:].strip()}")
