"""What every worker does on the side. Correct with no leader: each verb is safe everywhere at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.job import Sweep
from holdfast.runtime.feeding import feed
from holdfast.runtime.operating import work_off
from holdfast.runtime.sealing import Sealing
from holdfast.runtime.sweeping import SLICES, sweep
from holdfast.stores.base import Store
from holdfast.stores.flow import Flow

log = logging.getLogger("holdfast.worker")

BATCH = 1000


@dataclass(frozen=True, slots=True)
class Duty:
    """``flow`` answers how much there was; a ``full`` batch is followed by another at once. Where one transaction will
    not do, ``run`` does all there is, and answers how much it was. ``then`` is done after it, on the same connection:
    of those a worker has few."""

    name: str
    every: float
    flow: Callable[[Store], Flow[Any]] | None = None
    count: Callable[[Any], int] = int
    full: int = BATCH
    run: Callable[[Store], Awaitable[int]] | None = None
    then: Duty | None = None
    readies: bool = True
    """Whether it may make jobs ready to be taken: a burst waits for those that do to have looked."""

    def followed_by(self, last: Duty) -> Duty:
        return replace(self, then=last if self.then is None else self.then.followed_by(last))


def standard_duties(tenant: str, *, promote_every: float, sweep_every: float, sealing: bool = True) -> tuple[Duty, ...]:
    bulk = Duty("operations", promote_every, run=partial(work_off, tenant=tenant))
    following = Duty("subscriptions", promote_every, run=partial(feed, tenant=tenant), then=bulk)
    limits = Duty("limits", promote_every, lambda store: store.verbs.attend_limits(BATCH, tenant), then=following)
    aging = Duty("aging", sweep_every, lambda store: store.verbs.age_queues(BATCH, tenant))
    last = Duty("seal", sweep_every, run=Sealing(sweep_every)) if sealing else None
    return (
        Duty("promote", promote_every, lambda store: store.verbs.promote_due(BATCH, tenant), then=limits),
        Duty("expire", sweep_every, lambda store: store.verbs.expire_overdue(BATCH, tenant), then=last),
        Duty("gates", sweep_every, lambda store: store.verbs.attend_gates(BATCH, tenant), then=aging),
        Duty("reap", sweep_every, lambda store: store.verbs.reap_lapsed(BATCH, tenant), _freed),
        # By itself: it goes slowly, so that others may work beside it.
        Duty(
            "retention",
            sweep_every,
            run=partial(sweep, tenant=tenant, slices=SLICES if sweep_every else 1),
            readies=False,
        ),
    )


async def run_once(duty: Duty, store: Store) -> int:
    """Do what there is to do; answers how much. A store that is away is a reason to try later, not to fail."""
    total = 0
    try:
        if duty.run is not None:
            return await duty.run(store)
        while duty.flow is not None:
            done = duty.count(await store.arun(duty.flow(store)))
            total += done
            if done < duty.full:
                break
        return total
    except StoreUnavailable as error:
        store.outage.failed(error)
        return total
    except Exception as error:  # a duty that fails is tried again; it must not end the worker
        log.warning("duty %s failed: %s", duty.name, error)
        return total


async def attend(
    duty: Duty,
    store: Store,
    call: Callable[[], None],
    looked: Callable[[], None],
    leaving: asyncio.Event,
    first: asyncio.Lock,
) -> None:
    """Do a duty again and again until ``leaving``: ``call`` when it found something, ``looked`` after each look. The
    first looks are one after another, by ``first``: a worker that starts has jobs to take, and its duties would open a
    connection each before that."""
    async with first:
        if duty.readies and not leaving.is_set():
            await _look(duty, store, call, looked, leaving)
    if not duty.readies and not leaving.is_set():  # one that goes slowly, and nobody waits for
        await _look(duty, store, call, looked, leaving)
    while not leaving.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(leaving.wait(), duty.every * random.uniform(0.8, 1.2))
        if not leaving.is_set():
            await _look(duty, store, call, looked, leaving)


async def _look(
    duty: Duty, store: Store, call: Callable[[], None], looked: Callable[[], None], leaving: asyncio.Event
) -> None:
    each: Duty | None = duty
    while each is not None and not leaving.is_set():
        if await run_once(each, store):
            call()
        each = each.then
    looked()


def _freed(sweep: Sweep) -> int:
    if sweep.leases or sweep.requeued or sweep.crashed:
        log.info(
            "reaped %s lapsed leases: %s jobs back in the queue, %s taken as crashed",
            sweep.leases,
            sweep.requeued,
            sweep.crashed,
        )
    return sweep.requeued + sweep.crashed
