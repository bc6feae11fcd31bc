"""Jobs for an agent that were waiting before there was a registry: they are held like any other (CX-16)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from holdfast.engine.states import State
from holdfast.features.assembly import open_store
from holdfast.stores.migrations import CODE, Plan, Script
from tests.migration.plans import plan_of, use
from tests.support.agents import disable, enable, register
from tests.support.by_hand import open_by_hand
from tests.support.owners import as_role, ensure_roles
from tests.support.stores import claim, new_id, open_lease, state_of

pytestmark = pytest.mark.req("CX-16", "DP-20")

OWNER = "holdfast_migrating"
# What binds the owner while it migrates a database that is in use.
SECURITY = "".join(
    f"alter table {table} enable row level security; alter table {table} force row level security;"
    f" create policy tenancy on {table} using (tenant = current_setting('holdfast.tenant', true)"
    " or current_setting('holdfast.tenant', true) = '*');\n"
    for table in ("job", "job_state", "event")
)
JOB = (
    "insert into job (id, tenant, kind, queue, agent, enqueued_by, source_system, created_at)"
    " values (:id, 'default', 'plan', 'default', :agent, 'ada', 'tests', {now})"
)
STATE = (
    "insert into job_state ({n}id, tenant, kind, queue, state, priority, position, max_retries, max_crashes,"
    " finished_at) select {n}id, tenant, kind, queue, {state}, 0, 100, 4, 3, {finished} from job where id = :id"
)
EVENT = (
    "insert into event (job_id, tenant, kind, verb, to_state, attempt, at, actor)"
    " values (:id, 'default', 'plan', 'enqueue', {state}, 0, {now}, 'ada')"
)


@pytest.fixture
def url(empty_url: str, kind: str) -> Iterator[str]:
    """As a role that is bound by row-level security, where there is such a thing."""
    if kind == "sqlite":
        yield empty_url
        return
    name = urlsplit(empty_url).path.lstrip("/")
    with psycopg.connect(empty_url, autocommit=True) as admin:
        ensure_roles(admin, OWNER)
        grant = sql.SQL("grant create on database {} to {}")
        admin.execute(grant.format(sql.Identifier(name), sql.Identifier(OWNER)))
    yield as_role(empty_url, OWNER)


@pytest.mark.slow
def test_waiting_jobs_know_their_agent(url: str, kind: str) -> None:
    with closing(open_store(url)) as store:
        today = plan_of(store)
        before = tuple(script for script in today.migrations if script.name < "0003")
        use(store, Plan(before, Script(CODE, "" if kind == "sqlite" else SECURITY)))
        store.migrate()
        now, n = ("1", "n, ") if kind == "sqlite" else ("now()", "")
        waiting, ended, nobodys = new_id(), new_id(), new_id()
        with closing(open_by_hand(url)) as by_hand:
            for job_id, agent, state in (
                (waiting, "planner", "queued"),
                (ended, "planner", "cancelled"),
                (nobodys, None, "queued"),
            ):
                by_hand.execute(JOB.format(now=now), {"id": job_id, "agent": agent})
                finished = now if state == "cancelled" else "null"
                by_hand.execute(STATE.format(n=n, state=f"'{state}'", finished=finished), {"id": job_id})
                by_hand.execute(EVENT.format(state=f"'{state}'", now=now), {"id": job_id})
            use(store, today)
            assert store.migrate().current
            rows = by_hand.execute("select id, agent from job_state")
        assert set(rows) == {(waiting, "planner"), (ended, None), (nobodys, None)}
        register(store)
        disable(store)
        assert [each.id for each in claim(store, open_lease(store), 5)] == [nobodys]
        assert state_of(store, waiting) is State.QUEUED
        assert enable(store) == 1
        assert [each.id for each in claim(store, open_lease(store), 5)] == [waiting]
