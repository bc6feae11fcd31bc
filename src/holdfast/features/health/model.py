"""How the work stands (DP-19): what was counted, and a verdict with its reasons. Pure.

``warn`` means that somebody should look today, ``critical`` that work is not done or may be lost. Each reason has a
stable code, words, and what to do; ``advice`` is said and changes no verdict. The runbooks (docs/runbooks.md) go by the
codes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

from holdfast.engine.units import in_bytes, seconds
from holdfast.errors import InvalidSetting

Verdict = Literal["ok", "warn", "critical"]
Level = Literal["advice", "warn", "critical"]

CAP: Final = 10_000
"""How many of anything are counted at most: a look must not cost more the more there is."""


CODES: Final = (
    *(
        "no_worker",
        "oldest_waits",
        "backlog",
        "unserved_kinds",
        "unserved_executors",
        "dead_letters",
        "paused",
        "limits_hold_many",
    ),
    *("approvals_overdue", "schedules_late", "consumers_behind", "weak_durability", "old_transaction", "wal_large"),
    *("disk_full", "clock_skew", "role_too_powerful"),
)
"""Every code there is, for those who watch them all."""


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
    """From where on something is a reason; None: it is none. Spans are in seconds."""

    @classmethod
    def of(cls, said: Iterable[str]) -> Thresholds:
        """As people write them: ``oldest_warn=10m``, ``dead_letters_warn=5``, ``wal_warn=1GB``, ``skew_warn=none``."""
        values: dict[str, Any] = {}
        kinds = {each.name: str(each.type) for each in fields(cls)}
        for text in said:
            name, _, value = text.partition("=")
            if name not in kinds or not value:
                raise InvalidSetting(
                    f"{text!r} is not a threshold",
                    code="unknown_option",
                    fix=f"Write NAME=VALUE with one of {', '.join(kinds)}.",
                )
            if value == "none":
                values[name] = None
            elif kinds[name].startswith("float"):
                values[name] = seconds(float(value) if value.replace(".", "", 1).isdecimal() else value, name)
            else:
                values[name] = in_bytes(value, name) if name in ("wal_warn", "disk_warn") else _whole(value, name)
        return cls(**values)

    oldest_warn: float | None = 300.0
    """Wait of the oldest job that may start."""
    oldest_critical: float | None = 3600.0
    backlog_warn: int | None = None
    """How many wait; counted up to 10,000."""
    dead_letters_warn: int | None = 1
    schedule_late_warn: float | None = 60.0
    behind_warn: int | None = 5000
    """Events that a consumer or a subscription has not read; counted up to 10,000."""
    unsealed_warn: float | None = 3600.0
    """How long an event of the ledger is not sealed."""
    parked_warn: int | None = 1000
    """Jobs that limits hold back."""
    transaction_warn: float | None = 300.0
    """How long a transaction of anybody's is open: what died meanwhile cannot be cleaned up."""
    transaction_critical: float | None = 3600.0
    wal_warn: int | None = 256 * 1024 * 1024
    disk_warn: int | None = 200 * 1024 * 1024
    skew_warn: float | None = 5.0
    """How far the clocks of this machine and of the store are apart."""


DEFAULT_THRESHOLDS: Final = Thresholds()


def check_thresholds(when: object) -> Thresholds:
    if not isinstance(when, Thresholds):
        raise InvalidSetting(f"when must be Thresholds, not {type(when).__name__}", code="invalid_setting")
    return when


@dataclass(frozen=True, slots=True)
class Health:
    """Counts, each up to ``CAP`` (``capped``: one of them is higher), and the verdict with its reasons."""

    backlog: int
    scheduled: int
    in_progress: int
    dead_letter_open: int
    oldest_queued_age_s: float | None
    """Age of the oldest job that may start, so without paused queues."""
    lease_active: int
    waiting_kinds: tuple[str, ...]
    """Kinds of the jobs at the head of the queues."""
    verdict: Verdict
    reasons: tuple[Concern, ...] = field(default=())
    approvals_open: int = 0
    """Questions that wait for people; that they do is no reason, unless they are overdue."""
    oldest_approval_age_s: float | None = None
    workers: int = 0
    """Workers that reported their queues and kinds."""
    unserved: tuple[tuple[str, str], ...] = ()
    """Queues and kinds with waiting jobs that no live worker serves."""
    unserved_queues: tuple[str, ...] = ()
    """Queues where jobs wait and that no running worker serves, whatever the kind."""
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
    capped: bool = False


