"""The handler of the kind ``steps.undo``: it undoes the recorded steps of a job that has ended (``steps/undo.py``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast.app.internals import kinds_of, session_of
from holdfast.app.replayer import Replayer, Undos
from holdfast.context import Context
from holdfast.engine.outcome import Reject, Snooze
from holdfast.engine.states import State
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.app import App

ENDED: Final = (State.DEAD_LETTER, State.CANCELLED, State.FAILED)
ELSEWHERE: Final = 5.0
"""Seconds until another worker may take a job whose kind this worker does not have."""


def undoer(app: App) -> Callable[..., Awaitable[Any]]:
    async def undo_steps(ctx: Context, job: str) -> dict[str, Any]:
        """Undo the recorded steps of a job that has ended, newest first."""
        session = session_of(app)
        found = await session.arun(session.store.jobs.get(job, ctx.tenant))
        if found is None or found.state not in ENDED:
            return {"job": job, "undone": []}  # purged, or it goes on: then nothing is undone
        if found.kind not in kinds_of(app):
            raise Snooze(ELSEWHERE, f"this worker has no handler for {found.kind}")
        (history,) = [each async for each in app.jobs.aexport_history(job, tenant=ctx.tenant)]
        if not history.steps:
            return {"job": job, "undone": []}
        undos = await Replayer(app).undos(history)
        if undos.missed and not undos.suspended:
            raise _incomplete(job, undos, "so nothing was undone")
        # The steps before a fork are those of the job that it was forked from.
        own = {step.n for step in history.steps if step.attempt > 0}
        names, undone = Counter(step.name for step in history.steps), []
        for undo in sorted((each for each in undos.known if each.n in own), key=lambda each: each.n, reverse=True):
            now = await session.arun(session.store.jobs.get(job, ctx.tenant))
            if now is None or now.state not in ENDED:
                raise Reject("redriven", f"job {job} was redriven while its steps were undone")
            # By name: steps that were not reached may come before these when this job is redriven.
            steps = ctx.step_options(retry=undo.retry, timeout=undo.timeout, unordered=True)
            await steps.step(undo.label(names[undo.name] > 1), undo.function, undo.value)
            undone.append(undo.name)
        if undos.missed:
            raise _incomplete(job, undos, "so these were not undone")
        return {"job": job, "undone": undone}

    return undo_steps


def _incomplete(job: str, undos: Undos, so: str) -> HoldfastError:
    names = ", ".join(f"{step.n} {step.name}" for step in undos.missed[:20])
    return HoldfastError(
        f"the handler of job {job} does not reach these recorded steps, {so}: {names} ({undos.why})",
        code="undo_incomplete",
        fix="Deploy code that fits the job, and redrive this one.",
    )
