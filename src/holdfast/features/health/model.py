"""Health: counts, and a verdict with its reasons. Pure.

``warn`` means that it needs attention today, ``critical`` that jobs are not processed or may be lost. Each reason has a
stable code, a message and a fix; ``advice`` does not change the verdict. The runbooks (docs/runbooks.md) are listed by
code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

from holdfast.engine.units import in_bytes, seconds
from holdfast.errors import InvalidSetting

Verdict = Literal["ok", "warn", "critical"]
Level = Literal["advice", "warn", "critical"]

CAP: Final = 10_000
"""Maximum of every count, so that a read costs the same for any number of jobs."""


CODES: Final = (
    *(
        "no_worker",
        "expired_leases",
        "oldest_waits",
        "backlog",
        "unserved_kinds",
        "unserved_executors",
        "unserved_versions",
        "held_jobs",
        "long_running",
        "dead_letters",
        "paused",
        "limits_hold_many",
    ),
    *("approvals_overdue", "schedules_late", "consumers_behind", "weak_durability", "old_transaction", "wal_large"),
    *("disk_full", "clock_skew", "role_too_powerful", "ledger_unsealed", "retention_held"),
)
"""The codes that ``/metrics`` exports."""


@dataclass(frozen=True, slots=True)
class Concern:
    """One reason of the verdict."""

    code: str
    level: Level
    says: str
    fix: str

    def __str__(self) -> str:
        return self.says


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The values at which a count becomes a reason; None disables the check. Durations are in seconds."""

    @classmethod
    def of(cls, options: Iterable[str]) -> Thresholds:
        """Parse ``oldest_warn=10m``, ``dead_letters_warn=5``, ``wal_warn=1GB``, ``skew_warn=none``."""
        values: dict[str, Any] = {}
        types = {field.name: str(field.type) for field in fields(cls)}
        for option in options:
            name, _, value = option.partition("=")
            if name not in types or not value:
                raise InvalidSetting(
                    f"{option!r} is not a threshold",
                    code="unknown_option",
                    fix=f"Write NAME=VALUE with one of {', '.join(types)}.",
                )
            if value == "none":
                values[name] = None
            elif types[name].startswith("float"):
                values[name] = seconds(float(value) if value.replace(".", "", 1).isdecimal() else value, name)
            else:
                values[name] = in_bytes(value, name) if name in ("wal_warn", "disk_warn") else _whole(value, name)
        return cls(**values)

    oldest_warn: float | None = 300.0
    """Wait of the oldest job that may start."""
    oldest_critical: float | None = 3600.0
    backlog_warn: int | None = None
    """Waiting jobs; counted up to 10,000."""
    long_running_times: float | None = 10.0
    """How many times the usual duration of its kind (the median of recent successes) a job may run; at least 30 s."""
    long_running_warn: float | None = 86_400.0
    """How long any job may run."""
    dead_letters_warn: int | None = 1
    schedule_late_warn: float | None = 60.0
    behind_warn: int | None = 5000
    """Events that a consumer or a subscription has not read; counted up to 10,000."""
    unsealed_warn: float | None = 3600.0
    """Age of the oldest unsealed event of the ledger."""
    parked_warn: int | None = 1000
    """Jobs that limits hold back."""
    transaction_warn: float | None = 300.0
    """Age of the oldest open transaction on the server: dead rows since its start cannot be vacuumed."""
    transaction_critical: float | None = 3600.0
    wal_warn: int | None = 256 * 1024 * 1024
    disk_warn: int | None = 200 * 1024 * 1024
    skew_warn: float | None = 5.0
    """Difference between the clocks of this machine and of the database."""


DEFAULT_THRESHOLDS: Final = Thresholds()


def check_thresholds(when: object) -> Thresholds:
    if not isinstance(when, Thresholds):
        raise InvalidSetting(f"when must be Thresholds, not {type(when).__name__}", code="invalid_setting")
    return when


