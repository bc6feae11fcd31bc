"""Print progress to stderr, so that the tables can be piped."""

from __future__ import annotations

import sys


def note(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)
