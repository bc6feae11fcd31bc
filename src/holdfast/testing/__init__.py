"""Test your jobs: ``with holdfast.testing.Kit(app) as kit:``, or the pytest fixture ``holdfast_kit``.

Within the block, the app uses a private database: the real store and state machine, with a clock that the test can
move. Nothing is patched, and importing this module has no effect.
"""

from holdfast.app.replayer import Replayed, ReplayReport
from holdfast.steps.history import History
from holdfast.testing.drain import Drained, Failure, JobsFailed, JobWaits, NeverIdle, ReplayFailed
from holdfast.testing.kit import Decided, Kit

__all__ = [
    "Decided",
    "Drained",
    "Failure",
    "History",
    "JobWaits",
    "JobsFailed",
    "Kit",
    "NeverIdle",
    "ReplayFailed",
    "ReplayReport",
    "Replayed",
]
