"""Who may decide an approval: the same ballots on every store and for the pure rule (`features/approvals/model.py`).

Each case is an approval, its history and a ballot. The response of the store is compared with the pure rule applied to
the rows just before, and with the reason written here.
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


def nothing(store: Store, pending: Approval) -> None:
    """Nothing happened before."""


def later(seconds: float, before: Before = nothing) -> Before:
    def wait(store: Store, pending: Approval) -> None:
        before(store, pending)
        forward(store, seconds)

    return wait


def cancel(store: Store, pending: Approval) -> None:
    store.run(store.jobs.operate("cancel", [pending.job_id], None, "ada", "default"))


def token(person: str | None = None, ttl: float | None = None) -> Before:
    return lambda store, pending: keep_token(store, pending.id, f"hash of {pending.id}", person, ttl)


def voted(limit: int) -> Before:
    return lambda store, pending: say(store, pending.id, ballot("ada", data={"limit": limit}))


def escalate(store: Store, pending: Approval) -> None:
    forward(store, 60)
    attend(store)


@dataclass(frozen=True)
class Case:
    """`holds` is True if the ballot shows a token: its hash is derived from the approval's id."""

    reason: str | None
    question: dict[str, Any] = field(default_factory=dict)
    before: Before = nothing
    vote: Ballot = field(default_factory=ballot)
    holds: bool = False
    state: str = "approved"
    """State of the approval afterwards, if the ballot counts."""


TWO = {"approvers": ("ada", "bob"), "quorum": 2}
FORM = {"type": "object", "required": ["limit"], "properties": {"limit": {"type": "integer", "maximum": 10}}}
FORM_OF_TWO = {**TWO, "form": FORM}
RISES = {"approvers": ("ada",), "escalate_after": 60.0, "escalate_to": ("boss",)}

