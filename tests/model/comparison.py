"""Applies each command to SQLite, PostgreSQL and the model, and compares everything that can be read afterwards."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from holdfast.engine.job import Event, Job
from holdfast.engine.states import State, Step, replay
from holdfast.errors import HoldfastError
from holdfast.features.approvals.model import ApprovalFilter
from holdfast.features.health.model import Health
from holdfast.features.limits.model import EACH, Bucket, Limit
from holdfast.features.workflows.model import Graph
from holdfast.stores.requests import JobFilter
from tests.model import views
from tests.model.model import Model
from tests.model.store_driver import StoreDriver
from tests.support.workflows import check

T = TypeVar("T")

SCOPES = ("a", "b", "*")


@dataclass(frozen=True)
class Refusal:
    """The type and code of an error: the part callers may rely on."""

    kind: str
    code: str


def call(command: Callable[[Model | StoreDriver], T], side: Model | StoreDriver) -> T | Refusal:
    try:
        return command(side)
    except HoldfastError as error:
        return Refusal(type(error).__name__, error.code)


def assert_same(actual: object, expected: object, what: str) -> None:
    """Raise an ``AssertionError`` that names the first difference: whole jobs are too long to read."""
    if actual == expected:
        return
    if isinstance(actual, list) and isinstance(expected, list) and len(actual) == len(expected):
        for number, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_same(one, other, f"{what}, number {number}")
    elif isinstance(actual, dict) and isinstance(expected, dict) and actual.keys() == expected.keys():
        for key in actual:
            assert_same(actual[key], expected[key], f"{what}, {key}")
    elif is_dataclass(actual) and type(actual) is type(expected):
        for each in fields(actual):
            assert_same(getattr(actual, each.name), getattr(expected, each.name), f"{what}: {each.name}")
    raise AssertionError(f"{what} is {actual!r}, the model has {expected!r}")


class Comparison:
    """The model beside the stores. ``types`` counts the event types that occurred, to measure coverage."""

    def __init__(self, model: Model, drivers: dict[str, StoreDriver]) -> None:
        self.model = model
        self.drivers = drivers
        self.types: Counter[str] = Counter()
        self._compared_events: dict[str, int] = defaultdict(int)
        self._checks = 0
        self._free_slots: dict[str, dict[Bucket, tuple[int, int]]] = defaultdict(dict)
        """Free slots and waiting jobs of each limit on each store at the last check."""

    def apply(self, command: Callable[[Model | StoreDriver], T]) -> T | Refusal:
        expected = call(command, self.model)
        self.model.advance()
        for name, driver in self.drivers.items():
            assert_same(call(command, driver), expected, f"the response of {name}")
        return expected

    def check(self) -> None:
        """Compare all jobs and new events; each call also compares one scope and the details of one further job."""
        touched = self._check_events() | self.model.touched
        self.model.touched.clear()
        self._checks += 1
        jobs = list(self.model.jobs)
        chosen = jobs[self._checks % len(jobs)] if jobs else None
        scope = SCOPES[self._checks % len(SCOPES)]
        for driver in self.drivers.values():
            self._check_jobs(driver)
            for job_id in touched | ({chosen} if chosen else set()):
                self._check_details(driver, job_id)
            if chosen:
                self._check_hidden(driver, chosen)
            if self.model.may_park:
                self._check_limits(driver, scope)
            for flow in self.model.workflows.values():
                assert_same(_flow_as_seen(driver.graph(flow.spec.id)), views.flow_of(flow), f"a workflow of {driver}")
        self._check_overview(scope)

    def _check_events(self) -> set[str]:
        """Compare the new events of each job. Events of different jobs in one batch have no promised order."""
        expected: dict[str, list[Event]] = {}
        for job in self.model.jobs.values():
            new = job.events[self._compared_events[job.id] :]
            if new:
                expected[job.id] = new
                self._compared_events[job.id] = len(job.events)
                self.types.update(event.type for event in new)
        for driver in self.drivers.values():
            assert_same(_by_job(driver.new_events()), expected, f"the new events of {driver}")
        return set(expected)

    def _check_jobs(self, driver: StoreDriver) -> None:
        everything = JobFilter(tenant="*", limit=1000)
        jobs = driver.list_jobs(everything)
        assert_same(without_positions(jobs), views.list_jobs(self.model, everything), f"the jobs of {driver}")
        order = [job.id for queue in ("bulk", "default") for job in self.model.queued_jobs("*", queue)]
        assert_same(_claim_order(jobs), order, f"the queues of {driver}")
        for job in jobs:
            assert 0 <= job.retries < job.max_attempts
            assert job.crashes <= job.max_crashes + 1
            assert (job.finished_at is not None) == job.state.finished

    def _check_limits(self, driver: StoreDriver, scope: str) -> None:
        """Compare the limits, and check that a freed slot releases a job that was parked for it at once."""
        limits = driver.limits("*")
        assert_same([replace(each, waiting=0) for each in limits], self.model.limits_of("*"), f"the limits of {driver}")
        if scope != "*":
            scoped = [replace(each, waiting=0) for each in driver.limits(scope)]
            assert_same(scoped, self.model.limits_of(scope), f"the limits of {driver} in {scope}")
        free = {each: max((each.concurrency or 0) - each.running, 0) for each in limits if _has_one_queue(each)}
        for limit, slots in free.items():
            before, parked = self._free_slots[str(driver)].get(_bucket(limit), (slots, limit.waiting))
            more = max(slots - before, 0)
            assert not more or limit.waiting <= max(parked - more, 0), f"{limit} on {driver}: {parked} waited before"
        self._free_slots[str(driver)] = {_bucket(limit): (slots, limit.waiting) for limit, slots in free.items()}

    def _check_overview(self, scope: str) -> None:
        reasons = set()
        every = ApprovalFilter(tenant=scope, state=None, limit=1000)
        for driver in self.drivers.values():
            where = f"{driver} in {scope}"
            if self.model.approvals:
                assert_same(driver.approvals(every), views.approvals_of(self.model, every), f"the approvals of {where}")
            assert_same(driver.counts(scope), views.counts_of(self.model, scope), f"counts of {where}")
            health, expected = driver.health(scope), views.health_of(self.model, scope)
            plain = replace(health, reasons=(), unserved=(), unserved_queues=(), workers=0, approvals_overdue=0)
            if self.model.may_park and health.backlog < expected.backlog:
                expected = _without_parked(expected, plain)
            else:
                reasons.add(health.reasons)
            assert_same(plain, expected, f"health of {where}")
        assert len(reasons) <= 1, reasons

    def _check_details(self, driver: StoreDriver, job_id: str) -> None:
        job = self.model.jobs[job_id]
        own = job.tenant
        history, attempts = driver.history(job_id, own), driver.attempts(job_id, own)
        assert_same(history, job.events, f"the history on {driver}")
        assert_same(attempts, views.attempts_of(job), f"the attempts on {driver}")
        assert_same(driver.get(job_id, own), views.job_of(job), f"the job on {driver}")
        for what in ("result", "checkpoints", "artifacts", "steps"):
            assert_same(
                getattr(driver, what)(job_id, own), getattr(views, f"{what}_of")(job), f"the {what} on {driver}"
            )
        for approval in self.model.approvals.values():
            if approval.record.job_id == job_id:
                votes = driver.votes(approval.record.id, own)
                assert_same(votes, self.model.votes_of(approval), f"the votes on {driver}")
        # The ledger replays to the job's state, and no job was started without an attempt (SC-4).
        assert replay(Step(event.type, event.from_state, event.to_state) for event in history) is job.state
        begun = [event.attempt for event in history if event.to_state is State.IN_PROGRESS]
        assert begun == [attempt.attempt for attempt in attempts] == list(range(1, job.attempt + 1))

    def _check_hidden(self, driver: StoreDriver, job_id: str) -> None:
        """Check that the other tenant cannot read the job."""
        foreign = "b" if self.model.jobs[job_id].tenant == "a" else "a"
        assert driver.get(job_id, foreign) is None
        assert driver.result(job_id, foreign) is None
        for read in (driver.history, driver.attempts, driver.checkpoints, driver.steps):
            assert read(job_id, foreign) == []


def without_positions(jobs: Iterable[Job]) -> list[Job]:
    """Remove the positions: each store numbers its queue differently."""
    return [replace(job, position=0) for job in jobs]


def _has_one_queue(limit: Limit) -> bool:
    """Exclude limits per name, where every name has its own queue, and resources, which may be reserved."""
    return limit.scope == "all" or (limit.name != EACH and limit.scope != "resource")


def _bucket(limit: Limit) -> Bucket:
    return Bucket(limit.tenant, limit.scope, limit.name)


def _flow_as_seen(graph: Graph) -> dict[str, object]:
    """Return the stored workflow, after checking that it follows from the states of its jobs."""
    flow = check(graph).workflow
    return {
        "jobs": {node.job_id: (node.status, node.unmet) for node in graph.nodes},
        "met": {(edge.child, edge.parent): edge.met for edge in graph.edges},
        "flow": (flow.stopped, flow.finished_at, flow.cancelled_at),
    }


def _without_parked(expected: Health, actual: Health) -> Health:
    """Adjust the expected health for jobs parked at a full limit, which are counted apart from the backlog."""
    assert set(actual.waiting_kinds) <= set(expected.waiting_kinds)
    parked = expected.backlog - actual.backlog
    same = ("in_progress", "dead_letter_open", "lease_active", "approvals_open", "oldest_approval_age_s")
    kept: dict[str, Any] = {name: getattr(expected, name) for name in same}
    return replace(actual, reasons=(), scheduled=expected.scheduled, parked=parked, **kept)


def _by_job(events: Iterable[Event]) -> dict[str, list[Event]]:
    grouped: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        grouped[event.job_id].append(event)
    return dict(grouped)


def _claim_order(jobs: list[Job]) -> list[str]:
    """Derive the claim order from the stored fields alone (SC-2)."""
    waiting = [job for job in jobs if job.state is State.QUEUED and job.due_at is None]
    ordered = sorted(waiting, key=lambda job: (job.queue, -job.priority, job.position))
    return [job.id for job in ordered]
