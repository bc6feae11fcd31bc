"""Subscriptions as ``app.subscriptions``, consumers as ``app.consumers``: make, look, pause, go on, remove."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, TypeVar, Unpack, cast

from holdfast.engine.names import check_name
from holdfast.engine.retry import Retry
from holdfast.engine.settlement import storable
from holdfast.errors import InvalidSetting, NotFound
from holdfast.features.events.model import (
    DEPTH,
    Consumer,
    Delivery,
    JobOptions,
    Start,
    Subscribing,
    Subscription,
    check_pattern,
    check_scope,
)
from holdfast.stores.flow import Flow
from holdfast.stores.ids import new_id
from holdfast.stores.port import Caller

_Subscriptions = list[Subscription]  # inside the classes the word is a method
_Consumers = list[Consumer]
_Deliveries = list[Delivery]


class Subscriptions:
    """``tenant`` is whose events are meant: the app's own, unless said otherwise; ``"*"`` is every tenant's."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def create(
        self,
        name: str,
        on: str,
        kind: str | None = None,
        *,
        of_kind: str | None = None,
        match: dict[str, Any] | None = None,
        start: Start = "now",
        max_depth: int = DEPTH,
        tenant: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Subscription:
        """Have each event that fits make one job of ``kind``, or from a ``template``.

        ``on`` is a pattern: ``job.succeeded``, ``job.*``, ``order.paid``, ``order.*``, alternatives between ``|``.
        ``of_kind`` is the kind of the job that the event is about, ``match`` what its data must say. It starts with
        what happens from now on, or at the ``beginning`` of all there is. ``max_depth`` bounds how long a chain of jobs
        that make jobs can become. The options say how the jobs are enqueued.
        """
        return self._caller.run(self._create(name, on, kind, of_kind, match, start, max_depth, tenant, options))

    def save(self, new: Subscribing, tenant: str | None = None) -> bool:
        """Put down what a program declares; whether it is new."""
        caller = self._caller
        return caller.run(caller.store.subscriptions.set(new, new_id(), caller.actor, self._scope(tenant)))

    def get(self, name: str, *, tenant: str | None = None) -> Subscription | None:
        return self._caller.run(self._caller.store.subscriptions.get(name, self._scope(tenant)))

    def list(self, *, tenant: str | None = None) -> _Subscriptions:
        """By their names; with ``"*"`` those of every tenant."""
        return self._caller.run(self._caller.store.subscriptions.list(self._scope(tenant)))

    def pause(self, name: str, *, reason: str | None = None, tenant: str | None = None) -> Subscription:
        """Make no more jobs; what happens meanwhile is kept for when it goes on."""
        caller, scope = self._caller, self._scope(tenant)
        flow = caller.store.subscriptions.pause(_named(name), storable(reason), caller.actor, scope)
        return self._changed(name, scope, flow)

    def resume(self, name: str, *, skip: bool = False, tenant: str | None = None) -> Subscription:
        """Go on with what was missed; with ``skip`` without it."""
        scope = self._scope(tenant)
        return self._changed(
            name, scope, self._caller.store.subscriptions.resume(_named(name), skip, scope, self._caller.actor)
        )

    def delete(self, name: str, *, tenant: str | None = None) -> None:
        scope = self._scope(tenant)
        if not self._caller.run(self._caller.store.subscriptions.remove(_named(name), scope, self._caller.actor)):
            raise _missing(name)

    def behind(self, one: Subscription) -> int:
        """How many events it has not looked at; counted up to 10,000."""
        return self._caller.run(self._caller.store.subscriptions.behind(one.cursor, one.of_ledger, one.tenant))

    def deliveries(self, one: Subscription, *, refused: bool = False, limit: int = 20) -> _Deliveries:
        """What became of events, the newest first; with ``refused`` only those that made no job."""
        return self._caller.run(self._caller.store.subscriptions.deliveries(one.id, one.tenant, refused, limit))

    def _create(
        self,
        name: str,
        on: str,
        kind: str | None,
        of_kind: str | None,
        match: dict[str, Any] | None,
        start: Start,
        max_depth: int,
        tenant: str | None,
        options: JobOptions,
    ) -> Flow[Subscription]:
        caller, scope = self._caller, self._scope(tenant)
        makes = self._kind(kind, options.get("template"), scope)
        new = Subscribing.of(
            name, on, makes, kind=of_kind, match=match, start=start, max_depth=max_depth, options=options
        )
        caller.run(caller.store.subscriptions.set(new, new_id(), caller.actor, scope))
        return _present(caller, name, scope)

    def _scope(self, tenant: str | None) -> str:
        return check_scope(tenant or self._caller.tenant)

    def _kind(self, kind: str | None, template: str | None, scope: str) -> str:
        """What it makes: of a template, what that is of now."""
        if (kind is None) == (template is None):
            raise InvalidSetting("a subscription makes jobs of a kind or from a template", code="invalid_subscription")
        if kind is not None:
            return kind
        found = self._caller.run(self._caller.store.templates.get(check_name(template, "template"), scope))
        if found is None or found.removed:
            raise NotFound(f"there is no template {template} in this tenant", code="template_not_found")
        return found.kind

    def _changed(self, name: str, scope: str, flow: Flow[bool]) -> Subscription:
        if not self._caller.run(flow):
            raise _missing(name)
        return self._caller.run(_present(self._caller, name, scope))


