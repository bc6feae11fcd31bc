"""Retry as a new job: the failed job stays failed, one successor replaces it, counters cover the chain."""

from __future__ import annotations

import re
from typing import Any

import pytest

from holdfast.engine.job import Claim, Job
from holdfast.engine.outcome import Crashed, Outcome, Succeeded
from holdfast.engine.settlement import decide
from holdfast.engine.states import State
from holdfast.features.agents.model import Definition
from holdfast.features.assembly import Store
from holdfast.stores.sqlite import enqueue as retry_as
from tests.support.direct_sql import ByHand
from tests.support.stores import (
    BROKEN,
    FINAL,
    claim,
    enqueue,
    forward,
    job,
    open_lease,
    put_one,
    settle,
    spec,
    state_of,
    take,
    tries,
    types_of,
    work,
)

pytestmark = pytest.mark.req("SC-6", "SC-12")

DIED = Crashed("process_died", "its process is gone")


def put_new(store: Store, **fields: Any) -> str:
    return put_one(store, retry_as="new_job", **({"retry": tries(3)} | fields))


def chain(store: Store, job_id: str, tenant: str = "*") -> list[Job]:
    return store.run(store.jobs.chain(job_id, tenant))


def due(store: Store) -> Claim:
    """Claim the next attempt after its delay."""
    forward(store, 600)
    store.run(store.leases.promote())
    return take(store)


def test_each_failure_makes_a_new_job_until_the_limit(store: Store) -> None:
    first = put_new(store)
    claims = [take(store)]
    settle(store, claims[0], BROKEN)
    for _ in range(2):
        claims.append(due(store))
        settle(store, claims[-1], BROKEN)
    ids = [each.id for each in claims]
    assert ids[0] == first
    assert len(set(ids)) == 3
    for job_id in ids:
        assert [each.id for each in chain(store, job_id)] == ids, "the chain is the same from every job"
    tried = chain(store, first)
    assert [each.retry_of for each in tried] == [None, *ids[:2]]
    assert [each.state for each in tried] == [State.FAILED, State.FAILED, State.DEAD_LETTER]
    assert [(each.attempt, each.retries) for each in tried] == [(1, 1), (1, 2), (1, 2)]
    assert types_of(store, first) == ["enqueue", "take", "fail"], "the job itself is not retried"
    assert types_of(store, ids[-1])[-3:] == ["take", "fail", "dead_letter"]
    assert work(store) == []


@pytest.mark.req("DP-10")
def test_successor_has_the_fields_of_its_predecessor(store: Store) -> None:
    first = put_new(
        store,
        payload={"a": [1.50, "é"]},
        queue="default",
        priority=7,
        tags=("x", "y"),
        external_ref="e-1",
        correlation_id="c",
        causation_id="d",
        depth=2,
        retry=tries(9, crashes=5),
    )
    settle(store, take(store), BROKEN, jitter=1.0)
    old, new = chain(store, first)
    same = ("tenant", "kind", "queue", "payload", "priority", "tags", "external_ref", "correlation_id", "causation_id")
    for name in (*same, "depth", "retry_as", "max_attempts", "max_crashes", "backoff", "source_system", "deadline_at"):
        assert getattr(new, name) == getattr(old, name), name
    assert new.enqueued_by == f"retry of {first}"
    assert new.due_at is not None
    assert new.due_at > new.created_at, "delayed by its policy"
    assert (old.error_code, old.finished_at is not None) == ("broken", True)


@pytest.mark.req("DP-8", "CX-10")
def test_crashes_are_counted_over_the_chain(store: Store) -> None:
    first = put_new(store, retry=tries(9, crashes=2))
    take(store)
    forward(store, 60)
    store.run(store.leases.recover())
    assert state_of(store, first) is State.FAILED
    assert types_of(store, first)[-1] == "lease_expired"
    second = take(store)
    settle(store, second, DIED)
    third = due(store)
    assert [each.crashes for each in chain(store, first)] == [1, 2, 2]
    lease = third.lease
    assert lease
    forward(store, 60)
    sweep = store.run(store.leases.recover())
    assert sweep.crashed == 1
    store.run(store.leases.recover())
    assert [each.state for each in chain(store, third.id)] == [State.FAILED, State.FAILED, State.DEAD_LETTER]
    assert job(store, third.id).crashes == 3
    assert len(chain(store, first)) == 3, "a repeated sweep finds nothing to do"


def test_successor_is_created_atomically_with_the_failure(store: Store, by_hand: ByHand) -> None:
    """Failure and successor are atomic; the first of two settlements of an attempt counts."""
    first = put_new(store)
    claimed = take(store)
    settle(store, claimed, BROKEN)
    assert settle(store, claimed, BROKEN) == [first]
    assert settle(store, claimed) == [first]
    assert len(chain(store, first)) == 2
    (new,) = by_hand.execute("select id from job where retry_of is not null")
    assert by_hand.execute("select count(*) from job_state") == [(2,)]
    plain = put_one(store)
    for statement, says in (
        (
            f"update job_state set state = 'retry_waiting', finished_at = null, due_at = 0 where id = '{first}'",
            "cannot run again",
        ),
        (f"update job_state set state = 'dead_letter' where id = '{first}'", "cannot run again"),
        (f"insert into job (tenant, kind, retry_of) values ('default', 'mail.send', '{first}')", "retr"),
        (f"insert into job (tenant, kind, retry_of) values ('default', 'other', '{plain}')", "failed job"),
        (f"insert into job (tenant, kind, retry_of) values ('default', 'mail.send', '{new[0]}')", "failed job"),
        (f"insert into job (tenant, kind, retry_of) values ('acme', 'mail.send', '{plain}')", "failed job"),
        (f"insert into job (tenant, kind, retry_of) values ('default', 'mail.send', '{plain}')", "failed job"),
        (f"update job set retry_of = null where id = '{new[0]}'", "never change"),
    ):
        if "due_at = 0" in statement and not store.embedded:
            statement = statement.replace("due_at = 0", "due_at = now()")
        assert says in (by_hand.refusal(statement) or ""), statement


