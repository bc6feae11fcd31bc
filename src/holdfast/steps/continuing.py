"""``ctx.continue_as(…)``: end this run, and begin the next one with other arguments and without recorded steps.

One transaction settles this job as succeeded, with the fence of every settlement, and enqueues the next one. So there
is exactly one next run, also when the worker dies at any moment. The idempotency key goes with the run: enqueueing with
it returns the newest. The end of this job names the next one, and a tag of the next one names this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.engine.job import Claim, Job, JobSpec, References
from holdfast.engine.outcome import Paused, Succeeded
from holdfast.engine.retry import PATIENT, Backoff, Retry
from holdfast.engine.settlement import Settlement, decide
from holdfast.engine.steps import CONTINUES_TAG, continued_from, origin_of
from holdfast.engine.trace import plain_tags
from holdfast.errors import InvalidSetting, Refused, StaleLease
from holdfast.features.attempts.model import LogPart
from holdfast.steps.handler_run import HandlerRun
from holdfast.steps.transaction import Stage
from holdfast.stores.flow import Flow, Steps, flow
from holdfast.worker.shutdown import Suspended

if TYPE_CHECKING:
    from holdfast.features.assembly import Store


class Continued(Suspended):
    """Ends the handler: its job has succeeded, and the next run is enqueued."""

    def __init__(self) -> None:
        super().__init__(Paused({"kind": "continue", "name": "continue_as"}, []))


async def acontinue(run: HandlerRun, args: Sequence[Any], kwargs: dict[str, Any]) -> NoReturn:
    spec, settlement = _next(run, args, kwargs)
    await run.session.arun(_continued(run.session.store, run.claim, settlement, spec, run.session.scope, _lines(run)))
    run.completion.stage = Stage.DONE
    raise Continued


def continue_now(run: HandlerRun, args: Sequence[Any], kwargs: dict[str, Any]) -> NoReturn:
    spec, settlement = _next(run, args, kwargs)
    run.session.run(_continued(run.session.store, run.claim, settlement, spec, run.session.scope, _lines(run)))
    run.completion.stage = Stage.DONE
    raise Continued


def _next(run: HandlerRun, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[JobSpec, Settlement]:
    """The next job, without what it takes over from this one, and the settlement of this one."""
    run.check_not_at_once()
    run.check_may_end()
    run.completion.check_free()
    if run.again is None:
        raise InvalidSetting("ctx.continue_as works only in a worker", code="no_worker")
    if run.claim.workflow_id is not None:
        raise InvalidSetting(
            "a job of a workflow cannot continue as another one",
            code="in_workflow",
            fix="Enqueue a job with ctx.spawn.",
        )
    spec: JobSpec = run.again(*args, **kwargs).spec
    success = Succeeded(note={"continued_as": spec.id}, cost=run.stop.cost)
    return spec, decide(run.claim, success, 0.0)


def _lines(run: HandlerRun) -> list[LogPart]:
    return run.hold_lines()


def _continued(
    store: Store, claim: Claim, settlement: Settlement, spec: JobSpec, scope: str, lines: Sequence[LogPart]
) -> Flow[None]:
    @flow(notifies=True)
    def steps() -> Steps[None]:
        if lines:
            yield from store.attempts.append_log(claim.lease, lines, scope).start()
        if (yield from store.leases.settle(claim.lease, [settlement], scope).start()):
            raise StaleLease(f"job {claim.id} is no longer claimed by this worker")
        job = yield from store.jobs.get(claim.id, claim.tenant).start()
        assert job is not None
        references = yield from store.jobs.references(claim.id, claim.tenant).start()
        key, digest = yield from store.steps.release_key(claim.id, claim.lease, scope).start()
        new = _taking_over(spec, job, references, key, digest)
        (result,) = yield from store.jobs.enqueue([new], claim.tenant).start()
        if not result.created:
            raise Refused(result.detail or f"the next run of job {claim.id} was refused", code=result.reason)

    return steps()


def _taking_over(spec: JobSpec, job: Job, references: References, key: str | None, digest: str | None) -> JobSpec:
    """The next run: the same settings and the same key, in the same chain."""
    tags = [tag for tag in plain_tags(job.tags) if continued_from((tag,)) is None and origin_of((tag,)) is None]
    return replace(
        spec,
        queue=job.queue,
        priority=job.priority,
        delay=None,
        retry=Retry(
            max_attempts=job.max_attempts,
            max_crashes=job.max_crashes,
            backoff=Backoff.from_json(job.backoff) if job.backoff else PATIENT,
        ),
        retry_given=True,
        key=key,
        # With the hash of the first run: whoever enqueues it again with its key gets the newest run, not a conflict.
        payload_hash=spec.payload_hash if digest is None else digest,
        dedupe=None,
        content_key=None,
        tags=(*tags, f"{CONTINUES_TAG}{job.id}"),
        agent=job.agent,
        correlation_id=job.correlation_id or job.id,
        causation_id=job.id,
        parent_id=job.parent_id,
        external_ref=job.external_ref,
        uses=job.uses or (),
        retry_as=job.retry_as,
        depth=job.depth,
        executor=job.executor if job.executor is not None and job.executor.isprintable() else None,
        references=None if references == References() else references,
        alike=None,
    )
