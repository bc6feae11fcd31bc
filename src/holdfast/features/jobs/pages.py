"""The job list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.app import App
from holdfast.engine.ids import parse_id
from holdfast.engine.job import Verdict
from holdfast.engine.states import ACTIVE, State
from holdfast.errors import HoldfastError, InvalidInput
from holdfast.features.dead_letters.model import BULK_ACTIONS, BulkAction
from holdfast.features.health.model import CAP
from holdfast.features.jobs.search import NEVER, Search, names_a_time, narrowed, parse
from holdfast.features.jobs.views import Found, listed
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import require
from holdfast.server.pages import ask_first, below, field, go, hidden_fields, posted
from holdfast.server.rendering import link_of, render, the_app
from holdfast.stores.requests import Counted

PAGE = 50


@dataclass(frozen=True, slots=True)
class Finding:
    """What was asked for: the tab, the words, and from where on."""

    state: State | None
    text: str
    search: Search
    before: str | None = None

    @classmethod
    def of(cls, given: ImmutableMultiDict[str, str], now: Any) -> Finding:
        text = str(given.get("q") or "").strip()
        said, before = str(given.get("state") or ""), str(given.get("before") or "")
        try:
            state = State(said) if said else None
        except ValueError:
            raise InvalidInput(
                f"Unknown state {said[:50]!r}. States: {', '.join(State)}", code="unknown_state"
            ) from None
        search = parse(text, now)
        named = search.given.get("state")
        search = narrowed(search, state=state)
        return cls(named or state, text, search, parse_id(before) if before else None)

    @property
    def chosen(self) -> dict[str, Any]:
        """For an operation on all of them."""
        return dict(self.search.given)

    @property
    def actions(self) -> tuple[BulkAction, ...]:
        """What can be done to what is listed."""
        if self.state is None:
            return ("cancel", "redrive", "discard")
        if self.state is State.DEAD_LETTER:
            return ("redrive", "discard")
        return ("cancel",) if self.state in ACTIVE else ()


def only_id(text: str) -> str | None:
    """The id, if that is all that was searched for."""
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
"""How many can be selected by hand: no more are on a page."""


async def list_jobs(request: Request) -> Response:
    require(request, Scope.READ)
    app = the_app(request)
    client = app._session
    text = request.query_params.get("q", "")
    job_id = only_id(text)
    if job_id is not None and await client.arun(client.store.jobs.get(job_id, client.tenant)) is not None:
        return go(request, f"/jobs/{job_id}")
    error: HoldfastError | None = None
    counted: Counted | None = None
    now = await client.arun(client.store.clock.now()) if names_a_time(text) else NEVER
    try:
        finding = Finding.of(request.query_params, now)
        found, counted = await client.arun(
            listed(client.store, finding.search, client.tenant, PAGE, finding.before, CAP)
        )
    except InvalidInput as refused:  # said above the box in which it can be put right
        error, finding, found = (
            refused,
            Finding(None, text, Search({})),
            Found([], {}, None),
        )
    return await render(
        request,
        "jobs.html",
        status=422 if error else 200,
        finding=finding,
        found=found,
        counted=counted,
        tabs=TABS,
        error=error,
        reasons={job.id: reason_of(job, found.notes.get(job.id, {})) for job in found.jobs},
    )


def reason_of(job: Any, note: dict[str, Any]) -> str:
    """The error it has, or what it waits for, as far as the note of its last transition tells."""
    if job.error_code:
        return f"{job.error_code}: {job.error_message or ''}"
    if note.get("held") == "parents":
        return "waiting for jobs of its workflow"
    for name, words in (("waits_for", "waiting for event"), ("approval", "approval:"), ("step", "retrying step")):
        if name in note:
            return f"{words} {note[name]}"
    return "sleeping" if "sleeps" in note else str(note.get("reason") or "")


async def act(request: Request) -> Response:
    """On those that are selected at once; on all that match as an operation, whose page says how far it is."""
    require(request, Scope.OPERATE)
    app = the_app(request)
    form = await posted(request)
    action, reason = await field(request, "action"), await field(request, "reason") or None
    ids, everything = await hidden_fields(request, "id", MANY), await field(request, "everything") == "yes"
    now = await app._session.arun(app._session.store.clock.now())
    finding = Finding.of(form, now)
    back = below(link_of("/jobs", state=await field(request, "state"), q=finding.text), "/jobs")
    if action not in BULK_ACTIONS:
        raise InvalidInput(f"The operation is one of {', '.join(BULK_ACTIONS)}.", code="unknown_action")
    if not ids and not everything:
        return go(request, back, "No jobs selected.")
    if action == "discard" and reason is None:
        return go(request, back, "Discarding needs a reason. Enter one and try again.")
    if everything and finding.search.examines:
        return go(
            request,
            back,
            "A bulk operation cannot use words of an error or keys of a payload."
            " Search with qualifiers such as kind: or queue: only.",
        )
    which = "all matching jobs" if everything else f"{len(ids)} selected {'job' if len(ids) == 1 else 'jobs'}"
    detail = f"Search: {finding.text or finding.state or 'everything'}" if everything else None
    if (question := await ask_first(request, f"{action.capitalize()} {which}?", back=back, detail=detail)) is not None:
        return question
    chosen = cast(BulkAction, action)
    if everything:
        operation = await app.operations.astart(chosen, reason=reason, **finding.chosen)
        return go(request, f"/operations/{operation.id}")
    return go(request, back, _said(action, await _operate(app, action, ids, reason)))


async def _operate(app: App, action: str, ids: list[str], reason: str | None) -> list[Verdict]:
    if action == "cancel":
        return await app.jobs.acancel(*ids, reason=reason)
    if action == "redrive":
        return await app.jobs.aredrive(*ids, reason=reason)
    return await app.jobs.adiscard(*ids, reason=reason or "")


def _said(action: str, verdicts: list[Verdict]) -> str:
    refused: dict[str, int] = {}
    for verdict in verdicts:
        if verdict.refused:
            why = (verdict.reason or "refused").replace("_", " ")
            refused[why] = refused.get(why, 0) + 1
    done = len(verdicts) - sum(refused.values())
    word = {"cancel": "cancelled", "redrive": "redriven", "discard": "discarded"}[action]
    parts = [f"{done} {word}", *(f"{count} not: {why}" for why, count in refused.items())]
    return "; ".join(parts) + "."


routes = [Route("/jobs", list_jobs), Route("/jobs/act", act, methods=["POST"])]