class Following(JobOptions, total=False):
    """What ``app.on`` takes besides the pattern; the options of jobs are those of their kind unless said here."""

    kind: str
    match: dict[str, Any]
    name: str
    start: Start
    max_depth: int
    tenant: str


class Declarable(Protocol):
    """A kind, as far as it matters here."""

    @property
    def name(self) -> str: ...
    @property
    def defaults(self) -> Mapping[str, Any]: ...
    @property
    def parameters(self) -> Collection[str]: ...


D = TypeVar("D", bound=Declarable)

_ABOUT = frozenset({"kind", "match", "name", "start", "max_depth", "tenant"})


class Declarations:
    """What a program declares with ``app.on``, to be put down when a worker of it starts."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str | None], Subscribing] = {}

    def on(self, pattern: str, wanted: Following) -> Callable[[D], D]:
        def declare(kind: D) -> D:
            if not hasattr(kind, "defaults"):
                raise InvalidSetting("write @app.on(…) above @app.job()", code="invalid_subscription")
            own: Mapping[str, Any] = {k: v for k, v in kind.defaults.items() if k in _INHERITED and v != ()}
            given: Mapping[str, Any] = {k: v for k, v in wanted.items() if k not in _ABOUT}
            if "payload" not in given and "event" not in kind.parameters:
                raise InvalidSetting(
                    f"{kind.name} takes no event",
                    code="invalid_subscription",
                    fix="Give the handler a parameter called event, or app.on a payload.",
                )
            if isinstance(own.get("retry"), Retry):  # errors by type stay with the kind, where the handler runs
                policy = own["retry"]
                own = {**own, "retry": Retry(policy.max_attempts, policy.backoff, policy.max_crashes)}
            new = Subscribing.of(
                wanted.get("name") or f"{kind.name} on {check_pattern(pattern)}"[:100],
                pattern,
                kind.name,
                kind=wanted.get("kind"),
                match=wanted.get("match"),
                start=wanted.get("start", "now"),
                max_depth=wanted.get("max_depth", DEPTH),
                options=cast(JobOptions, {**own, **given}),
                declared=True,
            )
            key = (new.name, wanted.get("tenant"))
            if key in self._known:
                raise InvalidSetting(
                    f"there is a subscription {new.name!r} already",
                    code="duplicate_subscription",
                    fix="Give one of them a name.",
                )
            self._known[key] = new
            return kind

        return declare

    def put_down(self, subscriptions: Subscriptions) -> None:
        """Each once, however many processes start: one that is there keeps its place."""
        for (_, tenant), new in self._known.items():
            subscriptions.save(new, tenant)


_INHERITED = frozenset({"queue", "priority", "tags", "retry", "retry_as"})


class Consumers:
    """Who reads events with a place that is kept, and how far each has come."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def list(self) -> _Consumers:
        return self._caller.run(self._caller.store.consumers.list(self._caller.tenant))

    def reset(self, name: str, to: Start = "beginning") -> None:
        """Have it read everything again, or (``now``) nothing of what there is."""
        self._do(
            name, self._caller.store.consumers.reset(name, to == "beginning", self._caller.tenant, self._caller.actor)
        )

    def remove(self, name: str) -> None:
        """Forget its place. Reading under its name begins anew."""
        self._do(name, self._caller.store.consumers.remove(name, self._caller.tenant, self._caller.actor))

    def _do(self, name: str, flow: Flow[bool]) -> None:
        if not self._caller.run(flow):
            raise NotFound(f"there is no consumer {name} in this tenant", code="consumer_not_found")


def _present(caller: Caller, name: str, scope: str) -> Flow[Subscription]:
    found: Flow[Any] = caller.store.subscriptions.get(name, scope)
    return found


def _named(name: str) -> str:
    return check_name(name, "subscription")


def _missing(name: str) -> NotFound:
    return NotFound(
        f"there is no subscription {name} in this tenant",
        code="subscription_not_found",
        fix="See: holdfast subscriptions list",
    )
