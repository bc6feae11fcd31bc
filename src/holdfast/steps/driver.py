"""Runs the durable calls of a handler, on the worker's loop for async handlers and in a thread for sync ones.

``Plan`` checks the arguments of a call, gives the call its position and makes its program (``steps/program.py``). The
position is taken when the call is made, not when it runs, so steps that run at once have the order of the code.
``Durable`` runs programs: it reads the recorded steps once, and writes new ones.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from holdfast.engine.job import Claim
from holdfast.engine.names import check_name
from holdfast.engine.operation import adrive, drive
from holdfast.engine.outcome import Reject, Stopped
from holdfast.engine.payload import DEFAULT_LIMIT, encode
from holdfast.engine.redaction import Redact
from holdfast.engine.retry import Retry
from holdfast.engine.steps import (
    BEFORE_ALL,
    RUNNING,
    Saved,
    Script,
    Step,
    StepEntry,
    check_match,
    check_step_name,
    origin_of,
)
from holdfast.engine.times import instant
from holdfast.engine.units import Duration, seconds
from holdfast.errors import HoldfastError, InvalidSetting, StaleLease, StepsChanged, StoreUnavailable
from holdfast.steps import program
from holdfast.steps.approvals import ApprovalOptions, Decision, decision, question
from holdfast.steps.program import DurableCall, Effect, Failing, Lookup, Run, Save, Sleep
from holdfast.steps.values import Value, check_callable
from holdfast.stores.requests import new_id
from holdfast.stores.session import Session
from holdfast.stores.vault import is_stored
from holdfast.worker.shutdown import Stop, Suspended
from holdfast.worker.threads import Threads
from holdfast.worker.writers import StepWriter

T = TypeVar("T")

log = logging.getLogger("holdfast.worker")

SEEN_AFTER: Final = 1.0
"""Seconds after which a running step is shown as running."""
ASKED_WITHIN: Final = 1.0
"""Seconds that a new step waits for a concurrent branch of the handler to ask for a recorded decision."""


Reached = Callable[[Claim, str, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class StepTools:
    """What a worker provides to its handlers for durable calls. ``notify`` returns the kind of job that notifies people
    of approvals."""

    writer: StepWriter
    threads: Threads
    notify: Callable[[], str | None]
    reached: Reached | None = None
    """For tests: called at each point of a call at which a crash may happen."""


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
    suspended: Suspended | None = field(init=False, default=None)
    changed: StepsChanged | None = field(init=False, default=None)
    """Raised in a durable call, and again in each later one: code between them, such as an agent SDK, may catch it."""
    _load_lock: asyncio.Lock | None = field(init=False, default=None)
    _loaded: bool = field(init=False)
    _active: int = field(init=False, default=0)
    """Steps that are under way in an async handler."""
    _none_active: asyncio.Event | None = field(init=False, default=None)
    """Created when it is waited for: what every attempt has, the garbage collector visits (docs/adr/0025)."""
    _running: dict[int, tuple[str, datetime, int]] = field(init=False, default_factory=dict)
    """The running steps by position: name, start, and number of the try."""
    _timers: dict[int, asyncio.TimerHandle] = field(init=False, default_factory=dict)
    """What announces them. Cancelled when a step is over, or the loop would keep the attempt for another second."""
    _earlier: dict[int, int] = field(init=False, default_factory=dict)
    """How often a step that has no record was started in earlier attempts, by position."""
    _announcing: asyncio.Task[None] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.script = Script(self.claim.id)
        # Nothing is recorded before a first attempt, except that of a fork.
        self._loaded = self.claim.attempt == 1 and (not self.claim.tags or origin_of(self.claim.tags) is None)

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

    async def _packed(self, entry: StepEntry) -> StepEntry:
        claim, vault, value = self.claim, self.client.vault, entry.value
        if value is None or (vault.keys is None and len(value) <= DEFAULT_LIMIT // 4):
            return entry
        part = vault.pack_part(value, what="step", tenant=claim.tenant, job_id=claim.id, place=str(entry.n))
        if part.ref is not None:
            await self._note_upload(part.ref)
            await asyncio.to_thread(vault.upload, part, tenant=claim.tenant, job_id=claim.id)
        return replace(entry, value=part.text)

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
        self.check_not_suspended()
        if self.stop.is_set:
            raise self.halt(self.stop.reason or "stopped")

    def check_not_suspended(self) -> None:
        """Raise ``StepsChanged`` or ``Suspended`` again if the handler has caught it."""
        if self.changed is not None:
            raise self.changed
        if self.suspended is not None:
            raise self.suspended

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
            if known is None or not known.over:
                await self._check_asked(effect.n)
        except StepsChanged as error:
            self.changed = error
            raise
        if known is None or not known.over:
            await self.reach("before", effect.name)
            if effect.kind == "step":
                if known is not None:
                    self._earlier.pop(effect.n, None)
                tries = 1 + (self._earlier.get(effect.n, 0) if known is None else known.tries)
                self._running[effect.n] = (effect.name, datetime.now(UTC), tries)
                loop = asyncio.get_running_loop()
                self._timers[effect.n] = loop.call_later(SEEN_AFTER, self._announce, effect.n)
        return known

    async def _check_asked(self, n: int) -> None:
        """Nothing runs after a recorded decision that the handler does not ask for."""
        until = asyncio.get_running_loop().time() + ASKED_WITHIN
        while (error := self.script.not_asked(n)) is not None:
            if asyncio.get_running_loop().time() >= until:
                raise error
            await asyncio.sleep(0.01)

    def _announce(self, n: int) -> None:
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

    async def reach(self, when: str, name: str) -> None:
        if self.tools.reached is not None:
            await self.tools.reached(self.claim, when, name)

    async def save(self, entry: StepEntry) -> list[Saved]:
        self._running.pop(entry.n, None)
        if timer := self._timers.pop(entry.n, None):
            timer.cancel()
        await self.reach("after", entry.name)
        entries = [*self.script.deferred_before(entry.n), entry]
        earlier = self._earlier
        counted = [replace(e, tries=e.tries + earlier.get(e.n, 0)) for e in entries] if earlier else entries
        saved = await self.tools.writer.save(self.claim, [await self._packed(item) for item in counted])
        self.script.written(entries)
        if saved and any(item.fate == "stale" for item in saved):
            raise StaleLease(f"job {self.claim.id} is no longer claimed by this worker")
        await self.reach("saved", entry.name)
        return saved

    # --- the two drivers ---

    async def drive(self, call: DurableCall, run: Callable[[], Awaitable[Any]] | None = None) -> Any:
        """Run a call of an async handler. ``run`` calls the function of a step."""
        try:
            if run is None:
                return await self._drive(call, run)
            self._active += 1
            try:
                return await self._drive(call, run)
            finally:
                self._active -= 1
                if not self._active and self._none_active is not None:
                    self._none_active.set()
        except Suspended as suspended:
            await self.finish_steps()
            self.suspended = self.suspended or suspended
            raise

    async def _drive(self, call: DurableCall, run: Callable[[], Awaitable[Any]] | None) -> Any:
        async def perform(effect: Effect) -> Any:
            match effect:
                case Sleep(seconds):
                    await asyncio.sleep(seconds)
                case Run():
                    assert run is not None
                    self.check_running()  # the call may be awaited long after it was made
                    return await run()
                case _:
                    return await self._record(effect)

        return await adrive(call, perform, Exception)

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
                    return run()
                case _:
                    return self.run_on_loop(loop, self._record(effect))

        try:
            return drive(call, perform, Exception)
        except Suspended as suspended:
            self.suspended = suspended
            raise

    async def _record(self, effect: Lookup | Save | Failing) -> Any:
        match effect:
            case Lookup():
                return await self.lookup(effect)
            case Save(entry):
                return await self.save(entry)
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


running: ContextVar[str | None] = ContextVar("holdfast_step_key", default=None)


def step_key() -> str:
    """Inside a step: an idempotency key for other systems, the same in every attempt of this step."""
    key = running.get()
    if key is None:
        raise InvalidSetting("no step is running here", code="no_step")
    return key


class Plan:
    def __init__(self, durable: Durable) -> None:
        self.durable = durable

    def _check_allowed(self) -> None:
        if running.get() is not None:
            raise InvalidSetting("a step cannot make durable calls: it runs as a whole", code="nested_step")
        self.durable.check_running()

    def _next_position(self) -> int:
        self._check_allowed()
        return self.durable.script.next_position()

    def step(self, name: str, function: Callable[..., Any], retry: Retry | None) -> tuple[DurableCall, str]:
        """The call, and its idempotency key for other systems."""
        name = check_step_name(name)
        check_callable(name, function)
        return self._step(self._next_position(), name, function, retry)

    async def unordered_step(
        self, name: str, function: Callable[..., Any], retry: Retry | None
    ) -> tuple[DurableCall, str]:
        """The same for a step that is identified by its name. Its position depends on the recorded steps."""
        check_callable(check_step_name(name), function)
        self._check_allowed()
        n, name = (await self.durable.remember()).named_position(name)
        return self._step(n, check_step_name(name), function, retry)

    def _step(self, n: int, name: str, function: Callable[..., Any], retry: Retry | None) -> tuple[DurableCall, str]:
        durable, claim = self.durable, self.durable.claim
        call = program.step(
            durable.script, n, name, Value.of(name, function, durable.client.vault), retry, durable.redact
        )
        return call, f"{claim.tenant}:{claim.kind}:{claim.id}:{n}"

    def sleep(self, delay: Duration | None, until: datetime | None, name: str) -> DurableCall:
        if delay is None:
            until = instant(until, "the time")
        duration = None if delay is None else seconds(delay, "delay")
        return program.sleep(self.durable.script, self._next_position(), check_step_name(name), duration, until)

    def event(
        self, name: str, match: Mapping[str, Any] | None, timeout: Duration | None, since: Duration | None
    ) -> DurableCall:
        wanted, limit = check_match(match), None if timeout is None else seconds(timeout, "timeout")
        lookback, label = 0.0 if since is None else seconds(since, "since"), check_name(name, "event")
        return program.wait_for_event(self.durable.script, self._next_position(), label, wanted, limit, lookback)

    def approval(self, name: str, summary: str, form: Any, options: ApprovalOptions) -> DurableCall:
        asked, label = question(summary, form, options), check_step_name(name)
        approval = asked.to_json(new_id(), label, self.durable.tools.notify())
        return program.approval(self.durable.script, self._next_position(), label, approval)

    async def before_all(self, name: str, summary: str, options: ApprovalOptions, shown: Any) -> None:
        """The approval before the handler: raises ``Suspended`` until it is approved."""
        durable = self.durable
        approval = first_question(name, summary, options, shown, durable.tools.notify())
        result = decision(await durable.drive(program.approval(durable.script, BEFORE_ALL, name, approval)), None)
        check_approved(result)


def first_question(name: str, summary: str, options: ApprovalOptions, shown: Any, notify: str | None) -> dict[str, Any]:
    """The approval before the handler. ``shown`` is the payload for people. It is not part of the question: the payload
    never changes, but the rules of what to show may."""
    data: ApprovalOptions = {"data": shown}
    approval = question(summary, None, data | options).to_json(new_id(), name, notify)
    approval["content_hash"] = question(summary, None, options).content_hash(name)
    return approval


def check_approved(decided: Decision[Any]) -> None:
    """Refuse to run a job that was not approved: it has ended, and was put back into the queue since."""
    if not decided.approved:
        raise Reject("denied", f"it was {decided.state}" + (f" by {decided.by}" if decided.by else ""))
