"""A table of a program's own in the database of the jobs, written in its transactions and read from outside."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import psycopg

from tests.support.caller_connections import path_of


def by_hand(url: str) -> Any:
    """A program of its own that looks from outside."""
    if url.startswith("sqlite"):
        return closing(sqlite3.connect(path_of(url), isolation_level=None, timeout=30))
    return closing(psycopg.connect(url, autocommit=True))


def prepare_notes(url: str) -> None:
    with by_hand(url) as connection:
        connection.execute("create table note (says text unique)")


def notes(url: str) -> list[str]:
    with by_hand(url) as connection:
        return sorted(row[0] for row in connection.execute("select says from note").fetchall())
