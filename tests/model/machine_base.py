"""Base of the state machine: the model and the stores, and helpers that draw useful jobs and leases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant

from holdfast.engine.job import JobSpec
from holdfast.engine.states import State
from tests.model.comparison import Comparison
from tests.model.model import Model
from tests.model.model_base import ModelJob
from tests.model.store_driver import StoreDriver
from tests.model.strategies import START, Draft, job_id

UNKNOWN = job_id(999_999, START)


class MachineBase(RuleBasedStateMachine):
    """``make_stores`` opens fresh stores for each example and registers their cleanup."""

    def __init__(self, make_stores: Callable[[ExitStack], dict[str, StoreDriver]]) -> None:
        super().__init__()
        self.closing = ExitStack()
        self.model = Model(START)
        self.comparison = Comparison(self.model, make_stores(self.closing))
        self.apply = self.comparison.apply
        self.drivers = self.comparison.drivers
        self.counter = 0
        self.sent: list[tuple[JobSpec, str]] = []
        self.pass_time(0.0)

    def teardown(self) -> None:
        self.closing.close()

    @invariant()
    def stores_match_model(self) -> None:
        self.comparison.check()

    def pass_time(self, seconds: float) -> None:
        self.model.now += timedelta(seconds=seconds)
        for driver in self.drivers.values():
            driver.set_clock(self.model.now)

    # -- drawing -----------------------------------------------------------------------------------------------

    def spec(self, draft: Draft, tenant: str) -> JobSpec:
        self.counter += 1
        own = draft.parent == "one"
        parents = [
            job.id for job in self.model.jobs.values() if (job.tenant == tenant) == own and not self.in_workflow(job)
        ]
        parent = None if draft.parent == "none" else UNKNOWN
        if parents and draft.parent in ("one", "foreign"):
            parent = parents[-1]
        return draft.spec(self.counter, self.model.now, parent)

    def in_workflow(self, job: ModelJob) -> bool:
        """Whether a child of the job would join its workflow, or be refused because the workflow has ended."""
        return job.spec.workflow_id in self.model.workflows

    def send(self, specs: Sequence[JobSpec], tenant: str) -> None:
        self.apply(lambda side: side.enqueue(specs, tenant))
        self.sent += [(spec, tenant) for spec in specs]

    def due_times(self) -> list[datetime]:
        """Return the times at which something becomes due, passes its deadline, or expires."""
        jobs = [moment for job in self.model.jobs.values() for moment in (job.due_at, job.spec.deadline_at)]
        leases = [lease.until for lease in self.model.leases.values()]
        approvals = [approval.next for approval in self.model.approvals.values() if approval.record.state == "open"]
        return [moment for moment in (*jobs, *leases, *approvals) if moment is not None]

    def ids(self, *states: State) -> list[str]:
        return [job.id for job in self.model.jobs.values() if job.state in states]

    def live_leases(self) -> list[str]:
        return [name for name, lease in self.model.leases.items() if self.model.live(lease)]

    def leases_holding(self, state: State) -> list[str]:
        return [name for name in self.model.leases if self.model.held_by(name, state)]

    def any_job(self, data: st.DataObject, prefer: Sequence[str] = ()) -> ModelJob:
        """Draw one of the preferred jobs; any job if there are none."""
        chosen = data.draw(st.sampled_from(list(prefer) or list(self.model.jobs)), label="job")
        return self.model.jobs[chosen]

    def any_lease(self, data: st.DataObject, prefer: Sequence[str] = ()) -> tuple[str, str]:
        """Draw a lease, a preferred one if there is one, and a scope, which sometimes is the wrong one."""
        name = data.draw(st.sampled_from(list(prefer) or list(self.model.leases)), label="lease")
        own = self.model.leases[name].tenant
        mistakes = [(name, "a"), (name, "*"), ("unknown", own)]
        return data.draw(st.sampled_from([(name, own)] * 9 + mistakes), label="under")
