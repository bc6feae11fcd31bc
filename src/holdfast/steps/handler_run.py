"""One run of a handler: its claim, and the tools that the worker provides.

``Context`` and ``SyncContext`` are views of a ``HandlerRun``: they offer its data and operations, and keep it in a
private slot. The worker side (``app/handlers.py``) creates it, and reads it when the handler has ended.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.engine.job import Claim, log_fields
from holdfast.engine.outcome import Stopped
from holdfast.engine.redaction import Redact, Redactor
from holdfast.engine.trace import Trace, plain_tags
from holdfast.errors import InvalidSetting, StepsChanged
from holdfast.features.attempts.model import LogPart
from holdfast.steps.driver import Durable, Plan, StepTools
from holdfast.steps.program import DurableCall
from holdfast.steps.transaction import Completion, Ending
from holdfast.stores.session import Session
from holdfast.telemetry.job_log import JobLog
from holdfast.worker.log_writer import AttemptLines, LogWriter
from holdfast.worker.shutdown import Stop

if TYPE_CHECKING:
    from holdfast.kind import Prepared

T = TypeVar("T")

# One lock for all attempts: it is held for an instant, by the first line of an attempt.
_opening = threading.Lock()


class ThreadDriver:
    """Runs durable calls from the handler's thread."""

    def __init__(self, plan: Plan, loop: asyncio.AbstractEventLoop) -> None:
        self.plan = plan
        self._loop = loop

    def drive(self, call: DurableCall, run: Callable[[], Any] | None = None) -> Any:
        return self.plan.durable.drive_in_thread(call, self._loop, run)

    def run_on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return self.plan.durable.run_on_loop(self._loop, work)


@dataclass(slots=True, eq=False)
class HandlerRun:
    """``report`` writes progress without waiting, ``prepare`` makes a child job, ``tools`` are for durable calls; all
    three exist in a worker only. ``halt`` is raised in a handler that makes a durable call after it must stop."""

    claim: Claim
    session: Session
    logger: logging.Logger
    stop: Stop = field(default_factory=Stop)
    redact: Redact = field(default_factory=Redactor)
    report: Callable[[str], None] | None = None
    prepare: Callable[..., Prepared[Any]] | None = None
    completion: Completion = field(default_factory=Completion)
    tools: StepTools | None = None
    loop: asyncio.AbstractEventLoop | None = None
    halt: type[BaseException] = Stopped
    extras: dict[str, Any] | None = None
    """Data of integrations for the duration of the attempt, by their name."""
    log_writer: LogWriter | None = None
    """Stores the lines that the handler logs; None if they are not stored."""
    lines: AttemptLines | None = field(default=None, init=False)
    """Created by the first stored line, because most attempts have none."""
    _plan: Plan | None = field(default=None, init=False)
    _thread_driver: ThreadDriver | None = field(default=None, init=False)

    @property
    def plan(self) -> Plan:
        """The durable calls of this attempt; created by the first one, because most attempts have none."""
        if self._plan is None:
            if self.tools is None:
                raise InvalidSetting("durable calls work only in a worker", code="no_worker")
            durable = Durable(self.claim, self.session, self.tools, self.redact, self.stop, self.halt)
            self._plan = Plan(durable)
        return self._plan

    @property
    def thread_driver(self) -> ThreadDriver:
        if self._thread_driver is None:
            plan = self.plan
            assert self.loop is not None  # a worker that provides the tools provides its loop
            self._thread_driver = ThreadDriver(plan, self.loop)
        return self._thread_driver

    @property
    def log(self) -> JobLog:
        fields = log_fields(self.claim)
        if self.session.version is not None:
            fields["version"] = self.session.version
        return JobLog(self.logger, fields, self.redact, None if self.log_writer is None else self.keep)

    def keep(self, line: str) -> None:
        """Add a line to the attempt's log; from any thread."""
        if self.lines is None and self.log_writer is not None:
            assert self.loop is not None  # a worker that provides the writer provides its loop
            self._open_lines(self.log_writer, self.loop)
        if self.lines is not None:
            self.lines(line)

    def _open_lines(self, writer: LogWriter, loop: asyncio.AbstractEventLoop) -> None:
        with _opening:  # threads that the handler has started may log at the same time
            if self.lines is None:
                self.lines = writer.open(self.claim, loop)

    def hold_lines(self) -> list[LogPart]:
        """The lines that may not be written yet, for a transaction that ends the job."""
        return [] if self.lines is None else self.lines.hold()

    @property
    def ending(self) -> Ending:
        return Ending(self.claim, self.session, self.completion, self.stop, self.hold_lines, self.check_may_end)

    def check_may_end(self) -> None:
        """Raise ``Suspended`` or ``StepsChanged`` again if the handler has caught it, and if it has not asked for a
        recorded decision."""
        if self._plan is not None:
            self._plan.durable.check_not_suspended()
            self._plan.durable.check_decisions()

    @property
    def changed(self) -> StepsChanged | None:
        """The error of a durable call that differs from the recorded one; the handler may have raised another."""
        return None if self._plan is None else self._plan.durable.changed

    async def finish_steps(self) -> None:
        """Wait for steps that the handler has started and not awaited. Called when it has returned or raised."""
        if self._plan is not None and not self.stop.is_set:
            await self._plan.durable.finish_steps()

    def check_returned(self) -> None:
        """Called when the handler has returned. Logs the calls of an earlier attempt that this one did not make."""
        self.check_may_end()
        for step in () if self._plan is None else self._plan.durable.script.unused:
            self.log.warning(
                "%s %r (call %s) was recorded before but is no longer in the handler", step.kind, step.name, step.n
            )


