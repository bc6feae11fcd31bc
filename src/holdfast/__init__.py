"""Holdfast: durable jobs for Python, on the database you already have."""

from holdfast.app import App
from holdfast.context import Context, current
from holdfast.domain.agents import Agent
from holdfast.domain.control import Cancel, Reject, Stopped
from holdfast.domain.errors import HoldfastError
from holdfast.domain.job import Attempt, Event, Job
from holdfast.domain.policies import Backoff, Retry
from holdfast.domain.progress import Progress
from holdfast.domain.states import State
from holdfast.handle import Handle
from holdfast.headers import retry_after
from holdfast.kind import Kind

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "App",
    "Attempt",
    "Backoff",
    "Cancel",
    "Context",
    "Event",
    "Handle",
    "HoldfastError",
    "Job",
    "Kind",
    "Progress",
    "Reject",
    "Retry",
    "State",
    "Stopped",
    "__version__",
    "current",
    "retry_after",
]
