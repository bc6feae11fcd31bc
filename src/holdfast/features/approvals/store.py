"""How both databases store approvals: opened when a job requests one, closed by votes or by time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextvars import ContextVar
from functools import cached_property
from typing import Any

from holdfast.engine.ids import parse_id
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.payload import canonical
from holdfast.errors import InvalidInput
from holdfast.features.approvals.model import (
    Answer,
    Approval,
    ApprovalFilter,
    Ballot,
    Token,
    Vote,
    agreeing,
    plain,
    refusal,
)
from holdfast.features.payloads.model import HIDDEN
from holdfast.stores.codecs import Record, from_micros, in_micros, micros
from holdfast.stores.flow import Row, Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within
from holdfast.stores.sqlite.admission import maintenance_flow
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, begin_write, end_write
from holdfast.stores.sqlite.codec import SqliteCodec
from holdfast.stores.sqlite.steps import APPROVAL_NOTICE

MAX_PAGE = 1000


may_decide: ContextVar[bool] = ContextVar("holdfast_may_decide", default=True)
"""Whether the reader may decide approvals. Others do not see what approvals of restricted kinds are about."""
_SHOWN = Record.columns(Approval, "g.", skip=("approvals",))
_ABOUT = {"g.summary": f"'{HIDDEN}'", "g.content_hash": "''", "g.data": "null", "g.form": "null"}
_SAID = {"v.data": "null"}


def _visible(columns: str, hidden: dict[str, str], job: str) -> str:
    """The columns as the reader may see them; ``job`` is the expression for the id of the job."""
    if may_decide.get():
        return columns
    restricted = (
        "exists (select 1 from {job} x join {payload_rule} u on u.classification = 'restricted'"
        f" and u.tenant in (x.tenant, '*') and u.kind in (x.kind, '*') where x.id = {job})"
    )
    for column, instead in hidden.items():
        shown = f"case when {column} is not null and {restricted} then {instead} else {column} end"
        columns = re.sub(rf"{re.escape(column)}\b", lambda _, shown=shown: shown, columns, count=1)  # type: ignore[misc]
    return columns


class ApprovalReads(Reader):
    @cached_property
    def _agreeing(self) -> str:
        """As ``agreeing`` counts. The votes are read by key for each approval of the page: an approval has few."""
        values = self.dialect.comparable("coalesce(v.data, '{}')")
        return (
            "coalesce((select max(same.votes) from (select count(*) as votes,"
            f" case when g.form is not null then {values} end as agreed from {{vote}} v"
            " where v.approval_id = g.id and v.verdict = 'approve'"
            # A scalar subquery: a `not exists` would be planned as a join of all votes with all votes.
            " and (select 1 from {vote} w where w.approval_id = v.approval_id and w.person = v.person and w.n > v.n"
            " limit 1) is null group by agreed) same), 0)"
        )

    @flow(writes=False)
    def get(self, approval_id: str, tenant: str) -> Steps[Approval | None]:
        columns = f"{_visible(_SHOWN, _ABOUT, 'g.job_id')}, {self._agreeing}"
        text = f"select {columns} from {{approval}} g where g.id = :id and {within(tenant, 'g.tenant')}"
        return (yield from self._record(Approval, tenant, text, id=parse_id(approval_id)))

    @flow(writes=False)
    def votes(self, approval_id: str, tenant: str) -> Steps[list[Vote]]:
        visible = _visible(
            Record.columns(Vote, "v.", skip=("approval_id",)),
            _SAID,
            "(select a.job_id from {approval} a where a.id = v.approval_id)",
        )
        columns = self.dialect.bounded(visible, "v.n", "v.data")
        text = (
            f"select v.approval_id, {columns} from {{vote}} v"
            f" where v.approval_id = :id and {within(tenant, 'v.tenant')} order by v.n"
        )
        return (yield from self._records(Vote, tenant, text, id=parse_id(approval_id)))

    @flow(writes=False)
    def list(self, wanted: ApprovalFilter) -> Steps[list[Approval]]:
        conditions, params = [within(wanted.tenant, "p.tenant")], dict[str, Any]()
        if wanted.state is not None:
            # A literal, so that the prepared statement can use the partial index of open approvals.
            conditions.append("p.state = 'open'" if wanted.state == "open" else "p.state = :state")
            params["state"] = wanted.state
        for name, value in (("name", wanted.name), ("job_id", wanted.job_id and parse_id(wanted.job_id))):
            if value is not None:
                conditions.append(f"p.{name} = :{name}")
                params[name] = value
        if wanted.approver is not None:
            named = self.dialect.has("p.approvers", ":approver")
            escalated = self.dialect.has("p.escalate_to", ":approver")
            conditions.append(f"(p.approvers = :nobody or {named} or (p.escalated_at is not null and {escalated}))")
            params |= {"approver": wanted.approver, "nobody": self.dialect.nobody}
        if wanted.after is not None:
            conditions.append("p.id < :after" if wanted.newest else "p.id > :after")
            params["after"] = parse_id(wanted.after)
        order = f"id{' desc' if wanted.newest else ''}"
        visible = _visible(_SHOWN, _ABOUT, "g.job_id")
        columns = self.dialect.bounded(visible, f"g.{order}", "g.data", "g.form")
        text = (
            f"select {columns}, {self._agreeing} from (select p.* from {{approval}} p where {' and '.join(conditions)}"
            f" order by p.{order} limit {max(1, min(wanted.limit, MAX_PAGE)):d}) g order by g.{order}"
        )
        return (yield from self._records(Approval, wanted.tenant, text, **params))


class PostgresApprovals(Calls, ApprovalReads):
    def _decide_again(self, approval_id: str, ballot: Ballot, tenant: str) -> Steps[Answer]:
        """Repeat a decision whose response was lost. It may be refused because the first try was committed: then our
        vote is recorded."""
        answer = yield from self.decide(approval_id, ballot, tenant).start()
        if answer.reason not in ("already_voted", "already_decided", "token_used"):
            return answer
        data = None if ballot.data is None else json.dumps(ballot.data)
        vote = (parse_id(approval_id), ballot.verdict, ballot.person, ballot.how, ballot.token_hash, data, tenant)
        recorded = yield self._call("has_decided", "%s, %s, %s, %s, %s, %s::json, %s", *vote)
        return Answer(answer.approval_id, answer.state, False, None) if recorded[0][0] else answer

    @flow(single=True, repeat=_decide_again)
    def decide(self, approval_id: str, ballot: Ballot, tenant: str) -> Steps[Answer]:
        rows = yield self._call(
            "decide_approval",
            "%s, %s, %s, %s, %s::json, %s, %s, %s",
            parse_id(approval_id),
            ballot.verdict,
            ballot.person,
            ballot.comment,
            None if ballot.data is None else json.dumps(ballot.data),
            ballot.how,
            ballot.token_hash,
            tenant,
        )
        decided_id, state, refused, reason = rows[0]
        return Answer(str(decided_id), state, refused, reason)

    @flow(single=True)
    def save_token(
        self, approval_id: str, token_hash: str, person: str | None, ttl: float | None, actor: str, tenant: str
    ) -> Steps[str | None]:
        """None if the token was stored, or the reason for a refusal."""
        rows = yield self._call(
            "keep_approval_token",
            "%s, %s, %s, make_interval(secs => %s::float8), %s, %s",
            parse_id(approval_id),
            token_hash,
            person,
            ttl,
            actor,
            tenant,
        )
        return rows[0][0]  # type: ignore[no-any-return]

    @flow(single=True)
    def token_hashes(self, approval_id: str, tenant: str) -> Steps[list[str]]:
        rows = yield self._call("approval_token_hashes", "%s, %s", parse_id(approval_id), tenant)
        return [row[0] for row in rows]

    @flow(single=True)
    def token(self, token_hash: str, tenant: str) -> Steps[Token | None]:
        """The person, the expiry and the time of use of a token."""
        rows = yield self._call("approval_token_of", "%s, %s", token_hash, tenant)
        return Token(*rows[0]) if rows else None

    @flow(single=True)
    def attend(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        return (yield from self._number("attend_approvals", "%s, %s", want, tenant))


_COLUMNS = Record.columns(Approval, skip=("approvals",))
_GET = f"SELECT {_COLUMNS} FROM holdfast_approval WHERE id = :approval AND (:any OR tenant = :tenant)"
_WAITS = "SELECT 1 FROM holdfast_job_state WHERE id = ? AND state = 'waiting_for_approval' AND approval_id = ?"
_TOKEN_OF = (
    "SELECT person, expires_at, used_at FROM holdfast_approval_token WHERE hash = :hash AND (:any OR tenant = :tenant)"
)
_TOKEN = "SELECT person, expires_at, used_at FROM holdfast_approval_token WHERE hash = ? AND approval_id = ?"
_VOTES = f"SELECT {Record.columns(Vote)} FROM holdfast_vote WHERE approval_id = ? ORDER BY n"
_VOTE = (
    "INSERT INTO holdfast_vote (approval_id, tenant, person, verdict, how, comment, data, at, n)"
    " VALUES (:approval, :tenant, :person, :verdict, :how, :comment, :data, :now, :n)"
)
_CLOSE = "UPDATE holdfast_approval SET state = ?, decided_at = ? WHERE id = ?"
_END_STEP = "UPDATE holdfast_step SET value = ?, ended_at = ? WHERE job_id = ? AND n = ? AND ended_at IS NULL"
_RESUME = "UPDATE holdfast_job_state SET state = 'queued', approval_id = NULL, note = :note WHERE id = :job"
_FAIL = (
    "UPDATE holdfast_job_state SET state = 'failed', approval_id = NULL, finished_at = :now, error_code = :code,"
    " error_message = :message, note = :note WHERE id = :job"
)
_SAVE_TOKEN = (
    "INSERT INTO holdfast_approval_token (hash, tenant, approval_id, person, issued_by, issued_at, expires_at)"
    " VALUES (:hash, :tenant, :approval, :person, :actor, :now, :now + :ttl)"
)
_NEXT = (
    "min(coalesce(expires_at, 9223372036854775807), coalesce(remind_at, 9223372036854775807),"
    " coalesce(escalate_at, 9223372036854775807))"
)
_DUE = (
    f"SELECT {_COLUMNS} FROM holdfast_approval WHERE state = 'open' AND {_NEXT} <= :now AND (:any OR tenant = :tenant)"
    f" ORDER BY {_NEXT} LIMIT :want"
)
_IS_DUE = f"SELECT 1 FROM holdfast_approval WHERE state = 'open' AND {_NEXT} <= ? LIMIT 1"
_ESCALATE = "UPDATE holdfast_approval SET escalated_at = ?, escalate_at = NULL WHERE id = ?"
_REMIND = "UPDATE holdfast_approval SET reminders = reminders + 1, remind_at = :now + remind_every WHERE id = :approval"
_RENEW = (
    "UPDATE holdfast_approval SET reminders = reminders + 1, remind_at = :now + remind_every, expires_at = :now +"
    " expires_in WHERE id = :approval"
)


def _anything_due(_: object, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int | None]:
    present = yield Statement("SELECT now FROM holdfast_present")
    rows = yield Statement(_IS_DUE, (present[0][0],))
    return None if rows else 0


class SqliteApprovals(SqlitePart, ApprovalReads):
    @cached_property
    def _read_approval(self) -> Callable[[Row], Approval]:
        return Record.decoder(Approval, SqliteCodec(), skip=("approvals",))

    @flow(notifies=True)
    def decide(self, approval_id: str, ballot: Ballot, tenant: str) -> Steps[Answer]:
        if ballot.verdict not in ("approve", "deny"):
            raise InvalidInput("a verdict must be approve or deny")
        approval = yield from self._find(approval_id, tenant)
        if approval is None:
            return Answer(parse_id(approval_id), None, True, "not_found")
        token = yield from _token(ballot, approval)
        person = token.person if token is not None and token.person is not None else ballot.person
        now = yield from begin_write(person)
        waits = yield Statement(_WAITS, (approval.job_id, approval.id))
        votes = [_read_vote(row) for row in (yield Statement(_VOTES, (approval.id,)))]
        reason = refusal(approval, ballot, person, token, votes, bool(waits), from_micros(now))
        if reason is not None:
            yield from end_write()
            return Answer(approval.id, approval.state, True, reason)
        if ballot.token_hash is not None:
            yield Statement("UPDATE holdfast_approval_token SET used_at = ? WHERE hash = ?", (now, ballot.token_hash))
        data = plain(ballot.data)
        vote = {
            "approval": approval.id,
            "tenant": approval.tenant,
            "person": person,
            "verdict": ballot.verdict,
            "how": ballot.how,
            "comment": ballot.comment,
            "data": None if data is None else canonical(data),
            "now": now,
            "n": 1 + len(votes),
        }
        yield Statement(_VOTE, vote)
        votes = [_read_vote(row) for row in (yield Statement(_VOTES, (approval.id,)))]
        by = f" by {person}" + (f": {ballot.comment}" if ballot.comment is not None else "")
        state = approval.state
        if ballot.verdict == "deny":
            state = yield from _close(approval, "denied", f"denied{by}", now)
        elif agreeing(approval, votes) >= approval.quorum:
            state = yield from _close(approval, "approved", f"approved{by}", now)
        yield from end_write()
        return Answer(approval.id, state, False, None)

    @flow()
    def save_token(
        self, approval_id: str, token_hash: str, person: str | None, ttl: float | None, actor: str, tenant: str
    ) -> Steps[str | None]:
        approval = yield from self._find(approval_id, tenant)
        if approval is None:
            return "not_found"
        if approval.state != "open":
            return "already_decided"
        if person is not None and approval.approvers and person not in (*approval.approvers, *approval.escalate_to):
            return "not_an_approver"
        now = yield from begin_write(actor)
        token = {
            "hash": token_hash,
            "tenant": approval.tenant,
            "approval": approval.id,
            "person": person,
            "actor": actor,
            "now": now,
            "ttl": None if ttl is None else in_micros(ttl),
        }
        yield Statement(_SAVE_TOKEN, token)
        yield from end_write()
        return None

    @flow(writes=False)
    def token_hashes(self, approval_id: str, tenant: str) -> Steps[list[str]]:
        params = {"approval": parse_id(approval_id), "any": any_tenant(tenant), "tenant": tenant}
        rows = yield Statement(
            "SELECT hash FROM holdfast_approval_token WHERE approval_id = :approval AND (:any OR tenant = :tenant)",
            params,
        )
        return [row[0] for row in rows]

    @flow(writes=False)
    def token(self, token_hash: str, tenant: str) -> Steps[Token | None]:
        rows = yield Statement(_TOKEN_OF, {"hash": token_hash, "any": any_tenant(tenant), "tenant": tenant})
        return _read_token(rows[0]) if rows else None

    @maintenance_flow(0, _anything_due)
    def attend(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        now = yield from begin_write("maintenance")
        rows = yield Statement(_DUE, {"now": now, "any": any_tenant(tenant), "tenant": tenant, "want": want})
        for approval in map(self._read_approval, rows):
            yield from _attend(approval, now)
        yield from end_write()
        return len(rows)

    def _find(self, approval_id: str, tenant: str) -> Steps[Approval | None]:
        scope = {"approval": parse_id(approval_id), "any": any_tenant(tenant), "tenant": tenant}
        rows = yield Statement(_GET, scope)
        return self._read_approval(rows[0]) if rows else None


def _token(ballot: Ballot, approval: Approval) -> Steps[Token | None]:
    if ballot.token_hash is None:
        return None
    rows = yield Statement(_TOKEN, (ballot.token_hash, approval.id))
    return _read_token(rows[0]) if rows else None


_read_vote = Record.decoder(Vote, SqliteCodec())


def _read_token(row: Row) -> Token:
    person, expires_at, used_at = row
    return Token(person, *(None if at is None else from_micros(at) for at in (expires_at, used_at)))


def _attend(approval: Approval, now: int) -> Steps[None]:
    """Escalate, remind or expire an approval, as due."""
    waits = yield Statement(_WAITS, (approval.job_id, approval.id))
    if not waits:
        yield Statement(_CLOSE, ("withdrawn", now, approval.id))
        return
    present = from_micros(now)
    if approval.escalate_at is not None and approval.escalate_at <= present:
        yield Statement(_ESCALATE, (now, approval.id))
        yield Statement(APPROVAL_NOTICE, {"approval": approval.id, "what": "escalated", "now": now})
    expired = approval.expires_at is not None and approval.expires_at <= present
    if expired and approval.on_expire != "remind":
        yield from _close(
            approval, "approved" if approval.on_expire == "approve" else "expired", "no decision in time", now
        )
    elif expired or (approval.remind_at is not None and approval.remind_at <= present):
        yield Statement(_RENEW if expired else _REMIND, {"approval": approval.id, "now": now})
        yield Statement(APPROVAL_NOTICE, {"approval": approval.id, "what": "reminder", "now": now})


def _close(approval: Approval, state: Any, reason: str, now: int) -> Steps[Any]:
    """Close an approval. The job continues with the decision, or fails with the reason."""
    yield Statement(_CLOSE, (state, now, approval.id))
    votes = [_read_vote(row) for row in (yield Statement(_VOTES, (approval.id,)))]
    names = ("person", "verdict", "how", "comment", "data")
    decided_votes = [
        {name: getattr(vote, name) for name in names} | {"at": _written(micros(vote.at))} for vote in votes
    ]
    decision = {
        "approval_id": approval.id,
        "state": state,
        "content_hash": approval.content_hash,
        "decided_at": _written(now),
        "votes": decided_votes,
    }
    yield Statement(_END_STEP, (json.dumps(decision), now, approval.job_id, approval.n))
    note = {"approval": approval.name, "verdict": state}
    if state == "approved" or approval.on_deny == "resume":
        yield Statement(_RESUME, {"job": approval.job_id, "note": json.dumps(note | {"reason": reason})})
    else:
        code = "approval_expired" if state == "expired" else "denied"
        failure = {"job": approval.job_id, "now": now, "code": code, "message": reason, "note": json.dumps(note)}
        yield Statement(_FAIL, failure)
    return state


def _written(at: int) -> str:
    return from_micros(at).isoformat(timespec="microseconds").replace("+00:00", "Z")
