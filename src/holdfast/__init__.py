"""Holdfast: durable jobs for Python, on the database you already have."""

from holdfast.app import App
from holdfast.context import Context, SyncContext, current
from holdfast.domain.agents import Agent
from holdfast.domain.control import Cancel, Reject, Stopped
from holdfast.domain.errors import EventTimeout, HoldfastError, StepFailed, StepsChanged
from holdfast.domain.gates import Gate
from holdfast.domain.job import Attempt, Event, Job
from holdfast.domain.limits import Limit
from holdfast.domain.policies import Backoff, Retry
from holdfast.domain.progress import Progress
from holdfast.domain.reservations import Reservation
from holdfast.domain.states import State
from holdfast.domain.steps import Step
from holdfast.domain.workflows import Workflow, WorkflowStatus
from holdfast.durable.approvals import ApprovalNotice, Decision
from holdfast.durable.plan import step_key
from holdfast.durable.values import AppEvent
from holdfast.handle import Handle
from holdfast.headers import retry_after
from holdfast.kind import Kind

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "App",
    "AppEvent",
    "ApprovalNotice",
    "Attempt",
    "Backoff",
    "Cancel",
    "Context",
    "Decision",
    "Event",
    "EventTimeout",
    "Gate",
    "Handle",
    "HoldfastError",
    "Job",
    "Kind",
    "Limit",
    "Progress",
    "Reject",
    "Reservation",
    "Retry",
    "State",
    "Step",
    "StepFailed",
    "StepsChanged",
    "Stopped",
    "SyncContext",
    "Workflow",
    "WorkflowStatus",
    "__version__",
    "current",
    "retry_after",
    "step_key",
]
