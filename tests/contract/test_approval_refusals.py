"""Who may decide an approval: the same ballots on every store and to the pure rule (`features/approvals/model.py`).

Each case is an approval, its history and a ballot. The answer of the store is compared with what the pure
rule says to the rows as they were read just before, and with the reason written here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from holdfast.engine.json_schema import violations
from holdfast.engine.states import State
from holdfast.errors import InvalidInput
from holdfast.features.approvals.model import Approval, Ballot, Token, refusal
from holdfast.features.assembly import Store
from tests.support.direct_sql import ByHand, PostgresByHand
from tests.support.steps import approval, approve, asking, attend, ballot, deny, keep_token, say, votes
from tests.support.stores import forward, job, new_id, state_of

pytestmark = pytest.mark.req("CX-6", "CX-7", "DP-3")

Before = Callable[[Store, Approval], object]


def nothing(store: Store, asked: Approval) -> None:
    """Nothing happened before."""


def later(seconds: float, before: Before = nothing) -> Before:
    def wait(store: Store, asked: Approval) -> None:
        before(store, asked)
        forward(store, seconds)

    return wait


def cancel(store: Store, asked: Approval) -> None:
    store.run(store.jobs.operate("cancel", [asked.job_id], None, "ada", "default"))


def token(person: str | None = None, ttl: float | None = None) -> Before:
    return lambda store, asked: keep_token(store, asked.id, f"hash of {asked.id}", person, ttl)


def escalate(store: Store, asked: Approval) -> None:
    forward(store, 60)
    attend(store)


@dataclass(frozen=True)
class Case:
    """`holds` is True where the ballot is one of a token's holder: its hash is that of the approval."""

    reason: str | None
    question: dict[str, Any] = field(default_factory=dict)
    before: Before = nothing
    said: Ballot = field(default_factory=ballot)
    holds: bool = False
    state: str = "approved"
    """Of the approval afterwards, if the ballot counts."""


TWO = {"approvers": ("ada", "bob"), "quorum": 2}
FORM = {"type": "object", "required": ["limit"], "properties": {"limit": {"type": "integer", "maximum": 10}}}
RISES = {"approvers": ("ada",), "escalate_after": 60.0, "escalate_to": ("boss",)}

CASES: dict[str, Case] = {
    "anybody may": Case(None),
    "one no is enough": Case(None, TWO, said=ballot("bob", "deny"), state="denied"),
    "more have to agree": Case(None, TWO, state="open"),
    "the last of a quorum": Case(None, TWO, lambda store, g: approve(store, g.id, "bob")),
    # -- decided, or nobody waits --
    "approved before": Case("already_decided", {}, lambda store, g: approve(store, g.id, "bob")),
    "denied before": Case("already_decided", {}, lambda store, g: deny(store, g.id, "bob")),
    "approved before by oneself": Case("already_decided", {}, lambda store, g: approve(store, g.id, "ada")),
    "cancelled": Case("already_decided", {}, cancel),
    "expired and attended to": Case("already_decided", {"expires_in": 60.0}, escalate),
    # -- time --
    "its time is over": Case("approval_expired", {"expires_in": 60.0}, later(60)),
    "its time is nearly over": Case(None, {"expires_in": 60.0}, later(59.999999)),
    "its time is over and it counts as approved": Case(
        "approval_expired", {"expires_in": 60.0, "on_expire": "approve"}, later(60), ballot("bob", "deny")
    ),
    "its time is over and it is asked again": Case(None, {"expires_in": 60.0, "on_expire": "remind"}, later(60)),
    # -- tokens --
    "a token": Case(None, {}, token(), holds=True),
    "a token of a person": Case(None, {"approvers": ("bob",)}, token("bob"), ballot(None), holds=True),
    "a token's person is who speaks": Case("not_an_approver", RISES, token("boss"), ballot("ada"), holds=True),
    "no such token": Case("token_unknown", said=ballot("ada", token_hash="another")),
    "the token of another approval": Case(
        "token_unknown", {}, lambda store, g: keep_token(store, asking(store).id, f"hash of {g.id}"), holds=True
    ),
    "a token that was used": Case(
        "token_used",
        {"quorum": 3},
        lambda store, g: (token()(store, g), say(store, g.id, ballot("bob", token_hash=f"hash of {g.id}"))),
        holds=True,
    ),
    "a token whose time is over": Case("token_expired", {}, later(60, token(ttl=60.0)), holds=True),
    "a token whose time is nearly over": Case(None, {}, later(59.999999, token(ttl=60.0)), holds=True),
    # -- who --
    "nobody": Case("person_required", said=ballot(None)),
    "an empty name": Case("person_required", said=ballot("")),
    "blanks": Case("person_required", said=ballot("  \t")),
    "a name that begins with a blank": Case("person_required", said=ballot(" ada")),
    "a name of 255 letters": Case(None, said=ballot("é" * 255)),
    "a longer name": Case("person_required", said=ballot("é" * 256)),
    "a token that knows nobody": Case("person_required", {}, token(), ballot(None), holds=True),
    "not one of them": Case("not_an_approver", TWO, said=ballot("mallory")),
    "another spelling": Case("not_an_approver", TWO, said=ballot("Ada")),
    "too early for the boss": Case("not_an_approver", RISES, said=ballot("boss")),
    "the boss": Case(None, RISES, escalate, ballot("boss")),
    "not only the boss": Case(None, RISES, escalate, ballot("ada")),
    "nobody else, though": Case("not_an_approver", RISES, escalate, ballot("bob")),
    "whoever asked": Case("requester_may_not_decide", {"not_requester": True}, said=ballot("tester")),
    "whoever asked, where nothing is said against it": Case(None, said=ballot("tester")),
    "whoever asked, with a token": Case(
        "requester_may_not_decide", {"not_requester": True}, token("tester"), ballot(None), holds=True
    ),
    "twice": Case("already_voted", TWO, lambda store, g: approve(store, g.id, "ada")),
    "another word": Case("already_voted", TWO, lambda store, g: approve(store, g.id, "ada"), ballot("ada", "deny")),
    # -- what --
    "no form": Case("form_invalid", {"form": FORM}),
    "no object": Case("form_invalid", {"form": FORM}, said=ballot(data=[1])),
    "nothing in it": Case("form_invalid", {"form": FORM}, said=ballot(data={})),
    "too much": Case("form_invalid", {"form": FORM}, said=ballot(data={"limit": 11})),
    "as it should be": Case(None, {"form": FORM}, said=ballot(data={"limit": 10, "more": [1]})),
    "a no needs no form": Case(None, {"form": FORM}, said=ballot("ada", "deny"), state="denied"),
    # -- the first reason counts --
    "expired before all else": Case(
        "approval_expired", {**TWO, "expires_in": 60.0, "form": FORM}, later(60), ballot("mallory", token_hash="x")
    ),
    "the token before the person": Case("token_unknown", TWO, said=ballot("mallory", token_hash="x")),
    "the person before the form": Case("not_an_approver", {**TWO, "form": FORM}, said=ballot("mallory")),
}


