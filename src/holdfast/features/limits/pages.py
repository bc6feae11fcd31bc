"""Dashboard pages of queues, kinds, limits, pauses and reservations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from holdfast.app import App
from holdfast.app.internals import kinds_of, session_of
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.units import seconds
from holdfast.errors import InvalidInput
from holdfast.features.health.statistics import RANGES, QueueFigures, QueuesAndWorkers, QueueStatus
from holdfast.features.limits.model import SCOPES, Limit, LimitOptions, Pause, PauseTarget, QueueSetting
from holdfast.features.limits.operations import pauses_with_disabled_agents
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import identity_of
from holdfast.server.pages import (
    action_route,
    check_all_tenants,
    choice_field,
    confirm,
    fields,
    integer_field,
    local_path,
    option_fields,
    page_route,
    redirect,
    text_field,
    time_field,
)
from holdfast.server.rendering import chart_rows, render, the_app
from holdfast.stores.flow import read_flows

PAUSED: Final = ("queue", "kind", "agent", "everything")
REASON: Final = 1_000
LISTED: Final = 200


@dataclass(frozen=True, slots=True)
class QueueRow:
    """Everything that the pages show about one queue."""

    status: QueueStatus
    figures: QueueFigures
    pause: Pause | None
    limit: Limit | None
    setting: QueueSetting | None
    workers: int


async def _rows(app: App) -> tuple[dict[str, QueueRow], QueuesAndWorkers, list[Pause], list[Limit]]:
    """Every known queue: declared by this program, served by a worker, used in the last day, paused, limited or with
    settings."""
    client = session_of(app)
    store, tenant = client.store, client.tenant
    current, figures, pauses, settings, limits = await client.arun(
        read_flows(
            store.health.workers(tenant),
            store.health.queues(tenant),
            pauses_with_disabled_agents(client, tenant),
            store.queues.list(tenant),
            store.limits.list(tenant),
        )
    )
    aging = {setting.queue: setting for setting in settings}
    statuses = {status.queue: status for status in current.queues}
    recent = {figure.queue: figure for figure in figures}
    paused = {pause.name: pause for pause in reversed(pauses) if pause.scope == "queue"}
    limited = {limit.name: limit for limit in limits if limit.scope == "queue"}
    served = [queue for worker in current.workers for queue in worker.queues or ()]
    names = {*statuses, *recent, *paused, *aging, *served, *(limited.keys() - {"*"}), *declared_queues(app)}
    rows = {
        name: QueueRow(
            statuses.get(name) or QueueStatus(name),
            recent.get(name) or QueueFigures(name),
            paused.get(name),
            limited.get(name),
            aging.get(name),
            sum(1 for worker in current.workers if worker.queues is None or name in worker.queues),
        )
        for name in sorted(names)
    }
    return rows, current, pauses, limits


def declared_queues(app: App) -> set[str]:
    return {str(handler.kind.defaults.get("queue") or "default") for handler in kinds_of(app).values()}


async def queues(request: Request) -> Response:
    rows, _, pauses, _ = await _rows(the_app(request))
    return await render(
        request,
        "queues.html",
        rows=list(rows.values()),
        halted=next((pause for pause in pauses if pause.scope == "all"), None),
    )


async def queue(request: Request) -> Response:
    app, name = the_app(request), request.path_params["name"]
    client = session_of(app)
    rows, current, _, _ = await _rows(app)
    recent = await client.arun(client.store.health.recent(client.tenant, "queue", name, _range(request)))
    row = rows.get(name) or QueueRow(QueueStatus(name), QueueFigures(name), None, None, None, 0)
    return await render(
        request,
        "queue.html",
        name=name,
        row=row,
        recent=recent,
        ranges=RANGES,
        chart_rows=chart_rows(recent.activity),
        workers=[worker for worker in current.workers if worker.queues is None or name in worker.queues],
        own=f"/queues/{quote(name, safe='')}",
    )


async def kind(request: Request) -> Response:
    app, name = the_app(request), request.path_params["name"]
    client = session_of(app)
    current, pauses, limits, recent = await client.arun(
        read_flows(
            client.store.health.workers(client.tenant),
            pauses_with_disabled_agents(client, client.tenant),
            client.store.limits.list(client.tenant),
            client.store.health.recent(client.tenant, "kind", name, _range(request)),
        )
    )
    return await render(
        request,
        "kind.html",
        name=name,
        recent=recent,
        ranges=RANGES,
        chart_rows=chart_rows(recent.activity),
        workers=[worker for worker in current.workers if worker.kinds is None or name in worker.kinds],
        pause=next((pause for pause in pauses if pause.scope == "kind" and pause.name == name), None),
        limit=next((limit for limit in limits if limit.scope == "kind" and limit.name == name), None),
        declared=name in kinds_of(app),
        own=f"/kinds/{quote(name, safe='')}",
    )


async def limits(request: Request) -> Response:
    app = the_app(request)
    rows, current, pauses, limits = await _rows(app)
    reservations, agents = await app.reservations.alist(limit=LISTED), await app.agents.alist(limit=LISTED)
    kinds = {*kinds_of(app), *(kind for worker in current.workers for kind in worker.kinds or ())}
    return await render(
        request,
        "limits.html",
        limits=limits[:LISTED],
        pauses=pauses[:LISTED],
        reservations=reservations,
        rows=rows,
        scopes=[scope for scope in SCOPES if scope != "tenant" or session_of(app).tenant == EVERY_TENANT],
        names={"queue": list(rows), "kind": sorted(kinds), "agent": [agent.id for agent in agents]},
    )


async def release(request: Request) -> Response:
    """End a reservation, so that jobs start there again."""
    given = await fields(request)
    reason = text_field(given, "reason", REASON) or "released by an operator"
    if (
        confirmation := await confirm(request, "Release this reservation? Jobs start again.", back="/limits")
    ) is not None:
        return confirmation
    await the_app(request).reservations.arelease(text_field(given, "id", 64) or "", reason=reason)
    return redirect(request, "/limits", "Reservation released.")


def _range(request: Request) -> str | None:
    wanted = request.query_params.get("range", "")
    return wanted if wanted in RANGES else None


async def pause(request: Request) -> Response:
    """Pause a target of the caller's tenant; of every tenant only with a token of all tenants."""
    given = await fields(request)
    what, label = _target(request, given)
    reason = text_field(given, "reason", REASON)
    if reason is None:
        raise InvalidInput("A pause needs a reason.", code="reason_required")
    if what.get("everything"):
        question = f"Pause {label}? No job starts until it is resumed."
        if (confirmation := await confirm(request, question, back=_back(given))) is not None:
            return confirmation
    duration = text_field(given, "for", 30)
    until = time_field(given, "until") if duration is None else seconds(duration, "time")
    refuse = {"yes": True, "no": False}.get(given.get("refuse", ""))
    await the_app(request).pauses.aset(reason=reason, until=until, refuse_enqueue=refuse, **what)
    return redirect(request, _back(given), f"Paused {label}.")


