"""`app.agents` and jobs that belong to an agent: policy precedence, refusals, and what workers skip (CX-16)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from holdfast import App, Backoff, Retry, RetryLater, State, SyncContext
from holdfast.app.internals import session_of
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
    app.migrate()


# -- the registry ----------------------------------------------------------------------------------------------


def test_agent_is_registered_listed_disabled_and_enabled(app: App) -> None:
    made = app.agents.set("planner", name="The planner", kind="plan", retry="gentle", requires_approval=True)
    assert app.agents.get("planner") == made
    assert app.agents.list() == app.agents.list(kind="plan") == app.agents.list(disabled=False) == [made]
    disabled = app.agents.disable("planner", reason="it loops")
    assert (disabled.disabled, disabled.disabled_by, disabled.disabled_reason) == (True, "tester", "it loops")
    assert app.agents.list(disabled=True) == [disabled]
    assert not app.agents.enable("planner").disabled
    with pytest.raises(NotFound):
        app.agents.get("unknown")


async def test_async_forms_register_and_disable_an_agent(app: App) -> None:
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


def test_disabling_or_enabling_an_unregistered_agent_raises_not_found(app: App) -> None:
    with pytest.raises(NotFound) as missing:
        app.agents.disable("unknown", reason="x")
    assert code_of(missing) == "agent_not_found"
    with pytest.raises(NotFound) as missing:
        app.agents.enable("unknown")
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
def test_invalid_agent_definitions_are_rejected(app: App, definition: dict[str, Any], code: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        app.agents.set(**({"id": "planner"} | definition))
    assert code_of(refused) == code
    assert app.agents.list() == []


@pytest.mark.parametrize("reason", ["", "  ", "\x00"])
def test_disabling_requires_a_reason(app: App, reason: str) -> None:
    app.agents.set("planner")
    if reason.strip():
        assert app.agents.disable("planner", reason=reason).disabled_reason, (
            "characters that no store accepts are made visible"
        )
        return
    with pytest.raises(HoldfastError) as refused:
        app.agents.disable("planner", reason=reason)
    assert code_of(refused) == "reason_required"


# -- which policy wins (CX-9, CX-10) ----------------------------------------------------------------------------


@pytest.mark.req("CX-9", "CX-10")
def test_call_policy_overrides_agent_policy_which_overrides_kind_policy(app: App) -> None:
    @app.job(retry=Retry(max_attempts=2, backoff=Backoff(base=7), max_crashes=0))
    def plan(n: int) -> None: ...

    def made(**options: Any) -> list[tuple[int, int, object]]:
        """Return the distinct policies over every way to enqueue a job."""
        kind = plan.using(**options)
        handles = [
            kind.enqueue(1),
            kind.enqueue(2),  # the fixed options are cached by now
            *app.enqueue_many(kind.prepare(n) for n in range(2)),
            *app.enqueue_many(plan.using(**options).prepare(n) for n in range(2)),
            app.enqueue("plan", {"n": 1}, **options),
        ]
        return list({str(each): each for each in (policy(handle.get()) for handle in handles)}.values())

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
def test_agent_policy_does_not_override_at_most_once(app: App) -> None:
    """A kind that starts at most once keeps that policy whatever its agent's policy is."""

    @app.job(at_most_once=True)
    def pay(n: int) -> None: ...

    app.agents.set("teller", retry=Retry(max_attempts=6, max_crashes=5))
    for handle in (pay.using(agent="teller").enqueue(1), app.enqueue("pay", {"n": 1}, agent="teller")):
        assert policy(handle.get()) == (1, 0, None)


@pytest.mark.req("CX-9", "HK-3")
def test_retry_presets_are_accepted_by_name(app: App) -> None:
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
def test_worker_applies_the_agent_policy(app: App) -> None:
    """The error types remain those of the kind: they are in the program, not in the database."""

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
        session_of(app).store.run(session_of(app).store.leases.promote())
        app.run_worker(burst=True)
    assert [(handle.state(), handle.get().attempt) for handle in (once, often, given_up)] == [
        (State.DEAD_LETTER, 1),
        (State.DEAD_LETTER, 3),
        (State.DEAD_LETTER, 1),
    ]


# -- refusals -----------------------------------------------------------------------------------------------------


def test_refusal_names_the_agent_and_the_reason(app: App) -> None:
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
    with pytest.raises(Refused) as disabled:
        plan.using(agent="planner").enqueue(1)
    assert code_of(disabled) == "agent_disabled"
    assert str(disabled.value).startswith("agent planner was disabled by tester on 20")
    assert ": it loops [agent_disabled]" in str(disabled.value)
    assert app.jobs.list() == []


def test_enqueue_many_reports_agent_refusals_per_job(app: App) -> None:
    @app.job()
    def plan(n: int) -> None: ...

    app.agents.set("planner")
    app.agents.disable("planner", reason="it loops")
    alike = app.enqueue_many(plan.using(agent="planner").prepare(n) for n in range(3))
    mixed = app.enqueue_many([plan.prepare(1), plan.using(agent="planner").prepare(2), plan.prepare(3)])
    assert [(handle.created, handle.reason) for handle in alike] == [(False, "agent_disabled")] * 3
    assert [handle.created for handle in mixed] == [True, False, True]
    assert "it loops" in (mixed[1].detail or "")


def test_agent_limits_apply_to_every_part_of_a_large_batch(app: App) -> None:
    """The batch exceeds one statement; a thousand jobs are sent while the next ones are prepared."""

    @app.job()
    def plan(n: int) -> None: ...

    app.agents.set("planner", max_payload=8, retry=Retry(max_attempts=2))
    handles = app.enqueue_many(plan.using(agent="planner").prepare(n) for n in (*range(10), *[10_000] * 2_500))
    assert [handle.created for handle in handles] == [True] * 10 + [False] * 2_500
    assert {job.max_attempts for job in app.jobs.list()} == {2}
    assert len(app.jobs.list()) == 10


@contextmanager
def connection_of(app: App) -> Iterator[Any]:
    url = session_of(app).store.url
    opened: Any = sqlite3.connect(database_path(url)) if url.startswith("sqlite") else psycopg.connect(url)
    with closing(opened) as connection:
        yield connection


@pytest.mark.req("HF-3")
def test_agent_refusal_leaves_the_caller_transaction_usable(app: App) -> None:
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


def test_spawned_child_obeys_its_agent(app: App) -> None:
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


# -- workers ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_worker_skips_jobs_of_a_disabled_agent(app: App) -> None:
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
def test_repository_claim_skips_jobs_of_a_disabled_agent(app: App) -> None:
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
def test_disable_reports_an_open_enqueue_transaction_and_still_disables(app: App) -> None:
    """The agent is disabled, and the caller gets an error because the open transaction may still enqueue jobs."""
    with psycopg.connect(session_of(app).store.url, autocommit=True) as admin:
        for function in ("disable_agent", "drain_agent"):  # normally these wait longer
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
