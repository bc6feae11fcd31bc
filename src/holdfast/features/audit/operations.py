"""The audit trail (HF-4, CX-4), as ``app.audit``: seal it, check it, show it, take it elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from holdfast.engine.job import Event
from holdfast.errors import NotFound
from holdfast.features.audit.model import Action, Anchor, Seal
from holdfast.features.audit.store import ActionFilter
from holdfast.features.audit.verification import (
    Block,
    Check,
    Report,
    read_header,
    read_parts,
    written_block,
    written_header,
)
from holdfast.stores.codecs import micros
from holdfast.stores.port import Caller
from holdfast.worker.maintenance import release

Progress = Callable[[int, int], None]
"""Told now and then how many seals and how many events were checked."""


@dataclass(frozen=True, slots=True)
class Witnessed:
    """An event with the seal it is in. ``edited``: it is not what was sealed."""

    event: Event
    state: Literal["sealed", "unsealed", "edited"]
    seal: int | None = None
    sealed_at: datetime | None = None
    digest: str | None = None


class Audit:
    """Workers seal by themselves, every few seconds. All but ``show`` and ``actions`` is about every tenant's events,
    and for whoever may act for every tenant."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def seal(self) -> int:
        """Seal what there is now, all of it; answers how much that was."""
        total = 0
        while done := self._caller.run(self._caller.store.audit.seal(release())):
            total += done
        return total

    async def aseal(self) -> int:
        total = 0
        while done := await self._caller.arun(self._caller.store.audit.seal(release())):
            total += done
        return total

    def anchor(self) -> Anchor:
        """The newest seal in one line, to be kept where whoever owns the database cannot reach it."""
        newest = self._caller.run(self._caller.store.audit.get_seal())
        if newest is None:
            raise NotFound("nothing is sealed yet", code="nothing_sealed", fix="Run a worker, or: holdfast audit seal")
        return Anchor(newest.number, newest.digest)

    def verify(
        self, *, anchors: Sequence[Anchor | str] = (), begin: int = 1, progress: Progress | None = None
    ) -> Report:
        """Walk the chain from seal ``begin`` on, block by block, and name whatever does not fit.

        ``anchors`` are what ``anchor`` said before: with one, a chain that was cut off or made anew is found out.
        """
        check = Check(self._before(begin), [Anchor.of(a) if isinstance(a, str) else a for a in anchors])
        for block in self._blocks(check.start):
            check.add(block)
            if progress is not None:
                progress(check.seals, check.events)
        return check.end(self._caller.run(self._caller.store.audit.unsealed(check.last)))

    def verify_some(
        self, most: int, *, anchors: Sequence[Anchor | str] = (), begin: int = 1
    ) -> tuple[Report, int | None]:
        """The same, of at most so many seals; also answers with which one to go on, if there are more. Of the anchors
        those count that it has come by."""
        check = Check(self._before(begin), [Anchor.of(a) if isinstance(a, str) else a for a in anchors])
        more = False
        for block in self._blocks(check.start):
            if check.seals == most:
                more = True
                break
            check.add(block)
        if not more:
            return check.end(self._caller.run(self._caller.store.audit.unsealed(check.last))), None
        following = begin if check.last is None else check.last.number + 1
        return check.part(), following

    def show(self, job_id: str) -> list[Witnessed]:
        """The events of a job, each with the seal it is in and whether it is still what was sealed."""
        caller, tenant = self._caller, self._caller.tenant
        events = caller.run(caller.store.jobs.history(job_id, tenant))
        if not events:
            raise NotFound(f"there is no job {job_id} in tenant {tenant}")
        now = caller.run(caller.store.audit.fingerprints(job_id, tenant))
        sealed = {each.seq: each for each in caller.run(caller.store.audit.sealed(job_id, tenant))}
        found = []
        for event in events:
            seal = sealed.get(event.seq)
            if seal is None:
                found.append(Witnessed(event, "unsealed"))
            else:
                same = now.get(event.seq) == seal.digest
                state: Literal["sealed", "edited"] = "sealed" if same else "edited"
                found.append(Witnessed(event, state, seal.seal, seal.sealed_at, seal.digest))
        return found

    def actions(
        self,
        *,
        subject: str | None = None,
        name: str | None = None,
        actor: str | None = None,
        since: datetime | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[Action]:
        """What was done to the configuration, the latest first: limits, agents, schedules, who may execute, votes, …"""
        wanted = ActionFilter(
            tenant=self._caller.tenant, subject=subject, name=name, actor=actor, since=since, before=before, limit=limit
        )
        return self._caller.run(self._caller.store.audit.actions(wanted))

    def export(self, to: str | Path, *, since: datetime | None = None, progress: Progress | None = None) -> int:
        """Write all blocks sealed since then to a file of JSON lines, which ``verify_file`` checks without a database;
        answers how many."""
        start = None if since is None else self._before(self._first_since(since))
        count = events = 0
        # For its owner alone: it has the ledger of every tenant. A file that is there keeps the mode it has.
        with os.fdopen(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(written_header(start))
            for block in self._blocks(start):
                file.writelines(written_block(block))
                count, events = count + 1, events + block.seal.event_count
                if progress is not None:
                    progress(count, events)
        return count

    def _blocks(self, start: Seal | None) -> Iterator[Block]:
        last = start
        while (block := self._caller.run(self._caller.store.audit.block(last))) is not None:
            yield block
            last = block.seal

    def _before(self, number: int) -> Seal | None:
        """The seal before this one, which a check begins behind."""
        if number <= 1:
            return None
        found = self._caller.run(self._caller.store.audit.get_seal(number - 1))
        if found is None:
            raise NotFound(f"there is no seal {number - 1} to begin behind", code="seal_not_found")
        return found

    def _first_since(self, since: datetime) -> int:
        """The number of the first seal of that time or later; times ascend with the numbers."""
        newest = self._caller.run(self._caller.store.audit.get_seal())
        low, high = 1, 1 if newest is None else newest.number + 1
        while low < high:
            middle = (low + high) // 2
            found = self._caller.run(self._caller.store.audit.get_seal(middle))
            if found is not None and found.sealed_at < micros(since):
                low = middle + 1
            else:
                high = middle
        return low


def verify_file(path: str | Path, anchors: Sequence[Anchor | str] = (), progress: Progress | None = None) -> Report:
    """Check what ``export`` wrote, with no database at hand."""
    with Path(path).open(encoding="utf-8") as file:
        check = Check(read_header(file), [Anchor.of(a) if isinstance(a, str) else a for a in anchors])
        for block in read_parts(file):
            check.add(block)
            if progress is not None:
                progress(check.seals, check.events)
    return check.end()
