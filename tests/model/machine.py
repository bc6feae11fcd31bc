"""The rules Hypothesis plays with: every verb, told to all three sides, with mistakes and faults among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.domain.errors import Refused
from holdfast.domain.job import JobSpec
from holdfast.domain.settlement import Settlement, decide
from holdfast.domain.states import State
from holdfast.domain.transitions import is_legal
from holdfast.stores.base import ClaimRequest, JobFilter, OperatorVerb
from tests.model import views
from tests.model.comparison import Comparison, Refusal
from tests.model.drafts import (
    START,
    Draft,
    codes,
    delays,
    drafts,
    endings,
    job_id,
    kinds,
    outcomes,
    plain_drafts,
    queues,
    reasons,
    scopes,
    tenants,
)
from tests.model.model import Model
from tests.model.player import Player, PowerCut, cut, plain
from tests.model.world import ModelJob

UNKNOWN = job_id(999_999, START)
ttls = st.sampled_from([0.5, 5.0, 30.0, 3600.0])
wants = st.sampled_from([1, 2, 1000])
ages = st.sampled_from([0.000001, 0.4, 0.6, 3.0, 31.0, 90_000.0])


class StoresMachine(RuleBasedStateMachine):
    """``make`` opens fresh stores for each example and registers how they are to be closed."""

    def __init__(self, make: Callable[[ExitStack], dict[str, Player]]) -> None:
        super().__init__()
        self.closing = ExitStack()
        self.model = Model(START)
        self.comparison = Comparison(self.model, make(self.closing))
        self.play = self.comparison.play
        self.players = self.comparison.players
        self.numbers = 0
        self.move_clock(0.0)

    def teardown(self) -> None:
        self.closing.close()

    @invariant()
    def all_look_alike(self) -> None:
        self.comparison.check()

    # -- entering ----------------------------------------------------------------------------------------------

    @initialize(batch=st.lists(plain_drafts, min_size=2, max_size=5), tenant=tenants)
    def begin(self, batch: Sequence[Draft], tenant: str) -> None:
        self.enqueue(batch, tenant)
        self.open_lease(3600.0, "*")

    @rule(batch=st.lists(drafts, min_size=1, max_size=6), tenant=tenants)
    def enqueue(self, batch: Sequence[Draft], tenant: str) -> None:
        specs = [self._spec(draft, tenant) for draft in batch]
        self.play(lambda side: side.enqueue(specs, tenant))

    @rule(batch=st.lists(plain_drafts, min_size=1, max_size=2), tenant=tenants)
    def enqueue_plain(self, batch: Sequence[Draft], tenant: str) -> None:
        self.enqueue(batch, tenant)

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), draft=plain_drafts, tenant=tenants)
    def enqueue_an_id_again(self, data: st.DataObject, draft: Draft, tenant: str) -> None:
        again = replace(self._spec(draft, tenant), id=self._any_job(data).id)
        self.play(lambda side: side.enqueue([self._spec(draft, tenant), again], tenant))

    def _spec(self, draft: Draft, tenant: str) -> JobSpec:
        self.numbers += 1
        own = [job.id for job in self.model.jobs.values() if (job.tenant == tenant) == (draft.parent == "one")]
        parent = {"none": None, "unknown": UNKNOWN}.get(draft.parent, own[-1] if own else UNKNOWN)
        return draft.spec(self.numbers, self.model.now, parent)

    # -- leases --------------------------------------------------------------------------------------------------

    @rule(ttl=ttls, scope=scopes)
    def open_lease(self, ttl: float, scope: str) -> None:
        name = f"lease-{len(self.model.leases)}"
        self.play(lambda side: side.open_lease(name, f"holder of {name}", ttl, scope))

    @rule(data=st.data(), ttl=ttls)
    def renew_lease(self, data: st.DataObject, ttl: float) -> None:
        name, scope = self._any_lease(data)
        self.play(lambda side: side.renew_lease(name, ttl, scope))

    @rule(data=st.data())
    def end_lease(self, data: st.DataObject) -> None:
        name, scope = self._any_lease(data)
        self.play(lambda side: side.end_lease(name, "closed", scope))

    @rule(
        data=st.data(),
        among=st.lists(queues, min_size=1, max_size=3),
        want=st.integers(0, 4),
        begin=st.booleans(),
        only=st.none() | st.lists(kinds, max_size=2),
    )
    def claim(
        self, data: st.DataObject, among: list[str], want: int, begin: bool, only: list[str] | None
    ) -> None:
        lease, scope = self._any_lease(data)
        wanted = None if only is None else tuple(only)
        self._claim(lease, tuple(among), want, begin, wanted, scope)

    @precondition(lambda self: self._live())
    @rule(data=st.data(), want=st.integers(1, 4), begin=st.booleans())
    def claim_as_a_worker(self, data: st.DataObject, want: int, begin: bool) -> None:
        lease = data.draw(st.sampled_from(self._live()), label="lease")
        self._claim(lease, ("default", "bulk"), want, begin, None, self.model.leases[lease].tenant)

    def _claim(
        self, lease: str, among: tuple[str, ...], want: int, begin: bool, only: tuple[str, ...] | None, scope: str
    ) -> None:
        request = ClaimRequest(lease=lease, queues=among, want=want, begin=begin, kinds=only, tenant=scope)
        self.play(lambda side: [plain(claim) for claim in side.claim(request)])

    @rule(data=st.data(), hand_back=st.booleans(), mistaken=st.booleans())
    def start_or_release(self, data: st.DataObject, hand_back: bool, mistaken: bool) -> None:
        name, scope = self._any_lease(data, holding=State.LEASED)
        held = [job.id for job in self.model.held_by(name, State.LEASED)]
        ids = [*data.draw(st.lists(st.sampled_from(held), max_size=3) if held else st.just([])), UNKNOWN]
        if mistaken:
            ids += list(self.model.jobs)
        if hand_back:
            self.play(lambda side: side.release(name, ids, scope))
        else:
            self.play(lambda side: side.start(name, ids, scope))

    # -- ending attempts -----------------------------------------------------------------------------------------

    @precondition(lambda self: self._running())
    @rule(data=st.data(), random01=st.sampled_from([0.0, 1 / 3, 0.999]))
    def settle(self, data: st.DataObject, random01: float) -> None:
        """As a worker does it: what it holds, decided by the policy."""
        lease = data.draw(st.sampled_from(sorted({job.lease or "" for job in self._running()})), label="lease")
        batch = []
        for job in self.model.held_by(lease, State.IN_PROGRESS):
            if not batch or data.draw(st.booleans()):
                outcome = data.draw(outcomes, label=job.id)
                batch.append(decide(views.claim_of(job), outcome, random01))
        scope = self.model.leases[lease].tenant
        self.play(lambda side: side.settle(lease, batch, scope))

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), ending=endings, off_by=st.sampled_from([0, 0, -1, 1]), code=st.none() | codes)
    def settle_anything(self, data: st.DataObject, ending: Any, off_by: int, code: str | None) -> None:
        """As nobody should: any job, under any lease, for any attempt, as often as one likes."""
        name, scope = self._any_lease(data, holding=State.IN_PROGRESS)
        chosen = {job.id: job for job in (self._any_job(data, held_by=name), self._any_job(data))}
        batch = [Settlement(job.id, job.attempt + off_by, ending, 0.5, code, code) for job in chosen.values()]
        if ending in ("succeeded", "snooze"):
            batch = [replace(item, code=None, message=None) for item in batch]
        self.play(lambda side: side.settle(name, batch, scope))

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), off_by=st.sampled_from([0, 0, 0, 1]), name=st.sampled_from(["x", "a b"]))
    def save_something(self, data: st.DataObject, off_by: int, name: str) -> None:
        lease, scope = self._any_lease(data, holding=State.IN_PROGRESS)
        job = self._any_job(data, held_by=lease)
        attempt = job.attempt + off_by
        value = data.draw(st.sampled_from(["null", '{"page": 3}', "[1, 2]"]))
        self.play(lambda side: side.save_checkpoint(job.id, lease, attempt, name, value, scope))
        self.play(lambda side: side.add_artifact(job.id, lease, attempt, name, "file:///x", scope))

    # -- duties and people ---------------------------------------------------------------------------------------

    @rule(age=ages)
    def move_clock(self, age: float) -> None:
        self.model.now += timedelta(seconds=age)
        for player in self.players.values():
            player.set_clock(self.model.now)

    @rule(scope=scopes, want=wants)
    def promote(self, scope: str, want: int) -> None:
        want = _unambiguous(want, [job.due_at for job in self.model.due(scope)])
        self.play(lambda side: side.promote_due(want, scope))

    @rule(scope=scopes, want=wants)
    def expire(self, scope: str, want: int) -> None:
        want = _unambiguous(want, [job.spec.deadline_at for job in self.model.overdue(scope)])
        self.play(lambda side: side.expire_overdue(want, scope))

    @rule(scope=scopes, want=st.sampled_from([1, 1000, 1000]))
    def reap(self, scope: str, want: int) -> None:
        open_leases = [lease for lease in self.model.leases.values() if not lease.swept]
        want = want if len(open_leases) <= want else 1000
        self.play(lambda side: side.reap_lapsed(want, scope))

    @rule(
        data=st.data(),
        verb=st.sampled_from(["cancel", "redrive", "discard"]),
        reason=reasons,
        scope=scopes,
        count=st.integers(1, 3),
    )
    def operate(
        self, data: st.DataObject, verb: OperatorVerb, reason: str | None, scope: str, count: int
    ) -> None:
        ids = [UNKNOWN, *(self._any_job(data).id for _ in range(count) if self.model.jobs)]
        self.play(lambda side: side.operate(verb, ids, reason, "an operator", scope))

    @precondition(lambda self: any(job.state is State.DEAD_LETTER for job in self.model.jobs.values()))
    @rule(verb=st.sampled_from(["redrive", "discard"]), reason=reasons)
    def resolve_dead_letters(self, verb: OperatorVerb, reason: str | None) -> None:
        dead = [job.id for job in self.model.jobs.values() if job.state is State.DEAD_LETTER]
        self.play(lambda side: side.operate(verb, dead, reason, "an operator", "*"))

    # -- looking -------------------------------------------------------------------------------------------------

    @rule(data=st.data(), tenant=scopes, limit=st.sampled_from([1, 3, 50]))
    def list_jobs(self, data: st.DataObject, tenant: str, limit: int) -> None:
        wanted = JobFilter(
            tenant=tenant,
            state=data.draw(st.none() | st.sampled_from(State)),
            kind=data.draw(st.none() | kinds),
            queue=data.draw(st.none() | queues),
            agent=data.draw(st.sampled_from([None, None, "planner", "nobody"])),
            tag=data.draw(st.sampled_from([None, None, "red", "blue", "ä b", "none"])),
            correlation_id=data.draw(st.sampled_from([None, None, "order-7"])),
            parent_id=data.draw(st.sampled_from([None, None, UNKNOWN, *list(self.model.jobs)[:2]])),
            before=data.draw(st.sampled_from([None, None, *sorted(self.model.jobs)[-3:]])),
            limit=limit,
        )
        expected = views.listed(self.model, wanted)
        for player in self.players.values():
            assert [replace(job, position=0) for job in player.listed(wanted)] == expected

    # -- by hand, and faults -------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), goal=st.sampled_from(State))
    def step_by_hand(self, data: st.DataObject, goal: State) -> None:
        """Whoever writes SQL can no more take an illegal step than we can (CX-1)."""
        job = self._any_job(data)
        if job.state is goal or is_legal(job.state, goal):
            return
        for player in self.players.values():
            with pytest.raises(Refused, match=f"illegal transition {job.state} -> {goal}") as refused:
                player.by_hand(
                    "update {job_state} set state = :goal where id = :id", goal=goal.value, id=job.id
                )
            assert refused.value.code == "illegal_transition"

    @precondition(lambda self: self.model.jobs)
    @rule(
        data=st.data(),
        statement=st.sampled_from(
            [
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
            ]
        ),
    )
    def meddle_by_hand(self, data: st.DataObject, statement: str) -> None:
        job = self._any_job(data)
        for player in self.players.values():
            with pytest.raises(Refused) as refused:
                player.by_hand(statement, id=job.id)
            assert refused.value.code == "immutable"

    @rule(draft=drafts, tenant=tenants, after=st.integers(1, 8))
    def power_cut(self, draft: Draft, tenant: str, after: int) -> None:
        """A write that fails half-way leaves everything where it was (SC-19)."""
        spec = self._spec(draft, tenant)
        for player in self.players.values():
            with pytest.raises(PowerCut):
                player.store.run(cut(player.verbs.enqueue([spec], tenant), after))
            for lease in self._live():
                scope = self.model.leases[lease].tenant
                request = ClaimRequest(lease=lease, queues=("default", "bulk"), want=5, tenant=scope)
                with pytest.raises(PowerCut):
                    player.store.run(cut(player.claiming(request), after))

    @rule()
    def restart(self) -> None:
        for player in self.players.values():
            player.restart()

    # -- choosing ------------------------------------------------------------------------------------------------

    def _running(self) -> list[ModelJob]:
        return [job for job in self.model.jobs.values() if job.state is State.IN_PROGRESS]

    def _live(self) -> list[str]:
        return [name for name, lease in self.model.leases.items() if self.model.live(lease)]

    def _any_job(self, data: st.DataObject, held_by: str | None = None) -> ModelJob:
        """Any of them, but rather one that this lease holds."""
        held = [job.id for job in self.model.jobs.values() if held_by and job.lease == held_by]
        return self.model.jobs[data.draw(st.sampled_from(held or list(self.model.jobs)), label="job")]

    def _any_lease(self, data: st.DataObject, holding: State | None = None) -> tuple[str, str]:
        """A lease (rather one that holds something) and a scope, which is now and then not its own."""
        names = [name for name in self.model.leases if holding and self.model.held_by(name, holding)]
        name = data.draw(st.sampled_from(names or list(self.model.leases)), label="lease")
        own = self.model.leases[name].tenant
        return data.draw(
            st.sampled_from([(name, own)] * 8 + [(name, "a"), (name, "*"), ("unknown", own)]), label="scope"
        )


def _unambiguous(want: int, moments: Sequence[object]) -> int:
    """A limit cuts between two jobs only where their times differ: between equals no order is promised."""
    return want if want >= len(moments) or moments[want - 1] != moments[want] else 1000


__all__ = ["Refusal", "StoresMachine", "delays"]