CASES: dict[str, Case] = {
    "any person": Case(None),
    "one denial is enough": Case(None, TWO, vote=ballot("bob", "deny"), state="denied"),
    "more votes are needed": Case(None, TWO, state="open"),
    "the last vote of a quorum": Case(None, TWO, lambda store, g: approve(store, g.id, "bob")),
    # -- already closed --
    "approved before": Case("already_decided", {}, lambda store, g: approve(store, g.id, "bob")),
    "denied before": Case("already_decided", {}, lambda store, g: deny(store, g.id, "bob")),
    "approved before by the same person": Case("already_decided", {}, lambda store, g: approve(store, g.id, "ada")),
    "cancelled": Case("already_decided", {}, cancel),
    "expired and closed": Case("already_decided", {"expires_in": 60.0}, escalate),
    # -- time --
    "past its expiry": Case("approval_expired", {"expires_in": 60.0}, later(60)),
    "just before its expiry": Case(None, {"expires_in": 60.0}, later(59.999999)),
    "past its expiry, which approves": Case(
        "approval_expired", {"expires_in": 60.0, "on_expire": "approve"}, later(60), ballot("bob", "deny")
    ),
    "past its expiry, which reminds": Case(None, {"expires_in": 60.0, "on_expire": "remind"}, later(60)),
    # -- tokens --
    "a token": Case(None, {}, token(), holds=True),
    "a token of a person": Case(None, {"approvers": ("bob",)}, token("bob"), ballot(None), holds=True),
    "the person of a token overrides the ballot's": Case(
        "not_an_approver", RISES, token("boss"), ballot("ada"), holds=True
    ),
    "unknown token": Case("token_unknown", vote=ballot("ada", token_hash="another")),
    "the token of another approval": Case(
        "token_unknown", {}, lambda store, g: keep_token(store, asking(store).id, f"hash of {g.id}"), holds=True
    ),
    "a used token": Case(
        "token_used",
        {"quorum": 3},
        lambda store, g: (token()(store, g), say(store, g.id, ballot("bob", token_hash=f"hash of {g.id}"))),
        holds=True,
    ),
    "an expired token": Case("token_expired", {}, later(60, token(ttl=60.0)), holds=True),
    "a token just before its expiry": Case(None, {}, later(59.999999, token(ttl=60.0)), holds=True),
    # -- person --
    "no person": Case("person_required", vote=ballot(None)),
    "an empty name": Case("person_required", vote=ballot("")),
    "blanks": Case("person_required", vote=ballot("  \t")),
    "a name that begins with a blank": Case("person_required", vote=ballot(" ada")),
    "a name of 255 letters": Case(None, vote=ballot("é" * 255)),
    "a longer name": Case("person_required", vote=ballot("é" * 256)),
    "a token without a person": Case("person_required", {}, token(), ballot(None), holds=True),
    "not an approver": Case("not_an_approver", TWO, vote=ballot("mallory")),
    "another spelling": Case("not_an_approver", TWO, vote=ballot("Ada")),
    "escalation approver before escalation": Case("not_an_approver", RISES, vote=ballot("boss")),
    "escalation approver": Case(None, RISES, escalate, ballot("boss")),
    "approver after escalation": Case(None, RISES, escalate, ballot("ada")),
    "other person after escalation": Case("not_an_approver", RISES, escalate, ballot("bob")),
    "the requester": Case("requester_may_not_decide", {"not_requester": True}, vote=ballot("tester")),
    "the requester, where it is allowed": Case(None, vote=ballot("tester")),
    "the requester, with a token": Case(
        "requester_may_not_decide", {"not_requester": True}, token("tester"), ballot(None), holds=True
    ),
    "twice": Case("already_voted", TWO, lambda store, g: approve(store, g.id, "ada")),
    "a changed vote": Case("already_voted", TWO, lambda store, g: approve(store, g.id, "ada"), ballot("ada", "deny")),
    "twice, with the same values": Case("already_voted", FORM_OF_TWO, voted(3), ballot("ada", data={"limit": 3.0})),
    "twice, with other values": Case(None, FORM_OF_TWO, voted(3), ballot("ada", data={"limit": 4}), state="open"),
    "a denial after an approval of values": Case(None, FORM_OF_TWO, voted(3), ballot("ada", "deny"), state="denied"),
    "the same values": Case(None, FORM_OF_TWO, voted(3), ballot("bob", data={"limit": 3.0})),
    "other values": Case(None, FORM_OF_TWO, voted(3), ballot("bob", data={"limit": 4}), state="open"),
    "by name, where a token is required": Case("token_required", {"token_only": True}),
    "a denial by name, where a token is required": Case(
        "token_required", {"token_only": True}, vote=ballot("ada", "deny")
    ),
    "by token, where a token is required": Case(None, {"token_only": True}, token(), holds=True),
    "by the token of a person, where one is required": Case(None, {"token_only": True}, token("ada"), holds=True),
    # -- form data --
    "no data": Case("form_invalid", {"form": FORM}),
    "data that is not an object": Case("form_invalid", {"form": FORM}, vote=ballot(data=[1])),
    "empty data": Case("form_invalid", {"form": FORM}, vote=ballot(data={})),
    "value over the maximum": Case("form_invalid", {"form": FORM}, vote=ballot(data={"limit": 11})),
    "valid data": Case(None, {"form": FORM}, vote=ballot(data={"limit": 10, "more": [1]})),
    "a denial needs no data": Case(None, {"form": FORM}, vote=ballot("ada", "deny"), state="denied"),
    # -- order of the reasons --
    "expiry before all else": Case(
        "approval_expired", {**TWO, "expires_in": 60.0, "form": FORM}, later(60), ballot("mallory", token_hash="x")
    ),
    "the token before the person": Case("token_unknown", TWO, vote=ballot("mallory", token_hash="x")),
    "the person before the form": Case("not_an_approver", {**TWO, "form": FORM}, vote=ballot("mallory")),
}


