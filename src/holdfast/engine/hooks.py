"""Hooks: code that runs around enqueue, around an attempt, and after the end of an attempt was recorded.

``Hooks`` is a list of functions in registration order. An app has one (``app.hooks``), a kind may have its own
(``@app.job(hooks=[…])``). The app's hooks are outermost. Nothing here runs while no hook is registered: enqueue checks
``wraps_enqueue``, and a worker checks once when it starts.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from holdfast.engine.job import Claim, Enqueued, Job, JobSpec
from holdfast.engine.trace import plain_tags
from holdfast.errors import InvalidSetting

T = TypeVar("T")
HowEnded = Literal["succeeded", "failed", "dead_letter"]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The attempt that a hook runs around. ``holdfast.current()`` has the full context."""

    job_id: str
    kind: str
    queue: str
    tenant: str
    attempt: int
    tags: tuple[str, ...] = ()
    correlation_id: str | None = None
    parent_id: str | None = None
    workflow_id: str | None = None

    @classmethod
    def of(cls, job: Claim | Job) -> RunInfo:
        return cls(**_fields(job))


@dataclass(frozen=True, slots=True)
class EndInfo(RunInfo):
    """How an attempt ended: ``succeeded``, ``failed`` (the job will be retried) or ``dead_letter``."""

    outcome: HowEnded = "succeeded"
    error_code: str | None = None
    error_message: str | None = None
    traceback: str | None = None


def end_info(
    job: Claim | Job, outcome: HowEnded, code: str | None = None, message: str | None = None, trace: str | None = None
) -> EndInfo:
    return EndInfo(**_fields(job), outcome=outcome, error_code=code, error_message=message, traceback=trace)


def _fields(job: Claim | Job) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "kind": job.kind,
        "queue": job.queue,
        "tenant": job.tenant,
        "attempt": job.attempt,
        "tags": plain_tags(job.tags),
        "correlation_id": job.correlation_id,
        "parent_id": job.parent_id,
        "workflow_id": job.workflow_id,
    }


class NewJob:
    """A job that is being enqueued. A hook may add tags and set the correlation id before it is stored."""

    __slots__ = ("_result", "_spec", "tenant")

    def __init__(self, spec: JobSpec, tenant: str) -> None:
        self._spec = spec
        self._result: Enqueued | None = None
        self.tenant = tenant

    @property
    def id(self) -> str:
        """The id of the new job; once stored, of the existing job if this one was a duplicate."""
        return self._result.id if self._result is not None and self._result.id is not None else self._spec.id

    @property
    def kind(self) -> str:
        return self._spec.kind

    @property
    def queue(self) -> str:
        return self._spec.queue

    @property
    def tags(self) -> tuple[str, ...]:
        return plain_tags(self._spec.tags)

    def add_tags(self, *tags: str) -> None:
        self._spec.tags = (*self._spec.tags, *(tag for tag in tags if tag not in self._spec.tags))
        self._spec.alike = None

    @property
    def correlation_id(self) -> str | None:
        return self._spec.correlation_id

    @correlation_id.setter
    def correlation_id(self, value: str | None) -> None:
        self._spec.correlation_id = value
        self._spec.alike = None

    @property
    def created(self) -> bool | None:
        """None until the job is stored; False for a duplicate or a refused job."""
        return None if self._result is None else self._result.created


@dataclass(frozen=True, slots=True)
class EnqueueInfo:
    """The jobs of one call: one for ``enqueue``, all of them for ``enqueue_many``."""

    jobs: tuple[NewJob, ...]


RunHook = Callable[[RunInfo], Iterator[None]] | Callable[[RunInfo], AsyncIterator[None]]
EnqueueHook = Callable[[EnqueueInfo], Iterator[None]] | Callable[[EnqueueInfo], AsyncIterator[None]]
EndHook = Callable[[EndInfo], None] | Callable[[EndInfo], Awaitable[None]]

R = TypeVar("R", bound=RunHook)
E = TypeVar("E", bound=EnqueueHook)
H = TypeVar("H", bound=EndHook)


@dataclass(frozen=True, slots=True)
class Around:
    """A generator function with one ``yield``, as a context manager."""

    enter: Callable[[Any], Any]
    is_async: bool

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Around:
        plain = inspect.unwrap(function)  # a function decorated with contextmanager is accepted too
        if inspect.isasyncgenfunction(plain):
            return cls(asynccontextmanager(plain), True)
        if inspect.isgeneratorfunction(plain):
            return cls(contextmanager(plain), False)
        raise InvalidSetting(
            f"{getattr(function, '__qualname__', function)!s} is not a generator function",
            code="invalid_hook",
            fix="Write the hook as a function with one yield: code before it runs before, code after it runs after.",
        )


