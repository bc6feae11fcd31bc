"""Every attack on every store, as the owner of the tables and as a superuser: refused, and nothing changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.outcome import Succeeded
from holdfast.engine.states import State
from holdfast.features.assembly import Store, open_store
from holdfast.features.tokens.model import new_token
from holdfast.features.workflows.model import CallbackSpec
from tests.attacks import ATTACKS
from tests.attacks.attack import LATER, Attack
from tests.attacks.on_agents import REGISTERED
from tests.attacks.on_dead_letters import OPERATIONS
from tests.attacks.on_limits import LIMITED
from tests.attacks.on_pauses import PAUSED
from tests.attacks.on_payloads import RULED
from tests.attacks.on_retention import RETAINED
from tests.attacks.on_tenants import CAPPED
from tests.support.direct_sql import ByHand, PostgresByHand, open_by_hand
from tests.support.features import connect, feed_all, issuing, made_of, open_session, sent, subscribe, webhook
from tests.support.job_states import bring
from tests.support.ledger import check_ledger
from tests.support.postgres_databases import TemplateDatabases
from tests.support.postgres_roles import OwnedDatabases, as_role
from tests.support.schedules import add, decided, firing, template
from tests.support.steps import approve, asking, ballot, entry, keep_token, say, send, waiting
from tests.support.stores import BROKEN, new_id, open_lease, put_one, settle, spec, take
from tests.support.workflows import Flow

pytestmark = [
    pytest.mark.req("CX-1", "CX-3", "CX-4", "CX-13", "SC-5", "DP-7", "CX-9", "CX-16", "CX-6", "CX-7", "HF-6"),
    pytest.mark.req("SC-8", "SC-9", "DP-14", "DP-13", "SC-6", "DP-6", "SC-10", "SC-16", "HF-4", "DP-15", "DP-4"),
]

ATTACKERS = {"sqlite": [], "postgres-owner": [], "postgres-superuser": [pytest.mark.slow]}


@dataclass
class Scene:
    """A database with something in every state, and a SQL session on it."""

    store: Store
    by_hand: ByHand
    names: dict[str, Any]
    untouched: object


@pytest.fixture(scope="module")
def scenes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Scene]]:
    """One scene for all attacks of an attacker, created when first needed: no attack may leave a trace."""
    made: dict[str, Scene] = {}
    with ExitStack() as stack:

        def scene(attacker: str) -> Scene:
            if attacker not in made:
                url = _database(request, stack, attacker, tmp_path_factory.mktemp("attacks"))
                store = stack.enter_context(closing(open_store(url)))
                store.migrate()
                by_hand = stack.enter_context(closing(open_by_hand(url)))
                names = _populate(store, by_hand)
                made[attacker] = Scene(store, by_hand, names, by_hand.picture())
            return made[attacker]

        yield scene
        for each in made.values():
            check_ledger(each.store)


def _database(request: pytest.FixtureRequest, stack: ExitStack, attacker: str, folder: Path) -> str:
    if attacker == "sqlite":
        return f"sqlite:///{folder}/jobs.db"
    fixture = {
        "postgres-owner": "owned_databases",
        "postgres-superuser": "postgres_databases",
    }[attacker]
    databases: TemplateDatabases = request.getfixturevalue(fixture)
    url = stack.enter_context(databases.fresh())
    return as_role(url, databases.owner) if isinstance(databases, OwnedDatabases) else url


def _populate(store: Store, by_hand: ByHand) -> dict[str, Any]:
    names: dict[str, Any] = {"unknown": new_id(), "returned": put_one(store)}
    settle(store, [take(store)], Succeeded('{"paid":1}'))
    holders: dict[State, str | None] = {}
    for state in State:
        brought = bring(store, by_hand, state)
        names[state.value] = brought.id
        holders[state] = brought.lease
    names |= {"running": names["in_progress"], "dead": names["dead_letter"], "waiting": names["retry_waiting"]}
    names |= {"other": open_lease(store, ttl=1000), "ended": open_lease(store, ttl=1000)}
    names |= {"lease": str(holders[State.IN_PROGRESS]), "holding": str(holders[State.LEASED])}
    store.run(store.leases.end(names["ended"], "closed", "*"))
    for name in ("log", "report"):
        for job, lease in ((names["running"], names["lease"]), (names["succeeded"], holders[State.SUCCEEDED])):
            assert store.run(store.steps.add_artifact(job, str(lease), 1, name, f"file:{name}", "*"))
    store.run(store.steps.save_checkpoint(names["running"], names["lease"], 1, "p", "1", "*"))
    for statement in REGISTERED:
        by_hand.execute(statement)
    tell = CallbackSpec(spec("tell"), "failure", None)
    flow = Flow(store, {"parent": "", "child": "parent"}, fields={"parent": {"queue": "elsewhere"}}, callbacks=(tell,))
    flow.start()
    names |= {"flow": flow.id, **flow.ids, "later": LATER[by_hand.name]}
    names |= _people(store, by_hand, names) | _planned(store, by_hand) | _following(store) | _tokens(store)
    names["webhook"] = webhook(store).id
    connect(store)
    assert store.run(store.webhooks.note_delivery(sent(names["webhook"], names["running"]), "default"))
    assert store.run(store.audit.seal("tests")) > 0
    for statement in (*LIMITED, *PAUSED, *CAPPED, *RETAINED, *OPERATIONS, *RULED):
        by_hand.execute(statement, _used(names, statement))
    return names


def _tokens(store: Store) -> dict[str, str]:
    """The tokens that `tests/attacks/on_tokens.py` describes."""
    text = new_token()
    good = store.run(store.tokens.issue(issuing(text, expires="9d"), "ada", "default"))
    revoked = store.run(store.tokens.issue(issuing(), "ada", "default"))
    assert store.run(store.tokens.revoke(revoked.id, "ada", "default"))
    _, session = open_session(store, text)
    assert session is not None
    return {"api_token": good.id, "revoked": revoked.id, "session": session.id}


def _following(store: Store) -> dict[str, str]:
    """The subscriptions that `tests/attacks/on_subscriptions.py` describes."""
    follow = subscribe(store, "follow", "job.enqueue", kind="import")
    put_one(store, "import", queue="import")
    assert feed_all(store, "follow") == 1
    (made,) = made_of(store)
    retried = put_one(store, retry_as="new_job", queue="retry")
    settle(store, take(store, queues=["retry"]), BROKEN)
    successor = store.run(store.jobs.chain(retried, "*"))[-1].id
    named = {"subscription": follow.id, "follower": made.id, "event": str(made.causation_id)}
    return named | {"retried": retried, "successor": successor}


def _people(store: Store, by_hand: ByHand, names: dict[str, str]) -> dict[str, str]:
    """The approvals that `tests/attacks/on_approvals.py` describes."""
    store.run(store.steps.save(names["lease"], [(names["running"], 1, entry())], "*"))
    pending = asking(
        store,
        approvers=("ada", "bob"),
        quorum=2,
        expires_in=3600.0,
        escalate_after=1800.0,
        escalate_to=("boss",),
        data={"sum": 7},
    )
    for token in ("used", "fresh"):
        keep_token(store, pending.id, token)
    assert say(store, pending.id, ballot("ada", token_hash="used")).state == "open"
    decided = asking(store)
    assert approve(store, decided.id).state == "approved"
    sent_event = send(store, key="k").id
    people = {
        "asking": pending.job_id,
        "approval": pending.id,
        "asked": decided.job_id,
        "decided": decided.id,
        "sent": sent_event,
    }
    return people | {"waiting": waiting(store, "shipped", n=2)}


def _planned(store: Store, by_hand: ByHand) -> dict[str, Any]:
    """The schedules that `tests/attacks/on_schedules.py` describes."""
    for day in (1, 2):
        store.run(store.templates.set(template(day=day), "ada", "default"))
    schedule, made = add(store), firing()
    assert store.run(store.schedules.fire([decided(schedule, made)], "*")) == 1
    assert made.job is not None
    ((fired,),) = by_hand.execute("select due_at from fire where job_id = :job", {"job": made.job.id})
    return {"schedule": schedule.id, "made": made.job.id, "fired": fired}


def _statements(attacker: str, attack: Attack) -> tuple[str, ...]:
    return attack.sqlite if attacker == "sqlite" else attack.postgres


def _used(names: dict[str, Any], statement: str) -> dict[str, Any]:
    return {name: value for name, value in names.items() if f":{name}" in statement}


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("attacker", "name"),
    [
        pytest.param(who, name, marks=marks)
        for who, marks in ATTACKERS.items()
        for name, attack in ATTACKS.items()
        if _statements(who, attack)
    ],
)
def test_database_refuses(scenes: Callable[[str], Scene], attacker: str, name: str) -> None:
    scene, attack = scenes(attacker), ATTACKS[name]
    postgres = isinstance(scene.by_hand, PostgresByHand)
    statements = _statements(attacker, attack)
    scene.by_hand.begin()
    refusal = None
    for statement in statements:
        refusal = scene.by_hand.refusal(statement, _used(scene.names, statement))
        if refusal is not None:
            break
    if len(statements) == 1 and not postgres:  # PostgreSQL refuses further statements in this transaction
        assert refusal is None or scene.by_hand.picture() == scene.untouched, f"{name}: left something behind"
    scene.by_hand.rollback()
    assert refusal is not None, f"{name}: was not refused"
    assert attack.says[postgres] in refusal
    assert scene.by_hand.picture() == scene.untouched


@pytest.mark.req("DP-2", "DP-20")
def test_owner_cannot_turn_off_triggers_for_its_session(owned_postgres_url: str) -> None:
    with closing(PostgresByHand(owned_postgres_url)) as by_hand:
        refusal = by_hand.refusal("set session_replication_role = replica")
        assert refusal is not None
        assert "permission denied" in refusal


@pytest.mark.req("CX-4", "DP-16")
def test_cleaned_job_can_be_purged(store: Store, by_hand: ByHand) -> None:
    """The exception: retention removes state, facts and ledger, in this order and in one transaction."""
    gone, stays = bring(store, by_hand, State.CLEANED).id, bring(store, by_hand, State.CLEANED).id
    by_hand.begin()
    for table, key in (("job_state", "id"), ("job", "id"), ("event", "job_id")):
        by_hand.execute(f"delete from {table} where {key} = :gone", {"gone": gone})
    by_hand.commit()
    assert store.run(store.jobs.get(gone, "*")) is None
    assert store.run(store.jobs.history(gone, "*")) == []
    assert len(store.run(store.jobs.history(stays, "*"))) == 3


@pytest.mark.req("DP-16")
def test_purge_removes_steps_and_approvals_of_a_job(store: Store, by_hand: ByHand) -> None:
    """In the same transaction, after its state: its steps, and its approvals before their votes and tokens."""
    pending = asking(store, quorum=2)
    keep_token(store, pending.id, "h")
    approve(store, pending.id)
    store.run(store.jobs.operate("cancel", [pending.job_id], None, "ada", "default"))
    by_hand.execute("update job_state set state = 'cleaned' where id = :id", {"id": pending.job_id})
    put_one(store)  # the newest row of SQLite's ledger stays
    names = {"job": pending.job_id, "approval": pending.id}
    tables = {
        "approval": "id = :approval",
        "vote": "approval_id = :approval",
        "approval_token": "approval_id = :approval",
    }
    for table, which in tables.items():
        assert "deleted while" in (by_hand.refusal(f"delete from {table} where {which}", _used(names, which)) or "")
    by_hand.begin()
    for table, which in {
        "job_state": "id = :job",
        "job": "id = :job",
        "event": "job_id = :job",
        "step": "job_id = :job",
        **tables,
    }.items():
        by_hand.execute(f"delete from {table} where {which}", _used(names, which))
        assert by_hand.execute(f"select 1 from {table} where {which}", _used(names, which)) == []
    by_hand.commit()


@pytest.mark.req("CX-3", "DP-16")
def test_payload_of_a_cleaned_job_can_be_emptied(store: Store, by_hand: ByHand) -> None:
    job_id = bring(store, by_hand, State.CLEANED).id
    by_hand.execute("update job set payload = '{}' where id = :id", {"id": job_id})
