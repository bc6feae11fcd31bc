"""The registry of agents (CX-16): its rules hold for every job that names the agent, for every way to enqueue it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast.engine.job import Enqueued, JobSpec
from holdfast.engine.retry import GENTLE, Backoff, Retry
from holdfast.engine.states import State
from holdfast.errors import InvalidInput, Refused
from holdfast.features.agents import store as agent_reads
from holdfast.features.agents.model import WAITING_CAP, Definition
from holdfast.features.assembly import Store
from holdfast.stores.requests import JobFilter
from tests.support.direct_sql import ByHand, PostgresByHand
from tests.support.features import disable, enable
from tests.support.features import set_agent as register
from tests.support.stores import enqueue, forward, job, new_id, put, put_one, spec, state_of

pytestmark = pytest.mark.req("CX-16")

Way = Callable[[Store, JobSpec], Enqueued]


def _single(store: Store, one: JobSpec) -> Enqueued:
    return enqueue(store, one)[0]


def _keyed(store: Store, one: JobSpec) -> Enqueued:
    one.key = new_id()
    return enqueue(store, one)[0]


def _among_others(store: Store, one: JobSpec) -> Enqueued:
    first, answer, last = enqueue(store, spec(), one, spec(agent="a label"))
    assert (first.created, last.created) == (True, True)
    return answer


def _alike(store: Store, one: JobSpec) -> Enqueued:
    """Enqueue several jobs of one kind: the fields they share are sent once."""
    together = object()
    facts = {name: getattr(one, name) for name in JobSpec.__slots__ if name not in ("id", "alike")}
    one.alike = together
    others = [JobSpec(**facts, id=new_id(), alike=together) for _ in range(3)]
    answers = enqueue(store, one, *others)
    assert {answer.reason for answer in answers} == {answers[0].reason}
    return answers[0]


WAYS = [_single, _keyed, _among_others, _alike]
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))


# -- the registry ----------------------------------------------------------------------------------------------


def test_registered_agent_can_be_read(store: Store) -> None:
    now = forward(store)
    made = register(
        store,
        name="The planner",
        kind="plan",
        retry=Retry(max_attempts=3, backoff=GENTLE, max_crashes=1),
        max_payload="1KB",
        max_wait="1h",
        requires_approval=True,
    )
    assert made == store.run(store.agents.get("planner", "default"))
    assert (made.tenant, made.id, made.name, made.kind) == ("default", "planner", "The planner", "plan")
    assert (made.max_attempts, made.max_crashes, made.backoff) == (3, 1, GENTLE.to_json())
    assert (made.max_payload_bytes, made.max_wait, made.requires_approval) == (1024, 3600.0, True)
    assert (made.disabled, made.created_at, made.updated_at, made.waiting) == (False, now, now, 0)
    assert store.run(store.agents.get("nobody", "default")) is None


def test_registering_again_changes_only_what_differs(store: Store) -> None:
    forward(store)
    first = register(store, kind="plan", retry="gentle")
    later = forward(store, 10)
    assert register(store, kind="plan", retry="gentle") == first
    changed = register(store, name="Another")
    assert (changed.name, changed.kind, changed.backoff) == ("Another", None, None)
    assert (changed.created_at, changed.updated_at) == (first.created_at, later)


def test_registering_a_disabled_agent_again_does_not_enable_it(store: Store) -> None:
    register(store)
    disabled = disable(store)
    assert disabled is not None
    again = register(store, name="Another")
    assert (again.disabled_at, again.disabled_by, again.disabled_reason) == (disabled.disabled_at, "ada", "it loops")


def test_agents_are_listed_by_id_kind_and_disabled_state(store: Store) -> None:
    for name, kind in (("b", "plan"), ("a", "mail"), ("c", None)):
        register(store, name, kind=kind)
    disable(store, "b")

    def listed(*wanted: Any) -> list[str]:
        return [agent.id for agent in store.run(store.agents.list("default", *wanted))]

    assert listed() == ["a", "b", "c"]
    assert listed("plan") == ["b"]
    assert (listed(None, True), listed(None, False), listed("plan", False)) == (["b"], ["a", "c"], [])


def test_waiting_jobs_of_an_agent_are_counted_up_to_a_cap(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    register(store)
    put(store, *(spec(agent="planner") for _ in range(3)), spec(agent="planner", delay=60), spec(), spec(agent="other"))
    (cancelled,) = put(store, spec(agent="planner"))
    store.run(store.jobs.operate("cancel", [cancelled], None, "ada", "default"))
    assert register(store).waiting == 4
    capped = agent_reads.AGENT_COLUMNS.replace(f"limit {WAITING_CAP}", "limit 2")
    assert capped != agent_reads.AGENT_COLUMNS
    monkeypatch.setattr(agent_reads, "AGENT_COLUMNS", capped)
    assert store.run(store.agents.get("planner", "default")).waiting == 2, "stops at the cap"  # type: ignore[union-attr]


def test_jobs_are_listed_by_agent(store: Store) -> None:
    register(store)
    mine = put(store, spec(agent="planner"), spec(agent="planner"))
    put_one(store)
    result = store.run(store.jobs.list(JobFilter(tenant="default", agent="planner")))
    assert [each.id for each in result] == mine[::-1]


@pytest.mark.parametrize("text", ["ünï → 'quoted' \"twice\"", "a b", "x" * 255])
def test_agent_ids_with_unusual_characters(store: Store, text: str) -> None:
    register(store, text, name=text)
    assert state_of(store, put_one(store, agent=text)) is State.QUEUED
    disable(store, text, f"because of {text}")
    (answer,) = enqueue(store, spec(agent=text))
    assert answer.reason == "agent_disabled"
    assert f"agent {text} was disabled by ada" in (answer.detail or "")
    assert (answer.detail or "").endswith(f": because of {text}")


# -- precedence of retry policies (CX-9, CX-10) -----------------------------------------------------------------

KINDS = Retry(max_attempts=2, backoff=Backoff(base=7), max_crashes=0)
GIVEN = Retry(max_attempts=9, max_crashes=9)


def stored(store: Store, answer: Enqueued) -> tuple[int, int, object]:
    assert answer.created
    assert answer.id is not None
    result = job(store, answer.id)
    return result.max_attempts, result.max_crashes, result.backoff


@pytest.mark.req("CX-9", "CX-10")
@every_way
def test_unregistered_agent_changes_no_policy(store: Store, way: Way) -> None:
    assert stored(store, way(store, spec(agent="nobody", retry=KINDS))) == (2, 0, Backoff(base=7).to_json())
    assert stored(store, way(store, spec(agent="nobody", retry=GIVEN, retry_given=True))) == (9, 9, None)
    assert stored(store, way(store, spec(agent="nobody"))) == (10, 3, None)


@pytest.mark.req("CX-9", "CX-10")
@every_way
def test_agent_policy_takes_precedence_over_kind_policy(store: Store, way: Way) -> None:
    register(store, retry=Retry(max_attempts=6, backoff=GENTLE, max_crashes=5))
    assert stored(store, way(store, spec(agent="planner", retry=KINDS))) == (6, 5, GENTLE.to_json())
    assert stored(store, way(store, spec(agent="planner"))) == (6, 5, GENTLE.to_json())


@pytest.mark.req("CX-9", "CX-10")
@every_way
def test_policy_of_the_call_takes_precedence_over_agent_and_kind(store: Store, way: Way) -> None:
    register(store, retry=Retry(max_attempts=6, backoff=GENTLE, max_crashes=5))
    assert stored(store, way(store, spec(agent="planner", retry=GIVEN, retry_given=True))) == (9, 9, None)


@pytest.mark.req("CX-9", "CX-10")
@every_way
def test_unset_agent_policy_falls_back_to_the_kind(store: Store, way: Way) -> None:
    register(store, retry="gentle")
    assert stored(store, way(store, spec(agent="planner", retry=KINDS))) == (2, 0, GENTLE.to_json())
    register(store)
    assert stored(store, way(store, spec(agent="planner", retry=KINDS))) == (2, 0, Backoff(base=7).to_json())


@pytest.mark.req("CX-9")
@every_way
def test_agent_can_set_the_default_backoff(store: Store, way: Way) -> None:
    register(store, retry="patient")
    assert stored(store, way(store, spec(agent="planner", retry=KINDS))) == (2, 0, None)


def test_changed_agent_applies_to_later_jobs_only(store: Store) -> None:
    register(store, retry=Retry(max_attempts=2))
    before = put_one(store, agent="planner")
    register(store, retry=Retry(max_attempts=3))
    after = put_one(store, agent="planner")
    assert (job(store, before).max_attempts, job(store, after).max_attempts) == (2, 3)


# -- which jobs an agent accepts ----------------------------------------------------------------------------------


@every_way
def test_disabled_agent_refuses_jobs_with_its_reason(store: Store, way: Way) -> None:
    now = forward(store)
    register(store)
    disable(store)
    answer = way(store, spec(agent="planner"))
    assert (answer.id, answer.created, answer.reason, answer.state) == (None, False, "agent_disabled", None)
    assert answer.detail == f"agent planner was disabled by ada on {now:%Y-%m-%dT%H:%M:%SZ}: it loops"
    enable(store)
    assert way(store, spec(agent="planner")).created


@every_way
def test_agent_refuses_other_kinds(store: Store, way: Way) -> None:
    register(store, kind="plan")
    answer = way(store, spec("mail.send", agent="planner"))
    assert (answer.id, answer.created, answer.reason) == (None, False, "agent_kind_mismatch")
    assert answer.detail == "agent planner runs jobs of kind plan, not mail.send"
    assert way(store, spec("plan", agent="planner")).created


@every_way
def test_agent_refuses_payloads_over_its_limit(store: Store, way: Way) -> None:
    register(store, max_payload=20)
    exact, over = {"a": "x" * 12}, {"a": "é" * 6 + "x"}  # the limit counts bytes, not letters
    assert way(store, spec(agent="planner", payload=exact)).created
    answer = way(store, spec(agent="planner", payload=over))
    assert (answer.id, answer.reason) == (None, "agent_payload_limit")
    assert answer.detail == "agent planner takes payloads of up to 20 bytes, and this one has 21"


@every_way
def test_agent_max_wait_caps_the_deadline(store: Store, way: Way) -> None:
    now = forward(store)
    register(store, max_wait=60)

    def deadline(**fields: Any) -> timedelta | None:
        answer = way(store, spec(agent="planner", **fields))
        assert answer.id is not None
        result = job(store, answer.id).deadline_at
        return None if result is None else result - now

    assert deadline() == timedelta(seconds=60)
    assert deadline(deadline_at=now + timedelta(seconds=30)) == timedelta(seconds=30)
    assert deadline(deadline_at=now + timedelta(days=1)) == timedelta(seconds=60)
    assert deadline(delay=5.0) == timedelta(seconds=65)  # counted from the time it may start
    assert deadline(run_at=now + timedelta(hours=1)) == timedelta(seconds=3660)
    assert deadline(run_at=now - timedelta(hours=1)) == timedelta(seconds=60)


def test_batch_refuses_only_the_invalid_jobs(store: Store) -> None:
    register(store, kind="plan", max_payload=20)
    together = object()
    batch = [
        spec("plan", agent="planner", payload={"a": "x" * n}, id=new_id(), alike=together) for n in (1, 50, 2, 60, 3)
    ]
    answers = enqueue(store, *batch)
    assert [answer.reason for answer in answers] == [None, "agent_payload_limit", None, "agent_payload_limit", None]
    assert [answer.id for answer in answers] == [batch[0].id, None, batch[2].id, None, batch[4].id]
    assert "this one has 68" in (answers[3].detail or "")
    mixed = [spec("plan", agent="planner"), spec("mail", agent="planner"), spec("mail"), spec("mail", key="k")]
    assert [answer.reason for answer in enqueue(store, *mixed)] == [None, "agent_kind_mismatch", None, None]


@pytest.mark.req("DP-5", "HK-2")
@pytest.mark.parametrize("keys", [{"key": "k"}, {"content_key": "c", "dedupe": "skip"}], ids=["key", "content"])
def test_idempotency_keys_with_a_disabled_agent(store: Store, keys: dict[str, Any]) -> None:
    """A duplicate of an existing job is still reported as such; a refused job leaves no trace under its key."""
    register(store)
    first = put_one(store, agent="planner", **keys)
    disable(store)
    (again,) = enqueue(store, spec(agent="planner", **keys))
    assert (again.id, again.created) == (first, False)
    assert again.reason in ("duplicate_key", "duplicate_content")
    other = {name: "another" if name != "dedupe" else value for name, value in keys.items()}
    refused, plain = enqueue(store, spec(agent="planner", **other), spec(**other))
    assert (refused.reason, plain.created) == ("agent_disabled", True)
    third = {name: "third" if name != "dedupe" else value for name, value in keys.items()}
    assert enqueue(store, spec(agent="planner", **third))[0].reason == "agent_disabled"
    enable(store)
    assert enqueue(store, spec(agent="planner", **third))[0].created


def test_disabling_again_keeps_the_first_record(store: Store) -> None:
    register(store)
    forward(store)
    first = disable(store)
    forward(store, 60)
    store.run(store.agents.disable("planner", "me too", "bob", "default"))
    assert store.run(store.agents.get("planner", "default")) == first


def test_disabling_requires_a_reason_and_an_existing_agent(store: Store) -> None:
    register(store)
    with pytest.raises(InvalidInput) as caught:
        store.run(store.agents.disable("planner", " \n", "ada", "default"))
    assert caught.value.code == "reason_required"
    assert store.run(store.agents.disable("nobody", "because", "ada", "default")) is None
    assert store.run(store.agents.enable("nobody", "default")) is None


# -- tenants ------------------------------------------------------------------------------------------------------


@pytest.mark.req("JF-1")
def test_agents_of_other_tenants_are_invisible(store: Store) -> None:
    register(store, kind="theirs", retry=Retry(max_attempts=1), max_payload=2, tenant="acme")
    disable(store, tenant="acme")
    assert store.run(store.agents.get("planner", "default")) is None
    assert store.run(store.agents.list("default")) == []
    mine = put_one(store, agent="planner", payload={"a": 1})
    assert job(store, mine).max_attempts == 10
    assert store.run(store.agents.disable("planner", "mine now", "eve", "default")) is None
    assert store.run(store.agents.enable("planner", "default")) is None
    assert store.run(store.agents.resume("planner", 10, "default")) == 0
    theirs = store.run(store.agents.get("planner", "acme"))
    assert theirs is not None
    assert (theirs.disabled_by, theirs.waiting) == ("ada", 0)
    assert enqueue(store, spec("theirs", agent="planner"), tenant="acme")[0].reason == "agent_disabled"
    assert [each.tenant for each in store.run(store.agents.list("*"))] == ["acme"]


@pytest.mark.req("JF-1")
def test_agent_needs_one_tenant(store: Store) -> None:
    with pytest.raises(Refused) as caught:
        store.run(store.agents.set(Definition(id="x", name="x"), "*"))
    assert caught.value.code == "broken_invariant"


# -- SQL functions, PostgreSQL only -------------------------------------------------------------------------------


on_postgres = pytest.mark.parametrize("store_url", ["postgres"], indirect=True)


@pytest.fixture
def psql(by_hand: ByHand) -> PostgresByHand:
    assert isinstance(by_hand, PostgresByHand)
    by_hand.bind("default")
    return by_hand


@on_postgres
@pytest.mark.req("DP-2", "DP-3")
def test_sql_functions_of_agents(store: Store, psql: PostgresByHand) -> None:
    run = psql.execute
    assert run("select id, name, kind, max_attempts from set_agent('planner', kind => 'plan', max_attempts => 1)") == [
        ("planner", "planner", "plan", 1)
    ]
    assert run("select created, refused, reason from enqueue('plan', agent => 'planner')") == [(True, False, None)]
    assert run("select refused, refusal, disabled_by from disable_agent('planner', 'it loops', 'ada')") == [
        (False, None, "ada")
    ]
    ((job_id, refused, reason, detail),) = run(
        "select id, refused, reason, detail from enqueue('plan', agent => 'planner')"
    )
    assert (job_id, refused, reason) == (None, True, "agent_disabled")
    assert "was disabled by ada on" in detail
    assert run("select refused, refusal from disable_agent('planner', ' ')") == [(True, "reason_required")]
    assert run("select refused, refusal from disable_agent('nobody', 'x')") == [(True, "not_found")]
    assert run("select drain_agent('planner')") == [(True,)]
    assert run("select * from claim('default', 'me')")[0][-1] == "nothing_to_do"
    assert run("select * from enable_agent('planner')") == [("planner", 1, False, None)]
    assert run("select refused, refusal from enable_agent('nobody')") == [(True, "not_found")]
    assert run("select kind from claim('default', 'me')") == [("plan",)]
    assert run("select refused, reason from enqueue('mail', agent => 'planner')") == [(True, "agent_kind_mismatch")]


@on_postgres
@pytest.mark.req("CX-9", "DP-2")
def test_sql_enqueue_merges_its_policy_with_the_agents(store: Store, psql: PostgresByHand) -> None:
    register(store, retry=Retry(max_attempts=6, backoff=GENTLE, max_crashes=5))
    for arguments, expected in (
        ("", (6, 5, GENTLE.to_json())),
        (", max_attempts => 1", (1, 5, GENTLE.to_json())),
        (", backoff => '{\"base\": 3}'", (6, 5, {"base": 3})),
    ):
        ((job_id,),) = psql.execute(f"select id from enqueue('plan', agent => 'planner'{arguments})")
        result = job(store, job_id)
        assert (result.max_attempts, result.max_crashes, result.backoff) == expected


@on_postgres
@pytest.mark.req("DP-2")
def test_plain_batch_is_still_checked_against_agents(store: Store, psql: PostgresByHand) -> None:
    register(store)
    disable(store)
    refusal = psql.refusal(
        "select * from enqueue_many(json_build_array(json_build_object("
        "'id', uuid7(), 'kind', 'k', 'agent', 'planner')), plain => true)"
    )
    assert "agent planner was disabled by ada" in (refusal or "")
    assert psql.execute("select count(*) from job") == [(0,)]
