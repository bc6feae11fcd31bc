"""Moves of the state machine besides ordinary work: invalid requests and faults, steps and approvals, limits and
workflows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st

from holdfast.engine.outcome import Outcome
from holdfast.engine.settlement import Settlement
from holdfast.engine.states import State, is_legal
from holdfast.engine.steps import StepEntry
from holdfast.errors import Refused
from holdfast.features.approvals.model import ApprovalFilter, Ballot, VoteVerdict
from holdfast.features.limits.model import Bucket, Rule
from holdfast.features.workflows.model import ON_FAILURE, EdgeSpec, NodeSpec, WorkflowSpec, plan_hash
from holdfast.stores.requests import ClaimRequest
from tests.model import views
from tests.model.comparison import assert_same
from tests.model.machine_base import UNKNOWN, MachineBase
from tests.model.store_driver import PowerCut, cut
from tests.model.strategies import (
    EVENTS,
    codes,
    drafts,
    endings,
    event_data,
    job_id,
    outcomes,
    people,
    plain_drafts,
    scopes,
    tenants,
    waits,
)

FORBIDDEN = (
    "update {job} set payload = '[\"other\"]' where id = :id",
    "update {job} set queue = 'other' where id = :id",
    "delete from {job} where id = :id",
    "update {job_state} set attempt = attempt + 1 where id = :id",
    "update {job_state} set tenant = 'c' where id = :id",
    "delete from {job_state} where id = :id",
    "update {event} set actor = 'nobody' where job_id = :id",
    "delete from {event} where job_id = :id",
    "insert into {event} (job_id, tenant, kind, type, to_state, attempt, at, actor)"
    " select job_id, tenant, kind, type, to_state, attempt, at, actor from {event} where job_id = :id",
)


class FaultMoves(MachineBase):
    """Moves that must change nothing, or only what is allowed: repeated requests, hand-written SQL, power cuts."""

    def enqueue_again(self, data: st.DataObject) -> None:
        """Repeat an enqueue exactly (its response was lost), sometimes after a new job."""
        spec, tenant = data.draw(st.sampled_from(self.sent), label="again")
        fresh = self.spec(data.draw(plain_drafts, label="fresh"), tenant)
        self.send([fresh, spec] if data.draw(st.booleans()) else [spec], tenant)

    def settle_anything(self, data: st.DataObject) -> None:
        """Settle any job, under any lease, for any attempt, twice in one batch, with or without an error."""
        lease, scope = self.any_lease(data, prefer=self.leases_holding(State.IN_PROGRESS))
        held = [job.id for job in self.model.held_by(lease, State.IN_PROGRESS)]
        ending = data.draw(endings, label="ending")
        code = None if ending in ("succeeded", "snooze", "cancel") else data.draw(st.none() | codes, label="code")
        off_by = data.draw(st.sampled_from([0, 0, -1, 1]), label="off by")
        batch = [
            Settlement(job.id, job.attempt + off_by, ending, 0.5, code, code)
            for job in (self.any_job(data, prefer=held), self.any_job(data))
        ]
        batch.append(replace(batch[0], ending="succeeded", code=None, message=None, result='"second"'))
        self.apply(lambda side: side.settle(lease, batch, scope))

    def take_illegal_step(self, data: st.DataObject) -> None:
        """Hand-written SQL cannot make an illegal transition (CX-1)."""
        job = self.any_job(data)
        goals = [goal for goal in State if goal is not job.state and not is_legal(job.state, goal)]
        goal = data.draw(st.sampled_from(goals), label="goal")
        step = "update {job_state} set state = :goal where id = :id"
        for driver in self.drivers.values():
            with pytest.raises(Refused, match=f"illegal transition {job.state} -> {goal}") as refused:
                driver.execute_sql(step, goal=goal.value, id=job.id)
            assert refused.value.code == "illegal_transition"

    def edit_immutable_rows(self, data: st.DataObject) -> None:
        """Hand-written SQL cannot change facts, ledger or identity (CX-3, CX-4)."""
        job = self.any_job(data)
        statement = data.draw(st.sampled_from(FORBIDDEN), label="statement")
        for driver in self.drivers.values():
            with pytest.raises(Refused) as refused:
                driver.execute_sql(statement, id=job.id)
            assert refused.value.code in ("immutable", "broken_invariant"), str(refused.value)

    def cut_power(self, data: st.DataObject) -> None:
        """A write that fails half-way changes nothing (SC-19), also for a new process (CX-15)."""
        tenant = data.draw(tenants, label="tenant")
        spec = self.spec(data.draw(drafts, label="draft"), tenant)
        after = data.draw(st.integers(1, 8), label="after")
        restart = data.draw(st.booleans(), label="restart")
        for driver in self.drivers.values():
            with pytest.raises(PowerCut):
                driver.store.run(cut(driver.store.jobs.enqueue([spec], tenant), after))
            for lease in self.live_leases():
                scope = self.model.leases[lease].tenant
                request = ClaimRequest(lease=lease, queues=("default", "bulk"), want=5, tenant=scope)
                with pytest.raises(PowerCut):
                    driver.store.run(cut(driver.claim_flow(request), after))
            if restart:
                driver.restart()


FIRST_APPROVAL = 500_000  # ids of approvals must differ from those of jobs


class StepMoves(FaultMoves):
    """Moves with steps, events and approvals."""

    def outcome(self, data: st.DataObject, label: str) -> Outcome:
        """Draw the end of an attempt; every second attempt is suspended."""
        if data.draw(st.booleans(), label="is over"):
            return data.draw(outcomes, label=label)
        self.counter += 1
        wait = data.draw(waits, label=label)
        return wait.outcome(self.model.now, job_id(FIRST_APPROVAL + self.counter, self.model.now))

    def save_steps(self, data: st.DataObject) -> None:
        """Save steps of jobs the lease holds and of others, and a wait that timed out."""
        lease, scope = self.any_lease(data, prefer=self.leases_holding(State.IN_PROGRESS))
        held = [job.id for job in self.model.held_by(lease, State.IN_PROGRESS)]
        offered = {self.any_job(data, prefer=held).id, self.any_job(data).id}
        late = {"type": "timeout", "message": "late"}
        steps = [
            StepEntry(5, "charge", "step", data.draw(st.sampled_from([None, "1", '{"a": [1.5]}']), label="value")),
            StepEntry(EVENTS["paid"], "paid", "event", None, late, took=1.0),
        ]
        chosen = data.draw(st.sampled_from([steps[:1], steps[:1], steps[1:], steps]), label="steps")
        off_by = data.draw(st.sampled_from([0, 0, 0, 1]), label="off by")
        entries = [(job, self.model.jobs[job].attempt + off_by, step) for job in sorted(offered) for step in chosen]
        self.apply(lambda side: side.save_steps(lease, [*entries, (UNKNOWN, 1, steps[0])], scope))

    def send_event(self, data: st.DataObject) -> None:
        self.pass_time(0.000001)  # events of the same moment have no order
        name = data.draw(st.sampled_from(sorted(EVENTS)), label="name")
        text = data.draw(event_data, label="data")
        key = data.draw(st.sampled_from([None, None, "k1", "k2"]), label="key")
        job = data.draw(st.sampled_from([None, None, None, UNKNOWN, *list(self.model.jobs)[:3]]), label="job")
        tenant = data.draw(tenants, label="tenant")
        label = f"event-{len(self.model.sent_events)}"
        self.apply(lambda side: side.send_event(label, name, text, key, job, "an application", tenant))

    def decide(self, data: st.DataObject) -> None:
        """Vote, mostly on open approvals; sometimes with a token, valid or not."""
        open_ = [name for name, approval in self.model.approvals.items() if approval.record.state == "open"]
        approval = data.draw(st.sampled_from(open_ * 5 + [*self.model.approvals, UNKNOWN]), label="approval")
        verdict: VoteVerdict = data.draw(st.sampled_from(["approve", "approve", "deny"]), label="verdict")
        known = self.model.approvals.get(approval)
        tokens = [None, None, None, "no token", *(known.tokens if known else ())]
        approvers = list(known.record.people if known else ()) or ["ada"]
        ballot = Ballot(
            verdict,
            data.draw(st.sampled_from(approvers) | people, label="person"),
            "model",
            data.draw(st.sampled_from([None, "fine → 'so'"]), label="comment"),
            data.draw(st.sampled_from([{"limit": 5}, {"limit": 5}, {"other": 1}, None]), label="data"),
            data.draw(st.sampled_from(tokens), label="token"),
        )
        scope = data.draw(st.sampled_from(["*", "*", "a", "b"]), label="scope")
        self.apply(lambda side: side.decide_approval(approval, ballot, scope))

    def issue_token(self, data: st.DataObject) -> None:
        self.counter += 1
        approval = data.draw(st.sampled_from([*self.model.approvals, UNKNOWN]), label="approval")
        person = data.draw(st.sampled_from([None, "ada", "eve"]), label="person")
        ttl = data.draw(st.sampled_from([None, 2.5, 60.0]), label="ttl")
        scope = data.draw(scopes, label="scope")
        name = f"hash {self.counter}"
        self.apply(lambda side: side.save_approval_token(approval, name, person, ttl, "a mailer", scope))

    def rewind(self, data: st.DataObject) -> None:
        job = self.any_job(data, prefer=self.ids(State.DEAD_LETTER)).id
        to = data.draw(st.integers(0, 7), label="to")
        scope = data.draw(st.sampled_from(["*", "*", "a", "b"]), label="scope")
        self.apply(lambda side: side.rewind(job, to, "an operator", scope))

    def list_approvals(self, data: st.DataObject) -> None:
        wanted = ApprovalFilter(
            tenant=data.draw(scopes, label="tenant"),
            state=data.draw(st.sampled_from([None, "open", "open", "approved", "withdrawn"])),
            approver=data.draw(st.sampled_from([None, "ada", "eve"])),
            job_id=data.draw(st.sampled_from([None, None, *list(self.model.jobs)[:2]])),
            limit=data.draw(st.sampled_from([1, 50])),
        )
        for driver in self.drivers.values():
            assert_same(driver.approvals(wanted), views.approvals_of(self.model, wanted), f"the inbox of {driver}")


MAX_LIMITS = 3
FIRST_WORKFLOW = 700_000  # ids of workflows must differ from those of jobs

policies = st.sampled_from(ON_FAILURE)
LIMITED = [
    *(("kind", "mail"), ("kind", "*"), ("key", "c1"), ("key", "*"), ("queue", "default"), ("queue", "*"), ("all", "*")),
    *(("resource", "gpu"), ("agent", "planner"), ("agent", "*"), ("tenant", "a"), ("tenant", "*")),
]
UNPARK = (
    "update {job_state} set due_at = null, note = null, held_by = null"
    " where held_by is not null and due_at is not null and state = 'queued'"
)


class LimitMoves(StepMoves):
    """Moves with limits and workflows.

    Before each claim, maintenance runs until it finds nothing. Then every store has parked only jobs at a full limit,
    and which jobs start follows from the rule alone.
    """

    def change_limit(self, data: st.DataObject) -> None:
        """Set, change or remove a limit. Set none while an agent is disabled: which of its jobs a claim has examined
        and deferred differs between the stores."""
        known = self.model.limits
        what = data.draw(st.sampled_from(["set", "set", "remove"]))
        scope, name = data.draw(st.sampled_from(LIMITED), label="limited")
        bucket = Bucket(data.draw(scopes, label="tenant"), scope, name)
        chosen = data.draw(st.sampled_from([bucket, *known]), label="which")
        most = data.draw(st.sampled_from([1, 1, 2, 2, 0]), label="concurrency")
        if what == "remove" or len(known) >= MAX_LIMITS:
            self.apply(lambda side: side.remove_limit(chosen.scope, chosen.name, "an operator", chosen.tenant))
        elif not self.any_agent_disabled():
            rule = Rule(chosen.scope, chosen.name, most)
            self.apply(lambda side: side.set_limit(rule, "an operator", chosen.tenant))

    def start_workflow(self, data: st.DataObject) -> None:
        """Start a few plain jobs, each after some earlier ones. None has a parent: it would join the workflow."""
        tenant = data.draw(tenants, label="tenant")
        batch = data.draw(st.lists(plain_drafts, min_size=2, max_size=4), label="jobs")
        policy = data.draw(policies, label="on_failure")
        self.counter += 1
        flow_id = job_id(FIRST_WORKFLOW + self.counter, self.model.now)
        nodes: list[NodeSpec] = []
        edges: list[EdgeSpec] = []
        for n, draft in enumerate(batch):
            spec = self.spec(replace(draft, agent=None, correlation=None), tenant)
            own = replace(spec, workflow_id=flow_id)
            parents = (
                data.draw(st.lists(st.sampled_from(nodes), max_size=2, unique_by=id), label="after") if nodes else []
            )
            edges += [EdgeSpec(own.id, p.job.id, data.draw(st.just(policy) | policies)) for p in parents]
            nodes.append(NodeSpec(own, f"j{n}", fatal=policy == "stop"))
        flow = WorkflowSpec(
            id=flow_id,
            kind="publish",
            generator="planner",
            enqueued_by="a planner",
            source_system="model",
            nodes=tuple(nodes),
            edges=tuple(edges),
            on_failure=policy,
            plan_hash=plan_hash(nodes, edges, policy),
        )
        self.apply(lambda side: side.start_workflow(flow, tenant))

    def change_workflow(self, data: st.DataObject) -> None:
        if not self.model.workflows:
            return self.start_workflow(data)
        flow = data.draw(st.sampled_from([*self.model.workflows, UNKNOWN]), label="workflow")
        scope = data.draw(st.sampled_from(["*", "*", "a", "b"]), label="scope")
        if data.draw(st.sampled_from([True, True, True, False]), label="resume"):
            self.apply(lambda side: side.resume_workflow(flow, "a reason", "an operator", scope))
        else:
            self.apply(lambda side: side.cancel_workflow(flow, "a reason", "an operator", scope))

    def any_agent_disabled(self) -> bool:
        return any(agent.disabled for agent in self.model.agents.values())

    def attend_limits(self) -> None:
        """Run the maintenance of limits, as a worker does every second."""
        if self.model.may_park or self.model.reservations:
            self.apply(lambda side: side.attend_limits())

    def unpark(self) -> None:
        """Unpark all jobs before a move that depends on the limit at which a job is parked."""
        for driver in self.drivers.values():
            if self.model.may_park:
                driver.execute_sql(UNPARK)
