"""What is done with jobs that there are: look, act, tell them of something, decide for them. A part of ``App``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Unpack

from holdfast.app.enqueue import Enqueuing, as_it_is
from holdfast.context import current
from holdfast.engine.ids import parse_id
from holdfast.engine.job import Event, Job, Verdict
from holdfast.engine.names import check_name
from holdfast.engine.order import Move
from holdfast.engine.payload import encode
from holdfast.engine.units import Duration
from holdfast.errors import InvalidSetting
from holdfast.features.approvals.model import GateState
from holdfast.features.approvals.operations import Approvals, Said
from holdfast.features.dead_letters.operations import DeadLetters, Operations
from holdfast.features.events.model import SentEvent, check_event_name
from holdfast.features.jobs.handle import Handle
from holdfast.features.jobs.operations import FromStep
from holdfast.features.jobs.views import Why, chain_of, why
from holdfast.features.limits.operations import Reserving
from holdfast.kind import PAYLOAD_LIMIT
from holdfast.stores.flow import Flow
from holdfast.stores.ids import new_id
from holdfast.stores.requests import Reschedule, Sent, Telling, page_of


class Acting(Enqueuing):
    operations: Operations

    def get(self, job_id: str, *, tenant: str | None = None) -> Job | None:
        return self.client.run(self.client.store.jobs.get(job_id, tenant or self.client.tenant))

    async def aget(self, job_id: str, *, tenant: str | None = None) -> Job | None:
        return await self.client.arun(self.client.store.jobs.get(job_id, tenant or self.client.tenant))

    def handle(self, job_id: str, *, tenant: str | None = None) -> Handle[Any]:
        """A handle on a job that is there already, for programs that kept its id: ``app.handle(id).result()``."""
        return Handle(parse_id(job_id), tenant or self.client.tenant, False, None, self.client, as_it_is)

    def chain(self, job_id: str, *, tenant: str | None = None) -> list[Job]:
        """The job and its retries, where each is a job of its own: the first first, whichever of them is asked for."""
        return self.client.run(chain_of(self.client.store, job_id, tenant or self.client.tenant))

    async def achain(self, job_id: str, *, tenant: str | None = None) -> list[Job]:
        return await self.client.arun(chain_of(self.client.store, job_id, tenant or self.client.tenant))

    def why(self, job_id: str, *, tenant: str | None = None) -> Why:
        """Why a job is where it is, and does not run: every reason that holds, and what would change it."""
        return self.client.run(why(self.client.store, job_id, tenant or self.client.tenant))

    async def awhy(self, job_id: str, *, tenant: str | None = None) -> Why:
        return await self.client.arun(why(self.client.store, job_id, tenant or self.client.tenant))

    def jobs(self, **wanted: Any) -> list[Job]:
        """A page of jobs, newest first: ``app.jobs(state="dead_letter", kind="pay", limit=20)``."""
        return self.client.run(self.client.store.jobs.list(page_of(self.client.tenant, wanted)))

    async def ajobs(self, **wanted: Any) -> list[Job]:
        return await self.client.arun(self.client.store.jobs.list(page_of(self.client.tenant, wanted)))

    def cancel(self, *job_ids: str, reason: str | None = None) -> list[Verdict]:
        return self.client.operate("cancel", job_ids, reason)

    def redrive(
        self,
        *job_ids: str,
        reason: str | None = None,
        max_attempts: int | None = None,
        from_step: FromStep | None = None,
    ) -> list[Verdict]:
        """Put dead letters back into their queue with all their tries before them, or as many as given here.

        Steps that are done are not done again, unless ``from_step`` (a number or a name) says from where on.
        """
        return self.client.redrive(job_ids, reason, from_step=from_step, max_attempts=max_attempts)

    def reschedule(
        self,
        *job_ids: str,
        at: datetime | None = None,
        delay: Duration | None = None,
        max_attempts: int | None = None,
        reason: str | None = None,
    ) -> list[Verdict]:
        """Give jobs that wait (for their turn, their time or their retry) another time; with neither, at once."""
        return self.client.reschedule(job_ids, Reschedule.of(at, delay, max_attempts), reason)

    def move(
        self,
        job_id: str,
        *,
        first: bool = False,
        last: bool = False,
        before: str | None = None,
        after: str | None = None,
        priority: int | None = None,
        reason: str | None = None,
    ) -> Verdict:
        """Give a job that waits another place in its queue: one of the four, within its priority or another one.

        Next to another job it has that one's priority; a priority alone means last among those that have it.
        """
        return self.client.move(job_id, Move.of(first, last, before, after, priority), reason)

    async def amove(
        self,
        job_id: str,
        *,
        first: bool = False,
        last: bool = False,
        before: str | None = None,
        after: str | None = None,
        priority: int | None = None,
        reason: str | None = None,
    ) -> Verdict:
        return await self.client.amove(job_id, Move.of(first, last, before, after, priority), reason)

    def discard(self, *job_ids: str, reason: str) -> list[Verdict]:
        return self.client.operate("discard", job_ids, reason)

    def events(self, consumer: str, *, page: int = 100) -> Iterator[Event]:
        return self.client.events(consumer, page=page)

    def sent_events(self, consumer: str, *, page: int = 100) -> Iterator[SentEvent]:
        """What applications told (``send_event``), with a place of its own for each consumer, as ``events`` has one."""
        return self.client.sent_events(consumer, page=page)

    def reserve(
        self,
        resource: str | None = None,
        *,
        queue: str | None = None,
        wait: Duration | None = None,
        ttl: Duration = 30.0,
        at_once: bool = False,
        reason: str | None = None,
    ) -> Reserving:
        """Use something directly while no job is begun there: ``with app.reserve("gpu-0", wait="30s"):``, or
        ``async with``. A resource, a queue, or (with neither) everything. The block begins when its turn has come and
        the jobs that run there have ended, or ``at_once`` while they go on; after ``wait`` it is refused as busy."""
        return Reserving.of(self.client, new_id(), resource, queue, wait, ttl, at_once, reason)

    @property
    def dead_letters(self) -> DeadLetters:
        """What failed for good, in groups: ``app.dead_letters.groups()``, ``.redrive(group)``, ``.discard(…)``."""
        return DeadLetters(
            self.client,
            self.operations.starting,
            lambda kind, given, tenant: self._make(kind, given, {"tenant": tenant}),
        )

    def send_event(
        self,
        name: str,
        data: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        job: str | None = None,
        tenant: str | None = None,
    ) -> Sent:
        """Tell of something that happened: jobs that wait for it go on. With a ``key`` it is told once, however often
        it is sent; with a ``job`` it is for that one alone."""
        return self.client.run(self._telling(name, data, key, job, tenant))

    async def asend_event(
        self,
        name: str,
        data: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        job: str | None = None,
        tenant: str | None = None,
    ) -> Sent:
        return await self.client.arun(self._telling(name, data, key, job, tenant))

    def _telling(
        self, name: str, data: dict[str, Any] | None, key: str | None, job: str | None, tenant: str | None
    ) -> Flow[Sent]:
        if data is not None and not isinstance(data, dict):
            raise InvalidSetting("the data of an event is an object of names and values", code="invalid_event")
        text = encode(data or {}, limit=PAYLOAD_LIMIT, what=f"data of event {name}")
        known = None if key is None else check_name(key, "key", limit=255)
        whose = tenant or self.client.tenant
        running = current()
        cause = None if running is None else running.job_id
        event = Telling(new_id(), check_event_name(name), text, known, job, cause)
        return self.client.store.ledger.send(event, self.client.actor, whose)

    @property
    def approvals(self) -> Approvals:
        """What waits for people: ``app.approvals.list()``, ``.show(gate)``, ``.token(gate)``."""
        return Approvals(self.client)

    def approve(self, gate: str, *, by: str | None = None, **said: Unpack[Said]) -> GateState:
        """Say yes: ``app.approve(gate, by="ada", comment="fine", data={…})``. ``gate`` is its id, or a token; one that
        was issued to somebody knows who they are."""
        return self.approvals.decide("approve", gate, by, **said).state

    async def aapprove(self, gate: str, *, by: str | None = None, **said: Unpack[Said]) -> GateState:
        return (await self.approvals.adecide("approve", gate, by, **said)).state

    def deny(self, gate: str, *, by: str | None = None, **said: Unpack[Said]) -> GateState:
        return self.approvals.decide("deny", gate, by, **said).state

    async def adeny(self, gate: str, *, by: str | None = None, **said: Unpack[Said]) -> GateState:
        return (await self.approvals.adecide("deny", gate, by, **said)).state
