"""A program's own table in the jobs database, written in transactions and read with a separate connection."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import psycopg

from tests.support.caller_connections import path_of


def connect(url: str) -> Any:
    """Open a separate autocommit connection."""
    if url.startswith("sqlite"):
        return closing(sqlite3.connect(path_of(url), isolation_level=None, timeout=30))
    return closing(psycopg.connect(url, autocommit=True))


def prepare_notes(url: str) -> None:
    with connect(url) as connection:
        connection.execute("create table note (says text unique)")


def notes(url: str) -> list[str]:
    with connect(url) as connection:
        return sorted(row[0] for row in connection.execute("select says from note").fetchall())
