"""A million finished jobs and a large backlog in seconds: rows are inserted without triggers, and indexed at the end.

The number of a row decides what it is, in bands, the same on both stores:

    finished   1 … 1,000,000     succeeded; one in a hundred is a dead letter
    claimable  + 20,000          in three queues
    future     + 20,000          not due for decades; one in ten is held, because its agent is disabled
    due        + 500             due now
    retrying   + 9,500           retry_waiting, not due
    late       + 500             queued, past their deadline
    held       + 5,000           under 50 leases, of which five have expired; half of the jobs run
    waiting    + 50,000          for an event, each for a different one, after a finished step
    asking     + 50,000          for an approval; one in a hundred of them has expired

The other leases, up to 20,000, have ended: outside workers have one per job. There are also decided approvals, sent
events, and 20,000 groups of dead letters, of which half have no open ones; all dead letters are in one group.
Nearly all rows belong to tenant `a`, one in a thousand to `b`. Each job has one event, directly to its state.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg

from holdfast.features.assembly import open_store
from tests.plans.query_plans import disable_autovacuum
from tests.support.sqlite_names import on_sqlite

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
DECIDED = 50_000
SENT = 20_000

BIG = (
    *("job", "job_state", "job_tag", "event", "step", "app_event", "approval", "vote"),
    *("dead_letter", "dead_letter_group", "made_from", "node", "idempotency"),
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
# Years, which each store converts to its own type of time.
DUE_YEAR = f"""
    case when n <= {CLAIMABLE} or n > {RETRYING} and n <= {HELD} or n > {WAITING} then null
         when n > {FUTURE} and n <= {DUE} then 2024 else 2100 end
"""
DEADLINE_YEAR = f"""
    case when n > {RETRYING} and n <= {LATE} then 2024 when n > {FINISHED} and n % 10 = 0 then 2100 end
