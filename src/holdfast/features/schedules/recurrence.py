"""Timing of schedules: cron expressions in a time zone, intervals, single times, previews. Pure: the caller has the
clock.

There are two sorts of cron expressions, as in Debian's cron. One that fixes the minute and the hour (``30 2 * * *``)
follows the local clock: a time that daylight saving skips fires at the first instant after the gap, and a time that
occurs twice fires the first time only. One with a star in either field (``*/15 * * * *``) fires whenever the local
clock shows such a time, twice if it occurs twice. An interval ignores daylight saving time.
"""

from __future__ import annotations

import itertools
import re
import zoneinfo
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, Literal

from cronsim import CronSim, CronSimError

from holdfast.engine.units import seconds
from holdfast.errors import InvalidSetting

TEXT_LIMIT: Final = 200
ZONE_LIMIT: Final = 100
SHORTEST, LONGEST = timedelta(seconds=1), timedelta(days=3660)
NAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_SECOND: Final = timedelta(seconds=1)
_EVERY: Final = re.compile(r"every\s+(\S.*)", re.IGNORECASE)
_AT: Final = re.compile(r"at\s+(\S.*)", re.IGNORECASE)
_FIX: Final = 'For example "0 9 * * MON-FRI", "@daily", "every 90s", "at 2027-01-31 09:00".'


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule fires. ``text`` and ``zone`` are the input; the rest is parsed from them."""

    text: str
    zone: str
    sort: Literal["cron", "every", "at"]
    cron: str = ""
    every: timedelta = timedelta(0)
    at: datetime | None = None

    @classmethod
    def of(cls, text: object, zone: object = "UTC") -> Timing:
        """Parse and check a timing. It must fire at least once. A number of seconds or a timedelta is an interval."""
        if isinstance(text, int | float | timedelta) and not isinstance(text, bool):
            length = seconds(text, "interval")
            text = f"every {int(length) if length.is_integer() else length}s"
        if not isinstance(text, str) or not text.strip() or len(text) > TEXT_LIMIT:
            got = "" if isinstance(text, str) else f", not {type(text).__name__}"
            raise _invalid(f"the times of a schedule must be text of 1 to {TEXT_LIMIT} characters{got}")
        key = zone_of(zone).key
        normalized = " ".join(text.split())
        if every := _EVERY.fullmatch(normalized):
            span = timedelta(seconds=seconds(every.group(1), "duration"))
            if not SHORTEST <= span <= LONGEST:
                raise _invalid("an interval is from one second to ten years")
            return cls(normalized, key, "every", every=span)
        if at := _AT.fullmatch(normalized):
            return cls(normalized, key, "at", at=_single(at.group(1), key))
        return cls(normalized, key, "cron", cron=_expression(normalized, key))

    def after(self, moment: datetime, anchor: datetime) -> Iterator[datetime]:
        """The times after ``moment``, in UTC and ascending. Intervals count from ``anchor``."""
        if self.sort == "at":
            assert self.at is not None
            return iter((self.at,) if self.at > moment else ())
        if self.sort == "every":
            return _steps(self.every, moment, anchor)
        return _fires(self.cron, zone_of(self.zone), moment)

    def next(self, moment: datetime, anchor: datetime) -> datetime | None:
        return next(self.after(moment, anchor), None)

    def last(self, since: datetime, until: datetime, anchor: datetime, most: int) -> list[datetime]:
        """The last ``most`` times from ``since`` to ``until``, both included, earliest first.

        The search uses windows before ``until``, each twice as long: a missed year costs no more than the requested
        times.
        """
        window = timedelta(hours=1)
        while True:
            begin = max(since, until - window) - timedelta(microseconds=1)
            times: list[datetime] = []
            for moment in self.after(begin, anchor):
                if moment > until:
                    break
                times.append(moment)
            if len(times) >= most or until - window <= since:
                return times[-most:]
            window *= 2

    @property
    def words(self) -> str:
        """The timing in words."""
        if self.sort == "at":
            assert self.at is not None
            return f"once, on {self.at.astimezone(zone_of(self.zone)):%Y-%m-%d at %H:%M:%S}"
        if self.sort == "every":
            return f"every {_span(self.every)}"
        return _explained(self.cron)


@lru_cache(maxsize=4096)
def _explained(cron: str) -> str:
    """Cached: a list shows it in each of its rows."""
    text: str = CronSim(cron, datetime(2000, 1, 1)).explain()
    return text


def zone_of(name: object) -> zoneinfo.ZoneInfo:
    """The time zone of this name. The error distinguishes an unknown name from a machine without a time zone
    database."""
    if isinstance(name, str) and name and len(name) <= ZONE_LIMIT:
        try:
            return zoneinfo.ZoneInfo(name)  # cached by zoneinfo
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            if not zoneinfo.available_timezones():
                raise InvalidSetting(
                    "this machine has no time zone database",
                    code="no_zone_database",
                    fix="Install one: pip install tzdata",
                ) from None
    raise InvalidSetting(
        f"unknown time zone {name!r}", code="unknown_zone", fix="Use a name such as UTC or Europe/Paris."
    )


def in_zone(wall: datetime, zone: zoneinfo.ZoneInfo) -> datetime:
    """The instant, in UTC, at which the local clock shows this time: the first one if it occurs twice, and the first
    instant after the gap if daylight saving skips it."""
    early = wall.replace(tzinfo=zone, fold=0)
    instant = early.astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == wall:
        return instant
    # In a gap, fold 0 (the offset before it) gives an instant after the gap, and fold 1 one before it.
    low, high = wall.replace(tzinfo=zone, fold=1).astimezone(UTC), instant
    offset = low.astimezone(zone).utcoffset()
    while high - low > _SECOND:
        middle = low + timedelta(seconds=int((high - low).total_seconds()) // 2)
        low, high = (middle, high) if middle.astimezone(zone).utcoffset() == offset else (low, middle)
    return high


def is_fixed(cron: str) -> bool:
    """Whether a cron expression fixes the minute and the hour, and so follows the local clock."""
    minute, hour = cron.split()[-5:-3]
    return not minute.startswith("*") and not hour.startswith("*")


def _fires(cron: str, zone: zoneinfo.ZoneInfo, moment: datetime) -> Iterator[datetime]:
    if zone.key == "UTC":
        yield from _times(CronSim(cron, moment.astimezone(UTC)))
        return
    latest = moment
    if is_fixed(cron):
        # Start earlier: a time that a gap skipped fires after the gap.
        wall = moment.astimezone(zone).replace(tzinfo=None) - timedelta(days=2)
        for local in _times(CronSim(cron, wall)):
            if (instant := in_zone(local, zone)) > latest:
                latest = instant
                yield instant
        return
    simulation = CronSim(cron, moment.astimezone(zone))
    for local in _times(simulation):
        instant = local.astimezone(UTC)
        if instant > latest and _shows(simulation, instant.astimezone(zone)):
            latest = instant
            yield instant


def _times(simulation: CronSim) -> Iterator[datetime]:
    """The times of a simulation. It ends after fifty years without a match, or at the end of the calendar."""
    while True:
        try:
            yield next(simulation)
        except (StopIteration, OverflowError, ValueError):
            return


def _shows(simulation: CronSim, local: datetime) -> bool:
    """Whether the local time matches the expression: some zones have skipped whole days."""
    return (
        local.second in simulation.seconds
        and local.minute in simulation.minutes
        and local.hour in simulation.hours
        and local.month in simulation.months
        and simulation.match_day(local.date())
    )


def _steps(every: timedelta, moment: datetime, anchor: datetime) -> Iterator[datetime]:
    count = max(1, (moment - anchor) // every + 1)
    try:
        while True:
            yield anchor + count * every
            count += 1
    except OverflowError:
        return


def _expression(text: str, zone: str) -> str:
    if text.startswith("@"):
        try:
            return NAMES[text.lower()]
        except KeyError:
            raise _invalid(f"unknown nickname {text}; use one of {', '.join(NAMES)}") from None
    cron = text.upper()
    try:
        _explained(cron)
    except (CronSimError, ValueError, AssertionError, KeyError, IndexError) as error:
        raise _invalid(f"{text!r} is not a valid cron expression of five or six fields: {error}") from None
    if next(_fires(cron, zone_of(zone), datetime(2024, 1, 1, tzinfo=UTC)), None) is None:
        raise _invalid(f"{text!r} never fires")
    return cron


def _single(text: str, zone: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _invalid(f"{text!r} is not a time") from None
    try:
        instant = moment.astimezone(UTC) if moment.tzinfo is not None else in_zone(moment, zone_of(zone))
        instant.astimezone(zone_of(zone))  # must be displayable
    except OverflowError:
        raise _invalid(f"{text!r} is not within the years 1 to 9999") from None
    return instant


def _span(span: timedelta) -> str:
    rest, parts = span.total_seconds(), []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        whole, rest = divmod(rest, size)
        if whole:
            parts.append(f"{whole:.0f} {unit}")
    if rest:
        parts.append(f"{rest:g} s")
    return " ".join(parts)


def _invalid(why: str) -> InvalidSetting:
    return InvalidSetting(why, code="invalid_schedule", fix=_FIX)


MOST = 1000


@dataclass(frozen=True, slots=True)
class Coming:
    """A future time of a schedule. ``local`` has the offset of its zone; ``warning`` explains a clock change."""

    at: datetime
    local: datetime
    warning: str | None = None


def preview(timing: Timing, moment: datetime, anchor: datetime, count: int = 10) -> list[Coming]:
    """The next ``count`` times after ``moment``."""
    zone = zone_of(timing.zone)
    times = list(itertools.islice(timing.after(moment, anchor), max(0, min(count, MOST))))
    warnings = _warnings(timing, zone, moment, times) if timing.sort == "cron" and times else {}
    return [Coming(at, at.astimezone(zone), warnings.get(at)) for at in times]


def _warnings(
    timing: Timing, zone: zoneinfo.ZoneInfo, moment: datetime, times: Sequence[datetime]
) -> dict[datetime, str]:
    """Warnings by time. A time that the clock skips is reported at the next one that fires."""
    notes: dict[datetime, list[str]] = {}
    fixed = is_fixed(timing.cron)
    for wall in _walls(timing.cron, zone, moment, times[-1]):
        instant, label = in_zone(wall, zone), f"{wall:%H:%M} on {wall:%Y-%m-%d}"
        if instant.astimezone(zone).replace(tzinfo=None) != wall:
            following = next((at for at in times if at >= instant), None)
            if following is not None and fixed and following == instant:
                _add(notes, following, f"{label} is left out by the clock: moved to {following.astimezone(zone):%H:%M}")
            elif following is not None:
                _add(notes, following, f"{label} is left out by the clock: skipped")
        elif fixed and _comes_twice(wall, zone) and instant in times:
            _add(notes, instant, f"{label} comes twice: fires the first time only")
        elif _comes_twice(wall, zone):
            for at in (instant, wall.replace(tzinfo=zone, fold=1).astimezone(UTC)):
                if at in times:
                    _add(notes, at, f"{label} comes twice: fires both times")
    return {at: "; ".join(texts) for at, texts in notes.items()}


def _walls(cron: str, zone: zoneinfo.ZoneInfo, moment: datetime, last: datetime) -> Iterator[datetime]:
    """The local times that the expression names, ignoring clock changes, around the previewed period."""
    begin = moment.astimezone(zone).replace(tzinfo=None) - timedelta(hours=3)
    end = last.astimezone(zone).replace(tzinfo=None) + timedelta(hours=3)
    walls = itertools.takewhile(lambda wall: wall <= end, CronSim(cron, begin))
    bounded = itertools.islice(walls, 20 * MOST)
    return (wall for wall in bounded if in_zone(wall, zone) > moment or _comes_twice(wall, zone))


def _comes_twice(wall: datetime, zone: zoneinfo.ZoneInfo) -> bool:
    first, second = wall.replace(tzinfo=zone, fold=0), wall.replace(tzinfo=zone, fold=1)
    return second.utcoffset() != first.utcoffset() and first.astimezone(UTC) < second.astimezone(UTC)


def _add(notes: dict[datetime, list[str]], at: datetime, note: str) -> None:
    notes.setdefault(at, []).append(note)
