"""Why a job is where it is, and does not run (HF-2): every reason that holds, in words, and what would change it. Pure.

Each reason is a small function of the whole scene that answers a ``Reason`` or nothing, and knows of no other. A new
one is written, and put into ``REASONS``, in the order in which people should read them. What holds a queued job for
another reason than time says so in its note (``{"held": …}``); what that means is in ``why_held``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from holdfast.domain.agents import Agent
from holdfast.domain.circumstances import AHEAD, Circumstances, Executor, WorkerSeen
from holdfast.domain.dead_letters import DeadLetterGroup
from holdfast.domain.gates import Gate
from holdfast.domain.job import EVERY_TENANT, Event, Job
from holdfast.domain.limits import Limit
from holdfast.domain.reason import Reason
from holdfast.domain.reservations import Reservation
from holdfast.domain.states import HELD as HELD_STATES
from holdfast.domain.states import State
from holdfast.domain.steps import Step
from holdfast.domain.tenants import TurnOf
from holdfast.domain.why_held import by_limits, by_parents, by_reservations
from holdfast.domain.workflows import ParentResult

WAITING: Final = frozenset({State.QUEUED, State.RETRY_WAITING})


@dataclass(frozen=True, slots=True)
class Scene:
    """All there is to know about it."""

    job: Job
    around: Circumstances
    history: list[Event]
    steps: list[Step]
    gate: Gate | None
    agent: Agent | None
    executors: list[Executor]
    successor: Job | None
    parents: list[ParentResult] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    turn: TurnOf | None = None
    """Where it stands, if its queue is shared between tenants."""
    group: DeadLetterGroup | None = None
    """Of a dead letter: those that failed for the same reason."""

    def last(self, *verbs: str) -> Event | None:
        return next((event for event in reversed(self.history) if event.verb in verbs), None)

    @property
    def waits_in(self) -> Step | None:
        """The durable call that it waits in."""
        if self.job.state is not State.RETRY_WAITING:
            return None
        waits = (step for step in self.steps if not step.over and step.wake_at == self.job.due_at)
        return next(waits, None)

    @property
    def is_due(self) -> bool:
        """It waits for nobody but a worker."""
        job = self.job
        late = job.due_at is not None and job.due_at <= self.around.now
        ready = (job.state is State.QUEUED and job.due_at is None) or (job.state in WAITING and late)
        return ready and "held" not in self.around.note

    @property
    def fitting(self) -> list[WorkerSeen]:
        """The living workers that serve its tenant."""
        return [worker for worker in self.around.workers if worker.tenant in (self.job.tenant, EVERY_TENANT)]

    @property
    def ahead(self) -> int | None:
        """How many stand before it: of its own tenant, where tenants share the queue."""
        return self.around.ahead if self.turn is None else self.turn.ahead

    @property
    def others(self) -> int:
        """Tenants that it takes turns with."""
        return 0 if self.turn is None else max(0, self.turn.tenants - 1)

    def taking(self) -> list[WorkerSeen]:
        """Those that would take it: of its tenant, its queue and its kind."""
        return [
            worker
            for worker in self.fitting
            if (worker.queues is None or self.job.queue in worker.queues)
            and (worker.kinds is None or self.job.kind in worker.kinds)
        ]


# --- it is over ---


def succeeded(scene: Scene) -> Reason | None:
    job, event = scene.job, scene.last("succeed")
    if job.state is not State.SUCCEEDED:
        return None
    by = f" by {event.actor}" if event is not None else ""
    return Reason("succeeded", f"it succeeded at {_at(job.finished_at)}, in try {job.attempt}{by}")


def retried(scene: Scene) -> Reason | None:
    job, new = scene.job, scene.successor
    if new is None or job.state is not State.FAILED:
        return None
    return Reason(
        "retried_as_new_job",
        f"it failed ({job.error_code}: {job.error_message}) and was retried as job {new.id}, which is {new.state}",
        f"It is never run again itself. See: holdfast why {new.id}",
        {"retried_as": new.id},
    )


_FAILED: Final = {
    "deadline_passed": (
        "deadline_passed",
        "its deadline passed before it was done",
        "Enqueue it again with a later deadline.",
    ),
    "gate_expired": (
        "gate_expired",
        "nobody decided its approval in time",
        "Enqueue it again, with more time to decide.",
    ),
    "denied": ("denied", "its approval was denied", "Only a new job can ask again."),
}


def failed(scene: Scene) -> Reason | None:
    job = scene.job
    if job.state is not State.FAILED or scene.successor is not None:
        return None
    event = scene.last("deny", "expire", "fail", "lapse", "crash")
    by = f" by {event.actor}" if event is not None and event.verb == "deny" else ""
    code, says, change = _FAILED.get(job.error_code or "", ("failed", "it failed for good", "Enqueue it again."))
    return Reason(code, f"{says}{by}: {job.error_message} (at {_at(job.finished_at)})", change)


def dead_letter(scene: Scene) -> Reason | None:
    job = scene.job
    if job.state is not State.DEAD_LETTER:
        return None
    if job.crashes > job.max_crashes:
        why = f"its worker, or its process, was lost {job.crashes} times, and {job.max_crashes} are allowed"
    elif job.retries >= job.max_retries and job.max_retries:
        why = f"all of its {job.max_retries + 1} tries failed"
    elif not job.max_retries:
        why = "it failed, and is not tried again"
    else:
        why = "it failed in a way that no other try can help"
    since = f"it is a dead letter since {_at(job.finished_at)}"
    change = f"holdfast jobs redrive {job.id}, or holdfast jobs discard {job.id} --reason …"
    group, others = scene.group, ""
    if group is not None and group.open > 1:
        others = f"; {group.open - 1} more wait for the same reason (group {group.fingerprint})"
        change += f"; all of them: holdfast dead-letters redrive {group.fingerprint}"
    return Reason(
        "dead_letter",
        f"{since}: {why}; the last time {job.error_code}: {job.error_message}{others}",
        change,
        {"error_code": job.error_code} | ({} if group is None else {"group": group.fingerprint}),
    )


def cancelled(scene: Scene) -> Reason | None:
    job, event = scene.job, scene.last("cancel", "discard")
    if job.state is not State.CANCELLED or event is None:
        return None
    verb = "discarded" if event.verb == "discard" else "cancelled"
    by = "its own handler" if event.meta.get("by") == "handler" else event.actor
    reason = f": {event.meta['reason']}" if event.meta.get("reason") else ""
    return Reason(verb, f"it was {verb} by {by} at {_at(job.finished_at)}{reason}", "Enqueue it again.", {"by": by})


def cleaned(scene: Scene) -> Reason | None:
    if scene.job.state is not State.CLEANED:
        return None
    return Reason("cleaned", "it is over, and retention has emptied it; what happened is still in the ledger")


# --- somebody has it ---


def running(scene: Scene) -> Reason | None:
    job, around = scene.job, scene.around
    if job.state is not State.IN_PROGRESS or not around.held:
        return None
    return Reason(
        "running",
        f"it is running, in try {job.attempt}, since {_at(job.started_at)}, by {around.holder};"
        f" its lease is good until {_at(around.held_until)} and is renewed meanwhile",
        f"To stop it: holdfast jobs cancel {job.id}",
        {"holder": around.holder, "label": around.label},
    )


def prefetched(scene: Scene) -> Reason | None:
    job, around = scene.job, scene.around
    if job.state is not State.LEASED or not around.held:
        return None
    return Reason(
        "leased",
        f"{around.holder} has taken it and not begun it yet; its lease is good until {_at(around.held_until)}",
        "It begins when that worker has a free slot, or comes back when it leaves.",
        {"holder": around.holder},
    )


def lease_lapsed(scene: Scene) -> Reason | None:
    job, around = scene.job, scene.around
    if job.state not in HELD_STATES or around.held:
        return None
    again = job.crashes < job.max_crashes
    then = "taken up again" if again else "a dead letter: it has lost as many workers as it may"
    then = then if job.state is State.IN_PROGRESS else "queued again"
    return Reason(
        "lease_lapsed",
        f"the lease of {around.holder} ran out, or was ended, at {_at(around.held_until)}: that worker is gone",
        f"The next sweep of any worker frees it, and it is {then}.",
        {"holder": around.holder},
    )


# --- it waits for something ---


def retry_waiting(scene: Scene) -> Reason | None:
    job = scene.job
    if job.state is not State.RETRY_WAITING or scene.waits_in is not None:
        return None
    step = scene.last("retry", "snooze")
    if step is None or step.verb == "snooze":
        return None
    return Reason(
        "retry_waiting",
        f"its last try failed ({job.error_code}: {job.error_message}); it is tried again at {_at(job.due_at)},"
        f" with {job.retries} of {job.max_retries} retries and {job.crashes} of {job.max_crashes} lost workers used",
        f"To try at once: holdfast jobs reschedule {job.id}",
        {"due_at": _at(job.due_at), "error_code": job.error_code},
    )


def snoozed(scene: Scene) -> Reason | None:
    job, step = scene.job, scene.last("retry", "snooze")
    if job.state is not State.RETRY_WAITING or scene.waits_in is not None or step is None or step.verb != "snooze":
        return None
    reason = step.meta.get("reason")
    who = "its worker stopped and handed it back" if reason == "worker_stopped" else "its handler put it off"
    said = f" ({reason})" if reason and reason != "worker_stopped" else ""
    change = f"To run it at once: holdfast jobs reschedule {job.id}"
    return Reason("snoozed", f"{who}{said}, until {_at(job.due_at)}", change, {"due_at": _at(job.due_at)})


def in_a_call(scene: Scene) -> Reason | None:
    """Asleep, or waiting for an event, or for a step to be tried again."""
    step = scene.waits_in
    if step is None:
        return None
    until = "" if step.until is None else f" until {_at(step.until)}"
    if step.kind == "sleep":
        return Reason("sleeping", f"its handler sleeps{until}", "It goes on by itself.", {"step": step.name})
    if step.kind == "event":
        wanted = ", ".join(f"{name} = {value!r}" for name, value in sorted((step.wanted or {}).items()))
        says = f"it waits for the event {step.name}{f' with {wanted}' if wanted else ''}{until}"
        return Reason("waiting_for_event", says, f"holdfast send-event {step.name} …", {"event": step.name})
    error = (step.error or {}).get("message", "")
    says = f"its step {step.name} failed {step.tries} times ({error}) and is tried again at {_at(step.wake_at)}"
    return Reason("step_retry", says, f"To try at once: holdfast jobs reschedule {scene.job.id}", {"step": step.name})


def waiting_for_approval(scene: Scene) -> Reason | None:
    gate = scene.gate
    if scene.job.state is not State.WAITING_FOR_APPROVAL or gate is None:
        return None
    who = ", ".join(gate.approvers) or "anybody"
    expires = "" if gate.expires_at is None else f"; it expires at {_at(gate.expires_at)}"
    not_asker = f", but not {gate.requester}" if gate.not_requester else ""
    return Reason(
        "waiting_for_approval",
        f"people are asked: {gate.summary} ({gate.name}). {who} may decide{not_asker};"
        f" {gate.approvals} of {gate.quorum} approvals are there{expires}",
        f"holdfast approvals approve {gate.id}, or deny",
        {"gate": gate.id, "approvers": list(gate.approvers)},
    )


def agent_disabled(scene: Scene) -> Reason | None:
    agent = scene.agent
    if agent is None or agent.disabled_at is None or scene.job.state not in WAITING:
        return None
    return Reason(
        "agent_disabled",
        f"its agent {agent.id} was disabled by {agent.disabled_by} at {_at(agent.disabled_at)}:"
        f" {agent.disabled_reason}",
        f"holdfast agents enable {agent.id}",
        {"agent": agent.id},
    )


def held(scene: Scene) -> Reason | None:
    """Parked, for whatever reason its note tells."""
    why = scene.around.note.get("held")
    if scene.job.state not in WAITING or why is None or (why == "agent_disabled" and scene.agent is not None):
        return None
    if why == "parents":
        return by_parents(scene.job, scene.parents)
    if why == "limit" and (limited(scene) or reserved(scene)):
        return None
    return Reason("held", f"it is held back ({why})", "Whoever holds it back lets it go.", {"held": why})


def limited(scene: Scene) -> Reason | None:
    if scene.job.state is not State.QUEUED or scene.job.due_at is not None:
        return None
    return next(iter(by_limits(scene.job, scene.around.note, scene.limits)), None)


def reserved(scene: Scene) -> Reason | None:
    if scene.job.state is not State.QUEUED or scene.job.due_at is not None:
        return None
    return next(iter(by_reservations(scene.job, scene.reservations)), None)


def not_due(scene: Scene) -> Reason | None:
    job, around = scene.job, scene.around
    if job.state is not State.QUEUED or job.due_at is None or job.due_at <= around.now or "held" in around.note:
        return None
    by = around.note.get("by") if "rescheduled" in around.note else None
    says = f"its time has not come: it is due at {_at(job.due_at)}" + (f", as {by} decided" if by else "")
    change = f"To run it at once: holdfast jobs reschedule {job.id}"
    return Reason("not_due", says, change, {"due_at": _at(job.due_at)})


def deadline(scene: Scene) -> Reason | None:
    job = scene.job
    waits = job.state in WAITING or job.state is State.WAITING_FOR_APPROVAL
    if not waits or job.deadline_at is None or job.deadline_at > scene.around.now:
        return None
    return Reason(
        "deadline_over",
        f"its deadline was {_at(job.deadline_at)}: it is not started any more, and the next sweep ends it as failed",
        "Enqueue it again with a later deadline.",
    )


def to_be_promoted(scene: Scene) -> Reason | None:
    job = scene.job
    if job.due_at is None or job.due_at > scene.around.now or job.state not in WAITING:
        return None
    says = f"its time came at {_at(job.due_at)}; it enters its queue with the next look of any worker"
    return Reason("due", says, "holdfast tick, or a worker, does it.")


# --- it could run: who would take it? ---


def no_worker(scene: Scene) -> Reason | None:
    if not scene.is_due or scene.fitting:
        return None
    others = sorted({worker.tenant for worker in scene.around.workers})
    if others:
        says = f"the living workers serve other tenants ({', '.join(others)}), and none serves {scene.job.tenant}"
        return Reason("other_tenants_workers", says, f"holdfast worker MODULE:APP --tenant {scene.job.tenant}")
    return Reason(
        "no_worker", f"no living worker serves tenant {scene.job.tenant}", "Start one: holdfast worker MODULE:APP"
    )


def no_worker_for_queue(scene: Scene) -> Reason | None:
    job = scene.job
    if not scene.is_due or not scene.fitting:
        return None
    if any(worker.queues is None or job.queue in worker.queues for worker in scene.fitting):
        return None
    served = sorted({queue for worker in scene.fitting for queue in worker.queues or ()})
    says = f"{_workers(scene.fitting)}, and none serves queue {job.queue} (they serve {', '.join(served)})"
    return Reason("no_worker_for_queue", says, f"holdfast worker MODULE:APP --queues {job.queue}", {"queue": job.queue})


def no_worker_for_kind(scene: Scene) -> Reason | None:
    job = scene.job
    there = [worker for worker in scene.fitting if worker.queues is None or job.queue in worker.queues]
    if not scene.is_due or not there or scene.taking():
        return None
    says = f"{_workers(there)} for its queue, and none has a handler for {job.kind}"
    return Reason(
        "no_worker_for_kind", says, f"Start a worker of the program that declares {job.kind}.", {"kind": job.kind}
    )


def refused_executors(scene: Scene) -> Reason | None:
    taking, listed = scene.taking(), {each.label for each in scene.executors if each.role == "executor"}
    if not scene.is_due or not taking or not scene.executors or any(worker.label in listed for worker in taking):
        return None
    labels = ", ".join(sorted({worker.label for worker in taking}))
    says = f"{_workers(taking)} that would take it, under labels that may not execute ({labels})"
    return Reason("executor_refused", says, "holdfast executors add LABEL")


def all_busy(scene: Scene) -> Reason | None:
    taking = scene.taking()
    if not scene.is_due or not taking or not all(worker.full for worker in taking):
        return None
    slots = sum(worker.slots or 0 for worker in taking)
    says = f"{_workers(taking)} that would take it, with all of their {slots} slots in use"
    change = "It is taken when one is free; start another worker, or one with more --concurrency."
    return Reason("workers_busy", says, change, {"slots": slots})


def jobs_ahead(scene: Scene) -> Reason | None:
    ahead = scene.ahead
    if not scene.is_due or not ahead:
        return None
    many = f"{ahead:,} or more jobs are" if ahead >= AHEAD else "1 job is" if ahead == 1 else f"{ahead:,} jobs are"
    whose = "" if scene.turn is None else f", of its own tenant {scene.job.tenant}"
    says = f"{many} before it in queue {scene.job.queue}{whose}"
    return Reason("jobs_ahead", says, f"holdfast jobs move {scene.job.id} --first", {"ahead": ahead})


def tenant_turn(scene: Scene) -> Reason | None:
    if not scene.is_due or scene.turn is None or not scene.others:
        return None
    turn, job = scene.turn, scene.job
    others = f"{scene.others:,} other tenant{'s have' if scene.others > 1 else ' has'}"
    return Reason(
        "tenant_turn",
        f"queue {job.queue} is shared fairly: {others} jobs waiting there, and {job.tenant} is served with weight"
        f" {turn.weight}",
        f"It comes when its tenant has its turn. For a larger share: holdfast tenants set {job.tenant} --weight N",
        {"tenants": turn.tenants, "weight": turn.weight},
    )


def its_turn(scene: Scene) -> Reason | None:
    job = scene.job
    in_time = job.deadline_at is None or job.deadline_at > scene.around.now
    free = any(not worker.full for worker in scene.taking()) and not (limited(scene) or reserved(scene))
    if not scene.is_due or job.due_at is not None or scene.ahead or scene.others or not free or not in_time:
        return None
    return Reason(
        "next",
        "it is the next of its queue, and a worker that would take it has a free slot",
        "It is taken in a moment.",
    )


REASONS: Final[tuple[Callable[[Scene], Reason | None], ...]] = (
    succeeded,
    retried,
    failed,
    dead_letter,
    cancelled,
    cleaned,
    running,
    prefetched,
    lease_lapsed,
    in_a_call,
    retry_waiting,
    snoozed,
    waiting_for_approval,
    agent_disabled,
    held,
    limited,
    reserved,
    not_due,
    deadline,
    to_be_promoted,
    no_worker,
    no_worker_for_queue,
    no_worker_for_kind,
    refused_executors,
    all_busy,
    jobs_ahead,
    tenant_turn,
    its_turn,
)


def reasons(scene: Scene) -> list[Reason]:
    """Every one that holds."""
    return [reason for look in REASONS if (reason := look(scene)) is not None]


def _workers(workers: list[WorkerSeen]) -> str:
    return "there is a living worker" if len(workers) == 1 else f"there are {len(workers)} living workers"


def _at(moment: datetime | None) -> str:
    return "some time" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
