"""``app.subscriptions`` (events that create jobs), ``app.events`` (read the ledger) and ``app.consumers``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar, Unpack, cast

from holdfast.engine.declared import Help, Most, http, local_only
from holdfast.engine.hints import check_options
from holdfast.engine.job import EVERY_TENANT, Event
from holdfast.engine.names import NamedKind, check_name, kind_name, page_size
from holdfast.engine.operation import Emit, Items, Program, awaited, awaited_stream, operation, stream
from holdfast.engine.retry import Retry
from holdfast.engine.settlement import storable
from holdfast.errors import Conflict, EventsGone, InvalidSetting, NotFound
from holdfast.features.events.model import (
    DEFAULT_DEPTH,
    MAX_DEPTH,
    Consumer,
    Delivery,
    JobOptions,
    NewSubscription,
    SentEvent,
    Start,
    Subscription,
    check_pattern,
)
from holdfast.stores.flow import Flow, Steps, flow, run
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.port import Caller
from holdfast.stores.requests import new_id

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

E = TypeVar("E", Event, SentEvent)

Name = Annotated[str, Help("The subscription's name.", "NAME")]
ConsumerName = Annotated[str, Help("The consumer's name.", "NAME")]
Tenant = Annotated[str | None, Help("The tenant of the events.", http=False, cli=False)]
OWN_POSITION = "the position of a consumer is in it. client.events.list and follow return a cursor to continue from"

_Subscriptions = list[Subscription]  # inside the classes, `list` is an operation
_Consumers = list[Consumer]
_Deliveries = list[Delivery]


class Subscriptions(StoreNamespace):
    """Events that create jobs. ``tenant`` is the tenant of the events: the session's tenant by default, ``"*"`` for
    every tenant."""

    @operation
    @http(
        "PUT /subscriptions/{name}",
        "operate",
        tenant="one",
        example={"on": "order.paid", "kind": "send_receipt"},
    )
    def set(
        self,
        name: Name,
        on: Annotated[
            str,
            Help(
                "Event types: job.succeeded, job.*, order.paid, order.*; a|b matches either.",
                "PATTERN",
                longest=1_000,
                option="--on",
            ),
        ],
        kind: Annotated[str | None, Help("Job kind to enqueue for each event.", "KIND", option="--makes")] = None,
        *,
        of_kind: Annotated[
            str | None, Help("Only events of jobs of this kind; * matches any.", "NAME", option="--kind")
        ] = None,
        match: Annotated[
            dict[str, Any] | None, Help('Values that the event\'s data must have: \'{"country": "fr"}\'.')
        ] = None,
        start: Annotated[Start, Help("Where to start: now or beginning.", "WHEN", option="--from")] = "now",
        max_depth: Annotated[
            int, Help("Maximum length of a chain of jobs that create each other.", low=1, high=MAX_DEPTH)
        ] = DEFAULT_DEPTH,
        tenant: Tenant = None,
        **options: Unpack[JobOptions],
    ) -> Program[Subscription]:
        """Set a subscription: each matching event creates one job of a kind, or from a template. It replaces one of the
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
    @http("GET /subscriptions/{name}", "read", name="show_subscription")
    def get(self, name: Name, *, tenant: Tenant = None) -> Program[Subscription]:
        """Show a subscription: its events, its job and its position."""
        return (yield from self._get(name, self._scope(tenant)))

    aget = awaited(get)

    @operation
    @http("GET /subscriptions", "read")
    def list(self, *, tenant: Tenant = None) -> Program[_Subscriptions]:
        """List subscriptions by name."""
        return (yield from run(self._store.subscriptions.list(self._scope(tenant))))

    alist = awaited(list)

    @operation
    @http("POST /subscriptions/{name}/pause", "operate", tenant="one", example={"reason": "too many jobs"})
    def pause(
        self,
        name: Name,
        *,
        reason: Annotated[str | None, Help("The reason.", longest=2_000)] = None,
        tenant: Tenant = None,
    ) -> Program[Subscription]:
        """Pause a subscription. Events that arrive meanwhile are kept until it resumes."""
        scope = self._scope(tenant)
        flow = self._store.subscriptions.pause(_named(name), storable(reason), self._actor, scope)
        return (yield from self._changed(name, scope, flow))

    apause = awaited(pause)

    @operation
    @http("POST /subscriptions/{name}/resume", "operate", tenant="one", example={"skip": False})
    def resume(
        self,
        name: Name,
        *,
        skip: Annotated[bool, Help("Skip events that arrived while the subscription was paused.")] = False,
        tenant: Tenant = None,
    ) -> Program[Subscription]:
        """Resume a subscription, beginning with the events that arrived meanwhile."""
        scope = self._scope(tenant)
        flow = self._store.subscriptions.resume(_named(name), bool(skip), scope, self._actor)
        return (yield from self._changed(name, scope, flow))

    aresume = awaited(resume)

    @operation
    @http("DELETE /subscriptions/{name}", "operate", tenant="one")
    def remove(self, name: Name, *, tenant: Tenant = None) -> Program[None]:
        """Remove a subscription. Its jobs stay. A subscription declared in code returns with the next worker."""
        if not (yield from run(self._store.subscriptions.remove(_named(name), self._scope(tenant), self._actor))):
            raise _missing(name)

    aremove = awaited(remove)

    @operation
    @http("GET /subscriptions/{name}/behind", "read", name="subscription_behind", result="behind")
    def behind(self, name: Name, *, tenant: Tenant = None) -> Program[int]:
        """Count the events that a subscription has not read yet, up to 10,000."""
        one = yield from self._get(name, self._scope(tenant))
        return (yield from run(self._store.subscriptions.behind(one.cursor, one.of_ledger, one.tenant)))

    abehind = awaited(behind)

    @operation
    @http("GET /subscriptions/{name}/deliveries", "read", name="list_deliveries")
    def deliveries(
        self,
        name: Name,
        *,
        refused: Annotated[bool, Help("Only events that created no job.")] = False,
        limit: Most = 20,
        tenant: Tenant = None,
    ) -> Program[_Deliveries]:
        """List which events created which jobs, newest first."""
        one = yield from self._get(name, self._scope(tenant))
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


