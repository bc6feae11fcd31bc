"""Why a job waits: for a time, an event, a person, or because something holds it back."""

from __future__ import annotations

from holdfast.domain.reason import Reason
from holdfast.domain.scene import WAITING, Scene, at
from holdfast.domain.why_held import by_limits, by_parents, by_reservations, by_switches
from holdfast.engine.states import State


def retry_waiting(scene: Scene) -> Reason | None:
    job = scene.job
    if job.state is not State.RETRY_WAITING or scene.waits_in is not None:
        return None
    step = scene.last("retry", "snooze")
    if step is None or step.verb == "snooze":
        return None
    return Reason(
        "retry_waiting",
        f"its last try failed ({job.error_code}: {job.error_message}); it is tried again at {at(job.due_at)},"
        f" with {job.retries} of {job.max_retries} retries and {job.crashes} of {job.max_crashes} lost workers used",
        f"To try at once: holdfast jobs reschedule {job.id}",
        {"due_at": at(job.due_at), "error_code": job.error_code},
    )


def snoozed(scene: Scene) -> Reason | None:
    job, step = scene.job, scene.last("retry", "snooze")
    if job.state is not State.RETRY_WAITING or scene.waits_in is not None or step is None or step.verb != "snooze":
        return None
    reason = step.meta.get("reason")
    who = "its worker stopped and handed it back" if reason == "worker_stopped" else "its handler put it off"
    said = f" ({reason})" if reason and reason != "worker_stopped" else ""
    change = f"To run it at once: holdfast jobs reschedule {job.id}"
    return Reason("snoozed", f"{who}{said}, until {at(job.due_at)}", change, {"due_at": at(job.due_at)})


def in_a_call(scene: Scene) -> Reason | None:
    """Asleep, or waiting for an event, or for a step to be tried again."""
    step = scene.waits_in
    if step is None:
        return None
    until = "" if step.until is None else f" until {at(step.until)}"
    if step.kind == "sleep":
        return Reason("sleeping", f"its handler sleeps{until}", "It goes on by itself.", {"step": step.name})
    if step.kind == "event":
        wanted = ", ".join(f"{name} = {value!r}" for name, value in sorted((step.wanted or {}).items()))
        says = f"it waits for the event {step.name}{f' with {wanted}' if wanted else ''}{until}"
        return Reason("waiting_for_event", says, f"holdfast send-event {step.name} …", {"event": step.name})
    error = (step.error or {}).get("message", "")
    says = f"its step {step.name} failed {step.tries} times ({error}) and is tried again at {at(step.wake_at)}"
    return Reason("step_retry", says, f"To try at once: holdfast jobs reschedule {scene.job.id}", {"step": step.name})


def waiting_for_approval(scene: Scene) -> Reason | None:
    gate = scene.gate
    if scene.job.state is not State.WAITING_FOR_APPROVAL or gate is None:
        return None
    who = ", ".join(gate.approvers) or "anybody"
    expires = "" if gate.expires_at is None else f"; it expires at {at(gate.expires_at)}"
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
        f"its agent {agent.id} was disabled by {agent.disabled_by} at {at(agent.disabled_at)}: {agent.disabled_reason}",
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
    if why == "limit" and (limited(scene) or reserved(scene) or paused(scene)):
        return None
    return Reason("held", f"it is held back ({why})", "Whoever holds it back lets it go.", {"held": why})


def limited(scene: Scene) -> Reason | None:
    if scene.job.state is not State.QUEUED or scene.job.due_at is not None:
        return None
    return next(iter(by_limits(scene.job, scene.around.note, scene.limits)), None)


def paused(scene: Scene) -> Reason | None:
    if scene.job.state not in WAITING:
        return None
    return next(iter(by_switches(scene.job, scene.switches)), None)


def reserved(scene: Scene) -> Reason | None:
    if scene.job.state is not State.QUEUED or scene.job.due_at is not None:
        return None
    return next(iter(by_reservations(scene.job, scene.reservations)), None)


def not_due(scene: Scene) -> Reason | None:
    job, around = scene.job, scene.around
    if job.state is not State.QUEUED or job.due_at is None or job.due_at <= around.now or "held" in around.note:
        return None
    by = around.note.get("by") if "rescheduled" in around.note else None
    says = f"its time has not come: it is due at {at(job.due_at)}" + (f", as {by} decided" if by else "")
    change = f"To run it at once: holdfast jobs reschedule {job.id}"
    return Reason("not_due", says, change, {"due_at": at(job.due_at)})


def deadline(scene: Scene) -> Reason | None:
    job = scene.job
    waits = job.state in WAITING or job.state is State.WAITING_FOR_APPROVAL
    if not waits or job.deadline_at is None or job.deadline_at > scene.around.now:
        return None
    return Reason(
        "deadline_over",
        f"its deadline was {at(job.deadline_at)}: it is not started any more, and the next sweep ends it as failed",
        "Enqueue it again with a later deadline.",
    )


def to_be_promoted(scene: Scene) -> Reason | None:
    job = scene.job
    if job.due_at is None or job.due_at > scene.around.now or job.state not in WAITING:
        return None
    says = f"its time came at {at(job.due_at)}; it enters its queue with the next look of any worker"
    return Reason("due", says, "holdfast tick, or a worker, does it.")