@pytest.mark.slow
def test_every_ballot_is_answered_as_the_rule_says(store: Store, by_hand: ByHand) -> None:
    forward(store)
    for name, case in CASES.items():
        asked = asking(store, **case.question)
        case.before(store, asked)
        said = case.said
        if case.holds:
            said = Ballot(said.verdict, said.person, said.how, said.comment, said.data, f"hash of {asked.id}")
        assert _rule(store, by_hand, asked.id, said) == case.reason, f"the rule, {name}"
        before = by_hand.contents()
        answer = say(store, asked.id, said)
        assert (answer.approval_id, answer.refused, answer.reason) == (
            asked.id,
            case.reason is not None,
            case.reason,
        ), name
        found = approval(store, asked.id)
        assert answer.state == found.state, name
        if case.reason is not None:
            assert by_hand.contents() == before, f"{name}: was refused and left something behind"
            continue
        assert found.state == case.state, name
        states = {"approved": State.QUEUED, "denied": State.FAILED, "open": State.WAITING_FOR_APPROVAL}
        assert state_of(store, asked.job_id) is states[case.state], name
        assert votes(store, asked.id)[-1].verdict == said.verdict, name


def _rule(store: Store, by_hand: ByHand, approval_id: str, said: Ballot) -> str | None:
    """What the pure rule says to the rows as they are."""
    found, now = approval(store, approval_id), store.run(store.clock.now())
    held = None
    if said.token_hash is not None:
        rows = by_hand.execute(
            "select person, expires_at is not null and expires_at <= (select now from present), used_at is not null"
            " from approval_token where hash = :hash and approval_id = :approval",
            {"hash": said.token_hash, "approval": approval_id},
        )
        if rows:
            person, late, used = rows[0]
            held = Token(person, now - timedelta(1) if late else None, now if used else None)
    person = held.person if held is not None and held.person is not None else said.person
    waits = job(store, found.job_id).state is State.WAITING_FOR_APPROVAL
    return refusal(found, said, person, held, (vote.person for vote in votes(store, approval_id)), waits, now)


