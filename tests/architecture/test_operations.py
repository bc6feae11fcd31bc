"""Every operation has a sync and an async form of one program, and `App` has no other public names."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import App
from holdfast.engine.operation import awaited, awaited_stream, operation, stream
from holdfast.stores.namespace import StoreNamespace
from holdfast.worker.options import WorkerKeywords, WorkerOptions

pytestmark = pytest.mark.req("ARCH")

SRC = Path(holdfast.__file__).parent
NAMESPACES = {
    *("agents", "approvals", "archives", "audit", "connectors", "consumers", "dead_letters", "event_types", "events"),
    *("executors", "health", "jobs", "kinds", "limits", "policies"),
    *(
        "operations",
        "pauses",
        "payload_rules",
        "queues",
        "reservations",
        "restores",
        "retention",
        "schedules",
        "subscriptions",
    ),
    *("templates", "tenants", "tokens", "usage", "versions", "webhooks", "workers", "workflows"),
}
ACTIONS = {
    *(
        "aclose",
        "aenqueue",
        "aenqueue_many",
        "amigrate",
        "approval_notifier",
        "asend_event",
        "atick",
        "close",
        "command",
    ),
    *(
        "enqueue",
        "enqueue_many",
        "job",
        "migrate",
        "on",
        "prepare",
        "redact",
        "report",
        "repository",
        "run_worker",
        "schedule",
    ),
    *("send_event", "tenant", "tick", "worker", "workflow"),
}
WAITS = {"wait": "await_end"}
"""`await` is a keyword."""


def namespaces() -> Iterator[type[StoreNamespace]]:
    waiting = [StoreNamespace]
    while waiting:
        namespace = waiting.pop()
        yield namespace
        waiting += namespace.__subclasses__()


NAMED = {namespace.__name__: namespace for namespace in namespaces()}


@pytest.mark.parametrize("namespace", NAMED.values(), ids=NAMED.keys())
def test_every_operation_has_a_sync_and_an_async_form(namespace: type[StoreNamespace]) -> None:
    members = {name: inspect.getattr_static(namespace, name) for name in dir(namespace)}
    sync = {name: each.program for name, each in members.items() if isinstance(each, operation | stream)}
    asyncs = {name: each.program for name, each in members.items() if isinstance(each, awaited | awaited_stream)}
    assert {_async_name(name): program for name, program in sync.items()} == asyncs


def _async_name(name: str) -> str:
    bare = name.lstrip("_")
    return WAITS.get(name, name[: len(name) - len(bare)] + "a" + bare)


def test_public_names_of_app() -> None:
    app = App("sqlite:///:memory:")
    assert {name for name in dir(app) if name[0] != "_"} == NAMESPACES | ACTIONS | {"artifacts", "hooks"}
    app.close()


def test_namespace_is_created_once() -> None:
    app = App("sqlite:///:memory:")
    for name in NAMESPACES:
        assert isinstance(getattr(app, name), StoreNamespace)
        assert getattr(app, name) is getattr(app, name)
    app.close()


def test_every_operation_is_documented() -> None:
    app = App("sqlite:///:memory:")
    subjects = [app, *(getattr(app, name) for name in sorted(NAMESPACES))]
    bare = [
        f"{type(one).__name__}.{name}"
        for one in subjects
        for name in dir(type(one))
        if name[0] != "_" and isinstance(inspect.getattr_static(type(one), name), operation | stream)
        if not inspect.getdoc(getattr(one, name))
    ]
    assert bare == []
    app.close()


def test_pairs_of_forms_are_not_written_by_hand() -> None:
    """Except on the fast path, and where the two forms wait differently."""
    found = set()
    for path in [*(SRC / "app").glob("*.py"), *(SRC / "features").glob("*/operations.py")]:
        for each in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(each, ast.ClassDef):
                methods = {one.name for one in each.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
                found |= {name for name in methods if f"a{name}" in methods}
    assert found == {"enqueue", "enqueue_many", "tick"}


def test_worker_keywords_equal_worker_options() -> None:
    fields = {each.name for each in dataclasses.fields(WorkerOptions)}
    assert WorkerKeywords.__annotations__.keys() == fields