def judged(found: Health, when: Thresholds = DEFAULT_THRESHOLDS) -> Health:
    """With its verdict and reasons."""
    return _with(found, [concern for look in _LOOKS if (concern := look(found, when)) is not None])


def with_concerns(found: Health, more: Sequence[Concern]) -> Health:
    """The same, with what is to be said of the database itself."""
    return _with(found, [*found.reasons, *more])


def _with(found: Health, reasons: Sequence[Concern]) -> Health:
    levels = {reason.level for reason in reasons}
    verdict: Verdict = "critical" if "critical" in levels else "warn" if "warn" in levels else "ok"
    first = sorted(reasons, key=lambda reason: ("critical", "warn", "advice").index(reason.level))
    return replace(found, verdict=verdict, reasons=tuple(first))


def _no_worker(found: Health, when: Thresholds) -> Concern | None:
    if not found.backlog or found.lease_active or found.oldest_queued_age_s is None:  # or all that waits is paused
        return None
    # Where a tick comes by now and then nobody is there in between.
    late = _level(found.oldest_queued_age_s, None, when.oldest_warn)
    return Concern(
        "no_worker",
        late or "warn",
        f"{_counted(found.backlog, 'job waits', 'jobs wait')} and no worker is alive",
        "Start one: holdfast worker MODULE:APP",
    )


def _oldest(found: Health, when: Thresholds) -> Concern | None:
    age = found.oldest_queued_age_s
    level = _level(age, when.oldest_warn, when.oldest_critical)
    if level is None or age is None or not found.lease_active:
        return None
    return Concern(
        "oldest_waits",
        level,
        f"the oldest waiting job has waited {age:.0f} s",
        "Ask why: holdfast jobs list --state queued, then holdfast why ID. Start more workers if all are busy.",
    )


def _backlog(found: Health, when: Thresholds) -> Concern | None:
    if when.backlog_warn is None or found.backlog < when.backlog_warn:
        return None
    return Concern(
        "backlog", "warn", f"{_many(found.backlog)} jobs wait", "Start more workers, or pause what can wait."
    )


def _unserved(found: Health, when: Thresholds) -> Concern | None:
    if not found.unserved or not found.lease_active:
        return None
    said = [f"no running worker serves queue {queue}" for queue in found.unserved_queues[:10]]
    kinds = [f"{kind} (in queue {queue})" for queue, kind in found.unserved if queue not in found.unserved_queues]
    if kinds:
        said.append(f"no running worker has a handler for {', '.join(kinds[:10])}")
    fix = "Start a worker that has a handler for the kind and serves the queue, or cancel the jobs."
    if not kinds:
        fix = f"Start one: holdfast worker MODULE:APP --queues {','.join(found.unserved_queues[:10])}"
    return Concern("unserved_kinds", "warn", f"jobs wait, and {' and '.join(said)}", fix)


def _no_executor(found: Health, when: Thresholds) -> Concern | None:
    if not found.unserved_executors or not found.lease_active:
        return None
    return Concern(
        "unserved_executors",
        "warn",
        f"jobs wait for executors that no running worker has as its label: {', '.join(found.unserved_executors[:10])}",
        f"Start one: holdfast worker MODULE:APP --executor {found.unserved_executors[0]}",
    )


def _dead(found: Health, when: Thresholds) -> Concern | None:
    if when.dead_letters_warn is None or found.dead_letter_open < when.dead_letters_warn:
        return None
    return Concern(
        "dead_letters",
        "warn",
        f"{_counted(found.dead_letter_open, 'dead letter waits', 'dead letters wait')} to be redriven or discarded",
        "See them: holdfast jobs list --state dead_letter",
    )


def _paused(found: Health, when: Thresholds) -> Concern | None:
    if not found.paused:
        return None
    return Concern("paused", "warn", "; ".join(found.paused[:10]), "See: holdfast pauses. Go on: holdfast resume")


