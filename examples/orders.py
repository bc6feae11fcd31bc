"""Transactions: an order and its job commit together, and the writes of a handler commit with its job.

    python examples/orders.py                                   # on a new SQLite file
    HOLDFAST_URL=postgresql://… python examples/orders.py       # on a migrated database

It places one order, rolls back another, and runs a handler that fails in its first attempt, after it has written.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import holdfast


def connect(url: str) -> Any:
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"))
    import psycopg

    return psycopg.connect(url)


def declare(app: holdfast.App) -> holdfast.Kind[[int], str]:
    @app.job(retry=holdfast.Retry(max_attempts=3, backoff=holdfast.Backoff(base=0.05)))
    def send_receipt(ctx: holdfast.SyncContext, order: int) -> str:
        with ctx.transaction(result=f"receipt for order {order}") as connection:
            connection.execute(f"insert into receipts (orders_id) values ({order})")
            if ctx.attempt == 1:
                raise ConnectionError("the printer does not respond")  # rolls back the row above
        return "ignored"  # the transaction has completed the job, with its own result

    return send_receipt


def place(url: str, send_receipt: holdfast.Kind[[int], str], order: int, *, paid: bool) -> holdfast.Handle[str] | None:
    """Insert an order and enqueue its job in one transaction, and commit if it is paid."""
    with closing(connect(url)) as connection:
        connection.execute(f"insert into orders (id) values ({order})")
        handle = send_receipt.using(connection=connection).enqueue(order)
        if paid:
            connection.commit()
            return handle
        connection.rollback()
        return None


def main(url: str) -> dict[str, int]:
    app = holdfast.App(url, name="orders")
    app.jobs.list()  # creates the tables of a new SQLite file
    send_receipt = declare(app)
    with closing(connect(url)) as connection:
        connection.execute("create table orders (id integer)")
        connection.execute("create table receipts (orders_id integer)")
        connection.commit()
    handle = place(url, send_receipt, 7, paid=True)
    place(url, send_receipt, 8, paid=False)
    assert handle is not None
    while not handle.state().finished:
        app.run_worker(burst=True, poll=0.02, promote_every=0.02)
    print(f"{handle.result()}: {handle.get().attempt} attempts")
    counts = {}
    with closing(connect(url)) as connection:
        for table in ("orders", "receipts"):
            counts[table] = connection.execute(f"select count(*) from {table}").fetchone()[0]
    counts["jobs"] = len(app.jobs.list())
    print(counts)
    app.close()
    return counts


if __name__ == "__main__":
    main(os.environ.get("HOLDFAST_URL", f"sqlite:///{Path(tempfile.mkdtemp()) / 'orders.db'}"))
