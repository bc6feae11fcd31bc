"""``Session``: one store, one tenant, one actor. Everything but a worker goes through it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from holdfast.engine.hooks import AppHooks
from holdfast.engine.job import EVERY_TENANT, Enqueued, JobSpec
from holdfast.engine.names import check_name
from holdfast.errors import Conflict, HoldfastError, InvalidSetting, Refused
from holdfast.features.payloads.model import PayloadRule, effective
from holdfast.stores.flow import Flow, in_thread, read_budget, read_in_thread
from holdfast.stores.locks import fork_safe_lock
from holdfast.stores.vault import EMPTY, Vault, is_packed
from holdfast.telemetry import observers

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

T = TypeVar("T")

Stored = Callable[[Sequence[Enqueued]], None]
_UNWATCHED: Final[nullcontext[Stored]] = nullcontext(lambda results: None)

DRAIN_GRACE = 0.5
"""Seconds that a wait in a test kit gives a drain in another thread or task to begin."""

# The tenants this task or thread works for, innermost last. Each belongs to one store, or in a handler to one database,
# identified by its URL because a child process has another store object. Every task and every call in a thread pool has
# its own copy.
_bound: ContextVar[tuple[tuple[object, str], ...]] = ContextVar("holdfast_tenant", default=())
# The caller of a request to the service; None where the program itself acts.
_request_actor: ContextVar[str | None] = ContextVar("holdfast_actor", default=None)


class Session:
    """Runs operations and enqueues jobs. An embedded database is migrated on first use; a server by its operator.

    ``home`` is the store it was created for, also while it works on another one. ``scope`` is the tenant it was created
    for, and the tenant of its leases; ``tenant`` is the one of the current task or thread.
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
        hooks: AppHooks | None = None,
        version: str | None = None,
    ) -> None:
        self.store = store
        self.version = version
        """The version of the application."""
        self.vault = vault
        self.hooks = hooks or AppHooks()
        self.home = home or store
        self.scope = tenant
        self.name = name
        self._actor = actor
        self._ready = not store.embedded
        self._migrating = fork_safe_lock()
        self.nothing_runs: Callable[[], bool] | None = None
        """For the test kit: whether no job runs now, and none will before the test calls ``drain``."""

    def check_waiting(self, what: str, since: float) -> None:
        """Called between the polls of a wait. Raises ``Conflict`` if the wait would never end."""
        if self.nothing_runs is not None and time.monotonic() - since > DRAIN_GRACE and self.nothing_runs():
            raise Conflict(
                f"waiting for {what}, which has not ended, and no job runs in a test outside kit.drain()",
                code="not_drained",
                fix="Call kit.drain() first. If the job waits for a time or a decision: kit.travel(…), kit.approve(…).",
            )

    def move_to(self, store: Store) -> None:
        """Work on another store from now on, or on ``home`` again."""
        with self._migrating:
            self.store = store
            self._ready = not store.embedded

    @property
    def tenant(self) -> str:
        for owner, tenant in reversed(_bound.get()):
            if owner is self.home or owner == self.store.url:
                return tenant
        return self.scope

    @property
    def actor(self) -> str:
        """The actor that the ledger records: the caller of the current request, or the program."""
        return _request_actor.get() or self._actor

    @contextmanager
    def serving(self, tenant: str, actor: str) -> Iterator[None]:
        """Work for a caller whose credentials name its tenant (``*`` for every tenant) and its actor."""
        checked = tenant if tenant == EVERY_TENANT else check_name(tenant, "tenant")
        bound_before = _bound.set((*_bound.get(), (self.home, checked)))
        actor_before = _request_actor.set(check_name(actor, "actor"))
        try:
            yield
        finally:
            _request_actor.reset(actor_before)
            _bound.reset(bound_before)

    @contextmanager
    def acting_for(self, tenant: str) -> Iterator[None]:
        """Work for this tenant within the block, in this task or thread only."""
        if check_name(tenant, "tenant") == EVERY_TENANT:
            raise InvalidSetting('expected one tenant, got "*"', code="invalid_name")
        token = _bound.set((*_bound.get(), (self.home, tenant)))
        try:
            yield
        finally:
            _bound.reset(token)

    def belong_to(self, tenant: str) -> None:
        """Work for the tenant of the current job from now on, in this task or call. Tenants bound around the worker do
        not apply to its handlers."""
        _bound.set(((self.store.url, tenant),))

    @property
    def in_a_handler(self) -> bool:
        """Whether a handler of this database is running here."""
        return any(owner == self.store.url for owner, _ in _bound.get())

    def run(self, flow: Flow[T]) -> T:
        if not self._ready:
            self.make_ready()
        return self.store.run(flow)

    async def arun(self, flow: Flow[T]) -> T:
        if not self._ready:
            await in_thread(self.make_ready)
        if read_budget.get() is not None and not flow.writes:
            return await read_in_thread(partial(self.store.run, flow))
        return await self.store.arun(flow)

    def make_ready(self) -> None:
        if not self._ready:
            with self._migrating:
                if not self._ready:
                    self._migrate()

    def migrate(self) -> None:
        """Create the tables, or bring them to this release."""
        with self._migrating:
            self._migrate()

    def _migrate(self) -> None:
        self.store.migrate()
        self._ready = True

    async def amake_ready(self) -> None:
        """In a thread: another process may hold the lock of the migration."""
        if not self._ready:
            await in_thread(self.make_ready)

    # --- enqueue ---

    def enqueue(self, specs: Sequence[JobSpec], tenant: str, connection: object | None = None) -> list[Enqueued]:
        """Enqueue a batch, on a pooled connection or in the transaction that is open on the caller's connection."""
        with self._watched(specs, tenant) if self._is_watched else _UNWATCHED as stored:
            try:
                results = self._insert(specs, tenant, connection)
            except Refused as refused:
                self._check_storable(refused, specs, tenant)
                rules = self.run(self.store.payload_rules.list(tenant))
                store_payloads(specs, tenant, rules, self.vault, refused)
                results = self._insert(specs, tenant, connection)
            if self.vault.artifacts is not None:
                self._drop_payloads(_not_created(specs, results), tenant)
            stored(results)
        return results

    async def aenqueue(self, specs: Sequence[JobSpec], tenant: str, connection: object | None = None) -> list[Enqueued]:
        async with self._awatched(specs, tenant) if self._is_watched else _UNWATCHED as stored:
            try:
                results = await self._ainsert(specs, tenant, connection)
            except Refused as refused:
                self._check_storable(refused, specs, tenant)
                rules = await self.arun(self.store.payload_rules.list(tenant))
                await asyncio.to_thread(store_payloads, specs, tenant, rules, self.vault, refused)
                results = await self._ainsert(specs, tenant, connection)
            if self.vault.artifacts is not None and (unused := _not_created(specs, results)):
                await asyncio.to_thread(self._drop_payloads, unused, tenant)
            stored(results)
        return results

    def _insert(self, specs: Sequence[JobSpec], tenant: str, connection: object | None) -> list[Enqueued]:
        if connection is None:
            return self.run(self.store.jobs.enqueue(specs, tenant))
        return self.store.run_on_connection(connection, self.store.on_connection.enqueue(specs, tenant))

    async def _ainsert(self, specs: Sequence[JobSpec], tenant: str, connection: object | None) -> list[Enqueued]:
        if connection is None:
            return await self.arun(self.store.jobs.enqueue(specs, tenant))
        return await self.store.arun_on_connection(connection, self.store.on_connection.enqueue(specs, tenant))

    @property
    def _is_watched(self) -> bool:
        return self.hooks.wraps_enqueue or not observers.nothing_to_observe()

    @contextmanager
    def _watched(self, specs: Sequence[JobSpec], tenant: str) -> Iterator[Stored]:
        """Hooks and observers around an enqueue. Yields a function that takes the results for the hooks."""
        hooks = self.hooks.enqueuing(specs, tenant) if self.hooks.wraps_enqueue else _UNWATCHED
        with hooks as stored, observers.sending(specs, tenant):
            yield stored

    @asynccontextmanager
    async def _awatched(self, specs: Sequence[JobSpec], tenant: str) -> AsyncIterator[Stored]:
        hooks = self.hooks.aenqueuing(specs, tenant) if self.hooks.wraps_enqueue else _UNWATCHED
        async with hooks as stored:
            with observers.sending(specs, tenant):
                yield stored

    def _check_storable(self, refused: Refused, specs: Sequence[JobSpec], tenant: str) -> None:
        """Raise the refusal unless it is about a large payload that the artifact store can take. A payload rule that
        exists only in the database is discovered by its refusal; the batch is then stored again."""
        if refused.code != "payload_over_limit" or self.vault.artifacts is None:
            self._drop_payloads(specs, tenant)
            raise refused

    def _drop_payloads(self, specs: Sequence[JobSpec], tenant: str) -> None:
        """Delete the stored payloads of jobs that were not created. One that cannot be deleted now stays, harmless."""
        for spec in specs:
            with suppress(HoldfastError):
                self.vault.drop(spec.payload, tenant=tenant)


def _not_created(specs: Sequence[JobSpec], results: Sequence[Enqueued]) -> list[JobSpec]:
    return [spec for spec, result in zip(specs, results, strict=True) if not result.created]


def store_payloads(
    specs: Sequence[JobSpec], tenant: str, rules: Sequence[PayloadRule], vault: Vault, refused: Refused
) -> None:
    """Move payloads that are too large into the artifact store, if the rules of their kinds allow it."""
    for spec in specs:
        rule = effective(rules, tenant, spec.kind)
        if rule.max_bytes is None or len(spec.payload.encode()) <= rule.max_bytes:
            continue
        if not rule.store or is_packed(spec.payload):
            raise refused
        text = spec.payload
        spec.payload = vault.pack(text, rule, what="payload", kind=spec.kind, tenant=tenant, job_id=spec.id)
        spec.payload_hash = vault.digest(text)
