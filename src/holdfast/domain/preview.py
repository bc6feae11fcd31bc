"""What a schedule will do: its next times as the clock on the wall shows them, and what a change of the clock does to
them. Pure; made for people, never used to decide."""

from __future__ import annotations

import itertools
import zoneinfo
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cronsim import CronSim

from holdfast.domain.timing import Timing, in_zone, is_fixed, zone_of

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
