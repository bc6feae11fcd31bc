"""Handles of jobs, and the namespaces that return them: ``client.jobs``, ``client.templates``, ``client.workflows``, as
far as they differ from those of ``app``."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack, cast

from holdfast.engine.declared import http_of
from holdfast.engine.job import Job, Result, Verdict
from holdfast.engine.job_options import EnqueueOptions
from holdfast.engine.operation import Items, awaited, awaited_stream, operation, stream
from holdfast.engine.states import State
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting, JobFailed, Refused, WaitTimeout
from holdfast.features.jobs.handle import HandleOperations
from holdfast.features.jobs.model import Outcome
from holdfast.features.jobs.operations import Jobs as LocalJobs
from holdfast.features.jobs.search import SearchPage
from holdfast.features.schedules import templates
from holdfast.features.workflows import operations as workflows
from holdfast.features.workflows.model import OnFailure, StartedWorkflow, Workflow
from holdfast.remote.derived import PAGE, OverHttp, new_key, prepare_call, sent_inputs, with_policies
from holdfast.remote.http_requests import Pause, Steps, get, post, segment, without_none
from holdfast.remote.responses import read_page
from holdfast.remote.runners import RemoteNamespace, Runner
from holdfast.stores.requests import JobConditions

MAX_POLL = 20.0
"""Maximum seconds that one request waits: proxies may close a connection that is idle for much longer."""
OVERTIME = 5.0
"""Seconds after the caller's timeout in which the last response may still arrive."""
MIN_POLL_INTERVAL = 0.2
"""Minimum seconds between two requests to a service that does not wait."""


@dataclass(frozen=True, slots=True)
class EnqueueResponse:
    """The response to an enqueue."""

    id: str | None
    created: bool
    reason: str | None = None
    detail: str | None = None
    tenant: str | None = None

    def as_created(self) -> EnqueueResponse:
        """For a generated key: if the job existed already, an earlier request made it, whose response was lost."""
        return EnqueueResponse(self.id, True, tenant=self.tenant) if self.reason == "duplicate_key" else self


class JobHandle(HandleOperations, RemoteNamespace):
    """A job of the service. ``created`` is False if an earlier job has the same key, or if one of many was refused;
    ``reason`` then has the code, and ``detail`` a message if there is one."""

    def __init__(self, runner: Runner, response: EnqueueResponse) -> None:
        RemoteNamespace.__init__(self, runner)
        self.id = response.id or ""
        self.tenant = response.tenant
        self.created = response.created
        self.reason, self.detail = response.reason, response.detail

    def __repr__(self) -> str:
        return f"JobHandle(id={self.id!r}, created={self.created!r}, reason={self.reason!r})"

    @property
    def _jobs(self) -> LocalJobs:
        return Jobs(self._runner)

    def _change(self, form: operation[..., Any], **options: Any) -> Steps[Verdict]:
        declared = http_of(form.program)
        assert declared is not None
        change = Jobs(self._runner)._send(form.program, declared, {"job_id": self.id, **options})
        return cast(Verdict, (yield from change))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    @operation
    def wait(self, timeout: Duration | None = None) -> Steps[Job]:
        """Wait until the job has ended (a dead letter has), or raise ``WaitTimeout``; the job continues then. If its
        retries are new jobs, wait for the last one and return it."""
        outcome = yield from self._ended(timeout)
        return cast(Job, (yield from self._jobs._begin(Jobs.get.program, (outcome.id,), {})))

    await_end = awaited(wait)

    @operation
    def result(self, timeout: Duration | None = None) -> Steps[Any]:
        """Wait for the end and return the result of the handler; ``JobFailed`` if it did not succeed."""
        return _result_of((yield from self._ended(timeout))).value

    aresult = awaited(result)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.aresult().__await__()

    def _ended(self, timeout: Duration | None) -> Steps[Outcome]:
        limit = None if timeout is None else seconds(timeout, "timeout")
        end = None if limit is None else time.monotonic() + limit
        until = math.inf if end is None else end + min(OVERTIME, self._runner.link.timeout)
        while True:
            started = time.monotonic()
            left = MAX_POLL if end is None else min(MAX_POLL, max(0.0, end - started))
            request = get(f"/jobs/{segment(self.id)}/result", wait=round(left, 3), extra_timeout=left)
            outcome = yield from self._read(Outcome, replace(request, until=until))
            if outcome.finished:
                return outcome
            now = time.monotonic()
            if end is not None and now >= end:
                raise WaitTimeout(f"job {self.id} had not finished after {seconds(timeout or 0, 'timeout'):g} s")
            if now - started < MIN_POLL_INTERVAL:
                yield Pause(MIN_POLL_INTERVAL)


def _result_of(outcome: Outcome) -> Result:
    if outcome.state is not State.SUCCEEDED:
        error = f": {outcome.error_message} ({outcome.error_code})" if outcome.error_code else ""
        raise JobFailed(
            f"job {outcome.id} is {outcome.state}{error}", fix=f"Read the reason: holdfast jobs show {outcome.id}"
        )
    if outcome.sealed:
        raise Refused(
            f"the result of job {outcome.id} is sealed: only programs that have the key can open it",
            code="result_sealed",
        )
    return Result(outcome.value, outcome.ref)


