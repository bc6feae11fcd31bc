"""``client.jobs``: the operations of ``app.jobs``, over HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypedDict, Unpack

from holdfast.engine.job import Artifact, Attempt, Event, Job, Verdict
from holdfast.engine.operation import Items, awaited, awaited_stream, operation, stream
from holdfast.engine.states import State
from holdfast.engine.units import Duration
from holdfast.errors import Conflict, NotFound
from holdfast.features.attempts.model import AttemptLog
from holdfast.features.jobs.views import Story, Why
from holdfast.remote.handle import (
    JobHandle,
    Placed,
    another_time,
    aware,
    changed,
    history_of,
    log_of,
    one_job,
)
from holdfast.remote.http_requests import Steps, get, given, segment
from holdfast.remote.runners import RemoteNamespace

PAGE = 50

_Jobs = list[Job]  # inside the class the word is a method
_Attempts = list[Attempt]
_Artifacts = list[Artifact]
_Events = list[Event]
_Verdicts = list[Verdict]


class JobsWanted(TypedDict, total=False):
    """Which jobs: those for which all of it holds. ``q`` says the same in words, and searches errors."""

    q: str
    state: State | str
    kind: str
    queue: str
    agent: str
    executor: str
    tag: str
    correlation_id: str
    parent_id: str
    fingerprint: str
    since: datetime
    until: datetime


class Jobs(RemoteNamespace):
    """``client.jobs``: find jobs, read them, change them. ``client.enqueue`` adds them."""

    def handle(self, job_id: str) -> JobHandle:
        """A handle on a job that is there already."""
        return JobHandle(self._runner, Placed(job_id, created=False))

    @operation
    def get(self, job_id: str) -> Steps[Job]:
        return (yield from one_job(self, job_id))

    aget = awaited(get)

    @operation
    def details(self, job_id: str) -> Steps[Story]:
        """Show a job: state, timeline, attempts, steps, result, approval, workflow and dead letter group."""
        return (yield from self._read(Story, get(f"/jobs/{segment(job_id)}")))

    adetails = awaited(details)

    @operation
    def list(self, *, limit: int = PAGE, before: str | None = None, **wanted: Unpack[JobsWanted]) -> Steps[_Jobs]:
        """Jobs, newest first: ``client.jobs.list(state="dead_letter", kind="pay", limit=20)``. Payloads are left out
        (None) here and in ``every``; ``get`` has them."""
        return (yield from self._some(Job, "/jobs", limit, before, **_query(wanted)))

    alist = awaited(list)

    @operation
    def search(self, text: str, *, limit: int = PAGE, before: str | None = None) -> Steps[_Jobs]:
        """Jobs that match a search, newest first: ``client.jobs.search("kind:pay payload.order_id:7")``. At most 2,000
        jobs are examined per request; requests are made until ``limit`` jobs are found or none is left."""
        return (yield from self._some(Job, "/jobs", limit, before, q=text))

    asearch = awaited(search)

    @stream
    def every(self, **wanted: Unpack[JobsWanted]) -> Items[Job]:
        """Every job that matches, newest first, read page by page as you go."""
        yield from self._every(Job, "/jobs", **_query(wanted))

    aevery = awaited_stream(every)

    @operation
    def history(self, job_id: str) -> Steps[_Events]:
        """Its events, oldest first."""
        return (yield from history_of(self, job_id))

    ahistory = awaited(history)

    @operation
    def attempts(self, job_id: str) -> Steps[_Attempts]:
        """Each execution: its parameters, who, when, how it ended, where its log is."""
        return (yield from self._pages(Attempt, f"/jobs/{segment(job_id)}/attempts"))

    aattempts = awaited(attempts)

    @operation
    def log(
        self, job_id: str, attempt: int | None = None, *, offset: int | None = None, tail: int | None = None
    ) -> Steps[AttemptLog]:
        """What an attempt has logged, up to 1 MB; without an attempt, the last one. ``offset`` continues a log that was
        read up to there (``log.next``), ``tail`` reads its last bytes."""
        return (yield from log_of(self, job_id, attempt, offset, tail))

    alog = awaited(log)

    @operation
    def artifacts(self, job_id: str) -> Steps[_Artifacts]:
        """Names and references of the files that its attempts made."""
        return (yield from self._pages(Artifact, f"/jobs/{segment(job_id)}/artifacts"))

    aartifacts = awaited(artifacts)

    @operation
    def artifact(self, job_id: str, name: str, attempt: int | None = None) -> Steps[bytes]:
        """The contents of an artifact, up to 64 MB; without an attempt, of the last that has one of this name."""
        return (yield from self._bytes(get(f"/jobs/{segment(job_id)}/artifacts/{segment(name)}", attempt=attempt)))

    aartifact = awaited(artifact)

    @operation
    def chain(self, job_id: str) -> Steps[_Jobs]:
        """List a job and its retries as new jobs, oldest first."""
        return (yield from self._pages(Job, f"/jobs/{segment(job_id)}/chain"))

    achain = awaited(chain)

    @operation
    def why(self, job_id: str) -> Steps[Why]:
        """Why a job is where it is, and does not run: every reason that holds, and what would change it."""
        return (yield from self._read(Why, get(f"/jobs/{segment(job_id)}/why")))

    awhy = awaited(why)

    @operation
    def cancel(self, *job_ids: str, reason: str | None = None) -> Steps[_Verdicts]:
        return (yield from self._each(job_ids, "cancel", given(reason=reason)))

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
        """Put dead letters back into their queue with all their attempts, or ``max_attempts``. They start at once, or
        not before ``at`` or a ``delay`` from now."""
        body = another_time(at, delay, max_attempts, reason) | given(from_step=from_step)
        return (yield from self._each(job_ids, "redrive", body))

    aredrive = awaited(redrive)

    @operation
    def discard(self, *job_ids: str, reason: str) -> Steps[_Verdicts]:
        return (yield from self._each(job_ids, "discard", given(reason=reason)))

    adiscard = awaited(discard)

    @operation
    def replace_payload(self, job_id: str, payload: Any, *, reason: str) -> Steps[Verdict]:
        """Replace the payload of a waiting job whose kind allows it."""
        return (yield from changed(self, job_id, "replace-payload", {"payload": payload, "reason": reason}))

    areplace_payload = awaited(replace_payload)

    @operation
    def reschedule(
        self,
        *job_ids: str,
        at: datetime | None = None,
        delay: Duration | None = None,
        max_attempts: int | None = None,
        reason: str | None = None,
    ) -> Steps[_Verdicts]:
        """Give jobs that wait another time; with neither a time nor a delay, at once."""
        return (yield from self._each(job_ids, "reschedule", another_time(at, delay, max_attempts, reason)))

    areschedule = awaited(reschedule)

    @operation
    def run_now(self, *job_ids: str, reason: str | None = None) -> Steps[_Verdicts]:
        """Let jobs that wait for their time or their retry go on at once."""
        return (yield from self._each(job_ids, "run-now", given(reason=reason)))

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
        """Give a job that waits another place in its queue: one of the four, within its priority or another one."""
        body = given(first=first, last=last, before=before, after=after, priority=priority, reason=reason)
        return (yield from self._each([job_id], "move", body))[0]

    amove = awaited(move)

    def _each(self, job_ids: Iterable[str], word: str, body: dict[str, Any]) -> Steps[_Verdicts]:
        """One verdict an id, as locally: that a job does not let it is an answer."""
        verdicts = []
        for job_id in job_ids:
            try:
                verdicts.append((yield from changed(self, job_id, word, body)))
            except (NotFound, Conflict) as error:
                verdicts.append(Verdict(job_id, None, True, error.code))
        return verdicts


def _query(wanted: JobsWanted) -> dict[str, Any]:
    query: dict[str, Any] = dict(wanted)
    for name in ("since", "until"):
        aware(query.get(name), name)
    if "fingerprint" in query:
        query["group"] = query.pop("fingerprint")
    return query
