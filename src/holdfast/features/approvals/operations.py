"""Deciding approvals: the inbox, the tokens, and people's words (CX-5, CX-6, CX-7).

Each operation is one flow over operations of the store, so that what was looked at is what is decided.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from holdfast.engine.ids import parse_id
from holdfast.engine.job import Job
from holdfast.engine.names import check_name
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.payload import encode, safe_text
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidInput, NotFound, Refused
from holdfast.features.approvals.model import (
    COMMENT_LIMIT,
    DATA_LIMIT,
    Answer,
    Approval,
    ApprovalFilter,
    ApprovalState,
    Ballot,
    Token,
    VerdictWord,
    Vote,
    approval_of_token,
    find_hash,
    form_refusal,
    new_token,
    token_hash,
)
from holdfast.stores.flow import Steps, flow, run
from holdfast.stores.namespace import StoreNamespace

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

REASONS = {
    "not_found": "there is no such approval in this tenant",
    "already_decided": "it has been decided already",
    "withdrawn": "the job does not wait for it any more",
    "approval_expired": "its time is over",
    "token_unknown": "the token is not one of this approval's",
    "token_used": "the token has been used",
    "token_expired": "the token's time is over",
    "person_required": "it has to be said who decides",
    "not_an_approver": "this person is not one of its approvers",
    "requester_may_not_decide": "whoever asked for the job may not decide it",
    "already_voted": "this person has decided already",
    "form_invalid": "what was filled in does not fit the form",
}
FIXES = {
    "person_required": "Say who: by=… in Python, --by on the command line.",
    "not_an_approver": "Who may is in app.approvals.get(id), or: holdfast approvals show ID",
}


_Approvals = list[Approval]  # inside the class the word is an operation
_WithVotes = list[tuple[Approval, list[Vote]]]


class ApprovalsWanted(TypedDict, total=False):
    """Which approvals to list. ``after`` is the id of the last one of the page before; ``approver`` leaves out those
    this person may not decide. ``state=None`` lists all, not only the open ones."""

    tenant: str
    state: ApprovalState | None
    name: str | None
    job_id: str | None
    approver: str | None
    after: str | None
    limit: int
    newest: bool


class DecisionOptions(TypedDict, total=False):
    """What goes with a word: ``data`` fills in the form."""

    comment: str | None
    data: Any
    tenant: str | None


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """An approval, what was said of it so far, and the job that asked."""

    approval: Approval
    votes: list[Vote]
    job: Job


@dataclass(frozen=True, slots=True)
class Spent:
    """Why a token decides nothing any more, for whoever holds it and may know no more of the approval than that: what
    became of it and when, and if the token was used, when and by whom it was issued to."""

    state: ApprovalState
    decided_at: datetime | None
    used_at: datetime | None
    by: str | None
    expired: bool


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of a word: the answer, the approval as it is now, and what is wrong with a form, in words."""

    answer: Answer
    approval: Approval | None = None
    wrong: str | None = None


def _deciding(store: Store, reference: str, ballot: Ballot, tenant: str, *, again: bool = False) -> Steps[Decided]:
    approval_id = approval_of(reference)
    approval = yield from store.approvals.get(approval_id, tenant).start()
    if approval is None:
        return Decided(Answer(approval_id, None, True, "not_found"))
    if approval_of_token(reference) is not None:
        stored = yield from store.approvals.token_hashes(approval.id, tenant).start()
        ballot = replace(ballot, token_hash=find_hash(token_hash(reference, approval), stored) or "unknown")
    wrong = form_refusal(approval, ballot)
    if wrong is not None:
        # The store refuses a list for certain; and if there is a weightier reason, it is that one it gives.
        ballot = replace(ballot, data=[])
    saying = store.approvals.decide(approval.id, ballot, tenant)
    answer = yield from (saying.again() if again else saying).start()
    now = yield from store.approvals.get(approval.id, tenant).start()
    return Decided(answer, now, wrong)


@flow(tells=True, repeat=partial(_deciding, again=True))
def deciding(store: Store, reference: str, ballot: Ballot, tenant: str) -> Steps[Decided]:
    """``reference`` is an approval's id, or a token that decides it."""
    return (yield from _deciding(store, reference, ballot, tenant))


