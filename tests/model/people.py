"""The part of the model that handlers wait for: steps, events and approvals. Who may decide is the pure rule itself."""

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
from holdfast.features.approvals.model import Answer, Approval, Ballot, Token, Vote, refusal
from holdfast.stores.requests import SentResult
from tests.model.upkeep import Upkeep
from tests.model.world import ModelJob, seconds

EXPIRED = "nobody decided in time"


@dataclass
class Told:
    """An event; `name` is what the test calls it, since each store gives it an id of its own."""

    label: str
    tenant: str
    name: str
    data: dict[str, Any]
    key: str | None
    job: str | None
    sent_by: str
    sent_at: datetime

    def value(self) -> dict[str, Any]:
        told = {"id": self.label, "name": self.name, "data": self.data, "sent_by": self.sent_by}
        return told | {"sent_at": written(self.sent_at)}


@dataclass
class ModelToken:
    person: str | None
    expires_at: datetime | None
    used_at: datetime | None = None


@dataclass
class ModelApproval:
    seen: Approval
    remind_every: float | None
    expires_in: float | None
    votes: list[Vote] = field(default_factory=list)
    tokens: dict[str, ModelToken] = field(default_factory=dict)

    def set(self, **changes: Any) -> None:
        self.seen = replace(self.seen, **changes)

    @property
    def next(self) -> datetime | None:
        times = (self.seen.expires_at, self.seen.remind_at, self.seen.escalate_at)
        return min((at for at in times if at is not None), default=None)


def written(at: datetime) -> str:
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


