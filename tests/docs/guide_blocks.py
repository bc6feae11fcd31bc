"""The code blocks of a guide, and helpers to run them: an app, a worker, a clock."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import holdfast
from holdfast import App, Handle
from holdfast.app.internals import session_of
from tests.support.workers import work_off

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def text(guide: str) -> str:
    return (GUIDES / f"{guide}.md").read_text(encoding="utf-8")


def blocks(guide: str, language: str = "python") -> list[str]:
    return [block for kind, block in _BLOCK.findall(text(guide)) if kind == language]


def block_with(guide: str, part: str) -> str:
    """The one Python block of the guide that contains this text."""
    (block,) = (block for block in blocks(guide) if part in block)
    return block


def run(block: str, app: App, **names: Any) -> dict[str, Any]:
    """Run the block as a module; return its names."""
    module = {"__name__": "guide", "app": app, "holdfast": holdfast, **names}
    exec(compile(block, "guide", "exec"), module)
    return module


def later(app: App, span: timedelta) -> None:
    """Move the store's clock ahead of the real one."""
    session_of(app).run(session_of(app).store.clock.set(span, None))


def finish(app: App, handle: Handle[Any], limit: float = 30.0) -> Any:
    """Run jobs until this one has finished; return its result."""
    end = time.monotonic() + limit
    while not handle.state().finished:
        assert time.monotonic() < end, handle.get()
        work_off(app)
    return handle.result(timeout=5)