def test_batch_of_both_retry_modes(store: Store) -> None:
    as_new, in_place, last, fine = (
        put_new(store),
        put_one(store, retry=tries(3)),
        put_new(store, retry=tries(1)),
        put_new(store),
    )
    claims = {each.id: each for each in claim(store, open_lease(store), 10)}
    lease = next(iter(claims.values())).lease
    outcomes: dict[str, Outcome] = {as_new: BROKEN, in_place: BROKEN, last: BROKEN, fine: Succeeded()}
    settlements = [decide(claims[id], outcome, 1.0) for id, outcome in outcomes.items()]
    assert store.run(store.leases.settle(lease, settlements, "*")) == []
    assert [state_of(store, id) for id in outcomes] == ["failed", "retry_waiting", "dead_letter", "succeeded"]
    assert [len(chain(store, id)) for id in outcomes] == [2, 1, 1, 1]


@pytest.mark.req("DP-5", "HK-2")
def test_keys_refer_to_the_newest_job_of_the_chain(store: Store) -> None:
    first = put_new(store, key="k-1", content_key="same", dedupe="skip")
    settle(store, take(store), BROKEN)
    (_, new) = chain(store, first)
    by_key, by_content = enqueue(store, spec(key="k-1"), spec(content_key="same", dedupe="skip"))
    assert (by_key.id, by_key.reason, by_key.state) == (new.id, "duplicate_key", State.QUEUED)
    assert (by_content.id, by_content.reason) == (new.id, "duplicate_content")
    settle(store, due(store))
    (again,) = enqueue(store, spec(content_key="same", dedupe="skip"))
    assert again.created, "the content is free after the chain has ended"


@pytest.mark.req("CX-16")
def test_successor_is_created_for_a_disabled_agent(store: Store) -> None:
    store.run(store.agents.set(Definition(id="planner", name="Planner"), "default"))
    first = put_new(store, agent="planner", retry_given=True)
    claimed = take(store)
    store.run(store.agents.disable("planner", "it loops", "ada", "default"))
    assert settle(store, claimed, BROKEN) == []
    assert [each.state for each in chain(store, first)] == [State.FAILED, State.QUEUED]
    forward(store, 600)
    store.run(store.leases.promote())
    assert claim(store, open_lease(store)) == []


@pytest.mark.req("DP-15", "JF-5")
def test_redriven_dead_letter_continues_the_chain(store: Store) -> None:
    first = put_new(store, retry=tries(2))
    settle(store, take(store), BROKEN)
    settle(store, due(store), BROKEN)
    dead = chain(store, first)[-1]
    (answer,) = store.run(store.jobs.operate("redrive", [dead.id], None, "ada", "default"))
    assert not answer.refused
    settle(store, take(store), BROKEN)
    assert len(chain(store, first)) == 3
    (refused,) = store.run(store.jobs.operate("redrive", [first], None, "ada", "default"))
    assert (refused.refused, refused.reason) == (True, "not_dead")
    settle(store, due(store), FINAL)
    assert [each.state.value for each in chain(store, first)][-1] == "dead_letter"


@pytest.mark.req("JF-1")
def test_chain_of_another_tenant_is_empty(store: Store) -> None:
    first = put_one(store, retry_as="new_job", tenant="acme")
    settle(store, take(store), BROKEN)
    assert len(chain(store, first, "acme")) == 2
    assert chain(store, first, "umbrella") == []


def test_successor_statement_names_every_column(store: Store, by_hand: ByHand) -> None:
    """A new column of jobs must be handled in the statement that creates a successor."""
    if store.embedded:
        columns = {row[0] for row in by_hand.execute("select name from pragma_table_info('holdfast_job')")} - {"n"}
        statement = retry_as._SUCCEED
    else:
        columns = {
            row[0]
            for row in by_hand.execute(
                "select attname from pg_attribute where attrelid = 'job'::regclass and attnum > 0 and not attisdropped"
            )
        }
        statement = by_hand.execute("select pg_get_functiondef('retry_as_new'::regproc)")[0][0]
    missing = {column for column in columns if re.search(rf"\b{column}\b", statement) is None}
    assert missing == set()


@pytest.mark.req("DP-2")
def test_failure_reported_by_sql_makes_a_successor(store: Store, by_hand: ByHand) -> None:
    if store.embedded:
        pytest.skip("SQL functions are PostgreSQL's")
    first = put_new(store)
    ((job_id, lease),) = by_hand.execute("select id, lease from claim('default', 'psql', for_tenant => 'default')")
    assert str(job_id) == first
    answer = by_hand.execute(
        f"select state, refused from fail('{first}', '{lease}', 'odd', 'x', for_tenant => 'default')"
    )
    assert answer == [("failed", False)]
    ((rows,),) = by_hand.execute(f"select count(*) from chain('{first}', 'default')")
    assert rows == 2
