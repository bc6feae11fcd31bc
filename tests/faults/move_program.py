"""Moves a database in a process of its own, which kills itself at a point: SOURCE TARGET POINT NUMBER ACTION."""

from __future__ import annotations

import os
import signal
import sys

from holdfast.features.moves import operations
from holdfast.features.moves.operations import mover

RANGE = 40
"""Rows of a range, so that there are several."""


def main(source: str, target: str, point: str, number: str, action: str) -> None:
    left = int(number)

    def at(reached: str) -> None:
        nonlocal left
        left -= reached == point
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    operations.RANGE = RANGE  # type: ignore[misc]
    with mover(source, target, announced=target) as moving:
        moving.at = at
        if action == "abort":
            moving.abort()
        else:
            moving.run(resume=action == "resume")
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
