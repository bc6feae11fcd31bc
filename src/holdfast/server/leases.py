"""Routes for workers of other languages: leases, claims, settlements; the tick route.

For workers of other languages: open a lease, claim under it, say how each attempt ended, and end it.

A lease is a worker's word that it is alive; whoever does not renew it in time loses what it holds to others. The fence
of every write is (lease, attempt): a worker that was taken for dead is told so, and writes nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import Annotated, Any, Literal

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, FailFast, Field
from starlette.datastructures import State

from holdfast.app import App
from holdfast.engine.ids import parse_id
from holdfast.engine.job import DEFAULT_QUEUE, EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.engine.payload import DEFAULT_LIMIT
from holdfast.engine.settlement import LONGEST_DELAY
from holdfast.engine.steps import RESERVED, RUNNING, Progress
from holdfast.errors import InvalidInput, NotFound, StaleLease
from holdfast.features.jobs.lease_answers import ClaimedJob, HeldJob, OpenedLease, RenewedLease, SettleResult
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import identity_of
from holdfast.server.bodies import Body
from holdfast.server.claims import LOOK_EVERY, ClaimBroker, Said, settle_all
from holdfast.server.json_body import Router
from holdfast.server.parameters import TheApp, allowed
from holdfast.stores.requests import ClaimRequest
from holdfast.worker.options import Ticking, TickSummary

router = Router(prefix="/leases", tags=["leases"], dependencies=[allowed(Scope.WORK)])

TTL, MOST_JOBS, LONGEST_WAIT = 30.0, 100, 30.0

Id = Annotated[str, Field(max_length=36, examples=["0198c5b4-0000-7000-8000-000000000001"])]
Number = Annotated[int, Field(ge=0, le=2**31 - 1)]
Seconds = Annotated[float, Field(ge=1, le=3600, allow_inf_nan=False, description="How long it lasts unless renewed.")]
Names = Annotated[list[Annotated[str, Field(max_length=100)]], Field(min_length=1, max_length=100)]


def _attended(state: State) -> bool:
    """Whether the service itself does the duties, for whoever claims."""
    return state.attending is not None and state.attending.tenant == EVERY_TENANT


def _handing_out(request: Request) -> ClaimBroker:
    state = request.app.state
    if not hasattr(state, "handing_out"):
        state.handing_out = ClaimBroker(state.app, attends=not _attended(state), patience=state.patience)
    found: ClaimBroker = state.handing_out
    return found


Out = Annotated[ClaimBroker, Depends(_handing_out)]


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
    want: int = Field(default=1, ge=1, le=MOST_JOBS)
    kinds: Names | None = None
    ttl: Seconds = TTL
    wait: float = Field(
        default=0, ge=0, le=LONGEST_WAIT, allow_inf_nan=False, description="Seconds to wait for a first job."
    )


class ClaimedJobs(BaseModel):
    jobs: list[ClaimedJob]


class Checkpoint(Body):
    """Something the next attempt finds (``name`` and ``value``), or how far this one is."""

    job: Id
    attempt: Number
    name: str | None = Field(default=None, max_length=100)
    value: Any = None
    progress: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    message: str | None = Field(default=None, max_length=10_000)


class Saved(BaseModel):
    saved: Literal[True] = True


class ErrorSaid(Body):
    type: str | None = Field(default=None, max_length=200)
    message: str | None = Field(default=None, max_length=100_000)
    traceback: str | None = Field(default=None, max_length=1_000_000)
    code: str | None = Field(default=None, max_length=100)


class Settle(Body):
    """How one attempt ended. ``failed`` is tried again by the job's policy while tries are left, ``retry`` likewise but
    ``after`` so many seconds, ``reject`` never; ``snooze`` costs no try."""

    job: Id
    attempt: Number
    outcome: Literal["succeeded", "failed", "retry", "reject", "snooze", "cancel"]
    result: Any = None
    error: ErrorSaid | None = None
    after: float | None = Field(default=None, ge=0, le=LONGEST_DELAY, allow_inf_nan=False)
    cost: float | None = Field(default=None, ge=0, le=1e12, allow_inf_nan=False)

    def said(self) -> Said:
        error = self.error or ErrorSaid()
        words = (error.type, error.message, error.traceback, error.code)
        return Said(self.job, self.attempt, self.outcome, self.result, *words, self.after, self.cost)


class SettleMany(Body):
    settlements: Annotated[list[Settle], FailFast()] = Field(min_length=1, max_length=MOST_JOBS)


class SettledMany(BaseModel):
    settlements: list[SettleResult]


class Release(Body):
    jobs: Annotated[list[HeldJob], FailFast()] = Field(min_length=1, max_length=MOST_JOBS)


@router.post("", status_code=201, summary="Open a lease")
async def open_lease(request: Request, app: TheApp, wanted: OpenLease) -> OpenedLease:
    store, tenant = app._session.store, app._session.tenant
    kinds, queues = _checked(wanted.kinds, "kind"), _checked(wanted.queues, "queue")
    name, holder = check_name(wanted.name, "executor"), identity_of(request).actor
    lease = await app._session.arun(store.leases.open(holder, wanted.ttl, tenant, name, kinds, queues, wanted.slots))
    return OpenedLease(lease=lease.id, until=lease.until)


@router.post("/{lease}/renew", summary="Renew a lease")
async def renew_lease(app: TheApp, lease: str, wanted: RenewLease | None = None) -> RenewedLease:
    token = await _live(app, lease, TTL if wanted is None else wanted.ttl)
    held = await app._session.arun(app._session.store.leases.holdings(token, app._session.tenant))
    return RenewedLease(lease=token, jobs=[HeldJob(id=each.id, attempt=each.attempt) for each in held])


@router.delete("/{lease}", status_code=204, summary="End a lease; the jobs it still holds return to their queues")
async def end_lease(app: TheApp, lease: str) -> None:
    if not await app._session.arun(app._session.store.leases.end(parse_id(lease), "closed", app._session.tenant)):
        raise NotFound("no such lease, or it has ended", code="lease_not_found")


@router.post("/{lease}/claim", summary="Take jobs, and wait for them if asked to")
async def claim(request: Request, app: TheApp, out: Out, lease: str, wanted: ClaimJobs) -> ClaimedJobs:
    """Claim jobs. The request renews the lease, also while it waits."""
    queues = tuple(_checked(wanted.queues, "queue") or ())
    kinds = None if wanted.kinds is None else tuple(_checked(wanted.kinds, "kind") or ())
    token = await _live(app, lease, wanted.ttl)
    asked = ClaimRequest(lease=token, queues=queues, want=wanted.want, kinds=kinds, tenant=app._session.tenant)
    jobs = await out.claim(asked)
    if not jobs and wanted.wait:
        jobs = await _waited(request, app, out, asked, wanted)
    return ClaimedJobs(jobs=[ClaimedJob(**job) for job in jobs])


async def _waited(
    request: Request, app: App, out: ClaimBroker, asked: ClaimRequest, wanted: ClaimJobs
) -> list[dict[str, Any]]:
    loop = asyncio.get_running_loop()
    deadline, renewed = loop.time() + wanted.wait, loop.time()
    stopping: asyncio.Event = request.app.state.stopping
    with out.listening(asked.queues) as told:
        while (left := deadline - loop.time()) > 0 and not stopping.is_set():
            told.clear()
            # Somebody who has gone must not be given jobs that nobody would run.
            if await request.is_disconnected():
                return []
            if loop.time() - renewed > wanted.ttl / 3:
                await _live(app, asked.lease, wanted.ttl)
                renewed = loop.time()
            if jobs := await out.claim(asked):
                return jobs
            try:
                async with asyncio.timeout(min(left, LOOK_EVERY)):
                    await told.wait()
            except TimeoutError:
                pass
    return []


@router.post("/{lease}/checkpoint", summary="Save a checkpoint or report progress")
async def checkpoint(app: TheApp, out: Out, lease: str, wanted: Checkpoint) -> Saved:
    job, token = parse_id(wanted.job), parse_id(lease)
    says_progress = wanted.progress is not None or wanted.message is not None
    if (wanted.name is None) != says_progress:
        raise InvalidInput(
            "pass a name and a value, or progress and a message", code="invalid_request", fix="Send two requests."
        )
    if wanted.name is None:
        progress = Progress.of(wanted.progress, wanted.message, wanted.attempt, out.redactor())
        name, text = RESERVED, progress.to_json()
    else:
        name = check_name(wanted.name, "checkpoint")
        if name in (RESERVED, RUNNING):
            raise InvalidInput("this name is reserved", code="reserved_name")
        text = await _packed(app, job, token, wanted.attempt, name, wanted.value)
    save = app._session.store.steps.save_checkpoint
    if not await app._session.arun(save(job, token, wanted.attempt, name, text, app._session.tenant)):
        raise _stale()
    return Saved()


async def _packed(app: App, job: str, lease: str, attempt: int, name: str, value: Any) -> str:
    """As the service's own workers would save it: sealed if there are keys, in the artifact store if it is large."""
    session, tenant = app._session, app._session.tenant
    text = session.vault.encode_part(value, "checkpoint")
    if tenant == EVERY_TENANT and (session.vault.keys is not None or len(text) > DEFAULT_LIMIT // 4):
        found = await session.arun(session.store.jobs.get(job, tenant))
        if found is None:
            raise _stale()
        tenant = found.tenant
    part = session.vault.pack_part(text, what="checkpoint", tenant=tenant, job_id=job, place=name)
    if part.ref is not None:
        note = session.store.steps.note_upload(job, lease, attempt, part.ref, session.tenant)
        if not await session.arun(note):
            raise _stale()
        await asyncio.to_thread(session.vault.upload, part, tenant=tenant, job_id=job)
    return part.text


@router.post("/{lease}/settle", summary="Say how attempts ended")
async def settle(app: TheApp, out: Out, lease: str, wanted: Settle | SettleMany) -> SettleResult | SettledMany:
    """One is answered for itself, and refused with 409 when it is no longer the caller's; of several
    (``settlements``), each has its own verdict."""
    token = parse_id(lease)
    if isinstance(wanted, Settle):
        verdict = (await settle_all(out, token, [wanted.said()], app._session.tenant))[0]
        if verdict.reason == "not_found":
            raise NotFound("no such job in this tenant")
        if not verdict.settled:
            raise _stale()
        return verdict
    said = [each.said() for each in wanted.settlements]
    return SettledMany(settlements=await settle_all(out, token, said, app._session.tenant))


@router.post("/{lease}/release", summary="Release jobs unfinished, at no cost")
async def release(app: TheApp, out: Out, lease: str, wanted: Release) -> SettledMany:
    said = [Said(each.id, each.attempt, "snooze", unfinished=True) for each in wanted.jobs]
    return SettledMany(settlements=await settle_all(out, parse_id(lease), said, app._session.tenant))


async def _live(app: App, lease: str, ttl: float) -> str:
    token = parse_id(lease)
    if not await app._session.arun(app._session.store.leases.renew(token, ttl, app._session.tenant)):
        raise StaleLease("unknown or ended lease: open another one")
    return token


def _stale() -> StaleLease:
    return StaleLease("this attempt is no longer held by this lease: nothing was written")


def _checked(names: list[str] | None, what: str) -> list[str] | None:
    return None if names is None else [check_name(name, what) for name in names]


tick_router = Router(tags=["jobs"])

TICK_MOST_JOBS, LONGEST = 100, 300.0


class TickAsked(Body):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"limit": 20, "timeout": 30}]})

    limit: int = Field(default=10, ge=1, le=TICK_MOST_JOBS, description="Maximum number of jobs.")
    queues: list[Annotated[str, Field(max_length=100)]] | None = Field(
        default=None, min_length=1, max_length=100, description="Without them, every queue that the app declares."
    )
    concurrency: int = Field(default=16, ge=1, le=TICK_MOST_JOBS)
    timeout: float = Field(
        default=60,
        ge=0.1,
        le=LONGEST,
        allow_inf_nan=False,
        description="What runs after so many seconds is handed back.",
    )


@tick_router.post("/jobs/tick", dependencies=[allowed(Scope.WORK)], summary="Run a few jobs here and now")
async def tick(app: TheApp, wanted: TickAsked | None = None) -> TickSummary:
    """Run at most `limit` jobs now. Several calls may run at the same time; no job is claimed twice."""
    wanted = wanted or TickAsked()
    options: Ticking = {
        "concurrency": wanted.concurrency,
        "timeout": wanted.timeout,
        "tenant": app._session.tenant,
    }
    if wanted.queues is not None:
        options["queues"] = wanted.queues
    ticking = app.atick(wanted.limit, **options)
    # In a context of its own: what handlers do is done by them, not by whoever rang.
    return await asyncio.get_running_loop().create_task(ticking, context=contextvars.Context())
