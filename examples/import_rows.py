"""Import a file of 5,000 rows in batches, with a checkpoint after each. After a kill it continues at the checkpoint.

    python examples/import_rows.py                             # on a new SQLite file
    python examples/import_rows.py --url postgresql://…        # on a migrated database

The rows and the checkpoint are separate transactions. After a crash between them, the next attempt writes the last
batch again. So the primary key of a row is its number in the file, and writing it a second time changes nothing. Every
row counts once, including rows that cannot be parsed.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import holdfast

T = TypeVar("T")

ROWS, BATCH = 5_000, 250
SCRATCH = Path(os.environ.get("IMPORT_SCRATCH", "."))
URL = os.environ.get("HOLDFAST_URL", "sqlite:///import.db")
app = holdfast.App(URL, name="importer")


# --- the import ---


@app.job(timeout="5m")
def import_rows(ctx: holdfast.SyncContext, path: str, rows: int) -> dict[str, int]:
    done = ctx.checkpoint.load(default=0)
    ctx.log.info("attempt %s starts after row %s", ctx.attempt, done)
    note("begin", str(done))
    with closing(connect(URL)) as connection, open(path, newline="", encoding="utf-8") as file:
        numbered = enumerate(csv.reader(file), 1)
        for batch in batches(row for row in numbered if row[0] > done):
            ctx.raise_if_cancelled()  # stop if the job was cancelled, timed out, or lost its lease
            store(connection, ctx.job_id, batch)
            done = batch[-1][0]
            if done == ROWS // 2:
                wait_to_be_killed()  # the rows are written, the checkpoint is not: the worst moment
            ctx.checkpoint.save(done)
            ctx.progress(done / rows, f"row {done:,} of {rows:,}")
        return {table: count(connection, table, ctx.job_id) for table in ("good_row", "bad_row")}


def store(connection: Any, job: str, batch: list[tuple[int, list[str]]]) -> None:
    """Write a batch in one transaction. Rows that exist already, after a crash, are left unchanged."""
    mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    parsed = [(number, *parse(row)) for number, row in batch]
    cursor = connection.cursor()
    for table in ("good_row", "bad_row"):
        cursor.executemany(
            f"insert into {table} (import, number, value) values ({mark}, {mark}, {mark}) on conflict do nothing",
            [(job, number, value) for number, target, value in parsed if target == table],
        )
    connection.commit()
    note("write", str(len(batch)))


def parse(row: list[str]) -> tuple[str, str]:
    """Return the table for a row, and its value or the error."""
    try:
        name, amount = row
        return "good_row", f"{name}: {int(amount)}"
    except ValueError as error:
        return "bad_row", str(error)


def batches(rows: Iterator[tuple[int, list[str]]]) -> Iterator[list[tuple[int, list[str]]]]:
    while batch := list(islice(rows, BATCH)):
        yield batch


def count(connection: Any, table: str, job: str) -> int:
    mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    query = f"select count(*), count(distinct number) from {table} where import = {mark}"
    rows, numbers = connection.execute(query, (job,)).fetchone()
    assert rows == numbers, "a row was written twice"
    return int(rows)


def connect(url: str) -> Any:
    """Connect to the tables of this program, which are in the same database."""
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60)
    import psycopg

    return psycopg.connect(url)


# --- a record of what really happened, in files that no transaction rolls back ---


def note(topic: str, line: str) -> None:
    with (SCRATCH / f"{topic}.txt").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def notes(topic: str, scratch: Path) -> list[str]:
    path = scratch / f"{topic}.txt"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def wait_to_be_killed() -> None:
    """Let the first worker that gets here wait for its end."""
    if not notes("waiting", SCRATCH):
        note("waiting", str(os.getpid()))
        time.sleep(60)


# --- the demonstration: enqueue the job, kill a worker, check the result ---


@dataclass(frozen=True)
class Outcome:
    result: dict[str, int]
    starts: list[int]
    written: int


def make_file(path: Path, rows: int) -> None:
    """Write a file in which every 97th row has no number, and every 501st a column too many."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for number in range(1, rows + 1):
            amount = "a lot" if number % 97 == 0 else str(number * 7)
            writer.writerow([f"customer {number}", amount, *(["?"] if number % 501 == 0 else [])])


def start_worker(url: str, scratch: Path) -> subprocess.Popen[bytes]:
    """Start ``holdfast worker import_rows:app``, with a short lease so that the other worker takes over soon."""
    options = ("--lease", "2s", "--poll", "50ms")
    command = (sys.executable, "-m", "holdfast", "worker", "import_rows:app", *options)
    environment = os.environ | {"HOLDFAST_URL": url, "IMPORT_SCRATCH": str(scratch)}
    with (scratch / "workers.log").open("ab") as log:
        return subprocess.Popen(command, cwd=Path(__file__).parent, env=environment, stdout=log, stderr=log)


def wait_for(what: str, read: Callable[[], T]) -> T:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        value = read()
        if value:
            return value
        time.sleep(0.05)
    raise TimeoutError(f"waited a minute for {what}")


def main(url: str, scratch: Path) -> Outcome:
    path = scratch / "customers.csv"
    make_file(path, ROWS)
    with closing(connect(url)) as connection:
        for table in ("good_row", "bad_row"):
            columns = "import text, number integer, value text, primary key (import, number)"
            connection.execute(f"create table if not exists {table} ({columns})")
        connection.commit()
    workers = {worker.pid: worker for worker in (start_worker(url, scratch), start_worker(url, scratch))}
    try:
        with closing(holdfast.App(url, name="shop")) as shop:
            return demonstrate(url, shop, workers, path, scratch)
    finally:
        for worker in workers.values():
            worker.terminate()
            worker.wait()


def demonstrate(
    url: str, shop: holdfast.App, workers: dict[int, subprocess.Popen[bytes]], path: Path, scratch: Path
) -> Outcome:
    handle = shop.enqueue("import_rows", {"path": str(path), "rows": ROWS})
    pid = wait_for("half of the rows", lambda: notes("waiting", scratch))[0]
    worker = workers.pop(int(pid))
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    with closing(connect(url)) as connection:
        written = sum(count(connection, table, handle.id) for table in ("good_row", "bad_row"))
    print(f"Killed worker {pid}: {written:,} rows are written, the last {BATCH} of them after the last checkpoint.")

    result = handle.result(timeout="60s")
    starts = [int(line) for line in notes("begin", scratch)]
    outcome = Outcome(result, starts, sum(int(line) for line in notes("write", scratch)))
    print(f"The other worker continued after row {starts[-1]:,}.")
    print(f"Rows: {sum(result.values()):,}, of which {result['good_row']:,} good and {result['bad_row']:,} bad.")
    print(f"Rows written: {outcome.written:,}. One batch was written twice, and counts once.")
    return outcome


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp())
    parser = argparse.ArgumentParser(description="An import that is killed halfway and continues.")
    parser.add_argument("--url", default=f"sqlite:///{folder}/import.db", help="the database; else a new SQLite file")
    main(parser.parse_args().url, folder)
