"""Who may do how much: agents, limits, tenants, executors and tokens. It takes a token that may ``admin``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from holdfast.engine.retry import Retry
from holdfast.engine.units import Duration, seconds
from holdfast.errors import NotFound
from holdfast.features.agents.model import Agent, Executor
from holdfast.features.limits.model import Limit
from holdfast.features.tenants.model import Tenant
from holdfast.features.tokens.model import ApiToken
from holdfast.http.calls import aware, policy
from holdfast.http.colours import Noun, verb
from holdfast.http.runners import Runner
from holdfast.http.wire import Request, Steps, delete, get, given, post, put, segment

C = TypeVar("C", bound=Runner)


class Agents(Noun[C], Generic[C]):
    @verb
    def register(self, /, id: str, **definition: Any) -> Steps[Agent]:
        """``client.agents.register("billing", retry=Retry(max_attempts=3), requires_approval=True)``."""
        return (yield from self._read(Agent, _again(put(_agent(id), _given(definition)))))

    @verb
    def get(self, id: str) -> Steps[Agent | None]:
        try:
            return (yield from self._read(Agent, get(_agent(id))))
        except NotFound:
            return None

    @verb
    def list(self, *, kind: str | None = None, disabled: bool | None = None) -> Steps[list[Agent]]:
        return (yield from self._pages(Agent, "/agents", limit=200, kind=kind, disabled=disabled))

    @verb
    def disable(self, id: str, *, reason: str) -> Steps[Agent]:
        return (yield from self._read(Agent, post(f"{_agent(id)}/disable", {"reason": reason})))

    @verb
    def enable(self, id: str) -> Steps[Agent]:
        return (yield from self._read(Agent, post(f"{_agent(id)}/enable")))


class Limits(Noun[C], Generic[C]):
    @verb
    def set(self, /, **options: Any) -> Steps[Limit]:
        """``client.limits.set(queue="mail", concurrency=5, rate="100/m")``."""
        return (yield from self._read(Limit, _again(put("/limits", _given(options)))))

    @verb
    def remove(self, /, **what: str) -> Steps[None]:
        yield from self._ask(delete("/limits", **what))

    @verb
    def list(self) -> Steps[list[Limit]]:
        return (yield from self._pages(Limit, "/limits"))


class Tenants(Noun[C], Generic[C]):
    """For those who run the whole; one tenant sees itself."""

    @verb
    def set(self, /, name: str, **what: Any) -> Steps[Tenant]:
        return (yield from self._read(Tenant, _again(put(f"/tenants/{segment(name)}", _given(what)))))

    @verb
    def get(self, name: str) -> Steps[Tenant]:
        return (yield from self._read(Tenant, get(f"/tenants/{segment(name)}")))

    @verb
    def list(self) -> Steps[list[Tenant]]:
        return (yield from self._pages(Tenant, "/tenants"))

    @verb
    def delete(self, name: str) -> Steps[None]:
        yield from self._ask(delete(f"/tenants/{segment(name)}"))


class Executors(Noun[C], Generic[C]):
    @verb
    def add(self, label: str, role: str = "executor") -> Steps[Executor]:
        return (yield from self._read(Executor, _again(put(f"/executors/{segment(label)}", {"role": role}))))

    @verb
    def list(self) -> Steps[list[Executor]]:
        return (yield from self._pages(Executor, "/executors"))

    @verb
    def remove(self, label: str) -> Steps[None]:
        yield from self._ask(delete(f"/executors/{segment(label)}"))


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """``text`` is what its holder sends; it is not seen again."""

    text: str = field(repr=False)
    token: ApiToken


class Tokens(Noun[C], Generic[C]):
    @verb
    def issue(
        self,
        name: str,
        *,
        roles: Sequence[str],
        scopes: Sequence[str] = (),
        expires: datetime | Duration | None = None,
    ) -> Steps[IssuedToken]:
        """For your own tenant, and for no more than you may yourself."""
        body: dict[str, Any] = given(name=name, roles=[*roles], scopes=[*scopes])
        if isinstance(expires, datetime):
            aware(expires, "expires")
            body |= given(expires_at=expires)
        elif expires is not None:
            body["expires_in"] = seconds(expires, "expires")
        return (yield from self._read(IssuedToken, post("/tokens", body)))

    @verb
    def list(self, *, sessions: bool = False, limit: int = 50, before: str | None = None) -> Steps[list[ApiToken]]:
        """Newest first, also those that are over."""
        return (yield from self._some(ApiToken, "/tokens", limit, before, sessions=sessions))

    @verb
    def revoke(self, id: str) -> Steps[ApiToken]:
        return (yield from self._read(ApiToken, delete(f"/tokens/{segment(id)}")))


def _agent(id: str) -> str:
    return f"/agents/{segment(id)}"


def _again(request: Request) -> Request:
    """What is set twice is set."""
    return dataclasses.replace(request, repeatable=True)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return given(**{name: policy(each) if isinstance(each, Retry) else each for name, each in options.items()})
