"""One command for everybody, and everything that can be seen afterwards: SQLite = PostgreSQL = model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TypeVar

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
from tests.model.player import Player
from tests.support.workflows import check

T = TypeVar("T")

SCOPES = ("a", "b", "*")


@dataclass(frozen=True)
class Refusal:
    """What was raised, as far as callers may rely on it."""

    kind: str
    code: str


def answer(command: Callable[[Model | Player], T], side: Model | Player) -> T | Refusal:
    try:
        return command(side)
    except HoldfastError as error:
        return Refusal(type(error).__name__, error.code)


def same(found: object, expected: object, what: str) -> None:
    """Equal, or an ``AssertionError`` that names the first difference: whole jobs are too much to read."""
    if found == expected:
        return
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            same(one, other, f"{what}, number {number}")
    elif isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        for key in found:
            same(found[key], expected[key], f"{what}, {key}")
    elif is_dataclass(found) and type(found) is type(expected):
        for each in fields(found):
            same(getattr(found, each.name), getattr(expected, each.name), f"{what}: {each.name}")
    raise AssertionError(f"{what} is {found!r}, the model has {expected!r}")


class Comparison:
    """The model beside the stores. ``operations`` counts the steps that were seen, to show that tests get about."""

    def __init__(self, model: Model, players: dict[str, Player]) -> None:
        self.model = model
        self.players = players
        self.types: Counter[str] = Counter()
        self._told: dict[str, int] = defaultdict(int)
        self._turn = 0
        self._rooms: dict[str, dict[Bucket, tuple[int, int]]] = defaultdict(dict)
        """How many had room and how many waited at a limit on each store."""

    def play(self, command: Callable[[Model | Player], T]) -> T | Refusal:
        expected = answer(command, self.model)
        self.model.advance()
        for name, player in self.players.items():
            same(answer(command, player), expected, f"the answer of {name}")
        return expected

    def check(self) -> None:
        """All jobs, all news; one scope and one of the other jobs after another in their turn."""
        touched = self._check_events() | self.model.touched
        self.model.touched.clear()
        self._turn += 1
        jobs = list(self.model.jobs)
        chosen = jobs[self._turn % len(jobs)] if jobs else None
        scope = SCOPES[self._turn % len(SCOPES)]
        for player in self.players.values():
            self._check_jobs(player)
            for job_id in touched | ({chosen} if chosen else set()):
                self._check_details(player, job_id)
            if chosen:
                self._check_hidden(player, chosen)
            if self.model.may_park:
                self._check_limits(player, scope)
            for flow in self.model.flows.values():
                same(_flow_as_seen(player.graph(flow.spec.id)), views.flow_of(flow), f"a workflow of {player}")
        self._check_overview(scope)

    def _check_events(self) -> set[str]:
        """Consumers have been told the same of each job. Between jobs of one batch there is no order."""
        expected: dict[str, list[Event]] = {}
        for job in self.model.jobs.values():
            new = job.events[self._told[job.id] :]
            if new:
                expected[job.id] = [views.event_of(job, event) for event in new]
                self._told[job.id] = len(job.events)
                self.types.update(event.type for event in new)
        for player in self.players.values():
            same(_by_job(player.new_events()), expected, f"the new events of {player}")
        return set(expected)

    def _check_jobs(self, player: Player) -> None:
        everything = JobFilter(tenant="*", limit=1000)
        found = player.listed(everything)
        same(unplaced(found), views.listed(self.model, everything), f"the jobs of {player}")
        order = [job.id for queue in ("bulk", "default") for job in self.model.line("*", queue)]
        same(_claim_order(found), order, f"the queues of {player}")
        for job in found:
            assert 0 <= job.retries < job.max_attempts
            assert job.crashes <= job.max_crashes + 1
            assert (job.finished_at is not None) == job.state.finished

    def _check_limits(self, player: Player, scope: str) -> None:
        """Also that a place that becomes free lets somebody go on at once, who was parked for it."""
        found = player.limits("*")
        same([replace(each, waiting=0) for each in found], self.model.limits_of("*"), f"the limits of {player}")
        if scope != "*":
            seen = [replace(each, waiting=0) for each in player.limits(scope)]
            same(seen, self.model.limits_of(scope), f"the limits of {player} in {scope}")
        rooms = {each: max((each.concurrency or 0) - each.running, 0) for each in found if _one_line(each)}
        for each, room in rooms.items():
            before, parked = self._rooms[str(player)].get(_what(each), (room, each.waiting))
            more = max(room - before, 0)
            assert not more or each.waiting <= max(parked - more, 0), f"{each} on {player}: {parked} waited before"
        self._rooms[str(player)] = {_what(each): (room, each.waiting) for each, room in rooms.items()}

    def _check_overview(self, scope: str) -> None:
        reasons = set()
        asked = ApprovalFilter(tenant=scope, state=None, limit=1000)
        for player in self.players.values():
            where = f"{player} in {scope}"
            if self.model.approvals:
                same(player.approvals(asked), views.approvals_of(self.model, asked), f"the approvals of {where}")
            same(player.counts(scope), views.counts_of(self.model, scope), f"counts of {where}")
            health, expected = player.health(scope), views.health_of(self.model, scope)
            plain = replace(health, reasons=(), unserved=(), unserved_queues=(), workers=0, approvals_overdue=0)
            if self.model.may_park and health.backlog < expected.backlog:
                expected = _without_parked(expected, plain)
            else:
                reasons.add(health.reasons)
            same(plain, expected, f"health of {where}")
        assert len(reasons) <= 1, reasons

    def _check_details(self, player: Player, job_id: str) -> None:
        job = self.model.jobs[job_id]
        own = job.tenant
        history, attempts = player.history(job_id, own), player.attempts(job_id, own)
        same(history, views.history_of(job), f"the history on {player}")
        same(attempts, views.attempts_of(job), f"the attempts on {player}")
        same(player.get(job_id, own), views.job_of(job), f"the job on {player}")
        same(player.result(job_id, own), views.result_of(job), f"the result on {player}")
        same(player.checkpoints(job_id, own), views.checkpoints_of(job), f"the checkpoints on {player}")
        same(player.artifacts(job_id, own), views.artifacts_of(job), f"the artifacts on {player}")
        same(player.steps(job_id, own), views.steps_of(job), f"the steps on {player}")
        for approval in self.model.approvals.values():
            if approval.seen.job_id == job_id:
                same(player.votes(approval.seen.id, own), self.model.votes_of(approval), f"the votes on {player}")
        # What the ledger says is where the job is, and no job was begun without an attempt (SC-4).
        assert replay(Step(event.type, event.from_state, event.to_state) for event in history) is job.state
        begun = [event.attempt for event in history if event.to_state is State.IN_PROGRESS]
        assert begun == [attempt.attempt for attempt in attempts] == list(range(1, job.attempt + 1))

    def _check_hidden(self, player: Player, job_id: str) -> None:
        """The other tenant sees nothing of it."""
        foreign = "b" if self.model.jobs[job_id].tenant == "a" else "a"
        assert player.get(job_id, foreign) is None
        assert player.result(job_id, foreign) is None
        assert player.history(job_id, foreign) == []
        assert player.attempts(job_id, foreign) == []
        assert player.checkpoints(job_id, foreign) == []
        assert player.steps(job_id, foreign) == []


def unplaced(jobs: Iterable[Job]) -> list[Job]:
    """Without each store's own numbers for the order."""
    return [replace(job, position=0) for job in jobs]


