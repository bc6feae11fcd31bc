"""The rules Hypothesis plays with: every verb, told to all three sides at once.

A rule is drawn as often as any other, so what belongs together shares one: few rules get further than many.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from holdfast.domain.settlement import decide
from holdfast.domain.states import State
from holdfast.stores.base import ClaimRequest, JobFilter, OperatorVerb
from tests.model import views
from tests.model.comparison import same, unplaced
from tests.model.drafts import Draft, drafts, kinds, outcomes, plain_drafts, queues, reasons, scopes, tenants
from tests.model.mischief import Mischief
from tests.model.player import plain
from tests.model.seat import UNKNOWN

ttls = st.sampled_from([0.5, 5.0, 30.0, 3600.0])
ages = st.sampled_from([0.0, 0.000001, 0.4, 0.6, 3.0, 31.0, 31.0, 90_000.0])
wants = st.sampled_from([1, 2, 1000, 1000])


class StoresMachine(Mischief):
    @initialize(batch=st.lists(plain_drafts, min_size=2, max_size=5), tenant=tenants)
    def begin(self, batch: Sequence[Draft], tenant: str) -> None:
        self.enqueue(batch, tenant)
        self.play(lambda side: side.open_lease("lease-0", "the first worker", 3600.0, "*"))

    @rule(batch=st.lists(plain_drafts | drafts, min_size=1, max_size=5), tenant=tenants)
    def enqueue(self, batch: Sequence[Draft], tenant: str) -> None:
        specs = [self.spec(draft, tenant) for draft in batch]
        self.play(lambda side: side.enqueue(specs, tenant))

    # -- a worker ------------------------------------------------------------------------------------------------

    @rule(data=st.data(), what=st.sampled_from(["open", "open", "renew", "end"]), ttl=ttls, scope=scopes)
    def see_to_a_lease(self, data: st.DataObject, what: str, ttl: float, scope: str) -> None:
        if what == "open":
            name = f"lease-{len(self.model.leases)}"
            self.play(lambda side: side.open_lease(name, f"the holder of {name}", ttl, scope))
            return
        lease, under = self.any_lease(data)
        if what == "renew":
            self.play(lambda side: side.renew_lease(lease, ttl, under))
        else:
            self.play(lambda side: side.end_lease(lease, "closed", under))

    @rule(data=st.data(), want=st.integers(1, 4), begin=st.booleans(), end=st.booleans())
    def claim(self, data: st.DataObject, want: int, begin: bool, end: bool) -> None:
        """Whatever there is, in queue order; and sometimes it takes no time."""
        if not self.live():
            self.see_to_a_lease(data, "open", 3600.0, "*")
        lease = data.draw(st.sampled_from(self.live()), label="lease")
        scope = self.model.leases[lease].tenant
        request = ClaimRequest(lease=lease, queues=("default", "bulk"), want=want, begin=begin, tenant=scope)
        self.play(lambda side: [plain(claim) for claim in side.claim(request)])
        if end and self.model.held_by(lease, State.IN_PROGRESS):
            self._settle(data, lease, 0.5)

    @rule(
        data=st.data(),
        among=st.lists(queues, min_size=1, max_size=3),
        want=st.integers(0, 3),
        begin=st.booleans(),
        only=st.none() | st.lists(kinds, max_size=2).map(tuple),
    )
    def claim_choosily(
        self, data: st.DataObject, among: list[str], want: int, begin: bool, only: tuple[str, ...] | None
    ) -> None:
        """Only some kinds, a queue twice, nothing at all, or under a lease that is no good."""
        lease, scope = self.any_lease(data)
        request = ClaimRequest(
            lease=lease, queues=tuple(among), want=want, begin=begin, kinds=only, tenant=scope
        )
        self.play(lambda side: [plain(claim) for claim in side.claim(request)])

    @precondition(lambda self: self.ids(State.LEASED))
    @rule(data=st.data(), hand_back=st.booleans(), mistaken=st.booleans())
    def start_or_release(self, data: st.DataObject, hand_back: bool, mistaken: bool) -> None:
        lease, scope = self.any_lease(data, rather=self.holding(State.LEASED))
        held = [job.id for job in self.model.held_by(lease, State.LEASED)]
        ids = [*held[: data.draw(st.integers(1, 3))], UNKNOWN, *(self.model.jobs if mistaken else ())]
        if hand_back:
            self.play(lambda side: side.release(lease, ids, scope))
        else:
            self.play(lambda side: side.start(lease, ids, scope))

    @precondition(lambda self: self.ids(State.IN_PROGRESS))
    @rule(data=st.data(), random01=st.sampled_from([0.0, 1 / 3, 0.999]))
    def settle(self, data: st.DataObject, random01: float) -> None:
        """As a worker does it: what it holds, decided by the policy."""
        self._settle(data, data.draw(st.sampled_from(self.holding(State.IN_PROGRESS)), label="lease"), random01)

    def _settle(self, data: st.DataObject, lease: str, random01: float) -> None:
        batch = []
        for job in self.model.held_by(lease, State.IN_PROGRESS):
            if not batch or data.draw(st.booleans()):
                outcome = data.draw(outcomes, label=job.id)
                batch.append(decide(views.claim_of(job), outcome, random01))
        scope = self.model.leases[lease].tenant
        self.play(lambda side: side.settle(lease, batch, scope))

    @precondition(lambda self: self.ids(State.IN_PROGRESS))
    @rule(
        data=st.data(),
        off_by=st.sampled_from([0, 0, 0, 1]),
        name=st.sampled_from(["x", "a b"]),
        value=st.sampled_from(["null", '{"page": 3}', "[1, 2]"]),
    )
    def save_something(self, data: st.DataObject, off_by: int, name: str, value: str) -> None:
        lease, scope = self.any_lease(data, rather=self.holding(State.IN_PROGRESS))
        job = self.any_job(data, rather=[job.id for job in self.model.held_by(lease, State.IN_PROGRESS)])
        attempt = job.attempt + off_by
        self.play(lambda side: side.save_checkpoint(job.id, lease, attempt, name, value, scope))
        self.play(lambda side: side.add_artifact(job.id, lease, attempt, name, "file:///x", scope))

    # -- duties and people ---------------------------------------------------------------------------------------

    @rule(age=ages, scope=scopes, want=wants, which=st.sets(st.sampled_from(["promote", "expire", "reap"])))
    def time_passes(self, age: float, scope: str, want: int, which: set[str]) -> None:
        self.pass_time(age)
        if "promote" in which:
            limit = _unambiguous(want, [job.due_at for job in self.model.due(scope)])
            self.play(lambda side: side.promote_due(limit, scope))
        if "expire" in which:
            limit = _unambiguous(want, [job.spec.deadline_at for job in self.model.overdue(scope)])
            self.play(lambda side: side.expire_overdue(limit, scope))
        if "reap" in which:
            unswept = sum(not lease.swept for lease in self.model.leases.values())
            limit = want if unswept <= want else 1000
            self.play(lambda side: side.reap_lapsed(limit, scope))

    @rule(data=st.data(), verb=st.sampled_from(["cancel", "redrive", "discard"]), reason=reasons, scope=scopes)
    def operate(self, data: st.DataObject, verb: OperatorVerb, reason: str | None, scope: str) -> None:
        rather = [] if verb == "cancel" else self.ids(State.DEAD_LETTER)
        ids = [UNKNOWN, *(self.any_job(data, rather).id for _ in range(2) if self.model.jobs)]
        self.play(lambda side: side.operate(verb, ids, reason, "an operator", scope))

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
        for player in self.players.values():
            same(unplaced(player.listed(wanted)), views.listed(self.model, wanted), f"the list of {player}")


def _unambiguous(want: int, moments: Sequence[object]) -> int:
    """A limit cuts between two jobs only where their times differ: between equals no order is promised."""
    return want if want >= len(moments) or moments[want - 1] != moments[want] else 1000
