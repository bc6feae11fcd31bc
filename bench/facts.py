"""The machine, versions and settings of a run, without which its figures cannot be compared later."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg

from bench.peers import redis
from bench.peers.backends import POSTGRES_SETTINGS, Backends
from bench.peers.catalog import Subject
from bench.peers.environments import HERE


def machine() -> dict[str, Any]:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "holdfast": version("holdfast"),
        "commit": _commit(),
    }


def servers(backends: Backends, subjects: list[Subject]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    used = {subject.backend for subject in subjects}
    if "postgres" in used:
        with psycopg.connect(backends.postgres.dsn()) as connection:
            row = connection.execute("show server_version").fetchone()
        found["postgres"] = {"version": row[0] if row else "?", "settings": POSTGRES_SETTINGS}
    if "redis" in used and backends.missing("redis") is None:
        found["redis"] = {"version": backends.redis.version(), "settings": redis.SETTINGS}
    return found


def pinned(subject: Subject) -> str:
    """Return the version that the requirements of the peer pin."""
    if subject.runtime == "project":
        return version(subject.package)
    if subject.runtime == "node":
        pins: dict[str, str] = json.loads((HERE / subject.folder / "package.json").read_text())["dependencies"]
        return pins[subject.package]
    for line in (HERE / subject.folder / "requirements.txt").read_text().splitlines():
        name, _, number = line.partition("==")
        if name.lower() == subject.package:
            return number
    return "?"


def _commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
