"""``app.approvals``: list approvals, decide them, issue tokens.

Each operation is one flow, so a decision applies to the approval that was read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, Unpack, get_args

from holdfast.engine.declared import Help, Most, http, local_only
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
    Vote,
    VoteVerdict,
    approval_of_token,
    find_hash,
    form_refusal,
    new_token,
    token_hash,
)
from holdfast.stores.flow import Steps, flow, run
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.requests import Tenant

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

REASONS = {
    "not_found": "there is no such approval in this tenant",
    "already_decided": "it has been decided already",
    "withdrawn": "the job no longer waits for it",
    "approval_expired": "it has expired",
    "token_required": "only a token decides it",
    "token_unknown": "the token does not belong to this approval",
    "token_used": "the token has been used",
    "token_expired": "the token has expired",
    "person_required": "the name of the person who decides is missing",
    "not_an_approver": "this person is not one of its approvers",
    "requester_may_not_decide": "the requester of the job may not decide it",
    "already_voted": "this person has decided already",
    "form_invalid": "the data does not match the form",
}
FIXES = {
    "token_required": "Use the link or the token that was sent to you, or have one issued: holdfast approvals token ID",
    "person_required": "Name the person: by=… in Python, --by on the command line.",
    "not_an_approver": "List the approvers: app.approvals.get(id), or: holdfast approvals show ID",
}
SHOWN_PEOPLE = 10
"""How many approvers an error names."""


AnyState = Literal["open", "approved", "denied", "expired", "withdrawn", "all"]

_Approvals = list[Approval]  # inside the class, ``list`` is an operation
_WithVotes = list[tuple[Approval, list[Vote]]]


class ApprovalsWanted(TypedDict, total=False):
    """Which approvals to list: the open ones by default."""

    approver: Annotated[str | None, Help("Only approvals that this person may decide.", "WHO")]
    name: Annotated[str | None, Help("Only approvals of this name.", "APPROVAL")]
    state: Annotated[AnyState, Help(f"Only approvals in this state: {', '.join(get_args(AnyState))}.", "STATE")]
    job_id: Annotated[
        str | None, Help("Only approvals of this job.", "ID", longest=100, option="--job", parameter="job")
    ]
    limit: Most
    after: Annotated[str | None, Help("The next page: the id of the last approval seen.", "CURSOR")]
    newest: Annotated[bool, Help("Newest first.", http=False, cli=False)]
    tenant: Annotated[str, Help("The tenant, if not that of the session.", http=False, cli=False)]


ApprovalsWanted.__defaults__ = {"state": "open", "limit": 50}  # type: ignore[attr-defined]

ApprovalId = Annotated[
    str,
    Help(
        "The approval's id.",
        "ID",
        longest=100,
        parameter="approval_id",
        cli="The approval's id, or its first characters.",
    ),
]
ApprovalOrToken = Annotated[
    str,
    Help(
        "The approval's id, or a token that decides it.",
        "ID|TOKEN",
        parameter="approval_id",
        longest=200,
        cli="The approval's id or its first characters, a token, or - for a token on stdin.",
    ),
]
By = Annotated[
    str | None,
    Help("Name of the person who decides; default: the token's person, or your login name.", "WHO", http=False),
]


class DecisionOptions(TypedDict, total=False):
    """Options of a decision."""

    comment: Annotated[str | None, Help("Comment, stored with the decision.", longest=2_000)]
    data: Annotated[Any, Help("Values of the form, if there is one.", "JSON", cli=False)]
    tenant: Tenant


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """An approval, its votes, and the job that requested it."""

    approval: Approval
    votes: list[Vote]
    job: Job


@dataclass(frozen=True, slots=True)
class Spent:
    """Why a token no longer decides anything: the state of the approval and since when; if the token was used, when and
    whose it was. The holder of the token learns nothing else about the approval."""

    state: ApprovalState
    decided_at: datetime | None
    used_at: datetime | None
    by: str | None
    expired: bool


@dataclass(frozen=True, slots=True)
class Decided:
    """The result of a decision: the answer, the approval as it is now, and why the form was refused. ``by_token``: it
    was made with a token."""

    answer: Answer
    approval: Approval | None = None
    wrong: str | None = None
    by_token: bool = False


def _decide(store: Store, reference: str, ballot: Ballot, tenant: str, *, again: bool = False) -> Steps[Decided]:
    approval_id = approval_of(reference)
    approval = yield from store.approvals.get(approval_id, tenant).start()
    if approval is None:
        return Decided(Answer(approval_id, None, True, "not_found"))
    by_token = approval_of_token(reference) is not None
    if by_token:
        stored = yield from store.approvals.token_hashes(approval.id, tenant).start()
        ballot = replace(ballot, token_hash=find_hash(token_hash(reference, approval), stored) or "unknown")
    wrong = form_refusal(approval, ballot)
    if wrong is not None:
        # The store refuses every list as invalid, and still reports a reason that takes precedence.
        ballot = replace(ballot, data=[])
    vote = store.approvals.decide(approval.id, ballot, tenant)
    answer = yield from (vote.again() if again else vote).start()
    now = yield from store.approvals.get(approval.id, tenant).start()
    return Decided(answer, now, wrong, by_token)


@flow(notifies=True, repeat=partial(_decide, again=True))
def decide(store: Store, reference: str, ballot: Ballot, tenant: str) -> Steps[Decided]:
    """Record a decision. ``reference`` is an approval's id, or a token that decides it."""
    return (yield from _decide(store, reference, ballot, tenant))


