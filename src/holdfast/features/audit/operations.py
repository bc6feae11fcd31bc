"""``app.audit``: seal the ledger, verify it, read it with its seals, export it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal

from holdfast.engine.job import Event
from holdfast.engine.names import check_whole, page_size
from holdfast.engine.operation import Program, awaited, operation
from holdfast.errors import InvalidInput, NotFound
from holdfast.features.audit.export import block_lines, header_line, read_blocks, read_header
from holdfast.features.audit.model import Action, Anchor, Seal
from holdfast.features.audit.store import ActionFilter
from holdfast.features.audit.verification import Check, Report
from holdfast.stores.codecs import micros
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace, call
from holdfast.stores.private_files import open_private
from holdfast.worker.maintenance import release

Progress = Callable[[int, int], None]
"""Called after each block with the numbers of seals and events checked so far."""


@dataclass(frozen=True, slots=True)
class Witnessed:
    """An event with the seal it is in. ``edited``: it differs from what was sealed."""

    event: Event
    state: Literal["sealed", "unsealed", "edited"]
    seal: int | None = None
    sealed_at: datetime | None = None
    digest: str | None = None


_Witnessed = list[Witnessed]
_Actions = list[Action]


class Audit(StoreNamespace):
    """Workers seal the ledger every few seconds. All operations but ``get`` and ``actions`` cover the events of every
    tenant, and need a caller who may act for every tenant."""

    @operation
    def seal(self) -> Program[int]:
        """Seal all events that are not sealed yet. Returns their number."""
        total = 0
        while done := (yield from run(self._store.audit.seal(release()))):
            total += done
        return total

    aseal = awaited(seal)

    @operation
    def anchor(self) -> Program[Anchor]:
        """The newest seal in one line. Keep it where the owner of the database cannot change it."""
        newest = yield from run(self._store.audit.get_seal())
        if newest is None:
            raise NotFound("nothing is sealed yet", code="nothing_sealed", fix="Run a worker, or: holdfast audit seal")
        return Anchor(newest.number, newest.digest)

    aanchor = awaited(anchor)

    @operation
    def verify(
        self, *, anchors: Sequence[Anchor | str] = (), begin: int = 1, progress: Progress | None = None
    ) -> Program[Report]:
        """Check the chain block by block from seal ``begin`` on, and report everything that does not fit.

        ``anchors`` are earlier results of ``anchor``: with one, a chain that was truncated or rebuilt is detected.
        """
        report = _checked(progress)
        check = Check((yield from self._before(begin)), _anchors(anchors))
        last = check.start
        while (block := (yield from run(self._store.audit.block(last)))) is not None:
            check.add(block)
            last = block.seal
            report(check.seals, check.events)
        return check.end((yield from run(self._store.audit.unsealed(check.last))))

    averify = awaited(verify)

    @operation
    def verify_some(
        self, most: int, *, anchors: Sequence[Anchor | str] = (), begin: int = 1
    ) -> Program[tuple[Report, int | None]]:
        """The same for at most ``most`` seals. Also returns the seal to continue with, or None at the end. Only anchors
        of the seals checked count."""
        check_whole(most, "most")
        check = Check((yield from self._before(begin)), _anchors(anchors))
        last = check.start
        while (block := (yield from run(self._store.audit.block(last)))) is not None:
            if check.seals == most:
                return check.part(), begin if check.last is None else check.last.number + 1
            check.add(block)
            last = block.seal
        return check.end((yield from run(self._store.audit.unsealed(check.last)))), None

    averify_some = awaited(verify_some)

    @operation
    def get(self, job_id: str) -> Program[_Witnessed]:
        """The events of a job, each with its seal and whether it still equals what was sealed."""
        events = yield from run(self._store.jobs.history(job_id, self._tenant))
        if not events:
            raise NotFound(f"no job {job_id} in tenant {self._tenant}")
        now = yield from run(self._store.audit.fingerprints(job_id, self._tenant))
        sealed = {event.seq: event for event in (yield from run(self._store.audit.sealed(job_id, self._tenant)))}
        result = []
        for event in events:
            seal = sealed.get(event.seq)
            if seal is None:
                result.append(Witnessed(event, "unsealed"))
            else:
                same = now.get(event.seq) == seal.digest
                state: Literal["sealed", "edited"] = "sealed" if same else "edited"
                result.append(Witnessed(event, state, seal.seal, seal.sealed_at, seal.digest))
        return result

    aget = awaited(get)

    @operation
    def actions(
        self,
        *,
        subject: str | None = None,
        name: str | None = None,
        actor: str | None = None,
        since: datetime | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> Program[_Actions]:
        """Changes of the configuration, newest first: limits, agents, schedules, executors, votes, …"""
        wanted = ActionFilter(
            tenant=self._tenant,
            subject=subject,
            name=name,
            actor=actor,
            since=since,
            before=before,
            limit=page_size(limit),
        )
        return (yield from run(self._store.audit.actions(wanted)))

    aactions = awaited(actions)

    @operation
    def export(
        self, to: str | Path, *, since: datetime | None = None, progress: Progress | None = None
    ) -> Program[int]:
        """Write all blocks sealed since then to a file of JSON lines, which ``verify_file`` checks without a database.
        Returns the number of blocks."""
        start = None if since is None else (yield from self._before((yield from self._first_since(since))))
        report, count, events = _checked(progress), 0, 0
        # Readable by its owner only: it contains the ledger of every tenant. An existing file keeps its mode.
        with open_private(_path(to), "w", encoding="utf-8") as file:
            file.write(header_line(start))
            last = start
            while (block := (yield from run(self._store.audit.block(last)))) is not None:
                yield from call(partial(file.writelines, block_lines(block)))
                last = block.seal
                count, events = count + 1, events + block.seal.event_count
                report(count, events)
        return count

    aexport = awaited(export)

    def _before(self, number: int) -> Program[Seal | None]:
        """The seal before this one, where a check starts."""
        if check_whole(number, "begin") <= 1:
            return None
        seal = yield from run(self._store.audit.get_seal(number - 1))
        if seal is None:
            raise NotFound(f"no seal {number - 1} to start after", code="seal_not_found")
        return seal

    def _first_since(self, since: datetime) -> Program[int]:
        """The number of the first seal at or after a time, by bisection: the times of seals ascend."""
        newest = yield from run(self._store.audit.get_seal())
        low, high = 1, 1 if newest is None else newest.number + 1
        while low < high:
            middle = (low + high) // 2
            seal = yield from run(self._store.audit.get_seal(middle))
            if seal is not None and seal.sealed_at < micros(since):
                low = middle + 1
            else:
                high = middle
        return low


def _anchors(values: object) -> list[Anchor]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidInput(f"anchors must be a list, not {type(values).__name__}", code="invalid_anchor")
    return [value if isinstance(value, Anchor) else Anchor.of(value) for value in values]


def _checked(progress: object) -> Progress:
    if progress is None:
        return lambda seals, events: None
    if not callable(progress):
        raise InvalidInput(f"progress must be a function, not {type(progress).__name__}", code="invalid_input")
    return progress


def _path(to: object) -> Path:
    if not isinstance(to, str | os.PathLike):
        raise InvalidInput(f"to must be a file path, not {type(to).__name__}", code="invalid_input")
    return Path(to)


def verify_file(path: str | Path, anchors: Sequence[Anchor | str] = (), progress: Progress | None = None) -> Report:
    """Verify a file that ``export`` wrote, without a database."""
    with Path(path).open(encoding="utf-8") as file:
        check = Check(read_header(file), _anchors(anchors))
        for block in read_blocks(file):
            check.add(block)
            if progress is not None:
                progress(check.seals, check.events)
    return check.end()