class People(Upkeep):
    def __init__(self, now: datetime) -> None:
        super().__init__(now)
        self.told: list[Told] = []
        self.approvals: dict[str, ModelApproval] = {}
        self.touched: set[str] = set()
        """Jobs about which something has changed that is in no ledger."""

    # -- steps ---------------------------------------------------------------------------------------------------

    def save_steps(self, lease: str, entries: Sequence[tuple[str, int, StepEntry]], tenant: str) -> list[Saved]:
        self.holder(lease, tenant)
        answers = []
        for job_id, attempt, entry in entries:
            job = self.jobs.get(job_id)
            if job is None or (job.lease, job.attempt, job.state) != (lease, attempt, State.IN_PROGRESS):
                answers.append(Saved(job_id, entry.n, "stale"))
            elif not self._finish(job, entry.to_json(), entry.value):
                answers.append(Saved(job_id, entry.n, "kept", job.steps[entry.n].value))
        return answers

    def _finish(self, job: ModelJob, entry: dict[str, Any], value: str | None = None) -> bool:
        """Write a step that is over; False when it was before."""
        self.touched.add(job.id)
        was = job.steps.get(entry["n"])
        if was is not None and was.over:
            return False
        job.steps[entry["n"]] = Step(
            job.id,
            entry["n"],
            entry["name"],
            entry["kind"],
            None if value is None else json.loads(value),
            entry.get("error"),
            entry["tries"],
            job.attempt,
            self.now - seconds(entry["took"]) if was is None else was.started_at,
            None if was is None else was.wake_at,
            self.now,
            None if was is None else was.wanted,
            self.now,
        )
        return True

    def rewind(self, job_id: str, to: int, actor: str, scope: str) -> int | None:
        job = next((job for job in self.within(scope) if job.id == job_id), None)
        if job is None or job.state is not State.DEAD_LETTER:
            return None
        gone = [n for n in job.steps if n >= to]
        for n in gone:
            del job.steps[n]
        self.touched.add(job_id)
        return len(gone)

    # -- waiting ---------------------------------------------------------------------------------------------------

    def suspend(self, job: ModelJob, item: Settlement, holder: str) -> None:
        """The attempt ends to wait: for a time, an event, a next try, people."""
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
            self._look_back(job, pause, holder)
        elif item.ending == "ask":
            self._open(job, pause)

    def _look_back(self, job: ModelJob, pause: dict[str, Any], holder: str) -> None:
        step = job.steps[pause["n"]]
        if not step.over:
            had = {each.value["id"] for each in job.steps.values() if each.kind == "event" and each.value}
            since = job.created_at - seconds(pause.get("since", 0.0))
            fit = [
                told
                for told in self.told
                if (told.tenant, told.name) == (job.tenant, step.name)
                and told.sent_at >= since
                and told.label not in had
                and told.job in (None, job.id)
                and _fits(told.data, step.wanted)
            ]
            if not fit:
                return
            self._hear(job, step, fit[0])
        self.step(job, "due", holder, {"event": step.name})

    def _hear(self, job: ModelJob, step: Step, told: Told) -> None:
        job.steps[step.n] = replace(step, value=told.value(), ended_at=self.now)
        self.touched.add(job.id)

    def send_event(
        self, label: str, name: str, data: str, key: str | None, job_id: str | None, actor: str, tenant: str
    ) -> SentResult:
        for told in self.told:
            if key is not None and (told.tenant, told.name, told.key) == (tenant, name, key):
                return SentResult(told.label, False, 0)
        new = Told(label, tenant, name, json.loads(data), key, job_id, actor, self.now)
        self.told.append(new)
        woke = 0
        for job in self.within(tenant):
            waits = [
                step for step in job.steps.values() if step.kind == "event" and not step.over and step.name == name
            ]
            for step in waits:
                if job_id in (None, job.id) and _fits(new.data, step.wanted):
                    self._hear(job, step, new)
                    if job.state is State.RETRY_WAITING and job.due_at == step.wake_at:
                        self.step(job, "due", actor, {"event": name})
                        woke += 1
        return SentResult(label, True, woke)

    # -- approvals -----------------------------------------------------------------------------------------------------

    def _open(self, job: ModelJob, pause: dict[str, Any]) -> None:
        asked = pause["approval"]

        def later(span: str) -> datetime | None:
            return None if asked.get(span) is None else self.now + seconds(asked[span])

        approval = Approval(
            asked["id"],
            job.tenant,
            job.id,
            pause["n"],
            pause["name"],
            asked["summary"],
            asked.get("data"),
            asked.get("form"),
            tuple(asked["approvers"]),
            asked["quorum"],
            job.spec.enqueued_by,
            asked["not_requester"],
            asked["on_deny"],
            asked["on_expire"],
            later("expires_in"),
            later("remind_every"),
            0,
            later("escalate_after"),
            tuple(asked["escalate_to"]),
            None,
            asked["content_hash"],
            "open",
            self.now,
            None,
        )
        self.approvals[approval.id] = ModelApproval(approval, asked.get("remind_every"), asked.get("expires_in"))

    def leave_approval(self, job: ModelJob) -> None:
        """A job that leaves without a decision takes its question back."""
        approval = self.approvals[job.approval or ""]
        if approval.seen.state == "open":
            approval.set(state="withdrawn", decided_at=self.now)
        job.approval = None

    def decide_approval(self, approval_id: str, ballot: Ballot, scope: str) -> Answer:
        approval = self.approvals.get(approval_id)
        if approval is None or scope not in (EVERY_TENANT, approval.seen.tenant):
            return Answer(approval_id, None, True, "not_found")
        job = self.jobs[approval.seen.job_id]
        kept = approval.tokens.get(ballot.token_hash or "")
        token = None if kept is None else Token(kept.person, kept.expires_at, kept.used_at)
        person = kept.person if kept is not None and kept.person is not None else ballot.person
        voted = [vote.person for vote in approval.votes]
        reason = refusal(approval.seen, ballot, person, token, voted, job.approval == approval_id, self.now)
        if reason is not None:
            return Answer(approval_id, approval.seen.state, True, reason)
        assert person is not None
        if kept is not None:
            kept.used_at = self.now
        approval.votes.append(
            Vote(approval_id, person, ballot.verdict, ballot.how, ballot.comment, ballot.data, self.now)
        )
        approval.set(approvals=sum(vote.verdict == "approve" for vote in approval.votes))
        self.touched.add(job.id)
        said = f" by {person}" + (f": {ballot.comment}" if ballot.comment is not None else "")
        if ballot.verdict == "deny":
            self._close(approval, "denied", f"denied{said}", person)
        elif approval.seen.approvals >= approval.seen.quorum:
            self._close(approval, "approved", f"approved{said}", person)
        return Answer(approval_id, approval.seen.state, False, None)

    def _close(self, approval: ModelApproval, state: str, reason: str, actor: str) -> None:
        approval.set(state=state, decided_at=self.now)
        job, place = self.jobs[approval.seen.job_id], approval.seen.n
        said = [
            {name: getattr(vote, name) for name in ("person", "verdict", "how", "comment", "data")}
            | {"at": written(vote.at)}
            for vote in self.votes_of(approval)
        ]
        if not job.steps[place].over:
            decision = {"approval_id": approval.seen.id, "state": state, "decided_at": written(self.now), "votes": said}
            job.steps[place] = replace(job.steps[place], value=decision, ended_at=self.now)
        goes_on = state == "approved" or approval.seen.on_deny == "resume"
        event_type = {"approved": "approve", "denied": "deny", "expired": "expire"}[state]
        note = {"approval": approval.seen.name, "verdict": state} | ({"reason": reason} if goes_on else {})
        job.approval = None
        if not goes_on:
            job.error = ("approval_expired" if state == "expired" else "denied", reason)
        self.step(job, event_type, actor, note, target=State.QUEUED if goes_on else State.FAILED)

    def votes_of(self, approval: ModelApproval) -> list[Vote]:
        return sorted(approval.votes, key=lambda vote: (vote.at, vote.person))

    def keep_approval_token(
        self, approval_id: str, token_hash: str, person: str | None, ttl: float | None, actor: str, scope: str
    ) -> str | None:
        approval = self.approvals.get(approval_id)
        if approval is None or scope not in (EVERY_TENANT, approval.seen.tenant):
            return "not_found"
        if approval.seen.state != "open":
            return "already_decided"
        named = (*approval.seen.approvers, *approval.seen.escalate_to)
        if person is not None and approval.seen.approvers and person not in named:
            return "not_an_approver"
        approval.tokens[token_hash] = ModelToken(person, None if ttl is None else self.now + seconds(ttl))
        return None

    def approvals_due(self, scope: str) -> list[ModelApproval]:
        mine = [approval for approval in self.approvals.values() if scope in (EVERY_TENANT, approval.seen.tenant)]
        due = [
            approval
            for approval in mine
            if approval.seen.state == "open" and approval.next is not None and approval.next <= self.now
        ]
        return sorted(due, key=lambda approval: approval.next or self.now)

    def attend_approvals(self, want: int, scope: str) -> int:
        due = self.approvals_due(scope)[:want]
        for approval in due:
            seen = approval.seen
            if seen.escalate_at is not None and seen.escalate_at <= self.now:
                approval.set(escalated_at=self.now, escalate_at=None)
            over = seen.expires_at is not None and seen.expires_at <= self.now
            if over and seen.on_expire != "remind":
                self._close(approval, "approved" if seen.on_expire == "approve" else "expired", EXPIRED, "promoter")
            elif over or (seen.remind_at is not None and seen.remind_at <= self.now):
                again = None if approval.remind_every is None else self.now + seconds(approval.remind_every)
                approval.set(reminders=seen.reminders + 1, remind_at=again)
                if over:
                    approval.set(expires_at=self.now + seconds(approval.expires_in or 0.0))
        return len(due)


def _fits(data: dict[str, Any], wanted: dict[str, Any] | None) -> bool:
    return projection(data, list(wanted or ())) == (wanted or {})
