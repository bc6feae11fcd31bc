"""Handlers in child processes with hooks; ``test_hooks.py`` imports this with HOLDFAST_URL set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextvars import ContextVar

import holdfast

app = holdfast.App(name="tests")
where: ContextVar[str] = ContextVar("where", default="")
ended: list[tuple[str, str, int]] = []


@app.hooks.around_run
def mark(run: holdfast.RunInfo) -> Iterator[None]:
    where.set("hooked")
    yield


@app.hooks.on_success
@app.hooks.on_failure
def note(end: holdfast.EndInfo) -> None:
    ended.append((end.kind, end.outcome, os.getpid()))


@app.job(process=True)
def child() -> tuple[int, str]:
    return os.getppid(), where.get()


@app.job(process=True, at_most_once=True)
def died() -> None:
    os._exit(3)