def _parked(found: Health, when: Thresholds) -> Concern | None:
    if when.parked_warn is None or found.parked < when.parked_warn:
        return None
    return Concern(
        "limits_hold_many",
        "warn",
        f"{_many(found.parked)} jobs are held back by limits or pauses",
        "See which: holdfast limits list, holdfast pauses",
    )


def _approvals(found: Health, when: Thresholds) -> Concern | None:
    if not found.approvals_overdue:
        return None
    return Concern(
        "approvals_overdue",
        "warn",
        f"{_counted(found.approvals_overdue, 'question is', 'questions are')} past the time by which to decide",
        "See them: holdfast approvals list",
    )


def _schedules(found: Health, when: Thresholds) -> Concern | None:
    if not found.schedules_late:
        return None
    return Concern(
        "schedules_late",
        "warn",
        f"schedules have not fired in time: {', '.join(found.schedules_late[:10])}",
        "A worker fires them, one that knows the kind: holdfast schedules list, holdfast schedules show NAME",
    )


def _behind(found: Health, when: Thresholds) -> Concern | None:
    if not found.behind:
        return None
    return Concern(
        "consumers_behind",
        "warn",
        f"behind the ledger, or failing: {', '.join(found.behind[:10])}",
        "See: holdfast consumers list, holdfast subscriptions list",
    )


def _unsealed(found: Health, when: Thresholds) -> Concern | None:
    if _level(found.unsealed_age_s, when.unsealed_warn, None) is None:
        return None
    return Concern(
        "ledger_unsealed",
        "warn",
        f"the oldest event that is not sealed is {found.unsealed_age_s:.0f} s old: until then nobody can prove it",
        "Workers seal beside their jobs: start one, or seal now: holdfast audit seal",
    )


def _retained(found: Health, when: Thresholds) -> Concern | None:
    if not found.retention_held:
        return None
    return Concern(
        "retention_held",
        "warn",
        f"jobs are past their retention and cannot go, since these have not read their ledger: "
        f"{', '.join(found.retention_held[:10])}",
        "Let them read on, or remove them: holdfast consumers list, holdfast subscriptions list",
    )


_LOOKS: Final = (
    *(_no_worker, _oldest, _backlog, _unserved, _no_executor, _dead, _paused),
    *(_parked, _approvals, _schedules, _behind, _unsealed, _retained),
)


def _level(value: float | None, warn: float | None, critical: float | None) -> Level | None:
    if value is not None and critical is not None and value > critical:
        return "critical"
    return "warn" if value is not None and warn is not None and value > warn else None


# --- of the database itself; the stores know the numbers ---


def weak_setting(says: str, *, corrupts: bool) -> Concern:
    return Concern(
        "weak_durability",
        "critical" if corrupts else "warn",
        f"{says}: what was accepted can be lost when the machine fails",
        "Set it back: holdfast doctor says which and where.",
    )


def old_transaction(age: float, when: Thresholds) -> Concern | None:
    level = _level(age, when.transaction_warn, when.transaction_critical)
    return level and Concern(
        "old_transaction",
        level,
        f"a transaction has been open for {age:.0f} s: what died since cannot be cleaned up, and claims become slow",
        "Find it in pg_stat_activity (xact_start, backend_xmin), and end it: select pg_terminate_backend(pid)",
    )


def large_log(size: int, when: Thresholds) -> Concern | None:
    if when.wal_warn is None or size < when.wal_warn:
        return None
    return Concern(
        "wal_large",
        "warn",
        f"the write-ahead log has {size / 1e6:.0f} MB",
        "A long reader keeps it from being moved into the file: find and end it.",
    )


def full_disk(free: int, when: Thresholds) -> Concern | None:
    if when.disk_warn is None or free > when.disk_warn:
        return None
    return Concern("disk_full", "critical", f"the disk has {free / 1e6:.0f} MB left", "Make room.")


def clock_skew(seconds: float, when: Thresholds) -> Concern | None:
    if when.skew_warn is None or abs(seconds) < when.skew_warn:
        return None
    return Concern(
        "clock_skew",
        "warn",
        f"the clocks of this machine and of the database are {abs(seconds):.1f} s apart",
        "Have both keep time (NTP); the database's clock is the one that counts.",
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
