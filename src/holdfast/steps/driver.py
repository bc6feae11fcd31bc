"""Runs the durable calls of a handler, on the worker's loop for async handlers and in a thread for sync ones.

``Durable`` runs the programs of ``steps/program.py``, which a ``Plan`` (``steps/plan.py``) makes. It reads the recorded
steps once, and writes new ones.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from holdfast.engine.job import Claim
from holdfast.engine.operation import drive
from holdfast.engine.outcome import Stopped
from holdfast.engine.payload import DEFAULT_LIMIT, encode
from holdfast.engine.redaction import Redact
from holdfast.engine.steps import (
    RUNNING,
    Saved,
    Script,
    Step,
    StepEntry,
    origin_of,
)
from holdfast.errors import HoldfastError, StaleLease, StepsChanged, StoreUnavailable
from holdfast.steps import undo
from holdfast.steps.approvals import check_approved, decision
from holdfast.steps.branches import current_branch, current_path
from holdfast.steps.program import DurableCall, Effect, Failing, Lookup, Run, Save, Sleep
from holdfast.steps.suspensions import Suspensions
from holdfast.steps.undo import Undo
from holdfast.stores.session import Session
from holdfast.stores.vault import is_stored
from holdfast.telemetry import observers
from holdfast.worker.shutdown import Stop, Suspended
from holdfast.worker.stream_writer import AttemptStreams, StreamWriter
from holdfast.worker.threads import Threads
from holdfast.worker.writers import StepWriter

T = TypeVar("T")

log = logging.getLogger("holdfast.worker")

SEEN_AFTER: Final = 1.0
"""Seconds after which a running step is shown as running."""
ASKED_WITHIN: Final = 1.0
"""Seconds that a new step waits for a concurrent branch of the handler to ask for a recorded decision."""


Reached = Callable[[Claim, str, str], Awaitable[None]]


class RunningSteps:
    """The running steps of all attempts of a worker, and one timer to announce those that run for a while: a timer per
    step would cost more than the rest of its call."""

    def __init__(self) -> None:
        self._since: dict[tuple[Durable, int], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, durable: Durable, n: int) -> None:
        loop = asyncio.get_running_loop()
        self._since[durable, n] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(SEEN_AFTER, self._announce)

    def remove(self, durable: Durable, n: int) -> None:
        self._since.pop((durable, n), None)

    def _announce(self) -> None:
        self._timer, loop = None, asyncio.get_running_loop()
        for (durable, n), since in list(self._since.items()):
            if (left := since + SEEN_AFTER - loop.time()) > 0:
                self._timer = loop.call_later(left, self._announce)
                break
            self.remove(durable, n)
            durable.announce(n)


@dataclass(frozen=True, slots=True)
class StepTools:
    """What a worker provides to its handlers for durable calls. ``notify`` returns the kind of job that notifies people
    of approvals."""

    writer: StepWriter
    threads: Threads
    notify: Callable[[], str | None]
    reached: Reached | None = None
    """For tests: called at each point of a call at which a crash may happen."""
    streams: StreamWriter | None = None
    running: RunningSteps = field(default_factory=RunningSteps)


@dataclass(slots=True, eq=False)
class Durable:
    """The durable calls of one attempt. Everything but ``script.next_position`` happens on the worker's loop.

    ``halt`` is the exception for a handler that makes another call while it is being stopped; sync and async handlers
    have different ones.
    """

    claim: Claim
    client: Session
    tools: StepTools
    redact: Redact
    stop: Stop
    halt: type[BaseException] = asyncio.CancelledError
    script: Script = field(init=False)
    suspensions: Suspensions = field(init=False, default_factory=Suspensions)
    changed: StepsChanged | None = field(init=False, default=None)
    """Raised in a durable call, and again in each later one: code between them, such as an agent SDK, may catch it."""
    streams: AttemptStreams | None = field(init=False, default=None)
    """Created by the first chunk, because most attempts write none."""
    _load_lock: asyncio.Lock | None = field(init=False, default=None)
    _loaded: bool = field(init=False)
    _active: int = field(init=False, default=0)
    """Steps that are under way in an async handler."""
    _none_active: asyncio.Event | None = field(init=False, default=None)
    """Created when it is waited for: what every attempt has, the garbage collector visits (docs/adr/0025)."""
    _running: dict[int, tuple[str, datetime, int]] = field(init=False, default_factory=dict)
    """The running steps by position: name, start, and number of the try."""
    _earlier: dict[int, int] = field(init=False, default_factory=dict)
    """How often a step that has no record was started in earlier attempts, by position."""
    _announcing: asyncio.Task[None] | None = field(init=False, default=None)
    undos: list[Undo] = field(init=False, default_factory=list)
    """The steps of this attempt that can be undone, in the order in which they were done."""

    def __post_init__(self) -> None:
        self.script = Script(self.claim.id)
        # Nothing is recorded before a first attempt, except that of a fork.
        self._loaded = self.claim.attempt == 1 and (not self.claim.tags or origin_of(self.claim.tags) is None)

    @property
    def loaded(self) -> bool:
        return self._loaded

    async def remember(self) -> Script:
        """The script, with the recorded steps of earlier attempts."""
        if not self._loaded:
            await self._load()
        return self.script

    async def _load(self) -> None:
        self._load_lock = self._load_lock or asyncio.Lock()
        async with self._load_lock:
            while not self._loaded:
                if self.tools.writer.closed:  # the worker has ended, and its store is closed
                    raise asyncio.CancelledError
                try:
                    read, job = self.client.store.steps, (self.claim.id, self.claim.tenant)
                    steps = await self.client.arun(read.list(*job))
                    self._earlier = await self.client.arun(read.unfinished(*job))
                except StoreUnavailable as error:
                    # As with writes, an unreachable database is not a failure of the handler.
                    log.warning("Steps of job %s could not be read, retrying: %s", self.claim.id, error)
                    await asyncio.sleep(random.uniform(0.1, 0.5))
                else:
                    large = any(is_stored(step.value) for step in steps)
                    self.script.remember(await asyncio.to_thread(self._open, steps) if large else self._open(steps))
                    self._loaded = True

    def _open(self, steps: list[Step]) -> list[Step]:
        return [self._opened(step) for step in steps]

    def _opened(self, step: Step) -> Step:
        """The step with its value as it was before it was sealed or stored elsewhere. Raises without the key."""
        if step.kind != "step" or step.value is None:
            return step
        claim, vault = self.claim, self.client.vault
        value = vault.open_part(step.value, what="step", tenant=claim.tenant, job_id=claim.id, place=str(step.n))
        return step if value is step.value else replace(step, value=value)

    async def _packed(self, entries: list[StepEntry]) -> list[StepEntry]:
        """The entries with their values sealed, or stored elsewhere if they are large."""
        claim, vault, packed = self.claim, self.client.vault, []
        for entry in entries:
            if entry.value is not None:
                part = vault.pack_part(
                    entry.value, what="step", tenant=claim.tenant, job_id=claim.id, place=str(entry.n)
                )
                if part.ref is not None:
                    await self._note_upload(part.ref)
                    await asyncio.to_thread(vault.upload, part, tenant=claim.tenant, job_id=claim.id)
                entry = replace(entry, value=part.text)
            packed.append(entry)
        return packed

    async def _note_upload(self, ref: str) -> None:
        claim, client = self.claim, self.client
        while True:
            note = client.store.steps.note_upload(claim.id, claim.lease, claim.attempt, ref, client.scope)
            try:
                noted = await client.arun(note)
            except StoreUnavailable as error:  # wait for the database, as the write of the step does
                log.warning("A large step of job %s could not be stored, retrying: %s", claim.id, error)
                await asyncio.sleep(random.uniform(0.1, 0.5))
            else:
                if not noted:
                    raise StaleLease(f"job {claim.id} is no longer claimed by this worker")
                return

    # --- whether the handler may continue ---

    def check_running(self) -> None:
        """Called before each call. A call that is made while the handler is being stopped (for example in a
        ``finally``) would be recorded at the position of another call of the next attempt."""
        self.suspensions.check(current_path())
        self.check_not_stopped()

    def check_not_stopped(self) -> None:
        if self.changed is not None:
            raise self.changed
        if self.stop.is_set:
            raise self.halt(self.stop.reason or "stopped")

    def check_returned(self) -> None:
        """Raise ``StepsChanged`` or ``Suspended`` again if the handler has caught it. No branch of it may wait."""
        if self.changed is not None:
            raise self.changed
        self.suspensions.check_all()

    async def check_allowed(self) -> None:
        """Called before the handler. A job that people refused to run does not run, also if its kind no longer asks
        them."""
        first = (await self.remember()).first
        if first is not None and first.over:
            check_approved(decision(first.value, None))

    def check_decisions(self) -> None:
        """Called when the handler has ended with success. A decision that it did not ask for was not applied."""
        error = self.script.not_asked()
        if error is not None:
            raise error

    async def finish_steps(self) -> None:
        """Wait for steps that are under way, so that they are recorded before the attempt ends. Afterwards they cannot
        be written, and the next attempt would repeat them."""
        await asyncio.sleep(0)  # steps that were made at the same time have started after this
        while self._active:
            self._none_active = self._none_active or asyncio.Event()
            self._none_active.clear()
            await self._none_active.wait()

    # --- effects ---

    async def lookup(self, effect: Lookup) -> Step | None:
        script = await self.remember()
        try:
            known = script.at(effect.n, effect.name, effect.kind, effect.content_hash)
            if (known is None or not known.over) and script.not_asked(effect.n) is not None:
                await self._check_asked(effect.n)
        except StepsChanged as error:
            self.changed = error
            raise
        if known is None or not known.over:
            await self.reach("before", effect.name)
            if effect.kind == "step" and not effect.waits:
                if known is not None:
                    self._earlier.pop(effect.n, None)
                tries = 1 + (self._earlier.get(effect.n, 0) if known is None else known.tries)
                self._running[effect.n] = (effect.name, datetime.now(UTC), tries)
                self.tools.running.add(self, effect.n)
        return known

    async def _check_asked(self, n: int) -> None:
        """Nothing runs after a recorded decision that the handler does not ask for."""
        until = asyncio.get_running_loop().time() + ASKED_WITHIN
        while (error := self.script.not_asked(n)) is not None:
            if asyncio.get_running_loop().time() >= until:
                raise error
            await asyncio.sleep(0.01)

    def announce(self, n: int) -> None:
        """Write to the database that a step is running, for people. Only for a step that has run for a while: a short
        one is written once, when it is over."""
        if n in self._running and not self.tools.writer.closed and not self.stop.is_set:
            self._announcing = asyncio.get_running_loop().create_task(self._save_running())

    async def _save_running(self) -> None:
        claim, client = self.claim, self.client
        steps = [
            {"n": n, "name": name, "started_at": began.isoformat(), "tries": tries}
            for n, (name, began, tries) in self._running.items()
        ]
        text = encode({"attempt": claim.attempt, "steps": steps})
        save = client.store.steps.save_checkpoint(claim.id, claim.lease, claim.attempt, RUNNING, text, client.scope)
        try:
            await client.arun(save)
        except HoldfastError as error:
            log.debug("Running steps of job %s were not written: %s", claim.id, error)

    async def note_failure(self, entry: StepEntry) -> None:
        name, began, _ = self._running[entry.n]
        self._running[entry.n] = (name, began, entry.tries + self._earlier.get(entry.n, 0))
        if not self.tools.writer.closed and not self.stop.is_set:
            await self._save_running()

    async def ready_undo(self) -> None:
        """Called before a step that can be undone: from now on the end of this job will be noticed."""
        await undo.subscriptions.ready(self.client, self.claim.tenant, self.claim.kind, self.claim.queue)

    async def reach(self, when: str, name: str) -> None:
        if self.tools.reached is not None:
            await self.tools.reached(self.claim, when, name)

    async def save(self, entry: StepEntry, also: tuple[StepEntry, ...] = ()) -> list[Saved]:
        if self.streams is not None:
            await self.streams.flush()
        if self._running.pop(entry.n, None) is not None:
            self.tools.running.remove(self, entry.n)
        await self.reach("after", entry.name)
        entries = [*self.script.deferred_before(entry.n), *also, entry]
        for each in entries:
            each.branch = self.script.place_of(each.n)
        written, earlier = entries, self._earlier
        if earlier:
            written = [replace(e, tries=e.tries + earlier.get(e.n, 0)) for e in entries]
        if self.client.vault.keys is not None or any(len(e.value or "") > DEFAULT_LIMIT // 4 for e in entries):
            written = await self._packed(written)
        saved = await self.tools.writer.save(self.claim, written)
        self.script.written(entries)
        if saved and any(item.fate == "stale" for item in saved):
            raise StaleLease(f"job {self.claim.id} is no longer claimed by this worker")
        await self.reach("saved", entry.name)
        return saved

    # --- the two drivers ---

    async def drive(
        self, call: DurableCall, run: Callable[[], Awaitable[Any]] | None = None, *, active: bool = True
    ) -> Any:
        """Run a call of an async handler; ``run`` calls the function of a step. ``active`` is False if it only awaits
        other calls. All in one coroutine: while a step waits for its commit, the garbage collector visits each
        coroutine that waits for it."""
        counts = run is not None and active
        try:
            self._active += counts
            try:
                effect = next(call)
                while True:
                    try:
                        result: Any = None
                        match effect:
                            case Lookup():
                                result = observers.waited(self.claim, await self.lookup(effect))
                            case Run():
                                assert run is not None
                                # The call may be awaited long after it was made. Beside a wait that was gathered with
                                # it, it runs.
                                (self.check_not_stopped if self.suspensions.gathering else self.check_running)()
                                with observers.step(self.claim, effect.n, effect.name, effect.tries, self.redact):
                                    result = await run()
                            case Save(entry, also):
                                result = await self.save(entry, also)
                            case Failing(entry):
                                await self.note_failure(entry)
                            case Sleep(seconds):
                                await asyncio.sleep(seconds)
                    except Exception as error:
                        effect = call.throw(error)
                    else:
                        effect = call.send(result)
            except StopIteration as end:
                return self.answer(end.value)
            finally:
                call.close()
                self._active -= counts
                if counts and not self._active and self._none_active is not None:
                    self._none_active.set()
        except Suspended as suspended:
            if current_branch() is None:  # a branch lets the others continue
                await self.finish_steps()
            self.suspensions.add(current_path(), suspended)
            raise

    def answer(self, value: Any) -> Any:
        """The value of a call of an async handler, for the handler."""
        return value

    def drive_in_thread(
        self, call: DurableCall, loop: asyncio.AbstractEventLoop, run: Callable[[], Any] | None = None
    ) -> Any:
        """Run a call of a sync handler: the function in the handler's thread, the rest on the worker's loop."""

        def perform(effect: Effect) -> Any:
            match effect:
                case Sleep(seconds):
                    self.stop.wait(seconds)
                case Run():
                    assert run is not None
                    if self.stop.is_set:  # a thread cannot be interrupted
                        raise Stopped(self.stop.reason or "stopped")
                    with observers.step(self.claim, effect.n, effect.name, effect.tries, self.redact):
                        return run()
                case _:
                    return observers.waited(self.claim, self.run_on_loop(loop, self._record(effect)))

        try:
            return drive(call, perform, Exception)
        except Suspended as suspended:
            self.suspensions.add(current_path(), suspended)
            raise

    async def _record(self, effect: Lookup | Save | Failing) -> Any:
        match effect:
            case Lookup():
                return await self.lookup(effect)
            case Save(entry, also):
                return await self.save(entry, also)
            case Failing(entry):
                await self.note_failure(entry)

    def run_on_loop(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the worker's loop, from a handler's thread. Raises ``Stopped`` if the loop is closed, or
        the worker about to end."""
        if self.tools.writer.closed:
            work.close()
            raise Stopped("worker_stopped")
        try:
            return self.tools.threads.run_on_loop(loop, work)
        except (asyncio.CancelledError, concurrent.futures.CancelledError):
            raise Stopped("worker_stopped") from None
