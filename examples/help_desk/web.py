"""The site of the help desk: tickets, and the dashboard for the people who decide."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException
from sqlalchemy.ext.asyncio import AsyncSession

from holdfast.integrations.fastapi import Holdfast, Identity, identity, session_jobs
from holdfast.integrations.sqlalchemy import SessionJobs
from jobs import answer, app
from models import Ticket, create_tables, engine, make_session


@asynccontextmanager
async def lifespan(site: FastAPI) -> AsyncIterator[None]:
    await create_tables()
    yield
    await engine.dispose()


hosted = Holdfast(app, lifespan=lifespan)
site = FastAPI(title="Help desk", lifespan=hosted.lifespan)


async def get_session() -> AsyncIterator[AsyncSession]:
    async with make_session() as session:
        yield session


def operator(x_user: Annotated[str | None, Header()] = None) -> Identity:
    """Put your login here. The name is written to the audit trail with every decision."""
    if x_user is None:
        raise HTTPException(401, "Authentication required")
    return identity(x_user, "operator", "approver")


hosted.mount(site, "/jobs", identity=operator)
in_session: SessionJobs[AsyncSession] = session_jobs(get_session)


@site.post("/tickets", status_code=201)
async def write(
    customer: str, order: int, text: str, tx: SessionJobs[AsyncSession] = in_session
) -> dict[str, int | str]:
    """Store the ticket and its job in one transaction."""
    ticket = Ticket(customer=customer, order=order, text=text)
    tx.session.add(ticket)
    await tx.session.flush()  # assigns the id
    handle = await tx.aenqueue(answer, ticket.id, order, text)
    await tx.session.commit()
    return {"ticket": ticket.id, "job": handle.id}


@site.get("/tickets/{ticket_id}")
async def read(ticket_id: int, session: Annotated[AsyncSession, Depends(get_session)]) -> dict[str, Any]:
    ticket = await session.get(Ticket, ticket_id)
    if ticket is None:
        raise HTTPException(404, "No such ticket")
    return {"ticket": ticket.id, "order": ticket.order, "reply": ticket.reply}
