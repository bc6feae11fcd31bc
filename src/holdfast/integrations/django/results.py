"""Convert a job into Django's ``TaskResult``."""

from __future__ import annotations

import builtins
import dataclasses
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from holdfast.engine.ids import parse_id
from holdfast.engine.job import Attempt, Job, Result
from holdfast.engine.payload import Unreadable
from holdfast.engine.states import State
from holdfast.engine.trace import plain_tags
from holdfast.errors import InvalidInput
from holdfast.integrations.django.compat import (
    DEFAULT_TASK_BACKEND_ALIAS,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
)
from holdfast.stores.flow import Steps, flow

if TYPE_CHECKING:
    from holdfast.features.assembly import Store
    from holdfast.integrations.django.backend import HoldfastBackend

# A job that waits for a retry, a time or an approval is READY: in Django's words "ready to be executed again".
STATUS: Final = {
    State.QUEUED: TaskResultStatus.READY,
    State.LEASED: TaskResultStatus.READY,
    State.RETRY_WAITING: TaskResultStatus.READY,
    State.WAITING_FOR_APPROVAL: TaskResultStatus.READY,
    State.IN_PROGRESS: TaskResultStatus.RUNNING,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    State.FAILED: TaskResultStatus.FAILED,
    State.DEAD_LETTER: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}


def enqueued_at(job_id: str) -> datetime:
    """Return the time of enqueue, from the id, which begins with milliseconds. This saves a query."""
    return datetime.fromtimestamp(int(job_id[:8] + job_id[9:13], 16) / 1_000, UTC)


def find(backend: HoldfastBackend, result_id: str) -> Any:
    """Return the result of a job. It is read on Django's connection, which sees jobs of the open transaction."""
    from holdfast.integrations.django.backend import task_at

    try:
        job_id = parse_id(result_id)
    except InvalidInput:
        raise TaskResultDoesNotExist(result_id) from None
    session = backend.app.session
    session.follow()
    snapshot = session.read(_snapshot(session.store, job_id, session.tenant))
    if snapshot is None or snapshot[0].state not in STATUS:  # retention may have removed its data
        raise TaskResultDoesNotExist(result_id)
    job, attempts, stored = snapshot
    payload = _payload(job, session.vault)
    result = TaskResult(
        task=_task(task_at(job.kind), job, payload.get("backend", DEFAULT_TASK_BACKEND_ALIAS)),
        id=job.id,
        status=STATUS[job.state],
        enqueued_at=enqueued_at(job.id),
        started_at=attempts[0].started_at if attempts else None,
        finished_at=job.finished_at,
        last_attempted_at=attempts[-1].started_at if attempts else None,
        args=payload.get("args", []),
        kwargs=payload.get("kwargs", {}),
        backend=backend.alias,
        errors=[_error(attempt) for attempt in attempts if attempt.error_code is not None],
        worker_ids=[attempt.worker for attempt in attempts],
    )
    if job.state is State.SUCCEEDED and stored is not None:
        value = session.vault.open_value(stored.value, stored.ref, tenant=job.tenant, job_id=job.id)
        object.__setattr__(result, "_return_value", None if isinstance(value, Unreadable) else value)
    return result


@flow(writes=False)
def _snapshot(store: Store, job_id: str, tenant: str) -> Steps[tuple[Job, list[Attempt], Result | None] | None]:
    job = yield from store.jobs.get(job_id, tenant).start()
    if job is None:
        return None
    attempts = (yield from store.jobs.attempts(job_id, tenant).start()) if job.attempt else []
    stored = (yield from store.jobs.result(job_id, tenant).start()) if job.state is State.SUCCEEDED else None
    return job, attempts, stored


def _payload(job: Job, vault: Any) -> dict[str, Any]:
    payload = job.payload
    if isinstance(payload, dict) and "args" not in payload:  # encrypted, or in the artifact store
        payload = vault._opened(payload, what="payload", tenant=job.tenant, job_id=job.id)
    return payload if isinstance(payload, dict) else {}


def _task(task: Any, job: Job, backend: str) -> Any:
    """Return the task with the options of this job."""
    options = {
        "priority": job.priority,
        "queue_name": job.queue,
        "run_after": job.run_at,
        "backend": backend,
        "key": job.idempotency_key,
        "tags": plain_tags(job.tags),
    }
    fields = {field.name for field in dataclasses.fields(task)}
    changed = {name: value for name, value in options.items() if name in fields and getattr(task, name) != value}
    return dataclasses.replace(task, **changed) if changed else task


class RecordedError(TaskError):
    """An error of an attempt. Its type is found among the modules that this process has imported: the path comes from
    the database."""

    @property
    def exception_class(self) -> type[BaseException]:
        module, _, name = self.exception_class_path.rpartition(".")
        found = getattr(sys.modules.get(module), name, None)
        if isinstance(found, type) and issubclass(found, BaseException):
            return found
        raise ImportError(f"{self.exception_class_path} is not an exception that this process has imported")


def _error(attempt: Attempt) -> Any:
    return RecordedError(exception_class_path=_path(attempt.error_code or ""), traceback=attempt.traceback or "")


def _path(code: str) -> str:
    """Return the path of an exception type for an error code, which is a type's name or a code such as ``timeout``."""
    if "." in code:
        return code
    if isinstance(getattr(builtins, code, None), type):
        return f"builtins.{code}"
    return "builtins.TimeoutError" if code == "timeout" else "holdfast.errors.HoldfastError"
