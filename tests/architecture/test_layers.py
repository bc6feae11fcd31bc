"""Layers (``tools/layers.py``): imports follow them, and pure modules import only the standard library."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tools import layers

pytestmark = pytest.mark.req("ARCH")

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "holdfast"
PURE = {role.removeprefix("*.") for role in layers.PLACES if layers.PLACES[role] == layers.PLACES["*.model"]}
"""The pure files of a feature: they decide, as the engine does, without I/O."""


def test_imports_follow_the_layers() -> None:
    assert layers.violations() == []


@pytest.mark.parametrize(
    ("module", "imported", "allowed"),
    [
        ("holdfast.engine.job", "holdfast.errors", True),
        ("holdfast.engine.job", "holdfast.stores.flow", False),
        ("holdfast.engine.job", "time", False),
        ("holdfast.stores.session", "holdfast.features.limits.model", True),
        ("holdfast.stores.session", "holdfast.features.jobs.handle", False),
        ("holdfast.features.limits.store", "holdfast.features.limits.operations", False),
        ("holdfast.features.jobs.routes", "holdfast.server.parameters", True),
        ("holdfast.features.limits.operations", "holdfast.features.agents.model", True),
        ("holdfast.features.limits.operations", "holdfast.features.agents.operations", False),
        ("holdfast.server.app", "holdfast.remote.client", False),
        ("holdfast.app.internals", "holdfast.server.app", False),
    ],
)
def test_layers_by_role(module: str, imported: str, allowed: bool) -> None:
    assert layers.is_allowed(module, imported) is allowed


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
