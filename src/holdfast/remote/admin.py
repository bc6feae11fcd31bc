"""``client.agents``, ``executors``, ``tenants``, ``tokens``, ``payload_rules``, ``retention``, ``audit``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from holdfast.engine.retry import Retry
from holdfast.engine.units import Duration, seconds
from holdfast.errors import NotFound
from holdfast.features.agents.model import Agent, Executor
from holdfast.features.audit.model import Action, Anchor
from holdfast.features.events.model import Consumer, Delivery, Subscription
from holdfast.features.limits.model import Limit
from holdfast.features.payloads.model import EACH_KIND, PayloadRule
from holdfast.features.retention.model import Preview, Retention
from holdfast.features.tenants.model import Tenant
from holdfast.features.tokens.model import ApiToken
from holdfast.remote.handle import aware, policy
from holdfast.remote.requests import Request, Steps, delete, get, given, post, put, segment
from holdfast.remote.runners import RemoteNamespace, Runner, verb

C = TypeVar("C", bound=Runner)


class PayloadRules(RemoteNamespace[C], Generic[C]):
    @verb
    def set(self, /, kind: str = EACH_KIND, **says: Any) -> Steps[PayloadRule]:
        """``client.payload_rules.set("pay", restricted=True, max_bytes="64KB")``."""
        request = put("/payload-rules", {"kind": kind, **given(**says)})
        return (yield from self._read(PayloadRule, dataclasses.replace(request, repeatable=True)))

    @verb
    def delete(self, kind: str = EACH_KIND, *, declared_by: str = "") -> Steps[None]:
        yield from self._ask(delete("/payload-rules", kind=kind, declared_by=declared_by))

    @verb
    def list(self) -> Steps[list[PayloadRule]]:
        return (yield from self._pages(PayloadRule, "/payload-rules"))


class Retentions(RemoteNamespace[C], Generic[C]):
    @verb
    def set(
        self,
        *,
        kind: str | None = None,
        state: str | None = None,
        clean_after: Duration | None = None,
        purge_after: Duration | None = None,
    ) -> Steps[Retention]:
        """How long finished jobs are kept: without a policy, for ever."""
        spans = given(clean_after=_span(clean_after), purge_after=_span(purge_after))
        request = put("/retention", given(kind=kind, state=state) | spans)
        return (yield from self._read(Retention, dataclasses.replace(request, repeatable=True)))

    @verb
    def delete(self, *, kind: str | None = None, state: str | None = None) -> Steps[None]:
        yield from self._ask(delete("/retention", kind=kind, state=state))

    @verb
    def list(self) -> Steps[list[Retention]]:
        return (yield from self._pages(Retention, "/retention"))

    @verb
    def preview(self) -> Steps[_Previews]:
        """What the policies would take now."""
        return (yield from self._pages(Preview, "/retention/preview"))


class Audit(RemoteNamespace[C], Generic[C]):
    @verb
    def actions(
        self,
        *,
        subject: str | None = None,
        name: str | None = None,
        actor: str | None = None,
        since: datetime | None = None,
        limit: int = 50,
    ) -> Steps[list[Action]]:
        """What was done to the configuration, the latest first."""
        aware(since, "since")
        chosen = {"subject": subject, "name": name, "actor": actor, "since": since}
        return (yield from self._some(Action, "/audit/actions", limit, None, **chosen))

    @verb
    def anchor(self) -> Steps[Anchor]:
        """The end of the chain, to keep where nobody of the service can write."""
        return Anchor.of((yield from self._read(str, get("/audit/anchor"))))


class Subscriptions(RemoteNamespace[C], Generic[C]):
    """Events that make jobs."""

    @verb
    def create(self, /, name: str, on: str, **wanted: Any) -> Steps[Subscription]:
        """``client.subscriptions.create("receipts", "order.paid", kind="send_receipt")``."""
        said = {each: policy(value) if isinstance(value, Retry) else value for each, value in wanted.items()}
        return (yield from self._read(Subscription, post("/subscriptions", {"name": name, "on": on, **given(**said)})))

    @verb
    def get(self, name: str) -> Steps[Subscription | None]:
        try:
            return (yield from self._read(Subscription, get(_at(name))))
        except NotFound:
            return None

    @verb
    def list(self) -> Steps[list[Subscription]]:
        return (yield from self._pages(Subscription, "/subscriptions"))

    @verb
    def pause(self, name: str, *, reason: str | None = None) -> Steps[Subscription]:
        return (yield from self._read(Subscription, post(f"{_at(name)}/pause", given(reason=reason))))

    @verb
    def resume(self, name: str, *, skip: bool = False) -> Steps[Subscription]:
        """Go on, with what it has missed or (``skip``) without."""
        return (yield from self._read(Subscription, post(f"{_at(name)}/resume", {"skip": skip})))

    @verb
    def delete(self, name: str) -> Steps[None]:
        yield from self._ask(delete(_at(name)))

    @verb
    def deliveries(self, name: str, *, refused: bool = False, limit: int = 20) -> Steps[_Deliveries]:
        return (yield from self._items(Delivery, get(f"{_at(name)}/deliveries", refused=refused, limit=limit)))


class Consumers(RemoteNamespace[C], Generic[C]):
    """Who reads events with a place that is kept in the database."""

    @verb
    def list(self) -> Steps[list[Consumer]]:
        return (yield from self._pages(Consumer, "/consumers"))

    @verb
    def reset(self, name: str, to: Literal["beginning", "now"] = "beginning") -> Steps[None]:
        yield from self._ask(post(f"/consumers/{segment(name)}/reset", {"to": to}))

    @verb
    def remove(self, name: str) -> Steps[None]:
        yield from self._ask(delete(f"/consumers/{segment(name)}"))


_Deliveries = list[Delivery]  # inside the classes the word is a method
_Previews = list[Preview]


def _at(name: str) -> str:
    return f"/subscriptions/{segment(name)}"


def _span(given: Duration | None) -> float | None:
    return None if given is None else seconds(given, "time to keep")


class Agents(RemoteNamespace[C], Generic[C]):
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


class Limits(RemoteNamespace[C], Generic[C]):
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


class Tenants(RemoteNamespace[C], Generic[C]):
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


class Executors(RemoteNamespace[C], Generic[C]):
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


class Tokens(RemoteNamespace[C], Generic[C]):
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
