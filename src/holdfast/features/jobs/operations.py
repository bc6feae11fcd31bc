"""``app.jobs``: read jobs and act on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from holdfast.engine.ids import id_texts, parse_id
from holdfast.engine.job import Artifact, Attempt, Event, Job, Liveness, References, Result, Verdict
from holdfast.engine.names import check_name
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.order import Move
from holdfast.engine.payload import encode
from holdfast.engine.retry import attempt_limit
from holdfast.engine.settlement import storable
from holdfast.engine.states import State
from holdfast.engine.steps import NAME_LIMIT, Step
from holdfast.engine.units import Duration
from holdfast.errors import InvalidInput, InvalidSetting, JobFailed, NotFound
from holdfast.features.attempts.model import AttemptLog
from holdfast.features.jobs.attempt_files import reading_artifact, reading_log
from holdfast.features.jobs.handle import Handle, accepted
from holdfast.features.jobs.search import NEVER, index_path, names_a_time, parse
from holdfast.features.jobs.views import (
    Found,
    Why,
    artifacts_of,
    attempts_of,
    chain_of,
    ledger_of,
    liveness_of,
    matching,
    opened_checkpoints,
    opened_steps,
    references_of,
    result_of,
    why,
)
from holdfast.features.payloads.model import Effective, effective
from holdfast.stores.flow import Steps, flow, run
from holdfast.stores.job_reads import MOST
from holdfast.stores.namespace import StoreNamespace, call
from holdfast.stores.requests import Counted, OperatorAction, Reschedule, all_of, page_of

if TYPE_CHECKING:
    from holdfast.features.assembly import Store
    from holdfast.stores.session import Session

COUNTED = 10_000
"""A state with more jobs than this is reported as having this many."""

FromStep = int | str
"""A step's number, or its name."""


def check_from_step(from_step: object) -> FromStep:
    if isinstance(from_step, int) and not isinstance(from_step, bool) and 0 <= from_step < 2**31:
        return from_step
    if isinstance(from_step, str):
        return check_name(from_step, "name of the step", limit=NAME_LIMIT)
    raise InvalidSetting("from_step must be a step's number or name", code="invalid_setting")


CheckPayload = Callable[[str, Any, Effective], tuple[str, Effective]]


def plain_payload(kind: str, payload: Any, rule: Effective) -> tuple[str, Effective]:
    """For programs that know no kinds."""
    return encode({} if payload is None else payload), rule


def replacing(
    session: Session, check: CheckPayload, job_id: str, payload: Any, reason: str, tenant: str
) -> Program[Verdict]:
    """Check, seal and store the payload as if it were enqueued, and put it in the place of the one there is."""
    store, vault = session.store, session.vault
    if not str(reason or "").strip():
        raise InvalidInput("replacing a payload needs a reason", code="reason_required")
    job = yield from run(store.jobs.get(job_id, tenant))
    if job is None:
        raise NotFound(f"no job {parse_id(job_id)} in tenant {tenant}")
    rules = yield from run(store.payload_rules.list(job.tenant))
    text, rule = check(job.kind, payload, effective(rules, job.tenant, job.kind))
    pack = partial(vault.pack, text, rule, what="payload", kind=job.kind, tenant=job.tenant, job_id=job.id)
    packed = (yield from call(pack)) if vault.artifacts is not None else pack()
    said = storable(reason) or ""
    verdict = yield from run(store.jobs.replace_payload(job.id, packed, said, session.actor, job.tenant))
    if verdict.refused and packed is not text:
        yield from call(partial(vault.drop, packed, tenant=job.tenant))
    return accepted([verdict])


class JobsWanted(TypedDict, total=False):
    """Which jobs: those for which all of it holds."""

    tenant: str
    state: State | str | None
    kind: str | None
    queue: str | None
    agent: str | None
    executor: str | None
    tag: str | None
    correlation_id: str | None
    parent_id: str | None
    fingerprint: str | None
    since: datetime | None
    until: datetime | None


class JobsPage(JobsWanted, total=False):
    """``before`` is the id of the last job of the page before. Without ``payloads`` each payload is None."""

    before: str | None
    limit: int
    payloads: bool


