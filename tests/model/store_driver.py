"""Drives a store with the commands of the model: leases have names, and responses omit store-specific numbers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from holdfast.engine.job import (
    EVERY_TENANT,
    Artifact,
    Attempt,
    Claim,
    Enqueued,
    Event,
    Job,
    JobSpec,
    Result,
    Sweep,
    Verdict,
)
from holdfast.engine.order import Move
from holdfast.engine.settlement import Settlement
from holdfast.engine.states import State
from holdfast.engine.steps import Saved, Step, StepEntry
from holdfast.features.agents.model import Agent, Definition
from holdfast.features.approvals.model import Answer, Approval, ApprovalFilter, Ballot, Vote
from holdfast.features.assembly import Store, open_store
from holdfast.features.health.model import Health
from holdfast.features.limits.model import Limit, ReservationRequest, ReservationStatus, Rule
from holdfast.features.payloads.model import RuleDraft
from holdfast.features.workflows.model import Graph, Started, Swept, WorkflowSpec
from holdfast.stores.flow import Flow, Rows, Statement, Steps
from holdfast.stores.reader import Dialect
from holdfast.stores.requests import ClaimRequest, JobFilter, OperatorAction, Reschedule, SendEvent, SentResult
from tests.support.stores import new_id

T = TypeVar("T")

UNKNOWN_TOKEN = str(uuid.UUID(int=7))


class PowerCut(Exception):
    """Raised in the middle of a transaction."""


def cut(flow: Flow[T], after: int) -> Flow[T]:
    """Abort the flow after `after` statements (at the latest after its last), before its commit."""

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


def single_statement(statement: Statement) -> Flow[Rows]:
    """Wrap one statement as a flow."""

    def steps() -> Steps[Rows]:
        rows = yield statement
        return rows

    return Flow(steps)


class StoreDriver:
    def __init__(self, url: str) -> None:
        self.url = url
        self.store: Store = open_store(url)
        self.leases: dict[str, str] = {}
        self.cursor: str | None = None
        self.event_labels: dict[str, str] = {}
        """Names of the events in the test, by their ids in this store."""

    def __str__(self) -> str:
        return self.url.split(":")[0]

    def restart(self) -> None:
        """Reopen the store: all memory of the process is lost, the database remains (CX-15)."""
        self.store.close()
        self.store = open_store(self.url)

    def token(self, name: str) -> str:
        return self.leases.get(name, UNKNOWN_TOKEN)

    def name(self, token: str) -> str:
        return next(name for name, known in self.leases.items() if known == token)

    # -- commands ------------------------------------------------------------------------------------------------

    def set_clock(self, now: datetime) -> None:
        self.store.run(self.store.clock.set(timedelta(), now))

    def enqueue(self, specs: Sequence[JobSpec], tenant: str) -> list[Enqueued]:
        return self.store.run(self.store.jobs.enqueue(specs, tenant))

    def open_lease(self, name: str, holder: str, ttl: float, tenant: str) -> datetime:
        lease = self.store.run(self.store.leases.open(holder, ttl, tenant))
        self.leases[name] = lease.id
        return lease.until

    def renew_lease(self, name: str, ttl: float, tenant: str) -> bool:
        return bool(self.store.run(self.store.leases.renew(self.token(name), ttl, tenant)))

    def end_lease(self, name: str, why: str, tenant: str) -> bool:
        return self.store.run(self.store.leases.end(self.token(name), why, tenant))

    def reserve(self, ask: ReservationRequest, actor: str, tenant: str) -> ReservationStatus:
        return self.store.run(self.store.reservations.set(ask, actor, tenant))

    def release_reservation(self, reservation_id: str, why: str, actor: str, tenant: str) -> bool:
        return self.store.run(self.store.reservations.release(reservation_id, why, actor, tenant))

    def set_limit(self, rule: Rule, actor: str, tenant: str) -> Limit:
        return self.store.run(self.store.limits.set(rule, actor, tenant))

    def remove_limit(self, scope: str, name: str, actor: str, tenant: str) -> bool:
        return self.store.run(self.store.limits.remove(scope, name, actor, tenant))

    def attend_limits(self) -> None:
        """Run until nothing is left. The number of runs differs between the stores."""
        while self.store.run(self.store.limits.attend()):
            pass

    def start_workflow(self, spec: WorkflowSpec, tenant: str) -> Started:
        return self.store.run(self.store.workflows.start(spec, tenant))

    def cancel_workflow(self, flow_id: str, reason: str | None, actor: str, tenant: str) -> Swept:
        return self.store.run(self.store.workflows.cancel(flow_id, reason, actor, tenant))

    def resume_workflow(self, flow_id: str, reason: str | None, actor: str, tenant: str) -> Swept:
        return self.store.run(self.store.workflows.resume(flow_id, reason, actor, tenant))

    def claim_flow(self, request: ClaimRequest) -> Flow[list[Claim]]:
        return self.store.leases.claim(replace(request, lease=self.token(request.lease)))

    def claim(self, request: ClaimRequest) -> list[Claim]:
        claims = self.store.run(self.claim_flow(request))
        return [replace(claim, lease=self.name(claim.lease), position=0) for claim in claims]

    def exchange(self, settlements: Sequence[Settlement], request: ClaimRequest) -> tuple[list[str], list[Claim], bool]:
        result = self.store.run(
            self.store.leases.exchange(settlements, replace(request, lease=self.token(request.lease)))
        )
        claims = [replace(claim, lease=self.name(claim.lease), position=0) for claim in result.claims]
        return sorted(result.stale), claims, result.live

    def start(self, lease: str, ids: Sequence[str], tenant: str) -> dict[str, int]:
        return self.store.run(self.store.leases.start(self.token(lease), ids, tenant))

    def release(self, lease: str, ids: Sequence[str], tenant: str) -> list[str]:
        return sorted(self.store.run(self.store.leases.release(self.token(lease), ids, tenant)))

    def settle(self, lease: str, settlements: Sequence[Settlement], tenant: str) -> list[str]:
        return sorted(self.store.run(self.store.leases.settle(self.token(lease), settlements, tenant)))

    def save_checkpoint(self, job_id: str, lease: str, attempt: int, name: str, value: str, tenant: str) -> bool:
        flow = self.store.steps.save_checkpoint(job_id, self.token(lease), attempt, name, value, tenant)
        return self.store.run(flow)

    def add_artifact(self, job_id: str, lease: str, attempt: int, name: str, ref: str, tenant: str) -> bool:
        return self.store.run(self.store.steps.add_artifact(job_id, self.token(lease), attempt, name, ref, tenant))

    def promote_due(self, want: int, tenant: str) -> int:
        return self.store.run(self.store.leases.promote(want, tenant))

    def expire_overdue(self, want: int, tenant: str) -> int:
        return self.store.run(self.store.leases.expire(want, tenant))

    def reap_lapsed(self, want: int, tenant: str) -> Sweep:
        return self.store.run(self.store.leases.reap(want, tenant))

    def operate(
        self,
        operation: OperatorAction,
        ids: Sequence[str],
        reason: str | None,
        actor: str,
        tenant: str,
        limit: int | None = None,
    ) -> list[Verdict]:
        return self.store.run(self.store.jobs.operate(operation, ids, reason, actor, tenant, limit))

    def reschedule(
        self, ids: Sequence[str], when: Reschedule, reason: str | None, actor: str, tenant: str
    ) -> list[Verdict]:
        return self.store.run(self.store.jobs.reschedule(ids, when, reason, actor, tenant))

    def save_steps(self, lease: str, entries: Sequence[tuple[str, int, StepEntry]], tenant: str) -> list[Saved]:
        """Return the results in the order of the entries."""
        order = {(job_id, entry.n): index for index, (job_id, _, entry) in enumerate(entries)}
        results = self.store.run(self.store.steps.save(self.token(lease), entries, tenant))
        named = [replace(result, value=self._named(result.value)) for result in results]
        return sorted(named, key=lambda result: order[result.job_id, result.n])

    def rewind(self, job_id: str, to: int, actor: str, tenant: str) -> int | None:
        return self.store.run(self.store.steps.rewind(job_id, to, actor, tenant))

    def send_event(
        self, label: str, name: str, data: str, key: str | None, job_id: str | None, actor: str, tenant: str
    ) -> SentResult:
        sent = self.store.run(self.store.ledger.send(SendEvent(new_id(), name, data, key, job_id), actor, tenant))
        return replace(sent, id=self.event_labels.setdefault(sent.id, label))

    def _named(self, value: Any) -> Any:
        """Replace the id of an event by its name in the test."""
        known = isinstance(value, dict) and value.get("id") in self.event_labels
        return value | {"id": self.event_labels[value["id"]]} if known else value

    def decide_approval(self, approval_id: str, ballot: Ballot, tenant: str) -> Answer:
        return self.store.run(self.store.approvals.decide(approval_id, ballot, tenant))

    def save_approval_token(
        self, approval_id: str, token_hash: str, person: str | None, ttl: float | None, actor: str, tenant: str
    ) -> str | None:
        return self.store.run(self.store.approvals.save_token(approval_id, token_hash, person, ttl, actor, tenant))

    def attend_approvals(self, want: int, tenant: str) -> int:
        return self.store.run(self.store.approvals.attend(want, tenant))

    def move(self, job_id: str, move: Move, reason: str | None, actor: str, tenant: str) -> Verdict:
        return self.store.run(self.store.jobs.move(job_id, move, reason, actor, tenant))

    def replace_payload(self, job_id: str, payload: str, reason: str, actor: str, tenant: str) -> Verdict:
        """Allow it for every kind first: the payload rule is not part of the model."""
        self.store.run(self.store.payload_rules.set(RuleDraft.of(replaceable=True), "an operator", EVERY_TENANT))
        return self.store.run(self.store.jobs.replace_payload(job_id, payload, reason, actor, tenant))

    def register_agent(self, definition: Definition, tenant: str) -> Agent | None:
        return self.store.run(self.store.agents.set(definition, tenant))

    def disable_agent(self, agent: str, reason: str, actor: str, tenant: str) -> Agent | None:
        return self.store.run(self.store.agents.disable(agent, reason, actor, tenant))

    def enable_agent(self, agent: str, tenant: str) -> Agent | None:
        return self.store.run(self.store.agents.enable(agent, tenant))

    def resume_agent(self, agent: str, tenant: str) -> int:
        return self.store.run(self.store.agents.resume(agent, 1000, tenant))

    def execute_sql(self, sql: str, **params: object) -> None:
        """Run hand-written SQL with ``{table}`` and ``:parameter``."""
        dialect: Dialect = self.store.clock.dialect  # type: ignore[attr-defined]
        self.store.run(single_statement(dialect.read(sql, **params)))

    # -- reads ---------------------------------------------------------------------------------------------------

    def get(self, job_id: str, tenant: str) -> Job | None:
        job = self.store.run(self.store.jobs.get(job_id, tenant))
        return None if job is None else replace(job, position=0)

    def list_jobs(self, wanted: JobFilter) -> list[Job]:
        return self.store.run(self.store.jobs.list(wanted))

    def new_events(self) -> Iterator[Event]:
        """Yield the events since the last call, as a consumer reads them, in small pages."""
        while True:
            page = self.store.run(self.store.ledger.read(self.cursor, 7, "*"))
            for event in page:
                self.cursor = event.cursor
                yield replace(event, seq=0, cursor="")
            if not page:
                return

    def history(self, job_id: str, tenant: str) -> list[Event]:
        return [replace(event, seq=0) for event in self.store.run(self.store.jobs.history(job_id, tenant))]

    def attempts(self, job_id: str, tenant: str) -> list[Attempt]:
        return self.store.run(self.store.jobs.attempts(job_id, tenant))

    def artifacts(self, job_id: str, tenant: str) -> list[Artifact]:
        return self.store.run(self.store.jobs.artifacts(job_id, tenant))

    def checkpoints(self, job_id: str, tenant: str) -> list[tuple[str, object]]:
        return list(self.store.run(self.store.jobs.checkpoints(job_id, tenant)).items())

    def result(self, job_id: str, tenant: str) -> Result | None:
        return self.store.run(self.store.jobs.result(job_id, tenant))

    def steps(self, job_id: str, tenant: str) -> list[Step]:
        steps = self.store.run(self.store.steps.list(job_id, tenant))
        return [replace(step, value=self._named(step.value)) for step in steps]

    def approvals(self, wanted: ApprovalFilter) -> list[Approval]:
        return self.store.run(self.store.approvals.list(wanted))

    def limits(self, tenant: str) -> list[Limit]:
        return self.store.run(self.store.limits.list(tenant))

    def graph(self, flow_id: str) -> Graph:
        graph = self.store.run(self.store.workflows.graph(flow_id, "*"))
        assert graph is not None
        return graph

    def votes(self, approval_id: str, tenant: str) -> list[Vote]:
        return self.store.run(self.store.approvals.votes(approval_id, tenant))

    def counts(self, tenant: str) -> dict[State, int]:
        return self.store.run(self.store.jobs.counts(tenant))

    def health(self, tenant: str) -> Health:
        return self.store.run(self.store.health.get(tenant))