@flow()
def issue_token(
    store: Store, approval_id: str, person: str | None, ttl: float | None, actor: str, tenant: str
) -> Steps[tuple[str | None, str | None, Approval | None]]:
    """A new token, or the reason for a refusal; and the approval. The store keeps only the token's hash: it is not
    available again."""
    approval = yield from store.approvals.get(approval_id, tenant).start()
    if approval is None:
        return None, "not_found", None
    token = new_token(approval.id)
    reason = yield from store.approvals.save_token(
        approval.id, token_hash(token, approval), person, ttl, actor, tenant
    ).start()
    return (None, reason, approval) if reason is not None else (token, None, approval)


@flow(writes=False)
def approval_request(store: Store, approval_id: str, tenant: str) -> Steps[ApprovalRequest | None]:
    approval = yield from store.approvals.get(approval_id, tenant).start()
    job = None if approval is None else (yield from store.jobs.get(approval.job_id, tenant).start())
    if approval is None or job is None:
        return None
    votes = yield from store.approvals.votes(approval.id, tenant).start()
    return ApprovalRequest(approval, votes, job)


@flow(writes=False)
def approvals_with_votes(store: Store, wanted: ApprovalFilter) -> Steps[list[tuple[Approval, list[Vote]]]]:
    """A page of approvals, each with its votes."""
    approvals = yield from store.approvals.list(wanted).start()
    result: list[tuple[Approval, list[Vote]]] = []
    for approval in approvals:
        votes: list[Vote] = []
        if approval.approvals > 0 or approval.state in ("approved", "denied"):  # otherwise there are no votes
            votes = yield from store.approvals.votes(approval.id, approval.tenant).start()
        result.append((approval, votes))
    return result


@dataclass(frozen=True, slots=True)
class ApprovalByToken(ApprovalRequest):
    """An approval request for the holder of a token. ``spent`` is set if the token no longer decides it."""

    spent: Spent | None = None
    person: str | None = None
    """The person the token was issued to; None if the person who uses it gives their name."""


@flow(writes=False)
def approval_by_token(store: Store, token: str, tenant: str) -> Steps[ApprovalByToken | None]:
    """The approval that a token decides, or None if the token does not belong to it. ``tenant`` may be ``*``: the token
    itself names the approval."""
    approval_id = approval_of_token(token)
    approval = None if approval_id is None else (yield from store.approvals.get(approval_id, tenant).start())
    if approval is None:
        return None
    stored = yield from store.approvals.token_hashes(approval.id, approval.tenant).start()
    hashed = find_hash(token_hash(token, approval), stored)
    request = None if hashed is None else (yield from approval_request(store, approval.id, approval.tenant).start())
    if hashed is None or request is None:
        return None
    row = yield from store.approvals.token(hashed, approval.tenant).start()
    now = yield from store.clock.now().start()
    person = None if row is None else row.person
    return ApprovalByToken(request.approval, request.votes, request.job, _spent(approval, row, now), person)


def _spent(approval: Approval, token: Token | None, now: datetime) -> Spent | None:
    if token is None:
        return None
    expired = token.expires_at is not None and token.expires_at <= now
    if approval.state == "open" and token.used_at is None and not expired:
        return None
    by = None if token.used_at is None else token.person
    return Spent(approval.state, approval.decided_at, token.used_at, by, expired and token.used_at is None)


