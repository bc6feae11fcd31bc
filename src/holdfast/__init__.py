"""Holdfast: durable jobs for Python, on the database you already have."""

from holdfast.app import App
from holdfast.context import Context
from holdfast.domain.errors import HoldfastError
from holdfast.domain.job import Attempt, Event, Job
from holdfast.domain.policies import Backoff
from holdfast.domain.policies import RetryPolicy as Retry
from holdfast.domain.states import State
from holdfast.handle import Handle
from holdfast.kind import Kind

__version__ = "0.1.0"

__all__ = [
    "App",
    "Attempt",
    "Backoff",
    "Context",
    "Event",
    "Handle",
    "HoldfastError",
    "Job",
    "Kind",
    "Retry",
    "State",
    "__version__",
]
