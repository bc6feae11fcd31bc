"""Routes for workers of other languages: open a lease, claim jobs, settle attempts, end the lease; the tick route.

A worker renews its lease to show that it is alive; when it does not, other workers get its jobs. Every write carries
the fence (lease, attempt): the writes of a worker whose lease has expired are refused.
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import Annotated, Any, Literal

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, FailFast, Field
from starlette.datastructures import State

from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.engine.ids import parse_id
from holdfast.engine.job import DEFAULT_QUEUE, EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.engine.payload import DEFAULT_LIMIT
from holdfast.engine.settlement import LONGEST_DELAY
from holdfast.engine.steps import RESERVED, RUNNING, Progress
from holdfast.errors import InvalidInput, NotFound, StaleLease
from holdfast.features.jobs.model import ClaimedJob, HeldJob, OpenedLease, RenewedLease, SettleResult
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import identity_of
from holdfast.server.bodies import Body
from holdfast.server.claims import POLL_EVERY, ClaimBroker, Report, settle_all
from holdfast.server.json_body import Router
from holdfast.server.parameters import TheApp, allowed
from holdfast.stores.requests import ClaimRequest
from holdfast.worker.options import TickKeywords, TickSummary

router = Router(prefix="/leases", tags=["leases"], dependencies=[allowed(Scope.WORK)])

TTL, MAX_JOBS, MAX_WAIT = 30.0, 100, 30.0

Id = Annotated[str, Field(max_length=36, examples=["0198c5b4-0000-7000-8000-000000000001"])]
Number = Annotated[int, Field(ge=0, le=2**31 - 1)]
Seconds = Annotated[float, Field(ge=1, le=3600, allow_inf_nan=False, description="How long it lasts unless renewed.")]
Names = Annotated[list[Annotated[str, Field(max_length=100)]], Field(min_length=1, max_length=100)]


def _has_maintenance(state: State) -> bool:
    """Whether the service runs the maintenance tasks of every tenant."""
    return state.maintenance is not None and state.maintenance.tenant == EVERY_TENANT


def _broker(request: Request) -> ClaimBroker:
    state = request.app.state
    if not hasattr(state, "broker"):
        state.broker = ClaimBroker(state.app, maintains=not _has_maintenance(state), wait_limit=state.wait_limit)
    broker: ClaimBroker = state.broker
    return broker


Broker = Annotated[ClaimBroker, Depends(_broker)]


class OpenLease(Body):
    name: str = Field(default="worker", max_length=100, description="The executor label.")
    ttl: Seconds = TTL
    kinds: Names | None = Field(default=None, description="Kinds it has handlers for; null for any.")
    queues: Names | None = None
    slots: int | None = Field(default=None, ge=1, le=100_000, description="Number of jobs it runs at once.")


class RenewLease(Body):
    ttl: Seconds = TTL


class ClaimJobs(Body):
    queues: Names = Field(default=[DEFAULT_QUEUE])
    want: int = Field(default=1, ge=1, le=MAX_JOBS)
    kinds: Names | None = None
    ttl: Seconds = TTL
    wait: float = Field(
        default=0, ge=0, le=MAX_WAIT, allow_inf_nan=False, description="Seconds to wait for a first job."
    )


class ClaimedJobs(BaseModel):
    jobs: list[ClaimedJob]


class Checkpoint(Body):
    """A value for the next attempt (``name`` and ``value``), or the progress of this one."""

    job: Id
    attempt: Number
    name: str | None = Field(default=None, max_length=100)
    value: Any = None
    progress: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    message: str | None = Field(default=None, max_length=10_000)


class Saved(BaseModel):
    saved: Literal[True] = True


class ErrorReport(Body):
    type: str | None = Field(default=None, max_length=200)
    message: str | None = Field(default=None, max_length=100_000)
    traceback: str | None = Field(default=None, max_length=1_000_000)
    code: str | None = Field(default=None, max_length=100)


class Settle(Body):
    """How one attempt ended. ``failed`` is retried by the job's policy while attempts are left, ``retry`` likewise but
    ``after`` a number of seconds, ``reject`` never; ``snooze`` does not count as an attempt."""

    job: Id
    attempt: Number
    outcome: Literal["succeeded", "failed", "retry", "reject", "snooze", "cancel"]
    result: Any = None
    error: ErrorReport | None = None
    after: float | None = Field(default=None, ge=0, le=LONGEST_DELAY, allow_inf_nan=False)
    cost: float | None = Field(default=None, ge=0, le=1e12, allow_inf_nan=False)

    def report(self) -> Report:
        error = self.error or ErrorReport()
        details = (error.type, error.message, error.traceback, error.code)
        return Report(self.job, self.attempt, self.outcome, self.result, *details, self.after, self.cost)


class SettleMany(Body):
    settlements: Annotated[list[Settle], FailFast()] = Field(min_length=1, max_length=MAX_JOBS)


class SettledMany(BaseModel):
    settlements: list[SettleResult]


class Release(Body):
    jobs: Annotated[list[HeldJob], FailFast()] = Field(min_length=1, max_length=MAX_JOBS)


@router.post("", status_code=201, summary="Open a lease")
async def open_lease(request: Request, app: TheApp, body: OpenLease) -> OpenedLease:
    session = session_of(app)
    store, tenant = session.store, session.tenant
    kinds, queues = _check_names(body.kinds, "kind"), _check_names(body.queues, "queue")
    name, holder = check_name(body.name, "executor"), identity_of(request).actor
    lease = await session.arun(store.leases.open(holder, body.ttl, tenant, name, kinds, queues, body.slots))
    return OpenedLease(lease=lease.id, until=lease.until)


@router.post("/{lease}/renew", summary="Renew a lease")
async def renew_lease(app: TheApp, lease: str, body: RenewLease | None = None) -> RenewedLease:
    session = session_of(app)
    token = await _renew(app, lease, TTL if body is None else body.ttl)
    held = await session.arun(session.store.leases.holdings(token, session.tenant))
    return RenewedLease(lease=token, jobs=[HeldJob(id=each.id, attempt=each.attempt) for each in held])


@router.delete("/{lease}", status_code=204, summary="End a lease; the jobs it still holds return to their queues")
async def end_lease(app: TheApp, lease: str) -> None:
    session = session_of(app)
    if not await session.arun(session.store.leases.end(parse_id(lease), "closed", session.tenant)):
        raise NotFound("no such lease, or it has ended", code="lease_not_found")


@router.post("/{lease}/claim", summary="Claim jobs, optionally waiting for the first")
async def claim(request: Request, app: TheApp, broker: Broker, lease: str, body: ClaimJobs) -> ClaimedJobs:
    """Claim jobs. The request renews the lease, also while it waits."""
    queues = tuple(_check_names(body.queues, "queue") or ())
    kinds = None if body.kinds is None else tuple(_check_names(body.kinds, "kind") or ())
    token = await _renew(app, lease, body.ttl)
    claims = ClaimRequest(lease=token, queues=queues, want=body.want, kinds=kinds, tenant=session_of(app).tenant)
    jobs = await broker.claim(claims)
    if not jobs and body.wait:
        jobs = await _wait_for_jobs(request, app, broker, claims, body)
    return ClaimedJobs(jobs=jobs)


async def _wait_for_jobs(
    request: Request, app: App, broker: ClaimBroker, claims: ClaimRequest, body: ClaimJobs
) -> list[ClaimedJob]:
    loop = asyncio.get_running_loop()
    deadline, renewed = loop.time() + body.wait, loop.time()
    stopping: asyncio.Event = request.app.state.stopping
    with broker.listening(claims.queues) as notified:
        while (left := deadline - loop.time()) > 0 and not stopping.is_set():
            notified.clear()
            # A client that has disconnected must not get jobs: no one would run them.
            if await request.is_disconnected():
                return []
            if loop.time() - renewed > body.ttl / 3:
                await _renew(app, claims.lease, body.ttl)
                renewed = loop.time()
            if jobs := await broker.claim(claims):
                return jobs
            try:
                async with asyncio.timeout(min(left, POLL_EVERY)):
                    await notified.wait()
            except TimeoutError:
                pass
    return []


@router.post("/{lease}/checkpoint", summary="Save a checkpoint or report progress")
async def checkpoint(app: TheApp, broker: Broker, lease: str, body: Checkpoint) -> Saved:
    session = session_of(app)
    job, token = parse_id(body.job), parse_id(lease)
    has_progress = body.progress is not None or body.message is not None
    if (body.name is None) != has_progress:
        raise InvalidInput(
            "pass a name and a value, or progress and a message", code="invalid_request", fix="Send two requests."
        )
    if body.name is None:
        progress = Progress.of(body.progress, body.message, body.attempt, broker.redactor())
        name, text = RESERVED, progress.to_json()
    else:
        name = check_name(body.name, "checkpoint")
        if name in (RESERVED, RUNNING):
            raise InvalidInput("this name is reserved", code="reserved_name")
        text = await _pack(app, job, token, body.attempt, name, body.value)
    save = session.store.steps.save_checkpoint
    if not await session.arun(save(job, token, body.attempt, name, text, session.tenant)):
        raise _stale()
    return Saved()


async def _pack(app: App, job: str, lease: str, attempt: int, name: str, value: Any) -> str:
    """Encode the value as a local worker would: sealed if there are keys, in the artifact store if it is large."""
    session, tenant = session_of(app), session_of(app).tenant
    text = session.vault.encode_part(value, "checkpoint")
    if tenant == EVERY_TENANT and (session.vault.keys is not None or len(text) > DEFAULT_LIMIT // 4):
        row = await session.arun(session.store.jobs.get(job, tenant))
        if row is None:
            raise _stale()
        tenant = row.tenant
    part = session.vault.pack_part(text, what="checkpoint", tenant=tenant, job_id=job, place=name)
    if part.ref is not None:
        note = session.store.steps.note_upload(job, lease, attempt, part.ref, session.tenant)
        if not await session.arun(note):
            raise _stale()
        await asyncio.to_thread(session.vault.upload, part, tenant=tenant, job_id=job)
    return part.text


@router.post("/{lease}/settle", summary="Report how attempts ended")
async def settle(app: TheApp, broker: Broker, lease: str, body: Settle | SettleMany) -> SettleResult | SettledMany:
    """Settle one attempt, or several (``settlements``). A single one is refused with 409 if the lease no longer holds
    it; several have one result each."""
    session = session_of(app)
    token = parse_id(lease)
    if isinstance(body, Settle):
        result = (await settle_all(broker, token, [body.report()], session.tenant))[0]
        if result.reason == "not_found":
            raise NotFound("no such job in this tenant")
        if not result.settled:
            raise _stale()
        return result
    reports = [settlement.report() for settlement in body.settlements]
    return SettledMany(settlements=await settle_all(broker, token, reports, session.tenant))


@router.post("/{lease}/release", summary="Release jobs unfinished, at no cost")
async def release(app: TheApp, broker: Broker, lease: str, body: Release) -> SettledMany:
    reports = [Report(job.id, job.attempt, "snooze", unfinished=True) for job in body.jobs]
    return SettledMany(settlements=await settle_all(broker, parse_id(lease), reports, session_of(app).tenant))


async def _renew(app: App, lease: str, ttl: float) -> str:
    session = session_of(app)
    token = parse_id(lease)
    if not await session.arun(session.store.leases.renew(token, ttl, session.tenant)):
        raise StaleLease("unknown or ended lease: open another one")
    return token


def _stale() -> StaleLease:
    return StaleLease("this attempt is no longer held by this lease: nothing was written")


def _check_names(names: list[str] | None, what: str) -> list[str] | None:
    return None if names is None else [check_name(name, what) for name in names]


tick_router = Router(tags=["jobs"])

TICK_MAX_JOBS, MAX_TICK_SECONDS = 100, 300.0


class TickRequest(Body):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"limit": 20, "timeout": 30}]})

    limit: int = Field(default=10, ge=1, le=TICK_MAX_JOBS, description="Maximum number of jobs.")
    queues: list[Annotated[str, Field(max_length=100)]] | None = Field(
        default=None, min_length=1, max_length=100, description="Default: every queue that the app declares."
    )
    concurrency: int = Field(default=16, ge=1, le=TICK_MAX_JOBS)
    timeout: float = Field(
        default=60,
        ge=0.1,
        le=MAX_TICK_SECONDS,
        allow_inf_nan=False,
        description="Seconds after which unfinished jobs are released.",
    )


@tick_router.post("/jobs/tick", dependencies=[allowed(Scope.WORK)], summary="Run a few jobs here and now")
async def tick(app: TheApp, body: TickRequest | None = None) -> TickSummary:
    """Run at most `limit` jobs now. Several calls may run at the same time; no job is claimed twice."""
    body = body or TickRequest()
    options: TickKeywords = {
        "concurrency": body.concurrency,
        "timeout": body.timeout,
        "tenant": session_of(app).tenant,
    }
    if body.queues is not None:
        options["queues"] = body.queues
    ticking = app.atick(body.limit, **options)
    # A new context: handlers act in their own name, not as the caller of this route.
    return await asyncio.get_running_loop().create_task(ticking, context=contextvars.Context())
