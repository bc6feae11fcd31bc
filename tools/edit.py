# ruff: noqa
"""Small changes beside a move, by exact text, so that they can be made again on a newer tree. It says what it misses."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def swap(path: str, old: str, new: str, *, needed: bool = True) -> None:
    file = ROOT / path
    text = file.read_text() if file.exists() else ""
    if old not in text:
        if needed:
            sys.exit(f"{path} has no {old!r}")
        return
    file.write_text(text.replace(old, new))


def sub(path: str, pattern: str, new: str, *, needed: bool = True) -> None:
    file = ROOT / path
    text, count = re.subn(pattern, new, file.read_text(), flags=re.MULTILINE | re.DOTALL)
    if not count and needed:
        sys.exit(f"{path} has nothing like {pattern!r}")
    file.write_text(text)
