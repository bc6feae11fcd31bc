"""Holdfast over HTTP: the typed client of a service (``holdfast serve``). It needs the extra ``http``.

``Client`` has the namespaces of the local ``App`` and returns the same records, so code can move from one to the other.
Every operation has a sync and an async form.
"""

from __future__ import annotations

from holdfast.engine.job_options import EnqueueOptions
from holdfast.remote.client import Client
from holdfast.remote.derived import Call
from holdfast.remote.jobs import JobHandle
from holdfast.remote.runners import Retrying
from holdfast.remote.transport import AsyncHttpxTransport, AsyncTransport, HttpxTransport, Transport

__all__ = [
    "AsyncHttpxTransport",
    "AsyncTransport",
    "Call",
    "Client",
    "HttpxTransport",
    "JobHandle",
    "EnqueueOptions",
    "Retrying",
    "Transport",
]
