"""The layers of the code: which files may import which. `make check` runs it on the import graph.

A file belongs to a layer by its folder, a file of a feature by its name. It may import its own group and lower layers.
A feature may import the models of another feature and nothing else of it. Imports for the type checker do not count.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp

SRC = Path(__file__).parents[1] / "src" / "holdfast"

# From low to high. Groups with | between them do not import each other. "*.store" is store.py of any feature.
LAYERS = (
    "errors",
    "engine | config",
    # What a feature decides, without I/O.
    "*.model *.recurrence *.signing *.verification *.statistics *.export *.why *.why_reasons webhooks",
    "telemetry | outgoing",
    "stores",
    # How both databases keep it, and the modules that put the stores of all features together.
    "*.store *.sqlite *.sqlite_* *.snapshot *.activity features.assembly features.postgres features.sqlite",
    "worker",
    "steps",
    # What `App` offers, and every file of a feature that is not named here.
    "*.operations *",
    "kind context",
    # Handlers of the built-in kinds.
    "*.http_request *.report *.command_runner *.delivery",
    "app",
    "holdfast",
    "server *.routes *.pages *.job_page | remote",
    "cli __main__ *.commands *.operator_commands *.timeline | testing",
    "integrations",
)
PLACES = {
    pattern: (n, m)
    for n, layer in enumerate(LAYERS)
    for m, group in enumerate(layer.split("|"))
    for pattern in group.split()
}

# With the reason. This list only shrinks.
EXCEPTIONS = {
    "holdfast.features.audit.commands -> holdfast.features.jobs.timeline": "prints events as a job's timeline does",
    "holdfast.features.events.commands -> holdfast.features.jobs.timeline": "the same",
    "holdfast.features.dead_letters.commands -> holdfast.features.jobs.operator_commands": "verdicts are printed once",
    "holdfast.features.jobs.operator_commands -> holdfast.features.dead_letters.operations": "redrives by cause",
    "holdfast.features.jobs.commands -> holdfast.features.agents.commands": "the options of a retry policy",
    "holdfast.features.schedules.routes -> holdfast.features.jobs.routes": "the options of a new job",
    "holdfast.features.health.pages -> holdfast.features.limits.operations": "pauses on the overview",
    "holdfast.features.webhooks.delivery -> holdfast.features.connectors.http_request": "it is a guarded request",
    "holdfast.features.workflows.run -> holdfast.features.jobs.handle": "a started workflow returns handles",
    "holdfast.features.jobs.model -> holdfast.stores.requests": "the filters and inputs of jobs are the stores'",
    "holdfast.telemetry.logs -> holdfast.context": "log lines name the job that runs; imported by the first line",
}

IMPURE = {"asyncio", "os", "psycopg", "sqlite3", "threading", "time"}
"""The engine decides: it asks no clock, thread, file or database."""


def place(module: str) -> tuple[int, int]:
    """The layer of a module, and its group there."""
    name = module.removeprefix("holdfast.")
    parts = name.split(".")
    is_feature = parts[0] == "features" and len(parts) > 2
    candidates = [f"*.{parts[2]}"] if is_feature else [name] if parts[0] == "features" else [parts[0]]
    if is_feature and parts[2].startswith("sqlite_"):
        candidates = ["*.sqlite_*"]
    return next((PLACES[each] for each in candidates if each in PLACES), PLACES["*"])


@cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("holdfast", include_external_packages=True, exclude_type_checking_imports=True)


def imports() -> Iterator[tuple[str, str]]:
    modules = sorted(name for name in graph().modules if name == "holdfast" or name.startswith("holdfast."))
    for module in modules:
        for imported in sorted(graph().find_modules_directly_imported_by(module)):
            yield module, imported


def violations() -> list[str]:
    """Imports that the layers do not allow, and exceptions that nobody needs."""
    found = {f"{module} -> {imported}" for module, imported in imports() if not is_allowed(module, imported)}
    unused = [f"{each}: this exception is no longer needed" for each in EXCEPTIONS if each not in found]
    return [*sorted(found - EXCEPTIONS.keys()), *unused]


def is_allowed(module: str, imported: str) -> bool:
    if not imported.startswith("holdfast"):
        return not (module.startswith("holdfast.engine.") and imported in IMPURE)
    (layer, group), (low, other) = place(module), place(imported)
    if is_package(module) or is_package(imported):
        return True
    if low > layer or (low == layer and group != other):
        return False
    ours, theirs = feature(module), feature(imported)
    return ours is None or theirs is None or ours == theirs or low == PLACES["*.model"][0]


def is_package(module: str) -> bool:
    """Packages of features have no code."""
    return bool(re.fullmatch(r"holdfast\.features(\.\w+)?", module)) and (SRC / module[9:].replace(".", "/")).is_dir()


def feature(module: str) -> str | None:
    """The feature of a module; None for the modules that put the features together."""
    parts = module.split(".")
    return parts[2] if parts[1:2] == ["features"] and len(parts) > 3 else None


PRIVATE = re.compile(r"(?:\b_?app|the_app\(request\))\._(?:session|store|kinds|all_kinds|scheduler|make)\b")


def private_uses() -> list[str]:
    """Uses of private attributes of ``App`` outside of ``holdfast/app``, which has ``internals.py`` for the others."""
    return [
        f"{path.relative_to(SRC)}:{number}"
        for path in sorted(SRC.rglob("*.py"))
        if path.parent.name != "app"
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        for _ in PRIVATE.findall(line)
    ]


if __name__ == "__main__":
    wrong = violations()
    print(*wrong, sep="\n")
    sys.exit(f"{len(wrong)} imports break the layers of tools/layers.py" if wrong else 0)
