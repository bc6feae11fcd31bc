"""A login pinned to one tenant (PostgreSQL): no function, table or setting lets it act for another tenant.

Functions and relations come from the catalogue, so later ones are covered too. The logins are real: a pin applies to
``session_user``, which ``set role`` does not change.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from holdfast import App, Context
from holdfast.errors import HoldfastError, InvalidInput, InvalidSetting, NotFound, Refused
from holdfast.features.assembly import Store, open_store
from holdfast.stores.postgres.roles import functions
from tests.api.conftest import HERE, client_of
from tests.contract.test_row_security import UNSEEN, Database, database
from tests.support.direct_sql import PostgresByHand
from tests.support.postgres_roles import ROLES, OwnedDatabases, as_role
from tests.support.stores import claim, open_lease, put, put_one, spec

__all__ = ["database"]

pytestmark = pytest.mark.req("JF-21", "JF-2")

OWN, OTHER = "acme", "umbrella"
PASSWORD = "a password for tests"
# Functions without a tenant argument: they touch no tenant's rows, or compare the tenant of an id or a hash with the
# scope, or run as their caller. The tests call them with ids of the other tenant.
WITHOUT_TENANT = {
    *("actor", "caller", "clock_now", "event_type", "every_tenant", "legal", "scope", "pinned_tenant", "uuid7"),
    *("fingerprint", "shape", "backoff_delay", "refusal_reason", "withheld", "hides", "shown_payload", "retention_for"),
    "attempt_payload",
    *("fair_queues", "halted", "payload_indexes", "registered_only", "signal_key", "lock_waits", "lock_holders"),
    "policies",
    *("current_base", "ledger_base", "ledger_position", "ledger_snapshot", "origin", "unread_events"),
    *("token_of", "token_used", "open_session", "end_session"),
}
# Functions that act for every tenant, or whose subject is a tenant.
WHOLE = {
    *("set_fair", "set_registered_only", "set_tenant", "remove_tenant", "pin_login", "unpin_login", "enter"),
    *("seal_ledger", "enqueued_payloads", "count_usage", "set_executor", "remove_executor", "adopt_copy"),
    *("register_kinds", "remove_kind", "set_event_type", "remove_event_type", "set_policies"),
}
_NUMBERS = itertools.count()


def login_url(url: str, login: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{login}:{PASSWORD.replace(' ', '%20')}@{parts.hostname}:{parts.port}"))


class Logins:
    """Logins of a server that the tests create and drop."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.admin = psycopg.connect(url, autocommit=True)
        self.made: list[str] = []

    def make(self, *roles: str) -> str:
        name = f"pinned_{os.getpid()}_{next(_NUMBERS)}"
        self.made.append(name)
        made = sql.SQL("create role {} login password {}").format(sql.Identifier(name), sql.Literal(PASSWORD))
        self.admin.execute(made)
        for role in roles:
            self.admin.execute(sql.SQL("grant {} to {}").format(sql.Identifier(role), sql.Identifier(name)))
        return name

    def drop(self) -> None:
        for name in self.made:
            self.admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", (name,))
            self.admin.execute(sql.SQL("drop owned by {0} cascade; drop role {0}").format(sql.Identifier(name)))
        self.admin.close()


@pytest.fixture
def logins(database: Database) -> Iterator[Logins]:
    result = Logins(database.admin_url)
    with closing(open_store(as_role(database.admin_url, database.owner))) as store:
        yield result
        for name in result.made:
            store.run(store.tenants.unpin(name, "tests"))
    result.drop()


def pinned(database: Database, logins: Logins, *roles: str) -> str:
    name = logins.make(*roles)
    with closing(open_store(database.admin_url)) as store:
        assert store.run(store.tenants.pin(name, OWN, "ada")).tenant == OWN
    return name