class Declarations:
    """The subscriptions that a program declares with ``app.on``. A worker writes them to the database when it
    starts."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str | None], NewSubscription] = {}

    def on(self, pattern: str, options: SubscriptionOptions) -> Callable[[D], D]:
        check_options(options, SubscriptionOptions.__annotations__)

        def declare(kind: D) -> D:
            if not hasattr(kind, "defaults"):
                raise InvalidSetting("@app.on(…) must be above @app.job()", code="invalid_subscription")
            defaults: Mapping[str, Any] = {k: v for k, v in kind.defaults.items() if k in _INHERITED and v != ()}
            job_options = {name: value for name, value in options.items() if name in JobOptions.__annotations__}
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
    @local_only(OWN_POSITION)
    def read(self, consumer: str, *, page: int = 100, tenant: str | None = None) -> Items[Event]:
        """The events of jobs that this consumer has not read, in commit order, until there are none.

        The position advances page by page, after the caller has taken the last event of a page. A consumer that stops
        before that gets the page again: at least once, never skipped.
        """
        yield from self._unread(consumer, self._store.ledger.read, page, tenant or self._tenant)

    aread = awaited_stream(read)

    @stream
    @local_only(OWN_POSITION)
    def read_sent(self, consumer: str, *, page: int = 100, tenant: str | None = None) -> Items[SentEvent]:
        """The same for events that applications send (``app.send_event``). A consumer reads one kind or the other."""
        yield from self._unread(consumer, self._store.ledger.read_sent, page, tenant or self._tenant)

    aread_sent = awaited_stream(read_sent)

    def _unread(
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


class Consumers(StoreNamespace):
    """The named readers of events (``app.events.read``), and their positions."""

    @operation
    @http("GET /consumers", "read")
    def list(self) -> Program[_Consumers]:
        """List event consumers with their positions and how far each is behind."""
        return (yield from run(self._store.consumers.list(self._tenant)))

    alist = awaited(list)

    @operation
    @http("POST /consumers/{name}/reset", "operate", example={"to": "now"})
    def reset(
        self,
        name: ConsumerName,
        to: Annotated[Start, Help("New position: beginning or now.", "WHEN")] = "beginning",
    ) -> Program[None]:
        """Move a consumer to the beginning of the ledger, or to now."""
        flow = self._store.consumers.reset(name, to == "beginning", self._tenant, self._actor)
        if not (yield from run(flow)):
            raise _no_consumer(name)

    areset = awaited(reset)

    @operation
    @http("DELETE /consumers/{name}", "operate")
    def remove(self, name: ConsumerName) -> Program[None]:
        """Remove a consumer and its position. The next read under its name starts again."""
        if not (yield from run(self._store.consumers.remove(name, self._tenant, self._actor))):
            raise _no_consumer(name)

    aremove = awaited(remove)


@flow(writes=False)
def check_events_gone(store: Store, cursor: str, tenant: str) -> Steps[None]:
    """Raise ``EventsGone`` if retention purged unread events after this cursor (ADR 0002). Call it after reading the
    page from the cursor, so that no purge can happen in between. Consumers and subscriptions, whose cursor is in the
    database, hold back a purge; readers that keep their own cursor cannot."""
    through = yield from store.ledger.gone(cursor, tenant).start()
    if through is None:
        return
    end = yield from store.ledger.end(tenant).start()
    raise EventsGone(
        f"unread events up to number {through} are gone: retention has purged their jobs",
        fix="Read the current state again and follow from this error's cursor, or skip gaps.",
        cursor=end,
        through=through,
    )


def _checked_scope(tenant: str) -> str:
    return tenant if tenant == EVERY_TENANT else check_name(tenant, "tenant")


def _no_consumer(name: str) -> NotFound:
    return NotFound(f"no consumer {name} in this tenant", code="consumer_not_found")


def _named(name: str) -> str:
    return check_name(name, "subscription")


def _missing(name: str) -> NotFound:
    return NotFound(
        f"no subscription {name} in this tenant",
        code="subscription_not_found",
        fix="List them: holdfast subscriptions list",
    )
