"""The handler of the kind ``steps.undo``: it undoes the recorded steps of a job that has ended (``steps/undo.py``)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast.app.internals import kinds_of, session_of
from holdfast.app.replayer import Replayer
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
        undos, missed = await Replayer(app).undos(history) if history.steps else ([], [])
        if missed:
            names = ", ".join(f"{step.n} {step.name}" for step in missed[:20])
            raise HoldfastError(
                f"the handler of job {job} no longer reaches these recorded steps, so nothing was undone: {names}",
                code="undo_incomplete",
                fix="Deploy code that fits the job, and redrive this one.",
            )
        # The steps before a fork are those of the job that it was forked from.
        own = {step.n for step in history.steps if step.attempt > 0}
        undone = []
        for undo in sorted((each for each in undos if each.n in own), key=lambda each: each.n, reverse=True):
            now = await session.arun(session.store.jobs.get(job, ctx.tenant))
            if now is None or now.state not in ENDED:
                raise Reject("redriven", f"job {job} was redriven while its steps were undone")
            steps = ctx.step_options(retry=undo.retry, timeout=undo.timeout)
            await steps.step(undo.label, undo.function, undo.value)
            undone.append(undo.name)
        return {"job": job, "undone": undone}

    return undo_steps
