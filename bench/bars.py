"""Performance targets of the project, and whether they are met. A target whose workload was run without result
says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.figures import Figure
from bench.pages import BAR_MS, BAR_RATIO, Screen
from bench.retention import PER_JOB
from bench.timing import Row
from bench.waiting import Beside
from bench.writes import Writes


@dataclass(frozen=True)
class Bar:
    what: str
    value: float | None
    limit: float
    at_least: bool
    unit: str = "×"

    @property
    def held(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def line(self) -> str:
        sign = "≥" if self.at_least else "≤"
        if self.value is None:
            return f"  ?       {self.what:66} bar {sign} {self.limit:g} {self.unit}: not measured"
        word = "held  " if self.held else "MISSED"
        return f"  {word}  {self.what:66} {self.value:8.2f} {self.unit:5} bar {sign} {self.limit:g}"


@dataclass(frozen=True)
class Goal:
    """The limit of a figure: of its ratio, or without something to compare with of its value."""

    limit: float
    at_least: bool = True


def at_most(limit: float) -> Goal:
    return Goal(limit, at_least=False)


# By group and name of the figure. A goal whose group was run and whose figure is missing is reported as not measured.
GOALS: dict[str, dict[str, Goal]] = {
    "W1": {"PostgreSQL, jobs/s, over PgQueuer": Goal(1.15), "SQLite, jobs/s, over huey": Goal(1.0)},
    "W2": {
        "PostgreSQL, jobs/s, over PgQueuer": Goal(1.1),
        "PostgreSQL, jobs/s, over graphile-worker": Goal(0.9),
        "SQLite, jobs/s, over huey": Goal(12.0),
    },
    "W3": {
        "PostgreSQL, jobs/s, over PgQueuer": Goal(2.5),
        "PostgreSQL, jobs/s, over pg-boss": Goal(1.0),
        "PostgreSQL, jobs/s, over graphile-worker": Goal(1.3),
        "PostgreSQL, WAL": at_most(1_300),
        "PostgreSQL, disk of a finished job": at_most(1_100),
        "SQLite, jobs/s, over huey": Goal(10.0),
    },
    "W4": {"PostgreSQL, jobs/s, over graphile-worker": Goal(1.0), "PostgreSQL, jobs/s, over own W3": Goal(1.15)},
    "W5": {
        "PostgreSQL, p50": at_most(1.0),
        "PostgreSQL, p99": at_most(2.0),
        "SQLite, p50": at_most(1.5),
        "SQLite, p99": at_most(4.0),
    },
    "W6": {"PostgreSQL, jobs/s, over own W3": Goal(1.0)},
    "W7": {"PostgreSQL, last tenth over first": Goal(1.0)},
    "W8": {"PostgreSQL, memory, over PgQueuer": at_most(1.5)},
    "W9": {"PostgreSQL, steps/s, over DBOS": Goal(2.0)},
    "producers": {
        "PostgreSQL, enqueue, 32 clients, over PgQueuer": Goal(1.5),
        "PostgreSQL, enqueue, 32 clients, over 8 clients": Goal(1.0),
        "PostgreSQL, enqueue, awaited, 32 clients, over PgQueuer": Goal(1.0),
        "PostgreSQL, enqueue, server CPU, over plain insert": at_most(2.5),
        "SQLite, enqueue, 1 thread, over plain insert": Goal(0.5),
        "SQLite, enqueue, 8 threads, over plain insert": Goal(1.0),
    },
    "latency": {
        "PostgreSQL, every 50 ms, p50": at_most(1.0),
        "PostgreSQL, every 50 ms, p99": at_most(2.0),
        "PostgreSQL, every 50 ms, p50, over graphile-worker": at_most(1.0),
        "PostgreSQL, every 10 ms, p99, over PgQueuer": at_most(1.0),
        "PostgreSQL, every 3 ms, p99, over PgQueuer": at_most(1.0),
        "SQLite, every 50 ms, p50": at_most(1.5),
        "SQLite, every 50 ms, p99": at_most(4.0),
    },
    "closed-loop": {
        "PostgreSQL, flat out, over PgQueuer": Goal(1.0),
        "PostgreSQL, at 800/s, p99, over PgQueuer": at_most(1.0),
        "SQLite, flat out, over huey": Goal(1.0),
    },
    "variants": {
        **{
            f"{store}, {name}, over plain": Goal(share)
            for store in ("PostgreSQL", "SQLite")
            for name, share in {
                "one in ten fails once": 0.6, "threads": 0.7, "one step": 0.4, "8 kB payload": 0.6,
                "tags and keys": 0.9, "random priorities": 0.8, "20 queues": 0.8, "50 tenants": 0.8,
            }.items()
        },
        "PostgreSQL, plain, WAL": at_most(1_300),
        "PostgreSQL, plain, disk": at_most(1_100),
    },
    "workers": {
        "PostgreSQL, 2 workers, over one": Goal(1.15),
        "PostgreSQL, 2 workers, over graphile-worker": Goal(1.0),
        "PostgreSQL, 4 workers, over 2 workers": Goal(0.95),
        "PostgreSQL, 8 workers, over 4 workers": Goal(0.95),
        "PostgreSQL, 64 contending, CPU, over 8 contending": at_most(1.5),
    },
    "idle": {
        "PostgreSQL, 1 idle, client CPU": at_most(0.02),
        "PostgreSQL, 1 idle, transactions each": at_most(0.3),
        "PostgreSQL, 1 idle, connections each": at_most(2.0),
        "PostgreSQL, 100 idle, server CPU": at_most(0.02),
        "PostgreSQL, 100 idle, transactions each": at_most(0.3),
        "SQLite, 1 idle, client CPU": at_most(0.02),
    },
    "limited-kinds": {
        f"{store}, {what}, over alone": goal
        for store in ("PostgreSQL", "SQLite")
        for what, goal in (("drain among them", Goal(0.5)), ("claim of 200 others", at_most(1.3)))
    },
    "due-schedules": {
        f"{store}, {what}": goal
        for store in ("PostgreSQL", "SQLite")
        for what, goal in (("fired and run", Goal(1_000)), ("pick-up p99 of others", at_most(100)))
    },
    "old-transaction": {
        "PostgreSQL, slowest 5 s, over the rate": Goal(0.95),
        "PostgreSQL, pick-up p99, over alone": at_most(3.0),
    },
    "waiters": {
        "PostgreSQL, result p99": at_most(2_000),
        "PostgreSQL, server CPU": at_most(0.25),
    },
}  # fmt: skip


def of_figures(group: str, figures: Sequence[Figure], stores: Sequence[str] = ("PostgreSQL", "SQLite")) -> list[Bar]:
    found, by_name = [], {each.name: each for each in figures}
    for name, goal in GOALS.get(group, {}).items():
        figure = by_name.get(name)
        if figure is not None or name.startswith(tuple(stores)):
            value = None if figure is None else figure.ours if figure.ratio is None else figure.ratio
            unit = "×" if figure is None or figure.ratio is not None else figure.unit
            found.append(Bar(f"{group}: {name}", value, goal.limit, goal.at_least, unit))
    return found


def of_floor(measured: Sequence[Row]) -> list[Bar]:
    return [Bar(f"{each.store}, {each.what}", each.ratio, float(each.bar[2:]), each.bar[0] == "≥") for each in measured]


def of_writes(measured: Sequence[Writes]) -> list[Bar]:
    """A step is one small write, and leaves the row of its job unchanged."""
    found = []
    for each in measured:
        who = f"{each.store}, {each.concurrency} at once"
        found.append(Bar(f"{who}: rows written by a step", each.rows, 1.0, False, "rows"))
        if each.job_updates is not None:
            found.append(Bar(f"{who}: updates of the job's row by a step", each.job_updates, 0.0, False, ""))
        # SQLite counts the commits of the whole file, which include the heartbeats of the worker.
        found.append(
            Bar(f"{who}: commits of a step", each.commits, 1.0 if each.store == "PostgreSQL" else 1.05, False, "")
        )
    return found


def of_waiting(measured: Sequence[Beside]) -> list[Bar]:
    return [Bar(f"{each.store}, beside jobs that wait: {each.what}", each.ratio, 1.1, False) for each in measured]


def of_workflows(measured: Sequence[Beside]) -> list[Bar]:
    """Compared with a plain loop. The cost of a workflow over a bulk enqueue is shown, without a target."""
    limits = {"claim": 1.3, "fan-in": 1.5}
    return [
        Bar(f"{each.store}, workflows: {each.what}", each.ratio, limits[each.what.split()[0]], False)
        for each in measured
        if not each.what.endswith("in bulk")
    ]


def of_limits(measured: Sequence[Beside]) -> list[Bar]:
    """A drain keeps 0.6 of its speed under limits that hold back no job; full keys make a claim at most a third
    slower."""
    found = []
    for each in measured:
        if each.what.startswith("claim"):
            found.append(Bar(f"{each.store}, {each.what}", each.ratio, 1.3, False))
        elif "holding back" not in each.what:
            found.append(Bar(f"{each.store}, with limits: {each.what}", 1 / each.ratio, 0.6, True))
    return found


def of_rates(measured: Sequence[Beside]) -> list[Bar]:
    """Two workers start jobs at the configured rate, within 5 %."""
    found = []
    for each in measured:
        found.append(Bar(f"{each.store}, {each.what}: at least", each.beside / each.without, 0.95, True))
        found.append(Bar(f"{each.store}, {each.what}: at most", each.beside / each.without, 1.05, False))
    return found


def of_fairness(measured: Sequence[Beside]) -> list[Bar]:
    """Small tenants take at most twice as long as alone. With fair shares a drain keeps 0.7 of its speed, with one
    tenant 0.95."""
    found = []
    for each in measured:
        if each.what.startswith("until"):
            found.append(Bar(f"{each.store}, {each.what}", each.ratio, 2.0, False))
        else:
            limit = 0.95 if "alone" in each.what else 0.7
            found.append(Bar(f"{each.store}, shared: {each.what}", 1 / each.ratio, limit, True))
    return found


def of_retention(measured: Sequence[Beside]) -> list[Bar]:
    """Old jobs do not slow a drain down, at rest or while they are removed."""
    return [
        Bar(f"{each.store}, {each.what}", 1 / each.ratio, 20.0 if each.unit == PER_JOB else 0.9, True)
        for each in measured
        if each.ratio
    ]


def of_sealing(measured: Sequence[Beside]) -> list[Bar]:
    """A worker that also seals the ledger keeps 0.95 of its speed. Its CPU time has no target, but is reported because
    a shared machine disturbs it less."""
    return [Bar(f"{each.store}, {each.what}", 1 / each.ratio, 0.95, True) for each in measured if each.unit == "jobs/s"]


def of_service(measured: Sequence[Beside]) -> list[Bar]:
    """An enqueue over HTTP is at least half as fast as in process; idle streams use no more memory over time; hostile
    bodies delay no other client."""
    found = []
    for each in measured:
        if each.unit == "jobs/s":
            found.append(Bar(f"{each.store}, {each.what}", 1 / each.ratio, 0.5, True))
        elif each.unit == "ms p99":
            found.append(Bar(f"{each.store}, {each.what}, ms p99", each.beside, 100.0, False))
        else:
            found.append(Bar(f"{each.store}, {each.what}", each.ratio, 1.05, False))
    return found


def of_pages(measured: Sequence[Screen]) -> list[Bar]:
    """Each page is fast, for any number of jobs; pages of lists and jobs also under load."""
    if not measured:
        return []
    slowest = max(measured, key=lambda each: each.idle_p50)
    jobs = [each for each in measured if each.path.startswith(("/jobs", "/api/"))]
    worst = max((each.ratio for each in jobs), default=None)
    return [
        Bar(f"pages, the slowest alone ({slowest.path}), p50", slowest.idle_p50, BAR_MS, False, "ms"),
        Bar("pages of jobs, p99 under load over alone", worst, BAR_RATIO, False),
    ]
