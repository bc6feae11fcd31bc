"""``python -m bench.replay``: replay 1,000 histories of 20 steps, and read them from a file (bar: 30 seconds)."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast import App, Context
from holdfast.app.replayer import Replayer
from holdfast.steps.history import History, read_histories
from holdfast.stores.requests import new_id
from holdfast.testing import Kit

HISTORIES, STEPS, BAR = 1_000, 20, 30.0

app = App("postgresql://user@127.0.0.1:1/none")


def work(n: int) -> dict[str, int]:
    return {"n": n}


@app.job()
async def import_file(ctx: Context, rows: int) -> None:
    for n in range(rows):
        await ctx.step(f"row {n}", work, n)


def recorded() -> History:
    with Kit(app) as kit:
        handle = import_file.enqueue(STEPS)
        kit.drain()
        history: History = next(app.jobs.export_history(handle.id))
        return history


async def replayed(file: Path) -> int:
    replayer = Replayer(app)
    results = [await replayer.replay(history) for history in read_histories(file)]
    return sum(result.verdict == "compatible" and result.matched == STEPS for result in results)


def main() -> int:
    one = recorded()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "histories.jsonl"
        with file.open("w") as lines:
            for _ in range(HISTORIES):
                lines.write(replace(one, job=replace(one.job, id=new_id())).to_json() + "\n")
        begun = time.perf_counter()
        matched = asyncio.run(replayed(file))
        took = time.perf_counter() - begun
    print(f"{matched:,} of {HISTORIES:,} histories of {STEPS} steps are compatible: {took:.2f} s (bar: {BAR:g} s)")
    return int(matched != HISTORIES or took > BAR)


if __name__ == "__main__":
    sys.exit(main())
