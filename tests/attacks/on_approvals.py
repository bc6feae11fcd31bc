"""Attacks on approvals, votes, approval tokens, steps and application events (CX-5, CX-6, CX-7, HF-6).

`:asking` waits for `:approval`, which needs ada and bob, and boss after escalation. ada has approved with the token
`used`; `fresh` is another token. `:asked` continued when `:decided` was approved. `:running` has a finished step (1)
and `:waiting` one that waits for an event (2). `:told` is an application event.
"""

from __future__ import annotations

from functools import partial

from tests.attacks.attack import NOW, both, each, immutable, only_postgres, only_sqlite, update

_UNDECIDED = "illegal transition waiting_for_approval -> queued: its approval has no such decision"
_UNDENIED = "illegal transition waiting_for_approval -> failed: its approval has no such decision"
_DECIDED = immutable("the request and a closed approval never change")
_TIMES = (
    "immutable: the times of an approval cannot differ from the request",
    "its times cannot differ from the request",
)
_UNJUSTIFIED = ("illegal transition of an approval: the votes do not justify it", "the votes do not justify it")
_OPENED = immutable("only the job that waits for it can open an approval")
_VOTER = ("immutable: only approvers can vote, once each", "only approvers can vote, once each, while it is open")
_VOTED = ("immutable: votes are never changed", "vote: rows are never changed (update refused)")
_USED = (
    "immutable: a token can be marked as used once",
    "a token can be marked as used once and never changed otherwise",
)
_FINISHED = ("immutable: a finished step cannot be written again", "has finished and cannot be written again")
_SENT = ("immutable: application events are never changed", "app_event: rows are never changed (update refused)")
_APPROVAL = immutable("only the decision of its approval can finish this step")

_CONTINUE = "state = 'queued', approval_id = null"
_FAIL = f"state = 'failed', approval_id = null, finished_at = {NOW}, error_code = '{{}}', error_message = 'y'"
_NEW_APPROVAL = (
    "insert into approval (id, tenant, job_id, n, name, summary, requester, content_hash, opened_at, state, decided_at)"
)
_WAITS = "state = 'waiting_for_approval', lease = null, settled_by = :lease"
_WAIT = f"update job_state set {_WAITS}, approval_id = {{}} where id = :running"

_state = partial(update, "job_state", "id")
_approval = partial(update, "approval", "id")
_vote = partial(update, "vote", "approval_id")
_step = partial(update, "step", "job_id")
_event = partial(update, "app_event", "id")

# -- leaving an approval without a decision (CX-1, CX-7) --------------------------------------------------------------

UNDECIDED = [
    _state("approve by changing only the state", _CONTINUE, "asking", says=_UNDECIDED),
    _state(
        "approve and keep the approval",
        "state = 'queued'",
        "asking",
        says=(
            "immutable: approval_id must be cleared",
            "approval_id must be cleared when the job leaves waiting_for_approval",
        ),
    ),
    _state("deny by changing only the state", _FAIL.format("denied"), "asking", says=_UNDENIED),
    _state("expire an approval by changing only the state", _FAIL.format("approval_expired"), "asking", says=_UNDENIED),
    _state("claim a deadline that has not passed", _FAIL.format("deadline_passed"), "asking", says=_UNDENIED),
    _state(
        "wait for another approval",
        "approval_id = :decided",
        "asking",
        says=("immutable: a job waits for one approval", "and cannot wait for another one"),
    ),
    both(
        "wait for an approval and continue on another job's decision",
        _WAIT.format(":decided"),
        f"update job_state set {_CONTINUE} where id = :running",
        says=_UNDECIDED,
    ),
    both(
        "wait for an unknown approval and continue",
        _WAIT.format(":unknown"),
        f"update job_state set {_CONTINUE} where id = :running",
        says=_UNDECIDED,
    ),
    both(
        "mark an approval as approved without the votes",
        f"update approval set state = 'approved', decided_at = {NOW} where id = :approval",
        f"update job_state set {_CONTINUE} where id = :asking",
        says=_UNJUSTIFIED,
    ),
    _approval(
        "mark an approval as denied without a vote",
        f"state = 'denied', decided_at = {NOW}",
        "approval",
        says=_UNJUSTIFIED,
    ),
    _approval("expire an approval early", f"state = 'expired', decided_at = {NOW}", "approval", says=_UNJUSTIFIED),
    _approval(
        "withdraw an approval while its job waits",
        f"state = 'withdrawn', decided_at = {NOW}",
        "approval",
        says=_UNJUSTIFIED,
    ),
    _approval("decide without a time", "state = 'approved'", "approval", says=_UNJUSTIFIED),
]

