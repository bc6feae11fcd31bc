"""What handlers did outside the database, written down by themselves: one line an effect, on disk before they go on.

The file is opened with O_APPEND and synced after each line, so that a handler's process can be killed right after and
the line is still there: runs can be counted without asking the database that is under test.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "effects"


@dataclass(frozen=True)
class Effect:
    """`what` is "begun" or a word of the handler's own."""

    job: str
    attempt: int
    what: str
    pid: int


def leave(folder: Path, job: str, attempt: int, what: str = "begun") -> None:
    """In the handler's process. Who is killed in the middle of a write leaves half a line, which the next one ends."""
    line = f"\n{json.dumps(asdict(Effect(job, attempt, what, os.getpid())))}\n"
    handle = os.open(folder / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line.encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def effects(folder: Path, what: str | None = None) -> list[Effect]:
    """All of them so far, or those of one word. Half a line is no effect."""
    path = folder / FILE
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    found = [Effect(**json.loads(line)) for line in lines if line.startswith("{") and line.endswith("}")]
    return [effect for effect in found if what in (None, effect.what)]


def runs(folder: Path) -> Counter[str]:
    """How often each job was begun."""
    return Counter(effect.job for effect in effects(folder, "begun"))
