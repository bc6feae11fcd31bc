"""Moves that must change nothing, or nothing but what they were allowed: mistakes, hands in the tables, faults."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st

from holdfast.engine.settlement import Settlement
from holdfast.engine.states import State, is_legal
from holdfast.errors import Refused
from holdfast.stores.requests import ClaimRequest
from tests.model.drafts import codes, drafts, endings, plain_drafts, tenants
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
    "insert into {event} (job_id, tenant, kind, type, to_state, attempt, at, actor)"
    " select job_id, tenant, kind, type, to_state, attempt, at, actor from {event} where job_id = :id",
)


class Mischief(Seat):
    def enqueue_again(self, data: st.DataObject) -> None:
        """What was sent before, to the letter (an answer was lost), behind a job that is new."""
        spec, tenant = data.draw(st.sampled_from(self.sent), label="again")
        fresh = self.spec(data.draw(plain_drafts, label="fresh"), tenant)
        self.send([fresh, spec] if data.draw(st.booleans()) else [spec], tenant)

    def settle_anything(self, data: st.DataObject) -> None:
        """Any job, under any lease, for any attempt, twice in one batch, with or without an error."""
        lease, scope = self.any_lease(data, rather=self.holding(State.IN_PROGRESS))
        held = [job.id for job in self.model.held_by(lease, State.IN_PROGRESS)]
        ending = data.draw(endings, label="ending")
        code = None if ending in ("succeeded", "snooze", "cancel") else data.draw(st.none() | codes, label="code")
        off_by = data.draw(st.sampled_from([0, 0, -1, 1]), label="off by")
        batch = [
            Settlement(job.id, job.attempt + off_by, ending, 0.5, code, code)
            for job in (self.any_job(data, rather=held), self.any_job(data))
        ]
        batch.append(replace(batch[0], ending="succeeded", code=None, message=None, result='"second"'))
        self.play(lambda side: side.settle(lease, batch, scope))

    def step_by_hand(self, data: st.DataObject) -> None:
        """Whoever writes SQL can no more take an illegal step than we can (CX-1)."""
        job = self.any_job(data)
        goals = [goal for goal in State if goal is not job.state and not is_legal(job.state, goal)]
        goal = data.draw(st.sampled_from(goals), label="goal")
        step = "update {job_state} set state = :goal where id = :id"
        for player in self.players.values():
            with pytest.raises(Refused, match=f"illegal transition {job.state} -> {goal}") as refused:
                player.by_hand(step, goal=goal.value, id=job.id)
            assert refused.value.code == "illegal_transition"

    def meddle_by_hand(self, data: st.DataObject) -> None:
        """Facts, ledger and identity are not to be touched by anybody (CX-3, CX-4)."""
        job = self.any_job(data)
        statement = data.draw(st.sampled_from(FORBIDDEN), label="statement")
        for player in self.players.values():
            with pytest.raises(Refused) as refused:
                player.by_hand(statement, id=job.id)
            assert refused.value.code in ("immutable", "broken_invariant"), str(refused.value)

    def cut_the_power(self, data: st.DataObject) -> None:
        """A write that fails half-way leaves everything where it was (SC-19), also for a new process (CX-15)."""
        tenant = data.draw(tenants, label="tenant")
        spec = self.spec(data.draw(drafts, label="draft"), tenant)
        after = data.draw(st.integers(1, 8), label="after")
        restart = data.draw(st.booleans(), label="restart")
        for player in self.players.values():
            with pytest.raises(PowerCut):
                player.store.run(cut(player.store.jobs.enqueue([spec], tenant), after))
            for lease in self.live():
                scope = self.model.leases[lease].tenant
                request = ClaimRequest(lease=lease, queues=("default", "bulk"), want=5, tenant=scope)
                with pytest.raises(PowerCut):
                    player.store.run(cut(player.claiming(request), after))
            if restart:
                player.restart()
