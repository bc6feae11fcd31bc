"""Limits and reservations: render jobs share two GPUs, one job per customer at a time; one GPU is reserved for a while.

    python examples/gpu.py                                   # on a new SQLite file
    HOLDFAST_URL=postgresql://… python examples/gpu.py       # on a migrated database

It prints the maximum number of concurrent jobs per GPU and customer, and the reservation.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import holdfast


async def main(url: str | None = None) -> dict[str, int]:
    """Enqueue and run the jobs; return the maximum number of concurrent jobs per GPU and customer."""
    if url is None:
        url = os.environ.get("HOLDFAST_URL") or f"sqlite:///{Path(tempfile.mkdtemp())}/gpu.db"
    app = holdfast.App(url, name="gpu")
    running: dict[str, int] = {}
    most: dict[str, int] = {}
    reserved = False

    @app.job(queue="renders")
    async def render(scene: int, gpu: str, customer: str) -> None:
        assert not (reserved and gpu == "gpu-1")
        for name in (gpu, customer):
            running[name] = running.get(name, 0) + 1
            most[name] = max(most.get(name, 0), running[name])
        await asyncio.sleep(0.02)
        for name in (gpu, customer):
            running[name] -= 1

    try:
        await app.limits.aset(resource="*", concurrency=2)  # two jobs per GPU
        await app.limits.aset(key="*", concurrency=1)  # one job per customer
        handles = []
        for scene in range(16):
            gpu, customer = f"gpu-{scene % 2}", f"customer-{scene % 5}"
            renders = render.using(resources=(gpu,), limit_key=customer)
            handles.append(await renders.aenqueue(scene, gpu, customer))
        worker = app.worker(queues=("renders",), concurrency=10, poll=0.05, promote_every=0.1)
        working = asyncio.create_task(worker.run())
        # Waits until no job runs on gpu-1, and keeps new ones from starting there within the block.
        async with app.reservations.hold("gpu-1", wait="30s", reason="cleaning the fan"):
            reserved = True
            await asyncio.sleep(0.1)
            reserved = False
        for handle in handles:
            await handle.await_end("30s")
        worker.stop()
        await working
        done = len(app.jobs.list(state=holdfast.State.SUCCEEDED))
        print(f"{done} scenes rendered; maximum at a time: {most}")
        (reservation,) = await app.reservations.alist(ended=True)
        print(f"{reservation.what} was reserved by {reservation.holder}, now {reservation.state}")
        return most
    finally:
        await app.aclose()


if __name__ == "__main__":
    asyncio.run(main())