class Hooks:
    """Functions to run around and after jobs. Use each method as a decorator, or call it with the function.

    ``app.hooks`` applies to every kind. A ``Hooks()`` of your own applies to the kinds that name it in
    ``@app.job(hooks=[…])``, or to all of them after ``app.hooks.include(…)``.
    """

    def __init__(self) -> None:
        self._run: list[Around] = []
        self._enqueue: list[Around] = []
        self._success: list[EndHook] = []
        self._failure: list[EndHook] = []
        self._dead_letter: list[EndHook] = []

    def around_run(self, hook: R) -> R:
        """Run around the handler, in every attempt: a generator function with one ``yield`` (sync or async).

        An exception before the ``yield`` fails the attempt, and the handler does not run. An exception of the handler
        is raised at the ``yield``; the hook may raise another one instead, but cannot suppress it.
        """
        self._run.append(Around.of(hook))
        return hook

    def around_enqueue(self, hook: E) -> E:
        """Run around the enqueueing of jobs: a generator function with one ``yield`` (sync or async). An exception
        before the ``yield`` is raised by ``enqueue``, and nothing is stored. An async hook needs ``aenqueue``."""
        self._enqueue.append(Around.of(hook))
        self._changed()
        return hook

    def on_success(self, hook: H) -> H:
        """Call after a success was recorded."""
        self._success.append(hook)
        return hook

    def on_failure(self, hook: H) -> H:
        """Call after the failure of an attempt was recorded, also of the last one."""
        self._failure.append(hook)
        return hook

    def on_dead_letter(self, hook: H) -> H:
        """Call after a job became a dead letter."""
        self._dead_letter.append(hook)
        return hook

    def include(self, *others: Hooks) -> None:
        """Add all hooks that the others have now."""
        for other in others:
            if not isinstance(other, Hooks):
                raise InvalidSetting(f"hooks are Hooks, not {type(other).__name__}", code="invalid_hook")
            self._run += other._run
            self._enqueue += other._enqueue
            self._success += other._success
            self._failure += other._failure
            self._dead_letter += other._dead_letter
        self._changed()

    def _changed(self) -> None:
        """Called when an enqueue hook may have been added."""


class AppHooks(Hooks):
    """The hooks of an app, and those of its kinds."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, Hooks] = {}
        self.wraps_enqueue = False
        """Whether there is a hook around enqueue. A plain attribute, because every enqueue reads it."""

    def declare(self, kind: str, hooks: Sequence[Hooks]) -> None:
        own = Hooks()
        own.include(*hooks)
        self._kinds[kind] = own
        self._changed()

    def _changed(self) -> None:
        self.wraps_enqueue = bool(self._enqueue or any(own._enqueue for own in self._kinds.values()))

    def of_runs(self, kind: str) -> tuple[Around, ...]:
        """The hooks around the attempts of a kind, outermost first."""
        own = self._kinds.get(kind)
        return (*self._run, *(own._run if own is not None else ()))

    def of_ends(self, kind: str, acting_for: Callable[[str], AbstractContextManager[None]]) -> EndHooks | None:
        """The hooks to call after the attempts of a kind; None if there are none."""
        both = Hooks()
        both.include(self, *([self._kinds[kind]] if kind in self._kinds else []))
        if not both._success and not both._failure and not both._dead_letter:
            return None
        return EndHooks(tuple(both._success), tuple(both._failure), tuple(both._dead_letter), acting_for)

    # --- enqueue ---

    @contextmanager
    def enqueuing(self, specs: Sequence[JobSpec], tenant: str) -> Iterator[Callable[[Sequence[Enqueued]], None]]:
        """Run the hooks around a blocking enqueue. Yields a function that takes the results of the database; call it
        before the block ends."""
        jobs, hooks = self._around(specs, tenant)
        if any(hook.is_async for hook, _ in hooks):
            raise InvalidSetting(
                "an enqueue hook is async, and enqueue blocks", code="async_hook", fix="await aenqueue(…)."
            )
        errors = RaisedError()
        with ExitStack() as stack, errors:
            for hook, info in hooks:
                stack.enter_context(hook.enter(info))
            yield jobs.set_results
        errors.check()

    @asynccontextmanager
    async def aenqueuing(
        self, specs: Sequence[JobSpec], tenant: str
    ) -> AsyncIterator[Callable[[Sequence[Enqueued]], None]]:
        jobs, hooks = self._around(specs, tenant)
        errors = RaisedError()
        async with AsyncExitStack() as stack:
            with errors:
                for hook, info in hooks:
                    await enter(stack, hook, info)
                yield jobs.set_results
        errors.check()

    def _around(self, specs: Sequence[JobSpec], tenant: str) -> tuple[_Jobs, list[tuple[Around, EnqueueInfo]]]:
        jobs = _Jobs([NewJob(spec, tenant) for spec in specs])
        all_jobs = EnqueueInfo(tuple(jobs.all))
        hooks = [(hook, all_jobs) for hook in self._enqueue]
        for kind in dict.fromkeys(spec.kind for spec in specs):
            own = self._kinds.get(kind)
            if own is not None and own._enqueue:
                info = EnqueueInfo(tuple(job for job in jobs.all if job.kind == kind))
                hooks += [(hook, info) for hook in own._enqueue]
        return jobs, hooks


@dataclass(frozen=True, slots=True)
class EndHooks:
    success: tuple[EndHook, ...] = ()
    failure: tuple[EndHook, ...] = ()
    dead_letter: tuple[EndHook, ...] = ()
    acting_for: Callable[[str], AbstractContextManager[None]] = field(default=lambda tenant: nullcontext())
    """Hooks run as the tenant of the job."""

    def called_for(self, outcome: HowEnded) -> tuple[EndHook, ...]:
        if outcome == "succeeded":
            return self.success
        return self.failure if outcome == "failed" else (*self.failure, *self.dead_letter)


@dataclass(slots=True)
class _Jobs:
    all: list[NewJob] = field(default_factory=list)

    def set_results(self, results: Sequence[Enqueued]) -> None:
        for job, result in zip(self.all, results, strict=True):
            job._result = result


class RaisedError:
    """Keeps the error of a block and raises it again, so that a hook cannot turn a failure into a success by
    suppressing it."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.error = error

    def check(self) -> None:
        if self.error is not None:
            raise self.error


async def enter(stack: AsyncExitStack, hook: Around, info: object) -> None:
    entered: AbstractContextManager[None] | AbstractAsyncContextManager[None] = hook.enter(info)
    if isinstance(entered, AbstractAsyncContextManager):
        await stack.enter_async_context(entered)
    else:
        stack.enter_context(entered)
