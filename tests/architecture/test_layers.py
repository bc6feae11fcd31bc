"""Layers: the import contracts of pyproject.toml hold, and pure modules import only the standard library."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.req("ARCH")

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "holdfast"
PURE = ("model", "forms", "recurrence", "signing", "verification", "statistics", "why", "why_reasons")
"""The pure files of a feature: they decide, as the engine does, without I/O."""


def test_import_contracts_are_kept() -> None:
    # In a separate process: import-linter changes logging, caches and sys.path.
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as run; run()",
        "--no-logo",
    ]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def pure() -> list[Path]:
    features = [path for path in (PACKAGE / "features").glob("*/*.py") if path.stem in PURE]
    return sorted([*(PACKAGE / "engine").rglob("*.py"), *features, PACKAGE / "errors.py"])


@pytest.mark.parametrize("path", pure(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_pure_modules_import_only_themselves_and_the_standard_library(path: Path) -> None:
    # cronsim is pure too: it computes times from a time.
    allowed = sys.stdlib_module_names | {"holdfast", "cronsim"}
    assert imported_roots(path) <= allowed


def imported_roots(path: Path) -> set[str]:
    roots = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            roots.add(node.module.partition(".")[0])
    return roots
