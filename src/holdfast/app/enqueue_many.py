"""Enqueue many jobs in one transaction. While the store writes one batch, the next is prepared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from queue import SimpleQueue
from typing import Any, TypeVar

from holdfast.engine.job import Enqueued, JobSpec
from holdfast.errors import InvalidInput, InvalidSetting
from holdfast.features.jobs.handle import Handle
from holdfast.kind import Prepared
from holdfast.stores.flow import Flow, Steps
from holdfast.stores.session import Session

R = TypeVar("R")

BATCH = 1_000
# The transaction stays open while the caller's iterable yields calls, which may take long.
TRANSACTION_TIMEOUT = 3600.0


def enqueue_many(client: Session, calls: Iterable[Prepared[R]], connection: object | None = None) -> list[Handle[R]]:
    """Store all jobs of a tenant in one transaction, or none. The handles are in the order of the calls."""
    rest = _checked(calls)
    first = list(islice(rest, BATCH))
    if _caller_connection(first, connection) is not None:
        first += rest
        borrowed = _caller_connection(first, connection)
        results = {tenant: iter(client.add(specs, tenant, borrowed)) for tenant, specs in _by_tenant(first).items()}
        return _handles(client, first, results)
    hooked = client.hooks is not None and client.hooks.wraps_enqueue  # hooks see all jobs of a call at once
    # A store with a pipeline depth of 1 works in this process: preparing the next batch meanwhile gains nothing.
    if len(first) < BATCH or client.store.pipeline_depth == 1 or hooked:
        return _in_one_batch(client, [*first, *rest])
    return _in_batches(client, first, rest)


async def aenqueue_many(
    client: Session, calls: Iterable[Prepared[R]], connection: object | None = None
) -> list[Handle[R]]:
    checked = list(_checked(calls))
    borrowed = _caller_connection(checked, connection)
    groups = _by_tenant(checked).items()
    results = {tenant: iter(await client.aadd(specs, tenant, borrowed)) for tenant, specs in groups}
    return _handles(client, checked, results)


def _checked(calls: Iterable[Prepared[R]]) -> Iterator[Prepared[R]]:
    """Yield the calls; raise ``InvalidInput`` for one that is not prepared."""
    if not isinstance(calls, Iterable):
        raise _not_prepared(calls)
    for call in calls:
        if not isinstance(call, Prepared):
            raise _not_prepared(call)
        yield call


def _not_prepared(value: object) -> InvalidInput:
    return InvalidInput(
        f"enqueue_many expects prepared calls, got {type(value).__name__}",
        code="invalid_input",
        fix="For example app.enqueue_many(send.prepare(n) for n in range(10)).",
    )


def _in_one_batch(client: Session, calls: Sequence[Prepared[R]]) -> list[Handle[R]]:
    _caller_connection(calls, None, refuse=True)
    return _handles(client, calls, _add(client, calls))


def _add(client: Session, calls: Sequence[Prepared[Any]]) -> dict[str, Iterator[Enqueued]]:
    return {tenant: iter(client.add(specs, tenant)) for tenant, specs in _by_tenant(calls).items()}


def _by_tenant(calls: Sequence[Prepared[Any]]) -> dict[str, list[JobSpec]]:
    groups: dict[str, list[JobSpec]] = {}
    for call in calls:
        groups.setdefault(call.tenant, []).append(call.spec)
    return groups


def _handles(client: Session, calls: Sequence[Prepared[R]], results: dict[str, Iterator[Enqueued]]) -> list[Handle[R]]:
    return [client.handle(next(results[call.tenant]), call.tenant, call.decode) for call in calls]


def _caller_connection(
    calls: Sequence[Prepared[Any]], connection: object | None, *, refuse: bool = False
) -> object | None:
    """Return the caller's connection that the calls use, or None. Raises ``InvalidSetting`` if they use several.

    With ``refuse``, raise for any: earlier calls have been sent on a connection of the store.
    """
    for call in calls:
        if call.connection is not None and call.connection is not connection:
            if connection is not None or refuse:
                raise InvalidSetting("the prepared calls use more than one connection", code="conflicting_options")
            connection = call.connection
    return connection


def _in_batches(client: Session, first: list[Prepared[R]], rest: Iterator[Prepared[R]]) -> list[Handle[R]]:
    """Feed batches into one transaction, which another thread runs. Jobs of other tenants follow in transactions of
    their own."""
    tenant = first[0].tenant
    feed = _Feed()
    calls, others = list[Prepared[R]](), list[Prepared[R]]()
    with ThreadPoolExecutor(1, "holdfast-bulk") as executor:
        client.make_ready()
        transaction = executor.submit(client.run, _transaction(client, feed, tenant))
        batch = first
        try:
            while batch and not transaction.done():  # it ends before the last batch only if it failed
                _caller_connection(batch, None, refuse=True)
                calls += batch
                others += [call for call in batch if call.tenant != tenant]
                feed.put([call.spec for call in batch if call.tenant == tenant])
                batch = list(islice(rest, BATCH))
        except BaseException as error:
            feed.put(error)  # rolls back the batches that were sent
            raise
        feed.put(None)
        results = {tenant: iter(transaction.result())}
    results |= _add(client, others)
    return _handles(client, calls, results)


class _Feed:
    """A queue of batches that can be iterated over again from the start, for a transaction that is retried.

    None ends the iteration; an exception is raised by it.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[list[JobSpec] | BaseException | None] = SimpleQueue()
        self._taken: list[list[JobSpec]] = []

    def put(self, batch: list[JobSpec] | BaseException | None) -> None:
        self._queue.put(batch)

    def __iter__(self) -> Iterator[list[JobSpec]]:
        yield from list(self._taken)
        while (batch := self._queue.get()) is not None:
            if isinstance(batch, BaseException):
                self._queue.put(batch)
                raise batch
            self._taken.append(batch)
            yield batch
        self._queue.put(None)


def _transaction(client: Session, feed: _Feed, tenant: str) -> Flow[list[Enqueued]]:
    def steps() -> Steps[list[Enqueued]]:
        results: list[Enqueued] = []
        for batch in feed:
            if batch:
                results += yield from client.store.jobs.enqueue(batch, tenant).start()
        return results

    return Flow(steps, patience=TRANSACTION_TIMEOUT)
