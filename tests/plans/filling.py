"""A million finished jobs and a lively backlog, in seconds: rows go in behind the triggers' backs, indexes come last.

The numbers of the rows decide what they are, in bands, the same on both stores:

    finished   1 … 1,000,000     succeeded; one in a hundred a dead letter
    claimable  + 20,000          in three queues
    future     + 20,000          not due for decades; one in ten held, of an agent that was disabled
    due        + 500             their time has come
    retrying   + 9,500           retry_waiting, not due
    late       + 500             queued, past their deadline
    held       + 5,000           under 50 leases, five of which have lapsed; half of them begun
    waiting    + 50,000          for an event, each for one of its own (`filling_people.py`)
    asking     + 50,000          people; of one in a hundred the approval has expired

The other leases, up to 20,000, are over: outside workers have one for each job.
Nearly all belong to tenant `a`; one in a thousand to `b`. Each has one event, which leads straight to where it is.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg

from holdfast.features.assembly import open_store
from tests.plans import filling_dead, filling_people
from tests.plans.explained import leave_alone

FINISHED = 1_000_000
CLAIMABLE = FINISHED + 20_000
FUTURE = CLAIMABLE + 20_000
DUE = FUTURE + 500
RETRYING = DUE + 9_500
LATE = RETRYING + 500
HELD = LATE + 5_000
WAITING = HELD + 50_000
ASKING = WAITING + 50_000
LEASES = 20_000

BIG = (
    "job",
    "job_state",
    "job_tag",
    "event",
    "step",
    "app_event",
    "approval",
    "vote",
    "dead_letter",
    "dead_letter_group",
)

HELD_BACK = f"n > {CLAIMABLE} and n <= {FUTURE} and n % 10 = 0"
FACTS = f"""
    case when n % 1000 = 0 then 'b' else 'a' end as tenant,
    'kind-' || (n % 20) as kind,
    case n % 3 when 0 then 'default' when 1 then 'bulk' else 'mail' end as queue,
    n % 3 as priority,
    case when n % 10007 = 0 then 'planner' when {HELD_BACK} then 'sleeper' end as agent,
    case when n % 7 = 0 then 'order-' || (n / 70) end as correlation_id
"""
STATE = f"""
    case when n <= {FINISHED} then case when n % 100 = 1 then 'dead_letter' else 'succeeded' end
         when n <= {DUE} then 'queued' when n <= {RETRYING} then 'retry_waiting' when n <= {LATE} then 'queued'
         when n <= {HELD} then case when n % 2 = 0 then 'leased' else 'in_progress' end
         when n <= {WAITING} then 'retry_waiting' else 'waiting_for_approval' end
"""
ERROR = f"case when n <= {FINISHED} and n % 100 = 1 then 'broken' end"
# Years since 1970, turned into what a store keeps times in.
DUE_YEAR = f"""
    case when n <= {CLAIMABLE} or n > {RETRYING} and n <= {HELD} or n > {WAITING} then null
         when n > {FUTURE} and n <= {DUE} then 2024 else 2100 end
"""
DEADLINE_YEAR = f"""
    case when n > {RETRYING} and n <= {LATE} then 2024 when n > {FINISHED} and n % 10 = 0 then 2100 end
