"""``/audit``: configuration changes, and the verification of the sealed ledger."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel

from holdfast.features.audit.model import Action, Anchor
from holdfast.features.audit.operations import Witnessed
from holdfast.features.audit.verification import Report
from holdfast.features.jobs.search import moment
from holdfast.features.tokens.model import Scope
from holdfast.server.json_body import Router
from holdfast.server.parameters import PAGE, Id, Limit, Page, TheApp, allowed, allowed_all_tenants, paged

router = Router(prefix="/audit", tags=["audit"])

MOST_SEALS = 1_000

NameQuery = Annotated[str | None, Query(max_length=255)]


class Verified(BaseModel):
    """``next`` is the seal to continue with, if there are more seals than one request verifies."""

    report: Report
    next: int | None


@router.get("/actions", dependencies=[allowed(Scope.READ)], response_model=Page[Action])
async def list_actions(
    app: TheApp,
    subject: NameQuery = None,
    name: NameQuery = None,
    actor: NameQuery = None,
    since: NameQuery = None,
    after: Annotated[int | None, Query(ge=1, le=2**62, description="The number of the last one seen.")] = None,
    limit: Limit = PAGE,
) -> Page[Action]:
    """List configuration changes (limits, agents, schedules, executors, rules, …), newest first."""
    client = app._session
    earliest = None if since is None else moment(since, await client.arun(client.store.clock.now()))
    actions = await app.audit.aactions(
        subject=subject, name=name, actor=actor, since=earliest, before=after, limit=limit + 1
    )
    return paged(actions, limit, lambda action: action.seq)


@router.get("/verify", dependencies=[allowed_all_tenants(Scope.READ)], response_model=Verified)
async def verify_audit(
    app: TheApp,
    begin: Annotated[int, Query(ge=1, le=2**62)] = 1,
    seals: Annotated[int, Query(ge=1, le=MOST_SEALS)] = MOST_SEALS,
    anchor: Annotated[list[str] | None, Query(max_length=20)] = None,
) -> Verified:
    """Verify the chain from seal `begin` on, for a limited number of seals per request, and report every mismatch."""
    report, following = await asyncio.to_thread(app.audit.verify_some, seals, anchors=anchor or (), begin=begin)
    return Verified(report=report, next=following)


@router.get("/anchor", dependencies=[allowed_all_tenants(Scope.READ)], response_model=str)
async def audit_anchor(app: TheApp) -> str:
    """Show the newest seal as one line. Store it where the database owner cannot change it."""
    anchor: Anchor = await app.audit.aanchor()
    return str(anchor)


@router.get("/jobs/{job_id}", dependencies=[allowed(Scope.READ)], response_model=Page[Witnessed])
async def audit_job(app: TheApp, job_id: Id) -> Page[Witnessed]:
    """List a job's events with their seals, and whether each is unchanged."""
    return Page(items=await app.audit.aget(job_id))
