"""A file in which handlers record their runs and effects, so that tests count them without the database under test.

The file is opened with O_APPEND and synced after each line: a line survives if the process is killed right after it.
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
    """`what` is "begun" or a description that the handler chooses."""

    job: str
    attempt: int
    what: str
    pid: int


def record_effect(folder: Path, job: str, attempt: int, what: str = "begun") -> None:
    """Append one line, in the handler's process. A leading newline ends the partial line of a killed writer."""
    line = f"\n{json.dumps(asdict(Effect(job, attempt, what, os.getpid())))}\n"
    handle = os.open(folder / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line.encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def effects(folder: Path, what: str | None = None) -> list[Effect]:
    """Read all effects, or those with this description. Partial lines are skipped."""
    path = folder / FILE
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    recorded = [Effect(**json.loads(line)) for line in lines if line.startswith("{") and line.endswith("}")]
    return [effect for effect in recorded if what in (None, effect.what)]


def runs(folder: Path) -> Counter[str]:
    """Count the runs of each job."""
    return Counter(effect.job for effect in effects(folder, "begun"))
