"""Approvals: the request, who may decide it, and when it is decided.

``refusal`` is the complete rule of who may decide. One store calls it; in the other the SQL function
``decide_approval`` has the same rule, and the contract tests compare the two.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from holdfast.engine.ids import parse_id
from holdfast.engine.json_schema import violations
from holdfast.engine.names import check_name
from holdfast.engine.payload import canonical
from holdfast.errors import InvalidInput, InvalidSetting

VoteVerdict = Literal["approve", "deny"]
ApprovalState = Literal["open", "approved", "denied", "expired", "withdrawn"]

SUMMARY_LIMIT: Final = 2_000
COMMENT_LIMIT: Final = 2_000
DATA_LIMIT: Final = 65_536
MAX_PEOPLE: Final = 100
_PREFIX: Final = "hfa"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The request that ``ctx.approval`` makes. Durations are in seconds; ``form`` is a JSON schema."""

    summary: str
    data: Any = None
    form: dict[str, Any] | None = None
    approvers: tuple[str, ...] = ()
    quorum: int = 1
    not_requester: bool = False
    token_only: bool = False
    on_deny: Literal["fail", "resume"] = "fail"
    on_expire: Literal["deny", "approve", "remind"] = "deny"
    expires_in: float | None = None
    remind_every: float | None = None
    escalate_after: float | None = None
    escalate_to: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        summary: object = self.summary
        if not isinstance(summary, str) or not summary.strip() or len(summary) > SUMMARY_LIMIT:
            raise _invalid(f"an approval has a summary of at most {SUMMARY_LIMIT:,} characters")
        if len(canonical(self.data)) > DATA_LIMIT or len(canonical(self.form)) > DATA_LIMIT:
            raise _invalid(f"data and form of an approval have at most {DATA_LIMIT:,} characters each")
        _check_people("approvers", self.approvers)
        _check_people("escalate_to", self.escalate_to)
        quorum: object = self.quorum
        if not isinstance(quorum, int) or isinstance(quorum, bool) or not 1 <= quorum <= MAX_PEOPLE:
            raise _invalid(f"quorum is a whole number from 1 to {MAX_PEOPLE}")
        if self.approvers and self.quorum > len({*self.approvers, *self.escalate_to}):
            raise _invalid(f"a quorum of {self.quorum} needs as many approvers")
        if self.on_deny not in ("fail", "resume"):
            raise _invalid("on_deny is fail or resume")
        if self.on_expire not in ("deny", "approve", "remind"):
            raise _invalid(f"on_expire must be deny, approve or remind, not {self.on_expire!r}")
        if self.on_expire != "deny" and self.expires_in is None:
            raise _invalid("on_expire needs expires_in")
        if self.on_expire == "approve" and self.form is not None:
            raise _invalid("an approval with a form cannot approve itself: on_expire is deny or remind")
        if self.on_expire == "approve" and self.token_only:
            raise _invalid("an approval that only a token decides cannot approve itself: on_expire is deny or remind")
        if (self.escalate_after is None) != (not self.escalate_to):
            raise _invalid("escalate_after and escalate_to go together")

    def to_json(self, approval_id: str, name: str, notify: str | None) -> dict[str, Any]:
        values = {
            "id": approval_id,
            "summary": self.summary,
            "data": self.data,
            "form": self.form,
            "approvers": list(self.approvers),
            "quorum": self.quorum,
            "not_requester": self.not_requester,
            "token_only": self.token_only,
            "on_deny": self.on_deny,
            "on_expire": self.on_expire,
            "expires_in": self.expires_in,
            "remind_every": self.remind_every,
            "escalate_after": self.escalate_after,
            "escalate_to": list(self.escalate_to),
            "notify": notify,
            "content_hash": self.content_hash(name),
        }
        return {name: value for name, value in values.items() if value is not None}

    def content_hash(self, name: str) -> str:
        """The hash of everything that a person sees before deciding. A token is bound to it."""
        content = {"name": name, "summary": self.summary, "data": self.data, "form": self.form}
        return hashlib.sha256(canonical(content).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Approval:
    """A stored approval."""

    id: str
    tenant: str
    job_id: str
    n: int
    name: str
    summary: str
    data: Any
    form: dict[str, Any] | None
    approvers: tuple[str, ...]
    quorum: int
    requester: str
    not_requester: bool
    token_only: bool
    """Whether only the holder of a token can decide it."""
    on_deny: str
    on_expire: str
    expires_at: datetime | None
    remind_at: datetime | None
    reminders: int
    escalate_at: datetime | None
    escalate_to: tuple[str, ...]
    escalated_at: datetime | None
    content_hash: str
    state: ApprovalState
    opened_at: datetime
    decided_at: datetime | None
    approvals: int = 0
    """Number of people who approve so far; with a form, the most who approve the same values."""

    @property
    def missing(self) -> int:
        """The number of approvals that are still needed."""
        return max(0, self.quorum - self.approvals) if self.state == "open" else 0

    @property
    def people(self) -> tuple[str, ...]:
        """The people who may decide it now; empty means anyone."""
        return (*self.approvers, *self.escalate_to) if self.approvers and self.escalated_at else self.approvers


@dataclass(frozen=True, slots=True)
class Vote:
    """One person's decision on an approval."""

    approval_id: str
    person: str
    verdict: VoteVerdict
    how: str
    comment: str | None
    data: Any
    at: datetime
    n: int = 1
    """The number of the vote on its approval. The last one of each person counts."""


@dataclass(frozen=True, slots=True)
class CastVote(Vote):
    """A vote in the history of a job, with the name of its approval."""

    approval: str = ""


@dataclass(frozen=True, slots=True)
class Ballot:
    """A decision on an approval that is about to be recorded. ``token_hash`` is set if the caller decides with a
    token."""

    verdict: VoteVerdict
    person: str | None
    how: str
    comment: str | None = None
    data: Any = None
    token_hash: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a ballot. If it is not refused and the state is still open, more people have to agree."""

    approval_id: str
    state: ApprovalState | None
    refused: bool
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalFilter:
    """Which approvals to list: oldest first, or newest first with ``newest``. ``after`` is the id of the last approval
    of the previous page; ``approver`` leaves out approvals that this person may not decide."""

    tenant: str
    state: ApprovalState | None = "open"
    name: str | None = None
    job_id: str | None = None
    approver: str | None = None
    after: str | None = None
    limit: int = 50
    newest: bool = False


@dataclass(frozen=True, slots=True)
class Token:
    """The columns of a token that a decision needs."""

    person: str | None
    expires_at: datetime | None
    used_at: datetime | None


def refusal(
    approval: Approval,
    ballot: Ballot,
    person: str | None,
    token: Token | None,
    votes: Sequence[Vote],
    waits: bool,
    now: datetime,
) -> str | None:
    """Why this ballot is refused, or None. ``waits``: the job is waiting for this approval."""
    rules: Sequence[tuple[str, Callable[[], object]]] = (
        ("already_decided", lambda: approval.state != "open"),
        ("withdrawn", lambda: not waits),
        (
            "approval_expired",
            lambda: approval.on_expire != "remind" and approval.expires_at is not None and approval.expires_at <= now,
        ),
        ("token_required", lambda: approval.token_only and ballot.token_hash is None),
        ("token_unknown", lambda: ballot.token_hash is not None and token is None),
        ("token_used", lambda: token is not None and token.used_at is not None),
        ("token_expired", lambda: token is not None and token.expires_at is not None and token.expires_at <= now),
        ("person_required", lambda: not person or person[0] <= " " or len(person) > 255),
        ("not_an_approver", lambda: approval.people and person not in approval.people),
        ("requester_may_not_decide", lambda: approval.not_requester and person == approval.requester),
        ("already_voted", lambda: _repeats(approval, ballot, last_votes(votes).get(person or ""))),
        ("form_invalid", lambda: form_refusal(approval, ballot) is not None),
    )
    return next((reason for reason, applies in rules if applies()), None)


def last_votes(votes: Iterable[Vote]) -> dict[str, Vote]:
    """The last vote of each person, which counts."""
    return {vote.person: vote for vote in sorted(votes, key=lambda vote: vote.n)}


def _repeats(approval: Approval, ballot: Ballot, last: Vote | None) -> bool:
    """Whether the person has decided already. Where there is a form, other values are another decision."""
    if last is None or approval.form is None:
        return last is not None
    return (last.verdict, values_text(last.data)) == (ballot.verdict, values_text(ballot.data))


def values_text(data: Any) -> str:
    """The same text for the data of ballots that count together. A form without required fields may be left empty."""
    return canonical({} if data is None else plain(data))


def plain(data: Any) -> Any:
    """The data of a ballot as it is stored: 7.0 becomes 7, so that equal values have the same text."""
    if isinstance(data, dict):
        return {name: plain(item) for name, item in data.items()}
    if isinstance(data, list | tuple):
        return [plain(item) for item in data]
    return int(data) if isinstance(data, float) and data.is_integer() else data


def agreeing(approval: Approval, votes: Sequence[Vote]) -> int:
    """The largest number of people who approve the same values, by their last votes. Without a form there are no
    values."""
    approving = (vote for vote in last_votes(votes).values() if vote.verdict == "approve")
    values = Counter(values_text(vote.data) if approval.form is not None else "" for vote in approving)
    return max(values.values(), default=0)


def proposed(approval: Approval, votes: Sequence[Vote]) -> Vote | None:
    """The vote whose values the next person confirms or contests: the last approval of a form."""
    return next((vote for vote in reversed(votes) if vote.verdict == "approve" and approval.form is not None), None)


def form_refusal(approval: Approval, ballot: Ballot) -> str | None:
    """Why the data of a ballot does not match the form, in words; None if it does."""
    if approval.form is None or ballot.verdict == "deny":
        return None
    data = {} if ballot.data is None else ballot.data  # a form without required fields may be left empty
    problem = (
        "the form is an object" if not isinstance(data, dict) else next(iter(violations(approval.form, data)), None)
    )
    return "the form of this approval has to be filled in" if problem and ballot.data is None else problem


# --- tokens ---


def new_token(approval_id: str) -> str:
    """A new token, ``hfa_<approval>_<secret>``, with 256 random bits."""
    return f"{_PREFIX}_{parse_id(approval_id).replace('-', '')}_{secrets.token_urlsafe(32)}"


def approval_of_token(token: object) -> str | None:
    """The id of the approval that a token decides; None if the text is not a token."""
    parts = token.split("_", 2) if isinstance(token, str) else []
    if len(parts) != 3 or parts[0] != _PREFIX or len(parts[1]) != 32 or not 20 <= len(parts[2]) <= 100:
        return None
    try:
        return parse_id(parts[1])
    except InvalidInput:
        return None


def token_hash(token: str, approval: Approval) -> str:
    """The stored hash of a token. It binds the token to its tenant, its approval and the content of the request."""
    bound = "\n".join((token, approval.tenant, approval.id, approval.content_hash))
    return hashlib.sha256(bound.encode()).hexdigest()


def find_hash(wanted: str, stored: Iterable[str]) -> str | None:
    """The stored hash that equals this one. All are compared, each in constant time."""
    match = None
    for candidate in stored:
        if hmac.compare_digest(candidate.encode(), wanted.encode()):
            match = candidate
    return match


def _check_people(what: str, people: object) -> None:
    if not isinstance(people, tuple) or len(people) > MAX_PEOPLE or len(set(people)) != len(people):
        raise _invalid(f"{what} is a list of at most {MAX_PEOPLE} different people")
    for person in people:
        check_name(person, what, limit=255)


def _invalid(why: str) -> InvalidSetting:
    return InvalidSetting(why, code="invalid_approval")
