"""The layers hold: the contracts of pyproject.toml, and a domain with nothing but the standard library."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.req("ARCH")

ROOT = Path(__file__).parents[2]
DOMAIN = ROOT / "src" / "holdfast" / "domain"


def test_import_contracts_are_kept() -> None:
    # In a process of its own: import-linter sets up logging, caches and sys.path for itself.
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as run; run()",
        "--no-logo",
    ]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("path", sorted(DOMAIN.rglob("*.py")), ids=lambda path: path.relative_to(DOMAIN).as_posix())
def test_domain_imports_only_itself_and_the_standard_library(path: Path) -> None:
    # cronsim is as pure as the rest: it is told the time, and answers times.
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
