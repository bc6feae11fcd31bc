"""Holdfast: durable jobs for Python, on the database you already have.

    app = App()  # the database that HOLDFAST_URL names

    @app.job
    async def send_mail(to: str) -> None: ...

    send_mail.enqueue("a@example.com")

Run the jobs with ``holdfast worker MODULE:app``.
"""

from typing import TYPE_CHECKING

from holdfast import webhooks
from holdfast.app import App
from holdfast.app.process_handlers import Process
from holdfast.context import Context, SyncContext, current
from holdfast.engine.hooks import EndInfo, EnqueueInfo, Hooks, NewJob, RunInfo
from holdfast.engine.job import Attempt, Event, Job, Result
from holdfast.engine.outcome import Cancel, Reject, RetryLater, Stopped
from holdfast.engine.retry import Backoff, Retry, can_retry, retry_after
from holdfast.engine.states import State
from holdfast.engine.steps import Progress, Step
from holdfast.engine.trace import Trace
from holdfast.engine.version import __version__
from holdfast.errors import EventTimeout, HoldfastError, StepFailed, StepsChanged
from holdfast.features.agents.model import Agent
from holdfast.features.approvals.model import Approval
from holdfast.features.approvals.operations import ApprovalRequest
from holdfast.features.attempts.model import AttemptLog
from holdfast.features.dead_letters.model import DeadLetterGroup, Operation
from holdfast.features.events.model import SentEvent, Subscription
from holdfast.features.health.model import Health
from holdfast.features.jobs.handle import Handle
from holdfast.features.jobs.model import Why
from holdfast.features.jobs.why_reasons import Reason
from holdfast.features.limits.model import Limit, Pause, Reservation
from holdfast.features.payloads.model import PayloadPolicy
from holdfast.features.retention.model import Retention, Usage
from holdfast.features.schedules.model import Schedule, ScheduleRun, Template
from holdfast.features.webhooks.model import Webhook
from holdfast.features.workflows.model import Workflow, WorkflowFailure, WorkflowStatus
from holdfast.features.workflows.run import WorkflowPlan, WorkflowRun
from holdfast.kind import Kind
from holdfast.outgoing import EgressPolicy
from holdfast.steps.approvals import ApprovalNotice, Decision
from holdfast.steps.driver import step_key
from holdfast.steps.values import AppEvent
from holdfast.stores.requests import SentResult
from holdfast.telemetry.logs import configure_logging
from holdfast.telemetry.observers import current_trace, outgoing_headers, trace_from

__all__ = [
    "Agent",
    "App",
    "AppEvent",
    "Approval",
    "ApprovalNotice",
    "ApprovalRequest",
    "Attempt",
    "AttemptLog",
    "Backoff",
    "Cancel",
    "Context",
    "DeadLetterGroup",
    "Decision",
    "EgressPolicy",
    "EndInfo",
    "EnqueueInfo",
    "Event",
    "EventTimeout",
    "Handle",
    "Health",
    "HoldfastError",
    "Hooks",
    "Job",
    "Kind",
    "Limit",
    "NewJob",
    "Operation",
    "Pause",
    "PayloadPolicy",
    "Process",
    "Progress",
    "Reason",
    "Reject",
    "Reservation",
    "Result",
    "Retention",
    "Retry",
    "RetryLater",
    "RunInfo",
    "Schedule",
    "ScheduleRun",
    "SentEvent",
    "SentResult",
    "State",
    "Step",
    "StepFailed",
    "StepsChanged",
    "Stopped",
    "Subscription",
    "SyncContext",
    "Template",
    "Trace",
    "Usage",
    "Webhook",
    "Why",
    "Workflow",
    "WorkflowFailure",
    "WorkflowPlan",
    "WorkflowRun",
    "WorkflowStatus",
    "__version__",
    "can_retry",
    "configure_logging",
    "current",
    "current_trace",
    "outgoing_headers",
    "retry_after",
    "step_key",
    "trace_from",
    "webhooks",
]

if not TYPE_CHECKING:  # type checkers would accept every name

    def __getattr__(name: str) -> object:
        from sys import _getframe

        from holdfast.engine.hints import ATTRIBUTES, no_attribute

        error = no_attribute("holdfast", None, name)
        # ``from holdfast import chain`` would replace an AttributeError by its own error, without the hint.
        if name in ATTRIBUTES["holdfast"] and _getframe(1).f_code.co_name == "_handle_fromlist":
            raise ImportError(str(error), name="holdfast")
        raise error