@dataclass(frozen=True, slots=True)
class LongRunning:
    """A job that runs much longer than usual: its handler may hang."""

    id: str
    kind: str
    tenant: str
    seconds: float
    """Since its attempt started."""
    usual_s: float | None
    """The median of recent successes of the kind; None if there are too few."""

    @property
    def says(self) -> str:
        usual = "" if self.usual_s is None else f", usually {self.usual_s:.3g} s"
        return f"{self.kind} {self.id} for {self.seconds:.0f} s{usual}"


MIN_LONG, MIN_RUNS = 30.0, 3


def is_long(seconds: float, usual: float | None, when: Thresholds) -> bool:
    """Whether a job that has run for ``seconds`` runs too long."""
    if when.long_running_warn is not None and seconds > when.long_running_warn:
        return True
    if when.long_running_times is None or usual is None:
        return False
    return seconds > max(MIN_LONG, usual * when.long_running_times)


@dataclass(frozen=True, slots=True)
class Health:
    """Counts, each up to ``CAP`` (``capped``: one of them is higher), and the verdict with its reasons."""

    backlog: int
    scheduled: int
    """Jobs that wait for a time or for other jobs."""
    in_progress: int
    dead_letter_open: int
    oldest_queued_age_s: float | None
    """Age of the oldest job that may start, so without paused queues."""
    lease_active: int
    """Workers with a live lease. The holder of a reservation is not a worker."""
    waiting_kinds: tuple[str, ...]
    """Kinds of the jobs at the head of the queues."""
    verdict: Verdict
    reasons: tuple[Concern, ...] = field(default=())
    approvals_open: int = 0
    """Open approvals; a reason only if they are overdue."""
    oldest_approval_age_s: float | None = None
    workers: int = 0
    """Workers that reported their queues and kinds."""
    unserved: tuple[tuple[str, str], ...] = ()
    """Queues and kinds with waiting jobs that no live worker serves."""
    unserved_queues: tuple[str, ...] = ()
    """Queues with waiting jobs that no running worker serves for any kind."""
    unserved_executors: tuple[str, ...] = ()
    """Executor labels that waiting jobs name and that no running worker has."""
    parked: int = 0
    """Jobs that limits, reservations and pauses hold back."""
    paused: tuple[str, ...] = ()
    approvals_overdue: int = 0
    schedules_late: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    """Consumers and subscriptions that are far behind or fail."""
    unsealed_age_s: float | None = None
    """Age of the oldest unsealed event; only for all tenants together, because there is one chain."""
    retention_held: tuple[str, ...] = ()
    """Consumers that delay the purge of jobs past their retention."""
    due: int = 0
    """Scheduled jobs and retries that are due, and that no worker has put into the queue yet."""
    oldest_due_age_s: float | None = None
    expired_lease_age_s: float | None = None
    """Time since a worker's lease expired that no other worker has ended yet."""
    long_running: tuple[LongRunning, ...] = ()
    """Jobs that run much longer than usual, the first three of each kind."""
    unserved_versions: tuple[str, ...] = ()
    """Versions of the application that jobs are pinned to and no running worker has."""
    held: int = 0
    """Jobs whose recorded steps fit no code that has been tried."""
    capped: bool = False


def assess(health: Health, when: Thresholds = DEFAULT_THRESHOLDS) -> Health:
    """The health with its verdict and reasons."""
    return _with_reasons(health, [*_job_concerns(health, when), *_configuration_concerns(health, when)])


def with_concerns(health: Health, more: Sequence[Concern]) -> Health:
    """The health with further concerns, those of the database itself."""
    return _with_reasons(health, [*health.reasons, *more])


def _with_reasons(health: Health, reasons: Sequence[Concern]) -> Health:
    levels = {reason.level for reason in reasons}
    verdict: Verdict = "critical" if "critical" in levels else "warn" if "warn" in levels else "ok"
    ordered = sorted(reasons, key=lambda reason: ("critical", "warn", "advice").index(reason.level))
    return replace(health, verdict=verdict, reasons=tuple(ordered))