@flow()
def issuing(
    store: Store, approval_id: str, person: str | None, ttl: float | None, actor: str, tenant: str
) -> Steps[tuple[str | None, str | None]]:
    """A new token, or the reason why not. Only its hash is kept; this is the one time it is seen."""
    approval = yield from store.approvals.get(approval_id, tenant).start()
    if approval is None:
        return None, "not_found"
    token = new_token(approval.id)
    reason = yield from store.approvals.save_token(
        approval.id, token_hash(token, approval), person, ttl, actor, tenant
    ).start()
    return (None, reason) if reason is not None else (token, None)


@flow(writes=False)
def asked(store: Store, approval_id: str, tenant: str) -> Steps[ApprovalRequest | None]:
    approval = yield from store.approvals.get(approval_id, tenant).start()
    job = None if approval is None else (yield from store.jobs.get(approval.job_id, tenant).start())
    if approval is None or job is None:
        return None
    votes = yield from store.approvals.votes(approval.id, tenant).start()
    return ApprovalRequest(approval, votes, job)


@flow(writes=False)
def told(store: Store, wanted: ApprovalFilter) -> Steps[list[tuple[Approval, list[Vote]]]]:
    """A page of approvals, each with what was said of it."""
    approvals = yield from store.approvals.list(wanted).start()
    found = []
    for approval in approvals:
        # Nobody has spoken where nothing was counted and nothing is decided.
        spoken = approval.approvals > 0 or approval.state in ("approved", "denied")
        found.append(
            (approval, (yield from store.approvals.votes(approval.id, approval.tenant).start()) if spoken else [])
        )
    return found


@dataclass(frozen=True, slots=True)
class ApprovalByToken(ApprovalRequest):
    """The same for whoever shows a token; ``spent``: it decides nothing any more."""

    spent: Spent | None = None
    person: str | None = None
    """Whom the link was issued for; None: whoever uses it says who they are."""


@flow(writes=False)
def asked_with(store: Store, token: str, tenant: str) -> Steps[ApprovalByToken | None]:
    """The approval that a token decides, or None if the token does not belong to it. ``tenant`` may be ``*``: the token
    itself names the approval."""
    approval_id = approval_of_token(token)
    approval = None if approval_id is None else (yield from store.approvals.get(approval_id, tenant).start())
    if approval is None:
        return None
    stored = yield from store.approvals.token_hashes(approval.id, approval.tenant).start()
    shown = find_hash(token_hash(token, approval), stored)
    found = None if shown is None else (yield from asked(store, approval.id, approval.tenant).start())
    if shown is None or found is None:
        return None
    kept = yield from store.approvals.token(shown, approval.tenant).start()
    now = yield from store.clock.now().start()
    person = None if kept is None else kept.person
    return ApprovalByToken(found.approval, found.votes, found.job, _spent(approval, kept, now), person)


def _spent(approval: Approval, token: Token | None, now: datetime) -> Spent | None:
    if token is None:
        return None
    over = token.expires_at is not None and token.expires_at <= now
    if approval.state == "open" and token.used_at is None and not over:
        return None
    by = None if token.used_at is None else token.person
    return Spent(approval.state, approval.decided_at, token.used_at, by, over and token.used_at is None)


