"""Whatever the Python of a page names of Holdfast is there: its imports, and what it asks of an app or a context."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from contextlib import closing
from types import ModuleType
from typing import Any

import pytest

import holdfast
from holdfast import App, Context, SyncContext
from tests.docs.test_links import PAGES, ROOT
from tests.support import django_setup as django_handles

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
            yield from (f"{node.module}.{each.name}" for each in node.names if not _has(module, each.name))
        elif isinstance(node, ast.Attribute) and isinstance(root := _root(node), ast.Name) and root.id in roots:
            names = _names(node)
            if not any(_reaches(whole, names) for whole in roots[root.id]):
                yield ".".join([root.id, *names])


def _root(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def _names(node: ast.expr) -> list[str]:
    found: list[str] = []
    while isinstance(node, ast.Attribute):
        found.insert(0, node.attr)
        node = node.value
    return found


def _reaches(whole: Any, names: list[str]) -> bool:
    for name in names:
        if not _has(whole, name):
            return False
        whole = getattr(whole, name, None)
        if whole is None or isinstance(whole, property) or callable(whole):
            return True  # what it answers is not looked at
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


def test_what_a_page_names_is_there() -> None:
    django_handles.set_up()  # for what pages import from its integration
    with closing(App("sqlite:///:memory:", name="pages")) as app:
        roots: dict[str, list[Any]] = {"holdfast": [holdfast], "app": [app], "ctx": [Context, SyncContext]}
        wrong = []
        for page in PAGES:
            for tree in trees(page.read_text(encoding="utf-8")):
                wrong += [f"{page.relative_to(ROOT)}: there is no {name}" for name in unknown(tree, roots)]
        assert wrong == []
        page_with_mistakes = (
            "```python\nfrom holdfast.remote import Cleint\napp.limits.sett(1)\nctx.stepp()\nholdfast.Retri\n```\n"
        )
        (tree,) = trees(page_with_mistakes)
        assert sorted(unknown(tree, roots)) == [
            *("app.limits.sett", "ctx.stepp", "holdfast.Retri"),
            "holdfast.remote.Cleint",
        ]
