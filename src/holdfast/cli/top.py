"""``holdfast top``: a live view of queues, workers, running jobs, failures and approvals.

Each refresh reads a bounded number of rows, whatever the size of the database; the last line shows how long it took. On
a terminal, q quits and p pauses. In a pipe, and with ``--once`` or ``--json``, it prints one snapshot.
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

from rich import box
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.cli import options
from holdfast.cli.output import clock, console, emit, line, span, write
from holdfast.cli.session import AnyTenant
from holdfast.engine.declared import Help
from holdfast.engine.job import Job
from holdfast.engine.states import State
from holdfast.errors import InvalidSetting, StoreError
from holdfast.features.approvals.model import Approval, ApprovalFilter
from holdfast.features.health.model import CAP
from holdfast.features.health.statistics import QueueStatus, Statistics, WorkerStatus
from holdfast.features.jobs.timeline import lost_text, short_actor
from holdfast.stores.requests import JobFilter
from holdfast.stores.session import Session

NARROW = 80
OLD = 300.0  # seconds after which the oldest waiting job is shown in red


@dataclass(frozen=True, slots=True)
class Running:
    """The fields of a running job that are shown. The payload is not one of them."""

    id: str
    tenant: str
    kind: str
    queue: str
    attempt: int
    started_at: datetime | None
    lease_expired_at: datetime | None = None
    """When the lease of its worker expired, if no worker has taken the job over yet."""

    @classmethod
    def of(cls, job: Job, lease_expired_at: datetime | None) -> Running:
        return cls(job.id, job.tenant, job.kind, job.queue, job.attempt, job.started_at, lease_expired_at)


@dataclass(frozen=True, slots=True)
class OpenApproval:
    """The fields of an open approval that are shown."""

    id: str
    tenant: str
    job_id: str
    summary: str
    approvers: tuple[str, ...]
    opened_at: datetime

    @classmethod
    def of(cls, approval: Approval) -> OpenApproval:
        return cls(approval.id, approval.tenant, approval.job_id, approval.summary, approval.people, approval.opened_at)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is shown. ``seconds`` is how long the query took; ``trouble`` is the error code if it failed."""

    statistics: Statistics | None
    running: tuple[Running, ...]
    approvals: tuple[OpenApproval, ...]
    seconds: float
    trouble: str | None = None


