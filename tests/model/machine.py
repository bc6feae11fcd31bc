"""The state machine that Hypothesis runs: every operation, applied to the model and both stores.

One rule draws the next move by weight. If each move were a rule, Hypothesis would disable a random half of them in
each example, and a job needs four or five different moves in a row to make progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from holdfast.engine.order import Move, Where
from holdfast.engine.outcome import Failed, Outcome, Succeeded
from holdfast.engine.settlement import Settlement, decide
from holdfast.engine.states import HELD, State
from holdfast.features.limits.model import ReservationRequest
from holdfast.stores.requests import ClaimRequest, JobFilter, OperatorAction, Reschedule
from tests.model import views
from tests.model.comparison import assert_same, without_positions
from tests.model.machine_base import UNKNOWN
from tests.model.moves import LimitMoves
from tests.model.strategies import (
    Draft,
    definitions,
    delays,
    drafts,
    kinds,
    plain_drafts,
    queues,
    reasons,
    scopes,
    tenants,
)
from tests.support.stores import new_id

# The moves by weight.
MOVES = {
    6: ("claim", "settle"),
    4: ("work_off", "advance_time", "run_maintenance", "decide"),
    3: ("enqueue", "operate", "change_limit", "send_event"),
    2: (
        *("start_or_release", "reschedule", "move", "change_lease", "change_agent", "change_reservation"),
        *("change_workflow", "settle_anything", "save_steps"),
    ),
    1: (
        *("replace_payload", "save_checkpoint_and_artifact", "claim_with_filters", "list_jobs", "start_workflow"),
        *("enqueue_again", "take_illegal_step", "edit_immutable_rows", "cut_power", "issue_token", "rewind"),
        *("list_approvals",),
    ),
}

PLACES: list[Where] = ["first", "last", "before", "before", "after", "after"]

ttls = st.sampled_from([0.5, 5.0, 30.0, 3600.0])
ages = st.sampled_from([0.000001, 0.4, 0.6, 3.0, 31.0, 61.0, 90_000.0])
wants = st.sampled_from([1, 2, 1000, 1000])


class StoresMachine(LimitMoves):
    @initialize(
        data=st.data(),
        batch=st.lists(plain_drafts, min_size=2, max_size=4),
        tenant=tenants,
        what=st.sampled_from(["nothing", "change_limit", "start_workflow"]),
    )
    def begin(self, data: st.DataObject, batch: Sequence[Draft], tenant: str, what: str) -> None:
        """Start two examples of three with a limit or a workflow: drawn as a move, it would come late."""
        self.send([self.spec(draft, tenant) for draft in batch], tenant)
        self.open_lease("*", 3600.0)
        if what != "nothing":
            getattr(self, what)(data)

    @rule(data=st.data(), move=st.sampled_from([move for weight, moves in MOVES.items() for move in moves * weight]))
    def next_move(self, data: st.DataObject, move: str) -> None:
        getattr(self, move)(data)

    def enqueue(self, data: st.DataObject) -> None:
        batch = data.draw(st.lists(drafts, min_size=1, max_size=3), label="batch")
        tenant = data.draw(tenants, label="tenant")
        self.send([self.spec(draft, tenant) for draft in batch], tenant)

    # -- a worker ------------------------------------------------------------------------------------------------

    def open_lease(self, scope: str, ttl: float) -> None:
        name = f"lease-{len(self.model.leases)}"
        self.apply(lambda side: side.open_lease(name, f"the holder of {name}", ttl, scope))

    def change_lease(self, data: st.DataObject) -> None:
        what = data.draw(st.sampled_from(["open", "open", "renew", "end"]))
        ttl = data.draw(ttls, label="ttl")
        lease, under = self.any_lease(data)
        if what == "open":
            self.open_lease(data.draw(scopes, label="scope"), ttl)
        elif what == "renew":
            self.apply(lambda side: side.renew_lease(lease, ttl, under))
        else:
            self.apply(lambda side: side.end_lease(lease, "closed", under))

    def claim(self, data: st.DataObject) -> None:
        """Claim the next jobs in queue order."""
        if not self.live_leases():
            self.open_lease("*", 30.0)
        lease = data.draw(st.sampled_from(self.live_leases()), label="lease")
        request = ClaimRequest(
            lease=lease,
            queues=("default", "bulk"),
            want=data.draw(st.integers(1, 4), label="want"),
            begin=data.draw(st.booleans(), label="begin"),
            tenant=self.model.leases[lease].tenant,
        )
        self.attend_limits()
        self.apply(lambda side: side.claim(request))

    def claim_with_filters(self, data: st.DataObject) -> None:
        """Claim some kinds only, one queue twice, nothing, or under an invalid lease."""
        lease, scope = self.any_lease(data)
        request = ClaimRequest(
            lease=lease,
            queues=tuple(data.draw(st.lists(queues, min_size=1, max_size=3), label="queues")),
            want=data.draw(st.integers(0, 3), label="want"),
            begin=data.draw(st.booleans(), label="begin"),
            kinds=data.draw(st.none() | st.lists(kinds, max_size=2).map(tuple), label="kinds"),
            tenant=scope,
        )
        self.attend_limits()
        self.apply(lambda side: side.claim(request))

    def start_or_release(self, data: st.DataObject) -> None:
        lease, scope = self.any_lease(data, prefer=self.leases_holding(State.LEASED))
        held = [job.id for job in self.model.held_by(lease, State.LEASED)]
        others = list(self.model.jobs) if data.draw(st.booleans(), label="and others") else []
        ids = [*held[: data.draw(st.integers(1, 3), label="how many")], UNKNOWN, *others]
        if data.draw(st.booleans(), label="release"):
            self.apply(lambda side: side.release(lease, ids, scope))
        else:
            self.apply(lambda side: side.start(lease, ids, scope))

    def settle(self, data: st.DataObject) -> None:
        """Settle held jobs as a worker does, with the retry policy's decision."""
        holders = self.leases_holding(State.IN_PROGRESS)
        if not holders:
            return
        lease = data.draw(st.sampled_from(holders), label="lease")
        random01 = data.draw(st.sampled_from([0.0, 1 / 3, 0.999]), label="random01")
        batch: list[Settlement] = []
        for job in self.model.held_by(lease, State.IN_PROGRESS):
            if not batch or data.draw(st.booleans()):
                batch.append(decide(views.claim_of(job), self.outcome(data, job.id), random01))
        scope = self.model.leases[lease].tenant
        if data.draw(st.booleans(), label="and claim"):
            want = data.draw(st.integers(0, 3), label="want")
            request = ClaimRequest(lease=lease, queues=("default", "bulk"), want=want, tenant=scope)
            self.attend_limits()
            if self.model.may_park or self.model.workflows:
                # A settlement releases some of the parked jobs and the maintenance task the others. PostgreSQL skips
                # the dependants of a failed job only at commit.
                self.apply(lambda side: side.settle(lease, batch, scope))
                self.attend_limits()
                batch = []
            self.apply(lambda side: side.exchange(batch, request))
        else:
            self.apply(lambda side: side.settle(lease, batch, scope))

    def work_off(self, data: st.DataObject) -> None:
        """Claim jobs and end them at once, so that workflows and limits make progress."""
        lease = f"lease-{len(self.model.leases)}"
        self.open_lease("*", 30.0)
        request = ClaimRequest(lease=lease, queues=("default", "bulk"), want=data.draw(st.integers(1, 4), label="want"))
        self.attend_limits()
        self.apply(lambda side: side.claim(request))
        ends: st.SearchStrategy[Outcome] = st.sampled_from(
            [Succeeded(), Succeeded(), Failed("boom", "final", final=True)]
        )
        held = self.model.held_by(lease, State.IN_PROGRESS)
        batch = [decide(views.claim_of(job), data.draw(ends, label=job.id), 0.5) for job in held]
        self.apply(lambda side: side.settle(lease, batch, "*"))

    def save_checkpoint_and_artifact(self, data: st.DataObject) -> None:
        lease, scope = self.any_lease(data, prefer=self.leases_holding(State.IN_PROGRESS))
        held = [job.id for job in self.model.held_by(lease, State.IN_PROGRESS)]
        job = self.any_job(data, prefer=held)
        attempt = job.attempt + data.draw(st.sampled_from([0, 0, 0, 1]), label="off by")
        name = data.draw(st.sampled_from(["x", "a b"]), label="name")
        value = data.draw(st.sampled_from(["null", '{"page": 3}', "[1, 2]"]), label="value")
        self.apply(lambda side: side.save_checkpoint(job.id, lease, attempt, name, value, scope))
        self.apply(lambda side: side.add_artifact(job.id, lease, attempt, name, "file:///x", scope))

    # -- time, maintenance and operators -------------------------------------------------------------------------

    def advance_time(self, data: st.DataObject) -> None:
        """Often stop exactly when something becomes due: stores are most likely to differ at a boundary."""
        to_go = [(moment - self.model.now).total_seconds() for moment in self.due_times()]
        ahead = sorted(seconds for seconds in to_go if seconds > 0)[:3]
        self.pass_time(data.draw(st.sampled_from(ahead) | ages if ahead else ages, label="seconds"))

    def run_maintenance(self, data: st.DataObject) -> None:
        scope = data.draw(st.sampled_from(["*", "*", "a", "b"]), label="scope")
        want = data.draw(wants, label="want")
        due = _unambiguous_limit(want, [job.due_at for job in self.model.due(scope)])
        self.apply(lambda side: side.promote_due(due, scope))
        late = _unambiguous_limit(want, [job.spec.deadline_at for job in self.model.overdue(scope)])
        self.apply(lambda side: side.expire_overdue(late, scope))
        approvals = _unambiguous_limit(want, [approval.next for approval in self.model.approvals_due(scope)])
        self.apply(lambda side: side.attend_approvals(approvals, scope))
        unswept = sum(not lease.swept for lease in self.model.leases.values())
        lost = want if unswept <= want else 1000
        self.apply(lambda side: side.recover_leases(lost, scope))

    def operate(self, data: st.DataObject) -> None:
        operations: list[OperatorAction] = ["cancel", "redrive", "discard"]
        dead = self.ids(State.DEAD_LETTER)
        operation = data.draw(st.sampled_from(operations[1:] if dead else operations), label="operation")
        reason = data.draw(reasons, label="reason")
        scope = data.draw(st.sampled_from(["*", "*", "a", "b"]), label="scope")
        ids = [UNKNOWN, self.any_job(data, prefer=dead).id, self.any_job(data).id]
        limit = data.draw(st.sampled_from([None, None, 1, 6]), label="limit") if operation == "redrive" else None
        self.apply(lambda side: side.operate(operation, ids, reason, "an operator", scope, limit))

    def reschedule(self, data: st.DataObject) -> None:
        waiting = self.ids(State.RETRY_WAITING) or self.ids(State.QUEUED)
        offset = data.draw(st.sampled_from([None, -5.0, 0.0, 0.000001, 7.0]), label="at")
        when = Reschedule(
            at=None if offset is None else self.model.now + timedelta(seconds=offset),
            delay=data.draw(st.none() | delays, label="delay") if offset is None else None,
            max_attempts=data.draw(st.sampled_from([None, None, 1, 2, 6]), label="limit"),
        )
        reason = data.draw(reasons, label="reason")
        scope = data.draw(st.sampled_from(["*", "*", "a", "b"]), label="scope")
        ids = [UNKNOWN, self.any_job(data, prefer=waiting).id, self.any_job(data).id]
        self.unpark()
        self.counter += 1
        # The same request is recorded once, but a job that was parked in between records it again.
        actor = f"operator {self.counter}" if self.model.may_park else "an operator"
        self.apply(lambda side: side.reschedule(ids, when, reason, actor, scope))

    def replace_payload(self, data: st.DataObject) -> None:
        job = self.any_job(data, prefer=self.ids(State.QUEUED, State.RETRY_WAITING))
        payload = data.draw(st.sampled_from(['{"other":1}', '{"n":1e23}', job.spec.payload]), label="payload")
        scope = data.draw(st.sampled_from(["*", "a", "b"]), label="scope")
        self.unpark()
        self.apply(lambda side: side.replace_payload(job.id, payload, "a reason", "an operator", scope))

    def move(self, data: st.DataObject) -> None:
        """Skip the move while a job of the queue is held or dead: where it returns to differs between the stores."""
        waiting = self.ids(State.QUEUED, State.RETRY_WAITING)
        job = self.any_job(data, prefer=waiting)
        line = [each for each in self.model.jobs.values() if each.spec.queue == job.spec.queue]
        if job.waiting and any(each.state in HELD | {State.DEAD_LETTER} for each in line):
            return
        where: Where = data.draw(st.sampled_from(PLACES), label="where")
        beside = where in ("before", "after")
        others = [each.id for each in line if each.waiting] or [UNKNOWN]
        other = data.draw(st.sampled_from([*others * 5, UNKNOWN, *self.model.jobs]), label="other") if beside else None
        level = None if beside else data.draw(st.sampled_from([None, None, 0, 1]), label="priority")
        reason = data.draw(reasons, label="reason")
        scope = data.draw(st.sampled_from(["*", "*", "a", "b"]), label="scope")
        request = Move(where=where, other=other, priority=level)
        self.apply(lambda side: side.move(job.id, request, reason, "an operator", scope))

    def change_agent(self, data: st.DataObject) -> None:
        """Jobs have the agent "planner" or none; until it is registered, the name is only a label."""
        tenant = data.draw(tenants, label="tenant")
        what = data.draw(st.sampled_from(["register", "disable", "disable", "enable", "resume"]))
        definition = data.draw(definitions, label="definition")
        if what == "register" or not self.model.agents:
            self.apply(lambda side: side.set_agent(definition, tenant))
        if what == "disable" and not self.model.limited:
            self.apply(lambda side: side.disable_agent("planner", "because → 'so'", "an operator", tenant))
        elif what == "enable":
            self.apply(lambda side: side.enable_agent("planner", tenant))
        if what in ("enable", "resume"):  # the enabling process may die before it resumes the jobs
            self.apply(lambda side: side.resume_agent("planner", tenant))

    def change_reservation(self, data: st.DataObject) -> None:
        """Reserve a queue, a resource or everything; renew a reservation, release it, or let it expire."""
        known = list(self.model.reservations.values())
        what = data.draw(st.sampled_from(["reserve", "renew", "release", "release"]))
        ttl = data.draw(st.sampled_from([0.5, 3.5, 60.0]), label="ttl")
        if what == "reserve" or not known:
            tenant = data.draw(scopes, label="tenant")
            scope, name = data.draw(
                st.sampled_from([("all", "*"), ("queue", "default"), ("queue", "bulk"), ("resource", "gpu")])
            )
            if scope == "resource" and self.any_agent_disabled():
                return  # as for limits
            ask = ReservationRequest(new_id(), scope, name, ttl)
            self.apply(lambda side: side.reserve(ask, "an operator", tenant))
            return
        own = data.draw(st.sampled_from(known[-3:]), label="reservation")
        if what == "renew":
            again = ReservationRequest(own.id, own.scope, own.name, ttl)
            self.apply(lambda side: side.reserve(again, "an operator", own.tenant))
        else:
            self.apply(lambda side: side.release_reservation(own.id, "done", "an operator", own.tenant))

    # -- reading -------------------------------------------------------------------------------------------------

    def list_jobs(self, data: st.DataObject) -> None:
        wanted = JobFilter(
            tenant=data.draw(scopes, label="tenant"),
            state=data.draw(st.none() | st.sampled_from(State)),
            kind=data.draw(st.none() | kinds),
            queue=data.draw(st.none() | queues),
            agent=data.draw(st.sampled_from([None, None, "planner", "nobody"])),
            tag=data.draw(st.sampled_from([None, None, "red", ("red", "blue"), "ä b", "none"])),
            any_tag=data.draw(st.sampled_from([None, None, None, "red", ("blue", "ä b")])),
            external_ref=data.draw(st.sampled_from([None, None, None, "planner"])),
            worker=data.draw(st.sampled_from([None, None, None, "worker-1", "nobody"])),
            correlation_id=data.draw(st.sampled_from([None, None, "order-7"])),
            parent_id=data.draw(st.sampled_from([None, None, UNKNOWN, *list(self.model.jobs)[:2]])),
            before=data.draw(st.sampled_from([None, None, *sorted(self.model.jobs)[-3:]])),
            limit=data.draw(st.sampled_from([1, 3, 50]), label="limit"),
        )
        for driver in self.drivers.values():
            assert_same(
                without_positions(driver.list_jobs(wanted)),
                views.list_jobs(self.model, wanted),
                f"the list of {driver}",
            )


def _unambiguous_limit(want: int, moments: Sequence[object]) -> int:
    """Return a limit that never separates two jobs with the same time: their order is not promised."""
    return want if want >= len(moments) or moments[want - 1] != moments[want] else 1000
