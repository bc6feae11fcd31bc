"""``holdfast top``.

``holdfast top``: how the work stands, live: queues, workers, what runs, what failed, what people are asked.

One bounded read a refresh (``store.health.statistics``, a page of what runs), for a database of any size; the last line
says what it took. On a terminal q ends it and p holds it; elsewhere, and with ``--once`` or ``--json``, it is one look.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.cli import options
from holdfast.cli.output import clock, console, emit, line, span, write
from holdfast.cli.session import AnyTenant
from holdfast.engine.job import Job
from holdfast.engine.states import State
from holdfast.errors import InvalidSetting, StoreError
from holdfast.features.approvals.model import Approval, ApprovalFilter
from holdfast.features.health.model import CAP
from holdfast.features.health.statistics import Pulse, QueuePulse, WorkerPulse
from holdfast.features.jobs.timeline import short
from holdfast.stores.requests import JobFilter
from holdfast.stores.session import Session

NARROW = 80
OLD = 300.0


@dataclass(frozen=True, slots=True)
class Running:
    """Of a job that runs, what is shown: its payload is nobody's business here."""

    id: str
    tenant: str
    kind: str
    queue: str
    attempt: int
    started_at: datetime | None

    @classmethod
    def of(cls, job: Job) -> Running:
        return cls(job.id, job.tenant, job.kind, job.queue, job.attempt, job.started_at)


@dataclass(frozen=True, slots=True)
class Question:
    id: str
    tenant: str
    job_id: str
    summary: str
    approvers: tuple[str, ...]
    opened_at: datetime

    @classmethod
    def of(cls, approval: Approval) -> Question:
        return cls(approval.id, approval.tenant, approval.job_id, approval.summary, approval.people, approval.opened_at)


@dataclass(frozen=True, slots=True)
class Look:
    """``seconds`` is what the look took; ``trouble`` says why there is nothing to see."""

    pulse: Pulse | None
    running: tuple[Running, ...]
    approvals: tuple[Question, ...]
    seconds: float
    trouble: str | None = None


