"""Cron, intervals, time zones, previews.

When a schedule fires: cron expressions in a time zone, intervals, single times. Pure: the caller has the clock.

Cron is of two sorts, as in Debian. One that fixes the minute and the hour (``30 2 * * *``) means what the clock on the
wall says: a time that the change to summer time leaves out is made up for at the first instant after the gap, and one
that comes twice is taken the first time. One with a star in either (``*/15 * * * *``) means whatever passes: it fires
whenever the clock on the wall shows such a time, twice where that comes twice. An interval knows no clock on a wall.
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
    """``text`` and ``zone`` are what people wrote; the rest follows from them."""

    text: str
    zone: str
    sort: Literal["cron", "every", "at"]
    cron: str = ""
    every: timedelta = timedelta(0)
    at: datetime | None = None

    @classmethod
    def of(cls, text: object, zone: object = "UTC") -> Timing:
        """As people say it, checked: it can be read, and it fires some day."""
        if not isinstance(text, str) or not text.strip() or len(text) > TEXT_LIMIT:
            raise _invalid(f"the times of a schedule are text of up to {TEXT_LIMIT} characters")
        known = zone_of(zone).key
        said = " ".join(text.split())
        if every := _EVERY.fullmatch(said):
            span = timedelta(seconds=seconds(every.group(1), "duration"))
            if not SHORTEST <= span <= LONGEST:
                raise _invalid("an interval is from one second to ten years")
            return cls(said, known, "every", every=span)
        if at := _AT.fullmatch(said):
            return cls(said, known, "at", at=_single(at.group(1), known))
        return cls(said, known, "cron", cron=_expression(said, known))

    def after(self, moment: datetime, anchor: datetime) -> Iterator[datetime]:
        """The times later than ``moment``, in UTC, each later than the one before. Intervals count from ``anchor``."""
        if self.sort == "at":
            assert self.at is not None
            return iter((self.at,) if self.at > moment else ())
        if self.sort == "every":
            return _steps(self.every, moment, anchor)
        return _fires(self.cron, zone_of(self.zone), moment)

    def next(self, moment: datetime, anchor: datetime) -> datetime | None:
        return next(self.after(moment, anchor), None)

    def last(self, since: datetime, until: datetime, anchor: datetime, most: int) -> list[datetime]:
        """The times from ``since`` to ``until``, both included: the last ``most`` of them, the earliest first.

        Found in windows before ``until``, each twice as long: a year that was missed costs no more than what is asked.
        """
        window = timedelta(hours=1)
        while True:
            begin = max(since, until - window) - timedelta(microseconds=1)
            found: list[datetime] = []
            for moment in self.after(begin, anchor):
                if moment > until:
                    break
                found.append(moment)
            if len(found) >= most or until - window <= since:
                return found[-most:]
            window *= 2

    @property
    def words(self) -> str:
        """In words, for people."""
        if self.sort == "at":
            assert self.at is not None
            return f"once, on {self.at.astimezone(zone_of(self.zone)):%Y-%m-%d at %H:%M:%S}"
        if self.sort == "every":
            return f"every {_span(self.every)}"
        return _explained(self.cron)


@lru_cache(maxsize=4096)
def _explained(cron: str) -> str:
    """Found out once: a list says it of each of its rows."""
    words: str = CronSim(cron, datetime(2000, 1, 1)).explain()
    return words


def zone_of(name: object) -> zoneinfo.ZoneInfo:
    """The zone of this name, or an error that tells a name nobody knows from a machine that knows no zones."""
    if isinstance(name, str) and name and len(name) <= ZONE_LIMIT:
        try:
            return zoneinfo.ZoneInfo(name)  # which keeps those that were asked for
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
    """The instant at which the clock on the wall shows this, in UTC: the first such, or the first after the gap that
    leaves it out."""
    early = wall.replace(tzinfo=zone, fold=0)
    instant = early.astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == wall:
        return instant
    # In a gap the offset before it (fold 0) leads to an instant behind it, the one after it (fold 1) to one before it.
    low, high = wall.replace(tzinfo=zone, fold=1).astimezone(UTC), instant
    offset = low.astimezone(zone).utcoffset()
    while high - low > _SECOND:
        middle = low + timedelta(seconds=int((high - low).total_seconds()) // 2)
        low, high = (middle, high) if middle.astimezone(zone).utcoffset() == offset else (low, middle)
    return high


def is_fixed(cron: str) -> bool:
    """Whether it fixes the minute and the hour, and so means the clock on the wall."""
    minute, hour = cron.split()[-5:-3]
    return not minute.startswith("*") and not hour.startswith("*")


def _fires(cron: str, zone: zoneinfo.ZoneInfo, moment: datetime) -> Iterator[datetime]:
    if zone.key == "UTC":
        yield from _times(CronSim(cron, moment.astimezone(UTC)))
        return
    latest = moment
    if is_fixed(cron):
        # A little earlier, for what the gap before may have put off until after it.
        wall = moment.astimezone(zone).replace(tzinfo=None) - timedelta(days=2)
        for shown in _times(CronSim(cron, wall)):
            if (instant := in_zone(shown, zone)) > latest:
                latest = instant
                yield instant
        return
    simulation = CronSim(cron, moment.astimezone(zone))
    for shown in _times(simulation):
        instant = shown.astimezone(UTC)
        if instant > latest and _shows(simulation, instant.astimezone(zone)):
            latest = instant
            yield instant


def _times(simulation: CronSim) -> Iterator[datetime]:
    """Until it gives up, which it does after fifty years without a match, or at the end of the calendar."""
    while True:
        try:
            yield next(simulation)
        except (StopIteration, OverflowError, ValueError):
            return


def _shows(simulation: CronSim, local: datetime) -> bool:
    """Whether the clock on the wall really shows what was asked for: a day that was left out has no times."""
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


def _expression(said: str, zone: str) -> str:
    if said.startswith("@"):
        try:
            return NAMES[said.lower()]
        except KeyError:
            raise _invalid(f"there is no {said}; there are {', '.join(NAMES)}") from None
    cron = said.upper()
    try:
        _explained(cron)
    except (CronSimError, ValueError, AssertionError, KeyError, IndexError) as error:
        raise _invalid(f"{said!r} is no cron expression of five or six fields: {error}") from None
    if next(_fires(cron, zone_of(zone), datetime(2024, 1, 1, tzinfo=UTC)), None) is None:
        raise _invalid(f"{said!r} never comes")
    return cron


def _single(said: str, zone: str) -> datetime:
    try:
        moment = datetime.fromisoformat(said)
    except ValueError:
        raise _invalid(f"{said!r} is no time") from None
    try:
        found = moment.astimezone(UTC) if moment.tzinfo is not None else in_zone(moment, zone_of(zone))
        found.astimezone(zone_of(zone))  # in which it is shown
    except OverflowError:
        raise _invalid(f"{said!r} is outside of the years 1 to 9999") from None
    return found


def _span(span: timedelta) -> str:
    left, parts = span.total_seconds(), []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        whole, left = divmod(left, size)
        if whole:
            parts.append(f"{whole:.0f} {unit}")
    if left:
        parts.append(f"{left:g} s")
    return " ".join(parts)


def _invalid(why: str) -> InvalidSetting:
    return InvalidSetting(why, code="invalid_schedule", fix=_FIX)


MOST = 1000


@dataclass(frozen=True, slots=True)
class Coming:
    """One time at which a schedule will fire. ``local`` has its zone's offset; ``warning`` says what is odd."""

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
    """By the time that is fired: what the clock on the wall leaves out is told where the next one fires."""
    found: dict[datetime, list[str]] = {}
    fixed = is_fixed(timing.cron)
    for wall in _walls(timing.cron, zone, moment, times[-1]):
        shown, said = in_zone(wall, zone), f"{wall:%H:%M} on {wall:%Y-%m-%d}"
        if shown.astimezone(zone).replace(tzinfo=None) != wall:
            behind = next((at for at in times if at >= shown), None)
            if behind is not None and fixed and behind == shown:
                _add(found, behind, f"{said} is left out by the clock: moved to {behind.astimezone(zone):%H:%M}")
            elif behind is not None:
                _add(found, behind, f"{said} is left out by the clock: skipped")
        elif fixed and _comes_twice(wall, zone) and shown in times:
            _add(found, shown, f"{said} comes twice: fires the first time only")
        elif _comes_twice(wall, zone):
            for at in (shown, wall.replace(tzinfo=zone, fold=1).astimezone(UTC)):
                if at in times:
                    _add(found, at, f"{said} comes twice: fires both times")
    return {at: "; ".join(notes) for at, notes in found.items()}


def _walls(cron: str, zone: zoneinfo.ZoneInfo, moment: datetime, last: datetime) -> Iterator[datetime]:
    """What the expression names on a wall whose clock is never changed, around what is shown."""
    begin = moment.astimezone(zone).replace(tzinfo=None) - timedelta(hours=3)
    end = last.astimezone(zone).replace(tzinfo=None) + timedelta(hours=3)
    named = itertools.takewhile(lambda wall: wall <= end, CronSim(cron, begin))
    bounded = itertools.islice(named, 20 * MOST)
    return (wall for wall in bounded if in_zone(wall, zone) > moment or _comes_twice(wall, zone))


def _comes_twice(wall: datetime, zone: zoneinfo.ZoneInfo) -> bool:
    first, second = wall.replace(tzinfo=zone, fold=0), wall.replace(tzinfo=zone, fold=1)
    return second.utcoffset() != first.utcoffset() and first.astimezone(UTC) < second.astimezone(UTC)


def _add(found: dict[datetime, list[str]], at: datetime, note: str) -> None:
    found.setdefault(at, []).append(note)