@pytest.mark.req("JF-1")
def test_another_tenants_approval_is_not_there(store: Store, by_hand: ByHand) -> None:
    asked = asking(store, tenant="acme")
    keep_token(store, asked.id, "h")
    before = by_hand.contents()
    for tenant in ("umbrella", "default"):
        for approval_id, said in ((asked.id, ballot()), (asked.id, ballot(token_hash="h")), (new_id(), ballot())):
            answer = say(store, approval_id, said, tenant=tenant)
            assert (answer.approval_id, answer.state, answer.refused, answer.reason) == (
                approval_id,
                None,
                True,
                "not_found",
            )
        assert store.run(store.approvals.save_token(asked.id, "x", None, None, "ada", tenant)) == "not_found"
        assert store.run(store.approvals.token_hashes(asked.id, tenant)) == []
        assert store.run(store.approvals.get(asked.id, tenant)) is None
        assert store.run(store.approvals.votes(asked.id, tenant)) == []
    assert by_hand.contents() == before
    assert say(store, asked.id, ballot(), tenant="acme").state == "approved"


def test_a_verdict_is_yes_or_no(store: Store) -> None:
    asked = asking(store)
    for verdict in ("maybe", "", "Approve"):
        with pytest.raises(InvalidInput):
            say(store, asked.id, Ballot(verdict, "ada", "test"))  # type: ignore[arg-type]
    assert votes(store, asked.id) == []


# -- forms, on both sides -----------------------------------------------------------------------------------------

_REF = {"$defs": {"sum": {"type": "number", "minimum": 1}}, "properties": {"a": {"$ref": "#/$defs/sum"}}}
_TREE = {"type": "object", "properties": {"of": {"type": "array", "items": {"$ref": "#"}}}, "required": ["n"]}
FORMS: list[dict[str, Any]] = [
    *({}, {"type": "object"}, {"type": ["object", "null"]}, {"type": []}, {"type": "thing"}, {"required": ["a", "b"]}),
    *({"properties": {"a": {"type": kind}}} for kind in ("string", "number", "integer", "boolean", "null", "array")),
    *({"properties": {"a": {"type": kind}}} for kind in (["integer", "null"], "object", "thing")),
    *({"properties": {"a": {"enum": each}}} for each in ([1, "x"], [True], [None], [[1, {"b": 2.0}]], [], "odd")),
    *({"properties": {"a": {"const": each}}} for each in (1, True, None, "x", [1])),
    *({"properties": {"a": {bound: 2}}} for bound in ("minLength", "maxLength", "minItems", "maxItems")),
    *({"properties": {"a": {bound: 1}}} for bound in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
    {"properties": {"a": {"minimum": "many", "maxLength": None, "required": True}}},
    *({"additionalProperties": False}, {"additionalProperties": False, "properties": {"a": {}}}, {"properties": [1]}),
    *({"properties": {"a": {"items": {"type": "integer"}}}}, {"properties": {"a": {"items": [{"type": "null"}]}}}),
    *({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"oneOf": [{"required": ["b"]}]}, {"anyOf": []}),
    *({"allOf": [{"required": ["a"]}, {"properties": {"a": {"type": "string"}}}]}, {"allOf": "x"}),
    *(_REF, {"$ref": "#/nowhere"}, _TREE),
    {"properties": {"a": {"anyOf": [{"type": "string", "maxLength": 1}, {"type": "null"}]}}},
]
VALUES: list[Any] = [
    *(None, 0, 1, 1.0, 1.5, 2, -1, 1e23, True, False, "", "x", "xy", "éé", "xyz"),
    *([], [1], [1, 2], ["x", 1.0], [1, {"b": 2}], {}, {"b": 1}),
]
DATA: list[Any] = [
    *({}, {"b": 1}, {"a": 1, "b": 2}, {"c": None}, {"n": 1, "of": [{"n": 2}]}, {"n": 1, "of": [{"n": 2, "of": [{}]}]}),
    *({"a": value} for value in VALUES),
]


def test_a_form_says_the_same_in_sql(by_hand: ByHand) -> None:
    """Every form with every answer. (`pattern` is Python's own.)"""
    if not isinstance(by_hand, PostgresByHand):
        pytest.skip("SQLite asks the rule itself")
    rows = by_hand.execute(
        "select fits_form(d.data, f.form, f.form)"
        " from jsonb_array_elements(:forms::jsonb) with ordinality as f(form, one),"
        " jsonb_array_elements(:data::jsonb) with ordinality as d(data, other) order by one, other",
        {"forms": json.dumps(FORMS), "data": json.dumps(DATA)},
    )
    pairs = [(form, data) for form in FORMS for data in DATA]
    wrong = [
        (form, data, fits)
        for (form, data), (fits,) in zip(pairs, rows, strict=True)
        if fits != (not [*violations(form, data)])
    ]
    assert wrong == []
    assert len({fits for (fits,) in rows}) == 2