@pytest.mark.slow
def test_every_ballot_gets_the_response_of_the_rule(store: Store, by_hand: ByHand) -> None:
    forward(store)
    for name, case in CASES.items():
        pending = asking(store, **case.question)
        case.before(store, pending)
        vote = case.vote
        if case.holds:
            vote = Ballot(vote.verdict, vote.person, vote.how, vote.comment, vote.data, f"hash of {pending.id}")
        assert _rule(store, by_hand, pending.id, vote) == case.reason, f"the rule, {name}"
        before = by_hand.contents()
        answer = say(store, pending.id, vote)
        assert (answer.approval_id, answer.refused, answer.reason) == (
            pending.id,
            case.reason is not None,
            case.reason,
        ), name
        stored = approval(store, pending.id)
        assert answer.state == stored.state, name
        if case.reason is not None:
            assert by_hand.contents() == before, f"{name}: was refused and left something behind"
            continue
        assert stored.state == case.state, name
        states = {"approved": State.QUEUED, "denied": State.FAILED, "open": State.WAITING_FOR_APPROVAL}
        assert state_of(store, pending.job_id) is states[case.state], name
        assert votes(store, pending.id)[-1].verdict == vote.verdict, name


def _rule(store: Store, by_hand: ByHand, approval_id: str, vote: Ballot) -> str | None:
    """The pure rule, applied to the current rows."""
    stored, now = approval(store, approval_id), store.run(store.clock.now())
    held = None
    if vote.token_hash is not None:
        rows = by_hand.execute(
            "select person, expires_at is not null and expires_at <= (select now from present), used_at is not null"
            " from approval_token where hash = :hash and approval_id = :approval",
            {"hash": vote.token_hash, "approval": approval_id},
        )
        if rows:
            person, late, used = rows[0]
            held = Token(person, now - timedelta(1) if late else None, now if used else None)
    person = held.person if held is not None and held.person is not None else vote.person
    waits = job(store, stored.job_id).state is State.WAITING_FOR_APPROVAL
    return refusal(stored, vote, person, held, votes(store, approval_id), waits, now)


@pytest.mark.req("JF-1")
def test_approvals_of_other_tenants_are_not_found(store: Store, by_hand: ByHand) -> None:
    pending = asking(store, tenant="acme")
    keep_token(store, pending.id, "h")
    before = by_hand.contents()
    for tenant in ("umbrella", "default"):
        for approval_id, vote in ((pending.id, ballot()), (pending.id, ballot(token_hash="h")), (new_id(), ballot())):
            answer = say(store, approval_id, vote, tenant=tenant)
            assert (answer.approval_id, answer.state, answer.refused, answer.reason) == (
                approval_id,
                None,
                True,
                "not_found",
            )
        assert store.run(store.approvals.save_token(pending.id, "x", None, None, "ada", tenant)) == "not_found"
        assert store.run(store.approvals.token_hashes(pending.id, tenant)) == []
        assert store.run(store.approvals.get(pending.id, tenant)) is None
        assert store.run(store.approvals.votes(pending.id, tenant)) == []
    assert by_hand.contents() == before
    assert say(store, pending.id, ballot(), tenant="acme").state == "approved"


def test_verdict_must_be_approve_or_deny(store: Store) -> None:
    pending = asking(store)
    for verdict in ("maybe", "", "Approve"):
        with pytest.raises(InvalidInput):
            say(store, pending.id, Ballot(verdict, "ada", "test"))  # type: ignore[arg-type]
    assert votes(store, pending.id) == []


# -- forms in Python and in SQL -----------------------------------------------------------------------------------

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


def test_sql_form_validation_equals_python(by_hand: ByHand) -> None:
    """Every form with every value. (`pattern` exists only in Python.)"""
    if not isinstance(by_hand, PostgresByHand):
        pytest.skip("SQLite calls the Python rule")
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
