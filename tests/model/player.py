"""A store behind the same commands as the model: names for leases, and answers without each store's own numbers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from holdfast.engine.job import Artifact, Attempt, Claim, Enqueued, Event, Job, JobSpec, Result, Sweep, Verdict
from holdfast.engine.order import Move
from holdfast.engine.settlement import Settlement
from holdfast.engine.states import State
from holdfast.engine.steps import Saved, Step, StepEntry
from holdfast.features.agents.model import Agent, Definition
from holdfast.features.approvals.model import Answer, Ballot, Gate, GateFilter, Vote
from holdfast.features.assembly import Verbs, open_store
from holdfast.features.health.model import Health
from holdfast.features.limits.model import Ask, Limit, Rule, Standing
from holdfast.features.workflows.model import Graph, Started, Swept, WorkflowSpec
from holdfast.stores.flow import Flow, Rows, Statement, Steps
from holdfast.stores.port import Store
from holdfast.stores.reader import Dialect
from holdfast.stores.requests import ClaimRequest, JobFilter, OperatorVerb, Reschedule, Sent, Telling
from tests.support.stores import new_id

T = TypeVar("T")

NOBODY = str(uuid.UUID(int=7))


class PowerCut(Exception):
    """Raised in the middle of a transaction."""


def cut(flow: Flow[T], after: int) -> Flow[T]:
    """The flow, broken off after so many statements (at the latest after its last), before its commit."""

    def steps() -> Steps[T]:
        inner = flow.start()
        try:
            statement = next(inner)
            for _ in range(after):
                statement = inner.send((yield statement))
        except StopIteration:
            pass
        finally:
            inner.close()
        raise PowerCut

    return Flow(steps, flow.writes)


def asking(statement: Statement) -> Flow[Rows]:
    """One statement by hand, as a flow."""

    def steps() -> Steps[Rows]:
        rows = yield statement
        return rows

    return Flow(steps)


class Player:
    def __init__(self, url: str) -> None:
        self.url = url
        self.store: Store = open_store(url)
        self.leases: dict[str, str] = {}
        self.cursor: str | None = None
        self.told: dict[str, str] = {}
        """What the test calls the events, by the ids this store gave them."""

    @property
    def verbs(self) -> Verbs:
        return self.store.verbs

    def __str__(self) -> str:
        return self.url.split(":")[0]

    def restart(self) -> None:
        """Everything this process knew is gone; the database is what is left (CX-15)."""
        self.store.close()
        self.store = open_store(self.url)

    def token(self, name: str) -> str:
        return self.leases.get(name, NOBODY)

    def name(self, token: str) -> str:
        return next(name for name, known in self.leases.items() if known == token)

    # -- commands ------------------------------------------------------------------------------------------------

    def set_clock(self, now: datetime) -> None:
        self.store.run(self.verbs.set_clock(timedelta(), now))

    def enqueue(self, specs: Sequence[JobSpec], tenant: str) -> list[Enqueued]:
        return self.store.run(self.verbs.enqueue(specs, tenant))

    def open_lease(self, name: str, holder: str, ttl: float, tenant: str) -> datetime:
        lease = self.store.run(self.verbs.open_lease(holder, ttl, tenant))
        self.leases[name] = lease.id
        return lease.until

    def renew_lease(self, name: str, ttl: float, tenant: str) -> bool:
        return self.store.run(self.verbs.renew_lease(self.token(name), ttl, tenant))

    def end_lease(self, name: str, why: str, tenant: str) -> bool:
        return self.store.run(self.verbs.end_lease(self.token(name), why, tenant))

    def reserve(self, ask: Ask, actor: str, tenant: str) -> Standing:
        return self.store.run(self.verbs.reserve(ask, actor, tenant))

    def release_reservation(self, reservation_id: str, why: str, actor: str, tenant: str) -> bool:
        return self.store.run(self.verbs.release_reservation(reservation_id, why, actor, tenant))

    def set_limit(self, rule: Rule, actor: str, tenant: str) -> Limit:
        return self.store.run(self.verbs.set_limit(rule, actor, tenant))

    def remove_limit(self, scope: str, name: str, actor: str, tenant: str) -> bool:
        return self.store.run(self.verbs.remove_limit(scope, name, actor, tenant))

    def attend_limits(self) -> None:
        """Until nothing is left to do: how many it were is each store's own."""
        while self.store.run(self.verbs.attend_limits()):
            pass

    def start_workflow(self, spec: WorkflowSpec, tenant: str) -> Started:
        return self.store.run(self.verbs.start_workflow(spec, tenant))

    def cancel_workflow(self, flow_id: str, reason: str | None, actor: str, tenant: str) -> Swept:
        return self.store.run(self.verbs.cancel_workflow(flow_id, reason, actor, tenant))

    def resume_workflow(self, flow_id: str, reason: str | None, actor: str, tenant: str) -> Swept:
        return self.store.run(self.verbs.resume_workflow(flow_id, reason, actor, tenant))

    def claiming(self, request: ClaimRequest) -> Flow[list[Claim]]:
        return self.verbs.claim(replace(request, lease=self.token(request.lease)))

    def claim(self, request: ClaimRequest) -> list[Claim]:
        claims = self.store.run(self.claiming(request))
        return [replace(claim, lease=self.name(claim.lease), position=0) for claim in claims]

    def take_turn(
        self, settlements: Sequence[Settlement], request: ClaimRequest
    ) -> tuple[list[str], list[Claim], bool]:
        turn = self.store.run(self.verbs.turn(settlements, replace(request, lease=self.token(request.lease))))
        claims = [replace(claim, lease=self.name(claim.lease), position=0) for claim in turn.claims]
        return sorted(turn.stale), claims, turn.live

    def start(self, lease: str, ids: Sequence[str], tenant: str) -> dict[str, int]:
        return self.store.run(self.verbs.start(self.token(lease), ids, tenant))

    def release(self, lease: str, ids: Sequence[str], tenant: str) -> list[str]:
        return sorted(self.store.run(self.verbs.release(self.token(lease), ids, tenant)))

    def settle(self, lease: str, settlements: Sequence[Settlement], tenant: str) -> list[str]:
        return sorted(self.store.run(self.verbs.settle(self.token(lease), settlements, tenant)))

    def save_checkpoint(self, job_id: str, lease: str, attempt: int, name: str, value: str, tenant: str) -> bool:
        flow = self.verbs.save_checkpoint(job_id, self.token(lease), attempt, name, value, tenant)
        return self.store.run(flow)

    def add_artifact(self, job_id: str, lease: str, attempt: int, name: str, ref: str, tenant: str) -> bool:
        return self.store.run(self.verbs.add_artifact(job_id, self.token(lease), attempt, name, ref, tenant))

    def promote_due(self, want: int, tenant: str) -> int:
        return self.store.run(self.verbs.promote_due(want, tenant))

    def expire_overdue(self, want: int, tenant: str) -> int:
        return self.store.run(self.verbs.expire_overdue(want, tenant))

    def reap_lapsed(self, want: int, tenant: str) -> Sweep:
        return self.store.run(self.verbs.reap_lapsed(want, tenant))

    def operate(
        self,
        verb: OperatorVerb,
        ids: Sequence[str],
        reason: str | None,
        actor: str,
        tenant: str,
        limit: int | None = None,
    ) -> list[Verdict]:
        return self.store.run(self.verbs.operate(verb, ids, reason, actor, tenant, limit))

    def reschedule(
        self, ids: Sequence[str], when: Reschedule, reason: str | None, actor: str, tenant: str
    ) -> list[Verdict]:
        return self.store.run(self.verbs.reschedule(ids, when, reason, actor, tenant))

    def save_steps(self, lease: str, entries: Sequence[tuple[str, int, StepEntry]], tenant: str) -> list[Saved]:
        """In the order in which they were offered."""
        places = {(job_id, entry.n): place for place, (job_id, _, entry) in enumerate(entries)}
        answers = self.store.run(self.verbs.save_steps(self.token(lease), entries, tenant))
        named = [replace(answer, value=self._named(answer.value)) for answer in answers]
        return sorted(named, key=lambda answer: places[answer.job_id, answer.n])

    def rewind(self, job_id: str, to: int, actor: str, tenant: str) -> int | None:
        return self.store.run(self.verbs.rewind(job_id, to, actor, tenant))

    def send_event(
        self, label: str, name: str, data: str, key: str | None, job_id: str | None, actor: str, tenant: str
    ) -> Sent:
        sent = self.store.run(self.verbs.send_event(Telling(new_id(), name, data, key, job_id), actor, tenant))
        return replace(sent, id=self.told.setdefault(sent.id, label))

    def _named(self, value: Any) -> Any:
        """An event with the name the test has for it."""
        known = isinstance(value, dict) and value.get("id") in self.told
        return value | {"id": self.told[value["id"]]} if known else value

    def decide_gate(self, gate_id: str, ballot: Ballot, tenant: str) -> Answer:
        return self.store.run(self.verbs.decide_gate(gate_id, ballot, tenant))

    def keep_gate_token(
        self, gate_id: str, token_hash: str, person: str | None, ttl: float | None, actor: str, tenant: str
    ) -> str | None:
        return self.store.run(self.verbs.keep_gate_token(gate_id, token_hash, person, ttl, actor, tenant))

    def attend_gates(self, want: int, tenant: str) -> int:
        return self.store.run(self.verbs.attend_gates(want, tenant))

    def move(self, job_id: str, move: Move, reason: str | None, actor: str, tenant: str) -> Verdict:
        return self.store.run(self.verbs.move(job_id, move, reason, actor, tenant))

    def register_agent(self, definition: Definition, tenant: str) -> Agent | None:
        return self.store.run(self.verbs.register_agent(definition, tenant))

    def disable_agent(self, agent: str, reason: str, actor: str, tenant: str) -> Agent | None:
        return self.store.run(self.verbs.disable_agent(agent, reason, actor, tenant))

    def enable_agent(self, agent: str, tenant: str) -> Agent | None:
        return self.store.run(self.verbs.enable_agent(agent, tenant))

    def resume_agent(self, agent: str, tenant: str) -> int:
        return self.store.run(self.verbs.resume_agent(agent, 1000, tenant))

    def by_hand(self, sql: str, **params: object) -> None:
        """SQL with ``{table}`` and ``:parameter``, as somebody with a shell would write it."""
        dialect: Dialect = vars(type(self.verbs)).get("dialect") or vars(self.verbs)["dialect"]
        self.store.run(asking(dialect.read(sql, **params)))

    # -- what can be seen ----------------------------------------------------------------------------------------

    def get(self, job_id: str, tenant: str) -> Job | None:
        job = self.store.run(self.verbs.get(job_id, tenant))
        return None if job is None else replace(job, position=0)

    def listed(self, wanted: JobFilter) -> list[Job]:
        return self.store.run(self.verbs.list_jobs(wanted))

    def new_events(self) -> Iterator[Event]:
        """What the ledger has had since the last time, as a consumer reads it, in small pages."""
        while True:
            page = self.store.run(self.verbs.events_after(self.cursor, 7, "*"))
            for event in page:
                self.cursor = event.cursor
                yield replace(event, seq=0, cursor="")
            if not page:
                return

    def history(self, job_id: str, tenant: str) -> list[Event]:
        return [replace(event, seq=0) for event in self.store.run(self.verbs.history(job_id, tenant))]

    def attempts(self, job_id: str, tenant: str) -> list[Attempt]:
        return self.store.run(self.verbs.attempts(job_id, tenant))

    def artifacts(self, job_id: str, tenant: str) -> list[Artifact]:
        return self.store.run(self.verbs.artifacts(job_id, tenant))

    def checkpoints(self, job_id: str, tenant: str) -> list[tuple[str, object]]:
        return list(self.store.run(self.verbs.checkpoints(job_id, tenant)).items())

    def result(self, job_id: str, tenant: str) -> Result | None:
        return self.store.run(self.verbs.result(job_id, tenant))

    def steps(self, job_id: str, tenant: str) -> list[Step]:
        found = self.store.run(self.verbs.steps(job_id, tenant))
        return [replace(step, value=self._named(step.value)) for step in found]

    def gates(self, wanted: GateFilter) -> list[Gate]:
        return self.store.run(self.verbs.gates(wanted))

    def limits(self, tenant: str) -> list[Limit]:
        return self.store.run(self.verbs.limits(tenant))

    def graph(self, flow_id: str) -> Graph:
        found = self.store.run(self.verbs.graph(flow_id, "*"))
        assert found is not None
        return found

    def votes(self, gate_id: str, tenant: str) -> list[Vote]:
        return self.store.run(self.verbs.votes(gate_id, tenant))

    def counts(self, tenant: str) -> dict[State, int]:
        return self.store.run(self.verbs.counts(tenant))

    def health(self, tenant: str) -> Health:
        return self.store.run(self.verbs.health(tenant))
