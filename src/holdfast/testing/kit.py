"""``Kit``: an app on a private database, for tests."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta
from os import PathLike
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload

from holdfast.app import App
from holdfast.app.internals import all_kinds_of, host_loop_of, moved_to, schema_of, session_of, sync_subscriptions
from holdfast.app.replayer import Replayer, ReplayReport
from holdfast.engine.job import EVERY_TENANT, Event, Job
from holdfast.engine.times import instant
from holdfast.engine.units import Duration, seconds
from holdfast.errors import Conflict, InvalidSetting, NotFound
from holdfast.features.approvals.model import Approval, ApprovalFilter, ApprovalState, Vote, VoteVerdict
from holdfast.features.jobs.handle import Handle
from holdfast.kind import Kind, Prepared
from holdfast.steps.history import History, read_histories
from holdfast.stores.requests import JobFilter
from holdfast.testing.database import Clock, Crashes, Moment, private_store
from holdfast.testing.drain import PAGE, Drained, JobsFailed, ReplayFailed, Runner
from holdfast.testing.matcher import JobMatcher, explain

DEFAULT_APPROVER = "approver"


@dataclass(frozen=True, slots=True)
class Decided:
    """An approval that is closed, with its votes."""

    name: str
    state: ApprovalState
    job_id: str
    approval: Approval
    votes: tuple[Vote, ...]


class Approvers:
    """Decides approvals in tests."""

    def __init__(self, app: App) -> None:
        self._app = app

    def approvals(self, state: ApprovalState | None = "open", name: str | None = None) -> list[Approval]:
        client = session_of(self._app)
        result: list[Approval] = []
        after: str | None = None
        while page := client.run(
            client.store.approvals.list(ApprovalFilter(tenant=EVERY_TENANT, state=state, name=name, after=after))
        ):
            result += page
            after = page[-1].id
        return result

    def decisions(self) -> list[Decided]:
        closed = [approval for approval in self.approvals(None) if approval.state != "open"]
        closed.sort(key=lambda approval: approval.decided_at or approval.opened_at)
        return [Decided(each.name, each.state, each.job_id, each, self._votes(each)) for each in closed]

    def decide(self, verdict: VoteVerdict, name: str, by: str | None, **options: Any) -> ApprovalState:
        """Vote on the open approval with this name or id: as ``by``, or as many approvers as the verdict needs."""
        approval = self._open(name)
        if by is not None:
            return self._vote(verdict, approval, by, options)
        state: ApprovalState = approval.state
        for person in self._voters(approval, 1 if verdict == "deny" else approval.quorum):
            state = self._vote(verdict, approval, person, options)
        return state

    def _vote(self, verdict: VoteVerdict, approval: Approval, person: str, options: dict[str, Any]) -> ApprovalState:
        return self._app.approvals._decide(
            verdict, approval.id, person, how="test", tenant=approval.tenant, **options
        ).state

    def _votes(self, approval: Approval) -> tuple[Vote, ...]:
        client = session_of(self._app)
        return tuple(client.run(client.store.approvals.votes(approval.id, EVERY_TENANT)))

    def _open(self, name: str) -> Approval:
        approvals = self.approvals()
        matching = [approval for approval in approvals if name in (approval.name, approval.id)]
        if not matching:
            names = ", ".join(sorted({approval.name for approval in approvals})) or "none"
            raise NotFound(f"no job waits for {name!r}; open approvals: {names}")
        if len(matching) > 1:
            ids = ", ".join(approval.id for approval in matching)
            raise Conflict(
                f"{len(matching)} jobs wait for {name!r}", code="approval_ambiguous", fix=f"Pass an id: {ids}."
            )
        return matching[0]

    def _voters(self, approval: Approval, needed: int) -> list[str]:
        """Return as many people as are still needed: those who may vote and have not voted yet."""
        voted = {vote.person for vote in self._votes(approval)}
        excluded = voted | ({approval.requester} if approval.not_requester else set())
        count = len(excluded) + needed + 1
        anyone = tuple(f"{DEFAULT_APPROVER} {n}" if n else DEFAULT_APPROVER for n in range(count))
        eligible = [person for person in approval.people or anyone if person not in excluded]
        return eligible[: max(0, needed - len(voted))]


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def _run_here(work: Coroutine[Any, Any, T], name: str, host: asyncio.AbstractEventLoop | None) -> T:
    """Run the work to its end: on the event loop of the app's site, if one runs in another thread, or on a new one.

    Connections that the views and handlers of an application share belong to one loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        if host is None or not host.is_running():
            return asyncio.run(work)
        context = copy_context()

        async def run() -> T:
            return await asyncio.create_task(work, context=context)

        return asyncio.run_coroutine_threadsafe(run(), host).result()
    work.close()
    raise InvalidSetting(
        f"{name}() would block the running event loop", code="running_loop", fix=f"Use await kit.a{name}(…)."
    )


