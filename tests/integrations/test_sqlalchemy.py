"""SQLAlchemy, SQLModel and Alembic, with their current releases."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, create_engine, inspect, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlmodel import Field, SQLModel
from sqlmodel import Session as ModelSession

from holdfast import App, Retry
from holdfast.errors import HoldfastError, InvalidSetting
from holdfast.features.assembly import open_store
from holdfast.integrations.alembic import sqlite_tables
from holdfast.integrations.sqlalchemy import AttemptSession, SessionJobs, aenqueue, enqueue, url_of
from tests.support.workers import work_off

pytestmark = pytest.mark.req("HF-8")


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


class Item(SQLModel, table=True):
    id: int = Field(primary_key=True)


@pytest.fixture
def engine(sqlite_url: str) -> Iterator[Engine]:
    engine = create_engine(sqlite_url)
    Base.metadata.create_all(engine)
    SQLModel.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def app(engine: Engine) -> Iterator[App]:
    with closing(App(url_of(engine), name="tests")) as app:
        yield app


def test_mistakes_are_named(app: App, engine: Engine) -> None:
    with Session(engine) as session, pytest.raises(InvalidSetting, match=r"app\.enqueue\(.*connection=session\)"):
        enqueue(session, "receipt", 1)  # type: ignore[arg-type]
    for url in (engine, engine.url):
        with pytest.raises(InvalidSetting, match=r"expected text.*url_of\(engine\)"):
            App(url)  # type: ignore[arg-type]


def test_job_exists_if_the_session_commits(app: App, engine: Engine) -> None:
    @app.job
    def receipt(order: int) -> int:
        return order

    for session_type in (Session, ModelSession):
        with session_type(engine) as session:
            session.add(Order(id=1) if session_type is Session else Item(id=1))
            enqueue(session, receipt, 1)
            session.rollback()
        assert app.jobs.list() == []
    with ModelSession(engine) as session, session.begin():
        session.add(Item(id=1))
        handle = SessionJobs(session).enqueue(receipt, order=7)
    work_off(app)
    assert handle.result() == 7


async def test_job_exists_if_the_async_session_commits(app: App, engine: Engine, sqlite_url: str) -> None:
    @app.job
    async def receipt(order: int) -> int:
        return order

    aengine = create_async_engine(sqlite_url.replace("sqlite:", "sqlite+aiosqlite:"))
    assert url_of(aengine) == sqlite_url
    async with AsyncSession(aengine) as session:
        session.add(Order(id=1))
        await aenqueue(session, receipt, 1)
        await session.rollback()
        assert await app.jobs.alist() == []
        handle = await SessionJobs(session).aenqueue(receipt, 2)
        await session.commit()
    await aengine.dispose()
    await app.atick()
    assert await handle == 2


def test_attempt_session_commits_or_rolls_back(app: App, engine: Engine, sqlite_url: str) -> None:
    sessions = AttemptSession(sessionmaker(engine))
    aengine = create_async_engine(sqlite_url.replace("sqlite:", "sqlite+aiosqlite:"))
    asessions = AttemptSession(async_sessionmaker(aengine))
    app.hooks.include(sessions.hooks)

    def write(id: int, fail: bool) -> None:
        sessions.current.add(Order(id=id))
        sessions.current.flush()
        if fail:
            raise ValueError("no")

    async def awrite(id: int) -> None:
        asessions.current.add(Order(id=id))

    job = app.job("write", retry=Retry(max_attempts=1))(write)
    job.enqueue(1, fail=False)
    job.enqueue(2, fail=True)
    work_off(app)
    app.job("awrite", hooks=[asessions.hooks])(awrite).enqueue(3)
    work_off(app)
    asyncio.run(aengine.dispose())
    with Session(engine) as session:
        assert [row.id for row in session.query(Order).order_by(Order.id)] == [1, 3]
    with pytest.raises(InvalidSetting) as outside:
        sessions.current  # noqa: B018
    assert outside.value.code == "no_session"


ENV = """
from alembic import context
from sqlalchemy import MetaData, Table, Column, Integer
from holdfast.integrations.alembic import include_name
target_metadata = MetaData()
Table("orders", target_metadata, Column("id", Integer, primary_key=True))

def run(connection):
    context.configure(
        connection=connection, target_metadata=target_metadata, include_name=include_name, include_schemas=True
    )
    with context.begin_transaction():
        context.run_migrations()

if context.is_offline_mode():
    context.configure(url=URL, dialect_name="sqlite")
    context.run_migrations()
elif "+async" in URL:
    import asyncio
    from sqlalchemy.ext.asyncio import create_async_engine
    async def main():
        engine = create_async_engine(URL)
        async with engine.connect() as connection:
            await connection.run_sync(run)
            await connection.commit()
        await engine.dispose()
    asyncio.run(main())
else:
    from sqlalchemy import create_engine
    with (engine := create_engine(URL)).connect() as connection:
        run(connection)
    engine.dispose()
"""
SCRIPT = '''"""${message}"""
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
from alembic import op
import sqlalchemy as sa

def upgrade():
    ${upgrades if upgrades else "pass"}

def downgrade():
    ${downgrades if downgrades else "pass"}
'''
VERSION = """
revision = "a1"
down_revision = None
from alembic import op
import sqlalchemy as sa

def upgrade():
    op.create_table("orders", sa.Column("id", sa.Integer, primary_key=True))
    op.holdfast_migrate()
    op.execute("insert into orders values (1)")

def downgrade():
    op.drop_table("orders")
"""


@pytest.mark.parametrize("driver", ["sqlite", "psycopg", "psycopg2", "asyncpg"])
def test_alembic_migration_creates_the_tables_and_autogenerate_ignores_them(
    request: pytest.FixtureRequest, tmp_path: Path, driver: str
) -> None:
    url = request.getfixturevalue("new_sqlite_url" if driver == "sqlite" else "empty_postgres_url")
    named = url if driver == "sqlite" else url.replace("postgresql:", f"postgresql+{driver}:")
    config = _project(tmp_path, named)
    command.upgrade(config, "head")
    command.upgrade(config, "head")
    with closing(open_store(url)) as store:
        assert store.schema().current
    engine = create_engine(url if driver == "sqlite" else url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        assert connection.scalar(text("select count(*) from orders")) == 1
        assert connection.scalar(text("select version_num from alembic_version")) == "a1"
    engine.dispose()
    command.check(config)  # autogenerate finds nothing to do and would not drop Holdfast's tables


def test_table_list_is_complete(engine: Engine) -> None:
    """Autogenerate would drop a Holdfast table that is missing here."""
    with engine.connect() as connection:
        names = set(inspect(connection).get_table_names())
    assert {"job", "job_state", "event"} < sqlite_tables() < names
    assert names - sqlite_tables() == {"orders", "item"}


def test_offline_migration_is_refused(tmp_path: Path, new_sqlite_url: str) -> None:
    with pytest.raises(HoldfastError) as refused:
        command.upgrade(_project(tmp_path, new_sqlite_url), "head", sql=True)
    assert refused.value.code == "offline_migration"


def _project(folder: Path, url: str) -> Config:
    scripts = folder / "alembic"
    (scripts / "versions").mkdir(parents=True)
    (scripts / "env.py").write_text(f"URL = {url!r}\n{ENV}")
    (scripts / "script.py.mako").write_text(SCRIPT)
    (scripts / "versions" / "a1.py").write_text(VERSION)
    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