class Facts:
    """The facts of a running job. They come from the claim and do not change during the attempt."""

    __slots__ = ("_run",)

    def __init__(self, run: HandlerRun) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"{type(self).__name__}(job_id={self.job_id!r}, kind={self.kind!r}, attempt={self.attempt})"

    @property
    def job_id(self) -> str:
        return self._run.claim.id

    @property
    def tenant(self) -> str:
        return self._run.claim.tenant

    @property
    def kind(self) -> str:
        return self._run.claim.kind

    @property
    def queue(self) -> str:
        return self._run.claim.queue

    @property
    def priority(self) -> int:
        return self._run.claim.priority

    @property
    def tags(self) -> tuple[str, ...]:
        return plain_tags(self._run.claim.tags)

    @property
    def trace(self) -> Trace:
        """The trace of this execution (``ctx.trace.traceparent``): the producer's, or one derived from the job's id."""
        return self._run.claim.trace

    @property
    def agent(self) -> str | None:
        return self._run.claim.agent

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1. Every start counts: failures, lost workers, snoozes, redrives."""
        return self._run.claim.attempt

    @property
    def retries(self) -> int:
        """Failed attempts since the last redrive."""
        return self._run.claim.retries

    @property
    def crashes(self) -> int:
        """Workers lost while they ran this job, since the last redrive."""
        return self._run.claim.crashes

    @property
    def max_attempts(self) -> int:
        return self._run.claim.max_attempts

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure of this attempt makes the job a dead letter."""
        return self._run.claim.retries + 1 >= self._run.claim.max_attempts

    @property
    def created_at(self) -> datetime:
        return self._run.claim.created_at

    @property
    def deadline_at(self) -> datetime | None:
        return self._run.claim.deadline_at

    @property
    def correlation_id(self) -> str | None:
        return self._run.claim.correlation_id

    @property
    def parent_id(self) -> str | None:
        return self._run.claim.parent_id

    @property
    def workflow_id(self) -> str | None:
        return self._run.claim.workflow_id

    @property
    def idempotency_key(self) -> str:
        """The same text in every attempt. Pass it to services that accept an idempotency key."""
        return f"{self._run.claim.tenant}:{self._run.claim.kind}:{self._run.claim.id}"