"""
UNTIL_YEAR = "case when n < 5 then 2024 else 2100 end"

POSTGRES = (
    f"""
    insert into job (id, tenant, kind, queue, payload, priority, deadline_at, tags, agent, correlation_id,
                     enqueued_by, source_system, created_at)
    select (lpad(to_hex(1700000000000 + n), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))::uuid,
           tenant, kind, queue, '{{}}', priority, make_timestamptz({DEADLINE_YEAR}, 1, 1, 0, 0, 0),
           case when n % 10009 = 0 then array['rare', 'common'] when n % 5 = 0 then array['common'] else '{{}}' end,
           agent, correlation_id, 'filler', 'tests', to_timestamp(1700000000 + n / 1000.0)
      from (select n, {FACTS} from generate_series(1, {ASKING}) n) f
    """,
    f"""
    insert into job_state (id, tenant, kind, queue, state, priority, position, max_attempts, max_crashes, attempt,
                           due_at, deadline_at, lease, approval_id, finished_at, error_code, error_message, agent, note)
    select (lpad(to_hex(1700000000000 + n), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))::uuid,
           tenant, kind, queue, ({STATE})::state, priority, n * 100, 4, 3, 1,
           make_timestamptz({DUE_YEAR}, 1, 1, 0, 0, 0), make_timestamptz({DEADLINE_YEAR}, 1, 1, 0, 0, 0),
           case when n > {LATE} and n <= {HELD}
                then ('00000000-0000-0000-0000-' || lpad((n % 50)::text, 12, '0'))::uuid end,
           case when n > {WAITING} then {filling_people.POSTGRES_APPROVAL} end,
           case when n <= {FINISHED} then to_timestamp(1700000000 + n / 1000.0) end, {ERROR}, {ERROR}, agent,
           case when {HELD_BACK} then '{{"held": "agent_disabled"}}'::jsonb end
      from (select n, {FACTS} from generate_series(1, {ASKING}) n) f
    """,
    "insert into job_tag (tenant, tag, job_id) select tenant, unnest(tags), id from job where tags <> '{}'",
    """
    insert into event (job_id, tenant, kind, type, to_state, attempt, at, actor)
    select id, tenant, kind, 'enqueue', state, 1, clock_timestamp(), 'filler' from job_state
    """,
    f"""
    insert into lease (id, tenant, name, holder, until, opened_at, renewed_at, ended_at, ended_why, swept_at)
    select ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid, '*', 'worker', 'worker ' || n,
           make_timestamptz({UNTIL_YEAR}, 1, 1, 0, 0, 0), now(), now(),
           case when n >= 50 then now() end, case when n >= 50 then 'settled' end, case when n >= 50 then now() end
      from generate_series(0, {LEASES}) n
    """,
    f"select setval('position_seq', {ASKING})",
    *filling_people.postgres(HELD, WAITING, ASKING),
    *filling_dead.POSTGRES,
)

_ID = "printf('%08x-%04x-7000-8000-%012x', (1700000000000 + n) >> 16, (1700000000000 + n) & 0xffff, n)"
_NUMBERS = f"with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < {ASKING})"
_FACTS = f"(select n, {FACTS} from numbers)"


def _micros(year: str) -> str:
    return f"(({year}) - 1970) * 31557600000000"


SQLITE = (
    f"""
    insert into job (n, id, tenant, kind, queue, payload, priority, deadline_at, tags, agent, correlation_id,
                     enqueued_by, source_system, created_at)
    {_NUMBERS}
    select n, {_ID}, tenant, kind, queue, '{{}}', priority, {_micros(DEADLINE_YEAR)},
           case when n % 10009 = 0 then '["rare", "common"]' when n % 5 = 0 then '["common"]' else '[]' end,
           agent, correlation_id, 'filler', 'tests', 1700000000000000 + n * 1000
      from {_FACTS}
    """,
    """
    insert into job_tag (tenant, tag, job_id)
    select tenant, 'common', id from job where n % 5 = 0 or n % 10009 = 0 order by tenant, id
    """,
    "insert into job_tag (tenant, tag, job_id) select tenant, 'rare', id from job where n % 10009 = 0",
    f"""
    insert into job_state (n, id, tenant, kind, queue, state, priority, position, max_attempts, max_crashes, attempt,
                           due_at, deadline_at, lease, approval_id, finished_at, error_code, error_message, agent, note)
    select n, id, tenant, kind, queue, {STATE}, priority, n * 100, 4, 3, 1,
           {_micros(DUE_YEAR)}, deadline_at,
           case when n > {LATE} and n <= {HELD} then printf('00000000-0000-0000-0000-%012d', n % 50) end,
           case when n > {WAITING} then {filling_people.SQLITE_APPROVAL} end,
           case when n <= {FINISHED} then created_at end, {ERROR}, {ERROR}, agent,
           case when {HELD_BACK} then '{{"held": "agent_disabled"}}' end
      from job
    """,
    """
    insert into event (job_id, tenant, kind, type, to_state, attempt, at, actor)
    select id, tenant, kind, 'enqueue', state, 1, 0, 'filler' from job_state
    """,
    f"""
    insert into lease (id, tenant, name, holder, until, opened_at, renewed_at, ended_at, ended_why, swept_at)
    with recursive numbers (n) as (select 0 union all select n + 1 from numbers where n < {LEASES})
    select printf('00000000-0000-0000-0000-%012d', n), '*', 'worker', 'worker ' || n, {_micros(UNTIL_YEAR)}, 0, 0,
           case when n >= 50 then 0 end, case when n >= 50 then 'settled' end, case when n >= 50 then 0 end
      from numbers
    """,
    *filling_people.sqlite(HELD, WAITING, ASKING),
    *filling_dead.SQLITE,
)


def fill_postgres(url: str) -> None:
    """As a superuser; the schema must be there."""
    with psycopg.connect(url, autocommit=True) as connection:

        def run(statement: str) -> None:
            connection.execute(statement.encode())

        leave_alone(connection)
        run("set search_path = holdfast")
        run("set session_replication_role = replica")  # no triggers
        run("set maintenance_work_mem = '256MB'")
        run("set synchronous_commit = off")
        keys = connection.execute(
            "select conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint"
            " where contype = 'p' and conrelid = any (%s::regclass[])",
            (list(BIG),),
        ).fetchall()
        for table, name, _ in keys:
            run(f"alter table {table} drop constraint {name}")
        indexes = connection.execute(
            "select indexname, indexdef from pg_indexes where schemaname = 'holdfast' and tablename = any (%s)",
            (list(BIG),),
        ).fetchall()
        for name, _ in indexes:
            run(f"drop index {name}")
        for statement in POSTGRES:
            run(statement)
        run("update dispatch set fair_auto = false")  # or the first promotion would build the index over tenants
        for table, name, definition in keys:
            run(f"alter table {table} add constraint {name} {definition}")
        for _, definition in indexes:
            run(definition.replace(" ON ONLY ", " ON "))  # of the partitions as well
        for table in (*BIG, "lease"):
            run(f"vacuum (analyze) {table}")


def fill_sqlite(path: Path) -> None:
    """The file must not be there yet."""
    url = f"sqlite:///{path}"
    with closing(open_store(url)) as store:
        store.migrate()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma journal_mode = off")
        connection.execute("pragma synchronous = off")
        connection.execute("pragma cache_size = -400000")
        connection.execute("pragma ignore_check_constraints = on")
        made = connection.execute(
            "select type, name, sql from sqlite_schema where type in ('trigger', 'index') and sql is not null"
        ).fetchall()
        connection.execute("begin exclusive")
        for kind, name, _ in made:
            connection.execute(f"drop {kind} {name}")
        for statement in SQLITE:
            connection.execute(statement)
        connection.execute("update dispatch set fair_auto = 0")
        # First the indexes, which come first in the list; the triggers are as they were.
        for _, _, definition in sorted(made):
            connection.execute(definition)
        connection.execute("commit")
