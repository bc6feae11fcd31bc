"""Drives a store with the commands of the model: leases have names, and responses omit store-specific numbers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from holdfast.engine.job import EVERY_TENANT, Claim, Event, Job, Verdict
from holdfast.engine.settlement import Settlement
from holdfast.engine.steps import Saved, Step, StepEntry
from holdfast.features.assembly import Store, open_store
from holdfast.features.payloads.model import RuleDraft
from holdfast.features.workflows.model import Graph
from holdfast.stores.flow import Flow, Rows, Steps
from holdfast.stores.reader import Dialect
from holdfast.stores.requests import ClaimRequest, SendEvent, SentResult
from tests.support.operations import operation
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


FORWARDED = {
    **{
        n: f"jobs.{n}"
        for n in ("enqueue", "operate", "reschedule", "move", "attempts", "artifacts", "result", "counts")
    },
    "reserve": "reservations.set",
    "release_reservation": "reservations.release",
    "set_limit": "limits.set",
    "remove_limit": "limits.remove",
    "start_workflow": "workflows.start",
    "cancel_workflow": "workflows.cancel",
    "resume_workflow": "workflows.resume",
    "promote_due": "leases.promote",
    "expire_overdue": "leases.expire",
    "recover_leases": "leases.recover",
    "rewind": "steps.rewind",
    "decide_approval": "approvals.decide",
    "save_approval_token": "approvals.save_token",
    "attend_approvals": "approvals.attend",
    "set_agent": "agents.set",
    "disable_agent": "agents.disable",
    "enable_agent": "agents.enable",
    "list_jobs": "jobs.list",
    "approvals": "approvals.list",
    "limits": "limits.list",
    "votes": "approvals.votes",
    "health": "health.get",
}
"""Operations of the store under the names that the model gives them; arguments and responses are the same."""


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

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in FORWARDED:
            raise AttributeError(name)
        return lambda *arguments: self.store.run(operation(self.store, FORWARDED[name])(*arguments))

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

    def open_lease(self, name: str, holder: str, ttl: float, tenant: str) -> datetime:
        lease = self.store.run(self.store.leases.open(holder, ttl, tenant))
        self.leases[name] = lease.id
        return lease.until

    def renew_lease(self, name: str, ttl: float, tenant: str) -> bool:
        return bool(self.store.run(self.store.leases.renew(self.token(name), ttl, tenant)))

    def end_lease(self, name: str, why: str, tenant: str) -> bool:
        return self.store.run(self.store.leases.end(self.token(name), why, tenant))

    def attend_limits(self) -> None:
        """Run until nothing is left. The number of runs differs between the stores."""
        while self.store.run(self.store.limits.attend()):
            pass

    def claim_flow(self, request: ClaimRequest) -> Flow[list[Claim]]:
        return self.store.leases.claim(replace(request, lease=self.token(request.lease)))

    def claim(self, request: ClaimRequest) -> list[Claim]:
        claims = self.store.run(self.claim_flow(request))
        return [replace(claim, lease=self.name(claim.lease), position=0) for claim in claims]

    def exchange(self, settlements: Sequence[Settlement], request: ClaimRequest) -> tuple[list[str], list[Claim], bool]:
        ours = replace(request, lease=self.token(request.lease))
        result = self.store.run(self.store.leases.exchange(settlements, ours))
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

    def save_steps(self, lease: str, entries: Sequence[tuple[str, int, StepEntry]], tenant: str) -> list[Saved]:
        """Return the results in the order of the entries."""
        order = {(job_id, entry.n): index for index, (job_id, _, entry) in enumerate(entries)}
        results = self.store.run(self.store.steps.save(self.token(lease), entries, tenant))
        named = [replace(result, value=self._named(result.value)) for result in results]
        return sorted(named, key=lambda result: order[result.job_id, result.n])

    def send_event(
        self, label: str, name: str, data: str, key: str | None, job_id: str | None, actor: str, tenant: str
    ) -> SentResult:
        sent = self.store.run(self.store.ledger.send(SendEvent(new_id(), name, data, key, job_id), actor, tenant))
        return replace(sent, id=self.event_labels.setdefault(sent.id, label))

    def _named(self, value: Any) -> Any:
        """Replace the id of an event by its name in the test."""
        known = isinstance(value, dict) and value.get("id") in self.event_labels
        return value | {"id": self.event_labels[value["id"]]} if known else value

    def replace_payload(self, job_id: str, payload: str, reason: str, actor: str, tenant: str) -> Verdict:
        """Allow it for every kind first: the payload rule is not part of the model."""
        self.store.run(self.store.payload_rules.set(RuleDraft.of(replaceable=True), "an operator", EVERY_TENANT))
        return self.store.run(self.store.jobs.replace_payload(job_id, payload, reason, actor, tenant))

    def resume_agent(self, agent: str, tenant: str) -> int:
        return self.store.run(self.store.agents.resume(agent, 1000, tenant))

    def execute_sql(self, sql: str, **params: object) -> None:
        """Run hand-written SQL with ``{table}`` and ``:parameter``."""
        dialect: Dialect = self.store.clock.dialect

        def steps() -> Steps[Rows]:
            return (yield dialect.read(sql, **params))

        self.store.run(Flow(steps))

    # -- reads ---------------------------------------------------------------------------------------------------

    def get(self, job_id: str, tenant: str) -> Job | None:
        job = self.store.run(self.store.jobs.get(job_id, tenant))
        return None if job is None else replace(job, position=0)

    def new_events(self) -> Iterator[Event]:
        """Yield the events since the last call, as a consumer reads them, in small pages."""
        while page := self.store.run(self.store.ledger.read(self.cursor, 7, "*")):
            self.cursor = page[-1].cursor
            yield from (replace(event, seq=0, cursor="") for event in page)

    def history(self, job_id: str, tenant: str) -> list[Event]:
        return [replace(event, seq=0) for event in self.store.run(self.store.jobs.history(job_id, tenant))]

    def checkpoints(self, job_id: str, tenant: str) -> list[tuple[str, object]]:
        return list(self.store.run(self.store.jobs.checkpoints(job_id, tenant)).items())

    def steps(self, job_id: str, tenant: str) -> list[Step]:
        steps = self.store.run(self.store.steps.list(job_id, tenant))
        return [replace(step, value=self._named(step.value)) for step in steps]

    def graph(self, flow_id: str) -> Graph:
        graph = self.store.run(self.store.workflows.graph(flow_id, "*"))
        assert graph is not None
        return graph