# -- approvals (CX-5) ------------------------------------------------------------------------------------------------

_REQUEST = {
    "tenant": ("'acme'", "'acme'"),
    "job_id": (":queued", ":queued"),
    "n": ("9", "9"),
    "name": ("'x'", "'x'"),
    "summary": ("'Pay 1'", "'Pay 1'"),
    "data": ("'{}'", "'{}'"),
    "form": ("'{}'", "'{}'"),
    "approvers": ("""'["mallory"]'""", "array['mallory']"),
    "quorum": ("1", "1"),
    "requester": ("'mallory'", "'mallory'"),
    "not_requester": ("1", "true"),
    "on_deny": ("'resume'", "'resume'"),
    "on_expire": ("'approve'", "'approve'"),
    "escalate_to": ("""'["mallory"]'""", "array['mallory']"),
    "notify": ("'evil'", "'evil'"),
    "content_hash": ("'x'", "'x'"),
    "opened_at": (NOW, NOW),
}

APPROVALS = [
    *(
        each(
            f"change the {column} of an approval",
            f"update approval set {column} = {sqlite} where id = :approval",
            f"update approval set {column} = {postgres} where id = :approval",
            says=_DECIDED,
        )
        for column, (sqlite, postgres) in _REQUEST.items()
    ),
    _approval("open a decided approval again", "state = 'open', decided_at = null", "decided", says=_DECIDED),
    _approval("change a decision", "state = 'denied'", "decided", says=_DECIDED),
    _approval("change the time of a decision", f"decided_at = {NOW}", "decided", says=_DECIDED),
    _approval("postpone the expiry of an approval", "expires_at = :later", "approval", says=_TIMES),
    _approval("bring the expiry of an approval forward", f"expires_at = {NOW}", "approval", says=_TIMES),
    _approval("escalate an approval early", f"escalated_at = {NOW}, escalate_at = null", "approval", says=_TIMES),
    both(
        "open an approval for a job that does not wait",
        f"{_NEW_APPROVAL} values (:unknown, 'default', :queued, 1, 'x', 'x', 'x', 'x', {NOW}, 'open', null)",
        says=_OPENED,
    ),
    both(
        "open a second approval for a waiting job",
        f"{_NEW_APPROVAL} values (:unknown, 'default', :asking, 1, 'x', 'x', 'x', 'x', {NOW}, 'open', null)",
        says=_OPENED,
    ),
    both(
        "open an approval in another tenant",
        _WAIT.format(":unknown"),
        f"{_NEW_APPROVAL} values (:unknown, 'acme', :running, 1, 'x', 'x', 'x', 'x', {NOW}, 'open', null)",
        says=_OPENED,
    ),
    both(
        "open an approval already approved",
        _WAIT.format(":unknown"),
        f"{_NEW_APPROVAL} values (:unknown, 'default', :running, 1, 'x', 'x', 'x', 'x', {NOW}, 'approved', {NOW})",
        says=_OPENED,
    ),
    only_sqlite(
        "replace an approval",
        "insert or replace into approval select * from approval where id = :approval",
        says=_OPENED[0],
    ),
    only_postgres(
        "upsert an approval",
        "insert into approval select * from approval where id = :approval on conflict (id) do update set quorum = 1",
        says=_DECIDED[1],
    ),
    both(
        "delete an open approval",
        "delete from approval where id = :approval",
        says=("immutable: an approval is never deleted", "approval: rows are never deleted while their job exists"),
    ),
    both(
        "delete all decisions",
        "delete from approval where state <> 'open'",
        says=("immutable: an approval is never deleted", "approval: rows are never deleted while their job exists"),
    ),
    only_postgres(
        "truncate the approvals", "truncate approval", says="approval: rows are never changed (truncate refused)"
    ),
]

