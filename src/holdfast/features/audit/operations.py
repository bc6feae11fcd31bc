"""``app.audit``: seal the ledger, verify it, read it with its seals, export it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Final, Literal

from holdfast.engine.declared import Help, Most, http
from holdfast.engine.job import Event
from holdfast.engine.names import check_whole, page_size
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidInput, NotFound
from holdfast.features.audit.export import block_lines, header_line, read_blocks, read_header
from holdfast.features.audit.model import Action, Anchor, PartialReport, Report, Seal
from holdfast.features.audit.store import ActionFilter
from holdfast.features.audit.verification import Check
from holdfast.stores.codecs import micros
from holdfast.stores.flow import run
from holdfast.stores.host_files import open_private
from holdfast.stores.namespace import StoreNamespace, call
from holdfast.worker.maintenance import release

Progress = Callable[[int, int], None]
"""Called now and then with the numbers of seals and events so far."""
MOST_SEALS: Final = 1_000
"""Seals that one part of a verification or an export has."""
PART_SIZE: Final = 4_000_000
"""Characters after which a part of an export ends."""

Anchors = Annotated[
    Sequence[Anchor | str],
    Help("An anchor printed by `audit anchor`; repeatable.", "ANCHOR", option="--anchor", most=20, wire=list[str]),
]
Begin = Annotated[int, Help("Start at this seal.", "SEAL", option="--from", low=1, high=2**62)]
Seals = Annotated[int, Help("Maximum number of seals.", low=1, high=MOST_SEALS)]
OnProgress = Annotated[Progress | None, Help("Called after each block.", http=False, cli=False)]


@dataclass(frozen=True, slots=True)
class Witnessed:
    """An event with the seal it is in. ``edited``: it differs from what was sealed."""

    event: Event
    state: Literal["sealed", "unsealed", "edited"]
    seal: int | None = None
    sealed_at: datetime | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class ExportPart:
    """Lines of an export. ``next`` is the seal to continue with, or None at the end."""

    text: str
    seals: int
    events: int
    next: int | None


_Witnessed = list[Witnessed]
_Actions = list[Action]


class Audit(StoreNamespace):
    """Workers seal the ledger every few seconds. All operations but ``get`` and ``actions`` cover the events of every
    tenant, and need a caller who may act for every tenant."""

    @operation
    @http("POST /audit/seal", "operate", tenant="all", name="seal_audit", result="sealed")
    def seal(self) -> Program[int]:
        """Seal all events now. Workers do this every few seconds.

        Returns the number of events and actions.
        """
        total = 0
        while done := (yield from run(self._store.audit.seal(release()))):
            total += done
        return total

    aseal = awaited(seal)

    @operation
    @http("GET /audit/anchor", "read", tenant="all", name="audit_anchor")
    def anchor(self) -> Program[Anchor]:
        """Print the newest seal as one line. Store it where the database owner cannot change it."""
        newest = yield from run(self._store.audit.get_seal())
        if newest is None:
            raise NotFound("nothing is sealed yet", code="nothing_sealed", fix="Run a worker, or: holdfast audit seal")
        return Anchor(newest.number, newest.digest)

    aanchor = awaited(anchor)

    @operation
    @http("GET /audit/verify", "read", tenant="all", by_hand=True)
    def verify(self, *, begin: Begin = 1, anchors: Anchors = (), progress: OnProgress = None) -> Program[Report]:
        """Verify the whole chain and report edited, deleted, inserted, moved or truncated events.

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
    @http("GET /audit/verify", "read", tenant="all", name="verify_audit", large=True)
    def verify_some(
        self, *, begin: Begin = 1, seals: Seals = MOST_SEALS, anchors: Anchors = ()
    ) -> Program[PartialReport]:
        """Verify the chain from seal ``begin`` on, for a limited number of seals, and report every mismatch. Only
        anchors of the seals checked count."""
        check_whole(seals, "seals")
        check = Check((yield from self._before(begin)), _anchors(anchors))
        last = check.start
        while (block := (yield from run(self._store.audit.block(last)))) is not None:
            if check.seals == seals:
                return PartialReport(check.part(), begin if check.last is None else check.last.number + 1)
            check.add(block)
            last = block.seal
        return PartialReport(check.end((yield from run(self._store.audit.unsealed(check.last)))), None)

    averify_some = awaited(verify_some)

    @operation
    @http("GET /audit/jobs/{job_id}", "read", name="audit_job")
    def get(self, job_id: Annotated[str, Help("A job's id, or its first characters.", "ID")]) -> Program[_Witnessed]:
        """Show a job's events with their seals, and whether each is unchanged."""
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
    @http("GET /audit/actions", "read", name="list_actions", page="seq")
    def actions(
        self,
        *,
        subject: Annotated[
            str | None, Help("Only changes of this subject: limit, agent, schedule, executor, ….", "WORD")
        ] = None,
        name: Annotated[str | None, Help("Only changes of the object with this name.", "NAME")] = None,
        actor: Annotated[str | None, Help("Only changes by this actor.", "NAME")] = None,
        since: Annotated[datetime | Duration | None, Help("Start time: a time, or 7d for a week ago.")] = None,
        before: Annotated[int | None, Help("Next page: only changes before this number.", "N", low=1)] = None,
        limit: Most = 50,
    ) -> Program[_Actions]:
        """List configuration changes, newest first: who changed what, and when."""
        earliest = yield from self._earliest(since)
        wanted = ActionFilter(
            tenant=self._tenant,
            subject=subject,
            name=name,
            actor=actor,
            since=earliest,
            before=before,
            limit=page_size(limit),
        )
        return (yield from run(self._store.audit.actions(wanted)))

    aactions = awaited(actions)

    @operation
    @http("GET /audit/export", "read", tenant="all", by_hand=True)
    def export(
        self,
        to: Annotated[str | Path, Help("Output file.", "FILE", http=False, cli=False)],
        *,
        since: Annotated[
            datetime | Duration | None, Help("Only what was sealed since this time; default: everything.")
        ] = None,
        progress: OnProgress = None,
    ) -> Program[int]:
        """Export events, actions and seals to a JSON lines file that `audit verify --file` can check.

        Returns the number of blocks. ``verify_file`` checks the file without a database.
        """
        last = yield from self._before((yield from self._first(since)))
        report, count, events = _checked(progress), 0, 0
        with export_file(to) as file:
            file.write(header_line(last))
            while (block := (yield from run(self._store.audit.block(last)))) is not None:
                yield from call(partial(file.writelines, block_lines(block)))
                last = block.seal
                count, events = count + 1, events + block.seal.event_count
                report(count, events)
        return count

    aexport = awaited(export)

    @operation
    @http("GET /audit/export", "read", tenant="all", name="export_audit", large=True)
    def export_some(
        self,
        *,
        since: Annotated[datetime | Duration | None, Help("Only what was sealed since this time.")] = None,
        begin: Annotated[int | None, Help("`next` of the part before; default: the first part.", low=1)] = None,
        seals: Seals = MOST_SEALS,
    ) -> Program[ExportPart]:
        """Export events, actions and seals as JSON lines, for a limited number of seals."""
        last = yield from self._before(begin or (yield from self._first(since)))
        text, count, events = "" if begin is not None else header_line(last), 0, 0
        while (block := (yield from run(self._store.audit.block(last)))) is not None:
            text += "".join(block_lines(block))
            last = block.seal
            count, events = count + 1, events + block.seal.event_count
            if count == seals or len(text) > PART_SIZE:
                return ExportPart(text, count, events, last.number + 1)
        return ExportPart(text, count, events, None)

    aexport_some = awaited(export_some)

    def _first(self, since: datetime | Duration | None) -> Program[int]:
        earliest = yield from self._earliest(since)
        return 1 if earliest is None else (yield from self._first_since(earliest))

    def _earliest(self, since: datetime | Duration | None) -> Program[datetime | None]:
        """The time; a duration counts back from now."""
        if since is None or isinstance(since, datetime):
            return since
        now = yield from run(self._store.clock.now())
        return now - timedelta(seconds=seconds(since, "since"))

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


def export_file(to: object) -> IO[str]:
    """Open a file that only its owner may read: it contains the ledger of every tenant. An existing file keeps its
    mode."""
    if not isinstance(to, str | os.PathLike):
        raise InvalidInput(f"to must be a file path, not {type(to).__name__}", code="invalid_input")
    return open_private(Path(to), "w", encoding="utf-8")


def verify_file(path: str | Path, anchors: Sequence[Anchor | str] = (), progress: Progress | None = None) -> Report:
    """Verify a file that ``export`` wrote, without a database."""
    with Path(path).open(encoding="utf-8") as file:
        check = Check(read_header(file), _anchors(anchors))
        for block in read_blocks(file):
            check.add(block)
            if progress is not None:
                progress(check.seals, check.events)
    return check.end()
