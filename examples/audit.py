"""Detect tampering: seal the ledger, keep an anchor elsewhere, change a row with SQL, and verify.

python examples/audit.py                                 # on a new SQLite file
HOLDFAST_URL=postgresql://… python examples/audit.py     # on a database of its own, which it damages
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import holdfast
from holdfast.worker.worker import WorkerOptions


def connect(url: str) -> Any:
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"))
    import psycopg

    return psycopg.connect(url)


async def main(url: str | None = None) -> list[str]:
    """Work, seal, tamper, and return what verification reports."""
    if url is None:
        url = os.environ.get("HOLDFAST_URL") or f"sqlite:///{Path(tempfile.mkdtemp())}/audit.db"
    app = holdfast.App(url, name="bank")

    @app.job(name="transfer")
    async def transfer(to: str, cents: int) -> str:
        return f"{cents} to {to}"

    app.limits.set(kind="transfer", concurrency=2)  # recorded with its actor
    jobs = [transfer.enqueue(to, cents) for to, cents in (("ada", 100), ("bob", 250), ("eve", 9_999))]
    await app.worker(WorkerOptions(burst=True, sealing=False)).run()

    sealed = app.audit.seal()  # workers do this every few seconds
    anchor = str(app.audit.anchor())  # keep it where the owner of the database cannot reach it
    report = app.audit.verify(anchors=[anchor])
    print(f"{sealed} events and actions in {report.seals} seal: {'whole' if report.ok else 'not whole'}")
    for each in reversed(app.audit.actions()):
        print(f"{each.type} {each.subject} {each.name}: {each.changed}")

    # The owner of the database drops a trigger and deletes the last event of the last job.
    with closing(connect(url)) as connection, connection:
        if url.startswith("sqlite"):
            connection.execute("DROP TRIGGER judge_event_delete")
            connection.execute("DELETE FROM event WHERE seq = (SELECT max(seq) FROM event)")
        else:
            connection.execute("alter table holdfast.event disable trigger user")
            connection.execute("delete from holdfast.event where seq = (select max(seq) from holdfast.event)")
    said = [flaw.says for flaw in app.audit.verify(anchors=[anchor]).flaws]
    print(*said, sep="\n")
    assert len(app.audit.get(jobs[0].id)) == 3
    await app.aclose()
    return said


if __name__ == "__main__":
    asyncio.run(main())