@pytest.mark.parametrize("role", ROLES)
def test_pinned_login_sees_only_rows_of_its_tenant(database: Database, logins: Logins, role: str) -> None:
    name = pinned(database, logins, role, *ROLES)
    for tenant, sees in ((None, {OWN}), ("", {OWN}), (OWN, {OWN}), (OTHER, set()), ("*", set())):
        with closing(PostgresByHand(login_url(database.admin_url, name), tenant=tenant)) as by_hand:
            by_hand.execute(f"set role {role}")
            for relation in database.relations():
                with suppress(psycopg.errors.InsufficientPrivilege):
                    result = {row[0] for row in by_hand.execute(f"select distinct tenant from {relation}")} - {"*"}
                    assert result == sees, (relation, tenant)
                    # A statement that changes the tenant while it runs.
                    for other in (OTHER, "*"):
                        change = f"set_config('holdfast.tenant', '{other}', true) is not null"
                        rows = by_hand.execute(f"select distinct tenant from {relation} where {change}")
                        assert {row[0] for row in rows} <= {OWN, "*"}, relation
                    continue
                assert relation in UNSEEN or relation.startswith("event_2"), relation  # a partition


def calls(admin: PostgresByHand, ids: list[str]) -> Iterator[tuple[str, bool, str]]:
    """For every function: its name, whether it takes a tenant, and a call with each tenant to try."""
    rows = admin.execute(
        "select p.proname, p.proargnames[1:p.pronargs], (select array_agg(t::regtype::text order by n)"
        " from unnest(p.proargtypes) with ordinality a(t, n)) from pg_proc p"
        " where p.pronamespace = 'holdfast'::regnamespace order by p.oid"
    )
    for name, names, types in rows:
        takes = "for_tenant" in (names or ())
        assert (
            takes or name in WITHOUT_TENANT | WHOLE or not any(name in granted for granted in functions().values())
        ), name
        by_id = ids if any(kind in ("uuid", "uuid[]", "json") for kind in types or ()) else ids[:1]
        named = [(tenant, ids[0]) for tenant in (OTHER, "*")] if takes else []
        for tenant, id_ in [*named, *(("", each) for each in by_id)]:
            values = []
            for argument, kind in zip(names or [""] * len(types or ()), types or (), strict=True):
                if argument == "for_tenant":
                    values.append(f"'{tenant}'")
                elif kind in ("uuid", "uuid[]"):
                    values.append(f"'{id_}'::uuid" if kind == "uuid" else f"array['{id_}'::uuid]")
                elif name in ("set_tenant", "remove_tenant") and argument == "name":
                    values.append(f"'{OTHER}'")
                elif name in ("pin_login", "unpin_login") and argument == "login":
                    values.append("session_user::text")
                elif argument in ("to_tenant", "p_tenant"):
                    values.append(f"'{OTHER}'")
                elif argument in ("token_hash", "session_hash"):
                    values.append(f"'hash of {OTHER}'")
                elif argument == "reason" or kind in ("interval", "json"):
                    values.append({"interval": "'1 s'", "json": f"""'[{{"id": "{id_}"}}]'"""}.get(kind, "'because'"))
                else:
                    values.append(f"null::{kind}")
            yield name, name in WHOLE or (takes and tenant != ""), f"select * from holdfast.{name}({', '.join(values)})"


def rows_of_the_other(admin: PostgresByHand, tables: list[str]) -> dict[str, list[tuple[object, ...]]]:
    """All rows of the other tenant and of all tenants, as text."""
    return {
        table: sorted(admin.execute(f"select t::text from {table} t where t.tenant in ('{OTHER}', '*')"))
        for table in tables
    }


