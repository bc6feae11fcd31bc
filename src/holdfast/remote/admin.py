"""``client.agents``, ``executors``, ``tenants``, ``tokens``, ``payload_rules``, ``retention``, ``audit``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.engine.operation import awaited, operation
from holdfast.engine.retry import Retry
from holdfast.engine.units import Duration, seconds
from holdfast.features.agents.model import Agent, Executor
from holdfast.features.audit.model import Action, Anchor
from holdfast.features.events.model import Delivery, Subscription
from holdfast.features.limits.model import Limit
from holdfast.features.payloads.model import EACH_KIND, PayloadRule
from holdfast.features.retention.model import Preview, Retention
from holdfast.features.tenants.model import Pin, Tenant
from holdfast.features.tokens.model import ApiToken
from holdfast.remote.handle import aware, policy
from holdfast.remote.http_requests import Request, Steps, delete, get, given, post, put, segment
from holdfast.remote.runners import RemoteNamespace


class PayloadRules(RemoteNamespace):
    @operation
    def set(self, /, kind: str = EACH_KIND, **says: Any) -> Steps[PayloadRule]:
        """``client.payload_rules.set("pay", restricted=True, max_bytes="64KB")``."""
        request = put("/payload-rules", {"kind": kind, **given(**says)})
        return (yield from self._read(PayloadRule, dataclasses.replace(request, repeatable=True)))

    aset = awaited(set)

    @operation
    def remove(self, kind: str = EACH_KIND, *, declared_by: str = "") -> Steps[None]:
        yield from self._ask(delete("/payload-rules", kind=kind, declared_by=declared_by))

    aremove = awaited(remove)

    @operation
    def list(self) -> Steps[list[PayloadRule]]:
        return (yield from self._pages(PayloadRule, "/payload-rules"))

    alist = awaited(list)


class RetentionPolicies(RemoteNamespace):
    @operation
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

    aset = awaited(set)

    @operation
    def remove(self, *, kind: str | None = None, state: str | None = None) -> Steps[None]:
        yield from self._ask(delete("/retention", kind=kind, state=state))

    aremove = awaited(remove)

    @operation
    def list(self) -> Steps[list[Retention]]:
        return (yield from self._pages(Retention, "/retention"))

    alist = awaited(list)

    @operation
    def preview(self) -> Steps[_Previews]:
        """What the policies would take now."""
        return (yield from self._pages(Preview, "/retention/preview"))

    apreview = awaited(preview)


class Audit(RemoteNamespace):
    @operation
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

    aactions = awaited(actions)

    @operation
    def anchor(self) -> Steps[Anchor]:
        """The end of the chain, to keep where nobody of the service can write."""
        return Anchor.of((yield from self._read(str, get("/audit/anchor"))))

    aanchor = awaited(anchor)


class Subscriptions(RemoteNamespace):
    """Events that make jobs."""

    @operation
    def set(self, /, name: str, on: str, **wanted: Any) -> Steps[Subscription]:
        """``client.subscriptions.set("receipts", "order.paid", kind="send_receipt")``."""
        said = {each: policy(value) if isinstance(value, Retry) else value for each, value in wanted.items()}
        return (yield from self._read(Subscription, post("/subscriptions", {"name": name, "on": on, **given(**said)})))

    aset = awaited(set)

    @operation
    def get(self, name: str) -> Steps[Subscription]:
        return (yield from self._read(Subscription, get(_at(name))))

    aget = awaited(get)

    @operation
    def list(self) -> Steps[list[Subscription]]:
        return (yield from self._pages(Subscription, "/subscriptions"))

    alist = awaited(list)

    @operation
    def pause(self, name: str, *, reason: str | None = None) -> Steps[Subscription]:
        return (yield from self._read(Subscription, post(f"{_at(name)}/pause", given(reason=reason))))

    apause = awaited(pause)

    @operation
    def resume(self, name: str, *, skip: bool = False) -> Steps[Subscription]:
        """Go on, with what it has missed or (``skip``) without."""
        return (yield from self._read(Subscription, post(f"{_at(name)}/resume", {"skip": skip})))

    aresume = awaited(resume)

    @operation
    def remove(self, name: str) -> Steps[None]:
        yield from self._ask(delete(_at(name)))

    aremove = awaited(remove)

    @operation
    def deliveries(self, name: str, *, refused: bool = False, limit: int = 20) -> Steps[_Deliveries]:
        return (yield from self._items(Delivery, get(f"{_at(name)}/deliveries", refused=refused, limit=limit)))

    adeliveries = awaited(deliveries)


_Deliveries = list[Delivery]  # inside the classes the word is a method
_Previews = list[Preview]


def _at(name: str) -> str:
    return f"/subscriptions/{segment(name)}"


def _span(given: Duration | None) -> float | None:
    return None if given is None else seconds(given, "time to keep")


class Agents(RemoteNamespace):
    @operation
    def set(self, /, id: str, **definition: Any) -> Steps[Agent]:
        """``client.agents.set("billing", retry=Retry(max_attempts=3), requires_approval=True)``."""
        return (yield from self._read(Agent, _again(put(_agent(id), _given(definition)))))

    aset = awaited(set)

    @operation
    def get(self, id: str) -> Steps[Agent]:
        return (yield from self._read(Agent, get(_agent(id))))

    aget = awaited(get)

    @operation
    def list(self, *, kind: str | None = None, disabled: bool | None = None) -> Steps[list[Agent]]:
        return (yield from self._pages(Agent, "/agents", limit=200, kind=kind, disabled=disabled))

    alist = awaited(list)

    @operation
    def disable(self, id: str, *, reason: str) -> Steps[Agent]:
        return (yield from self._read(Agent, post(f"{_agent(id)}/disable", {"reason": reason})))

    adisable = awaited(disable)

    @operation
    def enable(self, id: str) -> Steps[Agent]:
        return (yield from self._read(Agent, post(f"{_agent(id)}/enable")))

    aenable = awaited(enable)


class Limits(RemoteNamespace):
    @operation
    def set(self, /, **options: Any) -> Steps[Limit]:
        """``client.limits.set(queue="mail", concurrency=5, rate="100/m")``."""
        return (yield from self._read(Limit, _again(put("/limits", _given(options)))))

    aset = awaited(set)

    @operation
    def remove(self, /, **what: str) -> Steps[None]:
        yield from self._ask(delete("/limits", **what))

    aremove = awaited(remove)

    @operation
    def list(self) -> Steps[list[Limit]]:
        return (yield from self._pages(Limit, "/limits"))

    alist = awaited(list)


class Tenants(RemoteNamespace):
    """For those who run the whole; one tenant sees itself."""

    @operation
    def set(self, /, name: str, **what: Any) -> Steps[Tenant]:
        return (yield from self._read(Tenant, _again(put(f"/tenants/{segment(name)}", _given(what)))))

    aset = awaited(set)

    @operation
    def get(self, name: str) -> Steps[Tenant]:
        return (yield from self._read(Tenant, get(f"/tenants/{segment(name)}")))

    aget = awaited(get)

    @operation
    def list(self) -> Steps[list[Tenant]]:
        return (yield from self._pages(Tenant, "/tenants"))

    alist = awaited(list)

    @operation
    def remove(self, name: str) -> Steps[None]:
        yield from self._ask(delete(f"/tenants/{segment(name)}"))

    aremove = awaited(remove)

    @operation
    def pin(self, login: str, tenant: str) -> Steps[Pin]:
        """Pin a database login to a tenant: it cannot act for another one."""
        return (yield from self._read(Pin, _again(put(f"/tenants/pins/{segment(login)}", {"tenant": tenant}))))

    apin = awaited(pin)

    @operation
    def unpin(self, login: str) -> Steps[None]:
        yield from self._ask(delete(f"/tenants/pins/{segment(login)}"))

    aunpin = awaited(unpin)

    @operation
    def pins(self) -> Steps[Sequence[Pin]]:
        return (yield from self._pages(Pin, "/tenants/pins"))

    apins = awaited(pins)


class Executors(RemoteNamespace):
    @operation
    def set(self, label: str, role: str = "executor") -> Steps[Executor]:
        return (yield from self._read(Executor, _again(put(f"/executors/{segment(label)}", {"role": role}))))

    aset = awaited(set)

    @operation
    def list(self) -> Steps[list[Executor]]:
        return (yield from self._pages(Executor, "/executors"))

    alist = awaited(list)

    @operation
    def remove(self, label: str) -> Steps[None]:
        yield from self._ask(delete(f"/executors/{segment(label)}"))

    aremove = awaited(remove)


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """``text`` is what its holder sends; it is not seen again."""

    text: str = field(repr=False)
    token: ApiToken


class Tokens(RemoteNamespace):
    @operation
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

    aissue = awaited(issue)

    @operation
    def list(self, *, sessions: bool = False, limit: int = 50, before: str | None = None) -> Steps[list[ApiToken]]:
        """Newest first, also those that are over."""
        return (yield from self._some(ApiToken, "/tokens", limit, before, sessions=sessions))

    alist = awaited(list)

    @operation
    def revoke(self, id: str) -> Steps[ApiToken]:
        return (yield from self._read(ApiToken, delete(f"/tokens/{segment(id)}")))

    arevoke = awaited(revoke)


def _agent(id: str) -> str:
    return f"/agents/{segment(id)}"


def _again(request: Request) -> Request:
    """What is set twice is set."""
    return dataclasses.replace(request, repeatable=True)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return given(**{name: policy(each) if isinstance(each, Retry) else each for name, each in options.items()})
