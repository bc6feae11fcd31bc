"""For those who test jobs of their own: ``with holdfast.testing.Kit(app) as kit:``, or the fixture ``holdfast_kit``.

A kit puts an app on a private database for the length of a block: the real store, the real state machine, and a clock
that can be moved. Nothing is patched, and importing this changes nothing.
"""

from holdfast.testing.drain_report import Drained, Failure, JobsFailed, JobWaits, NeverIdle
from holdfast.testing.kit import Decided, Kit

__all__ = ["Decided", "Drained", "Failure", "JobWaits", "JobsFailed", "Kit", "NeverIdle"]