def _job_concerns(health: Health, when: Thresholds) -> Iterator[Concern]:
    age = health.oldest_queued_age_s  # None if no job waits, or all that wait are paused
    if not health.lease_active:
        yield from _without_worker(health, when)
    late = _level(age, when.oldest_warn, when.oldest_critical)
    if late is not None and health.lease_active:
        yield Concern(
            "oldest_waits",
            late,
            f"the oldest waiting job has waited {age:.0f} s",
            "Find the reason: holdfast jobs list --state queued, then holdfast why ID."
            " Start more workers if all are busy.",
        )
    if when.backlog_warn is not None and health.backlog >= when.backlog_warn:
        yield _warning("backlog", f"{_many(health.backlog)} jobs wait", "Start more workers, or pause some queues.")
    if health.unserved and health.lease_active:
        yield _unserved(health)
    if health.unserved_executors:
        labels = ", ".join(health.unserved_executors[:10])
        yield _warning(
            "unserved_executors",
            f"jobs wait for executors that no running worker has as its label: {labels}",
            f"Start one: holdfast worker MODULE:APP --executor {health.unserved_executors[0]}",
        )
    if health.unserved_versions:
        names = ", ".join(health.unserved_versions[:10])
        yield _warning(
            "unserved_versions",
            f"jobs are pinned to versions of the application that no running worker has: {names}",
            "Start workers of these versions, or move the jobs: holdfast versions move VERSION --to VERSION",
        )
    if health.held:
        yield _warning(
            "held_jobs",
            f"{_counted(health.held, 'job is', 'jobs are')} held: the recorded steps fit no code that has been tried",
            "Deploy code that fits them. See both sequences of steps: holdfast versions held",
        )
    if health.long_running:
        yield _warning(
            "long_running",
            f"{_counted(len(health.long_running), 'job runs', 'jobs run')} much longer than usual: "
            + "; ".join(job.says for job in health.long_running[:5]),
            "The handler may hang: see its last report with holdfast jobs show ID. Cancel it, or stop its worker:"
            " holdfast workers stop ID. Set a timeout for the kind.",
        )
    if when.dead_letters_warn is not None and health.dead_letter_open >= when.dead_letters_warn:
        letters = _counted(health.dead_letter_open, "dead letter waits", "dead letters wait")
        fix = "See them by cause: holdfast dead-letters list"
        yield _warning("dead_letters", f"{letters} to be redriven or discarded", fix)


def _without_worker(health: Health, when: Thresholds) -> Iterator[Concern]:
    """Only warnings at first: an app that uses ticks has no worker between them."""
    ages = [age for age in (health.oldest_queued_age_s, health.oldest_due_age_s) if age is not None]
    if ages:
        waiting = min(health.backlog + health.due, CAP)
        yield Concern(
            "no_worker",
            _level(max(ages), None, when.oldest_warn) or "warn",
            f"{_counted(waiting, 'job waits', 'jobs wait')} and no worker is running",
            "Start one: holdfast worker MODULE:APP",
        )
    age = health.expired_lease_age_s
    if health.in_progress and age is not None:
        yield Concern(
            "expired_leases",
            _level(age, None, when.oldest_warn) or "warn",
            f"{_counted(health.in_progress, 'job is', 'jobs are')} claimed by a worker whose lease expired"
            f" {age:.0f} s ago, and no worker is running",
            "Start one, which takes over: holdfast worker MODULE:APP",
        )


def _unserved(health: Health) -> Concern:
    problems = [f"no running worker serves queue {queue}" for queue in health.unserved_queues[:10]]
    kinds = [f"{kind} (in queue {queue})" for queue, kind in health.unserved if queue not in health.unserved_queues]
    if kinds:
        problems.append(f"no running worker has a handler for {', '.join(kinds[:10])}")
    fix = "Start a worker that has a handler for the kind and serves the queue, or cancel the jobs."
    if not kinds:
        fix = f"Start one: holdfast worker MODULE:APP --queues {','.join(health.unserved_queues[:10])}"
    return _warning("unserved_kinds", f"jobs wait, and {' and '.join(problems)}", fix)


