"""What carries durable calls out: on the worker's loop for async handlers, in a thread for the others.

``Durable`` is the attempt's side of it: what is remembered, read once, and the recorder that writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.client import Client
from holdfast.domain.errors import StaleLease
from holdfast.domain.job import Claim
from holdfast.domain.redaction import Redact
from holdfast.domain.steps import Saved, Script, Step, StepEntry
from holdfast.durable.script import Durably, Know, Nap, Run, Save
from holdfast.runtime.ending import Suspended
from holdfast.runtime.recording import Recorder
from holdfast.runtime.stopping import Stop
from holdfast.runtime.threads import Threads

T = TypeVar("T")


Reached = Callable[[Claim, str, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Lent:
    """What a worker lends its handlers for durable calls. ``notify`` names the kind of job that tells people."""

    recorder: Recorder
    threads: Threads
    notify: Callable[[], str | None]
    reached: Reached | None = None
    """For tests: told of each point that a call reaches, and where it may be cut off."""


@dataclass(slots=True, eq=False)
class Durable:
    """The durable calls of one attempt. Everything but ``script.take_place`` happens on the worker's loop."""

    claim: Claim
    client: Client
    lent: Lent
    redact: Redact
    script: Script = field(init=False)
    suspended: Suspended | None = field(init=False, default=None)
    _reading: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _read: bool = field(init=False)

    def __post_init__(self) -> None:
        self.script = Script(self.claim.id)
        self._read = self.claim.attempt == 1  # a first attempt has nothing behind it

    async def remember(self) -> Script:
        if not self._read:
            async with self._reading:
                if not self._read:
                    reading = self.client.verbs.steps(self.claim.id, self.claim.tenant)
                    self.script.remember(await self.client.arun(reading))
                self._read = True
        return self.script

    def still_waits(self) -> None:
        """A handler that has caught ``Suspended`` comes no further: what it waits for has not come."""
        if self.suspended is not None:
            raise self.suspended

    async def know(self, effect: Know) -> Step | None:
        known = (await self.remember()).at(effect.n, effect.name, effect.kind)
        if known is None or not known.over:
            await self.reach("before", effect.name)
        return known

    async def reach(self, when: str, name: str) -> None:
        if self.lent.reached is not None:
            await self.lent.reached(self.claim, when, name)

    async def save(self, entry: StepEntry) -> list[Saved]:
        await self.reach("after", entry.name)
        entries = [*self.script.take_put_off(entry.n), entry]
        answers = await self.lent.recorder.save(self.claim, entries)
        if answers and any(answer.fate == "stale" for answer in answers):
            raise StaleLease(f"job {self.claim.id} is no longer in this worker's hands")
        await self.reach("saved", entry.name)
        return answers

    async def drive(self, call: Durably, run: Callable[[], Awaitable[Any]] | None = None) -> Any:
        """For async handlers."""
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
                        answer = await self.know(effect)
                    case Save(entry):
                        answer = await self.save(entry)
                    case Nap(seconds):
                        await asyncio.sleep(seconds)
                    case Run():
                        assert run is not None
                        answer = await run()
            except Exception as raised:
                error = raised

    def drive_here(
        self, call: Durably, loop: asyncio.AbstractEventLoop, stop: Stop, run: Callable[[], Any] | None = None
    ) -> Any:
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
                        answer = on_loop(loop, self.know(effect))
                    case Save(entry):
                        answer = on_loop(loop, self.save(entry))
                    case Nap(seconds):
                        stop.wait(seconds)
                    case Run():
                        assert run is not None
                        answer = run()
            except Exception as raised:
                error = raised


def on_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(work, loop).result()
