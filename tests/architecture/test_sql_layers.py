"""The engine's SQL calls its own functions, and features only through hooks.

A file that is installed before the features (``first``) may call functions of the engine and hooks: functions of a
feature whose name says when they are called. Views, single-job forms and grants are installed last and may call all.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.features import FEATURES
from holdfast.stores.postgres.migrations import CODE_FILES

pytestmark = pytest.mark.req("ARCH")

HOOKS = ("_on_insert", "_on_update", "_on_claim", "_on_suspend", "_on_transition", "_on_event")
ENQUEUE = {"agent_now", "agent_parts", "agent_refusal", "agent_message", "agents_of"}
"""``enqueue.sql`` gives a job the defaults of its agent and answers its refusal in a row, not with an exception."""

_DEFINED = re.compile(r"create or replace function (\w+)\s*\(")
_CALLED = re.compile(r"(?<![.\w])([a-z_]\w*)\s*\(")


def code(path: Path) -> str:
    """Without comments and literals."""
    return re.sub(r"'(?:[^']|'')*'", "''", re.sub(r"--[^\n]*", "", path.read_text(encoding="utf-8")))


def defined(paths: list[Path]) -> set[str]:
    return {name for path in paths for name in _DEFINED.findall(code(path))}


def called(path: Path) -> set[str]:
    return set(_CALLED.findall(_DEFINED.sub("", code(path))))


@pytest.fixture(scope="module")
def files() -> list[Path]:
    return [Path(str(path)) for path in CODE_FILES.paths(FEATURES)]


def test_engine_files_call_features_through_hooks_only(files: list[Path]) -> None:
    engine = [path for path in files if path.parent.name == "sql"]
    features = defined([path for path in files if path not in engine])
    assert {"agents_on_claim", "workflows_on_transition", "set_limit"} <= features, "the expected functions exist"
    wrong = [
        f"{path.name} calls {name}"
        for path in engine
        if path.stem in CODE_FILES.first
        for name in sorted(called(path) & features - defined(engine))
        if not name.endswith(HOOKS) and not (path.stem == "enqueue" and name in ENQUEUE)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_hook_is_defined_by_a_feature_and_called_by_the_engine(files: list[Path]) -> None:
    engine = [path for path in files if path.parent.name == "sql"]
    hooks = {name for name in defined([path for path in files if path not in engine]) if name.endswith(HOOKS)}
    calls = {name for path in engine for name in called(path) if name.endswith(HOOKS)}
    assert hooks == calls


def test_function_is_defined_in_one_file(files: list[Path]) -> None:
    places: dict[str, set[Path]] = {}
    for path in files:
        for name in _DEFINED.findall(code(path)):
            places.setdefault(name, set()).add(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
