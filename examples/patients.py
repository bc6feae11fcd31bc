"""Payload rules: an import that may carry only references, and a handler whose payload nobody else sees.

    python examples/patients.py                                   # on a new SQLite file
    HOLDFAST_URL=postgresql://… python examples/patients.py       # on a migrated database

It prints what was refused and why, what an operator sees of a restricted job, and where a large result is stored.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import holdfast
from holdfast.errors import Refused
from holdfast.worker.worker import WorkerOptions


async def main(url: str | None = None, folder: Path | None = None) -> list[str]:
    """Enqueue, work, and return what was visible."""
    scratch = folder or Path(tempfile.mkdtemp())
    url = url or os.environ.get("HOLDFAST_URL") or f"sqlite:///{scratch}/patients.db"
    app = holdfast.App(url, name="clinic", artifacts=scratch / "artifacts")
    seen: list[str] = []

    @app.job(rules=holdfast.PayloadPolicy(signal_only=True))
    async def import_file(ctx: holdfast.Context, rows: int, options: dict[str, str]) -> str:
        where = await ctx.references()
        return f"{rows} rows from {where.source_ref} to {where.target_ref}"

    @app.job(retry=holdfast.Retry(max_attempts=1), rules=holdfast.PayloadPolicy(restricted=True))
    async def notify(patient: str, text: str) -> None:
        raise ConnectionError(f"cannot reach {patient}: {text}")

    @app.job(rules=holdfast.PayloadPolicy(store=True, max_result_bytes="4KB"))
    async def report(lines: int) -> list[str]:
        return [f"line {number}" for number in range(lines)]

    try:
        try:
            await import_file.aenqueue(3, {"password": "hunter2"})
        except Refused as refused:
            seen.append(f"refused: {refused.message}")
        refs = import_file.using(source_ref="s3://in/march.csv", target_ref="db://patients")
        imported = await refs.aenqueue(3, {"separator": ";"})
        told = await notify.aenqueue("Grace Hopper", "the results of Tuesday are here")
        written = await report.aenqueue(2_000)
        await app.worker(WorkerOptions(burst=True)).run()

        seen.append(await imported)
        failed = await told.aget()
        seen.append(f"notify is {failed.state}: {failed.error_message}; its payload: {failed.payload}")
        result = await app.jobs.aresult(written.id)
        lines = await written
        seen.append(f"{len(lines)} lines, at {str(result.ref).split('/')[0]}//{str(result.ref).split('/')[2]}/…")
    finally:
        await app.aclose()
    for line in seen:
        print(line)
    return seen


if __name__ == "__main__":
    asyncio.run(main())