def picture(found: Look, every: float, width: int, height: int, *, held: bool = False) -> RenderableType:
    """As much of it as fits: of each table as many rows as there is room for."""
    foot = Text(f"{_cost(found, every)}   q ends, p {'goes on' if held else 'holds'}", style="dim")
    if found.pulse is None:
        return Group(Text(f"The database cannot be asked: {line(found.trouble or '')}", style="bold red"), foot)
    pulse, narrow = found.pulse, width < NARROW
    parts: list[RenderableType] = [_head(pulse, held), Text()]
    tables = [
        _queues(pulse.queues, narrow),
        _workers(pulse.workers, narrow),
        _running(found, narrow),
        _failures(pulse, narrow),
        _approvals(found, narrow),
    ]
    shown = [each for each in tables if each is not None]
    room = max(2, (height - 5) // max(1, len(shown)) - 3)
    for title, headers, rows in shown:
        parts.append(_table(title, headers, rows, room))
    return Group(*parts, foot)


Rows = list[list[Text]]
Part = tuple[str, Sequence[str], Rows]


def _head(pulse: Pulse, held: bool) -> Text:
    rates = pulse.rates
    failed = rates.finished - rates.ended.get("succeeded", 0)
    return Text.assemble(
        ("holdfast top ", "bold"),
        ("HELD" if held else "", "reverse"),
        " " if held else "",
        f"{clock(pulse.at)[:8]} UTC  ",
        f"in {rates.per_second(rates.enqueued):,.1f}/s  ",
        f"done {rates.per_second(rates.ended.get('succeeded', 0)):,.1f}/s  ",
        (f"failed {rates.per_second(failed):,.1f}/s  ", "red" if failed else ""),
        f"workers {len(pulse.workers)}  ",
        (f"dead letters {_count(pulse.dead_letters)}  ", "bold red" if pulse.dead_letters else ""),
        (f"approvals {_count(pulse.approvals_open)}  ", "magenta" if pulse.approvals_open else ""),
        (f"late schedules {pulse.schedules_late}  " if pulse.schedules_late else "", "yellow"),
    )


def _queues(queues: Sequence[QueuePulse], narrow: bool) -> Part:
    headers = ["queue", "waiting", "oldest", "running"] + ([] if narrow else ["scheduled", "retrying"])
    rows = []
    for each in sorted(queues, key=lambda one: (-(one.oldest_age_s or 0), -one.waiting, one.queue)):
        age = each.oldest_age_s
        old = Text("–" if age is None else span(max(0.0, age)), style="red" if age is not None and age > OLD else "")
        row = [_plain(each.queue, 30), Text(_count(each.waiting)), old, Text(_count(each.running))]
        rows.append(row + ([] if narrow else [Text(_count(each.scheduled)), Text(_count(each.retrying))]))
    return "Queues", headers, rows


def _workers(workers: Sequence[WorkerPulse], narrow: bool) -> Part:
    headers = ["worker", "running"] + ([] if narrow else ["label", "queues", "tenant"])
    rows = []
    for each in sorted(workers, key=lambda one: (-one.busy, one.holder)):
        slots = "" if each.slots is None else f" of {each.slots}"
        row = [_plain(short(each.holder), 40), Text(f"{each.busy}{slots}")]
        more = [] if narrow else [_plain(each.label, 20), _plain(", ".join(each.queues or ("any",)), 30)]
        rows.append(row + more + ([] if narrow else [_plain(each.tenant, 20)]))
    return "Workers", headers, rows


def _running(found: Look, narrow: bool) -> Part | None:
    assert found.pulse is not None
    headers = ["kind", "for", "try"] + ([] if narrow else ["queue", "job"])
    rows = []
    for job in sorted(found.running, key=lambda one: str(one.started_at)):
        since = "–" if job.started_at is None else span(max(0.0, (found.pulse.at - job.started_at).total_seconds()))
        row = [_plain(job.kind, 30), Text(since), Text(str(job.attempt))]
        rows.append(row + ([] if narrow else [_plain(job.queue, 20), _plain(job.id, 36)]))
    return ("Running, the newest", headers, rows) if rows else None


def _failures(pulse: Pulse, narrow: bool) -> Part | None:
    headers = ["kind", "error", "at"] + ([] if narrow else ["try", "job"])
    rows = []
    for each in pulse.failures:
        error = _plain(each.error_code or each.type, 30)
        row = [_plain(each.kind, 30), error, Text(clock(each.at)[:8])]
        rows.append(row + ([] if narrow else [Text(str(each.attempt)), _plain(each.job_id, 36)]))
    return ("Failed of late", headers, rows) if rows else None


def _approvals(found: Look, narrow: bool) -> Part | None:
    assert found.pulse is not None
    headers = ["question", "for"] + ([] if narrow else ["of", "approval"])
    rows = []
    for each in found.approvals:
        waits = span(max(0.0, (found.pulse.at - each.opened_at).total_seconds()))
        row = [_plain(each.summary, 50), Text(waits)]
        rows.append(row + ([] if narrow else [_plain(", ".join(each.approvers) or "anybody", 30), _plain(each.id, 36)]))
    return ("Waiting for people", headers, rows) if rows else None


def _table(title: str, headers: Sequence[str], rows: Rows, room: int) -> Table:
    grid = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left", title_style="bold", header_style="dim"
    )
    for number, header in enumerate(headers):
        grid.add_column(Text(header), no_wrap=True, overflow="ellipsis", ratio=None, min_width=4 if number else 6)
    for row in rows[:room]:
        grid.add_row(*row)
    if len(rows) > room:
        grid.add_row(Text(f"… {len(rows) - room} more", style="dim"), *[Text() for _ in headers[1:]])
    if not rows:
        grid.add_row(Text("none", style="dim"), *[Text() for _ in headers[1:]])
    return grid


def as_lines(found: Look) -> list[str]:
    """The same for a pipe: aligned by nothing, one fact a line."""
    if found.pulse is None:
        return [f"The database cannot be asked: {line(found.trouble or '')}"]
    lines = [_head(found.pulse, False).plain.rstrip()]
    for part in (
        _queues(found.pulse.queues, False),
        _workers(found.pulse.workers, False),
        _running(found, False),
        _failures(found.pulse, False),
        _approvals(found, False),
    ):
        if part is not None:
            title, headers, rows = part
            lines += ["", f"{title}: {', '.join(headers)}"]
            lines += ["  ".join(cell.plain for cell in row) for row in rows]
    return [*lines, "", _cost(found, None)]


