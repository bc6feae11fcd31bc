"""All texts of the source that a person reads outside the dashboard: help, errors, fixes and log lines.

Errors and log lines are parsed from the source, not imported. A value inserted at run time is shown as `{}`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer.main

from holdfast import errors
from holdfast.cli.commands import app

PACKAGE = Path(__file__).parents[2] / "src" / "holdfast"
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
LOGGERS = frozenset({"log", "logger", "store_log"})
PARAGRAPH = re.compile(r"\n\s*\n")


@dataclass(frozen=True)
class Text:
    kind: str  # command, option, error, fix or log
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


def help_texts(command: Any = None, path: str = "holdfast") -> Iterator[Text]:
    """The help of every command and group, and of each of its options and arguments."""
    command = command or typer.main.get_command(app)
    help_text = (command.help or "").partition("\f")[0].strip()
    yield Text("command", path, " ".join(PARAGRAPH.split(help_text)[0].split()))
    if command.short_help:
        yield Text("command", f"{path} (in the list)", command.short_help)
    for parameter in command.params:
        if not getattr(parameter, "hidden", False) and parameter.name != "help":
            yield Text("option", f"{path} {parameter.opts[0]}", " ".join((parameter.help or "").split()))
    for name, child in sorted(getattr(command, "commands", {}).items()):
        yield from help_texts(child, f"{path} {name}")


def source_texts() -> Iterator[Text]:
    for path in sorted(PACKAGE.rglob("*.py")):
        location = path.relative_to(PACKAGE)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                for kind, value in _of_call(node):
                    for text in strings(value):
                        yield Text(kind, f"{location}:{value.lineno}", text)
    yield from (Text("fix", f"errors.py FIXES[{code!r}]", fix) for code, fix in errors.FIXES.items())


def _of_call(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    name = name_of(node.func)
    yield from (("fix", keyword.value) for keyword in node.keywords if keyword.arg == "fix")
    if name in errors.__all__ and node.args:
        yield "error", node.args[0]
    method = node.func if name in LEVELS and isinstance(node.func, ast.Attribute) else None
    if method is not None and node.args and name_of(method.value) in LOGGERS:
        yield "log", node.args[0]


def name_of(value: ast.expr) -> str:
    """The last name of `a` or `a.b`."""
    return value.attr if isinstance(value, ast.Attribute) else str(getattr(value, "id", ""))


def strings(value: ast.expr) -> Iterator[str]:
    """The possible texts of an expression: itself, or either branch of a conditional."""
    match value:
        case ast.Constant(value=str() as text):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
        case ast.IfExp(body=one, orelse=two):
            yield from strings(one)
            yield from strings(two)
