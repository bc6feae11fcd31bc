"""``app.jobs``: read jobs and act on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from holdfast.engine.declared import Before, Help, Most, http, local_only
from holdfast.engine.ids import id_texts, parse_id
from holdfast.engine.job import Artifact, Attempt, Event, Job, Liveness, References, Result, Verdict
from holdfast.engine.names import check_name
from holdfast.engine.operation import Items, Program, awaited, awaited_stream, operation, stream
from holdfast.engine.order import Move
from holdfast.engine.retry import attempt_limit
from holdfast.engine.settlement import storable
from holdfast.engine.steps import Progress, Step
from holdfast.errors import InvalidInput, NotFound
from holdfast.features.attempts.model import AttemptLog
from holdfast.features.jobs.attempt_files import load_artifact, load_log
from holdfast.features.jobs.forks import fork
from holdfast.features.jobs.histories import histories
from holdfast.features.jobs.model import (
    AttemptNumber,
    Document,
    FirstStep,
    Fork,
    JobsPage,
    MoveOptions,
    StepName,
    Story,
    Why,
    accepted,
    check_from_step,
)
from holdfast.features.jobs.search import NEVER, SearchPage, check_search, index_path, matching, needs_clock, parse
from holdfast.features.jobs.store import (
    CheckPayload,
    artifacts_of,
    attempts_of,
    chain_of,
    ledger_of,
    liveness_of,
    not_found,
    opened_checkpoints,
    opened_result,
    opened_steps,
    plain_payload,
    redrive_jobs,
    references_of,
    replace_payload,
    story,
    why,
)
from holdfast.steps.history import History
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.requests import (
    Counted,
    JobConditions,
    JobId,
    JobsWanted,
    MaxAttempts,
    NeededReason,
    OperatorAction,
    Reason,
    Reschedule,
    StartAt,
    StartDelay,
    Tenant,
    all_of,
    page_of,
)

if TYPE_CHECKING:
    from holdfast.features.jobs.handle import Handle
    from holdfast.stores.session import Session

COUNTED = 10_000  # a state with more jobs than this is reported as having this many
PAYLOAD = {"payload": {"to": "ada@example.com"}, "reason": "the address was wrong"}

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
    @http("GET /jobs", "read", page="id", by_hand=True)
    def list(self, **wanted: Unpack[JobsPage]) -> Program[_Jobs]:
        """List jobs, newest first.

        ``app.jobs.list(state="dead_letter", kind="pay", limit=20)``. The client returns jobs without payloads (None).
        """
        return (yield from run(self._store.jobs.list(page_of(self._tenant, wanted))))

    alist = awaited(list)

    @operation
    @http("GET /jobs", "read", by_hand=True)
    def search(
        self,
        text: Annotated[str, Help("Qualifiers, keys of the payload, words of the error.", "TEXT", parameter="q")],
        *,
        limit: Most = 50,
        before: Before = None,
    ) -> Program[SearchPage]:
        """Search jobs by qualifiers, keys of the payload and words of the error, newest first. Keys without an index
        are compared with 2,000 jobs per search.

        ``app.jobs.search('kind:pay payload.order_id:7 since:1d "card declined"')`` returns a page: ``jobs``, newest
        first, with payloads, and ``next``: pass it as ``before`` for the next. A page may be short or empty and still
        have a ``next``. Restricted and sealed payloads are never found.
        """
        check_search(text, limit)
        now = (yield from run(self._store.clock.now())) if needs_clock(text) else NEVER
        search, cursor = parse(text, now), None if before is None else parse_id(before)
        return (yield from run(matching(self._store, search, self._tenant, limit, cursor, payloads=True)))

    asearch = awaited(search)

    @operation
    @local_only("indexes belong to the owner of the tables")
    def payload_indexes(self) -> Program[Sequence[str]]:
        """The indexed keys of payloads, such as ``payload.customer.id``."""
        return (yield from run(self._store.jobs.payload_indexes()))

    apayload_indexes = awaited(payload_indexes)

    @operation
    @local_only("indexes belong to the owner of the tables")
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
    @local_only("indexes belong to the owner of the tables")
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
    @http("GET /jobs/counts", "read", by_hand=True)
    def count(self, **wanted: Unpack[JobsWanted]) -> Program[Counted]:
        """Count jobs in each state, up to ``most``."""
        job_filter = all_of(wanted.pop("tenant", self._tenant), wanted)
        return (yield from run(self._store.jobs.capped_counts(job_filter, COUNTED)))

    acount = awaited(count)

    @operation
    @http("GET /jobs/{job_id}", "read", result="job", by_hand=True)
    def get(self, job_id: JobId, *, tenant: Tenant = None) -> Program[Job]:
        """The job, or ``NotFound``."""
        return (yield from self._job(job_id, tenant or self._tenant))

    aget = awaited(get)

    @operation
    @http("GET /jobs/{job_id}", "read", by_hand=True)
    def details(self, job_id: JobId, *, tenant: Tenant = None) -> Program[Story]:
        """Show a job: state, timeline, attempts, steps, result, approval, workflow and dead letter group."""
        details = yield from run(story(self._store, job_id, tenant or self._tenant))
        if details is None:
            raise not_found(job_id, tenant or self._tenant)
        return details

    adetails = awaited(details)

    def handle(self, job_id: str, *, tenant: str | None = None) -> Handle[Any]:
        """A handle on an existing job, for programs that kept its id: ``app.jobs.handle(id).result()``."""
        from holdfast.features.jobs.handle import Handle  # a handle has the operations of this namespace

        return Handle(parse_id(job_id), tenant or self._tenant, False, None, self._session, lambda value: value)

    @operation
    @http("GET /jobs/{job_id}/result", "read", by_hand=True)
    def result(self, job_id: JobId, *, tenant: Tenant = None) -> Program[Result]:
        """The result of a job that has succeeded: its ``value`` as JSON, and the ``ref`` of a large one. ``JobFailed``
        in any other state. This does not wait: ``app.jobs.handle(id).result()`` does, and returns the value."""
        return (yield from opened_result(self._store, self._session.vault, job_id, tenant or self._tenant))

    aresult = awaited(result)

    @operation
    @http("GET /jobs/{job_id}/why", "read", large=True)
    def why(self, job_id: JobId, *, tenant: Tenant = None) -> Program[Why]:
        """Explain why a job is not running: every reason that applies, and what would change it."""
        return (yield from run(why(self._store, job_id, tenant or self._tenant)))

    awhy = awaited(why)

    @operation
    @http("GET /jobs/{job_id}/chain", "read", name="job_chain", large=True)
    def chain(self, job_id: JobId, *, tenant: Tenant = None) -> Program[_Jobs]:
        """List a job and its retries as new jobs, oldest first, by the id of any of them. Over HTTP, payloads beyond
        1 MB together are omitted."""
        return (yield from run(chain_of(self._store, job_id, tenant or self._tenant)))

    achain = awaited(chain)

    @operation
    @http("GET /jobs/{job_id}/history", "read", by_hand=True)
    def history(self, job_id: JobId, *, tenant: Tenant = None) -> Program[_Events]:
        """Show the events of a job, oldest first."""
        return (yield from run(ledger_of(self._store, job_id, tenant or self._tenant)))

    ahistory = awaited(history)

    @operation
    @http("GET /jobs/{job_id}/attempts", "read", by_hand=True)
    def attempts(self, job_id: JobId, *, tenant: Tenant = None) -> Program[_Attempts]:
        """List a job's attempts: parameters, worker, times, outcome, exit code, error and location of the log."""
        return (yield from run(attempts_of(self._store, job_id, tenant or self._tenant)))

    aattempts = awaited(attempts)

    @operation
    @http("GET /jobs/{job_id}/liveness", "read", name="job_liveness")
    def liveness(self, job_id: JobId, *, tenant: Tenant = None) -> Program[Liveness]:
        """Show the number and the time of lease renewals and progress reports in the newest attempt. These writes have
        no events."""
        return (yield from run(liveness_of(self._store, job_id, tenant or self._tenant)))

    aliveness = awaited(liveness)

    @operation
    @http("GET /jobs/{job_id}/artifacts", "read", name="list_artifacts")
    def artifacts(self, job_id: JobId, *, tenant: Tenant = None) -> Program[_Artifacts]:
        """List a job's artifacts with their locations."""
        return (yield from run(artifacts_of(self._store, job_id, tenant or self._tenant)))

    aartifacts = awaited(artifacts)

    @operation
    @http("GET /jobs/{job_id}/artifacts/{name}", "read", by_hand=True)
    def artifact(
        self,
        job_id: JobId,
        name: Annotated[str, Help("The name of the artifact.", "NAME")],
        attempt: AttemptNumber = None,
        *,
        tenant: Tenant = None,
    ) -> Program[bytes]:
        """Read the contents of an artifact, up to 64 MB; without an attempt, from the last attempt that has one of this
        name. It must be in the artifact store, or belong to a command job on this host."""
        tenant = tenant or self._tenant
        return (yield from load_artifact(self._caller, self._session.vault, job_id, name, attempt, tenant))

    aartifact = awaited(artifact)

    @operation
    @http("GET /jobs/{job_id}/log", "read", by_hand=True)
    def log(
        self,
        job_id: JobId,
        attempt: AttemptNumber = None,
        *,
        offset: Annotated[int | None, Help("Bytes to skip: ``next`` of the last read.", low=0, cli=False)] = None,
        tail: Annotated[int | None, Help("Only the last bytes of the log.", "BYTES", low=0)] = None,
        tenant: Tenant = None,
    ) -> Program[AttemptLog]:
        """Read the log of an attempt, up to 1 MB: lines of ``ctx.log``, or the output of a command job; without an
        attempt, of the last one."""
        tenant = tenant or self._tenant
        return (yield from load_log(self._caller, self._session.vault, job_id, attempt, offset, tail, tenant))

    alog = awaited(log)

    @operation
    @http("GET /jobs/{job_id}/references", "read", name="job_references")
    def references(self, job_id: JobId, *, tenant: Tenant = None) -> Program[References]:
        """Show the URIs of a job's input, output and payload, if it has them."""
        return (yield from run(references_of(self._store, job_id, tenant or self._tenant)))

    areferences = awaited(references)

    @operation
    @http("GET /jobs/{job_id}/steps", "read", by_hand=True)
    def steps(self, job_id: JobId, *, tenant: Tenant = None) -> Program[_Steps]:
        """List the durable steps of a job in order, with their values. The service does not open sealed values."""
        return (yield from opened_steps(self._store, self._session.vault, job_id, tenant or self._tenant))

    asteps = awaited(steps)

    @operation
    @http("GET /jobs/{job_id}/checkpoints", "read", by_hand=True)
    def checkpoints(self, job_id: JobId, *, tenant: Tenant = None) -> Program[dict[str, Any]]:
        """Show the named checkpoints of a job, with their values. The service does not open sealed values."""
        return (yield from opened_checkpoints(self._store, self._session.vault, job_id, tenant or self._tenant))

    acheckpoints = awaited(checkpoints)

    @operation
    @http("GET /jobs/{job_id}/progress", "read", name="job_progress")
    def progress(self, job_id: JobId, *, tenant: Tenant = None) -> Program[Progress | None]:
        """Show the latest progress that the handler reported, or null."""
        saved = Progress.saved((yield from run(self._store.jobs.checkpoints(job_id, tenant or self._tenant))))
        if saved is None:
            yield from self._job(job_id, tenant or self._tenant)  # raises if there is no such job
        return saved

    aprogress = awaited(progress)

    @stream
    @local_only("it opens sealed values, for a program that has the keys")
    def export_history(
        self, *job_ids: str, redact: bool = False, tenant: str | None = None, **wanted: Unpack[JobConditions]
    ) -> Items[History]:
        """What jobs have recorded, for a replay against other code: the named jobs, or all begun jobs that match.

        ``for history in app.jobs.export_history(kind="pay"): file.write(history.to_json() + "\\n")``. ``redact``
        replaces texts and numbers, and keeps the shape of the values.
        """
        job_filter = all_of(tenant or self._tenant, wanted)
        yield from histories(self._store, self._session.vault, id_texts(job_ids) if job_ids else (), job_filter, redact)

    aexport_history = awaited_stream(export_history)

    @operation
    @http("POST /jobs/{job_id}/cancel", "operate", verdicts=True, example={"reason": "requested by the customer"})
    def cancel(self, *job_ids: JobId, reason: Reason = None, tenant: Tenant = None) -> Program[_Verdicts]:
        """Cancel jobs that have not ended. The workers of running jobs are notified to stop.

        Returns one verdict per id, as the other changes of several jobs do.
        """
        return (yield from self._operate("cancel", job_ids, reason, tenant))

    acancel = awaited(cancel)

    @operation
    @http("POST /jobs/{job_id}/discard", "operate", verdicts=True, example={"reason": "the order was withdrawn"})
    def discard(self, *job_ids: JobId, reason: NeededReason, tenant: Tenant = None) -> Program[_Verdicts]:
        """Discard dead letters for good."""
        return (yield from self._operate("discard", job_ids, reason, tenant))

    adiscard = awaited(discard)

    @operation
    @http("POST /jobs/{job_id}/redrive", "operate", verdicts=True, example={"reason": "fixed", "max_attempts": 3})
    def redrive(
        self,
        *job_ids: JobId,
        max_attempts: MaxAttempts = None,
        from_step: StepName = None,
        at: StartAt = None,
        delay: StartDelay = None,
        reason: Reason = None,
        tenant: Tenant = None,
    ) -> Program[_Verdicts]:
        """Redrive dead letters: put them back into their queues with all attempts restored, or ``max_attempts``.
        Completed steps are not run again, unless ``from_step`` names the first one to repeat."""
        limit, tenant = attempt_limit(max_attempts), tenant or self._tenant
        if from_step is None and at is None and delay is None:
            return (yield from self._operate("redrive", job_ids, reason, tenant, limit))
        step = None if from_step is None else check_from_step(from_step)
        when = None if at is None and delay is None else Reschedule.of(at, delay, None)
        ids = id_texts(job_ids)
        return (yield from run(redrive_jobs(self._store, ids, step, reason, self._actor, tenant, limit, when)))

    aredrive = awaited(redrive)

    @operation
    @http("POST /jobs/{job_id}/fork", "operate", name="fork_job", example={"from_step": "charge", "key": "request-7"})
    def fork(
        self,
        job_id: JobId,
        from_step: FirstStep,
        *,
        key: Annotated[
            str | None, Help("Fork once per job and key: a repeated request gets the same job.", option="--fork-key")
        ] = None,
        reason: Reason = None,
        tenant: Tenant = None,
    ) -> Program[Fork]:
        """Start a new job that takes over the recorded steps of a job before ``from_step`` and does the others itself.

        The old job is unchanged, whether it runs or has ended. What it did from this step on is done again: check that
        this is right. Approvals are asked again, checkpoints are not taken over.
        """
        step = check_from_step(from_step)
        return (yield from fork(self._session, job_id, step, key, reason, tenant or self._tenant))

    afork = awaited(fork)

    @operation
    @http("POST /jobs/{job_id}/replace-payload", "operate", name="replace_job_payload", example=PAYLOAD)
    def replace_payload(
        self, job_id: JobId, payload: Document, *, reason: NeededReason, tenant: Tenant = None
    ) -> Program[Verdict]:
        """Replace the payload of a waiting job whose kind allows it (``replaceable`` in its payload rule).

        The ledger gets an event with the digests of both payloads. ``Conflict`` if the job does not wait, has recorded
        steps or is deduplicated by its content.
        """
        if not str(reason or "").strip():
            raise InvalidInput("replacing a payload needs a reason", code="reason_required")
        job = yield from self._job(job_id, tenant or self._tenant)
        return (yield from replace_payload(self._session, self._check, job, payload, reason))

    areplace_payload = awaited(replace_payload)

    @operation
    @http("PUT /jobs/{job_id}/external-ref", "operate", name="set_external_ref", example={"external_ref": "crm-4711"})
    def set_external_ref(
        self,
        job_id: JobId,
        external_ref: Annotated[
            str | None,
            Help(
                "Id of the same work in another system; null removes it.", cli="Id of the same work in another system."
            ),
        ],
        *,
        tenant: Tenant = None,
    ) -> Program[Verdict]:
        """Set the reference to the same work in another system, in any state of the job. The audit trail records the
        old and the new one."""
        ref = None if external_ref is None else check_name(external_ref, "external_ref", limit=255)
        flow = self._store.jobs.set_external_ref(job_id, ref, self._actor, tenant or self._tenant)
        return accepted([(yield from run(flow))])

    aset_external_ref = awaited(set_external_ref)

    @operation
    @http("POST /jobs/{job_id}/reschedule", "operate", verdicts=True)
    def reschedule(
        self,
        *job_ids: JobId,
        at: StartAt = None,
        delay: StartDelay = None,
        max_attempts: MaxAttempts = None,
        reason: Reason = None,
        tenant: Tenant = None,
    ) -> Program[_Verdicts]:
        """Change the start time of waiting jobs (queued, delayed or retrying); without a time or a delay, to now."""
        ids, when, tenant = id_texts(job_ids), Reschedule.of(at, delay, max_attempts), tenant or self._tenant
        return (yield from run(self._store.jobs.reschedule(ids, when, storable(reason), self._actor, tenant)))

    areschedule = awaited(reschedule)

    @operation
    @http("POST /jobs/{job_id}/move", "operate", verdicts=True, example={"first": True, "reason": "a customer waits"})
    def move(self, job_id: JobId, *, tenant: Tenant = None, **where: Unpack[MoveOptions]) -> Program[Verdict]:
        """Move a waiting job within its queue: first or last of its priority or of another one, or next to another job,
        with that job's priority."""
        place: dict[str, Any] = {**where}
        reason, tenant = storable(place.pop("reason", None)), tenant or self._tenant
        return (yield from run(self._store.jobs.move(job_id, Move.of(**place), reason, self._actor, tenant)))

    amove = awaited(move)

    def _job(self, job_id: str, tenant: str) -> Program[Job]:
        job = yield from run(self._store.jobs.get(job_id, tenant))
        if job is None:
            raise not_found(parse_id(job_id), tenant)
        return job

    def _operate(
        self,
        action: OperatorAction,
        job_ids: Sequence[str],
        reason: str | None,
        tenant: str | None,
        max_attempts: int | None = None,
    ) -> Program[_Verdicts]:
        by = (storable(reason), self._actor, tenant or self._tenant)
        return (yield from run(self._store.jobs.operate(action, id_texts(job_ids), *by, max_attempts)))
