"""Test your jobs: ``with holdfast.testing.Kit(app) as kit:``, or the pytest fixture ``holdfast_kit``.

Within the block, the app uses a private database: the real store and state machine, with a clock that the test can
move. Nothing is patched, and importing this module has no effect.
"""

from holdfast.testing.drain_report import Drained, Failure, JobsFailed, JobWaits, NeverIdle
from holdfast.testing.kit import Decided, Kit

__all__ = ["Decided", "Drained", "Failure", "JobWaits", "JobsFailed", "Kit", "NeverIdle"]
