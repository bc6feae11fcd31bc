"""Detect tampering: seal the ledger, keep an anchor elsewhere, delete a row with SQL, and verify.

python examples/audit.py                                 # on a new SQLite file
HOLDFAST_URL=postgresql://… python examples/audit.py     # on a scratch database, which it damages
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


def connect(url: str) -> Any:
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"))
    import psycopg

    return psycopg.connect(url)


async def main(url: str | None = None) -> list[str]:
    """Run jobs, seal the ledger, tamper with it, and return the flaws that verification finds."""
    if url is None:
        url = os.environ.get("HOLDFAST_URL") or f"sqlite:///{Path(tempfile.mkdtemp())}/audit.db"
    app = holdfast.App(url, name="bank")

    @app.job(name="transfer")
    async def transfer(to: str, cents: int) -> str:
        return f"{cents} to {to}"

    app.limits.set(kind="transfer", concurrency=2)  # recorded as an action, with its actor
    jobs = [transfer.enqueue(to, cents) for to, cents in (("ada", 100), ("bob", 250), ("eve", 9_999))]
    await app.worker(burst=True, sealing=False).run()

    sealed = app.audit.seal()  # workers do this every few seconds
    anchor = str(app.audit.anchor())  # store it where the owner of the database cannot change it
    report = app.audit.verify(anchors=[anchor])
    print(f"{sealed} events and actions in {report.seals} seal: {'intact' if report.ok else 'not intact'}")
    for action in reversed(app.audit.actions()):
        print(f"{action.type} {action.subject} {action.name}: {action.changed}")

    # The owner of the database drops a trigger and deletes the last event of the last job.
    with closing(connect(url)) as connection, connection:
        if url.startswith("sqlite"):
            connection.execute("DROP TRIGGER holdfast_guard_event_delete")
            connection.execute("DELETE FROM holdfast_event WHERE seq = (SELECT max(seq) FROM holdfast_event)")
        else:
            connection.execute("alter table holdfast.event disable trigger user")
            connection.execute("delete from holdfast.event where seq = (select max(seq) from holdfast.event)")
    flaws = [flaw.says for flaw in app.audit.verify(anchors=[anchor]).flaws]
    print(*flaws, sep="\n")
    assert len(app.audit.get(jobs[0].id)) == 3
    await app.aclose()
    return flaws


if __name__ == "__main__":
    asyncio.run(main())