"""
UNTIL_YEAR = "case when n < 5 then 2024 else 2100 end"
_RARE = "case when agent = 'planner' then 'rare' else 'common' end"
ORIGINS = (
    f"""
    insert into made_from (job_id, tenant, template, template_version, schedule_id, schedule, due_at)
    select id, tenant, {_RARE}, case when agent = 'planner' then 2 else 1 end, id, {_RARE}, created_at
      from job where correlation_id is not null or agent = 'planner'
    """,
    f"""
    insert into node (job_id, tenant, workflow_id, part)
    select id, tenant, id, {_RARE} from job where correlation_id is not null or agent = 'planner'
    """,
    """
    insert into idempotency (tenant, kind, key, job_id, payload_hash)
    select tenant, kind, 'key-' || correlation_id || kind, id, '' from job where correlation_id is not null
    on conflict do nothing
    """,
    "insert into job_tag (tenant, tag, job_id) select tenant, ' key:acme', id from job where agent = 'planner'",
    "update job set external_ref = 'crm', executor = 'gpu' where agent = 'planner'",
    """
    insert into registered_kind (name, domain, set_by, set_at)
    select 'kind-3', 'billing', 'ada', max(created_at) from job union all
    select 'kind-5', 'billing', 'ada', max(created_at) from job union all
    select 'kind-99', 'unused', 'ada', max(created_at) from job
    """,
)
"""Facts of jobs besides their rows, in SQL that both stores understand."""

_POSTGRES_JOB = "(lpad(to_hex(1700000000000 + n), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))::uuid"
_POSTGRES_APPROVAL = "(lpad(to_hex(1700000000000 + n), 12, '0') || '70009000' || lpad(to_hex(n), 12, '0'))::uuid"
_SQLITE_JOB = "printf('%08x-%04x-7000-8000-%012x', (1700000000000 + n) >> 16, (1700000000000 + n) & 0xffff, n)"
_SQLITE_APPROVAL = "printf('%08x-%04x-7000-9000-%012x', (1700000000000 + n) >> 16, (1700000000000 + n) & 0xffff, n)"
_TENANT = "case when n % 1000 = 0 then 'b' else 'a' end"


@dataclass(frozen=True)
class _Dialect:
    """Expressions that the stores write differently; `n` is the number of the row."""

    job: str
    approval: str
    moment: str
    sent_at: str
    order: str
    wanted: str
    day: str
    year: Callable[[str], str]
    numbers: Callable[[int, int], str]
    """Rows with each number `n` after the first and up to the second."""


def _waits(it: _Dialect) -> list[str]:
    waiting, asking = it.numbers(HELD, WAITING), it.numbers(WAITING, ASKING)
    approval = "insert into approval (id, tenant, job_id, n, name, summary, requester, content_hash, opened_at"
    request = f"{it.approval}, {_TENANT}, {it.job}, 1, 'release', 'May it?', 'ada', 'h', {it.moment}"
    return [
        f"""
        insert into step (job_id, n, tenant, name, kind, value, attempt, started_at, ended_at)
        select {it.job}, 1, {_TENANT}, 'charge', 'step', '1', 1, {it.moment}, {it.moment} from {waiting}
        """,
        f"""
        insert into step (job_id, n, tenant, name, kind, attempt, started_at, wake_at, shape, wanted)
        select {it.job}, 2, {_TENANT}, 'paid', 'event', 1, {it.moment}, {it.year("2100")}, '["order"]', {it.wanted}
          from {waiting}
        """,
        f"""
        insert into step (job_id, n, tenant, name, kind, attempt, started_at)
        select {it.job}, 1, {_TENANT}, 'release', 'approval', 1, {it.moment} from {asking}
        """,
        f"""
        {approval}, expires_in, expires_at)
        select {request}, {it.day}, {it.year("case when n % 100 = 0 then 2024 else 2100 end")} from {asking}
        """,
        f"{approval}, state, decided_at) select {request}, 'approved', {it.moment} from {it.numbers(0, DECIDED)}",
        f"""
        insert into vote (approval_id, tenant, person, verdict, how, at)
        select {it.approval}, {_TENANT}, 'bob', 'approve', 'test', {it.moment} from {it.numbers(0, DECIDED)}
        """,
        f"""
        insert into app_event (id, tenant, name, data, sent_by, sent_at)
        select {it.approval}, {_TENANT}, 'sent', {it.order}, 'till', {it.sent_at} from {it.numbers(0, SENT)}
        """,
    ]


_ON_POSTGRES = _Dialect(
    job=_POSTGRES_JOB,
    approval=_POSTGRES_APPROVAL,
    moment="to_timestamp(1700000000 + n / 1000.0)",
    sent_at="to_timestamp(1700000000 + n / 100.0)",
    order="json_build_object('order', n)",
    wanted="""'{"order": ' || n || '}'""",
    day="'1 day'",
    year=lambda year: f"make_timestamptz({year}, 1, 1, 0, 0, 0)",
    numbers=lambda first, last: f"generate_series({first + 1}, {last}) n",
)
_ON_SQLITE = _Dialect(
    job=_SQLITE_JOB,
    approval=_SQLITE_APPROVAL,
    moment="1700000000000000 + n * 1000",
    sent_at="1700000000000000 + n * 10000",
    order="json_object('order', n)",
    wanted="""'{"order":' || n || '}'""",
    day="86400000000",
    year=lambda year: f"(({year}) - 1970) * 31557600000000",
    numbers=lambda first, last: f"job where n > {first} and n <= {last}",
)


GROUPS = 20_000
LARGEST = "largest"
_LETTERS = "insert into dead_letter (job_id, tenant, fingerprint, kind, queue, dead_at)"
_GROUP = (
    "insert into dead_letter_group (tenant, fingerprint, kind, error_code, error_message, sample_job, first_at,"
    " last_at, times, open, last_job)"
)
_SAMPLE = "00000000-0000-7000-8000-000000000000"


def _dead_letters(time: str, numbers: str, minimum: str, sample: str) -> tuple[str, ...]:
    return (
        f"{_LETTERS} select id, tenant, '{LARGEST}', kind, queue, finished_at from job_state"
        " where state = 'dead_letter'",
        f"{_GROUP} select tenant, '{LARGEST}', 'kind-1', 'broken', 'broken', {minimum}, min(dead_at), max(dead_at),"
        f" count(*), count(*), {minimum} from dead_letter group by tenant",
        f"{_GROUP} {numbers} select 'a', 'g-' || n, 'kind-' || (n % 20), 'broken', 'broken in ' || n, {sample}, {time},"
        f" {time}, 9, (n % 2) * (n % 7), {sample} from numbers",
    )


DEAD_ON_POSTGRES = _dead_letters(
    "to_timestamp(1700000000 + n)",
    f"with numbers (n) as (select generate_series(1, {GROUPS}))",
    "min(job_id::text)::uuid",
    f"uuid '{_SAMPLE}'",
)
DEAD_ON_SQLITE = _dead_letters(
    "1700000000000000 + n * 1000000",
    f"with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < {GROUPS})",
    "min(job_id)",
    f"'{_SAMPLE}'",
)

POSTGRES = (
    f"""
    insert into job (id, tenant, kind, queue, payload, priority, deadline_at, tags, agent, correlation_id,
                     enqueued_by, source_system, created_at)
    select {_POSTGRES_JOB},
           tenant, kind, queue, '{{}}', priority, {_ON_POSTGRES.year(DEADLINE_YEAR)},
           case when n % 10009 = 0 then array['rare', 'common'] when n % 5 = 0 then array['common'] else '{{}}' end,
           agent, correlation_id, 'filler', 'tests', to_timestamp(1700000000 + n / 1000.0)
      from (select n, {FACTS} from generate_series(1, {ASKING}) n) f
    """,
    f"""
    insert into job_state (id, tenant, kind, queue, state, priority, position, max_attempts, max_crashes, attempt,
                           due_at, deadline_at, lease, approval_id, finished_at, error_code, error_message, agent, note)
    select {_POSTGRES_JOB},
           tenant, kind, queue, ({STATE})::state, priority, n * 100, 4, 3, 1,
           {_ON_POSTGRES.year(DUE_YEAR)}, {_ON_POSTGRES.year(DEADLINE_YEAR)},
           case when n > {LATE} and n <= {HELD}
                then ('00000000-0000-0000-0000-' || lpad((n % 50)::text, 12, '0'))::uuid end,
           case when n > {WAITING} then {_POSTGRES_APPROVAL} end,
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
           {_ON_POSTGRES.year(UNTIL_YEAR)}, now(), now(),
           case when n >= 50 then now() end, case when n >= 50 then 'settled' end, case when n >= 50 then now() end
      from generate_series(0, {LEASES}) n
    """,
    f"select setval('position_seq', {ASKING})",
    *_waits(_ON_POSTGRES),
    *DEAD_ON_POSTGRES,
    *ORIGINS,
)

_NUMBERS = f"with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < {ASKING})"
_FACTS = f"(select n, {FACTS} from numbers)"

SQLITE = (
    f"""
    insert into job (n, id, tenant, kind, queue, payload, priority, deadline_at, tags, agent, correlation_id,
                     enqueued_by, source_system, created_at)
    {_NUMBERS}
    select n, {_SQLITE_JOB}, tenant, kind, queue, '{{}}', priority, {_ON_SQLITE.year(DEADLINE_YEAR)},
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
           {_ON_SQLITE.year(DUE_YEAR)}, deadline_at,
           case when n > {LATE} and n <= {HELD} then printf('00000000-0000-0000-0000-%012d', n % 50) end,
           case when n > {WAITING} then {_SQLITE_APPROVAL} end,
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
    select printf('00000000-0000-0000-0000-%012d', n), '*', 'worker', 'worker ' || n,
           {_ON_SQLITE.year(UNTIL_YEAR)}, 0, 0,
           case when n >= 50 then 0 end, case when n >= 50 then 'settled' end, case when n >= 50 then 0 end
      from numbers
    """,
    *_waits(_ON_SQLITE),
    *DEAD_ON_SQLITE,
    *ORIGINS,
)


def fill_postgres(url: str) -> None:
    """Fill a migrated database, as a superuser."""
    with psycopg.connect(url, autocommit=True) as connection:

        def run(statement: str) -> None:
            connection.execute(statement.encode())

        disable_autovacuum(connection)
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
        run("update dispatch set fair_auto = false")  # otherwise the first promotion would build the index over tenants
        for table, name, definition in keys:
            run(f"alter table {table} add constraint {name} {definition}")
        for _, definition in indexes:
            run(definition.replace(" ON ONLY ", " ON "))  # also on the partitions
        for table in (*BIG, "lease"):
            run(f"vacuum (analyze) {table}")


def fill_sqlite(path: Path) -> None:
    """Create and fill a new file."""
    url = f"sqlite:///{path}"
    with closing(open_store(url)) as store:
        store.migrate()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma journal_mode = off")
        connection.execute("pragma synchronous = off")
        connection.execute("pragma cache_size = -400000")
        connection.execute("pragma ignore_check_constraints = on")
        dropped = connection.execute(
            "select type, name, sql from sqlite_schema where type in ('trigger', 'index') and sql is not null"
        ).fetchall()
        connection.execute("begin exclusive")
        for kind, name, _ in dropped:
            connection.execute(f"drop {kind} {name}")
        for statement in SQLITE:
            connection.execute(on_sqlite(statement))
        connection.execute("update holdfast_dispatch set fair_auto = 0")
        # Sorted by type: indexes first, then the triggers.
        for _, _, definition in sorted(dropped):
            connection.execute(definition)
        connection.execute("commit")
