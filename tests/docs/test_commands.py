"""Every command in the docs exists, with its options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.exceptions import TyperException

from holdfast.cli.commands import app
from tests.docs.test_links import PAGES, ROOT

pytestmark = pytest.mark.req("DP-22")

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_IN_BLOCK = re.compile(r"(?:^|[\s/=(])(holdfast [a-z].*)")
_INDENTED = re.compile(r"^ {4,}(?:\$ )?(?:[A-Z_]+=\S+ )*(holdfast [a-z].*)", re.MULTILINE)
_IN_PROSE = re.compile(r"`(?:[A-Z_]+=\S+ )*(holdfast [a-z][^`]*)`")
_END = re.compile(r"\s(?:\||&&|\|\||>>?|<|;|#|&)(?:\s|$)")


def named(text: str) -> Iterator[str]:
    for language, block in _FENCE.findall(text):
        if language in ("python", "ts", "sql"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            yield from _IN_BLOCK.findall(line)
    prose = _FENCE.sub("", text)
    yield from _INDENTED.findall(prose)
    yield from _IN_PROSE.findall(prose)


def missing(command: Any, line: str) -> str | None:
    """The first part of the command that does not exist or fit."""
    try:
        words = shlex.split(_END.split(line)[0])[1:]
    except ValueError:  # a sentence with an apostrophe
        return None
    while words and hasattr(command, "commands"):
        if words[0].startswith(("-", "…", "[")):
            return None
        if words[0] not in command.commands:
            return words[0]
        command = command.commands[words.pop(0)]
    options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
    for word in words:
        option = re.split(r"[=|\]]", word.lstrip("[("))[0]
        if option.startswith("--") and option not in options:
            return option
    return unfit(command, words)


def unfit(command: Any, words: list[str]) -> str | None:
    """Why the arguments of a command do not fit, if the page gives any."""
    if not words or words[0].startswith(("-", "<", "(")) or any("…" in word or "[" in word for word in words):
        return None
    try:
        command.make_context(command.name, words)
    except TyperException as error:
        return str(error)
    return None


def test_commands_in_pages_exist() -> None:
    tree = typer.main.get_command(app)
    seen = 0
    wrong = []
    for page in PAGES:
        for line in named(page.read_text(encoding="utf-8")):
            seen += 1
            what = missing(tree, line)
            if what is not None:
                wrong.append(f"{page.relative_to(ROOT)}: {line}: {what}")
    assert wrong == []
    assert seen > 250


def test_unknown_commands_and_options_are_found() -> None:
    tree = typer.main.get_command(app)
    page = (
        "Try `holdfast jobs lst` or `holdfast why 7 8`:\n\n    HOLDFAST_URL=x holdfast jobs list --stat failed | less\n"
    )
    assert [missing(tree, line) for line in named(page)] == ["--stat", "lst", "Got unexpected extra argument(s) (8)"]