def _one_line(limit: Limit) -> bool:
    """Not one for each name, of which every name has a line of its own; nor a resource, which may be reserved."""
    return limit.scope == "all" or (limit.name != EACH and limit.scope != "resource")


def _what(limit: Limit) -> Bucket:
    return Bucket(limit.tenant, limit.scope, limit.name)


def _flow_as_seen(graph: Graph) -> dict[str, object]:
    """And what is kept of it is what follows from its jobs."""
    flow = check(graph).workflow
    return {
        "jobs": {node.job_id: (node.standing, node.unmet) for node in graph.nodes},
        "met": {(edge.child, edge.parent): edge.met for edge in graph.edges},
        "flow": (flow.stopped, flow.finished_at, flow.cancelled_at),
    }


def _without_parked(expected: Health, seen: Health) -> Health:
    """Who is parked at a full limit is no backlog: whatever is said of that is said of the others."""
    assert set(seen.waiting_kinds) <= set(expected.waiting_kinds)
    parked = expected.backlog - seen.backlog
    return replace(
        seen,
        reasons=(),
        scheduled=expected.scheduled + parked,
        in_progress=expected.in_progress,
        dead_letter_open=expected.dead_letter_open,
        lease_active=expected.lease_active,
        approvals_open=expected.approvals_open,
        oldest_approval_age_s=expected.oldest_approval_age_s,
    )


def _by_job(events: Iterable[Event]) -> dict[str, list[Event]]:
    grouped: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        grouped[event.job_id].append(event)
    return dict(grouped)


def _claim_order(jobs: list[Job]) -> list[str]:
    """By the stored fields alone (SC-2)."""
    waiting = [job for job in jobs if job.state is State.QUEUED and job.due_at is None]
    ordered = sorted(waiting, key=lambda job: (job.queue, -job.priority, job.position))
    return [job.id for job in ordered]
