"""Two GPUs: render jobs share them, one job per customer at a time, and a program reserves one GPU for a moment.

    python examples/gpu.py                                   # on a new SQLite file
    HOLDFAST_URL=postgresql://… python examples/gpu.py       # on a migrated database

It prints how many jobs ran at a time, and that none ran on the reserved GPU.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import holdfast
from holdfast.worker.worker import WorkerOptions


async def main(url: str | None = None) -> dict[str, int]:
    """Enqueue, work, and return the maximum of concurrent jobs for each."""
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
        await app.limits.aset(resource="*", concurrency=2)  # two on each GPU
        await app.limits.aset(key="*", concurrency=1)  # one per customer
        handles = []
        for scene in range(16):
            gpu, customer = f"gpu-{scene % 2}", f"customer-{scene % 5}"
            renders = render.using(resources=(gpu,), limit_key=customer)
            handles.append(await renders.aenqueue(scene, gpu, customer))
        worker = app.worker(WorkerOptions(queues=("renders",), concurrency=10, poll=0.05, promote_every=0.1))
        serving = asyncio.create_task(worker.run())
        async with app.reservations.hold("gpu-1", wait="30s", reason="a look at the fan"):
            reserved = True
            await asyncio.sleep(0.1)
            reserved = False
        for handle in handles:
            await handle.await_end("30s")
        worker.stop()
        await serving
        done = len(app.jobs.list(state=holdfast.State.SUCCEEDED))
        print(f"{done} scenes rendered; at once at most {most}")
        (over,) = await app.reservations.alist(ended=True)
        print(f"{over.what} was reserved by {over.holder} and {over.state}")
        return most
    finally:
        await app.aclose()


if __name__ == "__main__":
    asyncio.run(main())
