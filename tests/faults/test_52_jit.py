"""Fault 52: a stock PostgreSQL with LLVM and `jit = on`. The server must not compile any statement of a worker.

A function that sets `enable_seqscan = off` or similar gets plans that cost more than `jit_above_cost`, so each call
would be compiled for tens of milliseconds: a burst of a hundred jobs took 20 s instead of 0.3 s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from holdfast.features.assembly import open_store
from holdfast.stores.requests import JobFilter
from tests.faults.workload import AT_ONCE
from tests.support.postgres_binaries import debian_bin
from tests.support.postgres_server import MISSING, DebianServer
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("DP-20")

UNGUARDED = """
    select p.oid::regprocedure::text from pg_proc p
     where p.pronamespace = 'holdfast'::regnamespace and p.proconfig::text like '%enable_%'
       and not 'jit=off' = any (p.proconfig)
"""
PLAN = re.compile(r"plan:\n(?P<plan>(?:\t.*\n)+)")
READS_A_TABLE = re.compile(r"(?:Seq|Index|Index Only|Bitmap Heap) Scan .*\bon (?!pg_)")


def test_every_function_with_planner_settings_disables_jit(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        count = connection.execute("select count(*) from pg_proc where proconfig::text like '%enable_%'").fetchone()
        assert count is not None
        assert count[0] > 40
        assert connection.execute(UNGUARDED).fetchall() == []


@pytest.fixture(scope="session")
def debian() -> Iterator[DebianServer]:
    """A server that logs the plan of every statement, also of those inside functions."""
    if debian_bin() is None:
        pytest.skip(MISSING)
    server = DebianServer(
        in_memory=True,
        settings={
            "session_preload_libraries": "auto_explain",
            "auto_explain.log_min_duration": "0",
            "auto_explain.log_analyze": "on",
            "auto_explain.log_timing": "off",
        },
    )
    try:
        server.start()
        yield server
    finally:
        server.destroy()


@pytest.fixture
def stock_url(debian: DebianServer, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"jit_{abs(hash(request.node.name)):x}"
    url = debian.create_database(name)
    with closing(open_store(url)) as store:
        store.migrate()
    yield url
    debian.drop_database(name)


class CompiledPlans:
    """The plans that the server has compiled since the creation of this object."""

    def __init__(self, server: DebianServer) -> None:
        self._server = server
        self._seen = len(server.log())

    def plans(self) -> list[str]:
        plans = [match["plan"] for match in PLAN.finditer(self._server.log()[self._seen :])]
        assert plans, "the server logs its plans"
        return [plan for plan in plans if "JIT:" in plan]


def set_for(url: str, **settings: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for name, value in settings.items():
            connection.execute(f'alter database "{connection.info.dbname}" set {name} = {value}')


@pytest.mark.slow
def test_server_compiles_unguarded_statement(debian: DebianServer, stock_url: str) -> None:
    """Otherwise the tests below would prove nothing."""
    compiled = CompiledPlans(debian)
    with psycopg.connect(stock_url, autocommit=True) as connection:
        assert connection.execute("select pg_jit_available(), current_setting('jit')").fetchone() == (True, "on")
        connection.execute("set enable_seqscan = off")
        connection.execute("select count(*) from pg_description d where d.description like '%z%'").fetchone()
    assert len(compiled.plans()) == 1


@pytest.mark.slow
def test_no_worker_statement_is_compiled(debian: DebianServer, stock_url: str) -> None:
    set_for(stock_url, **{"auto_explain.log_nested_statements": "on"})
    with closing(App(stock_url, name="tests", enqueued_by="tester")) as app:

        @app.job(retry=AT_ONCE)
        async def task(number: int) -> int:
            if number % 10 == 0:
                raise ValueError(number)
            return number

        compiled = CompiledPlans(debian)
        for number in range(20):
            task.enqueue(number)
        work_off(app)
        assert len(app.jobs.list(state=State.SUCCEEDED)) == 18
        app.tick()  # every maintenance task
        with working(app):
            before = transactions(stock_url)
            until(lambda: transactions(stock_url) > before + 5, "the idle worker polls")
    assert compiled.plans() == []


def transactions(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "select xact_commit from pg_stat_database where datname = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.slow
def test_no_read_is_compiled_whatever_its_cost(debian: DebianServer, stock_url: str) -> None:
    """With this threshold every plan is expensive, as on tables with millions of rows."""
    with closing(App(stock_url, name="tests", enqueued_by="tester")) as app:

        @app.job()
        def task(number: int) -> None: ...

        ids = [task.enqueue(number).id for number in range(3)]
        set_for(stock_url, jit_above_cost="0")
    compiled = CompiledPlans(debian)
    with closing(App(stock_url, name="tests", enqueued_by="tester")) as app:
        store, run = session_of(app).store, session_of(app).store.run
        assert len(run(store.jobs.list(JobFilter(tenant="default")))) == 3
        assert run(store.jobs.get(ids[0], "default")) is not None
        app.dead_letters.groups()
        app.schedules.list()
        app.health.get()
        app.jobs.why(ids[0])
        app.jobs.handle(ids[0]).history()
    assert [plan for plan in compiled.plans() if READS_A_TABLE.search(plan)] == []


@pytest.mark.slow
def test_doctor_warns_of_functions_that_would_be_compiled(stock_url: str) -> None:
    with closing(open_store(stock_url)) as store:
        (jit,) = [finding for finding in store.diagnose() if finding.name == "jit"]
        assert (jit.ok, jit.says) == (True, "jit = on; Holdfast turns it off for its own statements")
        with psycopg.connect(stock_url, autocommit=True) as connection:
            connection.execute("alter function holdfast.promote_due reset jit")
        (jit,) = [finding for finding in store.diagnose() if finding.name == "jit"]
        assert not jit.ok
        assert "1 functions of the schema do not turn it off" in jit.says
        set_for(stock_url, jit="off")
        assert next(finding for finding in store.diagnose() if finding.name == "jit").ok


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("statement_timeout", "'2s'", "statement_timeout = 2s: long batches are cut off"),
        ("idle_session_timeout", "'5s'", "idle connections are closed"),
        ("default_transaction_read_only", "on", "no job can be enqueued"),
        ("default_transaction_isolation", "serializable", "(isolation_level)"),
        ("enable_indexscan", "off", "whole tables"),
        ("enable_nestloop", "off", "whole tables"),
    ],
)
def test_doctor_warns_of_harmful_settings(empty_postgres_url: str, setting: str, value: str, says: str) -> None:
    with closing(open_store(empty_postgres_url)) as store:
        assert [finding.ok for finding in store.diagnose() if finding.name == "settings"] == [True]
        set_for(empty_postgres_url, **{setting: value})
        (finding,) = [finding for finding in store.diagnose() if finding.name == setting]
        assert (finding.ok, says in finding.says, bool(finding.fix)) == (False, True, True)
