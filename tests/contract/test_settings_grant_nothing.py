"""Settings that any session can set (`set holdfast.… = …`) grant nothing, checked for every setting in the catalogue.

The tenant and the actor are settings too. The tenant limits what a session sees and does, and a role that may act for
one tenant may act for each (docs/security.md); the actor is the session's claim about itself. Neither gives a role more
rights, and '*' needs a privilege.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from holdfast.features.assembly import open_store
from tests.support.features import pause
from tests.support.features import register_tenant as register
from tests.support.postgres_roles import OwnedDatabases, as_role
from tests.support.steps import asking
from tests.support.stores import claim, open_lease, put_one

pytestmark = pytest.mark.req("DP-17", "JF-1")

VALUES = ("on", "true", "1", "*", "off", "default", "acme")
ROLES = ("holdfast_viewer", "holdfast_producer", "holdfast_executor")
# Settings named in the bodies of functions and policies. New ones are found without a change here.
SETTING = re.compile(r"holdfast\.([a-z_]+)'")


@pytest.fixture(scope="module")
def url(owned_databases: OwnedDatabases) -> Iterator[str]:
    """A database with a paused kind, a full tenant, a job of another worker, and an open approval."""
    with owned_databases.fresh() as dsn:
        with closing(open_store(as_role(dsn, owned_databases.owner))) as store:
            put_one(store)
            held = put_one(store, queue="held")
            claim(store, open_lease(store), 1, queues=["held"])
            approval = asking(store, notify="refused")
            register(store, "full", max_pending=0)
            pause(store, kind="refused", refuse=True)
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute("create table public.known (held uuid, approval uuid, asker uuid)")
            admin.execute("insert into public.known values (%s, %s, %s)", (held, approval.id, approval.job_id))
            admin.execute("grant select on public.known to public")
        yield dsn


def settings(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "select prosrc || coalesce(pg_get_function_sqlbody(oid), '') from pg_proc"
            " where pronamespace = 'holdfast'::regnamespace"
            " union all select coalesce(qual, '') || coalesce(with_check, '') from pg_policies"
            " where schemaname = 'holdfast'"
        ).fetchall()
    return sorted({name for (text,) in rows for name in SETTING.findall(text)})


# Statements that these roles may never run. A refusal returned as a row becomes an error by a division by zero.
FORBIDDEN = {
    "enqueue a paused kind": "select 1 / created::integer from holdfast.enqueue('refused')",
    "enqueue for an approval past a pause": (
        "select 1 / created::integer from holdfast.enqueue("
        "'refused', source_system => 'holdfast', parent_id => (select asker from public.known))"
    ),
    "enqueue for a full tenant": "select 1 / created::integer from holdfast.enqueue('k', for_tenant => 'full')",
    "write a job": "insert into holdfast.job (kind) values ('k')",
    "change a state": "update holdfast.job_state set state = 'succeeded'",
    "delete the ledger": "delete from holdfast.event",
    "end a lease": "update holdfast.lease set ended_at = now()",
    "read tokens": "select hash from holdfast.api_token",
    "read payloads": "select payload from holdfast.job",
    "read the dispatch row": "select * from holdfast.dispatch",
    "pause": "select holdfast.pause('all', '*', 'because')",
    "resume": "select holdfast.resume('kind', 'refused')",
    "set a limit": "select holdfast.set_limit('all', '*', 1)",
    "move the clock": "update holdfast.clock set shift = '1 h'",
    "issue a token": "select holdfast.issue_token(gen_random_uuid(), 'n', '{admin}', '{}', repeat('a', 64), 'p')",
    "decide": "select holdfast.decide_approval((select approval from public.known), 'approve', 'ada')",
    "redrive": "select holdfast.redrive((select held from public.known))",
    "own a job": "insert into holdfast.owed values (gen_random_uuid())",
    "call enqueue_notice": "select holdfast.enqueue_notice(null, 'asked', 0, now())",
}
ONLY_EVERY_TENANT = {"see every tenant": "select count(*) from holdfast.job_state having count(distinct tenant) > 1"}


def refused(session: psycopg.Connection[object], statement: str) -> psycopg.Error | None:
    try:
        session.execute(statement.encode())
    except psycopg.Error as error:
        return error
    return None


def test_list_of_settings(url: str) -> None:
    """No setting grants rights; a new one must be added here with its purpose."""
    assert settings(url) == ["actor", "notify", "presented", "tenant"]


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_no_setting_grants_rights(url: str, role: str) -> None:
    tried = 0
    with psycopg.connect(as_role(url, role), autocommit=True) as session:
        for name in (*settings(url), "own", "system", "admin"):
            for value in VALUES:
                session.execute(f"set holdfast.{name} = '{value}'".encode())
                for what, statement in FORBIDDEN.items():
                    refusal = refused(session, statement)
                    assert refusal is not None, f"{role} may {what} with holdfast.{name} = {value}"
                    assert (refusal.sqlstate or "")[:2] in ("42", "ZH", "22"), (what, name, value, str(refusal))
                    tried += 1
                if role != "holdfast_executor":
                    for what, statement in ONLY_EVERY_TENANT.items():
                        assert session.execute(statement.encode()).fetchall() == [], (what, name, value)
                session.execute(f"reset holdfast.{name}".encode())
    assert tried >= len(FORBIDDEN) * len(VALUES) * 4
