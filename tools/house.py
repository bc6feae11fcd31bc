"""Measure the structure of the code against its aims: `make house`.

``tools/house.json`` has the figures of the last commit. A figure that misses its aim may only get better: `make house`
fails if one is worse than both its aim and the recorded figure. ``--write`` records the figures of a change that
improved them.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import holdfast
from holdfast import App, Context
from holdfast.features.assembly import open_store
from tools import layers, walk

PACKAGE = "holdfast."
SRC = Path(holdfast.__file__).parent
RECORD = Path(__file__).with_suffix(".json")
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
}
# The same noun in several layers, with the same meaning in each.
SAME_NOUN = {
    "admin": "for administrators; Django requires the name in its apps",
    "derived": "what the server, the command line and the client derive from a declared operation",
    "enqueue": "the operation in App and in the SQLite store",
    "hints": "names that users guess: in Python, and on the command line",
    "options": "options of a worker, options of the command line",
    "order": "queue order: the rule in the engine, its SQLite operation",
    "session": "a store session, and the command-line options that open one",
    "webhooks": "`holdfast.webhooks` for receivers, and the remote client's namespace",
    "worker": "the worker, and the command that runs it",
}
NOUNS = ("limits", "schedules", "approvals")
SETTINGS = ("refuse_enqueue", "max_result_bytes")
"""Settings that go from the command line to the database."""


class Figure(NamedTuple):
    name: str
    value: int
    aim: int
    detail: str = ""


def main(write: bool) -> int:
    figures = [*source_figures(), *walk_figures()]
    recorded: dict[str, int] = json.loads(RECORD.read_text("utf-8"))
    width, worse = max(len(figure.name) for figure in figures), []
    for name, value, aim, detail in figures:
        limit = max(aim, recorded.get(name, value))
        mark = "ok" if value <= aim else "" if value <= limit else f"WORSE than {limit:,}"
        worse += [name] if value > limit else []
        print(f"{name:<{width}}  {value:>7,}  aim {aim:>7,}  {mark:<4}  {detail}".rstrip())
    better = {name: value for name, value, _, _ in figures if value < recorded.get(name, value + 1)}
    if write and not worse:
        RECORD.write_text(json.dumps(recorded | better, indent=2) + "\n", "utf-8")
    elif better:
        print(f"Better than recorded: {', '.join(better)}. Record it: make house ARGS=--write")
    if worse:
        print(f"Worse than before: {', '.join(worse)}", file=sys.stderr)
    return 1 if worse else 0


def walk_figures() -> Iterator[Figure]:
    """The files that a job enters (``tools/walk.py``)."""
    yield Figure("files that a job enters, PostgreSQL", len(walk.on_postgres()), 38)
    yield Figure("files that a job enters, SQLite", len(walk.on_sqlite()), 36)


def source_figures() -> Iterator[Figure]:
    sizes = {path: _lines(path) for path in sorted(SRC.rglob("*.py"))}
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
    yield Figure("Python files", len(sizes), 370)
    yield Figure("lines of Python", sum(sizes.values()), 70_000)
    yield Figure("lines of SQL", sum(map(_lines, SRC.rglob("*.sql"))), 14_500)
    yield Figure("entries in src/holdfast", len(entries), 20)
    yield Figure("files under 40 lines (without __init__)", sum(size < 40 for size in modules.values()), 20)
    yield Figure("lines of the largest module", modules[largest], 450, largest.relative_to(SRC).as_posix())
    for setting in SETTINGS:
        files = files_with(setting)
        yield Figure(f"files that mention {setting}", len(files), 6)
    yield Figure("exceptions to the layers", len(layers.EXCEPTIONS), 15)
    yield Figure("uses of private attributes of App above it", len(layers.private_uses()), 0)
    yield Figure("most bases of a part of a store", bases_of_a_part(), 4)
    for noun in NOUNS:
        yield Figure(f"folders with code of {noun}", len(folders_of(noun, modules)), 1)
    yield Figure("public names of App", len(public(App)), 55)
    yield Figure("public names of Context", len(public(Context)), 45)
    yield Figure("module names that are gerunds", len(gerunds), 0, " ".join(gerunds))
    yield Figure("module names with two meanings", len(ambiguous), 0, " ".join(ambiguous))
    yield Figure("hand-written sync/async pairs (drivers apart)", sum(pairs(path) for path in sizes), 20)


def _lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def files_with(word: str) -> list[Path]:
    """Return the source files that mention a word."""
    files = (path for kind in ("py", "sql", "html") for path in SRC.rglob(f"*.{kind}"))
    return [path for path in files if re.search(rf"\b{word}\b", path.read_text("utf-8"))]


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
    annotated = {name for each in cls.__mro__ for name in getattr(each, "__annotations__", {})}
    return sorted(name for name in annotated | set(dir(cls)) if not name.startswith("_"))


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
    sys.exit(main("--write" in sys.argv[1:]))
