"""What can be wrong with a SQLite deployment without anything failing yet."""

from __future__ import annotations

import os
import shutil
import sqlite3

from holdfast.features.health.model import Concern, Thresholds, full_disk, large_log, weak_setting
from holdfast.stores.base import Finding, SchemaStatus

WAL_ALARM = 256 * 1024 * 1024
DISK_ALARM = 200 * 1024 * 1024
FULL = 2


def conditions(connection: sqlite3.Connection, path: str, when: Thresholds) -> list[Concern]:
    """The part of it that can be asked for every few seconds."""
    if path == ":memory:":
        return []  # which is said by the doctor, and known to whoever opened it
    synchronous, mode = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode"))
    weak = [f"synchronous = {synchronous}"] if synchronous < FULL else []
    weak += [f"journal_mode = {mode}"] if mode != "wal" else []
    log = os.path.getsize(path + "-wal") if os.path.exists(path + "-wal") else 0
    free = shutil.disk_usage(os.path.dirname(os.path.abspath(path))).free
    found = [*(weak_setting(each, corrupts=False) for each in weak), large_log(log, when), full_disk(free, when)]
    return [concern for concern in found if concern is not None]


def diagnose(connection: sqlite3.Connection, path: str, status: SchemaStatus) -> list[Finding]:
    def pragma(name: str) -> object:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]

    synchronous = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}.get(int(str(pragma("synchronous"))), "?")
    findings = [
        Finding("library", True, f"SQLite {sqlite3.sqlite_version}"),
        Finding(
            "schema",
            status.current,
            "up to date"
            if status.current
            else f"pending: {', '.join(status.pending) or 'none'}; "
            f"from a newer release: {', '.join(status.unknown) or 'none'}",
            None if status.current else "Run: holdfast migrate",
        ),
    ]
    if path == ":memory:":
        return [
            *findings,
            Finding("durability", False, "the database is in memory", "Use a file for anything real."),
        ]
    mode = pragma("journal_mode")
    safe = mode == "wal" and synchronous in ("FULL", "EXTRA")
    findings.append(
        Finding(
            "durability",
            safe,
            f"journal_mode = {mode}, synchronous = {synchronous}",
            None if safe else "Accepted jobs can be lost in a power cut: use WAL and FULL.",
        )
    )
    sound = pragma("quick_check(1)")
    findings.append(
        Finding("integrity", sound == "ok", str(sound), None if sound == "ok" else "Restore from a backup.")
    )
    size = os.path.getsize(path + "-wal") if os.path.exists(path + "-wal") else 0
    findings.append(
        Finding(
            "write-ahead log",
            size < WAL_ALARM,
            f"{size / 1e6:.1f} MB",
            None if size < WAL_ALARM else "A long reader keeps it from being moved into the file; find and end it.",
        )
    )
    findings.append(_readers(path))
    free = shutil.disk_usage(os.path.dirname(os.path.abspath(path))).free
    findings.append(
        Finding(
            "disk",
            free > DISK_ALARM,
            f"{free / 1e9:.1f} GB free",
            None if free > DISK_ALARM else "Make room soon.",
        )
    )
    return findings


def _readers(path: str) -> Finding:
    """Who besides the owner may read the database: jobs and payloads of every tenant."""
    files = [path, *(path + suffix for suffix in ("-wal", "-shm") if os.path.exists(path + suffix))]
    modes = {each: os.stat(each).st_mode for each in files}
    if open_to_all := [each for each, mode in modes.items() if mode & 0o007]:
        return Finding(
            "file mode",
            False,
            f"every user of this machine can read {', '.join(open_to_all)}",
            f"chmod o= {' '.join(open_to_all)}",
        )
    shared = any(mode & 0o070 for mode in modes.values())
    return Finding("file mode", True, "its owner and its group can use the file" if shared else "its owner alone")
