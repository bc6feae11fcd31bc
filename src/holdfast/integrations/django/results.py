"""Django's ``TaskResult``: of a job in the database, and of a task that runs in this worker, with Django's signals."""

from __future__ import annotations

import builtins
import dataclasses
import sys
from datetime import UTC, datetime
from traceback import format_exception
from typing import TYPE_CHECKING, Any, Final

from django.utils import timezone

from holdfast.engine.ids import parse_id
from holdfast.engine.job import DEFAULT_RETRY, Attempt, Job, Result
from holdfast.engine.outcome import Cancel, Reject, RetryLater, Snooze, Stopped
from holdfast.engine.payload import Unreadable
from holdfast.engine.retry import as_policy
from holdfast.engine.settlement import decide
from holdfast.engine.states import State
from holdfast.engine.trace import plain_tags
from holdfast.errors import InvalidInput
from holdfast.integrations.django.compat import (
    DEFAULT_TASK_BACKEND_ALIAS,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from holdfast.stores.flow import Steps, flow
from holdfast.telemetry.tracebacks import failure, type_name
from holdfast.worker.shutdown import Ended

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


# Exceptions with which a handler ends an attempt without failing.
_NO_FAILURE = (Snooze, RetryLater, Cancel, Stopped, Ended)


def run_task(task: Any, ctx: Any, args: list[Any], kwargs: dict[str, Any], alias: str) -> Any:
    result, sender = _started(task, ctx, args, kwargs, alias), type(task_backends[alias])
    task_started.send(sender, task_result=result)
    try:
        value = normalize_json(task.func(*_arguments(task, result), **result.kwargs))
    except BaseException as error:
        if _failed(task, ctx, result, error):
            task_finished.send(sender, task_result=result)
        raise
    _succeeded(result, value)
    task_finished.send(sender, task_result=result)
    return value


async def arun_task(task: Any, ctx: Any, args: list[Any], kwargs: dict[str, Any], alias: str) -> Any:
    result, sender = _started(task, ctx, args, kwargs, alias), type(task_backends[alias])
    await task_started.asend(sender, task_result=result)
    try:
        value = normalize_json(await task.func(*_arguments(task, result), **result.kwargs))
    except BaseException as error:
        if _failed(task, ctx, result, error):
            await task_finished.asend(sender, task_result=result)
        raise
    _succeeded(result, value)
    await task_finished.asend(sender, task_result=result)
    return value


def _started(task: Any, ctx: Any, args: list[Any], kwargs: dict[str, Any], alias: str) -> Any:
    now, claim = timezone.now(), ctx._run.claim
    return TaskResult(
        task=task,
        id=claim.id,
        status=TaskResultStatus.RUNNING,
        enqueued_at=enqueued_at(claim.id),
        started_at=now,
        finished_at=None,
        last_attempted_at=now,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[],
        # Earlier attempts are in the ledger; here only their number matters.
        worker_ids=[claim.lease] * claim.attempt,
    )


def _arguments(task: Any, result: Any) -> list[Any]:
    return [TaskContext(task_result=result), *result.args] if task.takes_context else result.args


def _succeeded(result: Any, value: Any) -> None:
    object.__setattr__(result, "_return_value", value)
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)


def _failed(task: Any, ctx: Any, result: Any, error: BaseException) -> bool:
    """Record the error. Return whether the task has finished: not without a failure, or if a retry follows."""
    if isinstance(error, _NO_FAILURE) or not isinstance(error, Exception | SystemExit):
        return False
    kind = type_name(error)
    path = kind if "." in kind else f"builtins.{kind}"
    result.errors.append(TaskError(exception_class_path=path, traceback="".join(format_exception(error))))
    retry = getattr(task, "retry", None)
    final = isinstance(error, Reject) or (DEFAULT_RETRY if retry is None else as_policy(retry)).is_final(error)
    outcome = failure(error, ctx._run.redact, final=final)
    if decide(ctx._run.claim, outcome, 0.0).ending == "retry":
        object.__setattr__(result, "status", TaskResultStatus.READY)
        return False
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "status", TaskResultStatus.FAILED)
    return True
