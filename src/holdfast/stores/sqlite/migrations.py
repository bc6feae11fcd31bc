"""The declared order of the engine's SQL files on SQLite, and what is added to them when they are installed."""

from __future__ import annotations

import functools

from holdfast.engine.states import State, targets
from holdfast.stores.action_triggers import sqlite_triggers
from holdfast.stores.guards import sqlite_guards
from holdfast.stores.migrations import CodeFiles, Plan, Script


def _legal_pairs() -> str:
    tests = {source: " OR ".join(f"NEW.state = '{target}'" for target in targets(source)) for source in State}
    return "\n".join(f"        WHEN '{source}' THEN {test}" for source, test in tests.items() if test)


def _illegal_pairs() -> str:
    return "\n".join(
        f"        WHEN '{source} {target}' THEN RAISE(ABORT, 'illegal transition {source} -> {target}')"
        for source in State
        for target in State
        if target is not source and target not in targets(source)
    )


# The order matters beyond dependencies: SQLite runs the triggers of a table newest first.
CODE_FILES = CodeFiles(
    package="holdfast.stores.sqlite",
    store="sqlite",
    first=("views", "job_insert", "transition", "guards", "steps"),
    last=(),
    expanded=(
        (r"^CREATE (TRIGGER|VIEW) (\w+)", r"DROP \1 IF EXISTS \2;\n\g<0>"),  # there is no CREATE OR REPLACE
        (r"^.* -- \{legal pairs\}$", _legal_pairs()),
        (r"^.* -- \{illegal pairs\}$", _illegal_pairs()),
    ),
)


# Cached: the files do not change while a process runs, and a process opens many stores.
@functools.cache
def plan_with(features: tuple[str, ...]) -> Plan:
    triggers = Script("action_triggers", sqlite_triggers(CODE_FILES.tables()))
    return Plan.of(CODE_FILES, features, Script("guards", sqlite_guards(CODE_FILES.tables())), triggers)
