"""Model of durable steps, events and approvals. Who may decide follows from ``refusal``, the pure rule itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.settlement import Settlement
from holdfast.engine.states import State
from holdfast.engine.steps import Saved, Step, StepEntry, projection
from holdfast.errors import NotFound
from holdfast.features.approvals.model import Answer, Approval, Ballot, Token, Vote, agreeing, plain, refusal
from holdfast.stores.requests import SentResult
from tests.model.model_base import ModelJob, seconds
from tests.model.model_operations import OperationsModel

EXPIRED = "no decision in time"


@dataclass
class SentEvent:
    """A sent event. `label` is its name in the test, because each store gives it a different id."""

    label: str
    tenant: str
    name: str
    data: dict[str, Any]
    key: str | None
    job: str | None
    sent_by: str
    sent_at: datetime

    def value(self) -> dict[str, Any]:
        value = {"id": self.label, "name": self.name, "data": self.data, "sent_by": self.sent_by}
        return value | {"sent_at": iso_time(self.sent_at)}


@dataclass
class ModelToken:
    person: str | None
    expires_at: datetime | None
    used_at: datetime | None = None


@dataclass
class ModelApproval:
    record: Approval
    remind_every: float | None
    expires_in: float | None
    votes: list[Vote] = field(default_factory=list)
    tokens: dict[str, ModelToken] = field(default_factory=dict)

    def set(self, **changes: Any) -> None:
        self.record = replace(self.record, **changes)

    @property
    def next(self) -> datetime | None:
        times = (self.record.expires_at, self.record.remind_at, self.record.escalate_at)
        return min((at for at in times if at is not None), default=None)


def iso_time(at: datetime) -> str:
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


class StepsModel(OperationsModel):
    def __init__(self, now: datetime) -> None:
        super().__init__(now)
        self.sent_events: list[SentEvent] = []
        self.approvals: dict[str, ModelApproval] = {}
        self.touched: set[str] = set()
        """Jobs with a change that is not in the ledger."""

    # -- steps ---------------------------------------------------------------------------------------------------

    def save_steps(self, lease: str, entries: Sequence[tuple[str, int, StepEntry]], tenant: str) -> list[Saved]:
        self.holder(lease, tenant)
        results = []
        for job_id, attempt, entry in entries:
            job = self.jobs.get(job_id)
            if job is None or (job.lease, job.attempt, job.state) != (lease, attempt, State.IN_PROGRESS):
                results.append(Saved(job_id, entry.n, "stale"))
            elif not self._finish(job, entry.to_json(), entry.value):
                results.append(Saved(job_id, entry.n, "kept", job.steps[entry.n].value))
        return results

    def _finish(self, job: ModelJob, entry: dict[str, Any], value: str | None = None) -> bool:
        """Store a finished step; False if it was finished before."""
        self.touched.add(job.id)
        was = job.steps.get(entry["n"])
        if was is not None and was.over:
            return False
        result = None if value is None else json.loads(value)
        facts = (job.id, entry["n"], entry["name"], entry["kind"], result, entry.get("error"), entry["tries"])
        began = self.now - seconds(entry["took"]) if was is None else was.started_at
        wake_at, wanted = (None, None) if was is None else (was.wake_at, was.wanted)
        job.steps[entry["n"]] = Step(*facts, job.attempt, began, wake_at, self.now, wanted, self.now)
        return True

    def rewind(self, job_id: str, to: int, actor: str, scope: str) -> int | None:
        job = next((job for job in self.within(scope) if job.id == job_id), None)
        if job is None or job.state is not State.DEAD_LETTER:
            return None
        removed = [n for n in job.steps if n >= to]
        for n in removed:
            del job.steps[n]
        self.touched.add(job_id)
        return len(removed)

    # -- waiting ---------------------------------------------------------------------------------------------------

    def suspend(self, job: ModelJob, item: Settlement, holder: str) -> None:
        """End the attempt to wait for a time, an event, the next try of a step, or an approval."""
        pause = item.pause or {}
        if item.ending == "ask":
            job.approval = pause["approval"]["id"]
            self.step(job, "ask", holder, item.note)
        else:
            until = datetime.fromisoformat(pause["until"]) if "until" in pause else self.now + seconds(pause["delay"])
            self.step(job, "snooze", holder, item.note, due=until)
        for entry in item.steps or ():
            self._finish(job, entry)
        was = job.steps.get(pause["n"])
        if was is None or not was.over:
            began = self.now if was is None else was.started_at
            error, tries = pause.get("error"), pause.get("tries", 1)
            facts = (job.id, pause["n"], pause["name"], pause["kind"], None, error, tries, job.attempt)
            job.steps[pause["n"]] = Step(*facts, began, job.due_at, None, pause.get("wanted"), self.now)
        if pause["kind"] == "event":
            self._deliver_earlier_event(job, pause, holder)
        elif item.ending == "ask":
            self._open(job, pause)

    def _deliver_earlier_event(self, job: ModelJob, pause: dict[str, Any], holder: str) -> None:
        step = job.steps[pause["n"]]
        if not step.over:
            had = {each.value["id"] for each in job.steps.values() if each.kind == "event" and each.value}
            since = job.created_at - seconds(pause.get("since", 0.0))
            fit = [
                event
                for event in self.sent_events
                if (event.tenant, event.name) == (job.tenant, step.name)
                and event.sent_at >= since
                and event.label not in had
                and event.job in (None, job.id)
                and _matches(event.data, step.wanted)
            ]
            if not fit:
                return
            self._deliver(job, step, fit[0])
        self.step(job, "due", holder, {"event": step.name})

    def _deliver(self, job: ModelJob, step: Step, event: SentEvent) -> None:
        job.steps[step.n] = replace(step, value=event.value(), ended_at=self.now)
        self.touched.add(job.id)

    def send_event(
        self, label: str, name: str, data: str, key: str | None, job_id: str | None, actor: str, tenant: str
    ) -> SentResult:
        for event in self.sent_events:
            if key is not None and (event.tenant, event.name, event.key) == (tenant, name, key):
                return SentResult(event.label, False, 0)
        if job_id is not None and not any(job.id == job_id for job in self.within(tenant)):
            raise NotFound(f"no job {job_id} in tenant {tenant}")
        new = SentEvent(label, tenant, name, json.loads(data), key, job_id, actor, self.now)
        self.sent_events.append(new)
        woke = 0
        for job in self.within(tenant):
            waits = [
                step for step in job.steps.values() if step.kind == "event" and not step.over and step.name == name
            ]
            for step in waits:
                if job_id in (None, job.id) and _matches(new.data, step.wanted):
                    self._deliver(job, step, new)
                    if job.state is State.RETRY_WAITING and job.due_at == step.wake_at:
                        self.step(job, "due", actor, {"event": name})
                        woke += 1
        return SentResult(label, True, woke)

    # -- approvals -----------------------------------------------------------------------------------------------------

    def _open(self, job: ModelJob, pause: dict[str, Any]) -> None:
        question = pause["approval"]

        def later(span: str) -> datetime | None:
            return None if question.get(span) is None else self.now + seconds(question[span])

        same = ("id", "summary", "data", "form", "quorum", "not_requester", "token_only", "on_deny", "on_expire")
        asked: dict[str, Any] = {name: question.get(name) for name in (*same, "content_hash")}
        approval = Approval(
            **asked,
            tenant=job.tenant,
            job_id=job.id,
            n=pause["n"],
            name=pause["name"],
            approvers=tuple(question["approvers"]),
            requester=job.spec.enqueued_by,
            expires_at=later("expires_in"),
            remind_at=later("remind_every"),
            reminders=0,
            escalate_at=later("escalate_after"),
            escalate_to=tuple(question["escalate_to"]),
            escalated_at=None,
            state="open",
            opened_at=self.now,
            decided_at=None,
        )
        self.approvals[approval.id] = ModelApproval(approval, question.get("remind_every"), question.get("expires_in"))

    def withdraw_approval(self, job: ModelJob) -> None:
        """Withdraw the approval of a job that leaves without a decision."""
        approval = self.approvals[job.approval or ""]
        if approval.record.state == "open":
            approval.set(state="withdrawn", decided_at=self.now)
        job.approval = None

    def decide_approval(self, approval_id: str, ballot: Ballot, scope: str) -> Answer:
        approval = self.approvals.get(approval_id)
        if approval is None or scope not in (EVERY_TENANT, approval.record.tenant):
            return Answer(approval_id, None, True, "not_found")
        job = self.jobs[approval.record.job_id]
        stored = approval.tokens.get(ballot.token_hash or "")
        token = None if stored is None else Token(stored.person, stored.expires_at, stored.used_at)
        person = stored.person if stored is not None and stored.person is not None else ballot.person
        reason = refusal(approval.record, ballot, person, token, approval.votes, job.approval == approval_id, self.now)
        if reason is not None:
            return Answer(approval_id, approval.record.state, True, reason)
        assert person is not None
        if stored is not None:
            stored.used_at = self.now
        approval.votes.append(
            Vote(
                *(approval_id, person, ballot.verdict, ballot.how, ballot.comment, plain(ballot.data)),
                at=self.now,
                n=1 + len(approval.votes),
            )
        )
        approval.set(approvals=agreeing(approval.record, approval.votes))
        self.touched.add(job.id)
        by = f" by {person}" + (f": {ballot.comment}" if ballot.comment is not None else "")
        if ballot.verdict == "deny":
            self._close(approval, "denied", f"denied{by}", person)
        elif approval.record.approvals >= approval.record.quorum:
            self._close(approval, "approved", f"approved{by}", person)
        return Answer(approval_id, approval.record.state, False, None)

    def _close(self, approval: ModelApproval, state: str, reason: str, actor: str) -> None:
        approval.set(state=state, decided_at=self.now)
        job, n = self.jobs[approval.record.job_id], approval.record.n
        votes = [
            {name: getattr(vote, name) for name in ("person", "verdict", "how", "comment", "data")}
            | {"at": iso_time(vote.at)}
            for vote in self.votes_of(approval)
        ]
        if not job.steps[n].over:
            decision = {
                "approval_id": approval.record.id,
                "state": state,
                "content_hash": approval.record.content_hash,
                "decided_at": iso_time(self.now),
                "votes": votes,
            }
            job.steps[n] = replace(job.steps[n], value=decision, ended_at=self.now)
        resumes = state == "approved" or approval.record.on_deny == "resume"
        event_type = {"approved": "approve", "denied": "deny", "expired": "expire"}[state]
        note = {"approval": approval.record.name, "verdict": state} | ({"reason": reason} if resumes else {})
        job.approval = None
        if not resumes:
            job.error = ("approval_expired" if state == "expired" else "denied", reason)
        self.step(job, event_type, actor, note, target=State.QUEUED if resumes else State.FAILED)

    def votes_of(self, approval: ModelApproval) -> list[Vote]:
        return approval.votes

    def save_approval_token(
        self, approval_id: str, token_hash: str, person: str | None, ttl: float | None, actor: str, scope: str
    ) -> str | None:
        approval = self.approvals.get(approval_id)
        if approval is None or scope not in (EVERY_TENANT, approval.record.tenant):
            return "not_found"
        if approval.record.state != "open":
            return "already_decided"
        named = (*approval.record.approvers, *approval.record.escalate_to)
        if person is not None and approval.record.approvers and person not in named:
            return "not_an_approver"
        approval.tokens[token_hash] = ModelToken(person, None if ttl is None else self.now + seconds(ttl))
        return None

    def approvals_due(self, scope: str) -> list[ModelApproval]:
        mine = [approval for approval in self.approvals.values() if scope in (EVERY_TENANT, approval.record.tenant)]
        due = [
            approval
            for approval in mine
            if approval.record.state == "open" and approval.next is not None and approval.next <= self.now
        ]
        return sorted(due, key=lambda approval: approval.next or self.now)

    def attend_approvals(self, want: int, scope: str) -> int:
        due = self.approvals_due(scope)[:want]
        for approval in due:
            record = approval.record
            if record.escalate_at is not None and record.escalate_at <= self.now:
                approval.set(escalated_at=self.now, escalate_at=None)
            over = record.expires_at is not None and record.expires_at <= self.now
            if over and record.on_expire != "remind":
                self._close(
                    approval, "approved" if record.on_expire == "approve" else "expired", EXPIRED, "maintenance"
                )
            elif over or (record.remind_at is not None and record.remind_at <= self.now):
                again = None if approval.remind_every is None else self.now + seconds(approval.remind_every)
                approval.set(reminders=record.reminders + 1, remind_at=again)
                if over:
                    approval.set(expires_at=self.now + seconds(approval.expires_in or 0.0))
        return len(due)


def _matches(data: dict[str, Any], wanted: dict[str, Any] | None) -> bool:
    return projection(data, list(wanted or ())) == (wanted or {})
