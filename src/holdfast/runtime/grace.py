"""The time that a worker's jobs have to end in when it is asked to stop."""

from __future__ import annotations

import asyncio


class Grace:
    """It begins when somebody first asks whether it is over."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: float | None = None

    @property
    def begun(self) -> bool:
        return self._until is not None

    def cut(self) -> None:
        """There is none, from now on."""
        self._seconds, self._until = 0.0, None

    def left(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._until is None:
            self._until = now + self._seconds
        return max(0.0, self._until - now)

    def is_over(self) -> bool:
        return self.left() <= 0.0

    def shortened(self, pause: float) -> float:
        """A pause that does not outlast it."""
        if self._until is None:
            return pause
        return min(pause, max(0.0, self._until - asyncio.get_running_loop().time()))
