"""All texts of the source that a person reads outside the dashboard: help, errors, fixes, log lines, the help of make,
and messages and comments of SQL and JavaScript.

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
from tools.error_reference import name_of, strings

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "holdfast"
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
LOGGERS = frozenset({"log", "logger", "store_log"})
# Words that only this project used, with their replacements in language: check, cancellation, orphan, timeout, figures.
COINED = re.compile(r"\w*(?:judge|recall|leftover|heard_by|patience|pulse|holdfast-aside)\w*", re.IGNORECASE)
PARAGRAPH = re.compile(r"\n\s*\n")


@dataclass(frozen=True)
class Text:
    kind: str  # command, option, error, fix, log, target (of make), sql or script
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
                    for text in strings(value, "{}"):
                        yield Text(kind, f"{location}:{value.lineno}", text)
    yield from (Text("fix", f"errors.py FIXES[{code!r}]", fix) for code, fix in errors.FIXES.items())


def make_texts() -> Iterator[Text]:
    """The help of each target of make."""
    for number, line in enumerate((ROOT / "Makefile").read_text(encoding="utf-8").splitlines(), 1):
        if found := re.match(r"^[a-z0-9-]+:.*?## (.*)", line):
            yield Text("target", f"Makefile:{number}", found[1])


def sql_texts() -> Iterator[Text]:
    """Comments and quoted texts of more than one word in SQL, line by line."""
    for path in sorted(PACKAGE.rglob("*.sql")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            _, _, comment = line.partition("--")
            for text in (comment, *re.findall(r"'([^']* [^']*)'", line.partition("--")[0])):
                if text.strip():
                    yield Text("sql", f"{path.relative_to(PACKAGE)}:{number}", text.strip())


def script_texts() -> Iterator[Text]:
    """Comments and quoted texts of more than one word in the scripts of the dashboard and of the TypeScript client."""
    files = [*(PACKAGE / "server" / "static").glob("*.js"), *(ROOT / "clients" / "typescript" / "src").glob("*.ts")]
    for path in sorted(files):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            comment = re.search(r"(?:^|\s)(?://|\*|/\*\*?)\s(.*)", line)
            quoted = re.findall(r"[\"'`]([^\"'`]* [^\"'`]*)[\"'`]", line)
            for text in (*([comment[1]] if comment else []), *quoted):
                yield Text("script", f"{path.relative_to(ROOT)}:{number}", text)


def coined_names() -> Iterator[Text]:
    """Every line of the code and of its Makefile that has a coined word in a name."""
    files = [ROOT / "Makefile", *PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.sql"), *PACKAGE.rglob("*.html")]
    files += [*(PACKAGE / "server" / "static").glob("*.js"), *(ROOT / "clients" / "typescript" / "src").glob("*.ts")]
    for path in files:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if found := COINED.search(line):
                yield Text("name", f"{path.relative_to(ROOT)}:{number}", found.group())


def _of_call(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    name = name_of(node.func)
    yield from (("fix", keyword.value) for keyword in node.keywords if keyword.arg == "fix")
    if name in errors.__all__ and node.args:
        yield "error", node.args[0]
    method = node.func if name in LEVELS and isinstance(node.func, ast.Attribute) else None
    if method is not None and node.args and name_of(method.value) in LOGGERS:
        yield "log", node.args[0]
