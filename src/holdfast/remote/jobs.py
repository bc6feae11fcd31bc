"""``client.jobs``: the operations of ``app.jobs``, over HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Unpack

from holdfast.engine.job import Artifact, Attempt, Event, Job, Verdict
from holdfast.engine.names import kind_name
from holdfast.engine.operation import Items, awaited, awaited_stream, operation, stream
from holdfast.engine.units import Duration
from holdfast.errors import Conflict, NotFound
from holdfast.features.attempts.model import AttemptLog
from holdfast.features.jobs.views import Story, Why
from holdfast.remote.handle import (
    EnqueueResponse,
    JobHandle,
    change_job,
    check_aware,
    get_job,
    read_history,
    read_log,
    timing_options,
)
from holdfast.remote.http_requests import Steps, get, put, segment, without_none
from holdfast.remote.runners import RemoteNamespace
from holdfast.stores.job_filters import BY_NAME
from holdfast.stores.requests import JobConditions

PAGE = 50

_Jobs = list[Job]  # inside the class, ``list`` is a method
_Attempts = list[Attempt]
_Artifacts = list[Artifact]
_Events = list[Event]
_Verdicts = list[Verdict]


class JobFilter(JobConditions, total=False):
    """Conditions that all have to match. ``q`` is a search with the same conditions as text, or words of an error."""

    q: str


class Jobs(RemoteNamespace):
    """``client.jobs``: find jobs, read them, change them. ``client.enqueue`` adds them."""

    def handle(self, job_id: str) -> JobHandle:
        """A handle on an existing job."""
        return JobHandle(self._runner, EnqueueResponse(job_id, created=False))

    @operation
    def get(self, job_id: str) -> Steps[Job]:
        return (yield from get_job(self, job_id))

    aget = awaited(get)

    @operation
    def details(self, job_id: str) -> Steps[Story]:
        """Show a job: state, timeline, attempts, steps, result, approval, workflow and dead letter group."""
        return (yield from self._read(Story, get(f"/jobs/{segment(job_id)}")))

    adetails = awaited(details)

    @operation
    def list(self, *, limit: int = PAGE, before: str | None = None, **wanted: Unpack[JobFilter]) -> Steps[_Jobs]:
        """Jobs, newest first: ``client.jobs.list(state="dead_letter", kind="pay", limit=20)``. Payloads are left out
        (None) here and in ``every``; ``get`` has them."""
        return (yield from self._limited(Job, "/jobs", limit, before, **query_of(wanted)))

    alist = awaited(list)

    @operation
    def search(self, text: str, *, limit: int = PAGE, before: str | None = None) -> Steps[_Jobs]:
        """Jobs that match a search, newest first: ``client.jobs.search("kind:pay payload.order_id:7")``. At most 2,000
        jobs are examined per request; requests are made until ``limit`` jobs are found or none is left."""
        return (yield from self._limited(Job, "/jobs", limit, before, q=text))

    asearch = awaited(search)

    @stream
    def every(self, **wanted: Unpack[JobFilter]) -> Items[Job]:
        """Every job that matches, newest first, read page by page."""
        yield from self._stream(Job, "/jobs", **query_of(wanted))

    aevery = awaited_stream(every)

    @operation
    def history(self, job_id: str) -> Steps[_Events]:
        """Its events, oldest first."""
        return (yield from read_history(self, job_id))

    ahistory = awaited(history)

    @operation
    def attempts(self, job_id: str) -> Steps[_Attempts]:
        """Each attempt: its parameters, worker, times, outcome and log."""
        return (yield from self._all(Attempt, f"/jobs/{segment(job_id)}/attempts"))

    aattempts = awaited(attempts)

    @operation
    def log(
        self, job_id: str, attempt: int | None = None, *, offset: int | None = None, tail: int | None = None
    ) -> Steps[AttemptLog]:
        """The log of an attempt, up to 1 MB; by default of the last attempt. ``offset`` continues a log that was read
        up to there (``log.next``), ``tail`` reads its last bytes."""
        return (yield from read_log(self, job_id, attempt, offset, tail))

    alog = awaited(log)

    @operation
    def artifacts(self, job_id: str) -> Steps[_Artifacts]:
        """Names and references of the files that its attempts made."""
        return (yield from self._all(Artifact, f"/jobs/{segment(job_id)}/artifacts"))

    aartifacts = awaited(artifacts)

    @operation
    def artifact(self, job_id: str, name: str, attempt: int | None = None) -> Steps[bytes]:
        """The content of an artifact, up to 64 MB; by default of the last attempt that has one of this name."""
        return (yield from self._bytes(get(f"/jobs/{segment(job_id)}/artifacts/{segment(name)}", attempt=attempt)))

    aartifact = awaited(artifact)

    @operation
    def chain(self, job_id: str) -> Steps[_Jobs]:
        """List a job and its retries as new jobs, oldest first."""
        return (yield from self._all(Job, f"/jobs/{segment(job_id)}/chain"))

    achain = awaited(chain)

    @operation
    def why(self, job_id: str) -> Steps[Why]:
        """Why a job is in its state and does not run: every reason, and what would change it."""
        return (yield from self._read(Why, get(f"/jobs/{segment(job_id)}/why")))

    awhy = awaited(why)

    @operation
    def cancel(self, *job_ids: str, reason: str | None = None) -> Steps[_Verdicts]:
        return (yield from self._each(job_ids, "cancel", without_none(reason=reason)))

    acancel = awaited(cancel)

    @operation
    def redrive(
        self,
        *job_ids: str,
        reason: str | None = None,
        max_attempts: int | None = None,
        from_step: int | str | None = None,
        at: datetime | None = None,
        delay: Duration | None = None,
    ) -> Steps[_Verdicts]:
        """Return dead letters to their queue with all their attempts, or ``max_attempts``. They may start immediately,
        or not before ``at`` or after a ``delay``."""
        body = timing_options(at, delay, max_attempts, reason) | without_none(from_step=from_step)
        return (yield from self._each(job_ids, "redrive", body))

    aredrive = awaited(redrive)

    @operation
    def discard(self, *job_ids: str, reason: str) -> Steps[_Verdicts]:
        return (yield from self._each(job_ids, "discard", without_none(reason=reason)))

    adiscard = awaited(discard)

    @operation
    def replace_payload(self, job_id: str, payload: Any, *, reason: str) -> Steps[Verdict]:
        """Replace the payload of a waiting job whose kind allows it."""
        return (yield from change_job(self, job_id, "replace-payload", {"payload": payload, "reason": reason}))

    areplace_payload = awaited(replace_payload)

    @operation
    def set_external_ref(self, job_id: str, external_ref: str | None) -> Steps[Verdict]:
        """Set the reference to the same work in another system; None removes it."""
        change = put(f"/jobs/{segment(job_id)}/external-ref", {"external_ref": external_ref})
        return (yield from self._read(Verdict, change))

    aset_external_ref = awaited(set_external_ref)

    @operation
    def reschedule(
        self,
        *job_ids: str,
        at: datetime | None = None,
        delay: Duration | None = None,
        max_attempts: int | None = None,
        reason: str | None = None,
    ) -> Steps[_Verdicts]:
        """Reschedule waiting jobs; without a time or a delay they may start immediately."""
        return (yield from self._each(job_ids, "reschedule", timing_options(at, delay, max_attempts, reason)))

    areschedule = awaited(reschedule)

    @operation
    def run_now(self, *job_ids: str, reason: str | None = None) -> Steps[_Verdicts]:
        """Let jobs that wait for a time or a retry start immediately."""
        return (yield from self._each(job_ids, "run-now", without_none(reason=reason)))

    arun_now = awaited(run_now)

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
    ) -> Steps[Verdict]:
        """Move a waiting job within its queue: first, last, or before or after another, optionally with another
        priority."""
        body = without_none(first=first, last=last, before=before, after=after, priority=priority, reason=reason)
        return (yield from self._each([job_id], "move", body))[0]

    amove = awaited(move)

    def _each(self, job_ids: Iterable[str], action: str, body: dict[str, Any]) -> Steps[_Verdicts]:
        """One verdict per id, as locally: a refusal is a verdict and not an error."""
        verdicts = []
        for job_id in job_ids:
            try:
                verdicts.append((yield from change_job(self, job_id, action, body)))
            except (NotFound, Conflict) as error:
                verdicts.append(Verdict(job_id, None, True, error.code))
        return verdicts


def query_of(wanted: JobFilter) -> dict[str, Any]:
    """The filter with the names of the HTTP API."""
    query: dict[str, Any] = {}
    for name, value in wanted.items():
        known = BY_NAME.get(name)
        if known is None:
            query[name] = value
        elif value is not None:
            if known.values == "time":
                check_aware(value, name)
            query[known.query] = kind_name(value) if name == "kind" else value
    return query
