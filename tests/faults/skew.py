"""A process whose clock is wrong, for as much of it as Python can see: installed before anything else is imported.

(The database keeps its own time. On SQLite that is the machine's, which every process shares.)
"""

from __future__ import annotations

import os
import time

SKEW_VARIABLE = "HOLDFAST_TEST_SKEW"


def install() -> None:
    """From now on `time.time` and `time.time_ns` are wrong by the seconds in the environment."""
    seconds = float(os.environ.get(SKEW_VARIABLE) or 0.0)
    if seconds:
        right, right_ns = time.time, time.time_ns
        time.time = lambda: right() + seconds
        time.time_ns = lambda: right_ns() + int(seconds * 1e9)
