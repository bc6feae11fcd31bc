"""Measure the load of other programs on the machine, wait for calm, and record it beside each figure.

The load of others is the CPU time of all processes less that of this run and its children. A disturbed round can be
repeated; the rule is the same for every subject and does not depend on figures.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.console import note
from bench.peers.bench import Figures
from bench.peers.meters import cpu_seconds

CALM = 0.15  # of all cores
_TICK = os.sysconf("SC_CLK_TCK")


def _busy() -> float:
    """CPU seconds of the whole machine: user, nice, system, interrupts, stolen. Waiting for disks is idle."""
    fields = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (fields[0] + fields[1] + fields[2] + sum(fields[5:8])) / _TICK


class Watch:
    """Starts when created; ``share`` is the CPU time of others since then, as a fraction of all cores."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._others = _busy() - cpu_seconds(os.getpid())

    def share(self) -> float:
        used = _busy() - cpu_seconds(os.getpid()) - self._others
        return max(0.0, used / (time.monotonic() - self._at) / (os.cpu_count() or 1))


@dataclass(frozen=True)
class CalmWait:
    """How long to wait for calm before a measurement, and how often to repeat a disturbed one."""

    seconds: float = 0.0
    retakes: int = 0

    def wait(self) -> None:
        deadline = time.monotonic() + self.seconds
        while time.monotonic() < deadline:
            watch = Watch()
            time.sleep(0.5)
            if watch.share() <= CALM:
                return

    def measure(self, work: Callable[[], Figures]) -> Figures:
        """Return the calmest attempt, with the load of others among its figures."""
        takes: list[Figures] = []
        for turn in range(1 + self.retakes):
            self.wait()
            watch = Watch()
            figures = work()
            takes.append({**figures, "others": watch.share()})
            if takes[-1]["others"] <= CALM:
                break
            if turn < self.retakes:
                note(f"others used {takes[-1]['others']:.0%} of the machine: again")
        return min(takes, key=lambda each: each["others"])
