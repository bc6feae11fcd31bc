"""Deciding gates: the inbox, the tokens, and people's words (CX-5, CX-6, CX-7).

Each operation is one flow over the verbs of the store, so that what was looked at is what is decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from holdfast.domain.durations import Duration, seconds
from holdfast.domain.errors import InvalidInput, NotFound, Refused
from holdfast.domain.gates import (
    COMMENT_LIMIT,
    DATA_LIMIT,
    Answer,
    Ballot,
    Gate,
    GateFilter,
    GateState,
    VerdictWord,
    Vote,
    find_hash,
    form_refusal,
    gate_of_token,
    new_token,
    token_hash,
)
from holdfast.domain.ids import parse_id
from holdfast.domain.keys import check_name
from holdfast.domain.payload import encode, safe_text
from holdfast.stores.base import Verbs
from holdfast.stores.flow import Flow, Steps, flow

T = TypeVar("T")

REASONS = {
    "not_found": "there is no such gate in this tenant",
    "already_decided": "it has been decided already",
    "withdrawn": "the job does not wait for it any more",
    "gate_expired": "its time is over",
    "token_unknown": "the token is not one of this gate's",
    "token_used": "the token has been used",
    "token_expired": "the token's time is over",
    "person_required": "it has to be said who decides",
    "not_an_approver": "this person is not one of its approvers",
    "requester_may_not_decide": "whoever asked for the job may not decide it",
    "already_voted": "this person has decided already",
    "form_invalid": "what was filled in does not fit the form",
}


class Runner(Protocol):
    """Whoever runs flows for a tenant: the client."""

    tenant: str
    actor: str

    @property
    def verbs(self) -> Verbs: ...
    def run(self, flow: Flow[T]) -> T: ...
    async def arun(self, flow: Flow[T]) -> T: ...


@dataclass(frozen=True, slots=True)
class Inbox:
    """A gate and what was said of it so far."""

    gate: Gate
    votes: list[Vote]


@flow()
def deciding(verbs: Verbs, reference: str, ballot: Ballot, tenant: str) -> Steps[tuple[Answer, str | None]]:
    """``reference`` is a gate's id, or a token that decides it. Answers also what is wrong with a form, in words."""
    of_token = gate_of_token(reference)
    gate = yield from verbs.gate(of_token or parse_id(reference), tenant).start()
    if gate is None:
        return Answer(of_token or reference, None, True, "not_found"), None
    if of_token is not None:
        stored = yield from verbs.gate_hashes(gate.id, tenant).start()
        found = find_hash(token_hash(reference, gate), stored)
        ballot = Ballot(
            ballot.verdict, ballot.person, ballot.how, ballot.comment, ballot.data, token_hash=found or "unknown"
        )
    wrong = form_refusal(gate, ballot)
    if wrong is not None and gate.state == "open":
        return Answer(gate.id, gate.state, True, "form_invalid"), wrong
    answer = yield from verbs.decide_gate(gate.id, ballot, tenant).start()
    return answer, None


@flow()
def issuing(
    verbs: Verbs, gate_id: str, person: str | None, ttl: float | None, actor: str, tenant: str
) -> Steps[tuple[str | None, str | None]]:
    """A new token, or the reason why not. Only its hash is kept; this is the one time it is seen."""
    gate = yield from verbs.gate(gate_id, tenant).start()
    if gate is None:
        return None, "not_found"
    token = new_token(gate.id)
    reason = yield from verbs.keep_gate_token(gate.id, token_hash(token, gate), person, ttl, actor, tenant).start()
    return (None, reason) if reason is not None else (token, None)


@flow(writes=False)
def opening(verbs: Verbs, gate_id: str, tenant: str) -> Steps[Inbox | None]:
    gate = yield from verbs.gate(gate_id, tenant).start()
    if gate is None:
        return None
    votes = yield from verbs.votes(gate.id, tenant).start()
    return Inbox(gate, votes)


