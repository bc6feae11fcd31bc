"""Where the rules sit: the three sides, and ways of choosing something that is worth playing with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant

from holdfast.engine.job import JobSpec
from holdfast.engine.states import State
from tests.model.comparison import Comparison
from tests.model.drafts import START, Draft, job_id
from tests.model.model import Model
from tests.model.player import Player
from tests.model.world import ModelJob

UNKNOWN = job_id(999_999, START)


class Seat(RuleBasedStateMachine):
    """``make`` opens fresh stores for each example and registers how they are to be closed."""

    def __init__(self, make: Callable[[ExitStack], dict[str, Player]]) -> None:
        super().__init__()
        self.closing = ExitStack()
        self.model = Model(START)
        self.comparison = Comparison(self.model, make(self.closing))
        self.play = self.comparison.play
        self.players = self.comparison.players
        self.numbers = 0
        self.sent: list[tuple[JobSpec, str]] = []
        self.pass_time(0.0)

    def teardown(self) -> None:
        self.closing.close()

    @invariant()
    def all_look_alike(self) -> None:
        self.comparison.check()

    def pass_time(self, seconds: float) -> None:
        self.model.now += timedelta(seconds=seconds)
        for player in self.players.values():
            player.set_clock(self.model.now)

    # -- choosing ----------------------------------------------------------------------------------------------

    def spec(self, draft: Draft, tenant: str) -> JobSpec:
        self.numbers += 1
        own = draft.parent == "one"
        parents = [
            job.id for job in self.model.jobs.values() if (job.tenant == tenant) == own and not self.planned(job)
        ]
        parent = None if draft.parent == "none" else UNKNOWN
        if parents and draft.parent in ("one", "foreign"):
            parent = parents[-1]
        return draft.spec(self.numbers, self.model.now, parent)

    def planned(self, job: ModelJob) -> bool:
        """Whose child would join a workflow, or be refused where that is over."""
        return job.spec.workflow_id in self.model.flows

    def send(self, specs: Sequence[JobSpec], tenant: str) -> None:
        self.play(lambda side: side.enqueue(specs, tenant))
        self.sent += [(spec, tenant) for spec in specs]

    def moments(self) -> list[datetime]:
        """When something falls due, passes its deadline, or lapses."""
        jobs = [moment for job in self.model.jobs.values() for moment in (job.due_at, job.spec.deadline_at)]
        leases = [lease.until for lease in self.model.leases.values()]
        approvals = [approval.next for approval in self.model.approvals.values() if approval.seen.state == "open"]
        return [moment for moment in (*jobs, *leases, *approvals) if moment is not None]

    def ids(self, *states: State) -> list[str]:
        return [job.id for job in self.model.jobs.values() if job.state in states]

    def live(self) -> list[str]:
        return [name for name, lease in self.model.leases.items() if self.model.live(lease)]

    def holding(self, state: State) -> list[str]:
        return [name for name in self.model.leases if self.model.held_by(name, state)]

    def any_job(self, data: st.DataObject, rather: Sequence[str] = ()) -> ModelJob:
        """Any of them, but rather one of those."""
        chosen = data.draw(st.sampled_from(list(rather) or list(self.model.jobs)), label="job")
        return self.model.jobs[chosen]

    def any_lease(self, data: st.DataObject, rather: Sequence[str] = ()) -> tuple[str, str]:
        """A lease, rather one of those, and a scope, which is now and then not its own."""
        name = data.draw(st.sampled_from(list(rather) or list(self.model.leases)), label="lease")
        own = self.model.leases[name].tenant
        mistakes = [(name, "a"), (name, "*"), ("unknown", own)]
        return data.draw(st.sampled_from([(name, own)] * 9 + mistakes), label="under")
