"""The durable calls of a handler in their order, carried out on the loop or in a thread.

What carries durable calls out: on the worker's loop for async handlers, in a thread for the others.

``Durable`` is the attempt's side of it: what is remembered, read once, and the recorder that writes.

What the durable operations of both colours share: check what is asked, take its place in the handler's order, make the
call.

The place is taken when the call is made, not when it runs: of steps that run at once, the order is that of the code.
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
from holdfast.engine.outcome import Reject, Stopped
from holdfast.engine.payload import DEFAULT_LIMIT, encode
from holdfast.engine.redaction import Redact
from holdfast.engine.retry import Retry
from holdfast.engine.steps import BEFORE_ALL, RUNNING, Saved, Script, Step, StepEntry, check_match, check_step_name
from holdfast.engine.times import instant
from holdfast.engine.units import Duration, seconds
from holdfast.errors import HoldfastError, InvalidSetting, StaleLease, StoreUnavailable
from holdfast.steps import program
from holdfast.steps.approvals import Asking, decision, question
from holdfast.steps.program import Durably, Know, Nap, Run, Save
from holdfast.steps.values import Value, check_callable
from holdfast.stores.ids import new_id
from holdfast.stores.session import Session
from holdfast.stores.vault import is_stored
from holdfast.worker.shutdown import Stop, Suspended
from holdfast.worker.threads import Threads
from holdfast.worker.writers import StepWriter

T = TypeVar("T")

log = logging.getLogger("holdfast.worker")

SEEN_AFTER: Final = 1.0
"""Seconds after which a step that runs is shown as running."""
PULSE: Final = 1.0
"""How often a thread that waits for the worker's loop looks whether there still is one."""


