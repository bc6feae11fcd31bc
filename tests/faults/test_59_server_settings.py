"""Fault 59: settings that a role or a database carries. The same results, or a clear refusal.

Each case sets one value and then runs a small life: enqueue, claim, settle, two votes at once on a quorum of two, two
exchanges at once under a limit of three, a list, a diagnosis. The slow cases are generated from ``pg_settings``.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from holdfast import App, State, SyncContext
from holdfast.errors import HoldfastError
from holdfast.features.assembly import Store, open_store
from holdfast.features.limits.model import Rule
from holdfast.stores.postgres import pipeline
from holdfast.stores.postgres.connections import connected
from holdfast.stores.postgres.doctor import ROLES
from holdfast.stores.requests import JobFilter
from tests.support.concurrency import together
from tests.support.ledger import check_ledger
from tests.support.pgbouncer import Pooler
from tests.support.postgres_databases import TemplateDatabases
from tests.support.steps import approval, asks, ballot, say
from tests.support.stores import apply, claim, job, new_id, open_lease, put, spec, work
from tests.support.waiting import until
from tests.support.workers import work_off

pytestmark = pytest.mark.req("DP-20", "CX-7", "JF-8")

TEXT = "5 € für 中文"
# Not pg_stat_activity, which a transaction reads once.
WAITING = "select count(distinct pid) from pg_locks where not granted"
# What a case may answer instead of the usual results, by the name of the setting.
REFUSED = {"session_replication_role": "replication_role", "default_transaction_read_only": "store_read_only"}


class Admin:
    """A connection that was opened before the settings were made."""

    def __init__(self, url: str) -> None:
        self.connection: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True)

    def set_for_database(self, name: str, value: str) -> None:
        self._set(sql.SQL("alter database {} set {} = {}"), self.connection.info.dbname, name, value)

    def set_for_role(self, role: str, name: str, value: str) -> None:
        self._set(sql.SQL("alter role {} set {} = {}"), role, name, value)

    def _set(self, statement: sql.SQL, whose: str, name: str, value: str) -> None:
        parts = sql.SQL(".").join(map(sql.Identifier, name.split(".")))
        self.connection.execute(statement.format(sql.Identifier(whose), parts, sql.Literal(value)))

    @contextmanager
    def holding(self, lock: str, waiters: int) -> Iterator[None]:
        """Hold a lock until so many sessions wait for one: their snapshots are older than each other's commits."""
        with self.connection.transaction():
            self.connection.execute("set local session_replication_role = origin")
            self.connection.execute(lock.encode())
            yield
            until(lambda: self.connection.execute(WAITING).fetchall() == [(waiters,)], "all calls wait for the lock")


@pytest.fixture
def admin(postgres_url: str) -> Iterator[Admin]:
    opened = Admin(postgres_url)
    with closing(opened.connection):
        yield opened


@pytest.fixture
def login(postgres_url: str, admin: Admin) -> Iterator[str]:
    """A login with every role of Holdfast that owns nothing."""
    name = "holdfast_with_settings"
    password = sql.Literal(psycopg.conninfo.conninfo_to_dict(postgres_url)["password"])
    admin.connection.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(name)))
    admin.connection.execute(sql.SQL("create role {} login password {}").format(sql.Identifier(name), password))
    for role in ROLES:
        admin.connection.execute(sql.SQL("grant {} to {}").format(sql.Identifier(role), sql.Identifier(name)))
    yield name
    admin.connection.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


