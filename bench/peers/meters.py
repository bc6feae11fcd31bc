"""CPU time and memory of a process, from the kernel, and the current speed of the disk."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    # The name in parentheses may contain spaces; the numbers start after it.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += [int(child) for child in (task / "children").read_text().split()]
        except FileNotFoundError:
            continue
    return found


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process, its living descendants and those it has waited for."""
    try:
        fields = _stat(pid)
        own = sum(int(fields[index]) for index in (11, 12, 13, 14)) / _TICK
        return own + sum(cpu_seconds(child) for child in _children(pid))
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def resident_mib(pid: int) -> float:
    """VmRSS of a process and its descendants."""
    total = 0.0
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1]) / 1024
        return total + sum(resident_mib(child) for child in _children(pid))
    except (FileNotFoundError, ProcessLookupError):
        return total


def syncs_per_second(folder: Path, seconds: float = 0.25) -> float:
    """Write and sync 8 kB repeatedly. The rate distinguishes a slow queue from a busy disk."""
    with tempfile.TemporaryFile(dir=folder) as file:
        done, start = 0, time.monotonic()
        while time.monotonic() - start < seconds:
            os.pwrite(file.fileno(), b"x" * 8192, 0)
            os.fdatasync(file.fileno())
            done += 1
        return done / (time.monotonic() - start)