Reached = Callable[[Claim, str, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class StepTools:
    """What a worker lends its handlers for durable calls. ``notify`` names the kind of job that tells people."""

    recorder: StepWriter
    threads: Threads
    notify: Callable[[], str | None]
    reached: Reached | None = None
    """For tests: told of each point that a call reaches, and where it may be cut off."""


@dataclass(slots=True, eq=False)
class Durable:
    """The durable calls of one attempt. Everything but ``script.take_place`` happens on the worker's loop.

    ``halt`` is what a handler that is being stopped meets when it makes another call, by its colour.
    """

    claim: Claim
    client: Session
    lent: StepTools
    redact: Redact
    stop: Stop
    halt: type[BaseException] = asyncio.CancelledError
    script: Script = field(init=False)
    suspended: Suspended | None = field(init=False, default=None)
    _reading: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _read: bool = field(init=False)
    _under_way: int = field(init=False, default=0)
    _quiet: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _begun: dict[int, tuple[str, datetime, int]] = field(init=False, default_factory=dict)
    """The steps that run now: name, start, and which try it is."""
    _naming: asyncio.Task[None] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.script = Script(self.claim.id)
        self._read = self.claim.attempt == 1  # a first attempt has nothing behind it

    async def remember(self) -> Script:
        if not self._read:
            await self._remember()
        return self.script

    async def _remember(self) -> None:
        async with self._reading:
            while not self._read:
                if self.lent.recorder.closed:  # the worker has left, and its store with it
                    raise asyncio.CancelledError
                try:
                    steps = await self.client.arun(self.client.store.steps.list(self.claim.id, self.claim.tenant))
                except StoreUnavailable as error:
                    # As with what is written: a store that is away is no failure of the handler.
                    log.warning("Steps of job %s could not be read, retrying: %s", self.claim.id, error)
                    await asyncio.sleep(random.uniform(0.1, 0.5))
                else:
                    large = any(is_stored(step.value) for step in steps)
                    self.script.remember(await asyncio.to_thread(self._open, steps) if large else self._open(steps))
                    self._read = True

    def _open(self, steps: list[Step]) -> list[Step]:
        return [self._opened(step) for step in steps]

    def _opened(self, step: Step) -> Step:
        """A worker that does not have the key cannot go on from here, and says so."""
        if step.kind != "step" or step.value is None:
            return step
        claim, vault = self.claim, self.client.vault
        value = vault.open_kept(step.value, what="step", tenant=claim.tenant, job_id=claim.id, place=str(step.n))
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
            except StoreUnavailable as error:  # waited for, as the step itself is when it is written
                log.warning("A large step of job %s could not be stored, retrying: %s", claim.id, error)
                await asyncio.sleep(random.uniform(0.1, 0.5))
            else:
                if not noted:
                    raise StaleLease(f"job {claim.id} is no longer claimed by this worker")
                return

    # --- whether it goes on ---

    def may_go_on(self) -> None:
        """Asked before each call. One made while the handler is being stopped (in a ``finally``, say) would be
        remembered in the place of what the next attempt does there."""
        self.still_waits()
        if self.stop.is_set:
            raise self.halt(self.stop.reason or "stopped")

    def still_waits(self) -> None:
        """A handler that has caught ``Suspended`` comes no further: what it waits for has not come."""
        if self.suspended is not None:
            raise self.suspended

    async def let_through(self) -> None:
        """Steps that are under way end, and are remembered, before the attempt does: afterwards nobody may write of
        them, and the next attempt would do them again."""
        await asyncio.sleep(0)  # those that were made together with whoever asks have begun by then
        while self._under_way:
            self._quiet.clear()
            await self._quiet.wait()

    # --- carrying out ---

    async def know(self, effect: Know) -> Step | None:
        known = (await self.remember()).at(effect.n, effect.name, effect.kind)
        if known is None or not known.over:
            await self.reach("before", effect.name)
            if effect.kind == "step":
                self._begun[effect.n] = (effect.name, datetime.now(UTC), 1 if known is None else known.tries + 1)
                asyncio.get_running_loop().call_later(SEEN_AFTER, self._announce, effect.n)
        return known

    def _announce(self, n: int) -> None:
        """A step that has run for a while is named in the database, for people who look. A short one is never written
        twice: it is known when it is over."""
        if n in self._begun and not self.lent.recorder.closed and not self.stop.is_set:
            self._naming = asyncio.get_running_loop().create_task(self._name_running())

    async def _name_running(self) -> None:
        claim, client = self.claim, self.client
        steps = [
            {"n": n, "name": name, "started_at": began.isoformat(), "tries": tries}
            for n, (name, began, tries) in self._begun.items()
        ]
        text = encode({"attempt": claim.attempt, "steps": steps})
        save = client.store.steps.save_checkpoint(claim.id, claim.lease, claim.attempt, RUNNING, text, client.scope)
        try:
            await client.arun(save)
        except HoldfastError as error:
            log.debug("Running steps of job %s were not written: %s", claim.id, error)

    async def reach(self, when: str, name: str) -> None:
        if self.lent.reached is not None:
            await self.lent.reached(self.claim, when, name)

    async def save(self, entry: StepEntry) -> list[Saved]:
        self._begun.pop(entry.n, None)
        await self.reach("after", entry.name)
        entries = [*self.script.due_with(entry.n), entry]
        answers = await self.lent.recorder.save(self.claim, [await self._packed(each) for each in entries])
        self.script.written(entries)
        if answers and any(answer.fate == "stale" for answer in answers):
            raise StaleLease(f"job {self.claim.id} is no longer claimed by this worker")
        await self.reach("saved", entry.name)
        return answers

    async def drive(self, call: Durably, run: Callable[[], Awaitable[Any]] | None = None) -> Any:
        """For async handlers."""
        try:
            if run is None:
                return await self._drive(call, run)
            self._under_way += 1
            try:
                return await self._drive(call, run)
            finally:
                self._under_way -= 1
                if not self._under_way:
                    self._quiet.set()
        except Suspended as wait:
            await self.let_through()
            self.suspended = self.suspended or wait
            raise

    async def _drive(self, call: Durably, run: Callable[[], Awaitable[Any]] | None) -> Any:
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                effect = call.send(answer) if error is None else call.throw(error)
            except StopIteration as end:
                return end.value
            answer, error = None, None
            try:
                match effect:
                    case Know():
                        answer = await self.know(effect)
                    case Save(entry):
                        answer = await self.save(entry)
                    case Nap(seconds):
                        await asyncio.sleep(seconds)
                    case Run():
                        assert run is not None
                        self.may_go_on()  # it may have been made long ago, and the handler has ended since
                        answer = await run()
            except Exception as raised:
                error = raised

    def drive_here(self, call: Durably, loop: asyncio.AbstractEventLoop, run: Callable[[], Any] | None = None) -> Any:
        """For a handler in a thread: its function runs here, the rest on the worker's loop."""
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                effect = call.send(answer) if error is None else call.throw(error)
            except StopIteration as end:
                return end.value
            except Suspended as wait:
                self.suspended = wait
                raise
            answer, error = None, None
            try:
                match effect:
                    case Know():
                        answer = self.ask(loop, self.know(effect))
                    case Save(entry):
                        answer = self.ask(loop, self.save(entry))
                    case Nap(seconds):
                        self.stop.wait(seconds)
                    case Run():
                        assert run is not None
                        if self.stop.is_set:  # nobody could interrupt it
                            raise Stopped(self.stop.reason or "stopped")
                        answer = run()
            except Exception as raised:
                error = raised

    def ask(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
        """From a handler's thread, on the worker's loop. When that is gone, or about to be, there is nobody to answer,
        and nothing to go on for."""
        try:
            if self.lent.recorder.closed:
                raise RuntimeError
            answer = asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError:
            work.close()
            raise Stopped("worker_stopped") from None
        while True:
            try:
                return answer.result(PULSE)
            except concurrent.futures.CancelledError:
                raise Stopped("worker_stopped") from None
            except TimeoutError:
                if answer.done():
                    return answer.result()  # it is the work's own, or it was done just now
                if loop.is_closed():
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

    def _check_place(self) -> None:
        if running.get() is not None:
            raise InvalidSetting("a step cannot make durable calls: it runs as a whole", code="nested_step")
        self.durable.may_go_on()

    def _place(self) -> int:
        self._check_place()
        return self.durable.script.take_place()

    def step(self, name: str, function: Callable[..., Any], retry: Retry | None) -> tuple[Durably, str]:
        """The call, and the key that the outside world may be given."""
        name = check_step_name(name)
        check_callable(name, function)
        return self._step(self._place(), name, function, retry)

    async def unordered_step(self, name: str, function: Callable[..., Any], retry: Retry | None) -> tuple[Durably, str]:
        """The same for a step that is found by its name. Its place depends on what is remembered."""
        check_callable(check_step_name(name), function)
        self._check_place()
        n, name = (await self.durable.remember()).take_named(name)
        return self._step(n, check_step_name(name), function, retry)

    def _step(self, n: int, name: str, function: Callable[..., Any], retry: Retry | None) -> tuple[Durably, str]:
        durable, claim = self.durable, self.durable.claim
        call = program.step(
            durable.script, n, name, Value.of(name, function, durable.client.vault), retry, durable.redact
        )
        return call, f"{claim.tenant}:{claim.kind}:{claim.id}:{n}"

    def sleep(self, delay: Duration | None, until: datetime | None, name: str) -> Durably:
        if delay is None:
            until = instant(until, "the time")
        span = None if delay is None else seconds(delay, "delay")
        return program.sleep(self.durable.script, self._place(), check_step_name(name), span, until)

    def event(
        self, name: str, match: Mapping[str, Any] | None, timeout: Duration | None, since: Duration | None
    ) -> Durably:
        wanted, limit = check_match(match), None if timeout is None else seconds(timeout, "timeout")
        back, label = 0.0 if since is None else seconds(since, "since"), check_name(name, "event")
        return program.wait_for_event(self.durable.script, self._place(), label, wanted, limit, back)

    def approval(self, name: str, summary: str, form: Any, options: Asking) -> Durably:
        asked, label = question(summary, form, options), check_step_name(name)
        approval = asked.to_json(new_id(), label, self.durable.lent.notify())
        return program.approval(self.durable.script, self._place(), label, approval)

    async def before_all(self, name: str, summary: str, options: Asking) -> None:
        """The approval before the handler: raises ``Suspended`` until it is approved."""
        durable = self.durable
        approval = question(summary, None, options).to_json(new_id(), name, durable.lent.notify())
        said = decision(await durable.drive(program.approval(durable.script, BEFORE_ALL, name, approval)), None)
        if not said.approved:  # its job has ended with that; whatever put it back into the queue
            raise Reject("denied", f"it was {said.state}" + (f" by {said.by}" if said.by else ""))
