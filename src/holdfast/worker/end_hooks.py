"""Call ``on_success``, ``on_failure`` and ``on_dead_letter`` after the database has recorded the end of an attempt.

Used by the worker and by a tick. The end of an attempt is kept here until its settlement is applied, so an end that was
refused as stale is never reported. Each hook is called at most once per end: if the process dies between the commit and
the call, the hook is not called. Hooks run one after another in one task of the event loop. Their exceptions are logged
and change nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from holdfast.engine.hooks import EndHook, EndHooks, EndInfo, HowEnded, end_info
from holdfast.engine.job import EVERY_TENANT, Claim, Sweep
from holdfast.engine.settlement import Settlement
from holdfast.stores.flow import in_thread
from holdfast.worker.maintenance import MaintenanceTask

if TYPE_CHECKING:
    from holdfast.features.assembly import Store
    from holdfast.worker.executor import Handler

log = logging.getLogger("holdfast.hooks")

FINISH_TIMEOUT = 10.0
"""Seconds that a stopping worker waits for the remaining hooks."""


class EndReports:
    def __init__(self, store: Store, handlers: Mapping[str, Handler]) -> None:
        self._store = store
        self._hooks = {kind: handler.end_hooks for kind, handler in handlers.items() if handler.end_hooks is not None}
        self.waiting: dict[tuple[str, int], Claim] = {}
        """Attempts that are over and whose settlement is not recorded yet."""
        self._queue: deque[EndInfo | str] = deque()
        self._task: asyncio.Task[None] | None = None

    def expect(self, claim: Claim) -> None:
        """An attempt of a kind that has hooks is over. Its settlement is not recorded yet."""
        if claim.kind in self._hooks:
            self.waiting[claim.id, claim.attempt] = claim

    def succeeded(self, claim: Claim) -> None:
        """The handler has committed its success in its own transaction."""
        if claim.kind in self._hooks:
            self._add(end_info(claim, "succeeded"))

    def recorded(self, ended: Iterable[Settlement], stale: Collection[str]) -> None:
        for item in ended:
            claim = self.waiting.pop((item.id, item.attempt), None)
            outcome = None if claim is None or item.id in stale else _outcome(item, claim)
            if claim is not None and outcome is not None:
                trace = (item.note or {}).get("traceback")
                self._add(end_info(claim, outcome, item.code, item.message, trace))

    def keep_only(self, ended: Iterable[Settlement]) -> None:
        """Forget all other ends: they were recorded without a response, or never will be."""
        if self.waiting:
            known = {(item.id, item.attempt) for item in ended}
            self.waiting = {key: claim for key, claim in self.waiting.items() if key in known}

    # --- jobs that lost their worker ---

    def report_reaped(self, tasks: Iterable[MaintenanceTask]) -> tuple[MaintenanceTask, ...]:
        """The same tasks, with recovery that reports its dead letters if there is a hook for them."""
        if not any(hooks.dead_letter for hooks in self._hooks.values()):
            return tuple(tasks)
        return tuple(
            replace(task, count=partial(self._recovered_jobs, task.count)) if task.name == "recover" else task
            for task in tasks
        )

    def _recovered_jobs(self, count: Callable[[Sweep], int], sweep: Sweep) -> int:
        for job_id in sweep.dead:
            self._add(job_id)
        return count(sweep)

    # --- calling the hooks ---

    def _add(self, end: EndInfo | str) -> None:
        self._queue.append(end)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._queue:
            end = self._queue.popleft()
            if isinstance(end, EndInfo):
                hooks = self._hooks[end.kind]
                await self._call(hooks, hooks.called_for(end.outcome), end)
            else:
                await self._report_lost(end)

    async def _report_lost(self, job_id: str) -> None:
        try:
            job = await self._store.arun(self._store.jobs.get(job_id, EVERY_TENANT))
        except Exception as error:
            log.warning("The hook on_dead_letter was not called for job %s: %s", job_id, error)
            return
        hooks = None if job is None else self._hooks.get(job.kind)
        if job is not None and hooks is not None:
            info = end_info(job, "dead_letter", job.error_code, job.error_message)
            await self._call(hooks, hooks.dead_letter, info)

    async def _call(self, hooks: EndHooks, calls: Iterable[EndHook], info: EndInfo) -> None:
        for hook in calls:
            try:
                with hooks.acting_for(info.tenant):
                    if inspect.iscoroutinefunction(hook):
                        await hook(info)
                    elif inspect.isawaitable(result := await in_thread(hook, info)):  # an object with async __call__
                        await result
            except Exception as error:
                name = getattr(hook, "__qualname__", repr(hook))
                log.error("Hook %s failed after job %s (%s)", name, info.job_id, info.outcome, exc_info=error)

    async def finish(self) -> None:
        """Wait for the remaining hooks, up to a time limit."""
        if self._task is None or self._task.done():
            return
        await asyncio.wait({self._task}, timeout=FINISH_TIMEOUT)
        if not self._task.done():
            self._task.cancel()
            log.warning("Stopped before all hooks were called: %s ended jobs were not reported", len(self._queue) + 1)


def _outcome(item: Settlement, claim: Claim) -> HowEnded | None:
    match item.ending:
        case "succeeded":
            return "succeeded"
        case "retry":
            return "failed"
        case "dead_letter":
            return "dead_letter"
        case "crash":  # the database decides, with the numbers of the claim
            return "failed" if claim.crashes < claim.max_crashes else "dead_letter"
        case _:
            return None
