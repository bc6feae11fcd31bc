"""A database with something to do for every duty, and the duties done over a line on which there is trouble once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast import App
from holdfast.engine.job import EVERY_TENANT
from holdfast.features.assembly import open_store
from holdfast.worker.maintenance import MaintenanceTask, run_once, standard_tasks
from tests.faults.workplace import Fresh, Line, OverAProxy
from tests.support.features import keep
from tests.support.ledger import check_ledger, read_events
from tests.support.stores import claim, open_lease, put, spec, work

HOURS = 3
Ends = Counter[tuple[str, tuple[str, ...]]]
"""How many jobs of a kind there are with this ledger."""


class Household:
    def __init__(
        self,
        databases: Callable[[Callable[[str], None]], Fresh],
        line: Callable[[str], AbstractContextManager[Line]] = OverAProxy,
    ) -> None:
        self._line = line
        self._databases = databases(_prepare)

    def close(self) -> None:
        self._databases.close()

    def through(self, trouble: tuple[Any, ...] | None) -> tuple[int, Ends]:
        """The duties are done once in trouble, and then until nothing is left; how many requests the first time took,
        and what has become of the jobs."""
        with self._databases.fresh() as url:
            with self._line(url) as line, closing(_program(line.url)) as app:
                if trouble is not None:
                    line.trouble(trouble, 0.3)
                asyncio.run(_do(app))
                asked = line.asked
            with closing(_program(url)) as app:
                for _ in range(3):
                    asyncio.run(_do(app))
                assert [each.state for each in app.operations.list()] == ["done"]
            with closing(open_store(url)) as store:
                check_ledger(store)
                ledgers: dict[str, list[str]] = {}
                kinds: dict[str, str] = {}
                for event in read_events(store):
                    ledgers.setdefault(event.job_id, []).append(event.type)
                    kinds[event.job_id] = event.kind
            return asked, Counter((kinds[job], tuple(event_types)) for job, event_types in ledgers.items())


def _program(url: str) -> App:
    """Schedules make only jobs that somebody can run."""
    app = App(url)
    for kind in ("scheduled", "followed"):
        app.job(kind)(lambda: None)
    return app


def _prepare(url: str) -> None:
    """Three hours ago: since then everything has become due."""
    with closing(_program(url)) as app:
        store = app._store
        store.migrate()
        app.schedules.add("hourly", "every 1h", kind="scheduled", missed="all")
        app.subscriptions.set("after", on="job.succeed", kind="followed", of_kind="done")
        keep(store, "2h", kind="done")
        put(store, *(spec("done") for _ in range(3)))
        work(store, want=3)
        put(store, *(spec("lost") for _ in range(2)))
        claim(store, open_lease(store), 2)
        put(store, *(spec("unwanted", queue="unwanted") for _ in range(3)))
        app.operations.start("cancel", queue="unwanted")
        app.enqueue("delayed", delay="1h")
        app.enqueue("overdue", deadline=datetime.now(UTC) + timedelta(hours=1), queue="late")
        store.run(store.clock.set(timedelta(hours=HOURS), None))


async def _do(app: App) -> None:
    """As a worker does them, one after another."""
    duties = (*app._maintenance(EVERY_TENANT, 0, 0), *standard_tasks(EVERY_TENANT, promote_every=0, sweep_every=0))
    for first in duties:
        each: MaintenanceTask | None = first
        while each is not None:
            await run_once(each, app._store)
            each = each.then
    await app.aclose()