@pytest.fixture
def superuser_owns(request: pytest.FixtureRequest, database: Database) -> Iterator[None]:
    """Functions owned by a superuser bypass row-level security: only their own conditions protect the rows."""
    owners = ("postgres", database.owner) if request.param else (database.owner, database.owner)
    with psycopg.connect(database.admin_url, autocommit=True) as admin:

        def give(owner: str) -> None:
            admin.execute(
                "do $$ declare f record; begin for f in select p.oid::regprocedure as f from pg_proc p where"
                " p.pronamespace = 'holdfast'::regnamespace loop execute format('alter function %s owner to "
                f'"{owner}"'
                "', f.f); end loop; end $$"
            )

        give(owners[0])
        yield
        give(owners[1])


@pytest.mark.parametrize(
    ("role", "superuser_owns"),
    [*((role, False) for role in ROLES), ("holdfast_admin", True)],
    indirect=["superuser_owns"],
)
def test_pinned_login_cannot_act_for_another_tenant(
    database: Database, logins: Logins, role: str, superuser_owns: None
) -> None:
    name = pinned(database, logins, role)
    with closing(PostgresByHand(database.admin_url)) as admin:
        tables = [each for each in database.relations() if each in admin.tables()]
        mine = "where tenant = 'umbrella' order by id limit 1"
        ids = [
            str(admin.execute(f"select id from {table} {mine}")[0][0])
            for table in ("job", "lease", "approval", "operation", "subscription", "webhook", "api_token", "workflow")
        ]
        known = {str(row[0]) for row in admin.execute("select id from job where tenant = 'umbrella'")} | set(ids)
        before = rows_of_the_other(admin, tables)
        admin.execute("select set_clock('90 s', null)")  # aging and expiry are due, in both tenants
        tried, let_through = set(), list[str]()
        with closing(PostgresByHand(login_url(database.admin_url, name), tenant=None)) as by_hand:
            for function, names_another, call in calls(admin, ids):
                if function not in functions()[role]:
                    continue
                tried.add(function)
                try:
                    rows = by_hand.execute(call)
                except psycopg.Error as error:
                    if names_another and error.sqlstate != "ZH073":
                        let_through.append(f"{call}: {error}")
                    continue
                if names_another:
                    let_through.append(call)
                elif any(id_ in str(rows) for id_ in known if id_ not in call):
                    let_through.append(f"{call}: {rows}")
        admin.execute("select set_clock('0', null)")
        assert rows_of_the_other(admin, tables) == before
    assert not sorted({each.split("(")[0] for each in let_through}), let_through[:3]
    assert tried == functions()[role], "a function of the role is missing from the catalogue"


def test_pinned_login_cannot_escape_its_pin(database: Database, logins: Logins) -> None:
    name = pinned(database, logins, *ROLES)
    foreign = logins.make("holdfast_admin")
    logins.admin.execute(
        sql.SQL("grant create on database {} to {}").format(
            sql.Identifier(logins.admin.info.dbname), sql.Identifier(name)
        )
    )
    logins.admin.execute(
        sql.SQL(
            "create or replace function public.as_another() returns bigint language sql security definer"
            " as $$ select set_config('holdfast.tenant', 'umbrella', true); select count(*) from holdfast.job_state $$;"
            " alter function public.as_another() owner to {0}; grant execute on function public.as_another() to public"
        ).format(sql.Identifier(foreign))
    )
    logins.admin.execute(sql.SQL("grant {} to {}").format(sql.Identifier(foreign), sql.Identifier(name)))
    count = "select count(*) from holdfast.job_state"
    attempts = [
        "set session authorization postgres",
        f"set role {foreign}",
        "set holdfast.tenant = '*'",
        "set holdfast.pin = 'umbrella'",
        "reset session authorization",
        "create schema mine",
        "create function mine.pinned_tenant() returns text language sql as 'select null::text'",
        "create function mine.pick(jsonb, text) returns text language sql as 'select null::text'",
        "create operator mine.->> (leftarg = jsonb, rightarg = text, function = mine.pick)",
        "create temp table login_pin (login text, tenant text)",
        "create function pg_temp.pinned_tenant() returns text language sql as 'select null::text'",
        "create domain pg_temp.jsonb as text",
        "set search_path = mine, pg_temp, pg_catalog, holdfast",
    ]
    with closing(PostgresByHand(login_url(database.admin_url, name), tenant=OTHER)) as by_hand:
        for attempt in attempts:
            by_hand.refusal(attempt)
            assert by_hand.execute(count) == [(0,)], attempt
            assert "pinned to tenant acme" in (
                by_hand.refusal("select holdfast.cancel(null, null, 'umbrella')") or ""
            ), attempt
        assert by_hand.execute("select public.as_another()") == [(0,)]
        for statement in (
            "select holdfast.unpin_login(session_user::text)",
            "select holdfast.pin_login(session_user::text, 'umbrella')",
            "select holdfast.set_tenant('umbrella', '{}')",
        ):
            assert "pinned to tenant acme" in (by_hand.refusal(statement) or ""), statement
        for statement in (
            "delete from holdfast.login_pin",
            "insert into holdfast.login_pin values ('x', 'umbrella', 'me', now())",
            "create or replace function holdfast.pinned_tenant() returns text language sql as 'select null::text'",
            "select holdfast.compile_pins()",
        ):
            assert "permission denied" in (by_hand.refusal(statement) or ""), statement
    logins.admin.execute("drop function public.as_another()")


