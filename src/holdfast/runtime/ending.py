"""For a handler's ``call`` that knows by itself how the attempt ended, beyond returning and raising."""

from __future__ import annotations

from holdfast.engine.outcome import Outcome, Paused


class Ended(Exception):
    """Carries the outcome past whatever is in between, to ``execute``."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Suspended(BaseException):
    """The handler waits for something and lets go of its worker; it is run again when that has come.

    Not an ``Exception``: a handler that carries on after errors must not carry on after this.
    """

    def __init__(self, outcome: Paused) -> None:
        super().__init__(f"waits for {outcome.pause['kind']} {outcome.pause['name']}")
        self.outcome = outcome
