"""Tables and sessions of the help desk. They are in the same database as Holdfast's."""

from __future__ import annotations

import os

from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

URL = os.environ.get("HOLDFAST_URL", "sqlite:///help_desk.db")


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "desk_orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    delivered: Mapped[bool] = mapped_column(default=False)
    refunded: Mapped[int] = mapped_column(default=0)


class Ticket(Base):
    __tablename__ = "desk_tickets"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    order: Mapped[int]
    text: Mapped[str]
    reply: Mapped[str | None]


def make_engine(url: str = URL) -> AsyncEngine:
    driver = "sqlite+aiosqlite" if url.startswith("sqlite") else "postgresql+psycopg"
    return create_async_engine(driver + url[url.index(":") :])


engine = make_engine()
make_session = async_sessionmaker(engine, expire_on_commit=False)


async def create_tables() -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
