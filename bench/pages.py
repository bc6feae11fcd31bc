"""How long dashboard pages, and lists and jobs over the API, take in a database with very many jobs in every state
(PostgreSQL).

Each page is requested in process, through the whole service, by a role under row-level security: first by one client
alone, then by four at a time while another process enqueues and drains without pause.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.synchronize import Event
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import httpx2
import psycopg

from bench.console import note
from bench.peers.backends import Backends
from bench.subjects import Ours
from holdfast import App, Context
from holdfast.app.internals import session_of
from holdfast.features.assembly import open_store
from holdfast.server.app import make_service
from holdfast.server.auth import at_this_machine
from holdfast.server.rendering import MENU

ROLE = "holdfast_admin"
SLICE = 250_000
VIEWERS = 4
ROWS = 20
"""Minimum number of jobs in each list, also in the smallest database."""
LISTED = {"/job": '<th scope="row"', "/api": '"created_at"'}
BAR_MS, BAR_RATIO = 200.0, 10.0


@dataclass(frozen=True)
class Sizes:
    """``jobs`` in the database; each page is requested ``idle`` times alone, and all pages ``loaded`` times under
    load."""

    jobs: int = 5_000_000
    idle: int = 200
    loaded: int = 200  # the p99 of forty is the slowest


QUICK = Sizes(jobs=100_000, idle=10, loaded=10)


@dataclass(frozen=True)
class Screen:
    """Milliseconds in the service. ``ratio`` is the p99 under load divided by the p99 alone."""

    path: str
    idle_p50: float
    idle_p99: float
    loaded_p99: float

    @property
    def ratio(self) -> float:
        return self.loaded_p99 / self.idle_p99

    def line(self) -> str:
        return (
            f"  {self.path:44} {self.idle_p50:7.1f} ms p50 {self.idle_p99:7.1f} ms p99 alone"
            f" {self.loaded_p99:8.1f} ms p99 under load ({self.ratio:.1f}×)"
        )


# Thirty days of jobs; ids contain the time, as real ones do. Of a hundred jobs, 90 have succeeded, 4 are dead letters
# of one of forty groups, 2 were cancelled, 3 wait in one of eight queues and 1 waits for its retry.
_ID = (
    "(substr(h.x, 1, 8) || '-' || substr(h.x, 9, 4) || '-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid as id,"
    " h.at as at, n, 'kind ' || n %% 20 as kind, 'queue ' || n %% 8 as queue, case when n %% 100 < 90 then 'succeeded'"
    " when n %% 100 < 94 then 'dead_letter' when n %% 100 < 96 then 'cancelled' when n %% 100 < 99 then 'queued'"
    " else 'retry_waiting' end as state"
)
_ROWS = (
    f"(select {_ID} from generate_series(%(first)s::bigint, %(last)s::bigint) n,"
    " lateral (select t.at, lpad(to_hex((extract(epoch from t.at) * 1000)::bigint), 12, '0') as x"
    " from (select %(now)s::timestamptz - interval '30 days' * (1 - n::float8 / %(size)s) as at) t) h) r"
)
_OVER = "r.state in ('succeeded', 'dead_letter', 'cancelled')"
FILL = (
    "insert into holdfast.job (id, tenant, kind, queue, payload, enqueued_by, source_system, created_at, tags)"
    " select r.id, 'default', r.kind, r.queue, json_build_object('n', r.n), 'bench', 'bench', r.at,"
    f" case when r.n %% 50 = 0 then array['vip'] else '{{}}'::text[] end from {_ROWS}",
    "insert into holdfast.job_tag (tenant, tag, job_id)"
    f" select 'default', 'vip', r.id from {_ROWS} where r.n %% 50 = 0",
    "insert into holdfast.job_state (id, tenant, kind, queue, state, priority, position, attempt, max_attempts,"
    " max_crashes, due_at, started_at, finished_at, error_code, error_message)"
    " select r.id, 'default', r.kind, r.queue, r.state, 0, r.n, case when r.state = 'queued' then 0 else 1 end, 4, 3,"
    " case when r.state = 'retry_waiting' then now() + interval '1 day' end,"
    " case when r.state <> 'queued' then r.at + interval '1 s' end,"
    f" case when {_OVER} then r.at + interval '2 s' end,"
    " case when r.state = 'dead_letter' then 'ValueError' end, case when r.state = 'dead_letter' then 'number ' || r.n"
    f" end from {_ROWS}",
    "insert into holdfast.event (job_id, tenant, kind, type, from_state, to_state, attempt, at, actor)"
    " select r.id, 'default', r.kind, v.type, v.f, coalesce(v.t, r.state), v.a, r.at + v.late * interval '1 s', 'bench'"
    f" from {_ROWS}, (values ('enqueue', null, 'queued', 0, 0), ('take', 'queued', 'in_progress', 1, 1),"
    " ('succeed', 'in_progress', null, 1, 2)) v(type, f, t, a, late)"
    " where v.a = 0 or r.state in ('succeeded', 'dead_letter') order by r.n, v.late",
    "insert into holdfast.dead_letter (job_id, tenant, fingerprint, kind, queue, dead_at)"
    " select r.id, 'default', 'group' || lpad((r.n %% 40)::text, 11, '0'), r.kind, r.queue, r.at"
    f" from {_ROWS} where r.state = 'dead_letter'",
)
GROUPS = (
    "insert into holdfast.dead_letter_group (tenant, fingerprint, kind, error_code, error_message, sample_job,"
    " first_at, last_at, times, open, last_job)"
    " select d.tenant, d.fingerprint, min(d.kind), 'ValueError', 'number 7', (array_agg(d.job_id))[1],"
    " min(d.dead_at), max(d.dead_at), count(*), count(*), (array_agg(d.job_id))[1]"
    " from holdfast.dead_letter d group by d.tenant, d.fingerprint"
)


def fill(url: str, size: int) -> None:
    now = datetime.now(
        UTC
    )  # for all statements: the id of a job, which contains its time, must be the same in each table
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")
        connection.execute("set synchronous_commit = off")
        for first in range(1, size + 1, SLICE):
            last = min(first + SLICE - 1, size)
            for statement in FILL:
                connection.execute(statement.encode(), {"first": first, "last": last, "size": size, "now": now})
            note(f"{last:,} jobs")
        connection.execute(GROUPS)
        connection.execute("vacuum analyze")


def _grown(app: App) -> str:
    """Add approvals, steps and a schedule through the app, because rows by SQL would be incomplete. Returns a job to
    request."""

    @app.job("bench.asks")
    async def asks(ctx: Context, n: int) -> None:
        await ctx.step("look", lambda: n)
        await ctx.approval("bench", summary=f"number {n}")

    for n in range(20):
        asks.enqueue(n)
    app.schedules.add("bench nightly", "0 3 * * *", kind="bench.asks", payload={"n": 1})
    app.run_worker(burst=True)
    return app.jobs.list(kind="bench.asks", limit=1)[0].id


def screens(job: str) -> list[str]:
    lists = ["/jobs?state=succeeded", "/jobs?state=dead_letter", "/jobs?state=queued", "/jobs?q=tag:vip"]
    found = ['/jobs?q=kind:"kind+7"', "/jobs?q=since:1h", "/jobs?state=dead_letter&q=ValueError", f"/jobs/{job}"]
    asked = ["/api/v1/jobs?kind=kind+7", f"/api/v1/jobs/{job}"]
    return [*(path for path, _ in MENU), *lists, *found, *asked]


async def measure_screens(app: App, paths: list[str], idle: int, loaded: int, url: str) -> list[Screen]:
    context = multiprocessing.get_context("spawn")
    async with _asking(app) as client:
        for path in paths:
            await _shows(client, path)
        alone = {path: [await _took(client, path) for _ in range(idle)] for path in paths}
        ready, stop = context.Event(), context.Event()
        load = context.Process(target=_busy, args=(url, ready, stop))
        load.start()
        try:
            if not await asyncio.to_thread(ready.wait, 60):
                raise RuntimeError("nobody began to enqueue")
            under: dict[str, list[float]] = {path: [] for path in paths}

            async def look(shift: int) -> None:
                for n in range(loaded * len(paths) // VIEWERS):
                    path = paths[(n + shift * len(paths) // VIEWERS) % len(paths)]
                    under[path].append(await _took(client, path))

            await asyncio.gather(*(look(viewer) for viewer in range(VIEWERS)))
        finally:
            stop.set()
            await asyncio.to_thread(load.join, 60)
    return [Screen(path, _part(alone[path], 0.5), _part(alone[path], 0.99), _part(under[path], 0.99)) for path in paths]


@asynccontextmanager
async def _asking(app: App) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(make_service(app, authenticate=at_this_machine(app)))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", timeout=60) as client:
        yield client
        await session_of(app).store.leave_loop()


async def _shows(client: httpx2.AsyncClient, path: str) -> None:
    """Check that each list has entries: an empty list would be fast, and no useful figure."""
    answer = await client.get(path)
    if answer.status_code != 200:
        raise RuntimeError(f"{path} answered {answer.status_code}")
    if path.startswith(("/jobs?", "/api/v1/jobs?")) and answer.text.count(LISTED[path[:4]]) < ROWS:
        raise RuntimeError(f"{path} does not list {ROWS} jobs")


async def _took(client: httpx2.AsyncClient, path: str) -> float:
    began = time.perf_counter()
    answer = await client.get(path)
    took = (time.perf_counter() - began) * 1000
    if answer.status_code != 200:
        raise RuntimeError(f"{path} answered {answer.status_code}")
    return took


def _part(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(part * (len(ordered) - 1)))]


def _busy(url: str, ready: Event, stop: Event) -> None:
    """Enqueue and drain as fast as possible."""
    with closing(open_store(url)) as store:
        ours = Ours(store, tenant="default")
        ready.set()
        while not stop.is_set():
            ours.enqueue(1_000, 100)
            ours.drain(1_000, 100)


def run(backends: Backends, sizes: Sizes) -> list[Screen]:
    with backends.fresh("postgres", "postgresql://") as place:
        with psycopg.connect(place.url, autocommit=True) as connection:
            if connection.execute("select 1 from pg_roles where rolname = %s", (ROLE,)).fetchone() is None:
                connection.execute(f"create role {ROLE} nologin".encode())
        with closing(open_store(place.url)) as store:
            store.migrate()
        fill(place.url, sizes.jobs)
        with closing(App(place.url, name="bench", enqueued_by="bench")) as owner:
            job = _grown(owner)
        with closing(App(_as_role(place.url), name="bench", enqueued_by="bench")) as app:
            found = asyncio.run(measure_screens(app, screens(job), sizes.idle, sizes.loaded, place.url))
    for screen in found:
        print(screen.line())
    return found


def _as_role(url: str) -> str:
    """Make every session act as a role under row-level security."""
    parts = urlsplit(url)
    query = [*parse_qsl(parts.query), ("options", f"-c role={ROLE}")]
    return urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))
