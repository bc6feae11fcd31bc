"""For tests of a Django project: run what was enqueued inline, and say what was.

    from holdfast.integrations.django.test import HoldfastMixin

    class OrderTests(HoldfastMixin, TestCase):
        def test_receipt(self):
            self.client.post("/orders/", …)
            self.assert_enqueued(send_receipt, "a@b.c")
            self.run_jobs()

Everything happens on Django's connection and in the test's own thread, so jobs see what the test has written, and the
rollback at the end of a ``TestCase`` removes them with the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from asgiref.sync import async_to_sync, sync_to_async

from holdfast.engine.job import EVERY_TENANT, Job
from holdfast.engine.states import State
from holdfast.integrations.django.application import DjangoApp, get_app
from holdfast.integrations.django.orm_connection import HostedStore
from holdfast.integrations.django.worker import load
from holdfast.kind import Kind
from holdfast.stores.ids import new_id
from holdfast.stores.requests import JobFilter
from holdfast.worker.options import TickOptions, TickSummary
from holdfast.worker.threads import Threads
from holdfast.worker.tick import Tick

T = TypeVar("T")

PAGE = 1_000
LEASE = "1d"


class _Inline(Threads):
    """Sync handlers in the thread of the test, where Django's connection is."""

    async def run(self, kind: str, function: Callable[[], T]) -> T:
        result: T = await sync_to_async(function, thread_sensitive=True)()
        return result


@contextmanager
def hosted() -> Iterator[DjangoApp]:
    """Within the block, all operations of the app run on Django's connection."""
    app = load()
    with app._moved_to(HostedStore(app._store, app.alias), app._schema):
        yield app


async def arun_jobs(queues: Sequence[str] | None = None, *, limit: int = 1_000) -> TickSummary:
    """The async form of ``run_jobs``."""
    app = await sync_to_async(load)()
    with app._moved_to(HostedStore(app._store, app.alias), app._schema):
        if queues is None:
            queues = await sync_to_async(_queues)(app)
        means = app._handler_tools(EVERY_TENANT, 1, _Inline())
        means.rules.load([])
        try:
            handlers = means.handlers(app._all_kinds)
            wanted = TickOptions.of(limit, queues=queues or ("default",), concurrency=1, lease=LEASE)
            tick = Tick(app._store, handlers, wanted)
            tick._duties = tuple(duty for duty in tick._duties if duty.name == "promote")
            return await tick.run()
        finally:
            await means.aclose()


def run_jobs(queues: Sequence[str] | None = None, *, limit: int = 1_000) -> TickSummary:
    """Run the jobs that are due, one after another, and those that they enqueue in the same queues."""
    result: TickSummary = async_to_sync(arun_jobs)(queues, limit=limit)
    return result


def enqueued(job: Any = None, *, after: str = "") -> list[Job]:
    """The jobs in the database, oldest first: of a task, a native job or a kind by name, or all. ``after`` is the id
    of a job; older jobs are left out."""
    app = get_app()
    app.session.follow()
    found = app.session.read(app._store.jobs.list(JobFilter(tenant=EVERY_TENANT, kind=_kind(job), limit=PAGE)))
    return [each for each in reversed(found) if each.id > after]


def cancel_all() -> int:
    """Cancel every job that has not ended: nothing of an earlier test runs in this one. Returns their number."""
    app = get_app()
    app.session.follow()
    active = [each for each in enqueued() if each.state.active]
    for tenant in dict.fromkeys(each.tenant for each in active):
        ids = [each.id for each in active if each.tenant == tenant]
        app.session.read(app._store.jobs.operate("cancel", ids, "a new test begins", "test", tenant))
    return len(active)


def _queues(app: DjangoApp) -> list[str]:
    waiting = JobFilter(tenant=EVERY_TENANT, state=State.QUEUED, limit=PAGE)
    later = JobFilter(tenant=EVERY_TENANT, state=State.RETRY_WAITING, limit=PAGE)
    found = [*app._store.run(app._store.jobs.list(waiting)), *app._store.run(app._store.jobs.list(later))]
    declared = [each.kind.defaults.get("queue", "default") for each in app._kinds.values()]
    return list(dict.fromkeys([*(job.queue for job in reversed(found)), *declared]))


def _kind(job: Any) -> str | None:
    if job is None or isinstance(job, str):
        return job
    return job.name if isinstance(job, Kind) else str(job.module_path)


def _payload(job: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    if isinstance(job, Kind):
        return {**dict(zip(job.parameters, args, strict=False)), **kwargs}
    return {"args": list(args), "kwargs": kwargs}


class HoldfastMixin:
    """For ``TestCase`` and ``TransactionTestCase``. A test sees the jobs that were enqueued since it began; jobs that
    an earlier test has left behind are cancelled."""

    _since = ""

    def setUp(self) -> None:
        super().setUp()  # type: ignore[misc]
        cancel_all()
        self._since = new_id()

    def run_jobs(self, queues: Sequence[str] | None = None, *, limit: int = 1_000, check: bool = True) -> TickSummary:
        """Run the jobs that are due. With ``check``, a job that does not succeed fails the test."""
        __tracebackhide__ = True
        summary = run_jobs(queues, limit=limit)
        if check:
            for each in self.enqueued():
                if each.id in summary.ids and each.error_code is not None:
                    raise AssertionError(
                        f"job {each.id} ({each.kind}) is {each.state}: {each.error_code}: {each.error_message}"
                    )
        return summary

    def enqueued(self, job: Any = None) -> list[Job]:
        """The jobs that this test has enqueued, oldest first: of a task, a native job or a kind by name, or all."""
        return enqueued(job, after=self._since)

    def assert_enqueued(self, job: Any, *args: Any, **kwargs: Any) -> list[Job]:
        """At least one job of this task, native job or kind was enqueued with these arguments; without arguments, with
        any. Returns the jobs."""
        __tracebackhide__ = True
        jobs = self.enqueued(job)
        wanted = _payload(job, args, kwargs)
        found = [each for each in jobs if not (args or kwargs) or _fits(each.payload, wanted)]
        if not found:
            seen = "".join(f"\n  {each.kind} {each.payload}" for each in self.enqueued())
            raise AssertionError(f"{_kind(job)} was not enqueued with {wanted}. Enqueued were:{seen or ' no jobs'}")
        return found

    def assert_not_enqueued(self, job: Any = None) -> None:
        __tracebackhide__ = True
        if found := self.enqueued(job):
            raise AssertionError(f"{len(found)} jobs were enqueued: {', '.join(each.kind for each in found)}")


def _fits(payload: Any, wanted: dict[str, Any]) -> bool:
    return isinstance(payload, dict) and all(payload.get(name) == value for name, value in wanted.items())
