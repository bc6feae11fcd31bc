"""Why a job waits for a worker, or which one has it: who would take it, and when its turn comes."""

from __future__ import annotations

from holdfast.domain.circumstances import AHEAD, WorkerSeen
from holdfast.domain.reason import Reason
from holdfast.domain.scene import Scene, at
from holdfast.domain.why_waiting import limited, paused, reserved
from holdfast.engine.states import HELD as HELD_STATES
from holdfast.engine.states import State


def running(scene: Scene) -> Reason | None:
    job, around = scene.job, scene.around
    if job.state is not State.IN_PROGRESS or not around.held:
        return None
    return Reason(
        "running",
        f"it is running, in try {job.attempt}, since {at(job.started_at)}, by {around.holder};"
        f" its lease is good until {at(around.held_until)} and is renewed meanwhile",
        f"To stop it: holdfast jobs cancel {job.id}",
        {"holder": around.holder, "label": around.label},
    )


def prefetched(scene: Scene) -> Reason | None:
    job, around = scene.job, scene.around
    if job.state is not State.LEASED or not around.held:
        return None
    return Reason(
        "leased",
        f"{around.holder} has taken it and not begun it yet; its lease is good until {at(around.held_until)}",
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
        f"the lease of {around.holder} ran out, or was ended, at {at(around.held_until)}: that worker is gone",
        f"The next sweep of any worker frees it, and it is {then}.",
        {"holder": around.holder},
    )


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
    free = any(not worker.full for worker in scene.taking()) and not (
        limited(scene) or reserved(scene) or paused(scene)
    )
    if not scene.is_due or job.due_at is not None or scene.ahead or scene.others or not free or not in_time:
        return None
    return Reason(
        "next",
        "it is the next of its queue, and a worker that would take it has a free slot",
        "It is taken in a moment.",
    )


def _workers(workers: list[WorkerSeen]) -> str:
    return "there is a living worker" if len(workers) == 1 else f"there are {len(workers)} living workers"
