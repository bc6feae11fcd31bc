"""Limits (SC-16), as ``app.limits``: how many run at once, and how many are begun in a time."""

from __future__ import annotations

from typing import Unpack

from holdfast.domain.limits import Limit, LimitOptions, Rule, counted
from holdfast.errors import NotFound
from holdfast.stores.base import Caller
from holdfast.stores.flow import Flow

_Limits = list[Limit]  # inside the class the word is a method


class Limits:
    """Each call has two colours: the one that begins with ``a`` is awaited."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def set(self, **options: Unpack[LimitOptions]) -> Limit:
        """Limit a queue, a kind, a key, a resource, an agent, a tenant, or (with none of these) all jobs.

        ``app.limits.set(queue="mail", concurrency=5)``, ``app.limits.set(kind="call", rate="100/m", burst=10)``. The
        name ``*`` is each by itself: ``key="*", concurrency=1`` runs one job of each key. It takes the place of what
        was set for the same before, at once; what runs above a lowered limit runs to its end.
        """
        return self._caller.run(self._set(options))

    async def aset(self, **options: Unpack[LimitOptions]) -> Limit:
        return await self._caller.arun(self._set(options))

    def remove(self, **what: str) -> None:
        """``app.limits.remove(queue="mail")``; without a name the limit on all jobs."""
        _found(what, self._caller.run(self._remove(what)))

    async def aremove(self, **what: str) -> None:
        _found(what, await self._caller.arun(self._remove(what)))

    def list(self) -> _Limits:
        """All of them, with how many jobs run under each and how many it holds back."""
        return self._caller.run(self._caller.verbs.limits(self._caller.tenant))

    async def alist(self) -> _Limits:
        return await self._caller.arun(self._caller.verbs.limits(self._caller.tenant))

    def get(self, **what: str) -> Limit | None:
        wanted = (self._caller.tenant, *counted(**what))
        return next((each for each in self.list() if (each.tenant, each.scope, each.name) == wanted), None)

    def _set(self, options: LimitOptions) -> Flow[Limit]:
        how = {name: options.get(name) for name in ("concurrency", "rate", "burst")}
        what = {name: str(value) for name, value in options.items() if name not in how}
        rule = Rule.of(*counted(**what), **how)  # type: ignore[arg-type]
        return self._caller.verbs.set_limit(rule, self._caller.actor, self._caller.tenant)

    def _remove(self, what: dict[str, str]) -> Flow[bool]:
        scope, name = counted(**what)
        return self._caller.verbs.remove_limit(scope, name, self._caller.actor, self._caller.tenant)


def _found(what: dict[str, str], removed: bool) -> None:
    if not removed:
        scope, name = counted(**what)
        raise NotFound(f"there is no limit on {scope} {name} in this tenant", code="limit_not_found")
