"""Moves around limits and workflows, and what has to be seen to before a move whose outcome hangs on who is parked.

To compare what can be compared, duties run until they find nothing before anybody claims: then nobody is parked but
at a limit that is full, in every store, and who is begun follows from the rule alone.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from holdfast.features.limits.model import Bucket, Rule
from holdfast.features.workflows.model import ON_FAILURE, EdgeSpec, NodeSpec, WorkflowSpec, plan_hash
from tests.model.drafts import job_id, plain_drafts, scopes, tenants
from tests.model.durable import Durable
from tests.model.seat import UNKNOWN

MOST_LIMITS = 3
FLOWS_FROM = 700_000  # their ids are not those of jobs

policies = st.sampled_from(ON_FAILURE)
LIMITED = [
    *(("kind", "mail"), ("kind", "*"), ("key", "c1"), ("key", "*"), ("queue", "default"), ("queue", "*"), ("all", "*")),
    *(("resource", "gpu"), ("agent", "planner"), ("agent", "*"), ("tenant", "a"), ("tenant", "*")),
]
UNPARK = (
    "update {job_state} set due_at = null, note = null, held_by = null"
    " where held_by is not null and due_at is not null and state = 'queued'"
)


class Governed(Durable):
    def see_to_a_limit(self, data: st.DataObject) -> None:
        """Set, set anew or removed. Not while an agent is disabled: whom a claim has looked at in vain, of all who
        are put off then, is each store's own."""
        known = self.model.limits
        what = data.draw(st.sampled_from(["set", "set", "remove"]))
        scope, name = data.draw(st.sampled_from(LIMITED), label="limited")
        bucket = Bucket(data.draw(scopes, label="tenant"), scope, name)
        rather = data.draw(st.sampled_from([bucket, *known]), label="which")
        most = data.draw(st.sampled_from([1, 1, 2, 2, 0]), label="concurrency")
        if what == "remove" or len(known) >= MOST_LIMITS:
            self.play(lambda side: side.remove_limit(rather.scope, rather.name, "an operator", rather.tenant))
        elif not self.anyone_disabled():
            rule = Rule(rather.scope, rather.name, most)
            self.play(lambda side: side.set_limit(rule, "an operator", rather.tenant))

    def start_workflow(self, data: st.DataObject) -> None:
        """A few plain jobs, each after some of those before it. Nobody's children: those would join it."""
        tenant = data.draw(tenants, label="tenant")
        batch = data.draw(st.lists(plain_drafts, min_size=2, max_size=4), label="jobs")
        policy = data.draw(policies, label="on_failure")
        self.numbers += 1
        flow_id = job_id(FLOWS_FROM + self.numbers, self.model.now)
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
        self.play(lambda side: side.start_workflow(flow, tenant))

    def see_to_a_workflow(self, data: st.DataObject) -> None:
        if not self.model.flows:
            return self.start_workflow(data)
        flow = data.draw(st.sampled_from([*self.model.flows, UNKNOWN]), label="workflow")
        scope = data.draw(st.sampled_from(["*", "*", "a", "b"]), label="scope")
        if data.draw(st.sampled_from([True, True, True, False]), label="resume"):
            self.play(lambda side: side.resume_workflow(flow, "a reason", "an operator", scope))
        else:
            self.play(lambda side: side.cancel_workflow(flow, "a reason", "an operator", scope))

    def anyone_disabled(self) -> bool:
        return any(agent.disabled for agent in self.model.agents.values())

    def attend_limits(self) -> None:
        """As any worker does every second."""
        if self.model.may_park or self.model.reservations:
            self.play(lambda side: side.attend_limits())

    def unpark_by_hand(self) -> None:
        """For a move that is refused to whoever is parked, which of several full limits it was may decide."""
        for player in self.players.values():
            if self.model.may_park:
                player.by_hand(UNPARK)
