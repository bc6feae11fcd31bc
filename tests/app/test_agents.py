"""`app.agents`, and jobs that are for one: whose policy counts, what is refused, what a worker leaves alone (CX-16)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from holdfast import App, Backoff, Retry, RetryLater, State, SyncContext
from holdfast.engine.job import Job
from holdfast.engine.retry import GENTLE, HOURLY_CAP
from holdfast.errors import Conflict, HoldfastError, InvalidSetting, NotFound, Refused
from holdfast.stores.sqlite.connections import database_path

pytestmark = pytest.mark.req("CX-16")


def policy(job: Job) -> tuple[int, int, object]:
    return job.max_attempts, job.max_crashes, job.backoff


def code_of(raised: pytest.ExceptionInfo[HoldfastError]) -> str:
    return raised.value.code


@pytest.fixture(autouse=True)
def migrated(app: App) -> None:
    app._store.migrate()


# -- the registry ----------------------------------------------------------------------------------------------


def test_register_look_disable_enable(app: App) -> None:
    made = app.agents.set("planner", name="The planner", kind="plan", retry="gentle", requires_approval=True)
    assert app.agents.get("planner") == made
    assert app.agents.list() == app.agents.list(kind="plan") == app.agents.list(disabled=False) == [made]
    shut = app.agents.disable("planner", reason="it loops")
    assert (shut.disabled, shut.disabled_by, shut.disabled_reason) == (True, "tester", "it loops")
    assert app.agents.list(disabled=True) == [shut]
    assert not app.agents.enable("planner").disabled
    with pytest.raises(NotFound):
        app.agents.get("nobody")


async def test_the_same_awaited(app: App) -> None:
    made = await app.agents.aset("planner", max_wait="1h")
    assert await app.agents.aget("planner") == made
    assert await app.agents.alist() == [made]
    assert (await app.agents.adisable("planner", reason="it loops")).disabled
    assert [agent.id for agent in await app.agents.alist(disabled=True)] == ["planner"]
    with pytest.raises(Refused) as refused:
        await app.aenqueue("plan", agent="planner")
    assert code_of(refused) == "agent_disabled"
    assert not (await app.agents.aenable("planner")).disabled
    assert (await app.aenqueue("plan", agent="planner")).created


def test_an_agent_that_is_not_registered(app: App) -> None:
    with pytest.raises(NotFound) as missing:
        app.agents.disable("nobody", reason="x")
    assert code_of(missing) == "agent_not_found"
    with pytest.raises(NotFound) as missing:
        app.agents.enable("nobody")
    assert code_of(missing) == "agent_not_found"


@pytest.mark.parametrize(
    ("definition", "code"),
    [
        ({"id": ""}, "invalid_name"),
        ({"id": "*"}, "invalid_name"),
        ({"name": "a\u202eb"}, "invalid_name"),
        ({"kind": " "}, "invalid_name"),
        ({"retry": "rough"}, "invalid_backoff"),
        ({"retry": 5}, "invalid_retry"),
        ({"retry": RetryLater(5)}, "invalid_retry"),
        ({"retry": Retry(retry_on=(OSError,))}, "invalid_retry"),
        ({"max_payload": 0}, "invalid_size"),
        ({"max_payload": "2GB"}, "invalid_size"),
        ({"max_wait": 0}, "invalid_duration"),
        ({"max_wait": "100w 100000w"}, "invalid_duration"),
        ({"requires_approval": 1}, "invalid_agent"),
    ],
)
def test_what_cannot_be_registered(app: App, definition: dict[str, Any], code: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        app.agents.set(**({"id": "planner"} | definition))
    assert code_of(refused) == code
    assert app.agents.list() == []


@pytest.mark.parametrize("reason", ["", "  ", "\x00"])
def test_disabling_needs_a_reason(app: App, reason: str) -> None:
    app.agents.set("planner")
    if reason.strip():
        assert app.agents.disable("planner", reason=reason).disabled_reason, "what no store can keep is made visible"
        return
    with pytest.raises(HoldfastError) as refused:
        app.agents.disable("planner", reason=reason)
    assert code_of(refused) == "reason_required"


# -- whose policy (CX-9, CX-10) ---------------------------------------------------------------------------------


@pytest.mark.req("CX-9", "CX-10")
def test_the_call_before_the_agent_before_the_kind(app: App) -> None:
    @app.job(retry=Retry(max_attempts=2, backoff=Backoff(base=7), max_crashes=0))
    def plan(n: int) -> None: ...

    def made(**options: Any) -> list[tuple[int, int, object]]:
        """By every way a job can be made."""
        kind = plan.using(**options)
        handles = [
            kind.enqueue(1),
            kind.enqueue(2),  # the second time what is fixed is known
            *app.enqueue_many(kind.prepare(n) for n in range(2)),
            *app.enqueue_many(plan.using(**options).prepare(n) for n in range(2)),
            app.enqueue("plan", {"n": 1}, **options),
        ]
        return list({str(found): found for found in (policy(handle.get()) for handle in handles)}.values())

    own = Backoff(base=7).to_json()
    assert made() == [(2, 0, own)]
    assert made(agent="planner") == [(2, 0, own)]
    app.agents.set("planner", retry=Retry(max_attempts=6, backoff=GENTLE, max_crashes=5))
    assert made(agent="planner") == [(6, 5, GENTLE.to_json())]
    assert made() == [(2, 0, own)]
    assert made(agent="planner", retry=Retry(max_attempts=9)) == [(9, 3, None)]
    assert made(agent="planner", retry=Retry()) == [(10, 3, None)]
    assert made(agent="planner", retry="hourly_cap") == [(10, 3, HOURLY_CAP.to_json())]
    app.agents.set("planner", retry="gentle")
    assert made(agent="planner") == [(2, 0, GENTLE.to_json())]
    app.agents.set("planner")
    assert made(agent="planner") == [(2, 0, own)]


@pytest.mark.req("SC-7", "CX-9")
def test_an_agent_does_not_make_a_promise_void(app: App) -> None:
    """What is begun at most once stays so, whatever its agent's policy."""

    @app.job(at_most_once=True)
    def pay(n: int) -> None: ...

    app.agents.set("teller", retry=Retry(max_attempts=6, max_crashes=5))
    for handle in (pay.using(agent="teller").enqueue(1), app.enqueue("pay", {"n": 1}, agent="teller")):
        assert policy(handle.get()) == (1, 0, None)


