"""Every Holdfast name in the Python blocks of the docs exists: imports, attributes of an app or a context, keywords."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from contextlib import closing
from types import ModuleType
from typing import Any, get_args

import pytest

import holdfast
from holdfast import App, Context, SyncContext
from tests.docs.test_links import PAGES, ROOT
from tests.support import django_setup

pytestmark = pytest.mark.req("HF-5")

_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
FRAGMENTS = ('    if "@" not in to:', "@app.job(retry=holdfast.Retry(max_attempts=8", "holdfast.App(url=None, *,")


def trees(text: str) -> Iterator[ast.AST]:
    for block in _BLOCK.findall(text):
        if not block.startswith(FRAGMENTS):
            yield compile(block, "page", "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def unknown(tree: ast.AST, roots: dict[str, list[Any]]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "holdfast":
            module = importlib.import_module(node.module or "")
            yield from (f"{node.module}.{alias.name}" for alias in node.names if not _has(module, alias.name))
        elif isinstance(node, ast.Attribute) and isinstance(root := _root(node), ast.Name) and root.id in roots:
            names = _names(node)
            if not any(_reaches(whole, names) for whole in roots[root.id]):
                yield ".".join([root.id, *names])
        elif isinstance(node, ast.Call) and isinstance(root := _root(node.func), ast.Name) and root.id == "app":
            names = _names(node.func)
            called = functools.reduce(lambda whole, name: getattr(whole, name, None), names, roots["app"][0])
            given = {key.arg for key in node.keywords if key.arg is not None}
            yield from (f"app.{'.'.join(names)}({name}=…)" for name in sorted(given - _keywords(called, given)))


def _keywords(called: Any, given: set[str]) -> set[str]:
    """The keywords that a callable takes; all that are given if it does not say which."""
    try:
        parameters = inspect.signature(called, eval_str=True).parameters.values()
    except (TypeError, NameError):
        return given
    names = {each.name for each in parameters}
    for each in parameters:
        if each.kind is each.VAR_KEYWORD:
            options = get_args(each.annotation)
            names |= set(options[0].__annotations__) if options else given
    return names


def _root(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def _names(node: ast.expr) -> list[str]:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return names


def _reaches(whole: Any, names: list[str]) -> bool:
    for name in names:
        if not _has(whole, name):
            return False
        whole = getattr(whole, name, None)
        if whole is None or isinstance(whole, property) or callable(whole):
            return True  # its result is not checked
    return True


def _has(whole: Any, name: str) -> bool:
    if hasattr(whole, name) or name in getattr(whole, "__annotations__", ()):
        return True
    if not isinstance(whole, ModuleType):
        return False
    try:
        importlib.import_module(f"{whole.__name__}.{name}")
    except ImportError:
        return False
    return True


def test_names_used_in_pages_exist() -> None:
    django_setup.set_up()  # for imports of the Django integration
    with closing(App("sqlite:///:memory:", name="pages")) as app:
        roots: dict[str, list[Any]] = {"holdfast": [holdfast], "app": [app], "ctx": [Context, SyncContext]}
        wrong = []
        for page in PAGES:
            for tree in trees(page.read_text(encoding="utf-8")):
                wrong += [f"{page.relative_to(ROOT)}: {name} does not exist" for name in unknown(tree, roots)]
        assert wrong == []
        mistakes = (
            "from holdfast.remote import Cleint\napp.limits.sett(1)\napp.job(rules=1)\nctx.stepp()\nholdfast.Retri"
        )
        (tree,) = trees(f"```python\n{mistakes}\n```\n")
        assert sorted(unknown(tree, roots)) == [
            *("app.job(rules=…)", "app.limits.sett", "ctx.stepp", "holdfast.Retri"),
            "holdfast.remote.Cleint",
        ]
