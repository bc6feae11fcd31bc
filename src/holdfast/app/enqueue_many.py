"""Enqueue many jobs at once. While one part of them is on its way to the store, the next is being prepared."""

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

PART = 1_000
# The transaction lasts as long as the calls take to be prepared, which is up to whoever makes them.
LONGEST = 3600.0


def enqueue_many(client: Session, calls: Iterable[Prepared[R]], connection: object | None = None) -> list[Handle[R]]:
    """All in one transaction a tenant, or none; the answers are in the order of the calls."""
    rest = _prepared(calls)
    first = list(islice(rest, PART))
    if _shared(first, connection) is not None:
        first += rest
        on = _shared(first, connection)
        answers = {tenant: iter(client.add(specs, tenant, on)) for tenant, specs in _groups(first).items()}
        return _handles(client, first, answers)
    hooked = client.hooks is not None and client.hooks.wraps_enqueue  # hooks see all jobs of a call at once
    if len(first) < PART or client.store.lanes == 1 or hooked:  # nobody works beside us there: nothing is gained
        return _all_at_once(client, [*first, *rest])
    return _in_parts(client, first, rest)


async def aenqueue_many(
    client: Session, calls: Iterable[Prepared[R]], connection: object | None = None
) -> list[Handle[R]]:
    gathered = list(_prepared(calls))
    on = _shared(gathered, connection)
    groups = _groups(gathered).items()
    answers = {tenant: iter(await client.aadd(specs, tenant, on)) for tenant, specs in groups}
    return _handles(client, gathered, answers)


def _prepared(calls: Iterable[Prepared[R]]) -> Iterator[Prepared[R]]:
    """Each of them, if it is a prepared call."""
    if not isinstance(calls, Iterable):
        raise _not_prepared(calls)
    for call in calls:
        if not isinstance(call, Prepared):
            raise _not_prepared(call)
        yield call


def _not_prepared(what: object) -> InvalidInput:
    return InvalidInput(
        f"enqueue_many expects prepared calls, got {type(what).__name__}",
        code="invalid_input",
        fix="For example app.enqueue_many(send.prepare(n) for n in range(10)).",
    )


def _all_at_once(client: Session, calls: Sequence[Prepared[R]]) -> list[Handle[R]]:
    _shared(calls, None, ours=True)
    return _handles(client, calls, _answers(client, calls))


def _answers(client: Session, calls: Sequence[Prepared[Any]]) -> dict[str, Iterator[Enqueued]]:
    return {tenant: iter(client.add(specs, tenant)) for tenant, specs in _groups(calls).items()}


def _groups(calls: Sequence[Prepared[Any]]) -> dict[str, list[JobSpec]]:
    groups: dict[str, list[JobSpec]] = {}
    for call in calls:
        groups.setdefault(call.tenant, []).append(call.spec)
    return groups


def _handles(client: Session, calls: Sequence[Prepared[R]], answers: dict[str, Iterator[Enqueued]]) -> list[Handle[R]]:
    return [client.handle(next(answers[call.tenant]), call.tenant, call.decode) for call in calls]


def _shared(calls: Sequence[Prepared[Any]], connection: object | None, *, ours: bool = False) -> object | None:
    """The caller's own connection that the calls go through, if any: one prepared for another cannot be among them.
    ``ours``: nor for any, since some are under way on a connection of ours."""
    for call in calls:
        if call.connection is not None and call.connection is not connection:
            if connection is not None or ours:
                raise InvalidSetting("the prepared calls use more than one connection", code="conflicting_options")
            connection = call.connection
    return connection


def _in_parts(client: Session, first: list[Prepared[R]], rest: Iterator[Prepared[R]]) -> list[Handle[R]]:
    """One transaction that is fed from here. Those of other tenants come after it, in transactions of their own."""
    tenant = first[0].tenant
    feed = _Feed()
    calls, others = list[Prepared[R]](), list[Prepared[R]]()
    with ThreadPoolExecutor(1, "holdfast-bulk") as beside:
        client.make_ready()
        sent = beside.submit(client.run, _transaction(client, feed, tenant))
        part = first
        try:
            while part and not sent.done():  # done already means failed
                _shared(part, None, ours=True)
                calls += part
                others += [call for call in part if call.tenant != tenant]
                feed.give([call.spec for call in part if call.tenant == tenant])
                part = list(islice(rest, PART))
        except BaseException as error:
            feed.give(error)  # which rolls back what was sent
            raise
        feed.give(None)
        answers = {tenant: iter(sent.result())}
    answers |= _answers(client, others)
    return _handles(client, calls, answers)


class _Feed:
    """What is given on one side comes out on the other; from the beginning again if the transaction must."""

    def __init__(self) -> None:
        self._given: SimpleQueue[list[JobSpec] | BaseException | None] = SimpleQueue()
        self._seen: list[list[JobSpec]] = []

    def give(self, part: list[JobSpec] | BaseException | None) -> None:
        self._given.put(part)

    def __iter__(self) -> Iterator[list[JobSpec]]:
        yield from list(self._seen)
        while (part := self._given.get()) is not None:
            if isinstance(part, BaseException):
                self._given.put(part)
                raise part
            self._seen.append(part)
            yield part
        self._given.put(None)


def _transaction(client: Session, feed: _Feed, tenant: str) -> Flow[list[Enqueued]]:
    def steps() -> Steps[list[Enqueued]]:
        answers: list[Enqueued] = []
        for part in feed:
            if part:
                answers += yield from client.store.jobs.enqueue(part, tenant).start()
        return answers

    return Flow(steps, patience=LONGEST)