class Approvals(StoreNamespace):
    """Approvals that jobs request from people: list them, decide them, issue tokens that decide one."""

    @operation
    @http("GET /approvals", "read", page="id")
    def list(self, **wanted: Unpack[ApprovalsWanted]) -> Program[_Approvals]:
        """List approvals, oldest first.

        Only open ones by default: ``app.approvals.list(approver="ada@example.com", limit=20)``.
        """
        return (yield from run(self._store.approvals.list(self._filter(wanted))))

    alist = awaited(list)

    @operation
    def _with_votes(self, **wanted: Unpack[ApprovalsWanted]) -> Program[_WithVotes]:
        """A page of approvals, each with its votes."""
        return (yield from run(approvals_with_votes(self._store, self._filter(wanted))))

    _awith_votes = awaited(_with_votes)

    @operation
    @http("GET /approvals/{approval_id}", "read", name="show_approval")
    def get(self, approval: ApprovalId, *, tenant: Tenant = None) -> Program[ApprovalRequest]:
        """Show an approval, its votes, and the job that requested it.

        Takes the approval's id or a token of it.
        """
        request = yield from run(approval_request(self._store, approval_of(approval), tenant or self._tenant))
        if request is None:
            raise _error_of("not_found", None)
        return request

    aget = awaited(get)

    @operation
    @local_only("GET /approvals/by-token/{token} shows what the holder of a token may see")
    def get_by_token(self, token: str, *, tenant: str | None = None) -> Program[ApprovalByToken]:
        """The approval that a token decides, for a caller without other credentials. A token that does not belong to
        its approval is reported like one that never existed."""
        request = yield from run(approval_by_token(self._store, token, tenant or self._tenant))
        if request is None:
            raise NotFound("this token has no open approval", code="token_unknown")
        return request

    aget_by_token = awaited(get_by_token)

    @operation
    @http("POST /approvals/{approval_id}/approve", "decide", result="state", by_hand=True)
    def approve(
        self, approval: ApprovalOrToken, *, by: By = None, **options: Unpack[DecisionOptions]
    ) -> Program[ApprovalState]:
        """Approve a request. The job resumes once enough people have approved.

        ``app.approvals.approve(id, by="ada", comment="fine", data={…})`` takes the approval's id or a token; a token
        that was issued to a person needs no ``by``. Returns the state, which is still ``open`` when more people have
        to agree.
        """
        return (yield from self._record("approve", approval, by, **options)).state

    aapprove = awaited(approve)

    @operation
    @http("POST /approvals/{approval_id}/deny", "decide", result="state", by_hand=True)
    def deny(
        self, approval: ApprovalOrToken, *, by: By = None, **options: Unpack[DecisionOptions]
    ) -> Program[ApprovalState]:
        """Deny a request. One denial is enough.

        ``app.approvals.deny(id, by="ada", comment="not this week")``.
        """
        return (yield from self._record("deny", approval, by, **options)).state

    adeny = awaited(deny)

    @operation
    def _decide(
        self,
        verdict: VoteVerdict,
        approval: str,
        by: str | None,
        *,
        how: str = "python",
        **options: Unpack[DecisionOptions],
    ) -> Program[Approval]:
        """Approve or deny, and return the approval as it is now. ``how`` names the surface the decision came from."""
        return (yield from self._record(verdict, approval, by, how=how, **options))

    _adecide = awaited(_decide)

    @operation
    @http("POST /approvals/{approval_id}/token", "admin", name="issue_approval_token", status=201, result="token")
    def issue_token(
        self,
        approval: ApprovalId,
        *,
        person: Annotated[
            str | None,
            Help("Person the token is for; default: the person who uses it gives their name.", "WHO", option="--for"),
        ] = None,
        expires_in: Annotated[Duration | None, Help("How long the token is valid: 90s, 5m, 2d.")] = None,
        tenant: Tenant = None,
    ) -> Program[str]:
        """Issue a token that decides an approval once, for anyone who holds it. It is returned only here: the database
        stores a hash."""
        ttl = None if expires_in is None else seconds(expires_in, "expires_in")
        holder = None if person is None else check_name(person, "person", limit=255)
        token, reason, found = yield from run(
            issue_token(self._store, approval_of(approval), holder, ttl, self._actor, tenant or self._tenant)
        )
        if token is None:
            raise _error_of(reason or "refused", None, "no token is issued", holder, found)
        return token

    aissue_token = awaited(issue_token)

    def _filter(self, wanted: ApprovalsWanted) -> ApprovalFilter:
        options: dict[str, Any] = {"tenant": self._tenant, **wanted}
        if options.get("state") == "all":
            options["state"] = None
        return ApprovalFilter(**options)

    def _record(
        self,
        verdict: VoteVerdict,
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
        text = safe_text(comment, COMMENT_LIMIT) if comment and comment.strip() else None
        ballot = Ballot(verdict, person, check_name(how, "how"), text, data)
        decided = yield from run(decide(self._store, approval, ballot, tenant or self._tenant))
        if decided.answer.refused or decided.approval is None:
            # The holder of a token does not learn who else may decide.
            known = None if decided.by_token else decided.approval
            raise _error_of(decided.answer.reason or "refused", decided.wrong, person=person, approval=known)
        return decided.approval


def approval_of(reference: str) -> str:
    """The approval's id, from its id or a token of it. The error does not repeat the text: it may be part of a
    token."""
    try:
        return approval_of_token(reference) or parse_id(reference)
    except InvalidInput:
        raise InvalidInput(
            "this is neither the id of an approval nor a token",
            code="invalid_id",
            fix="An approval's id is a UUID; a token begins with hfa_ and is given whole.",
        ) from None


def _error_of(
    reason: str,
    wrong: str | None,
    what: str = "the decision does not count",
    person: str | None = None,
    approval: Approval | None = None,
) -> Exception:
    message = REASONS.get(reason, reason)
    if reason == "not_an_approver" and person is not None:
        message = message.replace("this person", person)
    if reason == "not_an_approver" and approval is not None and approval.people:
        more = len(approval.people) - SHOWN_PEOPLE
        message += f": {', '.join(approval.people[:SHOWN_PEOPLE])}{f' and {more} more' if more > 0 else ''}"
    if reason == "not_found":
        return NotFound(message)
    if reason == "form_invalid":
        return InvalidInput(wrong or message, code=reason)
    return Refused(f"{what}: {message}", code=reason, fix=FIXES.get(reason))