def _cost(found: Look, every: float | None) -> str:
    often = "" if every is None else f", every {span(every)}"
    more = " (counted up to 10,000)" if found.pulse is not None and found.pulse.capped else ""
    return f"this look took {span(found.seconds)}{often}{more}"


def _count(number: int) -> str:
    return f"{number:,}" + ("+" if number >= CAP else "")


def _plain(text: str, limit: int) -> Text:
    return Text(line(text, limit))


LEAST, MOST = 0.2, 3600.0
RUNNING, ASKED = 15, 5
STEP = 0.1


def top(
    session: AnyTenant,
    interval: Annotated[str, typer.Option("--interval", metavar="SPAN", help="Refresh interval: 2s, 500ms.")] = "2s",
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and exit.")] = False,
) -> None:
    """Watch queues, workers, running jobs, failures and approvals. Press q to quit, p to pause.

    Into a pipe, and with --json, it is one look.
    """
    every = options.positive(interval, "interval")
    if not LEAST <= every <= MOST:
        raise InvalidSetting(
            "the interval must be from 200 ms to one hour",
            code="invalid_duration",
            fix="Use for example --interval 2s.",
        )
    whose = session.scope
    with session.connect() as client:
        if session.as_json:
            emit(look(client, whose))
        elif once or not (sys.stdout.isatty() and sys.stdin.isatty()):
            found = look(client, whose)
            screen = console(soft_wrap=False)
            if screen.is_terminal:
                screen.print(picture(found, every, screen.width, screen.height))
            else:
                _lines(found)
        else:
            _live(client, whose, every)


def look(client: Session, tenant: str) -> Look:
    """One look. What cannot be read just now is said, and looked for again."""
    began = time.perf_counter()
    store = client.store
    try:
        pulse = client.run(store.health.statistics(tenant))
        running = client.run(store.jobs.list(JobFilter(tenant=tenant, state=State.IN_PROGRESS, limit=RUNNING)))
        asked = client.run(store.approvals.list(ApprovalFilter(tenant=tenant, limit=ASKED)))
    except StoreError as error:
        return Look(None, (), (), time.perf_counter() - began, trouble=error.code)
    took = time.perf_counter() - began
    return Look(pulse, tuple(map(Running.of, running)), tuple(map(Question.of, asked)), took)


def _lines(found: Look) -> None:
    for text in as_lines(found):
        write(text)


@dataclass
class _Keys:
    held: bool = False
    over: bool = False

    def take(self, typed: str) -> None:
        for key in typed.lower():
            if key in ("q", "\x03", "\x1b"):
                self.over = True
            elif key in ("p", " "):
                self.held = not self.held


def _live(client: Session, tenant: str, every: float) -> None:
    screen, keys = console(soft_wrap=False), _Keys()
    found = look(client, tenant)
    live = Live(console=screen, screen=True, auto_refresh=False)
    with contextlib.suppress(KeyboardInterrupt), _unbuffered(), live:
        while not keys.over:
            live.update(picture(found, every, screen.width, screen.height, held=keys.held), refresh=True)
            if _waited(every, keys) and not keys.held:
                found = look(client, tenant)


def _waited(every: float, keys: _Keys) -> bool:
    """Until it is time to look again, or a key has changed something to be seen: False then."""
    end, held = time.monotonic() + every, keys.held
    while (left := end - time.monotonic()) > 0:
        ready, _, _ = select.select([sys.stdin], [], [], min(left, STEP))
        if ready:
            keys.take(os.read(sys.stdin.fileno(), 64).decode("utf-8", "replace"))
        if keys.over or keys.held is not held:
            return False
    return True


@contextlib.contextmanager
def _unbuffered() -> Iterator[None]:
    """Keys come one by one and are not shown; as it was afterwards, whatever happens."""
    import termios
    import tty

    place = sys.stdin.fileno()
    before = termios.tcgetattr(place)
    try:
        tty.setcbreak(place)
        yield
    finally:
        termios.tcsetattr(place, termios.TCSADRAIN, before)
