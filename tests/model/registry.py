"""The part of the model that is about agents: what is registered, what they refuse, and whose jobs are held back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.engine.job import JobSpec
from holdfast.engine.states import State
from holdfast.features.agents.model import HOLD, Agent, AgentRefusal, Definition, objection
from tests.model.upkeep import Upkeep
from tests.model.world import ModelJob, seconds


class Registry(Upkeep):
    def _seen(self, agent: Agent | None) -> Agent | None:
        """As a reader sees it: how many wait is counted when somebody asks."""
        if agent is None:
            return None
        waiting = [job for job in self._jobs_of(agent) if job.state in (State.QUEUED, State.RETRY_WAITING)]
        return replace(agent, waiting=len(waiting))

    def _jobs_of(self, agent: Agent) -> list[ModelJob]:
        return [job for job in self.within(agent.tenant) if job.spec.agent == agent.id]

    def register_agent(self, definition: Definition, tenant: str) -> Agent | None:
        new = Agent(
            tenant,
            definition.id,
            definition.name,
            definition.kind,
            definition.max_attempts,
            definition.max_crashes,
            None if definition.backoff is None else definition.backoff.to_json(),
            definition.max_payload_bytes,
            definition.max_wait,
            definition.requires_approval,
            None,
            None,
            None,
            self.now,
            self.now,
            0,
        )
        old = self.agents.get((tenant, definition.id))
        if old is not None:
            kept = ("disabled_at", "disabled_by", "disabled_reason", "created_at")
            new = replace(new, **{name: getattr(old, name) for name in kept})
            if replace(new, updated_at=old.updated_at) == old:
                new = old
        self.agents[tenant, definition.id] = new
        return self._seen(new)

    def disable_agent(self, agent: str, reason: str, actor: str, tenant: str) -> Agent | None:
        found = self.agents.get((tenant, agent))
        if found is not None and not found.disabled:
            told = {"disabled_at": self.now, "disabled_by": actor, "disabled_reason": reason, "updated_at": self.now}
            found = self.agents[tenant, agent] = replace(found, **told)  # type: ignore[arg-type]
        return self._seen(found)

    def enable_agent(self, agent: str, tenant: str) -> Agent | None:
        found = self.agents.get((tenant, agent))
        if found is not None and found.disabled:
            found = replace(found, disabled_at=None, disabled_by=None, disabled_reason=None, updated_at=self.now)
            self.agents[tenant, agent] = found
        return self._seen(found)

    def resume_agent(self, agent: str, tenant: str) -> int:
        """All of those that were put off for its sake."""
        found = self.agents.get((tenant, agent))
        if found is not None and found.disabled:
            return 0
        jobs = [job for job in self.within(tenant) if job.spec.agent == agent and job.state is State.QUEUED]
        held = [job for job in jobs if job.due_at is not None and "held" in (job.note or {})]
        for job in held:
            job.due_at = job.note = None
        return len(held)

    def objection(self, spec: JobSpec, tenant: str) -> AgentRefusal | None:
        agent = self.agents.get((tenant, spec.agent or ""))
        return None if agent is None else objection(agent, spec.kind, len(spec.payload.encode()))

    def under_its_agent(self, spec: JobSpec, tenant: str) -> JobSpec:
        """The call's policy, else the agent's, else the kind's; and a deadline, where the agent does not wait."""
        agent = self.agents.get((tenant, spec.agent or ""))
        if agent is None:
            return spec
        retry = spec.retry if spec.retry_given else agent.policy(spec.retry)
        deadline = spec.deadline_at
        if agent.max_wait is not None:
            after = spec.run_at or self.now + seconds(spec.delay or 0.0)
            latest = max(after, self.now) + seconds(agent.max_wait)
            deadline = min(latest, deadline or latest)
        return replace(spec, retry=retry, deadline_at=deadline)

    def hold_back(self, picked: Sequence[ModelJob]) -> bool:
        """Put off what waits for the disabled agents among these; False if there are none."""
        agents = [self.agents.get((job.tenant, job.spec.agent or "")) for job in picked]
        shut = [agent for agent in agents if agent is not None and agent.disabled]
        for agent in shut:
            for job in self._jobs_of(agent):
                if job.claimable:
                    job.due_at, job.note = self.now + HOLD, {"held": "agent_disabled"}
        return bool(shut)
