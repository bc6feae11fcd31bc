"""Retention: the contents of old jobs are removed, their tombstones stay, and usage is counted.

    python examples/letters.py                                   # on a new SQLite file
    HOLDFAST_URL=postgresql://… python examples/letters.py       # on a migrated database

It prints what a policy would remove, what remains of a job afterwards, and the usage by kind.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import holdfast


def main(url: str | None = None) -> dict[str, float]:
    """Send, clean, and return the cost of each kind."""
    if url is None:
        url = os.environ.get("HOLDFAST_URL") or f"sqlite:///{Path(tempfile.mkdtemp())}/letters.db"
    app = holdfast.App(url, name="letters")

    @app.job(cost=0.85)  # a stamp
    def letter(ctx: holdfast.SyncContext, to: str, text: str) -> str:
        ctx.cost(0.002 * len(text))  # and the ink
        return f"sent to {to}"

    @app.job
    def invoice(number: int) -> None: ...

    try:
        sent = letter.enqueue("ada@example.org", "a private word")
        letter.enqueue("bob@example.org", "another")
        billed = invoice.enqueue(7)
        app.run_worker(burst=True)
        # Immediately, for the example; "30d" is more realistic.
        app.retention.set(clean_after=0)
        app.retention.set(kind="invoice")  # without an age: kept forever
        for each in app.retention.preview():
            print(f"{each.action} of {each.kind}: {each.due} due")
        print(f"{app.retention.sweep()['clean']} cleaned")
        left, kept = app.jobs.get(sent.id), app.jobs.get(billed.id)
        assert left is not None
        assert kept is not None
        print(f"letter: {left.state}, payload {left.payload}; {' '.join(event.type for event in sent.history())}")
        print(f"invoice: {kept.state}, payload {kept.payload}")
        used = app.usage.list(by="kind")
        for line in used:
            print(f"{line.kind}: {line.succeeded} sent, {line.cost} spent")
        return {line.kind or "": line.cost for line in used}
    finally:
        app.close()


if __name__ == "__main__":
    main()
