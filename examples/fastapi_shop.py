"""A FastAPI shop: an order and the job for its receipt are committed together; a worker runs in the same process.

    python examples/fastapi_shop.py                                          # place two orders and exit
    uvicorn --factory --app-dir examples fastapi_shop:make_site              # serve it

The dashboard is at /jobs/. Log in as any user with the header `x-user`, which stands in for your authentication.
Install with: pip install 'holdfast[fastapi,sqlalchemy]' aiosqlite httpx2
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, Header, HTTPException
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.testclient import TestClient

import holdfast
from holdfast.errors import InvalidInput, NotFound
from holdfast.integrations.fastapi import Holdfast, Identity, JobsDep, identity, session_jobs
from holdfast.integrations.sqlalchemy import AttemptSession, SessionJobs


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    receipt: Mapped[str] = mapped_column(default="")


def make_site(url: str | None = None) -> FastAPI:
    url = url or os.environ.get("HOLDFAST_URL") or f"sqlite:///{Path(tempfile.mkdtemp())}/shop.db"
    driver = "sqlite+aiosqlite" if url.startswith("sqlite") else "postgresql+psycopg"
    engine = create_async_engine(driver + url[url.index(":") :])
    make_session = async_sessionmaker(engine, expire_on_commit=False)

    jobs = holdfast.App(url, name="shop")
    sessions = AttemptSession(make_session)  # a session for each attempt, committed when the handler returns
    jobs.hooks.include(sessions.hooks)

    @jobs.job(queue="default")
    async def send_receipt(order_id: int) -> str:
        order = await sessions.current.get_one(Order, order_id)
        order.receipt = f"sent to {order.email}"
        return order.receipt

    @asynccontextmanager
    async def lifespan(site: FastAPI) -> AsyncIterator[None]:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield
        await engine.dispose()

    hosted = Holdfast(jobs, worker=True, lifespan=lifespan)
    site = FastAPI(lifespan=hosted.lifespan)

    async def get_session() -> AsyncIterator[AsyncSession]:
        async with make_session() as session:
            yield session

    def current_user(x_user: Annotated[str | None, Header()] = None) -> str:
        if x_user is None:
            raise HTTPException(401, "Authentication required")
        return x_user

    depends_on_user: str = Depends(current_user)

    def operator(user: str = depends_on_user) -> Identity:
        return identity(user, "operator")

    hosted.mount(site, "/jobs", identity=operator)
    in_session: SessionJobs[AsyncSession] = session_jobs(get_session)

    @site.post("/orders")
    async def place(email: str, tx: SessionJobs[AsyncSession] = in_session) -> dict[str, str | int]:
        order = Order(email=email)
        tx.session.add(order)
        await tx.session.flush()  # assigns the id of the order
        handle = await tx.aenqueue(send_receipt, order.id)
        if "@" not in email:
            raise HTTPException(422, "not an email address")  # without a commit there is no order and no job
        await tx.session.commit()
        return {"order": order.id, "job": handle.id}

    @site.get("/jobs-of-the-shop/{job_id}")
    async def state(job_id: str, jobs: JobsDep) -> str:
        try:
            return (await jobs.jobs.handle(job_id).await_end(timeout="30s")).state
        except (InvalidInput, NotFound):  # not an id, or no such job
            raise HTTPException(404, "No such job") from None

    return site


def main(url: str | None = None) -> dict[str, str | int]:
    with TestClient(make_site(url)) as client:
        assert client.post("/orders", params={"email": "not-an-address"}).status_code == 422
        placed: dict[str, str | int] = client.post("/orders", params={"email": "ada@example.com"}).json()
        ended = client.get(f"/jobs-of-the-shop/{placed['job']}").json()
        print(f"order {placed['order']}: {ended}")
        print(f"dashboard: {client.get('/jobs/').status_code} without a user, ", end="")
        listed = client.get("/jobs/api/v1/jobs", headers={"x-user": "ada"}).json()["items"]
        print(f"{client.get('/jobs/', headers={'x-user': 'ada'}).status_code} with one; {len(listed)} job")
        return {"state": ended, "jobs": len(listed)}


if __name__ == "__main__":
    main()
