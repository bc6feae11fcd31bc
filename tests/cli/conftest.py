"""Fixtures of the command line: `holdfast("jobs", "list")` runs a command in this process, on each store."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import pytest
import typer.main
from typer.testing import CliRunner, Result

from holdfast import config
from holdfast.cli.commands import app
from holdfast.features.assembly import Store, open_store

# Building the commands takes longer than running most of them.
get_command = functools.cache(typer.main.get_command)

SHOP = """
import asyncio, sys, time
import holdfast

app = holdfast.App()
number = 3

@app.job()
async def add(a: int, b: int = 1) -> int:
    return a + b

@app.job()
async def nap(seconds: float) -> str:
    print("the handler runs", file=sys.stderr, flush=True)
    await asyncio.sleep(seconds)
    return "rested"

@app.job()
def stuck() -> None:
    print("the handler runs", file=sys.stderr, flush=True)
    time.sleep(1000)
"""


class Holdfast(Protocol):
    def __call__(self, *arguments: str, input: str | bytes | None = None) -> Result: ...


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(url)) as opened:
        yield opened


@pytest.fixture
def sqlite_store(sqlite_url: str) -> Iterator[Store]:
    """For slow tests that do not depend on the store."""
    with closing(open_store(sqlite_url)) as opened:
        yield opened


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Holdfast:
    """The command line without settings in the environment."""
    for name in (config.URL_VARIABLE, config.TENANT_VARIABLE, "FORCE_COLOR", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("typer.testing._get_command", get_command)

    def run(*arguments: str, input: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, arguments, input=input, prog_name="holdfast", catch_exceptions=False)

    return run


@pytest.fixture
def holdfast(bare: Holdfast, store: Store, monkeypatch: pytest.MonkeyPatch) -> Holdfast:
    """The command line with HOLDFAST_URL set to a migrated database."""
    monkeypatch.setenv(config.URL_VARIABLE, store.url)
    return bare


def document(result: Result) -> Any:
    """The one JSON document on stdout."""
    return json.loads(result.stdout)


def error_of(result: Result) -> dict[str, Any]:
    """The error that a command printed with --json; stdout must be empty."""
    assert result.stdout == ""
    error: dict[str, Any] = json.loads(result.stderr)["error"]
    assert set(error) == {"code", "message", "fix"}
    return error


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with a working program and two broken ones."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "shop.py").write_text(SHOP)
    (folder / "broken.py").write_text("import holdfast\n\nprint(undefined)\n")
    (folder / "lacking.py").write_text("import no_such_library\n")
    return folder