def render(snapshot: Snapshot, every: float, width: int, height: int, *, paused: bool = False) -> RenderableType:
    """Return the tables, each with as many rows as fit on the screen."""
    foot = Text(f"{_cost(snapshot, every)}   q: quit, p: {'resume' if paused else 'pause'}", style="dim")
    if snapshot.statistics is None:
        return Group(Text(_unavailable(snapshot), style="bold red"), foot)
    statistics, narrow = snapshot.statistics, width < NARROW
    parts: list[RenderableType] = [_head(statistics, paused), Text()]
    tables = [
        _queues(statistics.queues, narrow),
        _workers(statistics.workers, narrow),
        _running(snapshot, narrow),
        _failures(statistics, narrow),
        _approvals(snapshot, narrow),
    ]
    shown = [table for table in tables if table is not None]
    max_rows = max(2, (height - 5) // max(1, len(shown)) - 3)
    for title, headers, rows in shown:
        parts.append(_table(title, headers, rows, max_rows))
    return Group(*parts, foot)


Rows = list[list[Text]]
Part = tuple[str, Sequence[str], Rows]


def _head(statistics: Statistics, paused: bool) -> Text:
    rates = statistics.rates
    failed = rates.finished - rates.ended.get("succeeded", 0)
    return Text.assemble(
        ("holdfast top ", "bold"),
        ("PAUSED" if paused else "", "reverse"),
        " " if paused else "",
        f"{clock(statistics.at)[:8]} UTC  ",
        f"in {rates.per_second(rates.enqueued):,.1f}/s  ",
        f"done {rates.per_second(rates.ended.get('succeeded', 0)):,.1f}/s  ",
        (f"failed {rates.per_second(failed):,.1f}/s  ", "red" if failed else ""),
        f"workers {len(statistics.workers)}  ",
        (f"dead letters {_count(statistics.dead_letters)}  ", "bold red" if statistics.dead_letters else ""),
        (f"approvals {_count(statistics.approvals_open)}  ", "magenta" if statistics.approvals_open else ""),
        (f"late schedules {statistics.schedules_late}  " if statistics.schedules_late else "", "yellow"),
    )


def _queues(queues: Sequence[QueueStatus], narrow: bool) -> Part:
    headers = ["queue", "waiting", "oldest", "running"] + ([] if narrow else ["scheduled", "retrying"])
    rows = []
    for queue in sorted(queues, key=lambda queue: (-(queue.oldest_age_s or 0), -queue.waiting, queue.queue)):
        age = queue.oldest_age_s
        old = Text("–" if age is None else span(max(0.0, age)), style="red" if age is not None and age > OLD else "")
        row = [_plain(queue.queue, 30), Text(_count(queue.waiting)), old, Text(_count(queue.running))]
        rows.append(row + ([] if narrow else [Text(_count(queue.scheduled)), Text(_count(queue.retrying))]))
    return "Queues", headers, rows


def _workers(workers: Sequence[WorkerStatus], narrow: bool) -> Part:
    headers = ["worker", "running"] + ([] if narrow else ["label", "queues", "tenant"])
    rows = []
    for worker in sorted(workers, key=lambda worker: (-worker.busy, worker.holder)):
        slots = "" if worker.slots is None else f" of {worker.slots}"
        row = [_plain(short_actor(worker.holder), 40), Text(f"{worker.busy}{slots}")]
        more = [] if narrow else [_plain(worker.label, 20), _plain(", ".join(worker.queues or ("any",)), 30)]
        rows.append(row + more + ([] if narrow else [_plain(worker.tenant, 20)]))
    return "Workers", headers, rows


def _running(snapshot: Snapshot, narrow: bool) -> Part | None:
    assert snapshot.statistics is not None
    headers = ["kind", "for", "try"] + ([] if narrow else ["queue", "job"])
    lost = any(job.lease_expired_at for job in snapshot.running)
    rows = []
    for job in sorted(snapshot.running, key=lambda job: str(job.started_at)):
        since = (
            "–" if job.started_at is None else span(max(0.0, (snapshot.statistics.at - job.started_at).total_seconds()))
        )
        row = [_plain(job.kind, 30), Text(since), Text(str(job.attempt))]
        more = [] if narrow else [_plain(job.queue, 20), _plain(job.id, 36)]
        rows.append(row + more + ([_lost(job, narrow)] if lost else []))
    return ("Running jobs, newest first", headers + (["worker"] if lost else []), rows) if rows else None


def _lost(job: Running, narrow: bool) -> Text:
    if job.lease_expired_at is None:
        return Text("alive")
    return Text("lost" if narrow else lost_text(job.lease_expired_at), style="red")


def _failures(statistics: Statistics, narrow: bool) -> Part | None:
    headers = ["kind", "error", "at"] + ([] if narrow else ["try", "job"])
    rows = []
    for failure in statistics.failures:
        error = _plain(failure.error_code or failure.type, 30)
        row = [_plain(failure.kind, 30), error, Text(clock(failure.at)[:8])]
        rows.append(row + ([] if narrow else [Text(str(failure.attempt)), _plain(failure.job_id, 36)]))
    return ("Recent failures", headers, rows) if rows else None


def _approvals(snapshot: Snapshot, narrow: bool) -> Part | None:
    assert snapshot.statistics is not None
    headers = ["question", "for"] + ([] if narrow else ["approvers", "approval"])
    rows = []
    for approval in snapshot.approvals:
        waits = span(max(0.0, (snapshot.statistics.at - approval.opened_at).total_seconds()))
        row = [_plain(approval.summary, 50), Text(waits)]
        rows.append(
            row + ([] if narrow else [_plain(", ".join(approval.approvers) or "anyone", 30), _plain(approval.id, 36)])
        )
    return ("Waiting for approval", headers, rows) if rows else None


def _table(title: str, headers: Sequence[str], rows: Rows, max_rows: int) -> Table:
    grid = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left", title_style="bold", header_style="dim"
    )
    for number, header in enumerate(headers):
        grid.add_column(Text(header), no_wrap=True, overflow="ellipsis", ratio=None, min_width=4 if number else 6)
    for row in rows[:max_rows]:
        grid.add_row(*row)
    if len(rows) > max_rows:
        grid.add_row(Text(f"… {len(rows) - max_rows} more", style="dim"), *[Text() for _ in headers[1:]])
    if not rows:
        grid.add_row(Text("none", style="dim"), *[Text() for _ in headers[1:]])
    return grid


def as_lines(snapshot: Snapshot) -> list[str]:
    """Return the tables as plain lines, for a pipe."""
    if snapshot.statistics is None:
        return [_unavailable(snapshot)]
    lines = [_head(snapshot.statistics, False).plain.rstrip()]
    for part in (
        _queues(snapshot.statistics.queues, False),
        _workers(snapshot.statistics.workers, False),
        _running(snapshot, False),
        _failures(snapshot.statistics, False),
        _approvals(snapshot, False),
    ):
        if part is not None:
            title, headers, rows = part
            lines += ["", f"{title}: {', '.join(headers)}"]
            lines += ["  ".join(cell.plain for cell in row) for row in rows]
    return [*lines, "", _cost(snapshot, None)]


def _unavailable(snapshot: Snapshot) -> str:
    return f"Database unreachable: {line(snapshot.trouble or '')}"