class Jobs(OverHttp, LocalJobs):
    """``client.jobs``: find jobs, read them, change them. ``client.enqueue`` adds them."""

    def handle(self, job_id: str, *, tenant: str | None = None) -> JobHandle:  # type: ignore[override]
        """A handle on an existing job."""
        return JobHandle(self._runner, EnqueueResponse(job_id, created=False, tenant=tenant))

    @operation
    def search(self, text: str, *, limit: int = PAGE, before: str | None = None) -> Steps[SearchPage]:
        """Search jobs by qualifiers, keys of the payload and words of the error, newest first, without payloads.

        The service examines at most 2,000 jobs per request, so a page may be short or empty and still have a
        ``next``: pass it as ``before``.
        """
        request = get("/jobs", q=text, limit=limit, after=before)
        jobs, cursor = read_page(Job, (yield from self._request(request)))
        return SearchPage(jobs, {}, cursor)

    asearch = awaited(search)

    @stream
    def every(self, **wanted: Unpack[JobConditions]) -> Items[Job]:
        """Every job that matches, newest first, read page by page."""
        yield from self._stream(Job, "/jobs", **sent_inputs(LocalJobs.list.program, wanted))

    aevery = awaited_stream(every)

    @operation
    def result(self, job_id: str, *, tenant: str | None = None) -> Steps[Result]:
        """The result of a job that has succeeded: its ``value`` as JSON, and the ``ref`` of a large one. ``JobFailed``
        in any other state. This does not wait: ``client.jobs.handle(id).result()`` does, and returns the value."""
        return _result_of((yield from self._read(Outcome, get(f"/jobs/{segment(job_id)}/result"))))

    aresult = awaited(result)


class Templates(OverHttp, templates.Templates):
    __doc__ = templates.Templates.__doc__

    def __init__(self, runner: Runner, version: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(runner)
        self._version, self._options = version, dict(options or {})

    def using(self, *, version: int | None = None, **options: Any) -> Templates:
        """The templates with another version than the newest, or with options, for ``enqueue``."""
        return Templates(self._runner, self._version if version is None else version, {**self._options, **options})

    @operation
    def enqueue(self, name: str, /, **arguments: Any) -> Steps[JobHandle]:
        """Enqueue a job from a template; ``arguments`` are added to its payload."""
        key = self._options.get("key") or new_key()
        body = without_none(arguments=arguments, version=self._version, **{**with_policies(self._options), "key": key})
        request = post(f"/templates/{segment(name)}/enqueue", body, repeatable=True)
        response = yield from self._read(EnqueueResponse, request)
        return JobHandle(self._runner, response if "key" in self._options else response.as_created())

    aenqueue = awaited(enqueue)


class Workflows(OverHttp, workflows.Workflows):
    __doc__ = workflows.Workflows.__doc__

    @stream
    def every(self, *, kind: str | None = None, over: bool | None = None) -> Items[Workflow]:
        """All workflows, read page by page."""
        yield from self._stream(Workflow, "/workflows", kind=kind, over=over)

    aevery = awaited_stream(every)

    @operation
    def extend(self, id: str) -> Steps[WorkflowPlan]:  # type: ignore[override]  # a plan of the client
        """Add jobs to an unfinished workflow: ``more = client.workflows.extend(id); more.add(…); more.start()``."""
        workflow = yield from self._read(Workflow, get(f"/workflows/{segment(id)}"))
        return WorkflowPlan(self._runner, f"/workflows/{segment(workflow.id)}/jobs", {})

    aextend = awaited(extend)  # type: ignore[assignment]


class WorkflowPlan(RemoteNamespace):
    """``wf = client.workflow("publish"); a = wf.add("fetch", {"n": 7}); wf.add("render", after=a); wf.start()``."""

    def __init__(self, runner: Runner, path: str, options: dict[str, Any]) -> None:
        super().__init__(runner)
        self._path, self._options = path, options
        self._nodes: dict[str, dict[str, Any]] = {}
        self._edges: list[dict[str, Any]] = []
        self._callbacks: list[dict[str, Any]] = []

    def add(
        self,
        kind: str,
        payload: Any = None,
        *,
        name: str | None = None,
        after: str | Iterable[str] = (),
        on_failure: OnFailure | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> str:
        """Add a job and return its name, which others use as ``after``. The default name is the kind and a number."""
        call = prepare_call(kind, payload, options)
        name = name or f"{kind}-{len(self._nodes) + 1}"
        if name in self._nodes:
            raise InvalidSetting(f"job {name!r} already exists in this workflow", code="duplicate_name")
        self._nodes[name] = {"name": name, **call.body, **({} if call.own else {"key": call.key})}
        for parent in (after,) if isinstance(after, str) else after:
            self._edges.append(without_none(parent=parent, child=name, on_failure=on_failure))
        return name

    def on_success(self, kind: str, payload: dict[str, Any] | None = None, *, step: str | None = None) -> None:
        """Create a job once the workflow, or the job named ``step``, has succeeded. Its payload also has ``result``."""
        self._callbacks.append(without_none(fires="success", kind=kind, payload=payload, step=step))

    def on_failure(self, kind: str, payload: dict[str, Any] | None = None, *, step: str | None = None) -> None:
        """Create a job once the workflow, or the job named ``step``, has failed. Its payload also has ``failure``."""
        self._callbacks.append(without_none(fires="failure", kind=kind, payload=payload, step=step))

    @operation
    def start(self) -> Steps[StartedWorkflow]:
        """Create all its jobs in one transaction. With a key it is started once, even if the request is repeated."""
        body = {**self._options, "nodes": [*self._nodes.values()], "edges": self._edges}
        body |= {"callbacks": self._callbacks} if self._callbacks else {}
        request = post(self._path, body, repeatable="key" in self._options)
        return (yield from self._read(StartedWorkflow, request))

    astart = awaited(start)


def new_plan(runner: Runner, kind: str, key: str | None, **options: Any) -> WorkflowPlan:
    return WorkflowPlan(runner, "/workflows", without_none(kind=kind, key=key or new_key(), **options))
