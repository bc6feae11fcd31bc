"""The report of a drain, and the errors of the test kit.

    JobFailed
    └── JobsFailed     jobs failed in a drain with ``check``
    HoldfastError
    ├── NeverIdle      jobs keep enqueuing jobs, or run again at once, forever
    └── JobWaits       the job that was run has no result yet

They are not in ``holdfast.errors``, because only tests raise them.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.engine.job import Job
from holdfast.engine.states import State
from holdfast.errors import HoldfastError, JobFailed


@dataclass(frozen=True, slots=True)
class Failure:
    """A job that failed. ``error`` is the exception of its handler; None if it was raised in another process."""

    job: Job
    error: BaseException | None = field(repr=False)
    traceback: str | None = field(repr=False)

    def __str__(self) -> str:
        job = self.job
        tries = f"{job.attempt} attempt{'s' if job.attempt > 1 else ''}"
        return f"{job.kind} {job.id} is {job.state} after {tries}: {job.error_code}: {job.error_message}"


@dataclass(frozen=True, slots=True)
class Drained:
    """The report of a drain: each job once, in its current state, in the order in which they started."""

    jobs: tuple[Job, ...]
    attempts: int
    failures: tuple[Failure, ...] = ()

    def __repr__(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in self.states.items())
        return f"<Drained {len(self.jobs)} jobs in {self.attempts} attempts: {states or 'nothing to do'}>"

    @property
    def states(self) -> dict[State, int]:
        """The number of jobs per state: ``{"succeeded": 3}``."""
        return dict(Counter(job.state for job in self.jobs))


class JobsFailed(JobFailed):
    """Jobs failed in a drain. ``failures`` has each of them; ``report`` is the complete report."""

    default_code = "jobs_failed"

    def __init__(self, report: Drained) -> None:
        many = len(report.failures)
        super().__init__(
            f"{many} job{'s' if many > 1 else ''} failed",
            fix="If that is expected, use drain(check=False).",
        )
        self.report = report
        self.failures = report.failures

    def __str__(self) -> str:
        return "\n\n".join([super().__str__(), *self._details(self.failures)])

    def _details(self, failures: Sequence[Failure]) -> Iterable[str]:
        for failure in failures:
            yield str(failure)
            # Python prints the traceback of the cause itself.
            if failure.traceback and (failure.error is None or failure.error is not self.__cause__):
                yield textwrap.indent(failure.traceback.rstrip(), "  ")


class NeverIdle(HoldfastError):
    """The drain ran more attempts than its limit."""

    default_code = "never_idle"

    def __init__(self, limit: int, kinds: Iterable[str]) -> None:
        most = ", ".join(f"{kind} ({times})" for kind, times in Counter(kinds).most_common(5))
        super().__init__(
            f"still not idle after {limit} attempts; they were {most}",
            fix="Check for a job that enqueues itself or returns at once. Otherwise pass a higher limit to drain.",
        )


class JobWaits(HoldfastError):
    """The job that was run has no result yet: it sleeps, waits, or was snoozed."""

    default_code = "job_waits"

    def __init__(self, job: Job, reason: str | None) -> None:
        until = f" until {job.due_at}" if job.due_at else ""
        why = f": {reason}" if reason else ""
        super().__init__(f"job {job.id} ({job.kind}) has no result yet, it is {job.state}{until}{why}")
        self.job = job