# -- votes and tokens (CX-6, CX-7) -------------------------------------------------------------------------------

_VOTE = "insert into vote (approval_id, tenant, person, verdict, how, at)"
_TOKEN = "insert into approval_token (hash, tenant, approval_id, issued_by, issued_at, used_at)"

VOTES = [
    _vote("change the verdict of a vote", "verdict = 'deny'", "approval", says=_VOTED),
    _vote("change the comment of a vote", "comment = 'never'", "decided", says=_VOTED),
    _vote("change the person of a vote", "person = 'bob'", "approval", says=_VOTED),
    both(
        "vote as a person who is not an approver",
        f"{_VOTE} values (:approval, 'default', 'mallory', 'approve', 'sql', {NOW})",
        says=_VOTER,
    ),
    both(
        "vote as an escalation approver before escalation",
        f"{_VOTE} values (:approval, 'default', 'boss', 'approve', 'sql', {NOW})",
        says=_VOTER,
    ),
    both(
        "vote on a decided approval", f"{_VOTE} values (:decided, 'default', 'bob', 'deny', 'sql', {NOW})", says=_VOTER
    ),
    both(
        "vote after the expiry", f"{_VOTE} values (:approval, 'default', 'bob', 'approve', 'sql', :later)", says=_VOTER
    ),
    both(
        "vote on an unknown approval",
        f"{_VOTE} values (:unknown, 'default', 'bob', 'approve', 'sql', {NOW})",
        says=_VOTER,
    ),
    both(
        "vote from another tenant", f"{_VOTE} values (:approval, 'acme', 'bob', 'approve', 'sql', {NOW})", says=_VOTER
    ),
    both(
        "vote twice",
        f"{_VOTE} values (:approval, 'default', 'ada', 'approve', 'sql', {NOW})",
        says=(_VOTER[0], 'duplicate key value violates unique constraint "vote_pkey"'),
    ),
    only_sqlite(
        "replace a vote",
        f"insert or replace into vote (approval_id, tenant, person, verdict, how, at)"
        f" values (:approval, 'default', 'ada', 'deny', 'sql', {NOW})",
        says=_VOTER[0],
    ),
    only_postgres(
        "upsert a vote",
        "insert into vote select * from vote where approval_id = :approval"
        " on conflict (approval_id, person) do update set verdict = 'deny'",
        says=_VOTED[1],
    ),
    both(
        "delete a vote",
        "delete from vote where approval_id = :approval",
        says=("immutable: votes are never deleted", "vote: rows are never deleted while their approval exists"),
    ),
    only_postgres("truncate the votes", "truncate vote", says="vote: rows are never changed (truncate refused)"),
    both("mark a used token as unused", "update approval_token set used_at = null where hash = 'used'", says=_USED),
    both(
        "change the time a token was used", f"update approval_token set used_at = {NOW} where hash = 'used'", says=_USED
    ),
    both(
        "change the person of a token", "update approval_token set person = 'mallory' where hash = 'fresh'", says=_USED
    ),
    both(
        "move a token to another approval",
        f"update approval_token set approval_id = :decided, used_at = {NOW} where hash = 'fresh'",
        says=_USED,
    ),
    both(
        "extend the expiry of a token",
        f"update approval_token set expires_at = :later, used_at = {NOW} where hash = 'fresh'",
        says=_USED,
    ),
    both(
        "issue a token for a decided approval",
        f"{_TOKEN} values ('x', 'default', :decided, 'mallory', {NOW}, null)",
        says=("immutable: a token must be issued unused", "a token must be issued unused and for an open approval"),
    ),
    both(
        "issue a token in another tenant",
        f"{_TOKEN} values ('x', 'acme', :approval, 'mallory', {NOW}, null)",
        says=("immutable: a token must be issued unused", "a token must be issued unused and for an open approval"),
    ),
    only_sqlite(
        "replace a used token",
        f"insert or replace into approval_token (hash, tenant, approval_id, issued_by, issued_at)"
        f" values ('used', 'default', :approval, 'mallory', {NOW})",
        says="already exists: this approval token is already stored",
    ),
    only_postgres(
        "upsert a used token",
        f"{_TOKEN} values ('used', 'default', :approval, 'mallory', {NOW}, null)"
        " on conflict (hash) do update set used_at = null",
        says=_USED[1],
    ),
    both(
        "delete a used token",
        "delete from approval_token where hash = 'used'",
        says=(
            "immutable: a token is never deleted",
            "approval_token: rows are never deleted while their approval exists",
        ),
    ),
    only_postgres("truncate the tokens", "truncate approval_token", says="rows are never changed (truncate refused)"),
]

# -- steps and events (HF-6) -------------------------------------------------------------------------------------

_STEP = "insert into step (job_id, n, tenant, name, kind, value, attempt, started_at, ended_at)"
_FORGED = '{"approval_id": "x", "state": "approved", "votes": []}'

STEPS = [
    _step("change the value of a finished step", "value = '2'", "running", says=_FINISHED),
    both(
        "encrypt the plain value of a finished step",
        """update step set value = '{"$holdfast":{"key":"k2","sealed":"BBBB"}}' where job_id = :running""",
        says=_FINISHED,
    ),
    _step("reopen a finished step", "ended_at = null", "running", says=_FINISHED),
    _step("rename a finished step", "name = 'x'", "running", says=_FINISHED),
    _step("rename a wait", "name = 'refunded'", "waiting", says=_FINISHED),
    _step("turn a wait into a step", "kind = 'step', wanted = null", "waiting", says=_FINISHED),
    _step("renumber a wait", "n = 7", "waiting", says=_FINISHED),
    _step("move a wait to another job", "job_id = :queued", "waiting", says=_FINISHED),
    _step("move a wait to another tenant", "tenant = 'acme'", "waiting", says=_FINISHED),
    _step(
        "forge the decision that the handler reads", f"value = '{_FORGED}', ended_at = {NOW}", "asking", says=_APPROVAL
    ),
    both(
        "insert a decided approval step",
        f"{_STEP} values (:running, 5, 'default', 'release', 'approval', '{_FORGED}', 1, {NOW}, {NOW})",
        says=_APPROVAL,
    ),
    only_sqlite(
        "replace a finished step",
        f"insert or replace {_STEP[7:]} values (:running, 1, 'default', 'charge', 'step', '2', 1, {NOW}, {NOW})",
        says=_FINISHED[0],
    ),
    only_sqlite(
        "replace a wait by another",
        f"insert or replace {_STEP[7:]} values (:waiting, 2, 'default', 'refunded', 'event', null, 1, {NOW}, null)",
        says=_FINISHED[0],
    ),
    only_sqlite(
        "insert a step of an unknown job",
        f"{_STEP} values (:unknown, 1, 'default', 'x', 'step', null, 1, {NOW}, {NOW})",
        says="immutable: a step must belong to an existing job",
    ),
    only_postgres(
        "upsert a finished step",
        f"{_STEP} values (:running, 1, 'default', 'charge', 'step', '2', 1, {NOW}, {NOW})"
        " on conflict (job_id, n) do update set value = excluded.value",
        says=_FINISHED[1],
    ),
    both(
        "delete a step of a running job",
        "delete from step where job_id = :running",
        says=immutable("only the steps of dead letters can be deleted"),
    ),
    only_postgres("truncate the steps", "truncate step", says="step: rows are never changed (truncate refused)"),
    _event("change the data of an application event", """data = '{"sum": 1}'""", "told", says=_SENT),
    _event("change the sender of an application event", "sent_by = 'mallory'", "told", says=_SENT),
    _event("move an application event to another tenant", "tenant = 'acme'", "told", says=_SENT),
    only_sqlite(
        "replace an application event",
        "insert or replace into app_event (id, tenant, name, data, sent_by, sent_at)"
        " select id, tenant, name, '{}', 'm', sent_at from app_event",
        says="already exists: this event was sent before",
    ),
    only_sqlite(
        "replace an application event by its key",
        f"insert or replace into app_event (tenant, name, data, key, sent_by, sent_at)"
        f" values ('default', 'paid', '{{}}', 'k', 'mallory', {NOW})",
        says="already exists: this event was sent before",
    ),
    only_postgres(
        "upsert an application event",
        "insert into app_event select * from app_event on conflict (id) do update set data = '{}'",
        says=_SENT[1],
    ),
]
