"""What the jobs of `filling.py` wait for: an event (beside a finished step) or an approval; also decided approvals."""

from __future__ import annotations

DECIDED = 50_000
TOLD = 20_000

POSTGRES_JOB = "(lpad(to_hex(1700000000000 + n), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))::uuid"
POSTGRES_APPROVAL = "(lpad(to_hex(1700000000000 + n), 12, '0') || '70009000' || lpad(to_hex(n), 12, '0'))::uuid"
SQLITE_JOB = "printf('%08x-%04x-7000-8000-%012x', (1700000000000 + n) >> 16, (1700000000000 + n) & 0xffff, n)"
SQLITE_APPROVAL = "printf('%08x-%04x-7000-9000-%012x', (1700000000000 + n) >> 16, (1700000000000 + n) & 0xffff, n)"
TENANT = "case when n % 1000 = 0 then 'b' else 'a' end"


def postgres(held: int, waiting: int, asking: int) -> list[str]:
    moment = "to_timestamp(1700000000 + n / 1000.0)"
    approval = "insert into approval (id, tenant, job_id, n, name, summary, requester, content_hash, opened_at"
    asked = f"{POSTGRES_APPROVAL}, {TENANT}, {POSTGRES_JOB}, 1, 'release', 'May it?', 'ada', 'h', {moment}"
    return [
        f"""
        insert into step (job_id, n, tenant, name, kind, value, attempt, started_at, ended_at)
        select {POSTGRES_JOB}, 1, {TENANT}, 'charge', 'step', '1', 1, {moment}, {moment}
          from generate_series({held + 1}, {waiting}) n
        """,
        f"""
        insert into step (job_id, n, tenant, name, kind, attempt, started_at, wake_at, shape, wanted)
        select {POSTGRES_JOB}, 2, {TENANT}, 'paid', 'event', 1, {moment}, make_timestamptz(2100, 1, 1, 0, 0, 0),
               '["order"]', '{{"order": ' || n || '}}'
          from generate_series({held + 1}, {waiting}) n
        """,
        f"""
        insert into step (job_id, n, tenant, name, kind, attempt, started_at)
        select {POSTGRES_JOB}, 1, {TENANT}, 'release', 'approval', 1, {moment}
          from generate_series({waiting + 1}, {asking}) n
        """,
        f"""
        {approval}, expires_in, expires_at)
        select {asked}, '1 day', make_timestamptz(case when n % 100 = 0 then 2024 else 2100 end, 1, 1, 0, 0, 0)
          from generate_series({waiting + 1}, {asking}) n
        """,
        f"""
        {approval}, state, decided_at)
        select {asked}, 'approved', {moment} from generate_series(1, {DECIDED}) n
        """,
        f"""
        insert into vote (approval_id, tenant, person, verdict, how, at)
        select {POSTGRES_APPROVAL}, {TENANT}, 'bob', 'approve', 'test', {moment} from generate_series(1, {DECIDED}) n
        """,
        f"""
        insert into app_event (id, tenant, name, data, sent_by, sent_at)
        select {POSTGRES_APPROVAL}, {TENANT}, 'told', json_build_object('order', n), 'till',
               to_timestamp(1700000000 + n / 100.0)
          from generate_series(1, {TOLD}) n
        """,
    ]


def sqlite(held: int, waiting: int, asking: int) -> list[str]:
    moment = "1700000000000000 + n * 1000"
    approval = "insert into approval (id, tenant, job_id, n, name, summary, requester, content_hash, opened_at"
    asked = f"{SQLITE_APPROVAL}, {TENANT}, {SQLITE_JOB}, 1, 'release', 'May it?', 'ada', 'h', {moment}"
    return [
        f"""
        insert into step (job_id, n, tenant, name, kind, value, attempt, started_at, ended_at)
        select {SQLITE_JOB}, 1, {TENANT}, 'charge', 'step', '1', 1, {moment}, {moment}
          from job where n > {held} and n <= {waiting}
        """,
        f"""
        insert into step (job_id, n, tenant, name, kind, attempt, started_at, wake_at, shape, wanted)
        select {SQLITE_JOB}, 2, {TENANT}, 'paid', 'event', 1, {moment}, (2100 - 1970) * 31557600000000,
               '["order"]', '{{"order":' || n || '}}'
          from job where n > {held} and n <= {waiting}
        """,
        f"""
        insert into step (job_id, n, tenant, name, kind, attempt, started_at)
        select {SQLITE_JOB}, 1, {TENANT}, 'release', 'approval', 1, {moment}
          from job where n > {waiting} and n <= {asking}
        """,
        f"""
        {approval}, expires_in, expires_at)
        select {asked}, 86400000000, (case when n % 100 = 0 then 2024 else 2100 end - 1970) * 31557600000000
          from job where n > {waiting} and n <= {asking}
        """,
        f"{approval}, state, decided_at) select {asked}, 'approved', {moment} from job where n <= {DECIDED}",
        f"""
        insert into vote (approval_id, tenant, person, verdict, how, at)
        select {SQLITE_APPROVAL}, {TENANT}, 'bob', 'approve', 'test', {moment} from job where n <= {DECIDED}
        """,
        f"""
        insert into app_event (id, tenant, name, data, sent_by, sent_at)
        select {SQLITE_APPROVAL}, {TENANT}, 'told', json_object('order', n), 'till', 1700000000000000 + n * 10000
          from job where n <= {TOLD}
        """,
    ]