# Inside the class the words are operations.
_Jobs = list[Job]
_Verdicts = list[Verdict]
_Events = list[Event]
_Attempts = list[Attempt]
_Artifacts = list[Artifact]
_Steps = list[Step]


class Jobs(StoreNamespace):
    """Jobs that were enqueued. ``tenant`` is the session's tenant by default."""

    def __init__(self, session: Session, check: CheckPayload = plain_payload) -> None:
        """``check`` makes JSON text of a payload, by what the program knows of its kind."""
        super().__init__(session)
        self._session = session
        self._check = check

    @operation
    def list(self, **wanted: Unpack[JobsPage]) -> Program[_Jobs]:
        """A page of jobs, newest first: ``app.jobs.list(state="dead_letter", kind="pay", limit=20)``."""
        return (yield from run(self._store.jobs.list(page_of(self._tenant, wanted))))

    alist = awaited(list)

    @operation
    def search(self, text: str, *, limit: int = 50, before: str | None = None) -> Program[Found]:
        """Search as in the dashboard: ``app.jobs.search('kind:pay payload.order_id:7 since:1d "card declined"')``.
        Returns a page: ``jobs``, newest first, with payloads, and ``next``: pass it as ``before`` for the next. Keys of
        payloads without an index and words of errors are compared with 2,000 jobs per call, so a page may be short or
        empty and still have a ``next``."""
        if not isinstance(text, str):
            raise InvalidInput(f"a search is text, not {type(text).__name__}", code="invalid_search")
        size: object = limit
        if not isinstance(size, int) or not 1 <= size <= MOST:
            raise InvalidSetting(f"limit must be from 1 to {MOST:,}", code="invalid_limit")
        now = (yield from run(self._store.clock.now())) if names_a_time(text) else NEVER
        sought, place = parse(text, now), None if before is None else parse_id(before)
        return (yield from run(matching(self._store, sought, self._tenant, limit, place, payloads=True)))

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
            place = yield from run(self._store.jobs.fill_payload_index(keys, None))
            while place is not None:
                place = yield from run(self._store.jobs.fill_payload_index(keys, place))

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
        """How many jobs there are in each state, each counted up to 10,000."""
        chosen = all_of(wanted.pop("tenant", self._tenant), wanted)
        return (yield from run(self._store.jobs.capped_counts(chosen, COUNTED)))

    acount = awaited(count)

    @operation
    def get(self, job_id: str, *, tenant: str | None = None) -> Program[Job]:
        """The job, or ``NotFound``."""
        whose = tenant or self._tenant
        found = yield from run(self._store.jobs.get(job_id, whose))
        if found is None:
            raise NotFound(f"no job {parse_id(job_id)} in tenant {whose}")
        return found

    aget = awaited(get)

    def handle(self, job_id: str, *, tenant: str | None = None) -> Handle[Any]:
        """A handle on an existing job, for programs that kept its id: ``app.jobs.handle(id).result()``."""
        return Handle(parse_id(job_id), tenant or self._tenant, False, None, self._session, _unchanged)

    @operation
    def result(self, job_id: str, *, tenant: str | None = None) -> Program[Result]:
        """The result of a job that has succeeded: its ``value`` as JSON, and the ``ref`` of a large one. ``JobFailed``
        in any other state. It does not wait: ``app.jobs.handle(id).result()`` does, and returns the value."""
        job, found = yield from run(result_of(self._store, job_id, tenant or self._tenant))
        if job.state is not State.SUCCEEDED:
            raise JobFailed(f"job {job.id} is {job.state}: it has no result")
        if found is None:
            return Result(None, None)
        opened = partial(self._session.vault.open_value, found.value, found.ref, tenant=job.tenant, job_id=job.id)
        return Result((yield from call(opened)), found.ref)

    aresult = awaited(result)

    @operation
    def why(self, job_id: str, *, tenant: str | None = None) -> Program[Why]:
        """Why a job does not run: every reason that applies, and what would change it."""
        return (yield from run(why(self._store, job_id, tenant or self._tenant)))

    awhy = awaited(why)

    @operation
    def chain(self, job_id: str, *, tenant: str | None = None) -> Program[_Jobs]:
        """The job and its retries where each retry is a job of its own, oldest first. Takes the id of any of them."""
        return (yield from run(chain_of(self._store, job_id, tenant or self._tenant)))

    achain = awaited(chain)

    @operation
    def history(self, job_id: str, *, tenant: str | None = None) -> Program[_Events]:
        """The events of a job, oldest first."""
        return (yield from run(ledger_of(self._store, job_id, tenant or self._tenant)))

    ahistory = awaited(history)

    @operation
    def attempts(self, job_id: str, *, tenant: str | None = None) -> Program[_Attempts]:
        """The attempts of a job: parameters, worker, times, outcome, exit code, error, and where the log is."""
        return (yield from run(attempts_of(self._store, job_id, tenant or self._tenant)))

    aattempts = awaited(attempts)

    @operation
    def liveness(self, job_id: str, *, tenant: str | None = None) -> Program[Liveness]:
        """How often and when last its lease was renewed and its progress reported, in the newest attempt. These writes
        have no events."""
        return (yield from run(liveness_of(self._store, job_id, tenant or self._tenant)))

    aliveness = awaited(liveness)

    @operation
    def artifacts(self, job_id: str, *, tenant: str | None = None) -> Program[_Artifacts]:
        """Names and references of the files that its attempts made."""
        return (yield from run(artifacts_of(self._store, job_id, tenant or self._tenant)))

    aartifacts = awaited(artifacts)

    @operation
    def artifact(
        self, job_id: str, name: str, attempt: int | None = None, *, tenant: str | None = None
    ) -> Program[bytes]:
        """The contents of an artifact, up to 64 MB; without an attempt, of the last that has one of this name. It must
        be in the artifact store, or a command job's on this host."""
        whose = tenant or self._tenant
        return (yield from reading_artifact(self._caller, self._session.vault, job_id, name, attempt, whose))

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
        """What an attempt has logged, up to 1 MB: the lines of ``ctx.log``, or the output of a command job; without an
        attempt, the last one. ``offset`` continues a log that was read up to there, ``tail`` reads its last bytes."""
        whose = tenant or self._tenant
        return (yield from reading_log(self._caller, self._session.vault, job_id, attempt, offset, tail, whose))

    alog = awaited(log)

    @operation
    def references(self, job_id: str, *, tenant: str | None = None) -> Program[References]:
        """The URIs of its input, its output and its payload, as far as they were given."""
        return (yield from run(references_of(self._store, job_id, tenant or self._tenant)))

    areferences = awaited(references)

    @operation
    def steps(self, job_id: str, *, tenant: str | None = None) -> Program[_Steps]:
        """Its durable steps in order, with their values."""
        return (yield from opened_steps(self._store, self._session.vault, job_id, tenant or self._tenant))

    asteps = awaited(steps)

    @operation
    def checkpoints(self, job_id: str, *, tenant: str | None = None) -> Program[dict[str, Any]]:
        """Its named checkpoints, with their values."""
        return (yield from opened_checkpoints(self._store, self._session.vault, job_id, tenant or self._tenant))

    acheckpoints = awaited(checkpoints)

    @operation
    def cancel(self, *job_ids: str, reason: str | None = None, tenant: str | None = None) -> Program[_Verdicts]:
        """Cancel jobs that have not ended; running ones are told to stop. Returns one verdict per id."""
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

        They start at once, or not before ``at`` or a ``delay`` from now. Completed steps are not run again, unless
        ``from_step`` (a number or a name) says where to start.
        """
        limit, whose = attempt_limit(max_attempts), tenant or self._tenant
        when = redrive_time(at, delay)
        if from_step is None and when is None:
            return (yield from self._operate("redrive", job_ids, reason, whose, limit))
        step = None if from_step is None else check_from_step(from_step)
        ids = id_texts(job_ids)
        return (yield from run(redriving(self._store, ids, step, reason, self._actor, whose, limit, when)))

    aredrive = awaited(redrive)

    @operation
    def replace_payload(self, job_id: str, payload: Any, *, reason: str, tenant: str | None = None) -> Program[Verdict]:
        """Replace the payload of a job that is queued or waits for a retry, where a payload rule for its kind says
        ``replaceable``. The ledger gets an event with the digests of both payloads. ``Conflict`` if the job does not
        wait, has recorded steps or is deduplicated by its content."""
        return (yield from replacing(self._session, self._check, job_id, payload, reason, tenant or self._tenant))

    areplace_payload = awaited(replace_payload)

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
        """Run waiting jobs (queued, scheduled or waiting for a retry) at another time; with neither a time nor a delay,
        at once. Returns one verdict per id."""
        when = Reschedule.of(at, delay, max_attempts)
        return (
            yield from run(
                self._store.jobs.reschedule(
                    id_texts(job_ids), when, storable(reason), self._actor, tenant or self._tenant
                )
            )
        )

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
        """Move a waiting job within its queue: one of the four positions, within its priority or another one.

        Next to another job it gets that job's priority; a priority alone puts it last among those that have it.
        """
        move = Move.of(first, last, before, after, priority)
        return (
            yield from run(self._store.jobs.move(job_id, move, storable(reason), self._actor, tenant or self._tenant))
        )

    amove = awaited(move)

    def _operate(
        self,
        action: OperatorAction,
        job_ids: Sequence[str],
        reason: str | None,
        tenant: str | None,
        max_attempts: int | None = None,
    ) -> Program[_Verdicts]:
        ids, whose = id_texts(job_ids), tenant or self._tenant
        return (
            yield from run(self._store.jobs.operate(action, ids, storable(reason), self._actor, whose, max_attempts))
        )


def _unchanged(value: Any) -> Any:
    return value


# --- redrive from a step: that step and the later ones are forgotten and run again, in one transaction, so that no
# reader sees a dead letter without its steps, or a running job with the old ones ---


def redrive_time(at: datetime | None, delay: Duration | None) -> Reschedule | None:
    """When redriven jobs may start; None for at once."""
    return None if at is None and delay is None else Reschedule.of(at, delay, None)


@flow(tells=True)
def redriving(
    store: Store,
    ids: Sequence[str],
    from_step: FromStep | None,
    reason: str | None,
    actor: str,
    tenant: str,
    max_attempts: int | None,
    when: Reschedule | None = None,
) -> Steps[list[Verdict]]:
    wanted, verdicts = [parse_id(job_id) for job_id in ids], {}
    for job_id in sorted(set(wanted)):  # in the order in which every batch locks
        verdict = yield from _redrive(store, job_id, from_step, reason, actor, tenant, max_attempts)
        if when is not None and not verdict.refused:  # in the same transaction: no worker sees it in between
            yield from store.jobs.reschedule([job_id], when, storable(reason), actor, tenant).start()
        verdicts[job_id] = verdict
    return [verdicts[job_id] for job_id in wanted]


def _redrive(
    store: Store,
    job_id: str,
    from_step: FromStep | None,
    reason: str | None,
    actor: str,
    tenant: str,
    max_attempts: int | None,
) -> Steps[Verdict]:
    job = None if from_step is None else (yield from store.jobs.get(job_id, tenant).start())
    if job is not None and from_step is not None and job.state is State.DEAD_LETTER:
        steps = yield from store.steps.list(job_id, tenant).start()
        places = places_of(steps, from_step)
        if not places:
            return Verdict(job_id, job.state, True, "no_such_step")
        if len(places) > 1:
            return Verdict(job_id, job.state, True, "step_ambiguous")
        yield from store.steps.rewind(job_id, places[0], actor, tenant).start()
        reason = storable(f"{_named(steps, places[0])}: {reason}" if reason else _named(steps, places[0]))
    # What is no dead letter, or not any more, is refused here.
    verdicts = yield from store.jobs.operate("redrive", [job_id], storable(reason), actor, tenant, max_attempts).start()
    return verdicts[0]


def places_of(steps: Sequence[Step], from_step: FromStep) -> list[int]:
    """Where the job may be rewound to. A place between two that are taken is one, too: of steps that run at once, the
    first may not have been done."""
    if isinstance(from_step, str):
        return [step.n for step in steps if step.name == from_step]
    return [from_step] if any(step.n >= from_step for step in steps) else []


def _named(steps: Sequence[Step], n: int) -> str:
    return next((f"from step {n} ({step.name})" for step in steps if step.n == n), f"from step {n}")
