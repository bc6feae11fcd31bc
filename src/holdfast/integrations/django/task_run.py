"""Run one task in a worker, with Django's context and signals."""

from __future__ import annotations

from traceback import format_exception
from typing import Any

from django.utils import timezone

from holdfast.engine.job import DEFAULT_RETRY
from holdfast.engine.outcome import Cancel, Reject, RetryLater, Snooze, Stopped
from holdfast.engine.retry import as_policy
from holdfast.engine.settlement import decide
from holdfast.integrations.django.compat import (
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from holdfast.integrations.django.results import enqueued_at
from holdfast.telemetry.tracebacks import failure, type_name
from holdfast.worker.shutdown import Ended

# Exceptions with which a handler ends an attempt without failing.
_NO_FAILURE = (Snooze, RetryLater, Cancel, Stopped, Ended)


def run(task: Any, ctx: Any, args: list[Any], kwargs: dict[str, Any], alias: str) -> Any:
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


async def arun(task: Any, ctx: Any, args: list[Any], kwargs: dict[str, Any], alias: str) -> Any:
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
