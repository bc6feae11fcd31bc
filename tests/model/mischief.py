"""Rules that must change nothing, or nothing but what they were allowed: mistakes, hands in the tables, faults."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from holdfast.domain.errors import Refused
from holdfast.domain.settlement import Ending, Settlement
from holdfast.domain.states import State
from holdfast.domain.transitions import is_legal
from holdfast.stores.base import ClaimRequest
from tests.model.drafts import Draft, codes, drafts, endings, plain_drafts, tenants
from tests.model.player import PowerCut, cut
from tests.model.seat import Seat

FORBIDDEN = (
    "update {job} set payload = '[\"other\"]' where id = :id",
    "update {job} set queue = 'other' where id = :id",
    "delete from {job} where id = :id",
    "update {job_state} set attempt = attempt + 1 where id = :id",
    "update {job_state} set tenant = 'c' where id = :id",
    "delete from {job_state} where id = :id",
    "update {event} set actor = 'nobody' where job_id = :id",
    "delete from {event} where job_id = :id",
    "insert into {event} (job_id, tenant, kind, verb, to_state, attempt, at, actor)"
    " select job_id, tenant, kind, verb, to_state, attempt, at, actor from {event} where job_id = :id",
)


class Mischief(Seat):
    @rule(data=st.data(), what=st.sampled_from(["id", "state", "table", "power"]), draft=drafts, tenant=tenants)
    def mischief(self, data: st.DataObject, what: str, draft: Draft, tenant: str) -> None:
        if what == "power":
            self.cut_the_power(draft, tenant, data.draw(st.integers(1, 8)), data.draw(st.booleans()))
        elif what == "id" and self.model.jobs:
            self.enqueue_an_id_again(data, data.draw(plain_drafts), tenant)
        elif what == "state" and self.model.jobs:
            self.step_by_hand(data, data.draw(st.sampled_from(State)))
        elif self.model.jobs:
            self.meddle_by_hand(data, data.draw(st.sampled_from(FORBIDDEN)))

    def enqueue_an_id_again(self, data: st.DataObject, draft: Draft, tenant: str) -> None:
        """The good job of the same batch does not get in either."""
        batch = [self.spec(draft, tenant), replace(self.spec(draft, tenant), id=self.any_job(data).id)]
        self.play(lambda side: side.enqueue(batch, tenant))

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), ending=endings, off_by=st.sampled_from([0, 0, -1, 1]), code=st.none() | codes)
    def settle_anything(
        self, data: st.DataObject, ending: Ending, off_by: int, code: str | None
    ) -> None:
        """Any job, under any lease, for any attempt, twice in one batch, with or without an error."""
        lease, scope = self.any_lease(data, rather=self.holding(State.IN_PROGRESS))
        held = [job.id for job in self.model.held_by(lease, State.IN_PROGRESS)]
        error = None if ending in ("succeeded", "snooze") else code
        batch = [
            Settlement(job.id, job.attempt + off_by, ending, 0.5, error, error)
            for job in (self.any_job(data, rather=held), self.any_job(data))
        ]
        batch.append(replace(batch[0], ending="succeeded", code=None, message=None, result='"second"'))
        self.play(lambda side: side.settle(lease, batch, scope))

    def step_by_hand(self, data: st.DataObject, goal: State) -> None:
        """Whoever writes SQL can no more take an illegal step than we can (CX-1)."""
        job = self.any_job(data)
        if job.state is goal or is_legal(job.state, goal):
            return
        for player in self.players.values():
            with pytest.raises(Refused, match=f"illegal transition {job.state} -> {goal}") as refused:
                player.by_hand(
                    "update {job_state} set state = :goal where id = :id", goal=goal.value, id=job.id
                )
            assert refused.value.code == "illegal_transition"

    def meddle_by_hand(self, data: st.DataObject, statement: str) -> None:
        job = self.any_job(data)
        for player in self.players.values():
            with pytest.raises(Refused) as refused:
                player.by_hand(statement, id=job.id)
            assert refused.value.code == "immutable"

    def cut_the_power(self, draft: Draft, tenant: str, after: int, restart: bool) -> None:
        """A write that fails half-way leaves everything where it was (SC-19), also for a new process (CX-15)."""
        spec = self.spec(draft, tenant)
        for player in self.players.values():
            with pytest.raises(PowerCut):
                player.store.run(cut(player.verbs.enqueue([spec], tenant), after))
            for lease in self.live():
                scope = self.model.leases[lease].tenant
                request = ClaimRequest(lease=lease, queues=("default", "bulk"), want=5, tenant=scope)
                with pytest.raises(PowerCut):
                    player.store.run(cut(player.claiming(request), after))
            if restart:
                player.restart()
