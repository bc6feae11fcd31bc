"""Read recorded histories from the database: ``app.jobs.export_history``, ``holdfast replay``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.engine.ids import parse_id
from holdfast.engine.job import Job
from holdfast.engine.operation import Emit, Items, Program
from holdfast.engine.payload import Unreadable
from holdfast.engine.states import State
from holdfast.engine.steps import RESERVED, RUNNING, Step
from holdfast.errors import HoldfastError, Refused
from holdfast.features.approvals.model import ApprovalFilter
from holdfast.features.jobs.store import not_found
from holdfast.features.payloads.model import HIDDEN
from holdfast.features.workflows.model import ParentResult
from holdfast.steps.history import Facts, History
from holdfast.stores.flow import Steps, flow, run
from holdfast.stores.namespace import call
from holdfast.stores.requests import JobFilter
from holdfast.stores.vault import Vault, is_stored

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

PAGE = 500


def histories(store: Store, vault: Vault, ids: Sequence[str], wanted: JobFilter, redact: bool) -> Items[History]:
    """The histories of these jobs, or of all that match the filter, newest first."""
    if ids:
        for job_id in dict.fromkeys(parse_id(each) for each in ids):
            job = yield from run(store.jobs.get(job_id, wanted.tenant))
            if job is None:
                raise not_found(job_id, wanted.tenant)
            yield Emit((yield from history_of(store, vault, job, redact)))
        return
    page = replace(wanted, limit=PAGE)
    while jobs := (yield from run(store.jobs.list(page))):
        for job in jobs:
            if job.attempt:  # otherwise it has not begun
                yield Emit((yield from history_of(store, vault, job, redact)))
        page = replace(page, before=jobs[-1].id)


def history_of(store: Store, vault: Vault, job: Job, redact: bool = False) -> Program[History]:
    """What a job has recorded, with its values opened."""
    history, others = yield from run(_recorded(store, job))
    if history.hidden is not None:
        return history
    opened = (
        yield from call(lambda: _opened(vault, history, others))
        if _is_packed(history)
        else _at_once(vault, history, others)
    )
    return opened.redact() if redact else opened


@flow(writes=False)
def _recorded(store: Store, job: Job) -> Steps[tuple[History, list[str]]]:
    """The history as it is stored, and the other jobs of its chain of retries."""
    where = (job.id, job.tenant)
    if (why := _missing(job)) is not None:
        return History(Facts.of(job), None, (), {}, hidden=why), []
    steps = yield from store.steps.list(*where).start()
    if not steps:
        return History(Facts.of(job), job.payload, (), {}), []
    checkpoints = yield from store.jobs.checkpoints(*where).start()
    references = yield from store.jobs.references(*where).start()
    parents = [] if job.workflow_id is None else (yield from store.workflows.parent_results(*where).start())
    scheduled = yield from store.templates.scheduled_at(*where).start()
    questions = []
    if any(step.kind == "approval" and not step.over for step in steps):
        asked = ApprovalFilter(tenant=job.tenant, job_id=job.id)
        questions = [(each.n, each.content_hash) for each in (yield from store.approvals.list(asked).start())]
    chain = [] if job.retry_of is None else (yield from store.jobs.chain(*where).start())
    own = {name: value for name, value in checkpoints.items() if name not in (RESERVED, RUNNING)}
    history = History(
        *(Facts.of(job), job.payload, tuple(steps), own, references, tuple(parents), scheduled, tuple(questions))
    )
    return history, [other.id for other in chain if other.id != job.id]


def _missing(job: Job) -> str | None:
    """Why the values of a job cannot be read."""
    if job.payload == HIDDEN:
        return "its kind is restricted: its values are read by its workers only"
    if job.state is State.CLEANED:
        return "retention has deleted its values"
    if isinstance(job.payload, Unreadable):
        return f"its payload cannot be read: {job.payload.why}"
    return job.unreadable


def _is_packed(history: History) -> bool:
    values = (history.payload, *(step.value for step in history.steps), *history.checkpoints.values())
    return any(map(is_stored, values)) or any(parent.ref is not None for parent in history.parents)


def _at_once(vault: Vault, history: History, others: Sequence[str]) -> Program[History]:
    yield from ()
    return _opened(vault, history, others)


def _opened(vault: Vault, history: History, others: Sequence[str]) -> History:
    """The history with its values as they were before they were sealed or stored elsewhere."""
    job = history.job

    def part(value: Any, what: Any, place: str) -> Any:
        return vault.open_part(value, what=what, tenant=job.tenant, job_id=job.id, place=place)

    def step(each: Step) -> Step:
        return each if each.kind != "step" else replace(each, value=part(each.value, "step", str(each.n)))

    def parent(each: ParentResult) -> ParentResult:
        value = vault.open_value(each.value, each.ref, tenant=job.tenant, job_id=each.job_id)
        return replace(each, value=value, ref=None)

    try:
        return replace(
            history,
            payload=_payload(vault, history, others),
            steps=tuple(map(step, history.steps)),
            checkpoints={name: part(value, "checkpoint", name) for name, value in history.checkpoints.items()},
            parents=tuple(
                replace(
                    each, ref=None, value=vault.open_value(each.value, each.ref, tenant=job.tenant, job_id=each.job_id)
                )
                for each in history.parents
            ),
        )
    except HoldfastError as error:
        why = f"a value cannot be opened: {error.message}"
        return History(job, None, (), {}, hidden=why)


def _payload(vault: Vault, history: History, others: Sequence[str]) -> Any:
    """A retry that is a separate job has the payload of the first job, sealed for that job."""
    refused: Refused | None = None
    for job_id in (history.id, *others):
        try:
            return vault.open_payload(history.payload, tenant=history.job.tenant, job_id=job_id)
        except Refused as error:
            refused = refused or error
            if error.code != "seal_broken":
                raise
    assert refused is not None
    raise refused
