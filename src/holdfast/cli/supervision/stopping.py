"""How children are stopped: asked once, told to hand back at once, killed when their time is over."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Collection

from holdfast.cli.output import say
from holdfast.cli.serving import AT_ONCE, ONCE_MORE, on_signals
from holdfast.cli.supervision.plan import MARGIN, STOP, STOP_NOW
from holdfast.cli.supervision.process import ChildProcess

log = logging.getLogger("holdfast.supervisor")


class Stopping:
    """Signals to the supervisor, turned into orders. ``killed`` counts the children that had to be."""

    def __init__(self, children: Callable[[], Collection[ChildProcess]], grace: float, *, quiet: bool) -> None:
        self.asked = asyncio.Event()
        self.killed = 0
        self._children = children
        self._grace = grace
        self._quiet = quiet
        self._signals = 0
        self._order = b""
        self._deadline: asyncio.TimerHandle | None = None

    def listen(self) -> None:
        on_signals(self.on_signal, self.on_hangup)

    def on_signal(self) -> None:
        self._signals += 1
        if self._signals == 1:
            self.stop()
        elif self._signals == 2:
            self._give(STOP_NOW, MARGIN)
            self._say(AT_ONCE)
        else:
            self._kill()

    def on_hangup(self) -> None:
        if not self._signals:
            self.on_signal()

    def stop(self) -> None:
        """Let them drain; what has not left by then is killed."""
        self.asked.set()
        self._give(STOP, self._grace + MARGIN)
        if self._signals:  # not before: whoever reads the messages may keep us waiting
            self._say(ONCE_MORE)

    def join(self, child: ChildProcess) -> None:
        """For a child that was started while the order was given."""
        if self.asked.is_set():
            child.order(self._order)

    def over(self) -> None:
        """All have left."""
        if self._deadline is not None:
            self._deadline.cancel()

    def _give(self, order: bytes, patience: float) -> None:
        self._order = order
        for child in self._children():
            child.order(self._order)
        self.over()
        self._deadline = asyncio.get_running_loop().call_later(patience, self._kill)

    def _kill(self) -> None:
        for child in self._children():
            log.error("worker %s (pid %s) did not leave in time; it is killed", child.number, child.pid)
            self.killed += 1
            child.send(signal.SIGKILL)

    def _say(self, message: str) -> None:
        if not self._quiet:
            say(message)
