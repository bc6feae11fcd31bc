"""Checks the invariants of the fault catalogue in the whole database after a fault.

N1 every accepted job exists: ended, visibly dead, or under a lease that will be swept
N2 one end per life        N3 no write by a superseded lease        N4 jobs of lost workers are recovered in time
N5 the ledger replays to the job's state, and its approvals agree       N6 consumers saw every event, per job in order
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.engine.states import FINISHED, HELD, State, replay
from holdfast.engine.states import Step as Transition
from tests.faults.effects import effects
from tests.faults.snapshot import EventRow, LeaseRow, Snapshot, endings, lives, take_snapshot

# The guarantee is 60 s with default settings. The tests use leases and sweeps of one second, so most of this limit is
# left to a busy machine.
RECOVERY_LIMIT = 50.0
HOLDER_EVENTS = frozenset({"succeed", "fail", "snooze", "ask"})


@dataclass(frozen=True)
class Violation:
    invariant: str
    job: str
    message: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.job}: {self.message}"


def check(
    url: str,
    accepted: Iterable[str],
    *,
    folder: Path | None = None,
    ended: bool = True,
    within: float | None = None,
    seen: Sequence[tuple[int, str]] | None = None,
    uncertain: Collection[str] = (),
) -> Snapshot:
    """Assert all invariants. `ended`: every job must have ended. `within`: seconds for N4. `seen`: the events that a
    consumer saw, (seq, job) in order. `uncertain`: jobs whose enqueue got no response. `folder`: the effects."""
    accepted = set(accepted)
    snapshot = take_snapshot(url)
    violations = [*n1(snapshot, accepted, ended=ended, uncertain=uncertain), *n2(snapshot), *n3(snapshot)]
    violations += [*n5(snapshot), *n5_approvals(snapshot)]
    if within is not None:
        violations += n4(snapshot, within)
    if seen is not None:
        violations += n6(snapshot, seen)
    if folder is not None:
        violations += effect_violations(snapshot, folder)
    assert not violations, f"{len(violations)} violations:\n" + "\n".join(map(str, violations[:20]))
    return snapshot


def n1(
    snapshot: Snapshot, accepted: Collection[str], *, ended: bool = False, uncertain: Collection[str] = ()
) -> Iterator[Violation]:
    for job in sorted(accepted):
        row = snapshot.rows.get(job)
        if job not in snapshot.facts or row is None or not snapshot.ledgers.get(job):
            yield Violation("N1", job, "was accepted and does not exist")
        elif ended and row.state not in FINISHED:
            yield Violation("N1", job, f"has not ended, it is {row.state}")
        elif row.state in HELD:
            lease = snapshot.leases.get(row.lease or "")
            if lease is None or lease.swept is not None:
                yield Violation("N1", job, f"is {row.state} under a lease that will not be swept")
    for job in snapshot.missed_wakeups:
        yield Violation("N1", job, "still waits for an event that has arrived")
    for job in sorted(snapshot.facts - set(accepted) - set(uncertain)):
        yield Violation("N1", job, "exists and was never accepted")
    for job in sorted(snapshot.facts ^ snapshot.rows.keys()):
        yield Violation("N1", job, "has facts or a state, but not both")


def n2(snapshot: Snapshot) -> Iterator[Violation]:
    for job, ledger in snapshot.ledgers.items():
        for life in lives(ledger):
            ends = endings(life)
            if len(ends) > 1:
                yield Violation("N2", job, f"ended {len(ends)} times: {', '.join(event.type for event in ends)}")
            elif ends and [event.type for event in life if event.seq > ends[0].seq] not in ([], ["discard"], ["clean"]):
                yield Violation("N2", job, f"has events after its end by {ends[0].type}")


def n3(snapshot: Snapshot) -> Iterator[Violation]:
    for job, ledger in snapshot.ledgers.items():
        holder: EventRow | None = None
        for event in ledger:
            if event.type in ("claim", "take"):
                holder = event
            elif event.type == "start":
                if holder is None or holder.actor != event.actor:
                    yield Violation("N3", job, f"was started by {event.actor} but held by another")
                holder = event
            elif event.type in HOLDER_EVENTS:
                if holder is None or (holder.actor, holder.attempt) != (event.actor, event.attempt):
                    began = None if holder is None else (holder.actor, holder.attempt)
                    yield Violation(
                        "N3", job, f"{event.type} by {event.actor} for attempt {event.attempt}, begun by {began}"
                    )
                holder = None
            elif event.source in HELD:
                holder = None
        row = snapshot.rows.get(job)
        if row is not None and row.lease is not None:
            lease = snapshot.leases.get(row.lease)
            if lease is not None and (holder is None or holder.actor != lease.holder):
                yield Violation("N3", job, f"is held by {lease.holder}, which did not claim it")
    for job, attempt in snapshot.progress:
        if attempt > snapshot.rows[job].attempt:
            yield Violation("N3", job, f"has progress of attempt {attempt}, which never began")
    for job, steps in snapshot.steps.items():
        begun = [event for event in snapshot.ledgers.get(job, []) if event.target is State.IN_PROGRESS]
        for done in steps:
            # Waits are ended from outside; steps and patches by the attempt that is stored with them.
            later = [event.attempt for event in begun if event.attempt > done.attempt and event.at < done.ended]
            if later and done.kind in ("step", "patch"):
                yield Violation("N3", job, f"step {done.n} was stored for attempt {done.attempt} during {later[0]}")


def n4(snapshot: Snapshot, within: float) -> Iterator[Violation]:
    """Measure from the end of the lost worker's lease, or from when another worker was there, to the next claim of the
    job or to its end."""
    for job, ledger in snapshot.ledgers.items():
        holder: EventRow | None = None
        lost_at: float | None = None
        for event in ledger:
            if event.type in ("claim", "take", "start"):
                if lost_at is not None and event.at - lost_at > within:
                    yield Violation("N4", job, f"was claimed again {event.at - lost_at:.1f} s late")
                holder, lost_at = event, None
            elif event.type == "lease_expired":
                lease = None if holder is None else snapshot.lease_of(holder)
                if lease is None:
                    yield Violation("N4", job, "expired without a lease")
                    continue
                lost_at = _recovery_start(snapshot, lease, event)
                if event.at - lost_at > within:
                    yield Violation("N4", job, f"was freed {event.at - lost_at:.1f} s late")
            elif event.target in FINISHED and event.type != "lease_expired":
                lost_at = None


def _recovery_start(snapshot: Snapshot, lost: LeaseRow, freed: EventRow) -> float:
    """On a busy machine the recovering worker may start long after the lease has ended, or lose its lease too."""
    opened = [lease.opened for lease in snapshot.leases.values() if lease.opened <= freed.at <= lease.end]
    return max(lost.end, min(opened, default=freed.at))


def n5(snapshot: Snapshot) -> Iterator[Violation]:
    for job, row in snapshot.rows.items():
        ledger = snapshot.ledgers.get(job, [])
        try:
            state = replay(Transition(event.type, event.source, event.target) for event in ledger)
        except ValueError as error:
            yield Violation("N5", job, str(error))
            continue
        if state is not row.state:
            yield Violation("N5", job, f"the ledger ends in {state}, the job is {row.state}")
        begun = [event.attempt for event in ledger if event.target is State.IN_PROGRESS]
        if begun != list(range(1, row.attempt + 1)):
            yield Violation("N5", job, f"the ledger starts attempts {begun}, the job counts {row.attempt}")
    for job in snapshot.ledgers.keys() - snapshot.rows.keys():
        yield Violation("N5", job, "has a ledger but no job")


DECIDED = {"approve": ("approved",), "deny": ("denied",), "expire": ("expired", "withdrawn"), "cancel": ("withdrawn",)}


def n5_approvals(snapshot: Snapshot) -> Iterator[Violation]:
    """Every wait has one approval, which is open while the job waits and decided once, as in the ledger."""
    for job, row in snapshot.rows.items():
        approvals, ledger = snapshot.approvals.get(job, []), snapshot.ledgers.get(job, [])
        open_ = [approval.id for approval in approvals if approval.state == "open"]
        waits_for = [row.approval] if row.state is State.WAITING_FOR_APPROVAL else []
        if open_ != waits_for:
            yield Violation("N5", job, f"is {row.state}, waits for {waits_for}, and its open approvals are {open_}")
        waits = sum(event.target is State.WAITING_FOR_APPROVAL for event in ledger)
        if waits != len(approvals):
            yield Violation("N5", job, f"waited {waits} times and has {len(approvals)} approvals")
        ends = [event for event in ledger if event.source is State.WAITING_FOR_APPROVAL]
        for event, approval in zip(ends, approvals, strict=False):
            if approval.state not in DECIDED.get(event.type, ()):
                yield Violation("N5", job, f"continued by {event.type}, but its approval is {approval.state}")
            by_time = event.actor == "maintenance"
            if event.type == "approve" and not by_time and approval.ayes < approval.quorum:
                yield Violation("N5", job, f"was approved by {approval.ayes} of {approval.quorum}")
            if approval.noes != (event.type == "deny"):
                yield Violation("N5", job, f"continued by {event.type} after {approval.noes} denials")
    for job in snapshot.approvals.keys() - snapshot.rows.keys():
        yield Violation("N5", job, "has an approval but no job")


def n6(snapshot: Snapshot, seen: Sequence[tuple[int, str]]) -> Iterator[Violation]:
    """Every event is seen at least once, and for the first time in the order of its job."""
    known = {seq for seq, _ in seen}
    last: dict[str, int] = {}
    repeated: set[int] = set()
    for seq, job in seen:
        if seq not in repeated and seq < last.get(job, 0):
            yield Violation("N6", job, f"event {seq} was seen for the first time after event {last[job]}")
        repeated.add(seq)
        last[job] = max(seq, last.get(job, 0))
    for job, ledger in snapshot.ledgers.items():
        for event in ledger:
            if event.seq not in known:
                yield Violation("N6", job, f"event {event.seq} ({event.type}) was never seen")
    for seq in sorted(known - {event.seq for ledger in snapshot.ledgers.values() for event in ledger}):
        yield Violation("N6", "-", f"event {seq} was seen and is not in the ledger")


def effect_violations(snapshot: Snapshot, folder: Path) -> Iterator[Violation]:
    """Compare the recorded effects with the ledger: no run without an attempt, no success without a run."""
    begun = {(effect.job, effect.attempt) for effect in effects(folder, "begun")}
    for job, attempt in sorted(begun):
        ledger = snapshot.ledgers.get(job, [])
        if not any(event.target is State.IN_PROGRESS and event.attempt == attempt for event in ledger):
            yield Violation("N3", job, f"attempt {attempt} ran but never began")
    runners = {effect.job for effect in effects(folder)}
    for job, ledger in snapshot.ledgers.items():
        for event in ledger:
            if event.type == "succeed" and job in runners and (job, event.attempt) not in begun:
                yield Violation("N2", job, f"attempt {event.attempt} succeeded but never ran")