async def resume(request: Request) -> Response:
    given = await fields(request)
    what, label = _target(request, given)
    await the_app(request).pauses.aremove(**what)
    return redirect(request, _back(given), f"Resumed {label}.")


async def age(request: Request) -> Response:
    """Set or remove aging: whether waiting raises the priority."""
    given = await fields(request)
    queue, every = text_field(given, "queue", 255) or "", text_field(given, "every", 30)
    step = integer_field(given, "step", 1, 32_767) or 1
    await the_app(request).queues.aset_aging(
        queue, every=every, step=step, most=integer_field(given, "most", 1, 32_767) or 100
    )
    done = "Removed aging of" if every is None else "Set aging of"
    return redirect(request, _back(given), f"{done} queue {queue}.")


async def limit(request: Request) -> Response:
    given = await fields(request)
    options = option_fields(given, LimitOptions) | _counted(given)
    if options["rate"] is None:
        del options["burst"]
    await the_app(request).limits.aset(**options)
    return redirect(request, _back(given), "Limit set.")


async def unlimit(request: Request) -> Response:
    given = await fields(request)
    if (confirmation := await confirm(request, "Remove this limit?", back=_back(given))) is not None:
        return confirmation
    await the_app(request).limits.aremove(**_counted(given))
    return redirect(request, _back(given), "Limit removed.")


def _counted(given: dict[str, str]) -> dict[str, str]:
    scope = choice_field(given, "scope", SCOPES)
    return {} if scope == "all" else {scope: text_field(given, "name", 255) or ""}


def _target(request: Request, given: dict[str, str]) -> tuple[PauseTarget, str]:
    """The target of a pause, and its name in words. The credentials decide the tenant; those of every tenant may name
    one."""
    identity = identity_of(request)
    tenant: str | None = session_of(the_app(request)).tenant
    if given.get("whose") == "all" or tenant == EVERY_TENANT:
        check_all_tenants(request)
        tenant = None
    scope = choice_field(given, "what", PAUSED)
    owner = "" if tenant is None else f" of tenant {identity.tenant if not identity.is_every_tenant else tenant}"
    name = text_field(given, "name", 255) or ""
    target: PauseTarget = {"everything": True} if scope == "everything" else {scope: name}  # type: ignore[misc]
    if tenant is not None:
        target["tenant"] = tenant
    return target, f"everything{owner}" if scope == "everything" else f"{scope} {name}{owner}"


def _back(given: dict[str, str]) -> str:
    return local_path(given.get("back", ""), "/limits")


routes = [
    page_route("/queues", queues),
    page_route("/queues/{name:path}", queue),
    page_route("/kinds/{name:path}", kind),
    page_route("/limits", limits),
    action_route("/pause", pause, Scope.OPERATE),
    action_route("/resume", resume, Scope.OPERATE),
    action_route("/queues/aging", age, Scope.ADMIN),
    action_route("/limits", limit, Scope.ADMIN),
    action_route("/limits/remove", unlimit, Scope.ADMIN),
    action_route("/reservations/release", release, Scope.OPERATE),
]
