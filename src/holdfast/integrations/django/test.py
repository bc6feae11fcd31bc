"""Test the jobs of a Django project: run them inline, and assert what was enqueued.

    from holdfast.integrations.django.test import HoldfastMixin

    class OrderTests(HoldfastMixin, TestCase):
        def test_receipt(self):
            self.client.post("/orders/", …)
            self.assert_enqueued(send_receipt, "a@b.c")
            self.run_jobs()

Everything happens on Django's connection and in the thread of the test. So jobs see what the test has written, and the
rollback at the end of a ``TestCase`` removes them too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from asgiref.sync import async_to_sync, sync_to_async

from holdfast.app.internals import all_kinds_of, handler_tools, kinds_of, moved_to, schema_of, session_of
from holdfast.engine.job import EVERY_TENANT, Job
from holdfast.engine.states import State
from holdfast.integrations.django.application import DjangoApp, get_app
from holdfast.integrations.django.orm_connection import on_django
from holdfast.integrations.django.worker import load
from holdfast.kind import Kind
from holdfast.stores.requests import JobFilter, new_id
from holdfast.worker.options import TickOptions, TickSummary
from holdfast.worker.threads import Threads
from holdfast.worker.tick import Tick

T = TypeVar("T")

PAGE = 1_000
LEASE = "1d"


class _InlineThreads(Threads):
    """Runs sync handlers in the thread of the test, which has Django's connection."""

    async def run(self, kind: str, function: Callable[[], T]) -> T:
        result: T = await sync_to_async(function, thread_sensitive=True)()
        return result

    def run_on_loop(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine reads and writes on Django's connection, so in this thread, which runs that while it waits."""

        async def run() -> T:
            return await work

        result: T = async_to_sync(run)()
        return result


@contextmanager
def hosted() -> Iterator[DjangoApp]:
    """Run all operations of the app on Django's connection within the block."""
    app = load()
    with moved_to(app, on_django(session_of(app).store, app.alias), schema_of(app)):
        yield app


async def arun_jobs(queues: Sequence[str] | None = None, *, limit: int = 1_000) -> TickSummary:
    """Run the jobs that are due; see ``run_jobs``."""
    app = await sync_to_async(load)()
    with moved_to(app, on_django(session_of(app).store, app.alias), schema_of(app)):
        if queues is None:
            queues = await sync_to_async(_queues)(app)
        tools = handler_tools(app, EVERY_TENANT, 1, _InlineThreads())
        tools.rules.load([])
        try:
            handlers = tools.handlers(all_kinds_of(app))
            options = TickOptions.of(limit, queues=queues or ("default",), concurrency=1, lease=LEASE)
            tick = Tick(session_of(app).store, handlers, options)
            tick._tasks = tuple(task for task in tick._tasks if task.name == "promote")
            return await tick.run()
        finally:
            await tools.aclose()


def run_jobs(queues: Sequence[str] | None = None, *, limit: int = 1_000) -> TickSummary:
    """Run the jobs that are due, one after another, and those that they enqueue into the same queues."""
    result: TickSummary = async_to_sync(arun_jobs)(queues, limit=limit)
    return result


def enqueued(job: Any = None, *, after: str = "") -> list[Job]:
    """Return the jobs in the database, oldest first: of a task, a ``Kind`` or the name of a kind, or all.

    ``after`` is the id of a job; older jobs are left out.
    """
    app = get_app()
    app.session.follow()
    newest = app.session.read(
        session_of(app).store.jobs.list(JobFilter(tenant=EVERY_TENANT, kind=_kind(job), limit=PAGE))
    )
    return [one for one in reversed(newest) if one.id > after]


def cancel_all(keep: Callable[[str], bool] = lambda _: False) -> int:
    """Cancel all jobs that have not ended, so that no job of an earlier test runs. Returns their number.

    Jobs whose ids ``keep`` accepts stay.
    """
    session = get_app().session
    session.follow()
    return session.cancel_unfinished("a new test starts", keep)


def _queues(app: DjangoApp) -> list[str]:
    session = session_of(app)
    waiting = JobFilter(tenant=EVERY_TENANT, state=State.QUEUED, limit=PAGE)
    later = JobFilter(tenant=EVERY_TENANT, state=State.RETRY_WAITING, limit=PAGE)
    jobs = [
        *session.store.run(session.store.jobs.list(waiting)),
        *session.store.run(session.store.jobs.list(later)),
    ]
    declared = [declared.kind.defaults.get("queue", "default") for declared in kinds_of(app).values()]
    return list(dict.fromkeys([*(job.queue for job in reversed(jobs)), *declared]))


def _kind(job: Any) -> str | None:
    if job is None or isinstance(job, str):
        return job
    return job.name if isinstance(job, Kind) else str(job.module_path)


def _traceback(job: Job) -> str:
    """The traceback of the job's last attempt."""
    app = get_app()
    attempts = app.session.read(session_of(app).store.jobs.attempts(job.id, job.tenant))
    return (attempts[-1].traceback or "") if attempts else ""


def _payload(job: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    if isinstance(job, Kind):
        return {**dict(zip(job.parameters, args, strict=False)), **kwargs}
    return {"args": list(args), "kwargs": kwargs}


class HoldfastMixin:
    """Add it to ``TestCase`` or ``TransactionTestCase``.

    A test sees the jobs that were enqueued since it started; unfinished jobs of earlier tests are cancelled. Jobs of
    ``setUpTestData`` and ``setUpClass`` wait for ``run_jobs``, in each test again if it is a ``TestCase``.
    """

    _since = ""
    _class_began = _class_ready = ""

    @classmethod
    def setUpClass(cls) -> None:
        cls._class_began, cls._class_ready = new_id(), ""
        super().setUpClass()  # type: ignore[misc]

    def setUp(self) -> None:
        super().setUp()  # type: ignore[misc]
        cls = type(self)
        cls._class_ready = cls._class_ready or new_id()
        cancel_all(lambda job_id: cls._class_began < job_id < cls._class_ready)
        self._since = new_id()

    def run_jobs(self, queues: Sequence[str] | None = None, *, limit: int = 1_000, check: bool = True) -> TickSummary:
        """Run the jobs that are due. With ``check``, a job that fails raises ``AssertionError``."""
        __tracebackhide__ = True
        summary = run_jobs(queues, limit=limit)
        if check:
            for job in enqueued():
                if job.id in summary.ids and job.error_code is not None:
                    raise AssertionError(
                        f"job {job.id} ({job.kind}) is {job.state}: {job.error_code}: {job.error_message}\n"
                        + _traceback(job)
                    )
        return summary

    def enqueued(self, job: Any = None) -> list[Job]:
        """Return the jobs of this test, oldest first: of a task, a ``Kind`` or the name of a kind, or all."""
        return enqueued(job, after=self._since)

    def assert_enqueued(self, job: Any, *args: Any, **kwargs: Any) -> list[Job]:
        """Assert that a job of this task, ``Kind`` or kind name was enqueued with these arguments, and return the jobs.

        Without arguments, jobs with any arguments match.
        """
        __tracebackhide__ = True
        jobs = self.enqueued(job)
        expected = _payload(job, args, kwargs)
        matching = [one for one in jobs if not (args or kwargs) or _fits(one.payload, expected)]
        if not matching:
            actual = "".join(f"\n  {one.kind} {one.payload}" for one in self.enqueued())
            raise AssertionError(f"{_kind(job)} was not enqueued with {expected}. Enqueued jobs:{actual or ' none'}")
        return matching

    def assert_not_enqueued(self, job: Any = None) -> None:
        """Assert that this test has enqueued no job of this task, ``Kind`` or kind name, or no job at all."""
        __tracebackhide__ = True
        if jobs := self.enqueued(job):
            raise AssertionError(f"{len(jobs)} jobs were enqueued: {', '.join(one.kind for one in jobs)}")


def _fits(payload: Any, expected: dict[str, Any]) -> bool:
    return isinstance(payload, dict) and all(payload.get(name) == value for name, value in expected.items())
