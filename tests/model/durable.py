"""Moves around what handlers wait for: steps that are kept, events that are told, approvals that people decide."""

from __future__ import annotations

from hypothesis import strategies as st

from holdfast.engine.outcome import Outcome
from holdfast.engine.states import State
from holdfast.engine.steps import StepEntry
from holdfast.features.approvals.model import ApprovalFilter, Ballot, VerdictWord
from tests.model import views
from tests.model.comparison import same
from tests.model.drafts import EVENTS, job_id, outcomes, people, scopes, tenants, told, waits
from tests.model.mischief import Mischief
from tests.model.seat import UNKNOWN

APPROVALS_FROM = 500_000  # their ids are not those of jobs


class Durable(Mischief):
    def outcome(self, data: st.DataObject, label: str) -> Outcome:
        """How an attempt ends; every second lets go to wait."""
        if data.draw(st.booleans(), label="is over"):
            return data.draw(outcomes, label=label)
        self.numbers += 1
        wait = data.draw(waits, label=label)
        return wait.outcome(self.model.now, job_id(APPROVALS_FROM + self.numbers, self.model.now))

    def save_steps(self, data: st.DataObject) -> None:
        """Of what a lease holds, and of what it does not; a wait that came to nothing among them."""
        lease, scope = self.any_lease(data, rather=self.holding(State.IN_PROGRESS))
        held = [job.id for job in self.model.held_by(lease, State.IN_PROGRESS)]
        offered = {self.any_job(data, rather=held).id, self.any_job(data).id}
        late = {"type": "timeout", "message": "late"}
        steps = [
            StepEntry(5, "charge", "step", data.draw(st.sampled_from([None, "1", '{"a": [1.5]}']), label="value")),
            StepEntry(EVENTS["paid"], "paid", "event", None, late, took=1.0),
        ]
        chosen = data.draw(st.sampled_from([steps[:1], steps[:1], steps[1:], steps]), label="steps")
        off_by = data.draw(st.sampled_from([0, 0, 0, 1]), label="off by")
        entries = [(job, self.model.jobs[job].attempt + off_by, step) for job in sorted(offered) for step in chosen]
        self.play(lambda side: side.save_steps(lease, [*entries, (UNKNOWN, 1, steps[0])], scope))

    def send_event(self, data: st.DataObject) -> None:
        self.pass_time(0.000001)  # of two events told in the same moment, neither is the first
        name = data.draw(st.sampled_from(sorted(EVENTS)), label="name")
        text = data.draw(told, label="data")
        key = data.draw(st.sampled_from([None, None, "k1", "k2"]), label="key")
        job = data.draw(st.sampled_from([None, None, None, UNKNOWN, *list(self.model.jobs)[:3]]), label="job")
        tenant = data.draw(tenants, label="tenant")
        label = f"event-{len(self.model.told)}"
        self.play(lambda side: side.send_event(label, name, text, key, job, "an application", tenant))

    def decide(self, data: st.DataObject) -> None:
        """Rather what is open; with a token now and then, of this approval or of none."""
        open_ = [name for name, approval in self.model.approvals.items() if approval.seen.state == "open"]
        approval = data.draw(st.sampled_from(open_ * 5 + [*self.model.approvals, UNKNOWN]), label="approval")
        verdict: VerdictWord = data.draw(st.sampled_from(["approve", "approve", "deny"]), label="verdict")
        known = self.model.approvals.get(approval)
        tokens = [None, None, None, "no token", *(known.tokens if known else ())]
        may = list(known.seen.people if known else ()) or ["ada"]
        ballot = Ballot(
            verdict,
            data.draw(st.sampled_from(may) | people, label="person"),
            "model",
            data.draw(st.sampled_from([None, "fine → 'so'"]), label="comment"),
            data.draw(st.sampled_from([{"limit": 5}, {"limit": 5}, {"other": 1}, None]), label="data"),
            data.draw(st.sampled_from(tokens), label="token"),
        )
        scope = data.draw(st.sampled_from(["*", "*", "a", "b"]), label="scope")
        self.play(lambda side: side.decide_approval(approval, ballot, scope))

    def issue_token(self, data: st.DataObject) -> None:
        self.numbers += 1
        approval = data.draw(st.sampled_from([*self.model.approvals, UNKNOWN]), label="approval")
        person = data.draw(st.sampled_from([None, "ada", "eve"]), label="person")
        ttl = data.draw(st.sampled_from([None, 2.5, 60.0]), label="ttl")
        scope = data.draw(scopes, label="scope")
        name = f"hash {self.numbers}"
        self.play(lambda side: side.keep_approval_token(approval, name, person, ttl, "a mailer", scope))

    def rewind(self, data: st.DataObject) -> None:
        job = self.any_job(data, rather=self.ids(State.DEAD_LETTER)).id
        to = data.draw(st.integers(0, 7), label="to")
        scope = data.draw(st.sampled_from(["*", "*", "a", "b"]), label="scope")
        self.play(lambda side: side.rewind(job, to, "an operator", scope))

    def list_approvals(self, data: st.DataObject) -> None:
        wanted = ApprovalFilter(
            tenant=data.draw(scopes, label="tenant"),
            state=data.draw(st.sampled_from([None, "open", "open", "approved", "withdrawn"])),
            approver=data.draw(st.sampled_from([None, "ada", "eve"])),
            job_id=data.draw(st.sampled_from([None, None, *list(self.model.jobs)[:2]])),
            limit=data.draw(st.sampled_from([1, 50])),
        )
        for player in self.players.values():
            same(player.approvals(wanted), views.approvals_of(self.model, wanted), f"the inbox of {player}")
