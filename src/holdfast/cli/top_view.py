"""What ``holdfast top`` shows of one look. All text that came from the database is made plain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.cli.output import line
from holdfast.cli.timeline import short
from holdfast.cli.words import clock, span
from holdfast.engine.job import Job
from holdfast.features.approvals.model import Gate
from holdfast.features.health.model import CAP
from holdfast.features.health.statistics import Pulse, QueuePulse, WorkerPulse

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
    def of(cls, gate: Gate) -> Question:
        return cls(gate.id, gate.tenant, gate.job_id, gate.summary, gate.people, gate.opened_at)


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
        (f"approvals {_count(pulse.gates_open)}  ", "magenta" if pulse.gates_open else ""),
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
        error = _plain(each.error_code or each.verb, 30)
        row = [_plain(each.kind, 30), error, Text(clock(each.at)[:8])]
        rows.append(row + ([] if narrow else [Text(str(each.attempt)), _plain(each.job_id, 36)]))
    return ("Failed of late", headers, rows) if rows else None


def _approvals(found: Look, narrow: bool) -> Part | None:
    assert found.pulse is not None
    headers = ["question", "for"] + ([] if narrow else ["of", "gate"])
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
