"""The invariants of every fault, looked up in the whole database afterwards.

N1 every accepted job is there: ended, visibly dead, or still on its way with somebody to take care of it
N2 one end per life        N3 no write by a superseded lease        N4 lost jobs are taken up again in time
N5 the ledger replays to the job's state, and its approvals agree       N6 consumers saw every event, per job in order
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.engine.states import FINISHED, HELD, State, replay
from holdfast.engine.states import Step as Transition
from tests.faults.effects import effects
from tests.faults.picture import Holding, Picture, Step, endings, lives, take_picture

# The guarantee is 60 s with default settings. The tests use leases and sweeps of a second, so this leaves most of it to
# a machine that is busy with other work.
IN_TIME = 50.0
BY_THE_HOLDER = frozenset({"succeed", "fail", "snooze", "ask"})


@dataclass(frozen=True)
class Violation:
    invariant: str
    job: str
    says: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.job}: {self.says}"


def check(
    url: str,
    accepted: Iterable[str],
    *,
    folder: Path | None = None,
    ended: bool = True,
    within: float | None = None,
    seen: Sequence[tuple[int, str]] | None = None,
    perhaps: Collection[str] = (),
) -> Picture:
    """Assert all of them. `ended`: every job must have come to an end. `within`: seconds for N4. `seen`: what a
    consumer saw, (seq, job) in order. `perhaps`: jobs whose enqueuer was never told. `folder`: the effects."""
    accepted = set(accepted)
    picture = take_picture(url)
    found = [*n1(picture, accepted, ended=ended, perhaps=perhaps), *n2(picture), *n3(picture), *n5(picture)]
    found += n5_approvals(picture)
    if within is not None:
        found += n4(picture, within)
    if seen is not None:
        found += n6(picture, seen)
    if folder is not None:
        found += outside(picture, folder)
    assert not found, f"{len(found)} violations:\n" + "\n".join(map(str, found[:20]))
    return picture


def n1(
    picture: Picture, accepted: Collection[str], *, ended: bool = False, perhaps: Collection[str] = ()
) -> Iterator[Violation]:
    for job in sorted(accepted):
        row = picture.rows.get(job)
        if job not in picture.facts or row is None or not picture.ledgers.get(job):
            yield Violation("N1", job, "was accepted and is not there")
        elif ended and row.state not in FINISHED:
            yield Violation("N1", job, f"has not ended, it is {row.state}")
        elif row.state in HELD:
            lease = picture.leases.get(row.lease or "")
            if lease is None or lease.swept is not None:
                yield Violation("N1", job, f"is {row.state} under a lease that nobody will sweep")
    for job in picture.asleep:
        yield Violation("N1", job, "sleeps over an event that has come")
    for job in sorted(picture.facts - set(accepted) - set(perhaps)):
        yield Violation("N1", job, "is there and was never accepted")
    for job in sorted(picture.facts ^ picture.rows.keys()):
        yield Violation("N1", job, "has facts or a state, and not both")


def n2(picture: Picture) -> Iterator[Violation]:
    for job, ledger in picture.ledgers.items():
        for life in lives(ledger):
            ends = endings(life)
            if len(ends) > 1:
                yield Violation("N2", job, f"ended {len(ends)} times: {', '.join(step.type for step in ends)}")
            elif ends and [step.type for step in life if step.seq > ends[0].seq] not in ([], ["discard"], ["clean"]):
                yield Violation("N2", job, f"went on after it had ended by {ends[0].type}")


def n3(picture: Picture) -> Iterator[Violation]:
    for job, ledger in picture.ledgers.items():
        holder: Step | None = None
        for step in ledger:
            if step.type in ("claim", "take"):
                holder = step
            elif step.type == "start":
                if holder is None or holder.actor != step.actor:
                    yield Violation("N3", job, f"was started by {step.actor} and held by another")
                holder = step
            elif step.type in BY_THE_HOLDER:
                if holder is None or (holder.actor, holder.attempt) != (step.actor, step.attempt):
                    began = None if holder is None else (holder.actor, holder.attempt)
                    yield Violation(
                        "N3", job, f"{step.type} by {step.actor} for attempt {step.attempt}, begun by {began}"
                    )
                holder = None
            elif step.source in HELD:
                holder = None
        row = picture.rows.get(job)
        if row is not None and row.lease is not None:
            lease = picture.leases.get(row.lease)
            if lease is not None and (holder is None or holder.actor != lease.holder):
                yield Violation("N3", job, f"is held by {lease.holder}, who did not take it")
    for job, attempt in picture.progress:
        if attempt > picture.rows[job].attempt:
            yield Violation("N3", job, f"has progress of attempt {attempt}, which was never begun")
    for job, steps in picture.steps.items():
        begun = [step for step in picture.ledgers.get(job, []) if step.target is State.IN_PROGRESS]
        for done in steps:
            # What is waited for is ended from outside; the rest by the attempt that is written with it.
            later = [step.attempt for step in begun if step.attempt > done.attempt and step.at < done.ended]
            if later and done.kind in ("step", "patch"):
                yield Violation("N3", job, f"step {done.n} was kept for attempt {done.attempt} during {later[0]}")


def n4(picture: Picture, within: float) -> Iterator[Violation]:
    """From the end of the lost holder's lease, or from when there was somebody to see to it, to the next take of its
    job, or to the end that it came to instead."""
    for job, ledger in picture.ledgers.items():
        holder: Step | None = None
        lapsed: float | None = None
        for step in ledger:
            if step.type in ("claim", "take", "start"):
                if lapsed is not None and step.at - lapsed > within:
                    yield Violation("N4", job, f"was taken up again {step.at - lapsed:.1f} s late")
                holder, lapsed = step, None
            elif step.type == "lapse":
                lease = None if holder is None else picture.lease_of(holder)
                if lease is None:
                    yield Violation("N4", job, "lapsed and was under no lease")
                    continue
                lapsed = _seen_to_from(picture, lease, step)
                if step.at - lapsed > within:
                    yield Violation("N4", job, f"was freed {step.at - lapsed:.1f} s late")
            elif step.target in FINISHED and step.type != "lapse":
                lapsed = None


def _seen_to_from(picture: Picture, lost: Holding, freed: Step) -> float:
    """On a busy machine whoever is to rescue it may come up long after the lease has ended, or be in need itself."""
    there = [each.opened for each in picture.leases.values() if each.opened <= freed.at <= each.end]
    return max(lost.end, min(there, default=freed.at))


def n5(picture: Picture) -> Iterator[Violation]:
    for job, row in picture.rows.items():
        ledger = picture.ledgers.get(job, [])
        try:
            state = replay(Transition(step.type, step.source, step.target) for step in ledger)
        except ValueError as error:
            yield Violation("N5", job, str(error))
            continue
        if state is not row.state:
            yield Violation("N5", job, f"the ledger ends in {state}, the job is {row.state}")
        begun = [step.attempt for step in ledger if step.target is State.IN_PROGRESS]
        if begun != list(range(1, row.attempt + 1)):
            yield Violation("N5", job, f"the ledger begins attempts {begun}, the job counts {row.attempt}")
    for job in picture.ledgers.keys() - picture.rows.keys():
        yield Violation("N5", job, "has a ledger and is no job")


DECIDED = {"approve": ("approved",), "deny": ("denied",), "expire": ("expired", "withdrawn"), "cancel": ("withdrawn",)}


def n5_approvals(picture: Picture) -> Iterator[Violation]:
    """One question for each time that a job asked, open while it waits, and decided once, as its ledger says."""
    for job, row in picture.rows.items():
        approvals, ledger = picture.approvals.get(job, []), picture.ledgers.get(job, [])
        open_ = [approval.id for approval in approvals if approval.state == "open"]
        waits_for = [row.approval] if row.state is State.WAITING_FOR_APPROVAL else []
        if open_ != waits_for:
            yield Violation("N5", job, f"is {row.state}, waits for {waits_for}, and its open approvals are {open_}")
        asked = sum(step.target is State.WAITING_FOR_APPROVAL for step in ledger)
        if asked != len(approvals):
            yield Violation("N5", job, f"asked {asked} times and has {len(approvals)} approvals")
        ends = [step for step in ledger if step.source is State.WAITING_FOR_APPROVAL]
        for step, approval in zip(ends, approvals, strict=False):
            if approval.state not in DECIDED.get(step.type, ()):
                yield Violation("N5", job, f"went on by {step.type}, and its approval is {approval.state}")
            by_time = step.actor == "promoter"
            if step.type == "approve" and not by_time and approval.ayes < approval.quorum:
                yield Violation("N5", job, f"was approved by {approval.ayes} of {approval.quorum}")
            if approval.noes != (step.type == "deny"):
                yield Violation("N5", job, f"went on by {step.type} after {approval.noes} had said no")
    for job in picture.approvals.keys() - picture.rows.keys():
        yield Violation("N5", job, "has an approval and is no job")


def n6(picture: Picture, seen: Sequence[tuple[int, str]]) -> Iterator[Violation]:
    """Once or more, and for each job in order: what is seen again was seen before."""
    known = {seq for seq, _ in seen}
    last: dict[str, int] = {}
    met: set[int] = set()
    for seq, job in seen:
        if seq not in met and seq < last.get(job, 0):
            yield Violation("N6", job, f"event {seq} was seen for the first time after event {last[job]}")
        met.add(seq)
        last[job] = max(seq, last.get(job, 0))
    for job, ledger in picture.ledgers.items():
        for step in ledger:
            if step.seq not in known:
                yield Violation("N6", job, f"event {step.seq} ({step.type}) was never seen")
    for seq in sorted(known - {step.seq for ledger in picture.ledgers.values() for step in ledger}):
        yield Violation("N6", "-", f"event {seq} was seen and is not in the ledger")


def outside(picture: Picture, folder: Path) -> Iterator[Violation]:
    """The handlers' own word against the ledger: no run without an attempt, no success without a run."""
    begun = {(effect.job, effect.attempt) for effect in effects(folder, "begun")}
    for job, attempt in sorted(begun):
        ledger = picture.ledgers.get(job, [])
        if not any(step.target is State.IN_PROGRESS and step.attempt == attempt for step in ledger):
            yield Violation("N3", job, f"attempt {attempt} ran and was never begun")
    runners = {effect.job for effect in effects(folder)}
    for job, ledger in picture.ledgers.items():
        for step in ledger:
            if step.type == "succeed" and job in runners and (job, step.attempt) not in begun:
                yield Violation("N2", job, f"attempt {step.attempt} succeeded and never ran")
