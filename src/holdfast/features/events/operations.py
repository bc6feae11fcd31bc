"""``app.events`` (read the ledger, manage consumers) and ``app.subscriptions`` (events that create jobs)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, TypeVar, Unpack, cast

from holdfast.engine.job import EVERY_TENANT, Event
from holdfast.engine.names import NamedKind, check_name, kind_name, page_size
from holdfast.engine.operation import Emit, Items, Program, awaited, awaited_stream, operation, stream
from holdfast.engine.retry import Retry
from holdfast.engine.settlement import storable
from holdfast.errors import Conflict, InvalidInput, InvalidSetting, NotFound
from holdfast.features.events.model import (
    DEFAULT_DEPTH,
    Consumer,
    Delivery,
    JobOptions,
    NewSubscription,
    SentEvent,
    Start,
    Subscription,
    check_pattern,
)
from holdfast.stores.flow import Flow, run
from holdfast.stores.ids import new_id
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.port import Caller

E = TypeVar("E", Event, SentEvent)

_Subscriptions = list[Subscription]  # inside the classes, `list` is an operation
_Consumers = list[Consumer]
_Deliveries = list[Delivery]


class Subscriptions(StoreNamespace):
    """Events that create jobs. ``tenant`` is the tenant of the events: the session's tenant by default, ``"*"`` for
    every tenant."""

    @operation
    def set(
        self,
        name: str,
        on: str,
        kind: str | None = None,
        *,
        of_kind: str | None = None,
        match: dict[str, Any] | None = None,
        start: Start = "now",
        max_depth: int = DEFAULT_DEPTH,
        tenant: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Program[Subscription]:
        """Create one job of ``kind``, or from a ``template``, for each matching event. Replaces a subscription of the
        same name, which keeps its position.

        ``on`` is a pattern: ``job.succeeded``, ``job.*``, ``order.paid``, ``order.*``, alternatives between ``|``.
        ``of_kind`` is the kind of the job that the event is about, ``match`` what its data must contain. A new
        subscription starts with events from now on, or at the ``beginning`` of the ledger. ``max_depth`` limits chains
        of jobs that create jobs. The options apply to the created jobs.
        """
        scope, template = self._scope(tenant), options.get("template")
        if (kind is None) == (template is None):
            raise InvalidSetting("a subscription needs either a kind or a template", code="invalid_subscription")
        job_kind = kind if kind is not None else (yield from self._kind(check_name(template, "template"), scope))
        new = NewSubscription.of(
            name, on, job_kind, kind=of_kind, match=match, start=start, max_depth=max_depth, options=options
        )
        yield from run(self._store.subscriptions.set(new, new_id(), self._actor, scope))
        return (yield from self._get(name, scope))

    aset = awaited(set)

    @operation
    def get(self, name: str, *, tenant: str | None = None) -> Program[Subscription]:
        """The subscription, or ``NotFound``."""
        return (yield from self._get(name, self._scope(tenant)))

    aget = awaited(get)

    @operation
    def list(self, *, tenant: str | None = None) -> Program[_Subscriptions]:
        """Subscriptions by name; with ``"*"`` those of every tenant."""
        return (yield from run(self._store.subscriptions.list(self._scope(tenant))))

    alist = awaited(list)

    @operation
    def pause(self, name: str, *, reason: str | None = None, tenant: str | None = None) -> Program[Subscription]:
        """Create no more jobs. Events that arrive meanwhile are kept until it is resumed."""
        scope = self._scope(tenant)
        flow = self._store.subscriptions.pause(_named(name), storable(reason), self._actor, scope)
        return (yield from self._changed(name, scope, flow))

    apause = awaited(pause)

    @operation
    def resume(self, name: str, *, skip: bool = False, tenant: str | None = None) -> Program[Subscription]:
        """Create jobs again, beginning with the events that arrived while it was paused; ``skip`` leaves those out."""
        scope = self._scope(tenant)
        flow = self._store.subscriptions.resume(_named(name), bool(skip), scope, self._actor)
        return (yield from self._changed(name, scope, flow))

    aresume = awaited(resume)

    @operation
    def remove(self, name: str, *, tenant: str | None = None) -> Program[None]:
        """Remove a subscription. Jobs that it has created stay."""
        if not (yield from run(self._store.subscriptions.remove(_named(name), self._scope(tenant), self._actor))):
            raise _missing(name)

    aremove = awaited(remove)

    @operation
    def behind(self, one: Subscription) -> Program[int]:
        """The number of events that it has not read yet, counted up to 10,000."""
        _check_subscription(one)
        return (yield from run(self._store.subscriptions.behind(one.cursor, one.of_ledger, one.tenant)))

    abehind = awaited(behind)

    @operation
    def deliveries(self, one: Subscription, *, refused: bool = False, limit: int = 20) -> Program[_Deliveries]:
        """Which events created which jobs, newest first; with ``refused`` only events that created none."""
        _check_subscription(one)
        return (yield from run(self._store.subscriptions.deliveries(one.id, one.tenant, refused, page_size(limit))))

    adeliveries = awaited(deliveries)

    def _scope(self, tenant: str | None) -> str:
        return _checked_scope(tenant or self._tenant)

    def _kind(self, template: str, scope: str) -> Program[str]:
        """The current kind of a template."""
        stored = yield from run(self._store.templates.get(template, scope))
        if stored is None or stored.removed:
            raise NotFound(f"no template {template} in this tenant", code="template_not_found")
        return stored.kind

    def _changed(self, name: str, scope: str, flow: Flow[bool]) -> Program[Subscription]:
        if not (yield from run(flow)):
            raise _missing(name)
        return (yield from self._get(name, scope))

    def _get(self, name: str, scope: str) -> Program[Subscription]:
        subscription = yield from run(self._store.subscriptions.get(name, scope))
        if subscription is None:
            raise _missing(name)
        return subscription


class SubscriptionOptions(JobOptions, total=False):
    """The options of ``app.on``. Options of jobs default to those of their kind."""

    kind: str | NamedKind
    match: dict[str, Any]
    name: str
    start: Start
    max_depth: int
    tenant: str


class Declarable(Protocol):
    """The properties of a kind that ``app.on`` uses."""

    @property
    def name(self) -> str: ...
    @property
    def defaults(self) -> Mapping[str, Any]: ...
    @property
    def parameters(self) -> Collection[str]: ...


D = TypeVar("D", bound=Declarable)

_SUBSCRIPTION_OPTIONS = frozenset({"kind", "match", "name", "start", "max_depth", "tenant"})


class Declarations:
    """The subscriptions that a program declares with ``app.on``. A worker writes them to the database when it
    starts."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str | None], NewSubscription] = {}

    def on(self, pattern: str, options: SubscriptionOptions) -> Callable[[D], D]:
        def declare(kind: D) -> D:
            if not hasattr(kind, "defaults"):
                raise InvalidSetting("@app.on(…) must be above @app.job()", code="invalid_subscription")
            defaults: Mapping[str, Any] = {k: v for k, v in kind.defaults.items() if k in _INHERITED and v != ()}
            job_options: Mapping[str, Any] = {k: v for k, v in options.items() if k not in _SUBSCRIPTION_OPTIONS}
            if "payload" not in job_options and "event" not in kind.parameters:
                raise InvalidSetting(
                    f"{kind.name} has no event parameter",
                    code="invalid_subscription",
                    fix="Add a parameter named event to the handler, or pass a payload to app.on.",
                )
            if isinstance(defaults.get("retry"), Retry):  # errors by type stay with the kind, where the handler runs
                policy = defaults["retry"]
                defaults = {**defaults, "retry": Retry(policy.max_attempts, policy.backoff, policy.max_crashes)}
            new = NewSubscription.of(
                options.get("name") or f"{kind.name} on {check_pattern(pattern)}"[:100],
                pattern,
                kind.name,
                kind=kind_name(options.get("kind")),
                match=options.get("match"),
                start=options.get("start", "now"),
                max_depth=options.get("max_depth", DEFAULT_DEPTH),
                options=cast(JobOptions, {**defaults, **job_options}),
                declared=True,
            )
            key = (new.name, options.get("tenant"))
            if key in self._known:
                raise InvalidSetting(
                    f"subscription {new.name!r} already exists",
                    code="duplicate_subscription",
                    fix="Pass a name to one of them.",
                )
            self._known[key] = new
            return kind

        return declare

    def sync(self, caller: Caller) -> None:
        """Write the declared subscriptions to the database. One that exists keeps its position."""
        for (_, tenant), new in self._known.items():
            scope = _checked_scope(tenant or caller.tenant)
            caller.run(caller.store.subscriptions.set(new, new_id(), caller.actor, scope))