@pytest.mark.req("CX-9", "HK-3")
def test_a_preset_by_its_name(app: App) -> None:
    @app.job(retry="gentle")
    def one() -> None: ...

    @app.job(retry=Retry(max_attempts=3, backoff="hourly_cap"))
    def two() -> None: ...

    three = app.command("three", ["true"], retry="gentle")
    assert policy(one.enqueue().get()) == (10, 3, GENTLE.to_json())
    assert policy(two.enqueue().get()) == (3, 3, HOURLY_CAP.to_json())
    assert policy(three.enqueue().get()) == (10, 3, GENTLE.to_json())
    assert policy(two.using(retry="patient").enqueue().get()) == (10, 3, None)
    for wrong in ("rough", ""):
        with pytest.raises(InvalidSetting) as refused:
            app.job(retry=wrong)
        assert code_of(refused) == "invalid_backoff"
        with pytest.raises(InvalidSetting):
            one.using(retry=wrong)


@pytest.mark.slow
@pytest.mark.req("CX-9", "CX-10")
def test_an_agents_policy_is_what_the_worker_goes_by(app: App) -> None:
    """And the types of errors stay the kind's: they are in the program, not in the database."""

    @app.job(retry=Retry(max_attempts=9, give_up_on=(KeyError,)))
    def fails(how: str) -> None:
        raise KeyError(how) if how == "for good" else ValueError(how)

    app.agents.set("once", retry=Retry(max_attempts=1))
    app.agents.set("often", retry=Retry(max_attempts=3, backoff=Backoff(base=0)))
    once, often, given_up = (
        fails.using(agent=agent).enqueue(how)
        for agent, how in (("once", "again"), ("often", "again"), ("often", "for good"))
    )
    app.run_worker(burst=True)
    while often.state() is not State.DEAD_LETTER:
        app._store.run(app._store.leases.promote())
        app.run_worker(burst=True)
    assert [(handle.state(), handle.get().attempt) for handle in (once, often, given_up)] == [
        (State.DEAD_LETTER, 1),
        (State.DEAD_LETTER, 3),
        (State.DEAD_LETTER, 1),
    ]


# -- refusals -----------------------------------------------------------------------------------------------------


def test_what_is_refused_says_by_whom_and_why(app: App) -> None:
    @app.job()
    def plan(n: int) -> None: ...

    @app.job()
    def mail(n: int) -> None: ...

    app.agents.set("planner", kind="plan", max_payload=20)
    with pytest.raises(Refused) as wrong:
        mail.using(agent="planner").enqueue(1)
    assert code_of(wrong) == "agent_kind_mismatch"
    with pytest.raises(Refused) as large:
        plan.using(agent="planner").enqueue(10**20)
    assert code_of(large) == "agent_payload_limit"
    app.agents.disable("planner", reason="it loops")
    with pytest.raises(Refused) as shut:
        plan.using(agent="planner").enqueue(1)
    assert code_of(shut) == "agent_disabled"
    assert str(shut.value).startswith("agent planner was disabled by tester on 20")
    assert ": it loops [agent_disabled]" in str(shut.value)
    assert app.jobs.list() == []


