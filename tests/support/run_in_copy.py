"""Runs a command in a copy of the project under an awkward path: the project's name, a space and a non-ASCII letter.

    python -m tests.support.run_in_copy python -m pytest -n 4

The copy has its own environment, which uses the packages of this one. It is removed at the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME = "holdfast prüf stand"
_IGNORED = shutil.ignore_patterns(
    *(".git", ".venv*", ".bench", "dist", "__pycache__", ".hypothesis", ".*_cache", "node_modules")
)


def main(command: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="copy-") as temporary:
        copy = Path(temporary) / NAME / "holdfast"
        shutil.copytree(ROOT, copy, ignore=_IGNORED, symlinks=True)
        programs = _make_environment(copy)
        print(f"Running in {copy}", flush=True)
        path = f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"
        return subprocess.run(command, cwd=copy, env=os.environ | {"PATH": path}, check=False).returncode


def _make_environment(copy: Path) -> Path:
    folder = copy / ".venv"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    packages = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    # Holdfast is imported from the copy, everything else from the current environment.
    (Path(packages) / "_copy.pth").write_text(f"{copy / 'src'}\n{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    for name in ("holdfast", "pytest"):
        module = {"holdfast": "holdfast.cli.main:run", "pytest": "pytest:console_main"}[name]
        source, _, function = module.partition(":")
        program = folder / "bin" / name
        program.write_text(
            f"#!/bin/sh\n'''exec' '{python}' \"$0\" \"$@\"\n' '''\nimport sys\n"
            f"from {source} import {function}\nsys.exit({function}())\n",
            encoding="utf-8",
        )
        program.chmod(0o755)
    return folder / "bin"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
