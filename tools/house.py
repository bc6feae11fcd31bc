"""Measure the structure of the code: `make house`. Each figure has its aim beside it."""

from __future__ import annotations

import ast
import inspect
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import holdfast
from holdfast import App, Context
from holdfast.features.assembly import open_store

PACKAGE = "holdfast."
SRC = Path(holdfast.__file__).parent
CONTRIBUTING = SRC.parents[1] / "CONTRIBUTING.md"
# Names of files that every feature may have, and names that frameworks require.
ROLES = {
    *("__init__", "__main__", "model", "operations", "store", "sqlite", "routes", "commands", "pages", "base", "codec"),
    *("transactions", "errors", "listener", "jobs", "leases", "ledger", "steps", "connections", "migrations"),
}
# Standard nouns that end in -ing.
STANDARD_NOUNS = {
    "formatting": "values as text for pages",
    "rendering": "templates to pages",
    "signing": "webhook signatures, as in django.core.signing",
    "tracing": "the term of OpenTelemetry",
}
# The same noun in several layers, with the same meaning in each.
SAME_NOUN = {
    "admin": "for administrators; Django requires the name in its apps",
    "approvals": "the feature in steps (`ctx.approval`) and in the remote client",
    "enqueue": "the operation in App and in the SQLite store",
    "handle": "`Handle` of a local and of a remote job",
    "hints": "names that users guess: in Python, and on the command line",
    "ids": "the rule in the engine, the process's id maker (clock and entropy) in stores",
    "maintenance": "the tasks in the worker, the loop that runs them in a service",
    "options": "options of a worker, options of the command line",
    "order": "queue order: the rule in the engine, its SQLite operation",
    "session": "a store session, and the command-line options that open one",
    "webhooks": "`holdfast.webhooks` for receivers, and the remote client's namespace",
    "worker": "the worker, and the command that runs it",
    "workers": "worker methods of App, worker processes of the demo",
}
NOUNS = ("limits", "schedules", "approvals")


def main() -> None:
    sizes = {path: len(path.read_text("utf-8").splitlines()) for path in sorted(SRC.rglob("*.py"))}
    modules = {path: size for path, size in sizes.items() if path.stem != "__init__"}
    # Folders and modules: py.typed is a marker for type checkers.
    entries = [path for path in SRC.iterdir() if path.is_dir() != (path.suffix == ".py") and path.name != "__pycache__"]
    names = defaultdict(set)
    for path in modules:
        names[path.stem].add(path.parent)
    ambiguous = sorted(
        name for name, folders in names.items() if len(folders) > 1 and name not in ROLES | SAME_NOUN.keys()
    )
    gerunds = sorted(name for name in names if name.endswith("ing") and name not in STANDARD_NOUNS)
    largest = max(modules, key=lambda path: modules[path])
    walk = walk_of_a_job()
    rows = [
        ("Python files", len(sizes), "about 320"),
        ("lines", f"{sum(sizes.values()):,}", "≤ 60,500"),
        ("entries in src/holdfast", len(entries), "≤ 20"),
        ("files under 40 lines (without __init__)", sum(size < 40 for size in modules.values()), "≤ 20"),
        ("median module", f"{statistics.median(modules.values()):.0f} lines", "130 to 220"),
        ("largest module", f"{modules[largest]} lines ({largest.relative_to(SRC)})", "≤ 450"),
        ("files on a job's walk (CONTRIBUTING.md)", len(walk), "≤ 30"),
        ("most bases of a part of a store", bases_of_a_part(), "≤ 4"),
        *((f"folders with code of {noun}", len(folders_of(noun, modules)), "1") for noun in NOUNS),
        ("public names of App", len(public(App)), "≤ 55"),
        ("public names of Context", len(public(Context)), "about 40"),
        ("module names that are gerunds", f"{len(gerunds)} {' '.join(gerunds)}", "0"),
        ("module names with two meanings", f"{len(ambiguous)} {' '.join(ambiguous)}", "0"),
        ("hand-written sync/async pairs (drivers apart)", sum(pairs(path) for path in sizes), "≤ 20"),
    ]
    width = max(len(name) for name, _, _ in rows)
    for name, figure, aim in rows:
        print(f"{name:<{width}}  {figure!s:<12}  aim: {aim}")


def walk_of_a_job() -> list[str]:
    """Return the files in the table of CONTRIBUTING.md, without those of retries and steps. They must exist."""
    section = CONTRIBUTING.read_text("utf-8").partition("### The walk of a job")[2].partition("\n\nWith a retry")[0]
    files = list(dict.fromkeys(re.findall(r"`([\w/]+\.(?:py|sql))`", section)))
    missing = [name for name in files if not (SRC / name).exists()]
    if missing:
        raise SystemExit(f"CONTRIBUTING.md names files that do not exist: {', '.join(missing)}")
    return files


def bases_of_a_part() -> int:
    """Return the most classes of Holdfast, except protocols, that a part of a store (`store.jobs`, …) inherits from."""
    stores = (open_store("sqlite:///:memory:"), open_store("postgresql://nobody@127.0.0.1:1/none"))
    parts = {
        type(part) for store in stores for part in vars(store).values() if type(part).__module__.startswith(PACKAGE)
    }
    return max(
        sum(base.__module__.startswith(PACKAGE) and not is_protocol(base) for base in part.__mro__[1:])
        for part in parts
    )


def is_protocol(cls: type) -> bool:
    return bool(getattr(cls, "_is_protocol", False))


def public(cls: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(cls) if not name.startswith("_")] + [
        name for name in getattr(cls, "__annotations__", {}) if not name.startswith("_") and not hasattr(cls, name)
    ]


def folders_of(noun: str, modules: dict[Path, int]) -> set[Path]:
    """Return the folders with a module that is named after the noun, and the folder of the feature."""
    stem = noun.rstrip("s")
    named = {path.parent for path in modules if re.fullmatch(rf"{stem}s?(_\w+)?", path.stem)}
    return named | {SRC / "features" / noun}


def pairs(path: Path) -> int:
    """Count methods that are written twice, as `name` and `aname`.

    Protocols do not count, because they have no bodies; nor do the drivers of the two databases, which block and await
    in different ways.
    """
    if path.parent.name in ("postgres", "sqlite"):
        return 0
    return sum(
        f"a{name}" in methods
        for cls in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(cls, ast.ClassDef) and not any(ast.unparse(base).startswith("Protocol") for base in cls.bases)
        for methods in [set(_functions(cls))]
        for name in methods
    )


def _functions(cls: ast.ClassDef) -> Iterator[str]:
    return (node.name for node in cls.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


if __name__ == "__main__":
    main()
