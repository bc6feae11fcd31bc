"""Holdfast over HTTP: the client of a service (``holdfast serve``), typed, in both colours.

``Client`` blocks, ``AsyncClient`` is awaited; both have the verbs of the local app and answer with the same records, so
that code can move from one to the other. It needs the extra ``http``.
"""

from __future__ import annotations

from holdfast.remote.client import AsyncClient, Client
from holdfast.remote.handle import Call, JobHandle, JobOptions
from holdfast.remote.link import Retrying
from holdfast.remote.runners import AsyncRunner, SyncRunner
from holdfast.remote.transport import AsyncHttpxTransport, AsyncTransport, HttpxTransport, Transport

Handle = JobHandle[SyncRunner]
AsyncHandle = JobHandle[AsyncRunner]

__all__ = [
    "AsyncClient",
    "AsyncHandle",
    "AsyncHttpxTransport",
    "AsyncTransport",
    "Call",
    "Client",
    "Handle",
    "HttpxTransport",
    "JobOptions",
    "Retrying",
    "Transport",
]