_INHERITED = frozenset({"queue", "executor", "priority", "tags", "retry", "retry_as"})


class Events(StoreNamespace):
    """The events of jobs (the ledger) and those that applications send, read by named consumers. The database stores
    the position of each consumer."""

    @stream
    def read(self, consumer: str, *, page: int = 100, tenant: str | None = None) -> Items[Event]:
        """The events of jobs that this consumer has not read, in commit order, until there are none.

        The position advances page by page, after the caller has taken the last event of a page. A consumer that stops
        before that gets the page again: at least once, never skipped.
        """
        yield from self._read(consumer, self._store.ledger.read, page, tenant or self._tenant)

    aread = awaited_stream(read)

    @stream
    def read_sent(self, consumer: str, *, page: int = 100, tenant: str | None = None) -> Items[SentEvent]:
        """The same for events that applications send (``app.send_event``). A consumer reads one kind or the other."""
        yield from self._read(consumer, self._store.ledger.read_sent, page, tenant or self._tenant)

    aread_sent = awaited_stream(read_sent)

    @operation
    def consumers(self) -> Program[_Consumers]:
        """All consumers, with their positions."""
        return (yield from run(self._store.consumers.list(self._tenant)))

    aconsumers = awaited(consumers)

    @operation
    def reset_consumer(self, name: str, to: Start = "beginning") -> Program[None]:
        """Let a consumer read everything again, or (``now``) only events from now on."""
        flow = self._store.consumers.reset(name, to == "beginning", self._tenant, self._actor)
        yield from self._consumer(name, flow)

    areset_consumer = awaited(reset_consumer)

    @operation
    def remove_consumer(self, name: str) -> Program[None]:
        """Remove a consumer with its position. Reading under its name starts from the beginning."""
        yield from self._consumer(name, self._store.consumers.remove(name, self._tenant, self._actor))

    aremove_consumer = awaited(remove_consumer)

    def _read(
        self, consumer: str, read: Callable[[str | None, int, str], Flow[list[E]]], page: int, tenant: str
    ) -> Items[E]:
        ledger = self._store.ledger
        position = yield from run(ledger.cursor(consumer, tenant))
        while batch := (yield from run(read(position, page, tenant))):
            for event in batch:
                yield Emit(event)
            if not (yield from run(ledger.save_cursor(consumer, batch[-1].cursor, position, tenant))):
                raise Conflict(f"another process is reading as consumer {consumer!r}", code="consumer_moved")
            position = batch[-1].cursor

    def _consumer(self, name: str, flow: Flow[bool]) -> Program[None]:
        if not (yield from run(flow)):
            raise NotFound(f"no consumer {name} in this tenant", code="consumer_not_found")


def _checked_scope(tenant: str) -> str:
    return tenant if tenant == EVERY_TENANT else check_name(tenant, "tenant")


def _check_subscription(one: object) -> None:
    if not isinstance(one, Subscription):
        raise InvalidInput(f"expected a subscription, got {type(one).__name__}", code="invalid_input")


def _named(name: str) -> str:
    return check_name(name, "subscription")


def _missing(name: str) -> NotFound:
    return NotFound(
        f"no subscription {name} in this tenant",
        code="subscription_not_found",
        fix="List them: holdfast subscriptions list",
    )