class Approvals(StoreNamespace):
    """Questions that jobs ask people: list them, decide them, issue tokens that decide one."""

    @operation
    def list(self, **wanted: Unpack[ApprovalsWanted]) -> Program[_Approvals]:
        """Open approvals, oldest first: ``app.approvals.list(approver="ada@example.com", limit=20)``."""
        return (yield from run(self._store.approvals.list(self._filter(wanted))))

    alist = awaited(list)

    @operation
    def _with_votes(self, **wanted: Unpack[ApprovalsWanted]) -> Program[_WithVotes]:
        """The same, each with its votes."""
        return (yield from run(told(self._store, self._filter(wanted))))

    _awith_votes = awaited(_with_votes)

    @operation
    def get(self, approval: str, *, tenant: str | None = None) -> Program[ApprovalRequest]:
        """An approval, its votes and the job that asks. Takes the approval's id or a token of it."""
        found = yield from run(asked(self._store, approval_of(approval), tenant or self._tenant))
        if found is None:
            raise _refusal_of("not_found", None)
        return found

    aget = awaited(get)

    @operation
    def get_by_token(self, token: str, *, tenant: str | None = None) -> Program[ApprovalByToken]:
        """What a token decides, for a caller who has nothing else to show. A token that does not belong to its approval
        is reported like one that never existed."""
        found = yield from run(asked_with(self._store, token, tenant or self._tenant))
        if found is None:
            raise NotFound("this token has no open approval", code="token_unknown")
        return found

    aget_by_token = awaited(get_by_token)

    @operation
    def approve(
        self, approval: str, *, by: str | None = None, **said: Unpack[DecisionOptions]
    ) -> Program[ApprovalState]:
        """Approve: ``app.approvals.approve(id, by="ada", comment="fine", data={…})``. Takes the approval's id or a
        token; a token that was issued to a person needs no ``by``. Returns the state, which is still ``open`` when more
        people have to agree."""
        return (yield from self._deciding("approve", approval, by, **said)).state

    aapprove = awaited(approve)

    @operation
    def deny(self, approval: str, *, by: str | None = None, **said: Unpack[DecisionOptions]) -> Program[ApprovalState]:
        """Deny: ``app.approvals.deny(id, by="ada", comment="not this week")``."""
        return (yield from self._deciding("deny", approval, by, **said)).state

    adeny = awaited(deny)

    @operation
    def _decide(
        self,
        verdict: VerdictWord,
        approval: str,
        by: str | None,
        *,
        how: str = "python",
        **said: Unpack[DecisionOptions],
    ) -> Program[Approval]:
        """Approve or deny, and return the approval as it is now. ``how`` names the surface the decision came from."""
        return (yield from self._deciding(verdict, approval, by, how=how, **said))

    _adecide = awaited(_decide)

    @operation
    def issue_token(
        self,
        approval_id: str,
        *,
        person: str | None = None,
        expires_in: Duration | None = None,
        tenant: str | None = None,
    ) -> Program[str]:
        """A token that decides this approval once. It is shown only here: the database keeps a hash."""
        ttl = None if expires_in is None else seconds(expires_in, "expires_in")
        whose = None if person is None else check_name(person, "person", limit=255)
        token, reason = yield from run(
            issuing(self._store, approval_of(approval_id), whose, ttl, self._actor, tenant or self._tenant)
        )
        if token is None:
            raise _refusal_of(reason or "refused", None, "no token is issued")
        return token

    aissue_token = awaited(issue_token)

    def _filter(self, wanted: ApprovalsWanted) -> ApprovalFilter:
        return ApprovalFilter(**{"tenant": self._tenant, **wanted})  # type: ignore[arg-type]

    def _deciding(
        self,
        verdict: VerdictWord,
        approval: str,
        by: str | None,
        *,
        how: str = "python",
        comment: str | None = None,
        data: Any = None,
        tenant: str | None = None,
    ) -> Program[Approval]:
        if data is not None:
            encode(data, limit=DATA_LIMIT, what="form of the approval")
        person = None if by is None else check_name(by, "person", limit=255)
        words = safe_text(comment, COMMENT_LIMIT) if comment and comment.strip() else None
        ballot = Ballot(verdict, person, check_name(how, "how"), words, data)
        decided = yield from run(deciding(self._store, approval, ballot, tenant or self._tenant))
        if decided.answer.refused or decided.approval is None:
            raise _refusal_of(decided.answer.reason or "refused", decided.wrong)
        return decided.approval


def approval_of(reference: str) -> str:
    """The approval's id from its id or a token of it. What is neither is not repeated: it may be most of a token."""
    try:
        return approval_of_token(reference) or parse_id(reference)
    except InvalidInput:
        raise InvalidInput(
            "this is neither the id of an approval nor a token",
            code="invalid_id",
            fix="An approval's id is a UUID; a token begins with hfa_ and is given whole.",
        ) from None


def _refusal_of(reason: str, wrong: str | None, what: str = "the decision does not count") -> Exception:
    said = REASONS.get(reason, reason)
    if reason == "not_found":
        return NotFound(said)
    if reason == "form_invalid":
        return InvalidInput(wrong or said, code=reason)
    fix = FIXES.get(reason)
    return Refused(f"{what}: {said}", code=reason, fix=fix)
