"""``reasons()``: why a job is in its state and does not run. Every reason that applies, in words, and what would change
it. Pure.

Each reason is a function from a ``Snapshot`` to a ``Reason``, a list of them, or None. ``REASONS`` lists the functions
in the order in which people should read the results. This module has the reasons of finished jobs and about workers,
``why_reasons`` those of waiting and held jobs. A queued job that waits for something else than a time has a note
(``{"held": …}``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.engine.job import DEFAULT_QUEUE, DEFAULT_TENANT
from holdfast.engine.states import HELD as HELD_STATES
from holdfast.engine.states import State
from holdfast.features.agents.model import MAX_AHEAD, WorkerSeen
from holdfast.features.jobs.why_reasons import (
    WAITING,
    Reason,
    Snapshot,
    agent_disabled,
    at,
    code_mismatch,
    deadline,
    held,
    in_a_call,
    limited,
    no_worker_for_version,
    not_due,
    paused,
    reserved,
    retry_waiting,
    snoozed,
    to_be_promoted,
    waiting_for_approval,
)


def running(snapshot: Snapshot) -> Reason | None:
    job, around = snapshot.job, snapshot.around
    if job.state is not State.IN_PROGRESS or not around.held:
        return None
    steps = [f"step {step.name} since {at(step.started_at)}" for step in snapshot.steps if step.running]
    doing = f", in {', '.join(steps)}" if steps else ""
    facts = {"holder": around.holder, "label": around.label, "heartbeat_at": around.renewed_at}
    return Reason(
        "running",
        f"it is running, in attempt {job.attempt}, since {at(job.started_at)}, by {around.holder}{doing};"
        f" {_heartbeat(snapshot)}",
        f"To stop it: holdfast jobs cancel {job.id}",
        facts | {"taken_over_after": around.held_until},
    )


def _heartbeat(snapshot: Snapshot) -> str:
    """When the worker last renewed its lease, and what happens if it does not again. A worker renews three times per
    lease, so after half a lease without a renewal one is overdue."""
    around = snapshot.around
    if around.renewed_at is None or around.held_until is None:
        return f"its lease ends at {at(around.held_until)}"
    silent, lease = around.now - around.renewed_at, around.held_until - around.renewed_at
    text = f"the last heartbeat of the worker was at {at(around.renewed_at)}, {silent.total_seconds():.0f} s ago"
    if silent > lease / 2:
        text += ", and the next one is overdue"
    return f"{text}; without another one the job is taken over after {at(around.held_until)}"


def prefetched(snapshot: Snapshot) -> Reason | None:
    job, around = snapshot.job, snapshot.around
    if job.state is not State.LEASED or not around.held:
        return None
    return Reason(
        "leased",
        f"{around.holder} has claimed it and not started it yet; its lease ends at {at(around.held_until)}",
        "It starts when that worker has a free slot, and is queued again when the worker stops.",
        {"holder": around.holder},
    )


def lease_expired(snapshot: Snapshot) -> Reason | None:
    job, around = snapshot.job, snapshot.around
    if job.state not in HELD_STATES or around.held:
        return None
    again = job.crashes < job.max_crashes
    then = "taken up again" if again else "a dead letter: it has lost as many workers as it may"
    then = then if job.state is State.IN_PROGRESS else "queued again"
    return Reason(
        "lease_expired",
        f"the lease of {around.holder} ended at {at(around.held_until)}, its last heartbeat was at"
        f" {at(around.renewed_at)}: that worker is gone",
        f"{'The next sweep of a worker frees it within seconds' if snapshot.fitting else 'A worker frees it'},"
        f" and it is {then}.",
        {"holder": around.holder, "heartbeat_at": around.renewed_at},
    )


def no_worker(snapshot: Snapshot) -> Reason | None:
    orphaned = snapshot.job.state in HELD_STATES and not snapshot.around.held
    if not (snapshot.job.state in WAITING or orphaned) or snapshot.fitting:
        return None
    others = sorted({worker.tenant for worker in snapshot.around.workers})
    if others:
        says = f"the running workers serve other tenants ({', '.join(others)}), and none serves {snapshot.job.tenant}"
        return Reason("other_tenants_workers", says + _for_executor(snapshot), _start(snapshot, tenant=True))
    says = f"no worker is running for tenant {snapshot.job.tenant}"
    return Reason("no_worker", says + _for_executor(snapshot), f"Start one: {_start(snapshot)}")


def _for_executor(snapshot: Snapshot) -> str:
    return "" if snapshot.job.executor is None else f"; it waits for executor {snapshot.job.executor}"


def _start(snapshot: Snapshot, *, queue: bool = False, tenant: bool = False) -> str:
    """The command of a worker that would take the job: one without ``--queues`` serves the queues that its program
    declares."""
    job = snapshot.job
    parts = ["holdfast worker MODULE:APP"]
    parts += [f"--queues {job.queue}"] if queue or job.queue != DEFAULT_QUEUE else []
    parts += [f"--executor {job.executor}"] if job.executor is not None else []
    parts += [f"--tenant {job.tenant}"] if tenant or job.tenant != DEFAULT_TENANT else []
    return " ".join(parts)


def no_worker_for_queue(snapshot: Snapshot) -> Reason | None:
    job = snapshot.job
    if job.state not in WAITING or not snapshot.fitting:
        return None
    if any(worker.queues is None or job.queue in worker.queues for worker in snapshot.fitting):
        return None
    served = sorted({queue for worker in snapshot.fitting for queue in worker.queues or ()})
    says = f"{_workers(snapshot.fitting)}, and none serves queue {job.queue} (they serve {', '.join(served)})"
    return Reason("no_worker_for_queue", says, _start(snapshot, queue=True), {"queue": job.queue})


def no_worker_for_kind(snapshot: Snapshot) -> Reason | None:
    job = snapshot.job
    there = [worker for worker in snapshot.fitting if worker.queues is None or job.queue in worker.queues]
    if job.state not in WAITING or not there or snapshot.able:
        return None
    says = f"{_workers(there)} for its queue, and none has a handler for {job.kind}"
    return Reason(
        "no_worker_for_kind", says, f"Start a worker of the program that declares {job.kind}.", {"kind": job.kind}
    )


def no_worker_for_executor(snapshot: Snapshot) -> Reason | None:
    job = snapshot.job
    if job.state not in WAITING or job.executor is None or not snapshot.around.workers or snapshot.taking():
        return None
    labelled = [worker for worker in snapshot.fitting if worker.label == job.executor]
    if labelled and not snapshot.able:  # the reasons about its queue and its kind cover this
        return None
    facts = {"executor": job.executor}
    if labelled:
        says = f"it waits for executor {job.executor}, and {_workers(labelled)} with that label: none takes its kind"
        return Reason("no_worker_for_executor", f"{says} from its queue", _start(snapshot, queue=True), facts)
    says = f"it waits for executor {job.executor}, and no running worker has that label"
    return Reason("no_worker_for_executor", says, _start(snapshot, queue=True), facts)


def generator_only(snapshot: Snapshot) -> Reason | None:
    job = snapshot.job
    if job.state not in WAITING or job.executor is None:
        return None
    if not any(executor.label == job.executor and executor.role == "generator" for executor in snapshot.executors):
        return None
    says = f"it waits for executor {job.executor}, which is registered as a generator and executes nothing"
    return Reason("generator_only", says, f"holdfast executors set {job.executor}", {"executor": job.executor})


def refused_executors(snapshot: Snapshot) -> Reason | None:
    taking = snapshot.taking()
    listed = {executor.label for executor in snapshot.executors if executor.role == "executor"}
    if (
        snapshot.job.state not in WAITING
        or not taking
        or not snapshot.executors
        or any(worker.label in listed for worker in taking)
    ):
        return None
    labels = ", ".join(sorted({worker.label for worker in taking}))
    says = f"{_workers(taking)} that would take it, under labels that may not execute ({labels})"
    return Reason("executor_refused", says, "Add it: holdfast executors set LABEL")


def all_busy(snapshot: Snapshot) -> Reason | None:
    taking = snapshot.taking()
    if not snapshot.is_due or not taking or not all(worker.full for worker in taking):
        return None
    slots = sum(worker.slots or 0 for worker in taking)
    says = f"{_workers(taking)} that would take it, with all of their {slots} slots in use"
    change = "It is taken when one is free; start another worker, or one with more --concurrency."
    return Reason("workers_busy", says, change, {"slots": slots})


def jobs_ahead(snapshot: Snapshot) -> Reason | None:
    ahead = snapshot.ahead
    if not snapshot.is_due or not ahead:
        return None
    many = f"{ahead:,} or more jobs are" if ahead >= MAX_AHEAD else "1 job is" if ahead == 1 else f"{ahead:,} jobs are"
    tenant = "" if snapshot.share is None else f", of its own tenant {snapshot.job.tenant}"
    says = f"{many} before it in queue {snapshot.job.queue}{tenant}"
    return Reason("jobs_ahead", says, f"holdfast jobs move {snapshot.job.id} --first", {"ahead": ahead})


def tenant_turn(snapshot: Snapshot) -> Reason | None:
    if not snapshot.is_due or snapshot.share is None or not snapshot.others:
        return None
    share, job = snapshot.share, snapshot.job
    others = f"{snapshot.others:,} other tenant{'s have' if snapshot.others > 1 else ' has'}"
    return Reason(
        "tenant_turn",
        f"queue {job.queue} is shared fairly: {others} jobs waiting there, and {job.tenant} is served with weight"
        f" {share.weight}",
        f"It runs when its tenant is next. For a larger share: holdfast tenants set {job.tenant} --weight N",
        {"tenants": share.tenants, "weight": share.weight},
    )


def next_in_queue(snapshot: Snapshot) -> Reason | None:
    job = snapshot.job
    in_time = job.deadline_at is None or job.deadline_at > snapshot.around.now
    free = any(not worker.full for worker in snapshot.taking()) and not (
        limited(snapshot) or reserved(snapshot) or paused(snapshot)
    )
    if not snapshot.is_due or job.due_at is not None or snapshot.ahead or snapshot.others or not free or not in_time:
        return None
    return Reason(
        "next",
        "it is the next of its queue, and a worker that would take it has a free slot",
        "It is taken in a moment.",
    )


def _workers(workers: list[WorkerSeen]) -> str:
    return "1 worker is running" if len(workers) == 1 else f"{len(workers)} workers are running"


def succeeded(snapshot: Snapshot) -> Reason | None:
    job, event = snapshot.job, snapshot.last("succeed")
    if job.state is not State.SUCCEEDED:
        return None
    by = f" by {event.actor}" if event is not None else ""
    return Reason("succeeded", f"it succeeded at {at(job.finished_at)}, in attempt {job.attempt}{by}")


def retried(snapshot: Snapshot) -> Reason | None:
    job, new = snapshot.job, snapshot.successor
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
    "approval_expired": (
        "approval_expired",
        "no one decided its approval in time",
        "Enqueue it again, with more time to decide.",
    ),
    "denied": ("denied", "its approval was denied", "Only a new job can ask again."),
}


def failed(snapshot: Snapshot) -> Reason | None:
    job = snapshot.job
    if job.state is not State.FAILED or snapshot.successor is not None:
        return None
    event = snapshot.last("deny", "expire", "fail", "lease_expired", "crash")
    by = f" by {event.actor}" if event is not None and event.type == "deny" else ""
    code, says, change = _FAILED.get(job.error_code or "", ("failed", "it failed for good", "Enqueue it again."))
    return Reason(code, f"{says}{by}: {job.error_message} (at {at(job.finished_at)})", change)


def dead_letter(snapshot: Snapshot) -> Reason | None:
    job = snapshot.job
    if job.state is not State.DEAD_LETTER:
        return None
    if job.crashes > job.max_crashes:
        why = f"its worker, or its process, was lost {job.crashes} times, and {job.max_crashes} are allowed"
    elif job.retries + 1 >= job.max_attempts > 1:
        redriven = snapshot.last("redrive")
        since_then = "" if redriven is None else f" since it was redriven at {at(redriven.at)}"
        why = f"all of its {job.max_attempts} attempts{since_then} failed"
        if redriven is None and job.attempt > job.max_attempts:  # snoozes and lost workers are attempts, too
            why = f"{job.max_attempts} of its {job.attempt} attempts failed, and no more may"
    elif job.max_attempts == 1:
        why = "it failed, and is not tried again"
    else:
        why = "it failed with an error that is not retried"
    since = f"it is a dead letter since {at(job.finished_at)}"
    change = f"holdfast jobs redrive {job.id}, or holdfast jobs discard {job.id} --reason …"
    group, others = snapshot.group, ""
    if group is not None and group.open > 1:
        others = f"; {group.open - 1} more wait for the same reason (group {group.fingerprint})"
        change += f"; all of them: holdfast dead-letters redrive {group.fingerprint}"
    return Reason(
        "dead_letter",
        f"{since}: {why}; the last time {job.error_code}: {job.error_message}{others}",
        change,
        {"error_code": job.error_code} | ({} if group is None else {"group": group.fingerprint}),
    )


def cancelled(snapshot: Snapshot) -> Reason | None:
    job, event = snapshot.job, snapshot.last("cancel", "discard")
    if job.state is not State.CANCELLED or event is None:
        return None
    ended = "discarded" if event.type == "discard" else "cancelled"
    by = "its own handler" if event.meta.get("by") == "handler" else event.actor
    reason = f": {event.meta['reason']}" if event.meta.get("reason") else ""
    return Reason(ended, f"it was {ended} by {by} at {at(job.finished_at)}{reason}", "Enqueue it again.", {"by": by})


def cleaned(snapshot: Snapshot) -> Reason | None:
    if snapshot.job.state is not State.CLEANED:
        return None
    return Reason("cleaned", "retention has removed its data; its events are still in the ledger")


REASONS: Final[tuple[Callable[[Snapshot], Reason | list[Reason] | None], ...]] = (
    succeeded,
    retried,
    failed,
    dead_letter,
    cancelled,
    cleaned,
    running,
    prefetched,
    lease_expired,
    in_a_call,
    retry_waiting,
    snoozed,
    code_mismatch,
    waiting_for_approval,
    agent_disabled,
    paused,
    held,
    limited,
    reserved,
    not_due,
    deadline,
    to_be_promoted,
    no_worker,
    no_worker_for_queue,
    no_worker_for_kind,
    no_worker_for_executor,
    no_worker_for_version,
    generator_only,
    refused_executors,
    all_busy,
    jobs_ahead,
    tenant_turn,
    next_in_queue,
)


def reasons(snapshot: Snapshot) -> list[Reason]:
    """Every reason that applies."""
    result: list[Reason] = []
    for check in REASONS:
        answer = check(snapshot)
        result += answer if isinstance(answer, list) else [] if answer is None else [answer]
    return result
