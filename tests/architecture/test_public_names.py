"""`holdfast.__all__` is the complete, sorted public API; the classes used by handlers and callers have fixed names."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

import holdfast
from holdfast.errors import HoldfastError

pytestmark = pytest.mark.req("ARCH")


def test_public_names_are_sorted() -> None:
    assert list(holdfast.__all__) == sorted(holdfast.__all__)


def test_public_names_exist() -> None:
    assert [name for name in holdfast.__all__ if not hasattr(holdfast, name)] == []


def test_every_public_name_is_in_all() -> None:
    visible = {
        name for name, value in vars(holdfast).items() if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert visible - {"annotations", "TYPE_CHECKING"} - set(holdfast.__all__) == set()


FACTS = {
    "job_id",
    "tenant",
    "kind",
    "queue",
    "priority",
    "tags",
    "trace",
    "agent",
    "attempt",
    "retries",
    "crashes",
    "max_attempts",
    "is_last_attempt",
    "created_at",
    "deadline_at",
    "correlation_id",
    "parent_id",
    "workflow_id",
    "idempotency_key",
}
CALLS = {
    "step",
    "sleep",
    "sleep_until",
    "wait_for_event",
    "approval",
    "gather",
    "patched",
    "step_options",
    "checkpoint",
}
STOPPING = {"log", "cancelled", "stop_reason", "raise_if_cancelled", "time_left", "snooze", "cost"}
WRITES = {
    "progress",
    "artifact",
    "references",
    "spawn",
    "results",
    "scheduled_at",
    "complete",
    "transaction",
    "workflow",
    "result_ref",
}


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def test_context_has_exactly_these_names() -> None:
    assert public(holdfast.Context) == FACTS | CALLS | STOPPING | WRITES
    assert public(holdfast.SyncContext) == public(holdfast.Context) | {"submit"}


def test_contexts_differ_in_awaited_methods() -> None:
    awaited = {name for name in WRITES | CALLS if is_awaited(holdfast.Context, name)}
    assert awaited == (WRITES | CALLS) - {"checkpoint", "step_options", "transaction", "result_ref"}
    assert [name for name in public(holdfast.SyncContext) if is_awaited(holdfast.SyncContext, name)] == []


def is_awaited(cls: type, name: str) -> bool:
    function = inspect.getattr_static(cls, name)
    if not inspect.isfunction(function):
        return False
    return inspect.iscoroutinefunction(function) or "Coroutine" in str(function.__annotations__.get("return"))


@pytest.mark.parametrize("cls", [holdfast.Context, holdfast.SyncContext], ids=lambda cls: cls.__name__)
def test_context_methods_are_documented(cls: type) -> None:
    calls = CALLS | STOPPING | WRITES | (public(cls) & {"submit"})
    assert sorted(name for name in calls if not inspect.getdoc(inspect.getattr_static(cls, name))) == []


BOTH_FORMS = {
    *("get", "state", "history", "why", "attempts", "artifacts", "references", "steps", "checkpoints", "progress"),
    *("log", "artifact", "liveness"),
    *("cancel", "redrive", "reschedule", "move", "result"),
}
KIND = {"name", "enqueue", "aenqueue", "using", "prepare", "handle", "parameters", "function", "defaults"}


def test_handle_has_exactly_these_names() -> None:
    fields = {"id", "tenant", "created", "reason", "detail"}
    forms = BOTH_FORMS | {f"a{name}" for name in BOTH_FORMS} | {"wait", "await_end"}
    assert public(holdfast.Handle) == fields | forms
    assert sorted(name for name in BOTH_FORMS if not inspect.getattr_static(holdfast.Handle, name).__doc__) == []


def test_kind_has_exactly_these_names() -> None:
    assert public(holdfast.Kind) == KIND


def test_every_error_is_in_holdfast_errors() -> None:
    """Except those of the test kit. Integrations have none, and importing them needs a configured framework."""
    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if not module.name.endswith("__main__") and not module.name.startswith("holdfast.integrations."):
            importlib.import_module(module.name)
    ours = {error for error in subclasses(HoldfastError) if error.__module__.startswith("holdfast.")}
    elsewhere = {error for error in ours if error.__module__ != "holdfast.errors"}
    public_ones = {error.__name__ for error in elsewhere if not error.__module__.startswith("holdfast.testing.")}
    assert public_ones == {"_Behind"}, "the store catches it"
    assert {error.__name__ for error in ours - elsewhere} | {"HoldfastError"} == set(holdfast.errors.__all__)


def subclasses(cls: type[HoldfastError]) -> set[type[HoldfastError]]:
    direct = set(cls.__subclasses__())
    return direct.union(*(subclasses(subclass) for subclass in direct))
