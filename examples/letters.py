"""Retention and usage: remove the contents of old jobs, keep their tombstones, and add up the cost.

    python examples/letters.py                                   # on a new SQLite file
    HOLDFAST_URL=postgresql://… python examples/letters.py       # on a migrated database

It prints what the policies would remove, what remains of a job, and the usage per kind.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import holdfast


def main(url: str | None = None) -> dict[str, float]:
    """Run jobs, clean them, and return the cost per kind."""
    if url is None:
        url = os.environ.get("HOLDFAST_URL") or f"sqlite:///{Path(tempfile.mkdtemp())}/letters.db"
    app = holdfast.App(url, name="letters")

    @app.job(cost=0.85)  # the stamp: a fixed cost per attempt
    def letter(ctx: holdfast.SyncContext, to: str, text: str) -> str:
        ctx.cost(0.002 * len(text))  # the ink: depends on the job
        return f"sent to {to}"

    @app.job
    def invoice(number: int) -> None: ...

    try:
        sent = letter.enqueue("ada@example.org", "a private note")
        letter.enqueue("bob@example.org", "another")
        billed = invoice.enqueue(7)
        app.run_worker(burst=True)
        # Clean at once, for this example. A real policy has an age such as "30d".
        app.retention.set(clean_after=0)
        app.retention.set(kind="invoice")  # no age: keep invoices forever
        for rule in app.retention.preview():
            print(f"{rule.action} of {rule.kind}: {rule.due} due")
        print(f"{app.retention.sweep()['clean']} cleaned")
        cleaned, kept = app.jobs.get(sent.id), app.jobs.get(billed.id)
        print(f"letter: {cleaned.state}, payload {cleaned.payload}; {' '.join(event.type for event in sent.history())}")
        print(f"invoice: {kept.state}, payload {kept.payload}")
        usage = app.usage.list(by="kind")
        for row in usage:
            print(f"{row.kind}: {row.succeeded} succeeded, cost {row.cost}")
        return {row.kind or "": row.cost for row in usage}
    finally:
        app.close()


if __name__ == "__main__":
    main()
