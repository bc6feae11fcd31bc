"""For a handler's ``call`` that knows by itself how the attempt ended, beyond returning and raising."""

from __future__ import annotations

from holdfast.domain.outcome import Outcome


class Ended(Exception):
    """Carries the outcome past whatever is in between, to ``execute``."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome
