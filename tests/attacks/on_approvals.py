"""Attacks on approvals, votes, approval tokens, steps and application events (CX-5, CX-6, CX-7, HF-6).

`:asking` waits for `:approval`, which needs ada and bob, and boss after escalation. ada has approved with the token
`used`; `fresh` is another token. `:asked` continued when `:decided` was approved. `:running` has a finished step (1)
and `:waiting` one that waits for an event (2). `:sent` is an application event.
"""

from __future__ import annotations

from functools import partial

from tests.attacks.attack import NOW, Table, immutable, same, update

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
_VOTED = immutable("vote: rows are never changed")
_USED = (
    "immutable: a token can be marked as used once",
    "a token can be marked as used once and never changed otherwise",
)
_KEPT = immutable("approval: rows are never deleted while their job exists")
_ISSUED = ("immutable: a token must be issued unused", "a token must be issued unused and for an open approval")
_FINISHED = ("immutable: a finished step cannot be written again", "has finished and cannot be written again")
_SENT = ("immutable: application events are never changed", "app_event: rows are never changed (update refused)")
_BY_HAND = (
    "immutable: steps are written only by operations, which check the lease",
    "written only by the functions of this schema",
)
_APPROVAL = immutable("only the decision of its approval can finish this step")

_CONTINUE = "state = 'queued', approval_id = null"
_FAIL = f"state = 'failed', approval_id = null, finished_at = {NOW}, error_code = '{{}}', error_message = 'y'"
_NEW_APPROVAL = (
    "insert into approval (id, tenant, job_id, n, name, summary, requester, content_hash, opened_at, state, decided_at)"
)
_WAITS = "state = 'waiting_for_approval', lease = null, settled_by = :lease"
_WAIT = f"update job_state set {_WAITS}, approval_id = {{}} where id = :running"
_WAIT_FOR_UNKNOWN = _WAIT.format(":unknown")
_CONTINUE_RUNNING = f"update job_state set {_CONTINUE} where id = :running"

_state = partial(update, "job_state", "id")
_approval = partial(update, "approval", "id")
_vote = partial(update, "vote", "approval_id")
_step = partial(update, "step", "job_id")
_event = partial(update, "app_event", "id")

# -- leaving an approval without a decision (CX-1, CX-7) --------------------------------------------------------------

UNDECIDED: Table = {
    "approve by changing only the state": (_state(_CONTINUE, "asking"), _UNDECIDED),
    "approve and keep the approval": (
        _state("state = 'queued'", "asking"),
        (
            "immutable: approval_id must be cleared",
            "approval_id must be cleared when the job leaves waiting_for_approval",
        ),
    ),
    "deny by changing only the state": (_state(_FAIL.format("denied"), "asking"), _UNDENIED),
    "expire an approval by changing only the state": (_state(_FAIL.format("approval_expired"), "asking"), _UNDENIED),
    "claim a deadline that has not passed": (_state(_FAIL.format("deadline_passed"), "asking"), _UNDENIED),
    "wait for another approval": (
        _state("approval_id = :decided", "asking"),
        ("immutable: a job waits for one approval", "and cannot wait for another one"),
    ),
    "wait for an approval and continue on another job's decision": (
        f"{_WAIT.format(':decided')}; {_CONTINUE_RUNNING}",
        _UNDECIDED,
    ),
    "wait for an unknown approval and continue": (f"{_WAIT_FOR_UNKNOWN}; {_CONTINUE_RUNNING}", _UNDECIDED),
    "mark an approval as approved without the votes": (
        f"update approval set state = 'approved', decided_at = {NOW} where id = :approval"
        f"; update job_state set {_CONTINUE} where id = :asking",
        _UNJUSTIFIED,
    ),
    "mark an approval as denied without a vote": (
        _approval(f"state = 'denied', decided_at = {NOW}", "approval"),
        _UNJUSTIFIED,
    ),
    "expire an approval early": (_approval(f"state = 'expired', decided_at = {NOW}", "approval"), _UNJUSTIFIED),
    "withdraw an approval while its job waits": (
        _approval(f"state = 'withdrawn', decided_at = {NOW}", "approval"),
        _UNJUSTIFIED,
    ),
    "decide without a time": (_approval("state = 'approved'", "approval"), _UNJUSTIFIED),
}

# -- approvals (CX-5) ------------------------------------------------------------------------------------------------

_REQUEST = {
    **same(tenant="'acme'", job_id=":queued", n="9", name="'x'", summary="'Pay 1'", data="'{}'", form="'{}'"),
    "approvers": ("""'["mallory"]'""", "array['mallory']"),
    **same(quorum="1", requester="'mallory'"),
    "not_requester": ("1", "true"),
    **same(on_deny="'resume'", on_expire="'approve'"),
    "escalate_to": ("""'["mallory"]'""", "array['mallory']"),
    **same(notify="'evil'", content_hash="'x'", opened_at=NOW),
}


_APPROVED = f"'approved', {NOW}"


def _open(job: str, tenant: str = "default", state: str = "'open', null") -> str:
    return f"{_NEW_APPROVAL} values (:unknown, '{tenant}', :{job}, 1, 'x', 'x', 'x', 'x', {NOW}, {state})"


APPROVALS: Table = {
    **{
        f"change the {column} of an approval": (
            (
                f"update approval set {column} = {sqlite} where id = :approval",
                f"update approval set {column} = {postgres} where id = :approval",
            ),
            _DECIDED,
        )
        for column, (sqlite, postgres) in _REQUEST.items()
    },
    "open a decided approval again": (_approval("state = 'open', decided_at = null", "decided"), _DECIDED),
    "change a decision": (_approval("state = 'denied'", "decided"), _DECIDED),
    "change the time of a decision": (_approval(f"decided_at = {NOW}", "decided"), _DECIDED),
    "postpone the expiry of an approval": (_approval("expires_at = :later", "approval"), _TIMES),
    "bring the expiry of an approval forward": (_approval(f"expires_at = {NOW}", "approval"), _TIMES),
    "escalate an approval early": (_approval(f"escalated_at = {NOW}, escalate_at = null", "approval"), _TIMES),
    "open an approval for a job that does not wait": (_open("queued"), _OPENED),
    "open a second approval for a waiting job": (_open("asking"), _OPENED),
    "open an approval in another tenant": (f"{_WAIT_FOR_UNKNOWN}; {_open('running', 'acme')}", _OPENED),
    "open an approval already approved": (f"{_WAIT_FOR_UNKNOWN}; {_open('running', state=_APPROVED)}", _OPENED),
    "replace an approval": (
        "insert or replace into approval select * from approval where id = :approval",
        (_OPENED[0], None),
    ),
    "upsert an approval": (
        "insert into approval select * from approval where id = :approval on conflict (id) do update set quorum = 1",
        (None, _DECIDED[1]),
    ),
    "delete an open approval": ("delete from approval where id = :approval", _KEPT),
    "delete all decisions": ("delete from approval where state <> 'open'", _KEPT),
    "truncate the approvals": ("truncate approval", (None, "approval: rows are never changed (truncate refused)")),
}

# -- votes and tokens (CX-6, CX-7) -------------------------------------------------------------------------------

_VOTE = "insert into vote (approval_id, tenant, person, verdict, how, at)"
_TOKEN = "insert into approval_token (hash, tenant, approval_id, issued_by, issued_at, used_at)"


def _cast(approval: str, person: str, verdict: str = "approve", tenant: str = "default", at: str = NOW) -> str:
    return f"{_VOTE} values (:{approval}, '{tenant}', '{person}', '{verdict}', 'sql', {at})"


VOTES: Table = {
    "change the verdict of a vote": (_vote("verdict = 'deny'", "approval"), _VOTED),
    "change the comment of a vote": (_vote("comment = 'never'", "decided"), _VOTED),
    "change the person of a vote": (_vote("person = 'bob'", "approval"), _VOTED),
    "vote as a person who is not an approver": (_cast("approval", "mallory"), _VOTER),
    "vote as an escalation approver before escalation": (_cast("approval", "boss"), _VOTER),
    "vote on a decided approval": (_cast("decided", "bob", "deny"), _VOTER),
    "vote after the expiry": (_cast("approval", "bob", at=":later"), _VOTER),
    "vote on an unknown approval": (_cast("unknown", "bob"), _VOTER),
    "vote from another tenant": (_cast("approval", "bob", tenant="acme"), _VOTER),
    "vote twice": (_cast("approval", "ada"), _VOTER),
    "vote again where there is no form": (
        _cast("approval", "ada").replace("at)", "at, n)", 1).removesuffix(")") + ", 2)",
        _VOTER,
    ),
    "replace a vote": (_cast("approval", "ada", "deny").replace("insert", "insert or replace"), (_VOTER[0], None)),
    "upsert a vote": (
        "insert into vote select * from vote where approval_id = :approval"
        " on conflict (approval_id, person, n) do update set verdict = 'deny'",
        (None, _VOTED[1]),
    ),
    "delete a vote": (
        "delete from vote where approval_id = :approval",
        immutable("vote: rows are never deleted while their approval exists"),
    ),
    "truncate the votes": ("truncate vote", (None, "vote: rows are never changed (truncate refused)")),
    "mark a used token as unused": ("update approval_token set used_at = null where hash = 'used'", _USED),
    "change the time a token was used": (f"update approval_token set used_at = {NOW} where hash = 'used'", _USED),
    "change the person of a token": ("update approval_token set person = 'mallory' where hash = 'fresh'", _USED),
    "move a token to another approval": (
        f"update approval_token set approval_id = :decided, used_at = {NOW} where hash = 'fresh'",
        _USED,
    ),
    "extend the expiry of a token": (
        f"update approval_token set expires_at = :later, used_at = {NOW} where hash = 'fresh'",
        _USED,
    ),
    "issue a token for a decided approval": (
        f"{_TOKEN} values ('x', 'default', :decided, 'mallory', {NOW}, null)",
        _ISSUED,
    ),
    "issue a token in another tenant": (f"{_TOKEN} values ('x', 'acme', :approval, 'mallory', {NOW}, null)", _ISSUED),
    "replace a used token": (
        f"insert or replace into approval_token (hash, tenant, approval_id, issued_by, issued_at)"
        f" values ('used', 'default', :approval, 'mallory', {NOW})",
        ("already exists: this approval token is already stored", None),
    ),
    "upsert a used token": (
        f"{_TOKEN} values ('used', 'default', :approval, 'mallory', {NOW}, null)"
        " on conflict (hash) do update set used_at = null",
        (None, _USED[1]),
    ),
    "delete a used token": (
        "delete from approval_token where hash = 'used'",
        immutable("approval_token: rows are never deleted while their approval exists"),
    ),
    "truncate the tokens": ("truncate approval_token", (None, "rows are never changed (truncate refused)")),
}

# -- steps and events (HF-6) -------------------------------------------------------------------------------------

_STEP = "insert into step (job_id, n, tenant, name, kind, value, attempt, started_at, ended_at)"
_FORGED = '{"approval_id": "x", "state": "approved", "votes": []}'

STEPS: Table = {
    "change the value of a finished step": (_step("value = '2'", "running"), _FINISHED),
    "encrypt the plain value of a finished step": (
        """update step set value = '{"$holdfast":{"key":"k2","sealed":"BBBB"}}' where job_id = :running""",
        _FINISHED,
    ),
    "reopen a finished step": (_step("ended_at = null", "running"), _FINISHED),
    "rename a finished step": (_step("name = 'x'", "running"), _FINISHED),
    "rename a wait": (_step("name = 'refunded'", "waiting"), _FINISHED),
    "turn a wait into a step": (_step("kind = 'step', wanted = null", "waiting"), _FINISHED),
    "renumber a wait": (_step("n = 7", "waiting"), _FINISHED),
    "move a wait to another job": (_step("job_id = :queued", "waiting"), _FINISHED),
    "move a wait to another tenant": (_step("tenant = 'acme'", "waiting"), _FINISHED),
    "forge the decision that the handler reads": (_step(f"value = '{_FORGED}', ended_at = {NOW}", "asking"), _APPROVAL),
    "insert a decided approval step": (
        f"{_STEP} values (:running, 5, 'default', 'release', 'approval', '{_FORGED}', 1, {NOW}, {NOW})",
        _APPROVAL,
    ),
    "replace a finished step": (
        f"insert or replace {_STEP[7:]} values (:running, 1, 'default', 'charge', 'step', '2', 1, {NOW}, {NOW})",
        (_FINISHED[0], None),
    ),
    "replace a wait by another": (
        f"insert or replace {_STEP[7:]} values (:waiting, 2, 'default', 'refunded', 'event', null, 1, {NOW}, null)",
        (_FINISHED[0], None),
    ),
    "insert a step of an unknown job": (
        f"{_STEP} values (:unknown, 1, 'default', 'x', 'step', null, 1, {NOW}, {NOW})",
        ("immutable: a step must belong to an existing job", None),
    ),
    "upsert a finished step": (
        f"{_STEP} values (:running, 1, 'default', 'charge', 'step', '2', 1, {NOW}, {NOW})"
        " on conflict (job_id, n) do update set value = excluded.value",
        (None, _FINISHED[1]),
    ),
    "insert a step of a running job without its lease": (
        f"{_STEP} values (:running, 7, 'default', 'charge', 'step', '2', 1, {NOW}, {NOW})",
        _BY_HAND,
    ),
    "finish a wait by hand": (_step(f"value = '1', ended_at = {NOW}", "waiting"), _BY_HAND),
    "insert a checkpoint of a running job without its lease": (
        "insert into checkpoint (job_id, tenant, name, value, attempt, saved_at)"
        f" values (:running, 'default', 'row', '7', 1, {NOW})",
        ("checkpoints are written only by operations", _BY_HAND[1]),
    ),
    "change a checkpoint": (
        "update checkpoint set value = '7' where job_id = :running",
        ("checkpoints are written only by operations", _BY_HAND[1]),
    ),
    "delete a checkpoint": (
        "delete from checkpoint where job_id = :running",
        "checkpoint: only retention deletes rows",
    ),
    "add a tag to a running job": (
        "insert into job_tag (tenant, tag, job_id) values ('default', 'vip', :running)",
        ("written when it is created", _BY_HAND[1]),
    ),
    "change a tag": ("update job_tag set tag = 'vip'", (None, "rows are never changed")),
    "delete a tag": ("delete from job_tag", (None, _BY_HAND[1])),
    "delete a step of a running job": (
        "delete from step where job_id = :running",
        immutable("step: only the steps of dead letters can be deleted"),
    ),
    "truncate the steps": ("truncate step", (None, "step: rows are never changed (truncate refused)")),
    "change the data of an application event": (_event("""data = '{"sum": 1}'""", "sent"), _SENT),
    "change the sender of an application event": (_event("sent_by = 'mallory'", "sent"), _SENT),
    "move an application event to another tenant": (_event("tenant = 'acme'", "sent"), _SENT),
    "replace an application event": (
        "insert or replace into app_event (id, tenant, name, data, sent_by, sent_at)"
        " select id, tenant, name, '{}', 'm', sent_at from app_event",
        ("already exists: this event was sent before", None),
    ),
    "replace an application event by its key": (
        f"insert or replace into app_event (tenant, name, data, key, sent_by, sent_at)"
        f" values ('default', 'paid', '{{}}', 'k', 'mallory', {NOW})",
        ("already exists: this event was sent before", None),
    ),
    "upsert an application event": (
        "insert into app_event select * from app_event on conflict (id) do update set data = '{}'",
        (None, _SENT[1]),
    ),
}
