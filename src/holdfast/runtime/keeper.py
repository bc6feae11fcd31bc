"""Keeps a worker under a lease: opens one, replaces one that was lost, ends it when the worker leaves.

What is done with the jobs of a lost lease is the worker's business; here is only what the store is asked for.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace

from holdfast.engine.job import holder_of_ours
from holdfast.errors import HoldfastError, StoreError, StoreUnavailable
from holdfast.runtime.beginning import pauses
from holdfast.runtime.lease import Heartbeat
from holdfast.runtime.options import WorkerOptions
from holdfast.stores.aside import aside
from holdfast.stores.base import Store

log = logging.getLogger("holdfast.worker")


class Keeper:
    """``lease`` is the id of the present one, and empty while there is none; ``lost`` says that it has ended."""

    def __init__(self, store: Store, options: WorkerOptions, kinds: Iterable[str], call: Callable[[], None]) -> None:
        """``call`` wakes the worker, which looks whether the lease was lost."""
        # A new name each time it starts: a restarted process must never be taken for its predecessor.
        self.name = holder_of_ours(uuid.uuid4(), socket.gethostname(), os.getpid())
        self.lease = ""
        self.lost = False
        self._store = store
        self._options = options
        self._kinds = tuple(kinds)
        self._call = call
        self._heartbeat: Heartbeat | None = None

    async def open_first(self) -> None:
        """A server that is just being restarted is waited for; one that is not there is an error. It has no limit, as
        ``when_there`` has, which nobody can end: who stops the worker ends this, whatever it is at."""
        for pause in pauses():
            try:
                return await self._open()
            except StoreError as error:
                log.warning("no lease could be opened, trying again: %s", error)
                await asyncio.sleep(pause)
        await self._open()

    async def _open(self) -> None:
        ttl, tenant = self._options.lease_ttl, self._options.tenant
        options = self._options
        opening = self._store.verbs.open_lease(
            self.name, ttl, tenant, options.executor, self._kinds, options.queues, options.concurrency
        )
        # Over a connection of the turns, which come next: it is one fewer to be opened.
        lease = await self._store.arun(replace(opening, hot=True))
        self.lease = lease.id
        loop = asyncio.get_running_loop()

        def lost() -> None:
            loop.call_soon_threadsafe(self._lose, lease.id)

        self._heartbeat = Heartbeat(self._store, lease.id, ttl, tenant, lost)
        self._heartbeat.start()

    def _lose(self, lease: str) -> None:
        if lease == self.lease:
            self.lost = True
            self._call()

    async def revive(self) -> bool:
        """The lease ran out, and nobody may have noticed yet: then it can be renewed, and nothing is lost."""
        lease = self.lease
        renewal = self._store.verbs.renew_lease(lease, self._options.lease_ttl, self._options.tenant)
        try:
            if await self._store.arun(renewal):
                return True
            self._lose(lease)
        except StoreUnavailable as error:
            self._store.outage.failed(error)
        except Exception as error:
            log.warning("the lease could not be renewed: %s", error)
        return False

    async def replace(self, stopping: Callable[[], bool]) -> None:
        """Begin anew after a loss; without a lease if the worker is asked to stop first."""
        self.lease = ""
        await self._stop_heartbeat()
        self.lost = False
        while not stopping():
            try:
                return await self._open()
            except Exception as error:  # whatever it is, a worker without a lease has nothing else to do
                if isinstance(error, StoreUnavailable):
                    self._store.outage.failed(error)
                else:
                    log.warning("no new lease could be opened, trying again: %s", error)
                await asyncio.sleep(random.uniform(0.2, 1.0))

    async def leave(self) -> None:
        await self._stop_heartbeat()
        try:
            if self.lease:
                await self._store.arun(self._store.verbs.end_lease(self.lease, "closed", self._options.tenant))
        except HoldfastError as error:
            log.warning("could not say goodbye (the lease will lapse by itself): %s", error)

    def fall_silent(self) -> None:
        """Whatever could not be done before: a lease that is not ended lapses, unless somebody keeps it."""
        if self._heartbeat is not None:
            self._heartbeat.end()

    async def _stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            await aside(self._heartbeat.stop)
