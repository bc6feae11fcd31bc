"""``app.jobs``: read jobs and act on them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from holdfast.engine.ids import id_texts, parse_id
from holdfast.engine.job import Artifact, Attempt, Event, Job, Liveness, References, Result, Verdict
from holdfast.engine.names import check_name
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.order import Move
from holdfast.engine.retry import attempt_limit
from holdfast.engine.settlement import storable
from holdfast.engine.states import State
from holdfast.engine.steps import Step
from holdfast.engine.units import Duration
from holdfast.errors import InvalidInput, InvalidSetting, JobFailed, NotFound
from holdfast.features.attempts.model import AttemptLog
from holdfast.features.jobs.attempt_files import load_artifact, load_log
from holdfast.features.jobs.changes import (
    CheckPayload,
    FromStep,
    accepted,
    check_from_step,
    plain_payload,
    redrive_jobs,
    redrive_time,
    replace_payload,
)
from holdfast.features.jobs.handle import Handle
from holdfast.features.jobs.search import NEVER, SearchPage, index_path, matching, needs_clock, parse
from holdfast.features.jobs.views import (
    Why,
    artifacts_of,
    attempts_of,
    chain_of,
    ledger_of,
    liveness_of,
    opened_checkpoints,
    opened_steps,
    references_of,
    result_of,
    why,
)
from holdfast.stores.flow import run
from holdfast.stores.job_pages import MOST
from holdfast.stores.namespace import StoreNamespace, call
from holdfast.stores.requests import Counted, JobsWanted, OperatorAction, Reschedule, all_of, page_of

if TYPE_CHECKING:
    from holdfast.stores.session import Session

COUNTED = 10_000
"""A state with more jobs than this is reported as having this many."""


class JobsPage(JobsWanted, total=False):
    """``before`` is the id of the last job of the previous page. Without ``payloads`` each payload is None."""

    before: str | None
    limit: int
    payloads: bool


# Inside the class, ``list`` is an operation.
_Jobs = list[Job]
_Verdicts = list[Verdict]
_Events = list[Event]
_Attempts = list[Attempt]
_Artifacts = list[Artifact]
_Steps = list[Step]


class Jobs(StoreNamespace):
    """Jobs that were enqueued. ``tenant`` is the session's tenant by default."""

    def __init__(self, session: Session, check: CheckPayload = plain_payload) -> None:
        """``check`` encodes a payload as the program's declaration of its kind requires."""
        super().__init__(session)
        self._session = session
        self._check = check

    @operation
    def list(self, **wanted: Unpack[JobsPage]) -> Program[_Jobs]:
        """A page of jobs, newest first: ``app.jobs.list(state="dead_letter", kind="pay", limit=20)``."""
        return (yield from run(self._store.jobs.list(page_of(self._tenant, wanted))))

    alist = awaited(list)

    @operation
    def search(self, text: str, *, limit: int = 50, before: str | None = None) -> Program[SearchPage]:
        """Search as in the dashboard: ``app.jobs.search('kind:pay payload.order_id:7 since:1d "card declined"')``.
        Returns a page: ``jobs``, newest first, with payloads, and ``next``: pass it as ``before`` for the next. Keys of
        payloads without an index and words of errors are compared with 2,000 jobs per call, so a page may be short or
        empty and still have a ``next``."""
        if not isinstance(text, str):
            raise InvalidInput(f"a search is text, not {type(text).__name__}", code="invalid_search")
        size: object = limit
        if not isinstance(size, int) or not 1 <= size <= MOST:
            raise InvalidSetting(f"limit must be from 1 to {MOST:,}", code="invalid_limit")
        now = (yield from run(self._store.clock.now())) if needs_clock(text) else NEVER
        search, cursor = parse(text, now), None if before is None else parse_id(before)
        return (yield from run(matching(self._store, search, self._tenant, limit, cursor, payloads=True)))

    asearch = awaited(search)

    @operation
    def payload_indexes(self) -> Program[Sequence[str]]:
        """The indexed keys of payloads, such as ``payload.customer.id``."""
        return (yield from run(self._store.jobs.payload_indexes()))

    apayload_indexes = awaited(payload_indexes)

    @operation
    def add_payload_index(self, path: str) -> Program[None]:
        """Index a key of the payloads of all jobs, so that a search for it reads only the jobs that have the value:
        ``app.jobs.add_payload_index("payload.order_id")``. Each enqueue then writes one more index entry. Needs the
        login that owns the tables."""
        keys = index_path(path)
        if path not in (yield from run(self._store.jobs.payload_indexes())):
            cursor = yield from run(self._store.jobs.fill_payload_index(keys, None))
            while cursor is not None:
                cursor = yield from run(self._store.jobs.fill_payload_index(keys, cursor))

    aadd_payload_index = awaited(add_payload_index)

    @operation
    def remove_payload_index(self, path: str) -> Program[None]:
        """Remove the index over a key; ``NotFound`` if there is none."""
        keys = index_path(path)
        if path not in (yield from run(self._store.jobs.payload_indexes())):
            raise NotFound(
                f"there is no index over {path}", code="index_not_found", fix="List them: holdfast jobs indexes"
            )
        yield from run(self._store.jobs.remove_payload_index(keys))

    aremove_payload_index = awaited(remove_payload_index)

    @operation
    def count(self, **wanted: Unpack[JobsWanted]) -> Program[Counted]:
        """The number of jobs in each state, each counted up to 10,000."""
        job_filter = all_of(wanted.pop("tenant", self._tenant), wanted)
        return (yield from run(self._store.jobs.capped_counts(job_filter, COUNTED)))

    acount = awaited(count)

    @operation
    def get(self, job_id: str, *, tenant: str | None = None) -> Program[Job]:
        """The job, or ``NotFound``."""
        tenant = tenant or self._tenant
        job = yield from run(self._store.jobs.get(job_id, tenant))
        if job is None:
            raise NotFound(f"no job {parse_id(job_id)} in tenant {tenant}")
        return job

    aget = awaited(get)

    def handle(self, job_id: str, *, tenant: str | None = None) -> Handle[Any]:
        """A handle on an existing job, for programs that kept its id: ``app.jobs.handle(id).result()``."""
        return Handle(parse_id(job_id), tenant or self._tenant, False, None, self._session, lambda value: value)

    @operation
    def result(self, job_id: str, *, tenant: str | None = None) -> Program[Result]:
        """The result of a job that has succeeded: its ``value`` as JSON, and the ``ref`` of a large one. ``JobFailed``
        in any other state. This does not wait: ``app.jobs.handle(id).result()`` does, and returns the value."""
        job, result = yield from run(result_of(self._store, job_id, tenant or self._tenant))
        if job.state is not State.SUCCEEDED:
            raise JobFailed(
                f"job {job.id} is {job.state}: it has no result", fix=f"Read the reason: holdfast jobs show {job.id}"
            )
        if result is None:
            return Result(None, None)
        opened = partial(self._session.vault.open_value, result.value, result.ref, tenant=job.tenant, job_id=job.id)
        return Result((yield from call(opened)), result.ref)

    aresult = awaited(result)

    @operation
    def why(self, job_id: str, *, tenant: str | None = None) -> Program[Why]:
        """Why a job is not running: every reason that applies, and what would change it."""
        return (yield from run(why(self._store, job_id, tenant or self._tenant)))

    awhy = awaited(why)

    @operation
    def chain(self, job_id: str, *, tenant: str | None = None) -> Program[_Jobs]:
        """A job and its retries, where each retry is a new job, oldest first. Takes the id of any of them."""
        return (yield from run(chain_of(self._store, job_id, tenant or self._tenant)))

    achain = awaited(chain)

    @operation
    def history(self, job_id: str, *, tenant: str | None = None) -> Program[_Events]:
        """The events of a job, oldest first."""
        return (yield from run(ledger_of(self._store, job_id, tenant or self._tenant)))

    ahistory = awaited(history)

    @operation
    def attempts(self, job_id: str, *, tenant: str | None = None) -> Program[_Attempts]:
        """The attempts of a job: parameters, worker, times, outcome, exit code, error and location of the log."""
        return (yield from run(attempts_of(self._store, job_id, tenant or self._tenant)))

    aattempts = awaited(attempts)

    @operation
    def liveness(self, job_id: str, *, tenant: str | None = None) -> Program[Liveness]:
        """The number and the time of lease renewals and progress reports in the newest attempt. These writes have no
        events."""
        return (yield from run(liveness_of(self._store, job_id, tenant or self._tenant)))

    aliveness = awaited(liveness)

    @operation
    def artifacts(self, job_id: str, *, tenant: str | None = None) -> Program[_Artifacts]:
        """Names and references of the files that the attempts of a job recorded."""
        return (yield from run(artifacts_of(self._store, job_id, tenant or self._tenant)))

    aartifacts = awaited(artifacts)

    @operation
    def artifact(
        self, job_id: str, name: str, attempt: int | None = None, *, tenant: str | None = None
    ) -> Program[bytes]:
        """The contents of an artifact, up to 64 MB; without an attempt, from the last attempt that has one of this
        name. It must be in the artifact store, or belong to a command job on this host."""
        tenant = tenant or self._tenant
        return (yield from load_artifact(self._caller, self._session.vault, job_id, name, attempt, tenant))

    aartifact = awaited(artifact)

    @operation
    def log(
        self,
        job_id: str,
        attempt: int | None = None,
        *,
        offset: int | None = None,
        tail: int | None = None,
        tenant: str | None = None,
    ) -> Program[AttemptLog]:
        """The log of an attempt, up to 1 MB: the lines of ``ctx.log``, or the output of a command job; without an
        attempt, of the last one. ``offset`` continues a log that was read up to there, ``tail`` reads its last
        bytes."""
        tenant = tenant or self._tenant
        return (yield from load_log(self._caller, self._session.vault, job_id, attempt, offset, tail, tenant))

    alog = awaited(log)

    @operation
    def references(self, job_id: str, *, tenant: str | None = None) -> Program[References]:
        """The URIs of a job's input, output and payload, if it has them."""
        return (yield from run(references_of(self._store, job_id, tenant or self._tenant)))

    areferences = awaited(references)

    @operation
    def steps(self, job_id: str, *, tenant: str | None = None) -> Program[_Steps]:
        """The durable steps of a job in order, with their values."""
        return (yield from opened_steps(self._store, self._session.vault, job_id, tenant or self._tenant))

    asteps = awaited(steps)

    @operation
    def checkpoints(self, job_id: str, *, tenant: str | None = None) -> Program[dict[str, Any]]:
        """The named checkpoints of a job, with their values."""
        return (yield from opened_checkpoints(self._store, self._session.vault, job_id, tenant or self._tenant))

    acheckpoints = awaited(checkpoints)

    @operation
    def cancel(self, *job_ids: str, reason: str | None = None, tenant: str | None = None) -> Program[_Verdicts]:
        """Cancel jobs that have not ended. The workers of running jobs are notified to stop. Returns one verdict per
        id."""
        return (yield from self._operate("cancel", job_ids, reason, tenant))

    acancel = awaited(cancel)

    @operation
    def discard(self, *job_ids: str, reason: str, tenant: str | None = None) -> Program[_Verdicts]:
        """Discard dead letters for good. Returns one verdict per id."""
        return (yield from self._operate("discard", job_ids, reason, tenant))

    adiscard = awaited(discard)

    @operation
    def redrive(
        self,
        *job_ids: str,
        reason: str | None = None,
        max_attempts: int | None = None,
        from_step: FromStep | None = None,
        at: datetime | None = None,
        delay: Duration | None = None,
        tenant: str | None = None,
    ) -> Program[_Verdicts]:
        """Put dead letters back into their queues with all their attempts, or ``max_attempts``. Returns one verdict per
        id.

        They start immediately, or not before ``at`` or after a ``delay``. Completed steps are not run again, unless
        ``from_step`` (a number or a name) names the first one to repeat.
        """
        limit, tenant = attempt_limit(max_attempts), tenant or self._tenant
        when = redrive_time(at, delay)
        if from_step is None and when is None:
            return (yield from self._operate("redrive", job_ids, reason, tenant, limit))
        step = None if from_step is None else check_from_step(from_step)
        ids = id_texts(job_ids)
        return (yield from run(redrive_jobs(self._store, ids, step, reason, self._actor, tenant, limit, when)))

    aredrive = awaited(redrive)

    @operation
    def replace_payload(self, job_id: str, payload: Any, *, reason: str, tenant: str | None = None) -> Program[Verdict]:
        """Replace the payload of a job that is queued or waits for a retry. A payload rule of its kind must allow it
        (``replaceable``). The ledger gets an event with the digests of both payloads. ``Conflict`` if the job does not
        wait, has recorded steps or is deduplicated by its content."""
        return (yield from replace_payload(self._session, self._check, job_id, payload, reason, tenant or self._tenant))

    areplace_payload = awaited(replace_payload)

    @operation
    def set_external_ref(self, job_id: str, external_ref: str | None, *, tenant: str | None = None) -> Program[Verdict]:
        """Set or change the reference to the same work in another system, in any state of the job; None removes it.
        The audit trail records the old and the new one. Find the job with ``app.jobs.list(external_ref=…)``."""
        ref = None if external_ref is None else check_name(external_ref, "external_ref", limit=255)
        flow = self._store.jobs.set_external_ref(job_id, ref, self._actor, tenant or self._tenant)
        return accepted([(yield from run(flow))])

    aset_external_ref = awaited(set_external_ref)

    @operation
    def reschedule(
        self,
        *job_ids: str,
        at: datetime | None = None,
        delay: Duration | None = None,
        max_attempts: int | None = None,
        reason: str | None = None,
        tenant: str | None = None,
    ) -> Program[_Verdicts]:
        """Change the start time of waiting jobs (queued, scheduled or waiting for a retry); without a time or a delay,
        to now. Returns one verdict per id."""
        ids, when, tenant = id_texts(job_ids), Reschedule.of(at, delay, max_attempts), tenant or self._tenant
        return (yield from run(self._store.jobs.reschedule(ids, when, storable(reason), self._actor, tenant)))

    areschedule = awaited(reschedule)

    @operation
    def move(
        self,
        job_id: str,
        *,
        first: bool = False,
        last: bool = False,
        before: str | None = None,
        after: str | None = None,
        priority: int | None = None,
        reason: str | None = None,
        tenant: str | None = None,
    ) -> Program[Verdict]:
        """Move a waiting job within its queue: ``first``, ``last``, ``before`` or ``after`` another job.

        ``first`` and ``last`` refer to its priority, or to a new one. Next to another job it gets that job's priority.
        A priority alone moves it behind all others of that priority.
        """
        move, tenant = Move.of(first, last, before, after, priority), tenant or self._tenant
        return (yield from run(self._store.jobs.move(job_id, move, storable(reason), self._actor, tenant)))

    amove = awaited(move)

    def _operate(
        self,
        action: OperatorAction,
        job_ids: Sequence[str],
        reason: str | None,
        tenant: str | None,
        max_attempts: int | None = None,
    ) -> Program[_Verdicts]:
        ids, tenant = id_texts(job_ids), tenant or self._tenant
        flow = self._store.jobs.operate(action, ids, storable(reason), self._actor, tenant, max_attempts)
        return (yield from run(flow))
