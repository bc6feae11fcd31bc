"""The kit: an app on a private database; approvals in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ParamSpec, Self, TypeVar, overload

from holdfast.app import App
from holdfast.engine.job import EVERY_TENANT, Event, Job
from holdfast.engine.times import instant
from holdfast.engine.units import Duration, seconds
from holdfast.errors import Conflict, InvalidSetting, NotFound
from holdfast.features.approvals.model import Approval, ApprovalFilter, ApprovalState, VerdictWord, Vote
from holdfast.features.jobs.handle import Handle
from holdfast.kind import Kind, Prepared
from holdfast.stores.requests import JobFilter
from holdfast.testing.clock import Clock, Crashes, Moment
from holdfast.testing.database import private_store
from holdfast.testing.drain import PAGE, Runner
from holdfast.testing.drain_report import Drained, JobsFailed
from holdfast.testing.matcher import Wanted, told

SOMEBODY = "somebody"


@dataclass(frozen=True, slots=True)
class Decided:
    """An approval that is closed, and what was said."""

    name: str
    state: ApprovalState
    job_id: str
    approval: Approval
    votes: tuple[Vote, ...]


class People:
    def __init__(self, app: App) -> None:
        self._app = app

    def approvals(self, state: ApprovalState | None = "open", name: str | None = None) -> list[Approval]:
        client = self._app._session
        found: list[Approval] = []
        after: str | None = None
        while page := client.run(
            client.store.approvals.list(ApprovalFilter(tenant=EVERY_TENANT, state=state, name=name, after=after))
        ):
            found += page
            after = page[-1].id
        return found

    def decisions(self) -> list[Decided]:
        closed = [approval for approval in self.approvals(None) if approval.state != "open"]
        client = self._app._session
        return [
            Decided(g.name, g.state, g.job_id, g, tuple(client.run(client.store.approvals.votes(g.id, EVERY_TENANT))))
            for g in sorted(closed, key=lambda approval: approval.decided_at or approval.opened_at)
        ]

    def decide(self, verdict: VerdictWord, which: str, by: str | None, **said: Any) -> ApprovalState:
        """``which`` is the name of the one open approval that is called so, or the id of one."""
        approval = self._open(which)
        if by is not None:
            return self._say(verdict, approval, by, said)
        state: ApprovalState = approval.state
        for person in self._willing(approval, 1 if verdict == "deny" else approval.quorum):
            state = self._say(verdict, approval, person, said)
        return state

    def _say(self, verdict: VerdictWord, approval: Approval, person: str, said: dict[str, Any]) -> ApprovalState:
        return self._app.approvals._decide(
            verdict, approval.id, person, how="test", tenant=approval.tenant, **said
        ).state

    def _open(self, which: str) -> Approval:
        asked = self.approvals()
        found = [approval for approval in asked if which in (approval.name, approval.id)]
        if not found:
            names = ", ".join(sorted({approval.name for approval in asked})) or "nothing"
            raise NotFound(f"no job waits for {which!r}; open approvals: {names}")
        if len(found) > 1:
            ids = ", ".join(approval.id for approval in found)
            raise Conflict(
                f"{len(found)} jobs wait for {which!r}", code="approval_ambiguous", fix=f"Pass an id: {ids}."
            )
        return found[0]

    def _willing(self, approval: Approval, needed: int) -> list[str]:
        """As many people as it takes: those who may, and have not said anything yet."""
        client = self._app._session
        said = {vote.person for vote in client.run(client.store.approvals.votes(approval.id, EVERY_TENANT))}
        kept_out = said | ({approval.requester} if approval.not_requester else set())
        anybody = (f"{SOMEBODY} {n}" if n else SOMEBODY for n in range(len(kept_out) + needed + 1))
        able = [person for person in approval.people or tuple(anybody) if person not in kept_out]
        return able[: max(0, needed - len(said))]


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Kit:
    """``with Kit(app) as kit:``. Inside the block the app, its kinds and its handles work on a private database: a
    temporary SQLite file, or with a PostgreSQL ``url`` a schema of its own there. Its own database is not touched.

    What runs jobs has two colours, ``drain`` and ``adrain``; the rest is quick enough to be called from either.
    ``timeout`` is how long jobs may take before the kit gives up on them.
    """

    def __init__(self, app: App, url: str | None = None, *, timeout: Duration | None = "5m") -> None:
        self.app = app
        self._url = url
        self._timeout = None if timeout is None else seconds(timeout, "timeout")
        self._open = ExitStack()
        self._clock: Clock | None = None
        self._crashes = Crashes()

    def __enter__(self) -> Self:
        if self.app._store is not self.app._session.home:
            raise Conflict("this app already belongs to a kit", code="kit_open", fix="Use that kit, or close it first.")
        with ExitStack() as stack:
            store, schema = stack.enter_context(private_store(self._url, self.app._schema))
            stack.enter_context(self.app._moved_to(store, schema))
            self._clock = Clock(store)
            self.app._declared.sync(self.app._session)  # before anything happens that they want
            self._open = stack.pop_all()
        self._crashes = Crashes()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._clock = None
        self._open.close()
        if kind is None and self._crashes.waiting:
            points = ", ".join(f"{point.when} {point.step!r}" for point in self._crashes.waiting)
            raise AssertionError(f"a crash was asked for and never came about: {points}")

    @property
    def url(self) -> str:
        """Of the private database, for a connection of the test's own."""
        self._at()
        return self.app._store.url

    # --- running jobs ---

    def drain(
        self,
        queues: Sequence[str] | None = None,
        *,
        check: bool = True,
        limit: int = 1_000,
        concurrency: int = 1,
    ) -> Drained:
        """Run what is due, and what comes of it, until nothing is: in all queues, or in these, one job after another.

        With ``check`` a job that failed raises ``JobsFailed``, unless a later attempt made it good. A job that would
        go on for ever raises ``NeverIdle`` after ``limit`` attempts.
        """
        return _here(self.adrain(queues, check=check, limit=limit, concurrency=concurrency), "drain")

    async def adrain(
        self,
        queues: Sequence[str] | None = None,
        *,
        check: bool = True,
        limit: int = 1_000,
        concurrency: int = 1,
    ) -> Drained:
        report = await self._runner().drain(queues, limit, concurrency)
        if check and report.failures:
            raise JobsFailed(report) from report.failures[0].error
        return report

    @overload
    def run(self, target: Kind[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def run(self, target: Handle[R] | Prepared[R], /) -> R: ...
    def run(self, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Enqueue this job, run it now, once, and nothing else; answer its result, or raise what its handler raised.

        ``kit.run(send_receipt, "a@b.c", invoice=7)``; or a handle, to run a job that is there already.
        """
        return _here(self.arun(target, *args, **kwargs), "run")

    @overload
    async def arun(self, target: Kind[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def arun(self, target: Handle[R] | Prepared[R], /) -> R: ...
    async def arun(self, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        runner = self._runner()
        if isinstance(target, Kind):
            target = await target.aenqueue(*args, **kwargs)
        elif isinstance(target, Prepared):
            client = self.app._session
            target = await client.aenqueue(target.spec, target.tenant, target.decode, target.connection)
        return await runner.run(target)

    def _runner(self) -> Runner:
        return Runner(self.app, self._at(), self._timeout, self._crashes)

    def crash_at(self, step: str, when: Moment = "after") -> None:
        """Lose the worker the next time a job comes to this step (or sleep, event, approval): before its function runs,
        after it ran and before that was kept, or when it was saved. The drain goes on with a new one.

        Nothing that the attempt still tries is written. (What its handler has in ``finally`` does run, other than
        after a real kill.) A point that is never reached fails the test. Handlers with ``process=True`` are not cut.
        """
        self._at()
        self._crashes.arm(step, when)

    # --- people ---

    def approvals(self, name: str | None = None) -> list[Approval]:
        """What people are asked now, the oldest first."""
        self._at()
        return People(self.app).approvals("open", name)

    def approve(
        self, approval: str, *, by: str | None = None, comment: str | None = None, data: Any = None
    ) -> ApprovalState:
        """Approve the one open approval of this name (or id), as ``by`` or as as many people as its quorum needs."""
        self._at()
        return People(self.app).decide("approve", approval, by, comment=comment, data=data)

    def deny(self, approval: str, *, by: str | None = None, comment: str | None = None) -> ApprovalState:
        self._at()
        return People(self.app).decide("deny", approval, by, comment=comment)

    @property
    def decisions(self) -> list[Decided]:
        """What was decided since the kit was opened, and who said what."""
        self._at()
        return People(self.app).decisions()

    # --- the clock ---

    def now(self) -> datetime:
        """The present of the private database, which decides when a job is due. It stands still."""
        return self._at().now

    def travel(self, by: Duration) -> datetime:
        """Move the clock on: ``kit.travel("1h")``. What is due then runs with the next drain.

        It catches up with the machine's clock first, unless the test has named a time of its own.
        """
        return self._at().travel(timedelta(seconds=seconds(by)))

    def travel_to(self, moment: datetime) -> datetime:
        """Set the clock, also back; from then on ``travel`` is exact."""
        return self._at().travel_to(_zoned(moment))

    def frozen(self, at: datetime | None = None) -> AbstractContextManager[None]:
        """``travel_to`` for the length of a block; afterwards the clock is where it was before."""
        return self._at().frozen(None if at is None else _zoned(at))

    # --- what was enqueued ---

    def enqueued(self, kind: Kind[..., Any] | str | None = None, /, **match: Any) -> list[Job]:
        """The jobs that were enqueued since the kit was opened, done or not, the oldest first.

        ``kit.enqueued(send_receipt, to="a@b.c", queue="mail", delay="1h")``: of one kind, with these arguments (others
        may be what they like) and these options. ``payload={…}`` is for arguments that are called like an option.
        """
        return Wanted(kind, match).among(self._jobs())

    def assert_enqueued(
        self, kind: Kind[..., Any] | str | None = None, /, *, times: int | None = None, **match: Any
    ) -> list[Job]:
        """At least one such job was enqueued, or exactly ``times``; answers them."""
        __tracebackhide__ = True
        wanted, jobs = Wanted(kind, match), self._jobs()
        found = wanted.among(jobs)
        if times is None and not found:
            raise AssertionError(told(wanted, jobs, f"no {wanted} was enqueued"))
        if times is not None and len(found) != times:
            raise AssertionError(told(wanted, jobs, f"{wanted} was enqueued {len(found)} times, not {times}"))
        return found

    def assert_not_enqueued(self, kind: Kind[..., Any] | str | None = None, /, **match: Any) -> None:
        __tracebackhide__ = True
        wanted = Wanted(kind, match)
        found = wanted.among(self._jobs())
        if found:
            raise AssertionError(told(wanted, found, f"{wanted} was enqueued"))

    def history(self, job: Job | Handle[Any] | str) -> list[Event]:
        """Every step of a job, from the ledger."""
        self._at()
        job_id = job if isinstance(job, str) else job.id
        return self.app._session.run(self.app._session.store.jobs.history(job_id, EVERY_TENANT))

    def _jobs(self) -> list[Job]:
        self._at()
        found: list[Job] = []
        before: str | None = None
        client = self.app._session
        while page := client.run(client.store.jobs.list(JobFilter(tenant=EVERY_TENANT, before=before, limit=PAGE))):
            found += page
            before = page[-1].id
        return found[::-1]

    def _at(self) -> Clock:
        if self._clock is None:
            raise Conflict(
                "the kit is not open", code="kit_closed", fix="Use it inside its block: with Kit(app) as kit: …."
            )
        return self._clock


def _here(work: Coroutine[Any, Any, T], name: str) -> T:
    if _is_running():
        work.close()
        raise InvalidSetting(
            f"{name}() would block the running event loop", code="running_loop", fix=f"Use await kit.a{name}(…)."
        )
    return asyncio.run(work)


def _is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _zoned(moment: datetime) -> datetime:
    return instant(moment, "the time")