def test_pin_applies_to_open_sessions_and_prepared_plans(database: Database, logins: Logins) -> None:
    name, other = logins.make("holdfast_producer"), logins.make("holdfast_viewer")
    with (
        closing(open_store(as_role(database.admin_url, database.owner))) as store,
        closing(PostgresByHand(login_url(database.admin_url, name), tenant=OTHER)) as by_hand,
    ):

        def seen() -> int:
            return int(by_hand.execute("execute counting")[0][0])

        by_hand.execute("prepare counting as select count(*) from holdfast.job_state")
        for _ in range(7):  # until the server uses a generic plan
            assert seen() > 0
        store.run(store.tenants.pin(other, OTHER, "ada"))
        assert seen() > 0, "a pin of another login"
        store.run(store.tenants.pin(name, OWN, "ada"))
        assert seen() == 0
        store.migrate()
        assert seen() == 0
        store.run(store.tenants.pin(name, OTHER, "ada"))
        assert seen() > 0
        pins = [(pin.login, pin.tenant) for pin in store.run(store.tenants.pins()) if pin.exists]
        assert pins == sorted([(name, OTHER), (other, OTHER)])
        assert {each.name: each.tenant for each in store.logins() if each.tenant} == {name: OTHER, other: OTHER}
        assert any(
            f"login {name} " in each.says and "pinned to tenant umbrella" in each.says for each in store.diagnose()
        )
        logins.admin.execute(
            sql.SQL("alter role {} rename to {}").format(sql.Identifier(other), sql.Identifier(f"{other}_new"))
        )
        logins.made.append(f"{other}_new")
        logins.made.remove(other)
        assert {pin.login for pin in store.run(store.tenants.pins()) if pin.exists} == {name}
        assert store.run(store.tenants.unpin(name, "ada"))
        assert not store.run(store.tenants.unpin(name, "ada"))
        by_hand.bind(OWN)
        assert seen() > 0


def test_invalid_pins_are_refused(database: Database, logins: Logins) -> None:
    name = logins.make("holdfast_viewer")
    with closing(App(as_role(database.admin_url, database.owner))) as app:
        for login, code in (("nobody_of_this_name", "login_not_found"), ("holdfast_viewer", "login_not_found")):
            with pytest.raises(NotFound) as caught:
                app.tenants.pin(login, OWN)
            assert caught.value.code == code
        with pytest.raises(Refused) as refused:
            app.tenants.pin("postgres", OWN)
        assert refused.value.code == "login_exempt"
        with pytest.raises(NotFound) as caught:
            app.tenants.unpin(name)
        assert caught.value.code == "pin_not_found"
        bad: list[tuple[Any, Any]] = [(name, "*"), (name, ""), ("", OWN), (name, "x" * 300), (name, None), (7, OWN)]
        for login, tenant in (*bad, (name, "a\0b")):
            with pytest.raises(HoldfastError) as wrong:
                app.tenants.pin(login, tenant)
            assert isinstance(wrong.value, InvalidSetting | InvalidInput)
        assert name not in [pin.login for pin in app.tenants.pins()]