def test_of_many_each_is_answered(app: App) -> None:
    @app.job()
    def plan(n: int) -> None: ...

    app.agents.set("planner")
    app.agents.disable("planner", reason="it loops")
    alike = app.enqueue_many(plan.using(agent="planner").prepare(n) for n in range(3))
    mixed = app.enqueue_many([plan.prepare(1), plan.using(agent="planner").prepare(2), plan.prepare(3)])
    assert [(handle.created, handle.reason) for handle in alike] == [(False, "agent_disabled")] * 3
    assert [handle.created for handle in mixed] == [True, False, True]
    assert "it loops" in (mixed[1].detail or "")


def test_many_parts_of_a_bulk(app: App) -> None:
    """More than fit into one statement; a thousand are sent while the next are being prepared."""

    @app.job()
    def plan(n: int) -> None: ...

    app.agents.set("planner", max_payload=8, retry=Retry(max_attempts=2))
    handles = app.enqueue_many(plan.using(agent="planner").prepare(n) for n in (*range(10), *[10_000] * 2_500))
    assert [handle.created for handle in handles] == [True] * 10 + [False] * 2_500
    assert {job.max_attempts for job in app.jobs.list()} == {2}
    assert len(app.jobs.list()) == 10


@contextmanager
def connection_of(app: App) -> Iterator[Any]:
    url = app._store.url
    opened: Any = sqlite3.connect(database_path(url)) if url.startswith("sqlite") else psycopg.connect(url)
    with closing(opened) as connection:
        yield connection


@pytest.mark.req("HF-3")
def test_a_refusal_leaves_the_users_transaction_as_it_was(app: App) -> None:
    @app.job()
    def plan(n: int) -> None: ...

    app.agents.set("planner", retry=Retry(max_attempts=2))
    app.agents.set("shut")
    app.agents.disable("shut", reason="it loops")
    with connection_of(app) as connection:
        kept = plan.using(connection=connection, agent="planner").enqueue(1)
        with pytest.raises(Refused) as refused:
            plan.using(connection=connection, agent="shut").enqueue(2)
        assert code_of(refused) == "agent_disabled"
        also = plan.using(connection=connection).enqueue(3)
        connection.commit()
    assert {job.id for job in app.jobs.list()} == {kept.id, also.id}
    assert kept.get().max_attempts == 2


def test_a_child_for_an_agent(app: App) -> None:
    @app.job()
    def plan(n: int) -> None: ...

    @app.job(retry=Retry(max_attempts=1))
    def boss(ctx: SyncContext) -> str:
        return ctx.spawn(plan, 1, agent="planner").id

    app.agents.set("planner")
    app.agents.disable("planner", reason="it loops")
    failing = boss.enqueue()
    app.run_worker(burst=True)
    assert (failing.state(), failing.get().error_code) == (State.DEAD_LETTER, "agent_disabled")
    app.agents.enable("planner")
    working = boss.enqueue()
    app.run_worker(burst=True)
    child = app.jobs.get(working.result(timeout=5))
    assert (child.agent, child.parent_id, child.state) == ("planner", working.id, State.SUCCEEDED)


# -- at work ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_worker_leaves_the_jobs_of_a_disabled_agent_alone(app: App) -> None:
    done: list[int] = []

    @app.job()
    def plan(n: int) -> None:
        done.append(n)

    app.agents.set("planner")
    handles = app.enqueue_many(plan.using(agent="planner").prepare(n) for n in range(20))
    plan.enqueue(100)
    app.agents.disable("planner", reason="it loops")
    app.run_worker(burst=True)
    assert done == [100]
    assert {handle.state() for handle in handles} == {State.QUEUED}
    assert app.tick().taken == 0
    app.agents.enable("planner")
    app.run_worker(burst=True)
    assert sorted(done) == [*range(20), 100]


@pytest.mark.req("HK-4")
def test_ones_own_loop_too(app: App) -> None:
    app.agents.set("planner")
    app.enqueue("plan", agent="planner")
    app.agents.disable("planner", reason="it loops")
    repository = app.repository()
    assert repository.claim(5) == []
    app.agents.enable("planner")
    (work,) = repository.claim(5)
    repository.mark_success(work.id)
    repository.close()


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_somebody_whose_transaction_stays_open(app: App) -> None:
    """It is disabled all the same; whoever asked is told that he cannot be sure."""
    with psycopg.connect(app._store.url, autocommit=True) as admin:
        for function in ("disable_agent", "drain_agent"):  # which are patient otherwise
            admin.execute(f"alter function holdfast.{function} set lock_timeout = '50ms'".encode())
    app.agents.set("planner")
    with connection_of(app) as connection:
        app.enqueue("plan", agent="planner", connection=connection)
        with pytest.raises(Conflict) as busy:
            app.agents.disable("planner", reason="it loops")
        assert code_of(busy) == "agent_in_use"
        assert [agent.id for agent in app.agents.list(disabled=True)] == ["planner"]
        connection.commit()
    assert app.agents.disable("planner", reason="once more").disabled_reason == "it loops"