class Approvals:
    """``app.approvals``: list and show what waits for people, issue tokens, decide."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def list(self, **wanted: Any) -> Sequence[Gate]:
        """Open gates, the oldest first: ``app.approvals.list(approver="ada@example.com", limit=20)``."""
        return self._runner.run(self._runner.verbs.gates(self._filter(wanted)))

    async def alist(self, **wanted: Any) -> Sequence[Gate]:
        return await self._runner.arun(self._runner.verbs.gates(self._filter(wanted)))

    def show(self, gate_id: str, *, tenant: str | None = None) -> Inbox:
        return _found(self._runner.run(self._opening(gate_id, tenant)), gate_id)

    async def ashow(self, gate_id: str, *, tenant: str | None = None) -> Inbox:
        return _found(await self._runner.arun(self._opening(gate_id, tenant)), gate_id)

    def decide(self, verdict: VerdictWord, gate: str, by: str | None, **said: Any) -> GateState:
        """``gate`` is its id or a token. Answers its state: still open when more people have to agree."""
        return _counted(self._runner.run(self._deciding(verdict, gate, by, **said)))

    async def adecide(self, verdict: VerdictWord, gate: str, by: str | None, **said: Any) -> GateState:
        return _counted(await self._runner.arun(self._deciding(verdict, gate, by, **said)))

    def token(
        self, gate_id: str, *, person: str | None = None, expires_in: Duration | None = None, tenant: str | None = None
    ) -> str:
        """A token that decides this gate once. It is shown here and nowhere else: what is kept is a hash."""
        return _issued(self._runner.run(self._issuing(gate_id, person, expires_in, tenant)))

    async def atoken(
        self, gate_id: str, *, person: str | None = None, expires_in: Duration | None = None, tenant: str | None = None
    ) -> str:
        return _issued(await self._runner.arun(self._issuing(gate_id, person, expires_in, tenant)))

    # --- the flows ---

    def _filter(self, wanted: dict[str, Any]) -> GateFilter:
        return GateFilter(**{"tenant": self._runner.tenant, **wanted})

    def _opening(self, gate_id: str, tenant: str | None) -> Flow[Inbox | None]:
        return opening(self._runner.verbs, gate_id, tenant or self._runner.tenant)

    def _deciding(
        self,
        verdict: VerdictWord,
        gate: str,
        by: str | None,
        *,
        how: str = "python",
        comment: str | None = None,
        data: Any = None,
        tenant: str | None = None,
    ) -> Flow[tuple[Answer, str | None]]:
        if data is not None:
            encode(data, limit=DATA_LIMIT, what="form of the approval")
        person = None if by is None else check_name(by, "person", limit=255)
        words = None if comment is None else safe_text(comment, COMMENT_LIMIT)
        ballot = Ballot(verdict, person, check_name(how, "how"), words, data)
        return deciding(self._runner.verbs, gate, ballot, tenant or self._runner.tenant)

    def _issuing(
        self, gate_id: str, person: str | None, expires_in: Duration | None, tenant: str | None
    ) -> Flow[tuple[str | None, str | None]]:
        ttl = None if expires_in is None else seconds(expires_in, "expires_in")
        whose = None if person is None else check_name(person, "person", limit=255)
        runner = self._runner
        return issuing(runner.verbs, gate_id, whose, ttl, runner.actor, tenant or runner.tenant)


def _found(inbox: Inbox | None, gate_id: str) -> Inbox:
    if inbox is None:
        raise NotFound(f"there is no gate {gate_id} in this tenant")
    return inbox


def _counted(answered: tuple[Answer, str | None]) -> GateState:
    answer, words = answered
    if answer.refused:
        raise _refusal_of(answer.reason or "refused", words)
    assert answer.state is not None
    return answer.state


def _issued(answered: tuple[str | None, str | None]) -> str:
    token, reason = answered
    if token is None:
        raise _refusal_of(reason or "refused", None)
    return token


def _refusal_of(reason: str, words: str | None) -> Exception:
    said = words or REASONS.get(reason, reason)
    if reason == "not_found":
        return NotFound(said)
    if reason == "form_invalid":
        return InvalidInput(said, code=reason)
    return Refused(f"the decision does not count: {said}", code=reason)