def test_worker_with_a_pinned_login_runs_its_tenants_jobs_only(
    owned_databases: OwnedDatabases, caplog: pytest.LogCaptureFixture
) -> None:
    with owned_databases.fresh() as url, closing(open_store(as_role(url, owned_databases.owner))) as store:
        logins = Logins(url)
        try:
            name = logins.make("holdfast_executor")
            store.run(store.tenants.pin(name, OWN, "ada"))
            put(store, *(spec("work") for _ in range(3)), tenant=OTHER)
            put(store, *(spec("work") for _ in range(3)), tenant=OWN)
            with closing(App(login_url(url, name), tenant=OWN)) as app, caplog.at_level(logging.INFO):
                done: list[str] = []

                @app.job("work")
                def work(ctx: Context) -> None:
                    done.append(ctx.tenant)

                app.run_worker(burst=True)
                app.tick()
                with pytest.raises(Refused) as refused, app.tenant(OTHER):
                    app.jobs.list()
                assert refused.value.code == "tenant_pinned"
                assert done == [OWN] * 3
            assert [each.message for each in caplog.records if each.levelno >= logging.WARNING] == []
            assert "pinned to tenant acme" in caplog.text
        finally:
            logins.drop()


def test_sqlite_refuses_pins(store: Store) -> None:
    if not store.embedded:
        put_one(store, tenant=OWN)
        assert claim(store, open_lease(store), 1), "a login without a pin is not restricted"
        assert store.run(store.tenants.pinned()) is None
        return
    with pytest.raises(Refused) as refused:
        store.run(store.tenants.pin("web", OWN, "ada"))
    assert refused.value.code == "no_logins"
    assert store.run(store.tenants.pins()) == []


async def test_pins_over_http_and_in_the_dashboard(database: Database, logins: Logins) -> None:
    name = logins.make("holdfast_producer")
    app = App(database.admin_url)
    try:
        async with client_of(app) as http:
            path = f"/api/v1/tenants/pins/{name}"
            made = await http.put(path, json={"tenant": OWN}, headers={"origin": HERE})
            assert (made.status_code, made.json()["tenant"]) == (200, OWN)
            listed = (await http.get("/api/v1/tenants/pins")).json()["items"]
            assert OWN in [each["tenant"] for each in listed if each["login"] == name]
            page = (await http.get("/tenants")).text
            assert name in page
            assert "Every queue is shared fairly." in page
            assert (await http.delete(path, headers={"origin": HERE})).status_code == 204
            again = await http.delete(path, headers={"origin": HERE})
            assert (again.status_code, again.json()["code"]) == (404, "pin_not_found")
        async with client_of(app, role="admin", tenant=OWN) as http:
            assert (await http.get("/api/v1/tenants/pins")).status_code == 403, (
                "reserved for administrators of all tenants"
            )
    finally:
        await app.aclose()


@pytest.mark.req("JF-16")
@pytest.mark.parametrize("has_pin", [False, True], ids=["viewer", "pinned"])
async def test_overview_with_a_login_that_cannot_read_all_tenants(
    database: Database, logins: Logins, has_pin: bool
) -> None:
    name = pinned(database, logins, "holdfast_viewer") if has_pin else logins.make("holdfast_viewer")
    app = App(login_url(database.admin_url, name), tenant=OWN, name="dashboard")
    try:
        async with client_of(app) as http:
            answer = await http.get("/")
            assert (answer.status_code, "other tenants" in answer.text) == (200, False), answer.text
    finally:
        await app.aclose()
