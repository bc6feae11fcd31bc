"""The job list."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.engine.ids import parse_id
from holdfast.engine.job import Verdict
from holdfast.engine.states import ACTIVE, State
from holdfast.errors import HoldfastError, InvalidInput
from holdfast.features.dead_letters.model import BULK_ACTIONS, BulkAction
from holdfast.features.health.model import CAP
from holdfast.features.jobs.search import NEVER, Search, SearchPage, listed, narrowed, needs_clock, parse
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import require
from holdfast.server.pages import confirm, field, local_path, posted_form, redirect, repeated_field
from holdfast.server.rendering import link_of, render, the_app
from holdfast.stores.flow import read_slowly
from holdfast.stores.requests import Counted

PAGE = 50


@dataclass(frozen=True, slots=True)
class ListRequest:
    """The request for a job list: the state of the tab, the text of the search, and the cursor."""

    state: State | None
    text: str
    search: Search
    before: str | None = None

    @classmethod
    def of(cls, parameters: ImmutableMultiDict[str, str], now: Any) -> ListRequest:
        text = str(parameters.get("q") or "").strip()
        tab, before = str(parameters.get("state") or ""), str(parameters.get("before") or "")
        try:
            state = State(tab) if tab else None
        except ValueError:
            raise InvalidInput(
                f"Unknown state {tab[:50]!r}. States: {', '.join(State)}", code="unknown_state"
            ) from None
        search = parse(text, now)
        named = search.given.get("state")
        search = narrowed(search, state=state)
        return cls(named or state, text, search, parse_id(before) if before else None)

    @property
    def actions(self) -> tuple[BulkAction, ...]:
        """The actions that apply to the listed jobs."""
        if self.state is None:
            return ("cancel", "redrive", "discard")
        if self.state is State.DEAD_LETTER:
            return ("redrive", "discard")
        return ("cancel",) if self.state in ACTIVE else ()


def only_id(text: str) -> str | None:
    """The id, if the search is nothing but an id."""
    try:
        return parse_id(text.strip())
    except InvalidInput:
        return None


TABS = (
    State.QUEUED,
    State.IN_PROGRESS,
    State.RETRY_WAITING,
    State.WAITING_FOR_APPROVAL,
    State.DEAD_LETTER,
    State.SUCCEEDED,
    State.FAILED,
    State.CANCELLED,
    State.LEASED,
    State.CLEANED,
)
MANY = 200
"""The most jobs that can be selected by hand. A page shows no more."""


async def list_jobs(request: Request) -> Response:
    require(request, Scope.READ)
    app = the_app(request)
    client = session_of(app)
    text = request.query_params.get("q", "")
    job_id = only_id(text)
    if job_id is not None and await client.arun(client.store.jobs.get(job_id, client.tenant)) is not None:
        return redirect(request, f"/jobs/{job_id}")
    error: HoldfastError | None = None
    counted: Counted | None = None
    now = await client.arun(client.store.clock.now()) if needs_clock(text) else NEVER
    try:
        wanted = ListRequest.of(request.query_params, now)
        page = listed(client.store, wanted.search, client.tenant, PAGE, wanted.before, CAP)
        examines = wanted.search.examines
        result, counted = await (read_slowly(partial(client.run, page)) if examines else client.arun(page))
    except InvalidInput as refused:  # shown above the search box
        error, wanted, result = refused, ListRequest(None, text, Search({})), SearchPage([], {}, None)
    return await render(
        request,
        "jobs.html",
        status=422 if error else 200,
        finding=wanted,
        found=result,
        counted=counted,
        tabs=TABS,
        error=error,
        reasons={job.id: reason_of(job, result.notes.get(job.id, {})) for job in result.jobs},
    )


def reason_of(job: Any, note: dict[str, Any]) -> str:
    """The error of a job, or what it waits for according to the note of its last transition."""
    if job.error_code:
        return f"{job.error_code}: {job.error_message or ''}"
    if note.get("held") == "parents":
        return "waiting for jobs of its workflow"
    for name, label in (("waits_for", "waiting for event"), ("approval", "approval:"), ("step", "retrying step")):
        if name in note:
            return f"{label} {note[name]}"
    return "sleeping" if "sleeps" in note else str(note.get("reason") or "")


async def act(request: Request) -> Response:
    """Apply an action to the selected jobs immediately, or to all matching jobs as a bulk operation with its own
    page."""
    require(request, Scope.OPERATE)
    app = the_app(request)
    form = await posted_form(request)
    action, reason = await field(request, "action"), await field(request, "reason") or None
    ids, everything = await repeated_field(request, "id", MANY), await field(request, "everything") == "yes"
    now = await session_of(app).arun(session_of(app).store.clock.now())
    wanted = ListRequest.of(form, now)
    back = local_path(link_of("/jobs", state=await field(request, "state"), q=wanted.text), "/jobs")
    if action not in BULK_ACTIONS:
        raise InvalidInput(f"The operation is one of {', '.join(BULK_ACTIONS)}.", code="unknown_action")
    if not ids and not everything:
        return redirect(request, back, "No jobs selected.")
    if action == "discard" and reason is None:
        return redirect(request, back, "Discarding needs a reason. Enter one and try again.")
    if everything and wanted.search.examines:
        return redirect(
            request,
            back,
            "A bulk operation cannot use words of an error or keys of a payload."
            " Search with qualifiers such as kind: or queue: only.",
        )
    which = "all matching jobs" if everything else f"{len(ids)} selected {'job' if len(ids) == 1 else 'jobs'}"
    detail = f"Search: {wanted.text or wanted.state or 'everything'}" if everything else None
    if (question := await confirm(request, f"{action.capitalize()} {which}?", back=back, detail=detail)) is not None:
        return question
    if everything:
        selection = wanted.search.given
        operation = await app.operations.astart(cast(BulkAction, action), reason=reason, everything=True, **selection)
        return redirect(request, f"/operations/{operation.id}")
    return redirect(request, back, _summary(action, await _operate(app, action, ids, reason)))


async def _operate(app: App, action: str, ids: list[str], reason: str | None) -> list[Verdict]:
    if action == "cancel":
        return await app.jobs.acancel(*ids, reason=reason)
    if action == "redrive":
        return await app.jobs.aredrive(*ids, reason=reason)
    return await app.jobs.adiscard(*ids, reason=reason or "")


def _summary(action: str, verdicts: list[Verdict]) -> str:
    refused: dict[str, int] = {}
    for verdict in verdicts:
        if verdict.refused:
            why = (verdict.reason or "refused").replace("_", " ")
            refused[why] = refused.get(why, 0) + 1
    done = len(verdicts) - sum(refused.values())
    verb = {"cancel": "cancelled", "redrive": "redriven", "discard": "discarded"}[action]
    parts = [f"{done} {verb}", *(f"{count} not: {why}" for why, count in refused.items())]
    return "; ".join(parts) + "."


routes = [Route("/jobs", list_jobs), Route("/jobs/act", act, methods=["POST"])]
