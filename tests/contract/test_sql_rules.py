"""Rules that SQL and Python share, compared over their whole range: ids, backoff, transitions, event types."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from urllib.parse import urlsplit

import psycopg
import pytest

from holdfast.engine.ids import created_ms, parse_id
from holdfast.engine.retry import PATIENT, PRESETS, Backoff, fixed
from holdfast.engine.states import TRANSITIONS, State, is_legal
from holdfast.features.assembly import Store, open_store
from tests.support.direct_sql import ByHand, PostgresByHand
from tests.support.stores import history

pytestmark = pytest.mark.req("DP-20")


@pytest.fixture
def sql(owned_postgres_url: str) -> Iterator[PostgresByHand]:
    with closing(PostgresByHand(owned_postgres_url)) as by_hand:
        yield by_hand


@pytest.mark.req("CX-2")
def test_uuid7_is_valid_and_carries_its_time(sql: PostgresByHand) -> None:
    for _ in range(20):
        ((before, made, after),) = sql.execute(
            "select floor(extract(epoch from b) * 1000)::bigint, u,"
            " ceil(extract(epoch from clock_timestamp()) * 1000)::bigint"
            " from (select clock_timestamp() as b, uuid7() as u offset 0) x"
        )
        assert (uuid.UUID(made).version, uuid.UUID(made).variant) == (7, uuid.RFC_4122)
        assert before - 1 <= created_ms(made) <= after + 1
    ((distinct,),) = sql.execute("select count(distinct uuid7()) from generate_series(1, 2000)")
    assert distinct == 2000


@pytest.mark.req("CX-2")
def test_uuid7_sorts_by_creation_time(sql: PostgresByHand) -> None:
    rows = sql.execute("select uuid7() from generate_series(1, 5000)")
    times = [created_ms(row[0]) for row in rows]
    assert times == sorted(times)
    assert len(set(times)) > 1
    firsts = [row[0] for n, row in enumerate(rows) if n == 0 or times[n] != times[n - 1]]
    assert firsts == sorted(firsts)


POLICIES = [
    *PRESETS.values(),
    *(
        Backoff(base=base, factor=factor, cap=cap, head=head, jitter=False)
        for base, factor, cap, head in product(
            (0.0, 0.001, 1.0, 7.5, 2_592_000.0), (1.0, 1.5, 2.0, 1_000.0), (0.0, 0.5, 300.0, 2_592_000.0), (0, 1, 50)
        )
    ),
    *(fixed(seconds) for seconds in (0, 0.25, 3_600)),
]


@pytest.mark.req("CX-9")
def test_sql_backoff_equals_python(sql: PostgresByHand) -> None:
    """Every policy for every retry that the database allows; an interval has microseconds."""
    plain = [dataclasses.replace(policy, jitter=False) for policy in POLICIES]
    rows = sql.execute(
        "select p.n, r, extract(epoch from backoff_delay(p.policy, r))::float8"
        " from jsonb_array_elements(:policies) with ordinality as p(policy, n), generate_series(0, 101) r",
        {"policies": json.dumps([policy.to_json() for policy in plain])},
    )
    assert len(rows) == len(plain) * 102
    wrong = [
        (plain[n - 1], retry, got, plain[n - 1].ceiling(retry))
        for n, retry, got in rows
        if abs(got - plain[n - 1].ceiling(retry)) > 1e-6 + 1e-9 * plain[n - 1].ceiling(retry)
    ]
    assert wrong == []


@pytest.mark.req("CX-9")
def test_sql_default_backoff_equals_python(sql: PostgresByHand) -> None:
    rows = sql.execute(
        "select r, extract(epoch from backoff_delay('{\"jitter\": false}', r))::float8 from generate_series(1, 12) r"
    )
    assert [seconds for _, seconds in rows] == pytest.approx([1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300])
    longest = sql.execute(
        "select r, max(extract(epoch from backoff_delay(null, r)))::float8 from generate_series(1, 9) r,"
        " generate_series(1, 200) group by r order by r"
    )
    assert [seconds for _, seconds in longest] == pytest.approx([PATIENT.ceiling(r) for r in range(1, 10)], rel=0.2)


@pytest.mark.req("CX-9")
def test_sql_jitter_ranges_from_zero_to_the_delay(sql: PostgresByHand) -> None:
    rows = sql.execute("select extract(epoch from backoff_delay(null, 3))::float8 / 16 from generate_series(1, 2000)")
    drawn = [row[0] for row in rows]
    assert 0 <= min(drawn) < 0.05
    assert 0.95 < max(drawn) <= 1
    assert sum(drawn) / len(drawn) == pytest.approx(0.5, abs=0.05)


@pytest.mark.req("CX-1", "DP-1")
def test_sql_legal_transitions_equal_python(sql: PostgresByHand) -> None:
    rows = sql.execute(
        "select a, b, legal(a, b) from unnest(:states::text[]) a, unnest(:states::text[]) b",
        {"states": [state.value for state in State]},
    )
    assert {row[0] for row in rows} == {state.value for state in State}
    for source, target, legal in rows:
        assert legal == (source == target or is_legal(State(source), State(target))), (source, target)


# What distinguishes event types between the same two states.
CODES = {"lease_expired": "worker_lost", "crash": "process_died", "expire": "approval_expired"}
NOTES = {
    "lease_expired": '{"reason": "lease_expired"}',
    "reschedule": '{"rescheduled": "now"}',
    "move": '{"moved": {"to": "first"}}',
    "replace": '{"replaced": {"old": "a", "new": "b"}}',
    "approve": '{"verdict": "approved"}',
    "deny": '{"verdict": "denied"}',
    "expire": '{"verdict": "expired"}',
}


@pytest.mark.req("CX-4")
def test_sql_event_types_equal_the_transition_table(sql: PostgresByHand) -> None:
    for step in TRANSITIONS:
        if step.source is None:
            continue
        note = NOTES.get(step.type)
        ((event_type,),) = sql.execute(
            "select event_type(:was, :now, :code, :note)",
            {"was": step.source, "now": step.target, "code": CODES.get(step.type, "x"), "note": note},
        )
        assert event_type == step.type, step


NAMES = ["", " ", "\t", "*", "*a", "!", "a", "ä", "default", "n" * 100, "ä" * 100, "n" * 101]
NUMBERS = [-32768, -1, 0, 3, 64, 100, 101, 32767]


@pytest.mark.req("SC-19")
def test_quick_check_of_facts_misses_no_broken_rule(sql: PostgresByHand) -> None:
    """Facts that pass the quick check break no rule; and common facts pass it, or it would be useless."""
    ((seen, overlooked, plain),) = sql.execute(
        """with name as (select n from unnest(cast(:names as text[])) n),
             number as (select n::smallint from unnest(cast(:numbers as int[])) n),
        facts (kind, queue, tenant, by, source, retries, crashes) as (
            select k.n, q.n, t.n, 'app', 'app', 4::smallint, 3::smallint from name k, name q, name t
            union all select 'kind', 'queue', 'default', b.n, s.n, 4::smallint, 3::smallint from name b, name s
            union all select 'kind', 'queue', 'default', 'app', 'app', r.n, c.n from number r, number c
        ), checked as (
            select odd_fact(kind, queue, tenant, by, source, retries, crashes) as odd,
                   broken_fact(kind, queue, tenant, by, source, retries, crashes, null, null, null) as broken from facts
        )
        select count(*), count(*) filter (where odd is not true and broken is not null),
               count(*) filter (where odd is false) from checked""",
        {"names": NAMES, "numbers": NUMBERS},
    )
    assert (seen, overlooked) == (len(NAMES) ** 3 + len(NAMES) ** 2 + len(NUMBERS) ** 2, 0)
    both = [(r - 1) | c for r, c in product(NUMBERS, NUMBERS)]
    # Four of the names are ordinary; enqueued_by and source_system may be longer than they are.
    assert plain == 4**3 + 6**2 + len([bits for bits in both if 0 <= bits <= 63])


@pytest.mark.req("SC-19")
def test_quick_check_of_names_does_not_depend_on_the_collation(empty_postgres_url: str) -> None:
    """ICU ignores control characters when it compares, so a name that begins with one would look ordinary."""
    name = "holdfast_icu"
    with psycopg.connect(empty_postgres_url, autocommit=True) as admin:
        try:
            admin.execute(f"create database {name} template template0 locale_provider icu icu_locale 'en-US'")
        except psycopg.Error as error:
            pytest.skip(f"this server has no databases with ICU: {error}")
        try:
            url = urlsplit(empty_postgres_url)._replace(path=f"/{name}").geturl()
            with closing(open_store(url)) as store:
                store.migrate()
            with psycopg.connect(url) as connection:
                odd = connection.execute(
                    "select holdfast.odd_fact(%s, 'queue', 'default', 'app', 'app', 4::smallint, 3::smallint)",
                    ("\x01zz",),
                ).fetchone()
        finally:
            admin.execute(f"drop database {name} with (force)")
    assert odd == (True,)


@pytest.mark.req("CX-2", "CX-4")
def test_row_inserted_by_hand_is_a_complete_job(store: Store, by_hand: ByHand) -> None:
    """On every store the database adds the id, the state and the first event."""
    tenant = "" if by_hand.name == "sqlite" else ", tenant"
    value = "" if by_hand.name == "sqlite" else ", 'default'"
    for kind in ("first", "second"):
        by_hand.execute(f"insert into job (kind{tenant}) values ('{kind}'{value})")
    rows = by_hand.execute("select id, kind, state, enqueued_by, source_system from jobs order by position")
    assert [row[1:3] for row in rows] == [("first", "queued"), ("second", "queued")]
    assert all(row[3].strip() and row[4] == "sql" for row in rows)
    for job_id, *_ in rows:
        assert parse_id(job_id) == job_id
        assert abs(created_ms(job_id) - store.run(store.clock.now()).timestamp() * 1000) < 60_000
        assert [event.type for event in history(store, job_id)] == ["enqueue"]
