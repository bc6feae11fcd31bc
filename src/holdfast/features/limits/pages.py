"""Queues and workers: what waits where and for how long, what holds it back, and who works."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.units import seconds
from holdfast.errors import InvalidInput
from holdfast.features.health.statistics import QueuePulse
from holdfast.features.limits.model import SCOPES, LimitOptions, Named
from holdfast.features.limits.operations import listed
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import identity_of
from holdfast.server.pages import ask_first, chosen, does, fields, go, said, shows, time_of, whole, whole_number
from holdfast.server.rendering import render, the_app
from holdfast.stores.flow import beside

PAUSED: Final = ("queue", "kind", "agent", "everything")
REASON: Final = 1_000


async def index(request: Request) -> Response:
    client = the_app(request)._session
    store, tenant = client.store, client.tenant
    stands, switches, settings, limits = await client.arun(
        beside(
            store.health.workers(tenant), listed(client, tenant), store.queues.list(tenant), store.limits.list(tenant)
        )
    )
    aging = {each.queue: each for each in settings}
    queues = {each.queue: each for each in stands.queues}
    named = {switch.name for switch in switches if switch.scope == "queue"} | aging.keys()
    named |= {limit.name for limit in limits if limit.scope == "queue" and limit.name != "*"}
    for name in named:
        queues.setdefault(name, QueuePulse(name))
    return await render(
        request,
        "queues.html",
        queues=[queues[name] for name in sorted(queues)],
        paused={switch.name: switch for switch in reversed(switches) if switch.scope == "queue"},
        halted=next((switch for switch in switches if switch.scope == "all"), None),
        aging=aging,
        limits=limits,
        limited={limit.name: limit for limit in limits if limit.scope == "queue"},
        workers=stands.workers,
        scopes=SCOPES,
        queue=request.query_params.get("queue", "")[:255],
    )


async def pause(request: Request) -> Response:
    """Of one's own tenant; of every tenant only for those who look after all of them."""
    given = await fields(request)
    what, words = _what(request, given)
    reason = said(given, "reason", REASON)
    if reason is None:
        raise InvalidInput("nothing is paused without a reason", code="reason_required")
    if what.get("everything") or given.get("what") == "everything":
        question = f"Pause {words}? Nothing more is begun until it is resumed."
        if (asks := await ask_first(request, question, back=_back(given))) is not None:
            return asks
    lasts = said(given, "for", 30)
    until = time_of(given, "until") if lasts is None else seconds(lasts, "time")
    refuse = {"yes": True, "no": False}.get(given.get("refuse", ""))
    switch = await the_app(request).pauses.aset(reason=reason, until=until, refuse_enqueue=refuse, **what)
    return go(request, _back(given), f"{switch.what} is paused.")


async def resume(request: Request) -> Response:
    given = await fields(request)
    what, words = _what(request, given)
    await the_app(request).pauses.aremove(**what)
    return go(request, _back(given), f"{words} goes on.")


async def age(request: Request) -> Response:
    """Whether waiting raises the priority."""
    given = await fields(request)
    queue, every = said(given, "queue", 255) or "", said(given, "every", 30)
    step = whole_number(given, "step", 1, 32_767) or 1
    await the_app(request).queues.aset_aging(
        queue, every=every, step=step, most=whole_number(given, "most", 1, 32_767) or 100
    )
    told = "does not count any more" if every is None else "counts from now on"
    return go(request, "/queues", f"Waiting in queue {queue} {told}.")


async def limit(request: Request) -> Response:
    given = await fields(request)
    options: dict[str, Any] = _counted(given)
    options["concurrency"] = whole_number(given, "concurrency", 0, 1_000_000)
    options["rate"] = said(given, "rate", 50)
    if options["rate"] is not None:
        options["burst"] = whole_number(given, "burst", 1, 1_000_000)
    await the_app(request).limits.aset(**LimitOptions(**options))  # type: ignore[typeddict-item]
    return go(request, "/queues", "The limit holds from now on.")


async def unlimit(request: Request) -> Response:
    given = await fields(request)
    if (asks := await ask_first(request, "Remove this limit?", back="/queues")) is not None:
        return asks
    await the_app(request).limits.aremove(**_counted(given))
    return go(request, "/queues", "The limit is removed.")


def _counted(given: dict[str, str]) -> dict[str, str]:
    scope = chosen(given, "scope", SCOPES)
    return {} if scope == "all" else {scope: said(given, "name", 255) or ""}


def _what(request: Request, given: dict[str, str]) -> tuple[Named, str]:
    """What is meant, and in words. Whose it is, the credentials say; those of every tenant may name one."""
    identity = identity_of(request)
    tenant: str | None = the_app(request)._session.tenant
    if given.get("whose") == "all" or tenant == EVERY_TENANT:
        whole(request)
        tenant = None
    sort = chosen(given, "what", PAUSED)
    of_whom = "" if tenant is None else f" of tenant {identity.tenant if not identity.everywhere else tenant}"
    if sort == "everything":
        found: Named = {"everything": True} if tenant is None else {"tenant": tenant}
        return found, f"everything{of_whom}"
    name = said(given, "name", 255) or ""
    found = {sort: name}  # type: ignore[misc]
    if tenant is not None:
        found["tenant"] = tenant
    return found, f"{sort} {name}{of_whom}"


def _back(given: dict[str, str]) -> str:
    return "/system" if given.get("from") == "system" else "/queues"


routes = [
    shows("/queues", index),
    does("/pause", pause, Scope.OPERATE),
    does("/resume", resume, Scope.OPERATE),
    does("/queues/aging", age, Scope.ADMIN),
    does("/limits", limit, Scope.ADMIN),
    does("/limits/remove", unlimit, Scope.ADMIN),
]
