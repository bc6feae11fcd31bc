"""Payload rules: references instead of data, a payload that operators cannot see, and a large result.

    python examples/patients.py                                   # on a new SQLite file
    HOLDFAST_URL=postgresql://… python examples/patients.py       # on a migrated database

It prints a refusal, what an operator sees of a restricted job, and where the large result is stored.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import holdfast
from holdfast.errors import Refused


async def main(url: str | None = None, folder: Path | None = None) -> list[str]:
    """Enqueue and run the jobs; return the lines that are printed."""
    scratch = folder or Path(tempfile.mkdtemp())
    url = url or os.environ.get("HOLDFAST_URL") or f"sqlite:///{scratch}/patients.db"
    app = holdfast.App(url, name="clinic", artifacts=scratch / "artifacts")
    lines: list[str] = []

    # The payload may only have references and options, not data.
    @app.job(payload_rules=holdfast.PayloadPolicy(signal_only=True))
    async def import_file(ctx: holdfast.Context, rows: int, options: dict[str, str]) -> str:
        uris = await ctx.references()
        return f"{rows} rows from {uris.source_ref} to {uris.target_ref}"

    # Only the handler sees the payload. Its errors are not stored, because they may contain parts of it.
    @app.job(retry=holdfast.Retry(max_attempts=1), payload_rules=holdfast.PayloadPolicy(restricted=True))
    async def notify(patient: str, text: str) -> None:
        raise ConnectionError(f"cannot reach {patient}: {text}")

    # A result that is larger than 4 KB goes to the artifact store.
    @app.job(payload_rules=holdfast.PayloadPolicy(store=True, max_result_bytes="4KB"))
    async def report(lines: int) -> list[str]:
        return [f"line {number}" for number in range(lines)]

    try:
        try:
            await import_file.aenqueue(3, {"password": "hunter2"})
        except Refused as refused:
            lines.append(f"refused: {refused.message}")
        refs = import_file.using(source_ref="s3://in/march.csv", target_ref="db://patients")
        imported = await refs.aenqueue(3, {"separator": ";"})
        notified = await notify.aenqueue("Grace Hopper", "your results are here")
        written = await report.aenqueue(2_000)
        await app.worker(burst=True).run()

        lines.append(await imported)
        failed = await notified.aget()
        lines.append(f"notify is {failed.state}: {failed.error_message}; its payload: {failed.payload}")
        result = await app.jobs.aresult(written.id)
        value = await written
        lines.append(f"{len(value)} lines, at {str(result.ref).split('/')[0]}//{str(result.ref).split('/')[2]}/…")
    finally:
        await app.aclose()
    for line in lines:
        print(line)
    return lines


if __name__ == "__main__":
    asyncio.run(main())
