"""Enqueue many jobs at once. While one part of them is on its way to the store, the next is being prepared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from queue import SimpleQueue
from typing import Any, TypeVar

from holdfast.client import Client
from holdfast.domain.job import Enqueued, JobSpec
from holdfast.handle import Handle
from holdfast.kind import Prepared
from holdfast.stores.flow import Flow, Steps

R = TypeVar("R")

PART = 1000


def enqueue_many(client: Client, calls: Iterable[Prepared[R]]) -> list[Handle[R]]:
    """All in one transaction a tenant, or none; the answers are in the order of the calls."""
    rest = iter(calls)
    first = list(islice(rest, PART))
    if len(first) < PART or client.store.lanes == 1:  # nobody works beside us there: nothing is gained
        return _all_at_once(client, [*first, *rest])
    return _in_parts(client, first, rest)


async def aenqueue_many(client: Client, calls: Iterable[Prepared[R]]) -> list[Handle[R]]:
    gathered = list(calls)
    answers = {tenant: iter(await client.arun(batch)) for tenant, batch in _by_tenant(client, gathered)}
    return [client.handle(next(answers[call.tenant]), call.tenant, call.decode) for call in gathered]


def _all_at_once(client: Client, calls: Sequence[Prepared[R]]) -> list[Handle[R]]:
    answers = {tenant: iter(client.run(batch)) for tenant, batch in _by_tenant(client, calls)}
    return [client.handle(next(answers[call.tenant]), call.tenant, call.decode) for call in calls]


def _by_tenant(client: Client, calls: Sequence[Prepared[Any]]) -> Iterator[tuple[str, Flow[list[Enqueued]]]]:
    groups: dict[str, list[JobSpec]] = {}
    for call in calls:
        groups.setdefault(call.tenant, []).append(call.spec)
    for tenant, specs in groups.items():
        yield tenant, client.verbs.enqueue(specs, tenant)


def _in_parts(client: Client, first: list[Prepared[R]], rest: Iterator[Prepared[R]]) -> list[Handle[R]]:
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
                calls += part
                others += [call for call in part if call.tenant != tenant]
                feed.give([call.spec for call in part if call.tenant == tenant])
                part = list(islice(rest, PART))
        except BaseException as error:
            feed.give(error)  # which rolls back what was sent
            raise
        feed.give(None)
        answers = {tenant: iter(sent.result())}
    answers |= {other: iter(client.run(batch)) for other, batch in _by_tenant(client, others)}
    return [client.handle(next(answers[call.tenant]), call.tenant, call.decode) for call in calls]


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


def _transaction(client: Client, feed: _Feed, tenant: str) -> Flow[list[Enqueued]]:
    def steps() -> Steps[list[Enqueued]]:
        answers: list[Enqueued] = []
        for part in feed:
            if part:
                answers += yield from client.verbs.enqueue(part, tenant).start()
        return answers

    return Flow(steps)
