"""Model of which queued jobs may start: agents that refuse or defer jobs, reservations, and concurrency limits.

The model never parks a job. A store may take jobs without a free slot out of the queue: at which of several full
limits, and whether a job with a free slot waits for the next maintenance run, differs between the stores. The jobs
that start must be the same: in queue order, all but those with a full limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from holdfast.engine.job import EVERY_TENANT, JobSpec
from holdfast.engine.states import HELD, State
from holdfast.features.agents.model import DISABLED_DELAY, Agent, AgentRefusal, Definition, agent_refusal
from holdfast.features.limits.model import (
    EACH,
    SCOPES,
    Bucket,
    Limit,
    ReservationRequest,
    ReservationState,
    ReservationStatus,
    Rule,
)
from tests.model.model_base import ModelJob, seconds
from tests.model.model_operations import OperationsModel


class AgentsModel(OperationsModel):
    def _with_waiting(self, agent: Agent | None) -> Agent | None:
        """Add the number of waiting jobs, which is counted when the agent is read."""
        if agent is None:
            return None
        waiting = [job for job in self._jobs_of(agent) if job.state in (State.QUEUED, State.RETRY_WAITING)]
        return replace(agent, waiting=len(waiting))

    def _jobs_of(self, agent: Agent) -> list[ModelJob]:
        return [job for job in self.within(agent.tenant) if job.spec.agent == agent.id]

    def set_agent(self, definition: Definition, tenant: str) -> Agent | None:
        given: dict[str, Any] = {each.name: getattr(definition, each.name) for each in fields(definition)}
        given["backoff"] = None if definition.backoff is None else definition.backoff.to_json()
        disabled: dict[str, Any] = dict.fromkeys(("disabled_at", "disabled_by", "disabled_reason"))
        new = Agent(tenant=tenant, **given, **disabled, created_at=self.now, updated_at=self.now, waiting=0)
        old = self.agents.get((tenant, definition.id))
        if old is not None:
            new = replace(new, **{name: getattr(old, name) for name in (*disabled, "created_at")})
            if replace(new, updated_at=old.updated_at) == old:
                new = old
        self.agents[tenant, definition.id] = new
        return self._with_waiting(new)

    def disable_agent(self, agent: str, reason: str, actor: str, tenant: str) -> Agent | None:
        known = self.agents.get((tenant, agent))
        if known is not None and not known.disabled:
            changes = {"disabled_at": self.now, "disabled_by": actor, "disabled_reason": reason, "updated_at": self.now}
            known = self.agents[tenant, agent] = replace(known, **changes)  # type: ignore[arg-type]
        return self._with_waiting(known)

    def enable_agent(self, agent: str, tenant: str) -> Agent | None:
        known = self.agents.get((tenant, agent))
        if known is not None and known.disabled:
            known = replace(known, disabled_at=None, disabled_by=None, disabled_reason=None, updated_at=self.now)
            self.agents[tenant, agent] = known
        return self._with_waiting(known)

    def resume_agent(self, agent: str, tenant: str) -> int:
        """Make the jobs due that were deferred while the agent was disabled."""
        known = self.agents.get((tenant, agent))
        if known is not None and known.disabled:
            return 0
        jobs = [job for job in self.within(tenant) if job.spec.agent == agent and job.state is State.QUEUED]
        held = [job for job in jobs if job.due_at is not None and "held" in (job.note or {})]
        for job in held:
            job.due_at = job.note = None
        return len(held)

    def refusal(self, spec: JobSpec, tenant: str) -> AgentRefusal | None:
        agent = self.agents.get((tenant, spec.agent or ""))
        return None if agent is None else agent_refusal(agent, spec.kind, len(spec.payload.encode()))

    def with_agent_policy(self, spec: JobSpec, tenant: str) -> JobSpec:
        """Apply the call's retry policy, else the agent's, else the kind's; and the agent's deadline, if it has one."""
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

    def defer_disabled(self, picked: Sequence[ModelJob]) -> bool:
        """Defer all claimable jobs of the disabled agents among these; False if no agent is disabled."""
        agents = [self.agents.get((job.tenant, job.spec.agent or "")) for job in picked]
        disabled = [agent for agent in agents if agent is not None and agent.disabled]
        for agent in disabled:
            for job in self._jobs_of(agent):
                if job.claimable:
                    job.due_at, job.note = self.now + DISABLED_DELAY, {"held": "agent_disabled"}
        return bool(disabled)


@dataclass
class ModelReservation:
    id: str
    tenant: str
    scope: str
    name: str
    asked_at: datetime
    expires_at: datetime
    state: ReservationState = "waiting"

    def covers(self, job: ModelJob) -> bool:
        if self.tenant not in (EVERY_TENANT, job.tenant):
            return False
        if self.scope == "resource":
            return f"resource:{self.name}" in job.spec.uses
        return self.scope == "all" or self.name == job.spec.queue

    def conflicts(self, other: ModelReservation) -> bool:
        ours = self.tenant == other.tenant or EVERY_TENANT in (self.tenant, other.tenant)
        same = (self.scope, self.name) == (other.scope, other.name) or "all" in (self.scope, other.scope)
        return self is not other and ours and same


class ReservationsModel(AgentsModel):
    def __init__(self, now: datetime) -> None:
        super().__init__(now)
        self.reservations: dict[str, ModelReservation] = {}

    def _status(self, own: ModelReservation) -> ReservationStatus:
        state = "expired" if own.state in ("waiting", "active") and own.expires_at <= self.now else own.state
        running = sum(job.state in HELD and own.covers(job) for job in self.jobs.values())
        return ReservationStatus(state, running, len(self._ahead(own)))

    def _ahead(self, own: ModelReservation) -> list[ModelReservation]:
        """Return the conflicting reservations that are active or older. An expired one blocks nothing."""
        alive = [each for each in self.reservations.values() if each.expires_at > self.now and each.conflicts(own)]
        order = (own.asked_at, own.id)
        return [
            each
            for each in alive
            if each.state == "active" or (each.state == "waiting" and (each.asked_at, each.id) < order)
        ]

    def reserve(self, ask: ReservationRequest, actor: str, tenant: str) -> ReservationStatus:
        until = self.now + seconds(ask.ttl)
        own = self.reservations.get(ask.id)
        if own is None:
            own = ModelReservation(ask.id, tenant, ask.scope, ask.name, self.now, until)
            self.reservations[ask.id] = own
        elif own.state in ("waiting", "active") and own.expires_at > self.now:
            own.expires_at = max(own.expires_at, until)
        if own.state == "waiting" and own.expires_at > self.now and not self._ahead(own):
            self.expire_reservations()
            own.state, own.expires_at = "active", until
        return self._status(own)

    def expire_reservations(self) -> None:
        for each in self.reservations.values():
            if each.expires_at <= self.now and each.state in ("waiting", "active"):
                each.state = "withdrawn" if each.state == "waiting" else "expired"

    def release_reservation(self, reservation_id: str, why: str, actor: str, tenant: str) -> bool:
        own = self.reservations.get(reservation_id)
        if own is None or own.state not in ("waiting", "active") or tenant not in (EVERY_TENANT, own.tenant):
            return False
        over = own.state == "active" and own.expires_at <= self.now
        own.state = "withdrawn" if own.state == "waiting" else "expired" if over else "released"
        return not over

    def is_reserved(self, job: ModelJob) -> bool:
        active = [each for each in self.reservations.values() if each.state == "active" and each.expires_at > self.now]
        return any(each.covers(job) for each in active)


def limit_names(job: ModelJob, scope: str) -> list[str]:
    """Return the names under which a job counts in a scope."""
    if scope in ("key", "resource"):
        return [use.partition(":")[2] for use in job.spec.uses if use.startswith(f"{scope}:")]
    own = {"all": EACH, "queue": job.spec.queue, "kind": job.spec.kind, "tenant": job.tenant, "agent": job.spec.agent}
    name = own[scope]
    return [] if name is None else [name]


def counts(bucket: Bucket, job: ModelJob) -> bool:
    if bucket.tenant not in (EVERY_TENANT, job.tenant):
        return False
    names = limit_names(job, bucket.scope)
    return bucket.name in names or (bucket.name == EACH and bool(names))


class LimitsModel(ReservationsModel):
    def __init__(self, now: datetime) -> None:
        super().__init__(now)
        self.limits: dict[Bucket, Limit] = {}
        self.may_park = False
        """Whether a store has ever had a reason to park a job."""

    def set_limit(self, rule: Rule, actor: str, tenant: str) -> Limit:
        self.may_park = True
        what = Bucket(tenant, rule.scope, rule.name)
        old = self.limits.get(what)
        if old is None or old.concurrency != rule.concurrency:
            since = self.now if old is None else old.created_at
            new = Limit(*what, rule.concurrency, None, None, None, actor, since, self.now)
            self.limits[what] = new
        return self.limits[what]

    def reserve(self, ask: ReservationRequest, actor: str, tenant: str) -> ReservationStatus:
        self.may_park |= ask.scope == "resource"
        return super().reserve(ask, actor, tenant)

    @property
    def limited(self) -> bool:
        """Whether any limit applies. A reserved resource is a limit of zero for jobs that need it."""
        pending = [each for each in self.reservations.values() if each.state in ("waiting", "active")]
        return bool(self.limits) or any(each.scope == "resource" for each in pending)

    def remove_limit(self, scope: str, name: str, actor: str, tenant: str) -> bool:
        return self.limits.pop(Bucket(tenant, scope, name), None) is not None

    def attend_limits(self) -> None:
        self.expire_reservations()

    def limits_of(self, tenant: str) -> list[Limit]:
        """Return the limits with the number of running jobs."""
        ours = {what: each for what, each in self.limits.items() if tenant in (EVERY_TENANT, each.tenant)}
        ours |= {what: each for what, each in self.limits.items() if each.tenant == EVERY_TENANT}
        held = [job for job in self.jobs.values() if job.state in HELD]
        limits = [replace(each, running=sum(counts(what, job) for job in held)) for what, each in ours.items()]
        order: list[str] = list(SCOPES)
        return sorted(limits, key=lambda limit: (order.index(limit.scope), limit.name, limit.tenant))

    def admit(self, jobs: Sequence[ModelJob], want: int) -> list[ModelJob]:
        """Return the first jobs with a free slot at all their limits, counting those admitted before."""
        held = [job for job in self.jobs.values() if job.state in HELD]
        taken: list[ModelJob] = []
        for job in jobs:
            if len(taken) < want and not self._full(job, [*held, *taken]):
                taken.append(job)
        return taken

    def _full(self, job: ModelJob, held: Sequence[ModelJob]) -> bool:
        for whose in (EVERY_TENANT, job.tenant):
            for scope in SCOPES:
                for name in limit_names(job, scope):
                    bucket = Bucket(whose, scope, name)
                    # A limit for one name takes precedence over the limit for each name.
                    limit = self.limits.get(bucket) or self.limits.get(Bucket(whose, scope, EACH))
                    most = None if limit is None else limit.concurrency
                    if most is not None and sum(counts(bucket, other) for other in held) >= most:
                        return True
        return False
