# ruff: noqa
"""Write the import contracts of pyproject.toml for the new layout, with the imports that still point upward."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "holdfast"
PURE = ("model", "forms", "timing", "signing", "verification", "statistics", "why", "why_reasons")
TOP = ("commands", "operator_commands", "template_commands", "timeline")
WEB = ("routes", "read_routes", "pages", "job_page")
LAYERS = (
    ("cli", "testing"),
    ("server", "remote"),
    ("app",),
    ("kind", "context"),
    ("features",),
    ("steps",),
    ("worker",),
    ("stores",),
    ("telemetry", "outgoing"),
    ("engine", "config"),
    ("errors",),
)
# While the moves go on: where the modules that have not moved yet stand.
OLD = {
    "server": "service http api dashboard loading access live",
    "app": "child acting running declaring enqueuing scheduling operating calling bulk processes connectors",
    "kind": "logs",
    "features": "workflows client handle insights searching following joblog facts",
    "steps": "durable transaction arguments",
    "worker": "runtime",
    "stores": "vault sealing artifacts",
    "telemetry": "egress",
    "engine": "domain headers",
}
PACKAGES = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
MOVING = any(name in PACKAGES for names in OLD.values() for name in names.split())
LAYERS = tuple(
    tuple(each for name in names for each in (name, *OLD.get(name, "").split()) if each in PACKAGES) for names in LAYERS
)
LAYERS = tuple(names for names in LAYERS if names)
RANK = {name: len(LAYERS) - number for number, names in enumerate(LAYERS) for name in names}


def main() -> None:
    modules = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
    up, across = set(), set()
    for module, path in modules.items():
        for other in imports(path, modules):
            here, there = module.split(".")[1:], other.split(".")[1:]
            if not here or not there or here[0] not in RANK or there[0] not in RANK:
                continue
            if there[0] == "features" and there[-1] in PURE and there[0] != here[0]:
                continue
            if here[0] == "features" and here[-1] in TOP and there[0] in {"cli", "app", "server", "kind", "context"}:
                continue
            if here[0] == "features" and here[-1] in WEB and there[0] in {"server", "app", "kind", "context"}:
                continue
            same = not MOVING and RANK[here[0]] == RANK[there[0]] and here[0] != there[0]
            if RANK[here[0]] < RANK[there[0]] or same:
                up.add(f"{module} -> {other}")
            if here[0] == there[0] == "features" and len(here) > 2 and len(there) > 1 and here[1] != there[1]:
                if there[-1] not in PURE:
                    across.add(f"{module} -> {other}")
    text = (ROOT / "pyproject.toml").read_text()
    text = text[: text.index("[tool.importlinter]")]
    (ROOT / "pyproject.toml").write_text(text + contracts(sorted(up), sorted(across)))
    print(f"{len(up)} imports point upward, {len(across)} connect two features")


def contracts(up: list[str], across: list[str]) -> str:
    pure = [f"holdfast.** -> holdfast.features.*.{name}" for name in PURE]
    structure = [
        f"holdfast.features.*.{name} -> holdfast.{layer}{rest}"
        for name in TOP
        for layer in ("cli", "app", "kind", "context", "server")
        for rest in ("", ".**")
    ]
    structure += [
        f"holdfast.features.*.{name} -> holdfast.{layer}{rest}"
        for name in WEB
        for layer in ("server", "app", "kind", "context")
        for rest in ("", ".**")
    ]
    structure.append("holdfast.features.*.pages -> holdfast")  # its version
    structure = [each for each in structure if not each.endswith(("kind.**", "context.**", "cli", "server"))]
    source = '["holdfast.engine", "holdfast.domain"]' if "domain" in PACKAGES else '["holdfast.engine"]'
    through = ["holdfast.features.** -> holdfast"]
    for name in sorted(PACKAGES - {"features", "__init__", "__main__"}):
        through += [
            f"holdfast.{name}{rest} -> holdfast.features.**"
            for rest in ("", ".**")
            if not rest or (PACKAGE / name).is_dir()
        ]
    return f"""[tool.importlinter]
root_packages = ["holdfast"]
include_external_packages = true
# A handle names the session only for the type checker.
exclude_type_checking_imports = true

# Higher may import lower, never the other way; neighbours on one line (|) do not know each other.
[[tool.importlinter.contracts]]
id = "layers"
name = "Layers: the top imports the bottom only"
type = "layers"
layers = [
{lines((" : " if MOVING else " | ").join(f"holdfast.{name}" for name in names) for names in LAYERS)}]
unmatched_ignore_imports_alerting = "none"
ignore_imports = [
  # The pure modules of features stand directly above the engine.
{lines(pure)}  # Pages and routes stand beside the server, commands beside the command line.
{lines(structure)}  # What still points upward. This list only shrinks.
{lines(up)}]

# A feature may use the pure modules of another, and nothing else of it.
[[tool.importlinter.contracts]]
id = "features"
name = "Features do not import one another"
type = "independence"
modules = ["holdfast.features.*"]
unmatched_ignore_imports_alerting = "none"
ignore_imports = [
{lines(f"holdfast.features.** -> holdfast.features.*.{name}" for name in PURE)}  # What still connects two features. This list only shrinks.
{lines(across)}  # Through the layers above, which pages, routes and commands use.
{lines(through)}]

# The engine decides; it asks no clock, thread, file or database. (That it has no third-party import
# at all is checked in tests/architecture/test_layers.py, where the standard library's names are known.)
[[tool.importlinter.contracts]]
id = "pure-engine"
name = "The engine is pure"
type = "forbidden"
source_modules = {source}
forbidden_modules = ["asyncio", "os", "psycopg", "sqlite3", "threading", "time"]
"""


def lines(entries: object) -> str:
    return "".join(f'  "{each}",\n' for each in entries)  # type: ignore[attr-defined]


def name_of(path: Path) -> str:
    parts = ["holdfast", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, modules: dict[str, Path]) -> set[str]:
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if isinstance(node, ast.ImportFrom) and node.module in modules:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in modules else node.module)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


if __name__ == "__main__":
    main()
