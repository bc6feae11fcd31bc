"""Fault 60: viewers send the worst reads over rows of 1 MB. Other requests are served meanwhile, and the memory of the
service stays bounded.

The time that the event loop is blocked is measured as processor time of single callbacks, so it does not depend on the
load of the machine. `bench/hostile.py` measures the latency of `/livez`.
"""

from __future__ import annotations

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast import App, Backoff, Context, Retry
from holdfast.server.app import make_service
from holdfast.server.auth import at_this_machine
from tests.faults.test_50_serve_shutdown import serving
from tests.support.http_server import serving as serving_here
from tests.support.reads import every_read
from tests.support.waiting import until
from tests.support.workers import work_off

pytestmark = pytest.mark.req("JF-14", "JF-20")

MEGABYTE = 1_000_000
LARGEST = 7 * MEGABYTE
"""Bytes of a response: a payload, a result, and each of the other values of a job up to 1 MB."""
BLOCKED = 0.1
"""Seconds of processor time that one callback of the event loop may take."""
MEMORY = 300 * 2**20
VIEWERS = 8
SEARCH = "/api/v1/jobs?limit=200&q=payload.customer:nope"


def large(size: int, n: int = 0) -> dict[str, Any]:
    """A value of this many bytes, with many parts."""
    return {"customer": n, "rows": [{"n": 7, "texts": ["row"] * 100}] * (size // 625)}


def fill(app: App, size: int, jobs: int) -> dict[str, list[str]]:
    """Fill the database with large values wherever the service reads some; returns the names of things."""
    value, many = large(size), 6 * MEGABYTE // size // 2

    @app.job("report")
    async def report(ctx: Context, customer: int, rows: Any, steps: int = 0) -> Any:
        for n in range(steps):
            await ctx.step(f"part {n}", lambda: value)
            await ctx.checkpoint.save(value, name=f"mark {n}")
        ctx.log.info("x" * 60_000)
        return value

    @app.job("broken", retry=Retry(max_attempts=3, backoff=Backoff(base=0)))
    async def broken(customer: int, rows: Any) -> None:
        raise ValueError("y" * 300)

    @app.job("ask")
    async def ask(ctx: Context, n: int) -> None:
        await ctx.approval("ask", summary="z" * 2_000, data={"text": "d" * 60_000})

    @app.job("sum")
    async def total(ctx: Context) -> int:
        return len((await ctx.results()).values())

    stepped, dead = app.enqueue("report", {**value, "steps": many}), app.enqueue("broken", value)
    for n in range(6):
        app.enqueue("ask", {"n": n})
    flow = app.workflow("fan-in")
    flow.add(total, after=[flow.add(report, n, [], name=f"part {n}") for n in range(many)], name="last")
    started = flow.start()
    while not (groups := app.dead_letters.groups()):
        work_off(app)
    for n in range(2):
        app.schedules.add(f"s{n}", "0 3 * * *", kind="report", payload=value)
        app.templates.set("t0", kind="report", payload=large(size, n))
    for first in range(0, jobs, 20):
        some = range(first, min(first + 20, jobs))
        app.enqueue_many([app.prepare("later", {**value, "customer": n}, delay=9_000) for n in some])
    return {
        "jobs": [stepped.id, dead.id, *(job.id for job in app.jobs.list(kind="sum"))],
        "dead-letters": [groups[0].fingerprint],
        "approvals": [app.approvals.list(limit=1)[0].id],
        "workflows": [started.id],
        "schedules": ["s0", "s0?edit=1"],
        "templates": ["t0"],
        "kinds": ["report"],
    }


class Blocked:
    """The longest callback of the event loops of this process, in processor time of its thread."""

    longest = 0.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = asyncio.Handle._run

        def measured(handle: asyncio.Handle) -> None:
            begun = time.thread_time()
            run(handle)
            self.longest = max(self.longest, time.thread_time() - begun)

        monkeypatch.setattr(asyncio.Handle, "_run", measured)


@pytest.mark.parametrize("size", [pytest.param(MEGABYTE, marks=pytest.mark.slow), MEGABYTE // 3])
def test_no_read_blocks_the_event_loop_or_returns_too_much(
    url: str, monkeypatch: pytest.MonkeyPatch, size: int, tmp_path: Path
) -> None:
    with closing(App(url)) as filling, closing(App(url, artifacts=tmp_path / "artifacts")) as app:
        names = fill(filling, size, jobs=9 * size // MEGABYTE)
        app.retention.set(kind="report", purge_after="1s", archive=True)
        until(lambda: app.archives.run().jobs, "the jobs are archived")
        app.retention.remove(kind="report")
        service = make_service(app, authenticate=at_this_machine(app))
        paths = [*every_read(service, names), SEARCH, "/jobs?q=payload.customer:nope", "/jobs?q=customer"]
        blocked, slow = Blocked(monkeypatch), {}
        with serving_here(service, loop="asyncio") as address, httpx2.Client(base_url=address, timeout=60) as client:
            client.get("/")  # imports and compiles
            for path in paths:
                blocked.longest = 0.0
                answer = client.get(path)
                assert answer.status_code < 500, (path, answer.text[:300])
                assert len(answer.content) < LARGEST, (path, len(answer.content))
                if blocked.longest > BLOCKED:
                    slow[path] = blocked.longest
        assert slow == {}


def peak_memory(pid: int) -> int:
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc")
@pytest.mark.slow
def test_memory_of_the_service_is_bounded_beside_eight_viewers(url: str) -> None:
    with closing(App(url)) as app:
        names = fill(app, MEGABYTE, jobs=220)
    job, dead, last = names["jobs"]
    worst = [
        *(SEARCH, "/jobs?q=payload.rows.7.n:8", f"/api/v1/jobs/{job}", f"/jobs/{job}", f"/api/v1/jobs/{last}"),
        *(f"/api/v1/jobs/{job}/result", f"/jobs/{dead}/edit", "/api/v1/approvals?limit=200", "/api/v1/schedules"),
    ]
    with serving(url) as server, closing(server.client()) as client:

        def view(n: int) -> None:
            with httpx2.Client(base_url=client.base_url, timeout=120) as viewer:
                for path in (*worst[n:], *worst[:n]):
                    assert viewer.get(path).status_code == 200, path

        with ThreadPoolExecutor(VIEWERS) as viewers:
            waits = [viewers.submit(view, n) for n in range(VIEWERS)]
            live = 0
            while not all(wait.done() for wait in waits):
                assert client.get("/livez").status_code == 200
                live += 1
            for wait in waits:
                wait.result()
        assert live > 10 * VIEWERS, "other requests are served meanwhile"
        assert peak_memory(server.process.pid) < MEMORY