def at_once(admin: Admin, lock: str, *calls: Callable[[], Any]) -> list[Any]:
    """Let the calls start together behind a lock, and return their results."""

    def release() -> None:
        with admin.holding(lock, len(calls)):
            held.set()

    held = threading.Event()

    def after(call: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            assert held.wait(30)
            return call()

        return run

    return together(release, *map(after, calls))[1:]


def vote_at_once(store: Store, admin: Admin) -> None:
    put(store, spec())
    (held,) = claim(store, open_lease(store))
    question = new_id()
    assert apply(store, held.lease, asks(held, question, quorum=2, approvers=("ada", "bob"))) == []
    lock = f"select from holdfast.approval where id = '{question}' for update"
    at_once(admin, lock, *(lambda person=who: say(store, question, ballot(person)) for who in ("ada", "bob")))
    assert approval(store, question).state == "approved", "both votes count"
    work(store)


def claim_at_once(store: Store, admin: Admin) -> None:
    store.run(store.limits.set(Rule.of("queue", "default", 3), "ada", "default"))
    put(store, *(spec() for _ in range(6)))
    leases = [open_lease(store), open_lease(store)]
    lock = "select from holdfast.mutex for update"
    claims = at_once(admin, lock, *(lambda lease=each: claim(store, lease, 6) for each in leases))
    assert sum(map(len, claims)) == 3, "the limit holds"
    store.run(store.limits.remove("queue", "default", "ada", "default"))


def life(url: str, admin: Admin) -> None:
    with closing(open_store(url)) as store:
        assert store.schema().current
        (stored,) = put(store, spec(payload={"text": TEXT, "n": 0.1 + 0.2}))
        first = job(store, stored)
        assert first.payload == {"text": TEXT, "n": 0.1 + 0.2}
        assert abs(first.created_at - datetime.now(UTC)) < timedelta(minutes=5)
        (held,) = work(store)
        assert json.loads(held.payload) == first.payload
        vote_at_once(store, admin)
        claim_at_once(store, admin)
        assert len(store.run(store.jobs.list(JobFilter(tenant="default", limit=50)))) == 8
        assert store.diagnose()
        check_ledger(store)


def check(url: str, admin: Admin, name: str) -> None:
    """Run the life, or check that it is refused as it should be."""
    if name not in REFUSED:
        life(url, admin)
        return
    with pytest.raises(HoldfastError) as caught:
        life(url, admin)
    assert (caught.value.code, bool(caught.value.fix)) == (REFUSED[name], True)
    assert admin.connection.execute("select count(*) from holdfast.job").fetchall() == [(0,)]


HOSTILE = [
    ("default_transaction_isolation", "repeatable read"),
    ("default_transaction_isolation", "serializable"),
    ("client_encoding", "LATIN1"),
    ("client_encoding", "SQL_ASCII"),
    ("datestyle", "German"),
    ("datestyle", "SQL, DMY"),
    ("intervalstyle", "iso_8601"),
    ("intervalstyle", "sql_standard"),
    ("timezone", "Asia/Kathmandu"),
    ("timezone", "<+03>-03"),
    ("standard_conforming_strings", "off"),
    ("extra_float_digits", "-15"),
    ("bytea_output", "escape"),
    ("session_replication_role", "replica"),
    ("default_transaction_read_only", "on"),
    ("default_transaction_deferrable", "on"),
    ("row_security", "off"),
    ("exit_on_error", "on"),
    ("plpgsql.extra_errors", "all"),
    ("plpgsql.variable_conflict", "use_variable"),
    ("plpgsql.variable_conflict", "error"),
    ("search_path", "nowhere"),
    ("client_min_messages", "error"),
    ("lock_timeout", "5s"),
    ("statement_timeout", "20s"),
    ("idle_in_transaction_session_timeout", "10s"),
    ("idle_session_timeout", "10s"),
    ("work_mem", "64kB"),
    ("temp_file_limit", "0"),
    ("from_collapse_limit", "1"),
    ("join_collapse_limit", "1"),
    ("geqo_threshold", "2"),
    ("default_statistics_target", "1"),
    ("cursor_tuple_fraction", "0"),
    ("random_page_cost", "1000"),
    ("cpu_tuple_cost", "1000"),
    ("max_parallel_workers_per_gather", "8"),
    ("tcp_user_timeout", "10s"),
    ("commit_delay", "1000"),
    ("holdfast.tenant", "another"),
    ("holdfast.actor", "somebody"),
]
EVERYWHERE = (
    "default_transaction_isolation",
    "client_encoding",
    "datestyle",
    "session_replication_role",
    "default_transaction_read_only",
)


@pytest.mark.sample(6)
@pytest.mark.parametrize(("name", "value"), HOSTILE, ids=lambda part: re.sub(r"\W+", "_", str(part)))
def test_setting_of_a_database(postgres_url: str, admin: Admin, name: str, value: str) -> None:
    admin.set_for_database(name, value)
    check(postgres_url, admin, name)


@pytest.mark.sample(4)
@pytest.mark.parametrize(("name", "value"), HOSTILE, ids=lambda part: re.sub(r"\W+", "_", str(part)))
def test_setting_of_a_role(postgres_url: str, admin: Admin, login: str, name: str, value: str) -> None:
    admin.set_for_role(login, name, value)
    check(postgres_url.replace("://postgres:", f"://{login}:"), admin, name)


@pytest.mark.parametrize("setting", ["PGCLIENTENCODING=LATIN1", "PGDATESTYLE=German", "PGTZ=Asia/Kathmandu"])
def test_setting_of_the_environment(
    postgres_url: str, admin: Admin, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv(*setting.split("="))
    life(postgres_url, admin)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("standard_conforming_strings", "off"),
        ("client_encoding", "SQL_ASCII"),
        ("default_transaction_isolation", "serializable"),
        ("datestyle", "German"),
        ("plpgsql.extra_errors", "all"),
        ("quote_all_identifiers", "on"),
        ("check_function_bodies", "off"),
    ],
)
def test_first_migration_under_a_setting(empty_postgres_url: str, name: str, value: str) -> None:
    opened = Admin(empty_postgres_url)
    with closing(opened.connection), closing(open_store(empty_postgres_url)) as store:
        opened.set_for_database(name, value)
        assert store.migrate().current
        life(empty_postgres_url, opened)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("default_transaction_isolation", "repeatable read"),
        ("datestyle", "German"),
        ("client_encoding", "LATIN1"),
        ("standard_conforming_strings", "off"),
        ("extra_float_digits", "-15"),
        ("plpgsql.extra_errors", "all"),
        ("session_replication_role", "replica"),
        ("timezone", "Asia/Kathmandu"),
    ],
)
def test_setting_behind_a_pooler(
    postgres_url: str, admin: Admin, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Settings end with the transaction: the next client of the same server process finds those of the database."""
    monkeypatch.setattr(pipeline, "NOTIFIED_WITHIN", 0.1)  # no notification arrives
    admin.set_for_database(name, value)
    with Pooler(postgres_url, "transaction", 4) as pooler:
        check(pooler.url(), admin, name)
        with psycopg.connect(pooler.url(), autocommit=True) as other:
            left = other.execute("select current_setting('default_transaction_isolation')").fetchone()
            assert left == (value if name == "default_transaction_isolation" else "read committed",), (
                "nothing is left behind"
            )


def test_unchanged_settings_behind_a_pooler_cost_nothing(postgres_url: str) -> None:
    with Pooler(postgres_url, "transaction", 1) as pooler, connected(pooler.url()) as connection:
        assert (connection.direct, connection.pins_locally) == (False, False)


SNAPSHOT_KEEPERS = ("repeatable read", "serializable")
# Calls that would count with an old snapshot after waiting for a lock.
COUNTING = {
    "exchange": "exchange(gen_random_uuid(), null, null, null, null, '{default}', 1, for_tenant => 'default')",
    "decide_approval": "decide_approval(gen_random_uuid(), 'approve', 'ada')",
    "approve": "approve(gen_random_uuid(), 'ada')",
    "set_limit": "set_limit('queue', 'default', 3)",
    "pause": "pause('queue', 'default', 'it burns')",
    "send_event": "send_event('paid', '{}')",
    "add_to_workflow": "add_to_workflow(gen_random_uuid(), '{\"nodes\": []}')",
    "run_schedule": "run_schedule(gen_random_uuid(), '{}')",
    "put_template": "put_template('nightly', 'mail.send', '{}', '{}')",
    "seal_ledger": "seal_ledger(null)",
    "hold_subscription": "hold_subscription('mail')",
    "pin_login": "pin_login('postgres', 'acme')",
}


@pytest.mark.every_case
@pytest.mark.parametrize("call", COUNTING)
def test_function_that_counts_refuses_an_old_snapshot(postgres_url: str, call: str) -> None:
    for level in SNAPSHOT_KEEPERS:
        with psycopg.connect(postgres_url) as connection:
            connection.execute(f"set transaction isolation level {level}".encode())
            with pytest.raises(psycopg.Error) as caught:
                connection.execute(f"select * from holdfast.{COUNTING[call]}".encode())
            assert (caught.value.sqlstate, level in str(caught.value)) == ("ZH080", True), caught.value


@pytest.mark.parametrize("level", [*psycopg.IsolationLevel], ids=lambda level: level.name)
def test_enqueue_works_at_every_isolation_level(postgres_url: str, level: psycopg.IsolationLevel) -> None:
    with closing(App(postgres_url, name="tests", enqueued_by="tester")) as app:
        with psycopg.connect(postgres_url) as connection:
            connection.isolation_level = level
            for _ in range(2):
                app.enqueue("plain", {"text": TEXT}, key="once", connection=connection)
        assert len(app.jobs.list()) == 1


def test_end_of_a_workflow_job_refuses_an_old_snapshot(postgres_url: str) -> None:
    """Two jobs that end at once would each find the other unfinished, and the job behind them would wait for ever."""
    codes = []
    with closing(App(postgres_url, name="tests", enqueued_by="tester")) as app:

        @app.job
        def part(ctx: SyncContext) -> None:
            with psycopg.connect(postgres_url) as connection:
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                try:
                    ctx.complete(connection=connection)
                except HoldfastError as error:
                    codes.append((error.code, bool(error.fix)))

        flow = app.workflow("pair")
        flow.add(part)
        flow.start()
        part.enqueue()
        work_off(app)
        assert codes == [("isolation_level", True)]
        assert [each.state for each in app.jobs.list()] == [State.SUCCEEDED] * 2


def test_text_that_the_connection_cannot_send_is_refused(postgres_url: str) -> None:
    with closing(App(postgres_url)) as app, psycopg.connect(postgres_url, client_encoding="LATIN1") as connection:
        with pytest.raises(HoldfastError) as caught:
            app.enqueue("plain", {"text": TEXT}, connection=connection)
        assert (caught.value.code, "UTF8" in str(caught.value.fix)) == ("client_encoding", True)
        app.enqueue("plain", {"text": "plain"}, connection=connection)


def test_doctor_names_each_setting(postgres_url: str, admin: Admin) -> None:
    for name, value in (("datestyle", "German"), ("extra_float_digits", "0"), ("row_security", "off")):
        admin.set_for_database(name, value)
    admin.set_for_database("default_transaction_isolation", "repeatable read")
    admin.set_for_database("session_replication_role", "replica")
    with closing(open_store(postgres_url)) as store:
        said = {finding.name: finding for finding in store.diagnose()}
    isolation, role = said["default_transaction_isolation"], said["session_replication_role"]
    assert (isolation.ok, "isolation_level" in isolation.says) == (False, True)
    assert (role.ok, "replication_role" in role.says, bool(role.fix)) == (False, True, True)
    ours = said["session settings"]
    assert ours.ok
    for setting in ("datestyle = German", "extra_float_digits = 0", "row_security = off"):
        assert setting in ours.says


# Settings whose other values change the server for everybody, need another build, or make each statement take seconds.
LEFT_OUT = re.compile(
    "debug_discard_caches|transaction_(isolation|read_only|deferrable)|zero_damaged_pages|ignore_(system|checksum)"
    "|is_superuser|exit_on_error|trace_|debug_print|log_|jit_(dump|profil|debug)|session_replication_role|^ssl|in_hot_standby"
)
GENERATED = """
    select name, value from pg_settings s
      cross join lateral unnest(case vartype when 'bool' then array['on', 'off'] else enumvals end) value
     where context in ('user', 'superuser') and vartype in ('bool', 'enum') and value <> setting order by 1, 2
"""
SHARES = 8


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_every_switch_of_the_server(postgres_databases: TemplateDatabases, admin: Admin, share: int) -> None:
    """Every setting with two or a few values that a session can have."""
    rows = admin.connection.execute(GENERATED).fetchall()
    cases = [(name, value) for name, value in rows if not LEFT_OUT.search(name)]
    assert len(cases) > 80
    failed = []
    for name, value in cases[share::SHARES]:
        with postgres_databases.fresh() as url, closing((own := Admin(url)).connection):
            own.set_for_database(name, value)
            try:
                check(url, own, name)
            except Exception as error:
                failed.append((name, value, error))
    assert failed == []


# Called by exchange only, which checks; and one that reads nothing after its lock.
GUARDED_ELSEWHERE = {"room_for_queue", "lock_limits", "drop_partition"}


def test_every_lock_that_is_not_a_change_is_guarded(postgres_url: str) -> None:
    """A lock on a table, or on a row that no holder changes, is no conflict for PostgreSQL."""
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute(
            "select proname from pg_proc where pronamespace = 'holdfast'::regnamespace"
            " and prosrc ~ 'lock table|from mutex|from lock_dispatch' and prosrc !~ 'check_isolation'"
        ).fetchall()
    assert {name for (name,) in rows} == GUARDED_ELSEWHERE