def _configuration_concerns(health: Health, when: Thresholds) -> Iterator[Concern]:
    if health.paused:
        yield _warning("paused", "; ".join(health.paused[:10]), "See: holdfast pauses. Resume: holdfast resume")
    if when.parked_warn is not None and health.parked >= when.parked_warn:
        yield _warning(
            "limits_hold_many",
            f"{_many(health.parked)} jobs are held back by limits or pauses",
            "See which: holdfast limits list, holdfast pauses",
        )
    if health.approvals_overdue:
        yield _warning(
            "approvals_overdue",
            f"{_counted(health.approvals_overdue, 'approval is', 'approvals are')} overdue",
            "See them: holdfast approvals list",
        )
    if health.schedules_late:
        yield _warning(
            "schedules_late",
            f"schedules have not fired in time: {', '.join(health.schedules_late[:10])}",
            "A worker with the kind fires them: holdfast schedules list, holdfast schedules show NAME",
        )
    if health.behind:
        yield _warning(
            "consumers_behind",
            f"behind the ledger, or failing: {', '.join(health.behind[:10])}",
            "See: holdfast consumers list, holdfast subscriptions list",
        )
    if _level(health.unsealed_age_s, when.unsealed_warn, None) is not None:
        yield _warning(
            "ledger_unsealed",
            f"the oldest unsealed event is {health.unsealed_age_s:.0f} s old: changes of it cannot be detected",
            "Workers seal the ledger: start one, or seal now: holdfast audit seal",
        )
    if health.retention_held:
        yield _warning(
            "retention_held",
            "jobs past their retention cannot be purged, because these have not read their events: "
            + ", ".join(health.retention_held[:10]),
            "Let them catch up, or remove them: holdfast consumers list, holdfast subscriptions list",
        )


def _warning(code: str, says: str, fix: str) -> Concern:
    return Concern(code, "warn", says, fix)


def _level(value: float | None, warn: float | None, critical: float | None) -> Level | None:
    if value is not None and critical is not None and value > critical:
        return "critical"
    return "warn" if value is not None and warn is not None and value > warn else None


# --- concerns of the database itself, with numbers from the stores ---


def weak_setting(says: str, *, corrupts: bool) -> Concern:
    return Concern(
        "weak_durability",
        "critical" if corrupts else "warn",
        f"{says}: accepted jobs can be lost if the machine fails",
        "Change the setting: holdfast doctor shows which one.",
    )


def old_transaction(age: float, when: Thresholds) -> Concern | None:
    level = _level(age, when.transaction_warn, when.transaction_critical)
    return level and Concern(
        "old_transaction",
        level,
        f"a transaction has been open for {age:.0f} s: dead rows since then cannot be vacuumed, and claims become slow",
        "Find it in pg_stat_activity (xact_start, backend_xmin), and end it: select pg_terminate_backend(pid)",
    )


def large_log(size: int, when: Thresholds) -> Concern | None:
    if when.wal_warn is None or size < when.wal_warn:
        return None
    return Concern(
        "wal_large",
        "warn",
        f"the write-ahead log has {size / 1e6:.0f} MB",
        "A long read transaction prevents the checkpoint: find the process and end it.",
    )


def full_disk(free: int, when: Thresholds) -> Concern | None:
    if when.disk_warn is None or free > when.disk_warn:
        return None
    return Concern("disk_full", "critical", f"the disk has {free / 1e6:.0f} MB left", "Free disk space.")


def clock_skew(seconds: float, when: Thresholds) -> Concern | None:
    if when.skew_warn is None or abs(seconds) < when.skew_warn:
        return None
    return Concern(
        "clock_skew",
        "warn",
        f"the clocks of this machine and of the database are {abs(seconds):.1f} s apart",
        "Synchronize both with NTP. Holdfast uses the clock of the database.",
    )


def powerful_role(says: str) -> Concern:
    return Concern(
        "role_too_powerful",
        "advice",
        says,
        "Run with a role that was only granted holdfast_executor: see the guide on health.",
    )


def _many(count: int) -> str:
    return f"{CAP:,} or more" if count >= CAP else f"{count:,}"


def _counted(count: int, one: str, more: str) -> str:
    return f"{_many(count)} {one if count == 1 else more}"


def _whole(value: str, name: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) < 10):
        raise InvalidSetting(f"{name} must be a number, not {value!r}", code="unknown_option")
    return int(value)