def _cost(snapshot: Snapshot, every: float | None) -> str:
    interval = "" if every is None else f", every {span(every)}"
    capped = " (counted up to 10,000)" if snapshot.statistics is not None and snapshot.statistics.capped else ""
    return f"query took {span(snapshot.seconds)}{interval}{capped}"


def _count(number: int) -> str:
    return f"{number:,}" + ("+" if number >= CAP else "")


def _plain(text: str, limit: int) -> Text:
    return Text(line(text, limit))


MIN_INTERVAL, MAX_INTERVAL = 0.2, 3600.0
MAX_RUNNING, MAX_APPROVALS = 15, 5
KEY_POLL = 0.1


def top(
    session: AnyTenant,
    interval: Annotated[str, Help("Refresh interval: 2s, 500ms.", "SPAN")] = "2s",
    once: Annotated[bool, Help("Print one snapshot and exit.")] = False,
) -> None:
    """Watch queues, workers, running jobs, failures and approvals. Press q to quit, p to pause.

    In a pipe, and with --json, it prints one snapshot.
    """
    every = options.positive(interval, "interval")
    if not MIN_INTERVAL <= every <= MAX_INTERVAL:
        raise InvalidSetting(
            "the interval must be from 200 ms to one hour",
            code="invalid_duration",
            fix="Use for example --interval 2s.",
        )
    tenant = session.scope
    with session.connect() as client:
        if session.as_json:
            emit(read(client, tenant))
        elif once or not (sys.stdout.isatty() and sys.stdin.isatty()):
            snapshot = read(client, tenant)
            screen = console(soft_wrap=False)
            if screen.is_terminal:
                screen.print(render(snapshot, every, screen.width, screen.height))
            else:
                for text in as_lines(snapshot):
                    write(text)
        else:
            _live(client, tenant, every)


def read(client: Session, tenant: str) -> Snapshot:
    """Read a snapshot. If the database cannot be read, the snapshot has the error."""
    began = time.perf_counter()
    store = client.store
    try:
        statistics = client.run(store.health.statistics(tenant))
        running = client.run(store.jobs.list(JobFilter(tenant=tenant, state=State.IN_PROGRESS, limit=MAX_RUNNING)))
        expired = _expired_leases(client, tenant, statistics, running)
        approvals = client.run(store.approvals.list(ApprovalFilter(tenant=tenant, limit=MAX_APPROVALS)))
    except StoreError as error:
        return Snapshot(None, (), (), time.perf_counter() - began, trouble=error.code)
    took = time.perf_counter() - began
    jobs = tuple(Running.of(job, expired.get(job.id)) for job in running)
    return Snapshot(statistics, jobs, tuple(map(OpenApproval.of, approvals)), took)


def _expired_leases(
    client: Session, tenant: str, statistics: Statistics, running: Sequence[Job]
) -> dict[str, datetime | None]:
    """When the leases of jobs expired, by job. Jobs of live workers are not read."""
    live = {job_id for worker in statistics.workers for job_id in worker.job_ids}
    around = {
        job.id: client.run(client.store.jobs.circumstances(job.id, tenant)) for job in running if job.id not in live
    }
    return {job_id: each.lease_expired_at for job_id, each in around.items() if each is not None}


@dataclass
class _Keys:
    """The effect of the keys that were pressed."""

    paused: bool = False
    over: bool = False

    def take(self, typed: str) -> None:
        for key in typed.lower():
            if key in ("q", "\x03", "\x1b"):
                self.over = True
            elif key in ("p", " "):
                self.paused = not self.paused


def _live(client: Session, tenant: str, every: float) -> None:
    screen, keys = console(soft_wrap=False), _Keys()
    snapshot = read(client, tenant)
    live = Live(console=screen, screen=True, auto_refresh=False)
    with contextlib.suppress(KeyboardInterrupt), _unbuffered(), live:
        while not keys.over:
            live.update(render(snapshot, every, screen.width, screen.height, paused=keys.paused), refresh=True)
            if _waited(every, keys) and not keys.paused:
                snapshot = read(client, tenant)


def _waited(every: float, keys: _Keys) -> bool:
    """Wait until the next refresh; return False if a key quit or paused the view before."""
    end, paused = time.monotonic() + every, keys.paused
    while (left := end - time.monotonic()) > 0:
        ready, _, _ = select.select([sys.stdin], [], [], min(left, KEY_POLL))
        if ready:
            keys.take(os.read(sys.stdin.fileno(), 64).decode("utf-8", "replace"))
        if keys.over or keys.paused is not paused:
            return False
    return True


@contextlib.contextmanager
def _unbuffered() -> Iterator[None]:
    """Deliver each key at once and without echo; restore the terminal afterwards."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    attributes = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, attributes)