def _blocking(method: Callable[Concatenate[Kit, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Kit, P], T]:
    """Return the sync form of an async method."""
    name = method.__name__.removeprefix("a")

    @functools.wraps(method)
    def call(kit: Kit, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _run_here(method(kit, *args, **kwargs), name, host_loop_of(kit.app))

    call.__name__, call.__qualname__ = name, f"Kit.{name}"
    return call


class Kit:
    """Runs the jobs of an app in a test, on a private database::

        with Kit(app) as kit:
            place_order(7)
            kit.assert_enqueued(send_receipt, order=7)
            kit.drain()
            kit.travel("1h")

    Within the block the app, its kinds and its handles use a temporary SQLite file or, with a PostgreSQL ``url``, a new
    schema in that database. The app's own database is not touched.

    Methods that run jobs have a sync and an async form: ``drain`` and ``adrain``. The others are fast enough to call
    from async code. ``timeout`` is how long jobs may run before the test fails.
    """

    def __init__(self, app: App, url: str | None = None, *, timeout: Duration | None = "5m") -> None:
        self.app = app
        self._url = url
        self._timeout = None if timeout is None else seconds(timeout, "timeout")
        self._open = ExitStack()
        self._clock: Clock | None = None
        self._crashes = Crashes()
        self._running = 0

    def __enter__(self) -> Self:
        session = session_of(self.app)
        if session.store is not session.home:
            raise Conflict("this app already belongs to a kit", code="kit_open", fix="Use that kit, or close it first.")
        with ExitStack() as stack:
            store, schema = stack.enter_context(private_store(self._url, schema_of(self.app)))
            stack.enter_context(moved_to(self.app, store, schema))
            self._clock = Clock(store)
            stack.callback(setattr, session, "nothing_runs", None)
            session.nothing_runs = self._nothing_runs
            sync_subscriptions(self.app)  # before the test makes events that subscriptions wait for
            self._open = stack.pop_all()
        self._crashes = Crashes()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._clock = None
        self._open.close()
        if kind is None and self._crashes.waiting:
            points = ", ".join(f"{point.when} {point.step!r}" for point in self._crashes.waiting)
            raise AssertionError(f"crash points were never reached: {points}")

    @property
    def url(self) -> str:
        """URL of the private database, if the test needs its own connection."""
        self._open_clock()
        return session_of(self.app).store.url

    # --- run jobs ---

    async def adrain(
        self,
        queues: Sequence[str] | None = None,
        *,
        check: bool = True,
        limit: int = 1_000,
        concurrency: int = 1,
    ) -> Drained:
        """Run all jobs that are due, and those they enqueue, until none is left. Returns a report.

        It serves all queues, or ``queues``, and runs one job at a time, or ``concurrency``. With ``check``, raises
        ``JobsFailed`` if a job failed and no later attempt succeeded. Raises ``NeverIdle`` after ``limit`` attempts,
        and ``WaitTimeout`` after the kit's timeout.
        """
        with self._counted():
            report = await self._runner().drain(queues, limit, concurrency)
        if check and report.failures:
            raise JobsFailed(report) from report.failures[0].error
        return report

    drain = _blocking(adrain)

    @overload
    def run(self, target: Kind[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def run(self, target: Handle[R] | Prepared[R], /) -> R: ...
    def run(self, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run one attempt of one job, and return its result: ``kit.run(send_receipt, "a@example.com", invoice=7)``.

        Pass a kind and its arguments to enqueue a job, or a handle to run an existing one. Raises the exception of the
        handler, or ``JobWaits`` if the job has no result yet (it snoozed, sleeps or waits).
        """
        return _run_here(self.arun(target, *args, **kwargs), "run", host_loop_of(self.app))

    @overload
    async def arun(self, target: Kind[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def arun(self, target: Handle[R] | Prepared[R], /) -> R: ...
    async def arun(self, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run one attempt of one job on the running event loop; see ``run``."""
        runner = self._runner()
        if isinstance(target, Kind):
            target = await target.aenqueue(*args, **kwargs)
        elif isinstance(target, Prepared):
            target = await target.aenqueue(session_of(self.app))
        with self._counted():
            return await runner.run(target)

    async def areplay(
        self, *histories: History | Handle[Any] | str | PathLike[str], check: bool = True
    ) -> ReplayReport:
        """Replay recorded histories against the handlers of this app, and return what was found for each.

        Pass the path of a file that ``holdfast jobs export-history`` wrote, histories, or handles of jobs in this kit.
        No function of a step runs and nothing is written. With ``check``, raises ``ReplayFailed`` if a history differs
        from what its handler does now.
        """
        given: list[History] = []
        for each in histories:
            match each:
                case History():
                    given.append(each)
                case Handle():
                    given += [found async for found in self.app.jobs.aexport_history(each.id, tenant=each.tenant)]
                case _:
                    given += read_histories(each)
        replayer = Replayer(self.app)
        report = ReplayReport(tuple([await replayer.replay(history) for history in given]))
        if check and report.different:
            raise ReplayFailed(report)
        return report

    replay = _blocking(areplay)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def _nothing_runs(self) -> bool:
        """Whether neither this kit nor a worker that the test has started runs jobs."""
        store = session_of(self.app).store
        return not self._running and not store.run(store.health.get(EVERY_TENANT)).lease_active

    def _runner(self) -> Runner:
        return Runner(self.app, self._open_clock(), self._timeout, self._crashes)

    def crash_at(self, step: str, when: Moment = "after") -> None:
        """Simulate the loss of the worker the next time a job reaches this step, sleep, event or approval.

        ``when`` is ``"before"`` its function runs, ``"after"`` it ran and before the result is recorded, or once the
        result is ``"saved"``. The drain then continues with a new worker.

        Nothing that the attempt does after that point is recorded. Unlike after a real kill, ``finally`` blocks of the
        handler run. A crash point that is never reached fails the test. Handlers with ``process=True`` do not crash.
        """
        self._open_clock()
        self._crashes.arm(step, when)

    # --- approvals ---

    def approvals(self, name: str | None = None) -> list[Approval]:
        """Return the open approvals, oldest first."""
        self._open_clock()
        return Approvers(self.app).approvals("open", name)

    def approve(
        self, approval: str, *, by: str | None = None, comment: str | None = None, data: Any = None
    ) -> ApprovalState:
        """Approve the open approval with this name or id: as ``by``, or as many approvers as its quorum needs.

        Raises ``NotFound`` if there is none and ``Conflict`` if several have the name.
        """
        self._open_clock()
        return Approvers(self.app).decide("approve", approval, by, comment=comment, data=data)

    def deny(self, approval: str, *, by: str | None = None, comment: str | None = None) -> ApprovalState:
        """Deny the open approval with this name or id."""
        self._open_clock()
        return Approvers(self.app).decide("deny", approval, by, comment=comment)

    @property
    def decisions(self) -> list[Decided]:
        """The approvals that were decided since the kit was opened, with their votes."""
        self._open_clock()
        return Approvers(self.app).decisions()

    # --- the clock ---

    def now(self) -> datetime:
        """Return the time of the private database, which decides when a job is due. It stands still."""
        return self._open_clock().now

    def travel(self, by: Duration) -> datetime:
        """Move the clock forward: ``kit.travel("1h")``. Jobs that are due then run with the next drain.

        Unless the test has set a time with ``travel_to``, the clock catches up with the machine's clock first.
        """
        return self._open_clock().travel(timedelta(seconds=seconds(by)))

    def travel_to(self, moment: datetime) -> datetime:
        """Set the clock to a time, which may be in the past. From then on ``travel`` adds exactly its argument."""
        return self._open_clock().travel_to(_zoned(moment))

    def frozen(self, at: datetime | None = None) -> AbstractContextManager[None]:
        """Set the clock for a block: ``with kit.frozen(at): …``. Afterwards it has its previous time."""
        return self._open_clock().frozen(None if at is None else _zoned(at))

    # --- enqueued jobs ---

    def enqueued(self, kind: Kind[..., Any] | str | None = None, /, **match: Any) -> list[Job]:
        """Return the jobs that were enqueued since the kit was opened, in any state, oldest first.

        Filter them by kind, arguments and options: ``kit.enqueued(send_receipt, to="a@example.com", delay="1h")``.
        Arguments that you do not name may have any value. Raises ``InvalidArguments`` for one that the kind does not
        have. Pass arguments that have the name of an option in ``payload={…}``.
        """
        return self._matcher(kind, match).among(self._jobs())

    def assert_enqueued(
        self, kind: Kind[..., Any] | str | None = None, /, *, times: int | None = None, **match: Any
    ) -> list[Job]:
        """Assert that at least one such job was enqueued, or exactly ``times``, and return the jobs.

        The arguments are those of ``enqueued``. The message of the ``AssertionError`` lists the enqueued jobs.
        """
        __tracebackhide__ = True
        expected, jobs = self._matcher(kind, match), self._jobs()
        matching = expected.among(jobs)
        if times is None and not matching:
            raise AssertionError(explain(expected, jobs, f"no {expected} was enqueued"))
        if times is not None and len(matching) != times:
            raise AssertionError(explain(expected, jobs, f"{expected} was enqueued {len(matching)} times, not {times}"))
        return matching

    def assert_not_enqueued(self, kind: Kind[..., Any] | str | None = None, /, **match: Any) -> None:
        """Assert that no such job was enqueued. The arguments are those of ``enqueued``."""
        __tracebackhide__ = True
        expected = self._matcher(kind, match)
        matching = expected.among(self._jobs())
        if matching:
            raise AssertionError(explain(expected, matching, f"{expected} was enqueued"))

    def _matcher(self, kind: Kind[..., Any] | str | None, match: Mapping[str, Any]) -> JobMatcher:
        declared = all_kinds_of(self.app).get(kind) if isinstance(kind, str) else None
        return JobMatcher(kind if declared is None else declared.kind, match)

    def history(self, job: Job | Handle[Any] | str) -> list[Event]:
        """Return the events of a job from the ledger, oldest first."""
        session = session_of(self.app)
        self._open_clock()
        job_id = job if isinstance(job, str) else job.id
        return session.run(session.store.jobs.history(job_id, EVERY_TENANT))

    def _jobs(self) -> list[Job]:
        self._open_clock()
        jobs: list[Job] = []
        before: str | None = None
        client = session_of(self.app)
        while page := client.run(client.store.jobs.list(JobFilter(tenant=EVERY_TENANT, before=before, limit=PAGE))):
            jobs += page
            before = page[-1].id
        return jobs[::-1]

    def _open_clock(self) -> Clock:
        """Return the clock. Raises ``Conflict`` outside the block."""
        if self._clock is None:
            raise Conflict(
                "the kit is not open", code="kit_closed", fix="Use it inside its block: with Kit(app) as kit: …."
            )
        return self._clock


def _zoned(moment: datetime) -> datetime:
    return instant(moment, "the time")
