"""``HoldfastBackend``: runs Django's tasks as jobs. The kind of a task's jobs is its path: ``shop.tasks.send``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from holdfast.app.declarations import SCHEDULES_ATTRIBUTE
from holdfast.app.internals import kinds_of
from holdfast.engine.hints import check_options, no_attribute
from holdfast.engine.retry import Retry, as_policy
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidArguments, InvalidInput
from holdfast.integrations.django import checks, results
from holdfast.integrations.django.application import DjangoApp, get_app, refuse_models
from holdfast.integrations.django.compat import (
    DEFAULT_TASK_BACKEND_ALIAS,
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from holdfast.kind import Kind
from holdfast.steps.signature import Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldfastTask(Task):
    """A task with options of Holdfast: ``@task(retry=Retry(max_attempts=5), timeout=30)``, ``.using(key="r-7")``.

    ``retry`` and ``timeout`` belong to the definition. ``key`` is an idempotency key: a second ``enqueue`` with it
    returns the result of the first job. ``tags`` are labels to search by.
    """

    retry: Retry | str | None = None
    timeout: Duration | None = None
    key: str | None = None
    tags: tuple[str, ...] = ()

    def using(self, **options: Any) -> HoldfastTask:
        """Return the task with other options: ``priority``, ``queue_name``, ``run_after``, ``backend``, ``key``,
        ``tags``."""
        check_options(options, _OPTIONS)
        return dataclasses.replace(self, **{name: value for name, value in options.items() if value is not None})

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("HoldfastTask", self, name, "task")


_OPTIONS = ("backend", "key", "priority", "queue_name", "retry", "run_after", "tags", "timeout")
_tasks: dict[str, Any] = {}
"""All tasks that this process has imported, by path."""
MAX_CACHED = 1_000


class HoldfastBackend(BaseTaskBackend):
    """The task backend. ``OPTIONS = {"retry": Retry(max_attempts=1)}`` is for tasks without a retry policy."""

    task_class = HoldfastTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.retry: Retry | str | None = self.options.get("retry")
        # Checked tasks and their kinds, by the id of the task. The task is referenced so that its id is not reused.
        self._checked: dict[int, tuple[Any, Kind[..., Any]]] = {}

    def validate_task(self, task: Any) -> None:
        super().validate_task(task)
        path = task.module_path
        if path in _tasks:
            return
        try:
            if (retry := getattr(task, "retry", None)) is not None:
                as_policy(retry)
            if (timeout := getattr(task, "timeout", None)) is not None:
                seconds(timeout, "timeout")
        except InvalidInput as error:
            raise InvalidTask(str(error)) from error
        _tasks[path] = task

    @property
    def app(self) -> DjangoApp:
        return get_app()

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue on Django's connection: the job exists if the open transaction commits."""
        cached = self._checked.get(id(task))
        kind = self._check(task) if cached is None else cached[1]
        result = self._result(task, args, kwargs)
        _check_arguments(task, result.args, result.kwargs)
        prepared = kind.prepare(result.args, result.kwargs, self.alias)
        handle = prepared.enqueue(self.app.session)
        if not handle.created:  # an earlier job has the same key
            return self.get_result(handle.id)
        object.__setattr__(result, "id", handle.id)
        object.__setattr__(result, "enqueued_at", results.enqueued_at(handle.id))
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        return results.find(self, str(result_id))

    def check(self, **_: Any) -> Iterable[Any]:
        return checks.check_backend(self)

    def _result(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            return TaskResult(
                task=task,
                id="",
                status=TaskResultStatus.READY,
                enqueued_at=None,
                started_at=None,
                finished_at=None,
                last_attempted_at=None,
                args=list(args),
                kwargs=dict(kwargs),
                backend=self.alias,
                errors=[],
                worker_ids=[],
            )
        except TypeError as refused:
            positional = {f"args[{number}]": value for number, value in enumerate(args)}
            refuse_models(task.module_path, {**positional, **kwargs}, refused)
            raise

    def _check(self, task: Any) -> Kind[..., Any]:
        """Check the task and return the kind with its options. This takes a fifth of an enqueue, so it is cached."""
        self.validate_task(task)
        kind = declare(self.app, task).using(
            queue=task.queue_name, priority=int(task.priority), tags=getattr(task, "tags", ())
        )
        if self.retry is not None and getattr(task, "retry", None) is None:
            kind = kind.using(retry=self.retry)
        if (key := getattr(task, "key", None)) is not None:
            kind = kind.using(key=key)
        if task.run_after is not None:
            kind = kind.using(run_at=task.run_after)
        if key is None and task.run_after is None:  # tasks with these are used once
            if len(self._checked) >= MAX_CACHED:
                self._checked.clear()
            self._checked[id(task)] = (task, kind)
        return kind


@lru_cache(maxsize=MAX_CACHED)
def _signature(function: Callable[..., Any], path: str, skip: int) -> Signature:
    return Signature(function, path, skip=skip)


def _check_arguments(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise ``InvalidArguments`` now for a call that would fail in every attempt.

    Values are checked as those of native jobs, but not converted: the task gets them as JSON, as Django documents.
    """
    try:
        _signature(task.func, task.module_path, int(task.takes_context)).check(args, kwargs)
    except InvalidArguments as error:
        fix = error.fix or "Pass the arguments of the task. Options go into using(…)."
        raise InvalidArguments(error.message, code=error.code, fix=fix) from None


def declare(app: DjangoApp, task: Any) -> Kind[..., Any]:
    """Return the kind of a task. It is declared on first use."""
    path = task.module_path
    if path in kinds_of(app):
        return kinds_of(app)[path].kind
    defined = _tasks.get(path, task)
    options: dict[str, Any] = {"queue": defined.queue_name, "priority": int(defined.priority)}
    options |= {name: value for name in ("retry", "timeout") if (value := getattr(defined, name, None)) is not None}
    handler = _handler(defined)
    handler.__dict__[SCHEDULES_ATTRIBUTE] = getattr(defined.func, SCHEDULES_ATTRIBUTE, ())  # @app.schedule below @task
    kind: Kind[..., Any] = app.job(path, **options)(handler)
    return kind


def scheduled(app: DjangoApp, definition: Mapping[str, Any]) -> dict[str, Any]:
    """The definition of a schedule whose ``kind`` is a task, with the kind and the payload of the task's jobs."""
    task, arguments = definition["kind"], definition.get("payload", {})
    register(task)
    _check_arguments(task, (), arguments)
    options = {"queue": task.queue_name, "priority": int(task.priority), "tags": getattr(task, "tags", ())}
    retry = getattr(task.get_backend(), "retry", None)
    if retry is not None and getattr(task, "retry", None) is None:
        options["retry"] = retry
    payload = {"args": [], "kwargs": dict(arguments), "backend": task.backend}
    return {**options, **definition, "kind": declare(app, task), "payload": payload}


def _handler(task: Any) -> Any:
    """Return the handler of a task. The payload has the arguments and the backend's alias."""
    if iscoroutinefunction(task.func):

        async def arun(ctx, args, kwargs, backend=DEFAULT_TASK_BACKEND_ALIAS):  # type: ignore[no-untyped-def]
            return await results.arun_task(task, ctx, args, kwargs, backend)

        return arun

    def run(ctx, args, kwargs, backend=DEFAULT_TASK_BACKEND_ALIAS):  # type: ignore[no-untyped-def]
        return results.run_task(task, ctx, args, kwargs, backend)

    return run


def register(task: Any) -> None:
    """Let workers of this process run a task, even if it was defined for another backend."""
    _tasks.setdefault(task.module_path, task)


def declare_all(app: DjangoApp) -> None:
    """Declare the kinds of all tasks that are imported."""
    for task in list(_tasks.values()):
        declare(app, task)


def registered(path: str) -> Any | None:
    """Return the task with this path, if this process has imported it."""
    return _tasks.get(path)


def task_at(path: str) -> Any:
    """Return the task with this path, which comes from the database: nothing is imported by it.

    The modules of tasks of all installed apps are imported. Raises ``TaskResultDoesNotExist`` if the task is in none.
    """
    if path not in _tasks:
        from holdfast.integrations.django.worker import load

        load()
    if path not in _tasks:
        raise TaskResultDoesNotExist(f"{path} is not a task of this process: import its module")
    return _tasks[path]
