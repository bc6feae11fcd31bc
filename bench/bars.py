"""Performance targets of the project, and whether they are met. A target whose workload was run without result
says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.pages import BAR_MS, BAR_RATIO, Screen
from bench.peers.catalog import BY_NAME
from bench.peers.run import Results
from bench.retention import PER_JOB
from bench.waiting import Beside
from bench.writes import Writes

PG, LITE = "holdfast-pg", "holdfast-sqlite"


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


def over(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def bars(results: Results) -> list[Bar]:
    figure = results.figure

    def ratio(workload: str, subject: str, peer: str) -> float | None:
        return over(figure(subject, workload, "jobs_s"), figure(peer, workload, "jobs_s"))

    def own(workload: str, of: str, subject: str) -> float | None:
        return over(figure(subject, workload, "jobs_s"), figure(subject, of, "jobs_s"))

    best = _best_python_latency(figure)
    found = [
        Bar("W3 PostgreSQL, over PgQueuer", ratio("W3", PG, "pgqueuer"), 1.5, True),
        Bar("W3 PostgreSQL, over pg-boss", ratio("W3", PG, "pgboss"), 1.0, True),
        Bar("W3 SQLite, over huey", ratio("W3", LITE, "huey"), 5.0, True),
        Bar("W4 PostgreSQL, over own W3", own("W4", "W3", PG), 1.2, True),
        Bar("W5 PostgreSQL, p50 over the best Python peer's there", over(figure(PG, "W5", "p50_ms"), best), 1.0, False),
        Bar("W5 PostgreSQL, p99", figure(PG, "W5", "p99_ms"), 10.0, False, "ms"),
        Bar("W5 SQLite, p50 across processes", figure(LITE, "W5", "p50_ms"), 10.0, False, "ms"),
        Bar("W1 PostgreSQL, over PgQueuer", ratio("W1", PG, "pgqueuer"), 0.8, True),
        Bar("W2 PostgreSQL, over PgQueuer", ratio("W2", PG, "pgqueuer"), 0.8, True),
        Bar("W6 PostgreSQL, over own W3", own("W6", "W3", PG), 0.9, True),
        Bar("W7 PostgreSQL, last tenth over first tenth", figure(PG, "W7", "ratio"), 0.9, True),
        Bar("W8 PostgreSQL, 1,000 sleeping jobs, memory over PgQueuer",
            over(figure(PG, "W8", "held_mib"), figure("pgqueuer", "W8", "held_mib")), 1.5, False),
        Bar("W9 PostgreSQL, steps over DBOS", over(figure(PG, "W9", "steps_s"), figure("dbos", "W9", "steps_s")),
            2.0, True),
    ]  # fmt: skip
    run = {workload for _, workload in results.outcomes}
    return [bar for bar in found if bar.what.split()[0] in run]


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


def _best_python_latency(figure: Callable[[str, str, str], float | None]) -> float | None:
    peers = [each.name for each in BY_NAME.values() if each.python and each.backend == "postgres" and each.name != PG]
    known = [value for name in peers if (value := figure(name, "W5", "p50_ms")) is not None]
    return min(known, default=None)
