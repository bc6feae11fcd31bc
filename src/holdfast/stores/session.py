"""The client: one store, one tenant, one name to sign with. Everything that is not a worker goes through it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.engine.ids import id_texts
from holdfast.engine.job import EVERY_TENANT, Enqueued, Event, JobSpec, Verdict
from holdfast.engine.names import check_name
from holdfast.engine.order import Move
from holdfast.engine.retry import retry_limit
from holdfast.engine.settlement import storable
from holdfast.errors import Conflict, HoldfastError, InvalidSetting, NotFound, Refused
from holdfast.features.events.model import SentEvent
from holdfast.features.jobs.handle import Handle
from holdfast.features.jobs.operations import FromStep, check_from_step, redriving
from holdfast.features.payloads.model import PayloadRule, effective
from holdfast.stores.flow import Flow, in_thread
from holdfast.stores.requests import OperatorVerb, Reschedule
from holdfast.stores.vault import EMPTY, Vault, is_packed
from holdfast.telemetry import observers

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

T = TypeVar("T")

# For which tenant this task or thread works, the innermost last: of one store, or (in a handler) of one database by its
# URL, which another process knows it by as well. A task has a copy of its own, and so has each call of a pool's thread.
_bound: ContextVar[tuple[tuple[object, str], ...]] = ContextVar("holdfast_tenant", default=())
# Who asked for what is done here, where that is not the program itself: the caller of a request to the service.
_asking: ContextVar[str | None] = ContextVar("holdfast_actor", default=None)


class Session:
    """An embedded database is brought up to date on first use; a server is migrated by whoever runs it.

    ``home`` is the store it belongs to, also while it works on another. ``scope`` is the tenant it was made for, and
    that of the leases it is used with; ``tenant`` is the one to work for here and now.
    """

    def __init__(
        self,
        store: Store,
        *,
        tenant: str,
        name: str,
        actor: str,
        home: Store | None = None,
        vault: Vault = EMPTY,
    ) -> None:
        self.store = store
        self.vault = vault
        self.home = home or store
        self.scope = tenant
        self.name = name
        self._actor = actor
        self._ready = not store.embedded
        self._readying = threading.Lock()

    def move_to(self, store: Store) -> None:
        """Work on another store from now on, or at home again."""
        with self._readying:
            self.store = store
            self._ready = not store.embedded

    @property
    def tenant(self) -> str:
        for where, tenant in reversed(_bound.get()):
            if where is self.home or where == self.store.url:
                return tenant
        return self.scope

    @property
    def actor(self) -> str:
        """Whom the ledger names: whoever asked for it, or the program."""
        return _asking.get() or self._actor

    @contextmanager
    def serving(self, tenant: str, actor: str) -> Iterator[None]:
        """Work for a caller whose credentials name the tenant (``*`` for every tenant) and who it is."""
        named = tenant if tenant == EVERY_TENANT else check_name(tenant, "tenant")
        whose = _bound.set((*_bound.get(), (self.home, named)))
        who = _asking.set(check_name(actor, "actor"))
        try:
            yield
        finally:
            _asking.reset(who)
            _bound.reset(whose)

    @contextmanager
    def acting_for(self, tenant: str) -> Iterator[None]:
        """Work for this tenant within the block, in this task or thread alone."""
        if check_name(tenant, "tenant") == EVERY_TENANT:
            raise InvalidSetting("name one tenant; * is none", code="invalid_name")
        token = _bound.set((*_bound.get(), (self.home, tenant)))
        try:
            yield
        finally:
            _bound.reset(token)

    def belong_to(self, tenant: str) -> None:
        """Work for this tenant from now on, in this task or call: it is that of the job in hand. What was bound around
        the worker is not the handler's."""
        _bound.set(((self.store.url, tenant),))

    @property
    def in_a_handler(self) -> bool:
        """Whether a handler of this database is running here."""
        return any(where == self.store.url for where, _ in _bound.get())

    def run(self, flow: Flow[T]) -> T:
        self.make_ready()
        return self.store.run(flow)

    async def arun(self, flow: Flow[T]) -> T:
        await self.amake_ready()
        return await self.store.arun(flow)

    def make_ready(self) -> None:
        if not self._ready:
            with self._readying:
                if not self._ready:
                    self.store.migrate()
                    self._ready = True

    async def amake_ready(self) -> None:
        """Beside the loop: another process may be at the tables."""
        if not self._ready:
            await in_thread(self.make_ready)

    # --- enqueue ---

    def enqueue(
        self, spec: JobSpec, tenant: str, decode: Callable[[Any], T], connection: object | None = None
    ) -> Handle[T]:
        return self.accepted(self.add([spec], tenant, connection), tenant, decode)

    async def aenqueue(
        self, spec: JobSpec, tenant: str, decode: Callable[[Any], T], connection: object | None = None
    ) -> Handle[T]:
        return self.accepted(await self.aadd([spec], tenant, connection), tenant, decode)

    def add(self, specs: Sequence[JobSpec], tenant: str, connection: object | None = None) -> list[Enqueued]:
        """Store a batch, on a connection of ours or as part of the transaction on the caller's own."""
        if observers.quiet():
            return self._store(specs, tenant, connection)
        with observers.sending(specs, tenant):
            return self._store(specs, tenant, connection)

    def _store(self, specs: Sequence[JobSpec], tenant: str, connection: object | None) -> list[Enqueued]:
        try:
            answers = self._add(specs, tenant, connection)
        except Refused as refused:
            self._may_store(refused, specs, tenant)
            rules = self.run(self.store.payload_rules.list(tenant))
            store_payloads(specs, tenant, rules, self.vault, refused)
            answers = self._add(specs, tenant, connection)
        if self.vault.artifacts is not None:
            self._drop([spec for spec, answer in zip(specs, answers, strict=True) if not answer.created], tenant)
        return answers

    def _add(self, specs: Sequence[JobSpec], tenant: str, connection: object | None) -> list[Enqueued]:
        if connection is None:
            return self.run(self.store.jobs.enqueue(specs, tenant))
        return self.store.run_borrowed(connection, self.store.borrowed.enqueue(specs, tenant))

    async def aadd(self, specs: Sequence[JobSpec], tenant: str, connection: object | None = None) -> list[Enqueued]:
        if observers.quiet():
            return await self._astore(specs, tenant, connection)
        with observers.sending(specs, tenant):
            return await self._astore(specs, tenant, connection)

    async def _astore(self, specs: Sequence[JobSpec], tenant: str, connection: object | None) -> list[Enqueued]:
        try:
            answers = await self._aadd(specs, tenant, connection)
        except Refused as refused:
            self._may_store(refused, specs, tenant)
            rules = await self.arun(self.store.payload_rules.list(tenant))
            await asyncio.to_thread(store_payloads, specs, tenant, rules, self.vault, refused)
            answers = await self._aadd(specs, tenant, connection)
        unused = () if self.vault.artifacts is None else tuple(zip(specs, answers, strict=True))
        if any(not answer.created for _, answer in unused):
            await asyncio.to_thread(self._drop, [spec for spec, answer in unused if not answer.created], tenant)
        return answers

    async def _aadd(self, specs: Sequence[JobSpec], tenant: str, connection: object | None) -> list[Enqueued]:
        if connection is None:
            return await self.arun(self.store.jobs.enqueue(specs, tenant))
        return await self.store.arun_borrowed(connection, self.store.borrowed.enqueue(specs, tenant))

    def _may_store(self, refused: Refused, specs: Sequence[JobSpec], tenant: str) -> None:
        """A rule that is in the database alone is met there first; what it wants stored is stored then."""
        if refused.code != "payload_over_limit" or self.vault.artifacts is None:
            self._drop(specs, tenant)
            raise refused

    def _drop(self, specs: Sequence[JobSpec], tenant: str) -> None:
        """Blobs of jobs that were not made; where they cannot be deleted just now they stay, and do no harm."""
        for spec in specs:
            with suppress(HoldfastError):
                self.vault.drop(spec.payload, tenant=tenant)

    def handle(self, answer: Enqueued, tenant: str, decode: Callable[[Any], T]) -> Handle[T]:
        return Handle(answer.id or "", tenant, answer.created, answer.reason, self, decode, answer.detail)

    def accepted(self, answers: Sequence[Enqueued], tenant: str, decode: Callable[[Any], T]) -> Handle[T]:
        answer = answers[0]
        if answer.reason == "idempotency_conflict":
            raise Conflict(
                f"job {answer.id} was enqueued under this key with another payload",
                code="idempotency_conflict",
                fix="Use another key, or the same arguments.",
            )
        if answer.reason == "parent_not_found":
            raise NotFound("the parent job does not exist in this tenant", code="parent_not_found")
        if answer.id is None:
            raise Refused(answer.detail or "the job was refused", code=answer.reason)
        return self.handle(answer, tenant, decode)

    # --- operators ---

    def operate(
        self,
        verb: OperatorVerb,
        ids: Sequence[str],
        reason: str | None = None,
        *,
        tenant: str | None = None,
        max_attempts: int | None = None,
    ) -> list[Verdict]:
        """Cancel, redrive (with a new limit, if one is given) or discard; one verdict an id."""
        limit = retry_limit(max_attempts)
        return self.run(
            self.store.jobs.operate(verb, id_texts(ids), storable(reason), self.actor, tenant or self.tenant, limit)
        )

    def redrive(
        self,
        ids: Sequence[str],
        reason: str | None = None,
        *,
        from_step: FromStep | None = None,
        tenant: str | None = None,
        max_attempts: int | None = None,
    ) -> list[Verdict]:
        """Redrive dead letters: from where they stopped, or from a step that is then done again."""
        if from_step is None:
            return self.operate("redrive", ids, reason, tenant=tenant, max_attempts=max_attempts)
        place, limit, whose = check_from_step(from_step), retry_limit(max_attempts), tenant or self.tenant
        return self.run(redriving(self.store, id_texts(ids), place, reason, self.actor, whose, limit))

    async def aoperate(
        self, verb: OperatorVerb, ids: Sequence[str], reason: str | None = None, *, tenant: str | None = None
    ) -> list[Verdict]:
        return await self.arun(
            self.store.jobs.operate(verb, id_texts(ids), storable(reason), self.actor, tenant or self.tenant)
        )

    async def aredrive(
        self,
        ids: Sequence[str],
        reason: str | None = None,
        *,
        from_step: FromStep | None = None,
        tenant: str | None = None,
        max_attempts: int | None = None,
    ) -> list[Verdict]:
        limit, whose = retry_limit(max_attempts), tenant or self.tenant
        if from_step is None:
            return await self.arun(
                self.store.jobs.operate("redrive", id_texts(ids), storable(reason), self.actor, whose, limit)
            )
        place = check_from_step(from_step)
        return await self.arun(redriving(self.store, id_texts(ids), place, reason, self.actor, whose, limit))

    def reschedule(
        self, ids: Sequence[str], when: Reschedule, reason: str | None = None, *, tenant: str | None = None
    ) -> list[Verdict]:
        """Give waiting jobs another time; one verdict an id."""
        return self.run(
            self.store.jobs.reschedule(id_texts(ids), when, storable(reason), self.actor, tenant or self.tenant)
        )

    async def areschedule(
        self, ids: Sequence[str], when: Reschedule, reason: str | None = None, *, tenant: str | None = None
    ) -> list[Verdict]:
        return await self.arun(
            self.store.jobs.reschedule(id_texts(ids), when, storable(reason), self.actor, tenant or self.tenant)
        )

    def move(self, job_id: str, move: Move, reason: str | None = None, *, tenant: str | None = None) -> Verdict:
        """Give a waiting job another place in its queue."""
        return self.run(self.store.jobs.move(job_id, move, storable(reason), self.actor, tenant or self.tenant))

    async def amove(self, job_id: str, move: Move, reason: str | None = None, *, tenant: str | None = None) -> Verdict:
        return await self.arun(self.store.jobs.move(job_id, move, storable(reason), self.actor, tenant or self.tenant))

    # --- the ledger ---

    def events(self, consumer: str, *, page: int = 100, tenant: str | None = None) -> Iterator[Event]:
        """The events this consumer has not dealt with, in commit order, until there are none.

        Its place moves on page by page, after the last event of a page was dealt with. Whoever stops or
        dies before that gets the page again: at least once, never skipped (DP-12).
        """
        scope = tenant or self.tenant
        place = self.run(self.store.ledger.cursor(consumer, scope))
        while batch := self.run(self.store.ledger.read(place, page, scope)):
            yield from batch
            if not self.run(self.store.ledger.save_cursor(consumer, batch[-1].cursor, place, scope)):
                raise _moved(consumer)
            place = batch[-1].cursor

    async def aevents(self, consumer: str, *, page: int = 100, tenant: str | None = None) -> AsyncIterator[Event]:
        scope = tenant or self.tenant
        place = await self.arun(self.store.ledger.cursor(consumer, scope))
        while batch := await self.arun(self.store.ledger.read(place, page, scope)):
            for event in batch:
                yield event
            if not await self.arun(self.store.ledger.save_cursor(consumer, batch[-1].cursor, place, scope)):
                raise _moved(consumer)
            place = batch[-1].cursor

    def sent_events(self, consumer: str, *, page: int = 100, tenant: str | None = None) -> Iterator[SentEvent]:
        """The same for what applications told. A consumer reads the one or the other."""
        scope = tenant or self.tenant
        place = self.run(self.store.ledger.cursor(consumer, scope))
        while batch := self.run(self.store.ledger.read_sent(place, page, scope)):
            yield from batch
            if not self.run(self.store.ledger.save_cursor(consumer, batch[-1].cursor, place, scope)):
                raise _moved(consumer)
            place = batch[-1].cursor


def store_payloads(
    specs: Sequence[JobSpec], tenant: str, rules: Sequence[PayloadRule], vault: Vault, refused: Refused
) -> None:
    """Put the payloads that are too large into the artifact store, where the rules for their kinds allow it."""
    for spec in specs:
        rule = effective(rules, tenant, spec.kind)
        if rule.max_bytes is None or len(spec.payload.encode()) <= rule.max_bytes:
            continue
        if not rule.store or is_packed(spec.payload):
            raise refused
        text = spec.payload
        spec.payload = vault.pack(text, rule, what="payload", kind=spec.kind, tenant=tenant, job_id=spec.id)
        spec.payload_hash = vault.digest(text)


def _moved(consumer: str) -> Conflict:
    return Conflict(f"another process is reading as consumer {consumer!r}", code="consumer_moved")
