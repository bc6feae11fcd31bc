"""``client.agents``, ``executors``, ``limits``, ``tenants``, ``tokens``, ``payload_rules``, ``retention``,
``archives``, ``subscriptions``, ``audit``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.engine.operation import awaited, operation
from holdfast.engine.units import Duration, seconds
from holdfast.features.archives.model import Archive, ArchiveCheck, ArchiveRun, Document
from holdfast.features.audit.model import Action, Anchor
from holdfast.features.events.model import Delivery, Subscription
from holdfast.features.payloads.model import EACH_KIND, PayloadRule
from holdfast.features.retention.model import Preview, Retention
from holdfast.features.tenants.model import Pin, Tenant
from holdfast.features.tokens.model import ApiToken
from holdfast.remote.handle import check_aware, with_policies
from holdfast.remote.http_requests import Steps, delete, get, post, put, segment, without_none
from holdfast.remote.runners import RemoteNamespace

_Archives = list[Archive]  # inside a class, ``list`` is an operation


class PayloadRules(RemoteNamespace):
    @operation
    def set(self, /, kind: str = EACH_KIND, **rule: Any) -> Steps[PayloadRule]:
        """Set a rule: ``client.payload_rules.set("pay", restricted=True, max_bytes="64KB")``."""
        return (yield from self._read(PayloadRule, put("/payload-rules", {"kind": kind, **without_none(**rule)})))

    aset = awaited(set)

    @operation
    def remove(self, kind: str = EACH_KIND, *, declared_by: str = "") -> Steps[None]:
        yield from self._request(delete("/payload-rules", kind=kind, declared_by=declared_by))

    aremove = awaited(remove)

    @operation
    def list(self) -> Steps[list[PayloadRule]]:
        return (yield from self._all(PayloadRule, "/payload-rules"))

    alist = awaited(list)


class Archives(RemoteNamespace):
    @operation
    def run(self) -> Steps[ArchiveRun]:
        """Archive what a retention policy wants archived and is due, as far as one request may."""
        return (yield from self._read(ArchiveRun, post("/archives/run")))

    arun = awaited(run)

    @operation
    def list(self) -> Steps[_Archives]:
        return (yield from self._all(Archive, "/archives"))

    alist = awaited(list)

    @operation
    def verify(self, archive: str) -> Steps[ArchiveCheck]:
        """Check the hashes, the jobs, the files and the seal of an archive."""
        return (yield from self._read(ArchiveCheck, post(f"/archives/{segment(archive)}/verify")))

    averify = awaited(verify)

    @operation
    def read(self, job_id: str) -> Steps[Document]:
        """An archived job: its rows by table, as they were stored."""
        return (yield from self._read(Document, get(f"/archives/jobs/{segment(job_id)}")))

    aread = awaited(read)


class RetentionPolicies(RemoteNamespace):
    @operation
    def set(
        self,
        *,
        kind: str | None = None,
        state: str | None = None,
        clean_after: Duration | None = None,
        purge_after: Duration | None = None,
        archive: bool = False,
    ) -> Steps[Retention]:
        """Set how long finished jobs are kept. Without a policy they are kept forever."""
        body = without_none(
            kind=kind,
            state=state,
            clean_after=_seconds(clean_after, "clean_after"),
            purge_after=_seconds(purge_after, "purge_after"),
            archive=archive or None,
        )
        return (yield from self._read(Retention, put("/retention", body)))

    aset = awaited(set)

    @operation
    def remove(self, *, kind: str | None = None, state: str | None = None) -> Steps[None]:
        yield from self._request(delete("/retention", kind=kind, state=state))

    aremove = awaited(remove)

    @operation
    def list(self) -> Steps[list[Retention]]:
        return (yield from self._all(Retention, "/retention"))

    alist = awaited(list)

    @operation
    def preview(self) -> Steps[_Previews]:
        """What the policies would remove now."""
        return (yield from self._all(Preview, "/retention/preview"))

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
        """Changes of the configuration, newest first."""
        check_aware(since, "since")
        query = {"subject": subject, "name": name, "actor": actor, "since": since}
        return (yield from self._limited(Action, "/audit/actions", limit, None, **query))

    aactions = awaited(actions)

    @operation
    def anchor(self) -> Steps[Anchor]:
        """The newest seal of the ledger. Store it where operators of the service cannot change it."""
        return Anchor.of((yield from self._read(str, get("/audit/anchor"))))

    aanchor = awaited(anchor)


class Subscriptions(RemoteNamespace):
    """Subscriptions make jobs from events."""

    @operation
    def set(self, /, name: str, on: str, **wanted: Any) -> Steps[Subscription]:
        """Add or change a subscription: ``client.subscriptions.set("receipts", "order.paid", kind="send_receipt")``."""
        body = {"name": name, "on": on, **without_none(**with_policies(wanted))}
        return (yield from self._read(Subscription, post("/subscriptions", body)))

    aset = awaited(set)

    @operation
    def get(self, name: str) -> Steps[Subscription]:
        return (yield from self._read(Subscription, get(_at(name))))

    aget = awaited(get)

    @operation
    def list(self) -> Steps[list[Subscription]]:
        return (yield from self._all(Subscription, "/subscriptions"))

    alist = awaited(list)

    @operation
    def pause(self, name: str, *, reason: str | None = None) -> Steps[Subscription]:
        return (yield from self._read(Subscription, post(f"{_at(name)}/pause", without_none(reason=reason))))

    apause = awaited(pause)

    @operation
    def resume(self, name: str, *, skip: bool = False) -> Steps[Subscription]:
        """Resume with the events that it missed, or (``skip``) without them."""
        return (yield from self._read(Subscription, post(f"{_at(name)}/resume", {"skip": skip})))

    aresume = awaited(resume)

    @operation
    def remove(self, name: str) -> Steps[None]:
        yield from self._request(delete(_at(name)))

    aremove = awaited(remove)

    @operation
    def deliveries(self, name: str, *, refused: bool = False, limit: int = 20) -> Steps[_Deliveries]:
        return (yield from self._items(Delivery, get(f"{_at(name)}/deliveries", refused=refused, limit=limit)))

    adeliveries = awaited(deliveries)


_Deliveries = list[Delivery]  # inside the classes, ``list`` is a method
_Previews = list[Preview]


def _at(name: str) -> str:
    return f"/subscriptions/{segment(name)}"


def _seconds(span: Duration | None, name: str) -> float | None:
    return None if span is None else seconds(span, name)


class Tenants(RemoteNamespace):
    """For operators of all tenants; a token of one tenant sees only that tenant."""

    @operation
    def set(self, /, name: str, **what: Any) -> Steps[Tenant]:
        return (yield from self._read(Tenant, put(f"/tenants/{segment(name)}", without_none(**what))))

    aset = awaited(set)

    @operation
    def get(self, name: str) -> Steps[Tenant]:
        return (yield from self._read(Tenant, get(f"/tenants/{segment(name)}")))

    aget = awaited(get)

    @operation
    def list(self) -> Steps[list[Tenant]]:
        return (yield from self._all(Tenant, "/tenants"))

    alist = awaited(list)

    @operation
    def remove(self, name: str) -> Steps[None]:
        yield from self._request(delete(f"/tenants/{segment(name)}"))

    aremove = awaited(remove)

    @operation
    def pin(self, login: str, tenant: str) -> Steps[Pin]:
        """Pin a database login to a tenant: it cannot act for another one."""
        return (yield from self._read(Pin, put(f"/tenants/pins/{segment(login)}", {"tenant": tenant})))

    apin = awaited(pin)

    @operation
    def unpin(self, login: str) -> Steps[None]:
        yield from self._request(delete(f"/tenants/pins/{segment(login)}"))

    aunpin = awaited(unpin)

    @operation
    def pins(self) -> Steps[Sequence[Pin]]:
        return (yield from self._all(Pin, "/tenants/pins"))

    apins = awaited(pins)


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """``text`` is the token itself, which is not shown again."""

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
        """Issue a token for your own tenant, with at most your own rights."""
        body: dict[str, Any] = without_none(name=name, roles=[*roles], scopes=[*scopes])
        if isinstance(expires, datetime):
            check_aware(expires, "expires")
            body |= without_none(expires_at=expires)
        elif expires is not None:
            body["expires_in"] = seconds(expires, "expires")
        return (yield from self._read(IssuedToken, post("/tokens", body)))

    aissue = awaited(issue)

    @operation
    def list(self, *, sessions: bool = False, limit: int = 50, before: str | None = None) -> Steps[list[ApiToken]]:
        """Tokens, newest first, also expired and revoked ones."""
        return (yield from self._limited(ApiToken, "/tokens", limit, before, sessions=sessions))

    alist = awaited(list)

    @operation
    def revoke(self, id: str) -> Steps[ApiToken]:
        return (yield from self._read(ApiToken, delete(f"/tokens/{segment(id)}")))

    arevoke = awaited(revoke)
