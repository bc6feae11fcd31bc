"""Subscriptions and consumers in the database: ports with the shared reads, and PostgreSQL.

A run of a subscription (``feed``) reads new events, creates a job for each match, and advances the cursor. This is one
transaction, so a crash leaves all of it or nothing. Many processes may run at the same time: one holds the
subscription, and the others continue with the next. The events are read before anything is written: on PostgreSQL, a
snapshot taken after a write would treat this transaction's own events as read.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from holdfast.engine.job import EVERY_TENANT, Enqueued, Event, JobSpec
from holdfast.features.events.model import (
    Cause,
    Consumer,
    Delivery,
    FeedResult,
    NewSubscription,
    SentEvent,
    Subscription,
    cause_id,
    event_key,
    job_for,
)
from holdfast.features.payloads.model import effective
from holdfast.features.schedules.model import Template
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Flow, Row, Rows, Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within
from holdfast.stores.requests import new_id

if TYPE_CHECKING:
    from holdfast.features.payloads.store import PostgresPayloadRules, SqlitePayloadRules
    from holdfast.features.schedules.store import TemplateStore
    from holdfast.stores.postgres.jobs import PostgresJobs
    from holdfast.stores.postgres.ledger import PostgresLedger
    from holdfast.stores.sqlite.jobs import SqliteJobs
    from holdfast.stores.sqlite.ledger import SqliteLedger


COLUMNS = Record.columns(Subscription, "s.")
COUNTED = 10_000
"""Limit of the count of unread events."""


_CURSOR = re.compile(r"a?[0-9;:,]{0,100000}")


class CursorReads(Reader):
    def _count_after(self, cursor: str | None, of_ledger: bool, most: int, tenant: str) -> Steps[int]:
        """The number of events after a cursor, up to ``most``."""
        wrong_kind = bool(cursor) and of_ledger == (cursor or "").startswith("a")
        if wrong_kind or not _CURSOR.fullmatch(cursor or "") or not tenant.strip():
            return most  # an invalid cursor, written with SQL: as if nothing was read
        if self.dialect.percent:  # PostgreSQL, where only the server can parse a cursor
            function = "events_after" if of_ledger else "app_events_after"
            text = f"select count(*) from {{{function}}}(:cursor, :most, :scope)"
            rows = yield from self._query(tenant, text, cursor=cursor, most=most, scope=tenant)
            return int(rows[0][0])
        table = "event" if of_ledger else "app_event"
        in_scope = "1 = 1" if tenant == EVERY_TENANT else "e.tenant = :tenant"
        text = f"select count(*) from (select 1 from {{{table}}} e where e.seq > :seq and {in_scope} limit :most)"
        rows = yield from self._query(
            tenant, text, seq=int((cursor or "0").lstrip("a").partition(";")[0] or 0), most=most
        )
        return int(rows[0][0])


class SubscriptionStore(CursorReads):
    """Reads subscriptions and creates jobs from events. The constructor sets the stores that this needs."""

    _jobs: PostgresJobs | SqliteJobs
    _ledger: PostgresLedger | SqliteLedger
    _templates: TemplateStore
    _payload_rules: PostgresPayloadRules | SqlitePayloadRules

    @abstractmethod
    def pause(self, name: str, reason: str | None, actor: str, tenant: str) -> Flow[bool]: ...

    @abstractmethod
    def resume(self, name: str, skip: bool, tenant: str, actor: str | None = None) -> Flow[bool]:
        """Resume a subscription; ``skip`` leaves out the events that arrived while it was paused."""

    @abstractmethod
    def remove(self, name: str, tenant: str, actor: str | None = None) -> Flow[bool]: ...

    @abstractmethod
    def feed(self, name: str, want: int, tenant: str) -> Flow[FeedResult]:
        """Read up to ``want`` events and create the jobs of those that match. Does nothing while another process feeds
        this subscription."""

    @abstractmethod
    def failed(self, id: str, failure: str, tenant: str) -> Flow[None]: ...

    @abstractmethod
    def active(self, tenant: str) -> Flow[list[tuple[str, str, str]]]: ...

    @cached_property
    def _subscription(self) -> Callable[[Row], Subscription]:
        return Record.decoder(Subscription, self.dialect.codec)

    @flow(writes=False)
    def get(self, name: str, tenant: str) -> Steps[Subscription | None]:
        # A subscription to the events of every tenant is stored with the tenant '*', so an equal comparison finds it.
        text = f"select {COLUMNS} from {{subscription}} s where s.name = :name and s.tenant = :scope"
        return (yield from self._record(Subscription, tenant, text, name=name, scope=tenant))

    @flow(writes=False)
    def deliveries(self, id: str, tenant: str, refused: bool, limit: int) -> Steps[list[Delivery]]:
        """Deliveries, newest first: all, or only refusals. There is an index for each of the two."""
        only = "and d.refusal is not null" if refused else ""
        text = (
            f"select {Record.columns(Delivery, 'd.')} from {{delivery}} d where d.subscription_id = :id {only}"
            f" and {within(tenant, 'd.tenant')} order by d.at desc, d.event desc limit {max(1, min(limit, 1000)):d}"
        )
        return (yield from self._records(Delivery, tenant, text, id=id))

    @flow(writes=False)
    def behind(self, cursor: str | None, of_ledger: bool, tenant: str) -> Steps[int]:
        """The number of events after a cursor, up to ``COUNTED``."""
        return (yield from self._count_after(cursor, of_ledger, COUNTED, tenant))

    def _feed(self, name: str, want: int, tenant: str) -> Steps[FeedResult]:
        subscription = yield from self._hold(name, tenant)
        if subscription is None:
            return FeedResult()
        events = yield from self._events(subscription, want)
        if not events:
            return FeedResult()
        matching = {event_key(event): event for event in events if subscription.wants(event)}
        if matching:
            for key in (yield from self._delivered(subscription, list(matching))):
                del matching[key]
        deliveries = (yield from self._create_jobs(subscription, matching)) if matching else []
        yield from self._advance(subscription, events[-1].cursor, deliveries)
        made = sum(delivery.job_id is not None for delivery in deliveries)
        return FeedResult(len(events), made, len(deliveries) - made)

    def _events(self, subscription: Subscription, want: int) -> Steps[Sequence[Event] | Sequence[SentEvent]]:
        read = self._ledger.read if subscription.of_ledger else self._ledger.read_sent
        return (yield from read(subscription.cursor, want, subscription.tenant).start())

    def _create_jobs(self, subscription: Subscription, events: dict[str, Event | SentEvent]) -> Steps[list[Delivery]]:
        """Enqueue the jobs of these events, tenant by tenant. Returns the result of each event."""
        cause_ids = {key: cause_id(event) for key, event in events.items()}
        ids = sorted({job_id for job_id in cause_ids.values() if job_id is not None})
        causes = (yield from self._causes(ids)) if ids else {}
        deliveries: list[Delivery] = []
        specs: dict[str, dict[str, JobSpec]] = {}
        templates = yield from self._templates_of(subscription, {event.tenant for event in events.values()})
        rules = yield from self._payload_rules.list(subscription.tenant).start()
        for key, event in events.items():
            cause = causes.get(cause_ids[key] or "", Cause())
            if subscription.job_options.get("of_queue", cause.queue) != cause.queue:
                continue  # does not match after all: events do not contain the queue of their job
            job = job_for(subscription, event, cause, new_id(), templates.get(event.tenant))
            if isinstance(job, JobSpec) and rules:  # checked here, because the store would refuse the whole batch
                refused = effective(rules, event.tenant, job.kind).refusal(job.kind, job.payload)
                job = job if refused is None else refused.code
            if isinstance(job, JobSpec):
                specs.setdefault(event.tenant, {})[key] = job
            else:
                deliveries.append(Delivery(subscription.id, key, event.tenant, None, job, cause.depth + 1))
        for tenant, jobs in specs.items():
            results = yield from self._enqueue(list(jobs.values()), templates.get(tenant), tenant).start()
            for (key, spec), result in zip(jobs.items(), results, strict=True):
                refusal = None if result.created else result.reason or "refused"
                job_id = spec.id if result.created else None
                deliveries.append(Delivery(subscription.id, key, tenant, job_id, refusal, spec.depth or 1))
        return deliveries

    def _templates_of(self, subscription: Subscription, tenants: set[str]) -> Steps[dict[str, Template]]:
        """Each tenant's version of the subscription's template."""
        templates: dict[str, Template] = {}
        if "template" not in subscription.job_options:
            return templates
        for tenant in sorted(tenants):
            template = yield from self._templates.get(subscription.job_options["template"], tenant).start()
            if template is not None:
                templates[tenant] = template
        return templates

    def _enqueue(self, specs: Sequence[JobSpec], template: Template | None, tenant: str) -> Flow[list[Enqueued]]:
        if template is None:
            return self._jobs.enqueue(specs, tenant)
        return self._templates.enqueue(specs, template.name, template.version, tenant)

    @abstractmethod
    def _hold(self, name: str, tenant: str) -> Steps[Subscription | None]:
        """Lock the subscription; None if another process holds it, or it is paused."""

    @abstractmethod
    def _causes(self, ids: Sequence[str]) -> Steps[dict[str, Cause]]:
        """The properties of these jobs that created jobs inherit."""

    @abstractmethod
    def _delivered(self, subscription: Subscription, events: Sequence[str]) -> Steps[set[str]]:
        """Those of these events that already have a delivery."""

    @abstractmethod
    def _advance(self, subscription: Subscription, cursor: str, deliveries: Sequence[Delivery]) -> Steps[None]:
        """Record the deliveries and move the cursor."""

    @flow(writes=False)
    def list(self, tenant: str) -> Steps[list[Subscription]]:
        text = f"select {COLUMNS} from {{subscription}} s where {within(tenant, 's.tenant')} order by s.name, s.tenant"
        return (yield from self._records(Subscription, tenant, text))

    @abstractmethod
    def set(self, new: NewSubscription, id: str, actor: str, tenant: str) -> Flow[bool]:
        """Create a subscription. One that exists is redefined and keeps its position: False."""


class ConsumerStore(CursorReads):
    @abstractmethod
    def reset(self, consumer: str, beginning: bool, tenant: str, actor: str | None = None) -> Flow[bool]:
        """Move a consumer to the beginning of the events, or to the end."""

    @abstractmethod
    def remove(self, consumer: str, tenant: str, actor: str | None = None) -> Flow[bool]: ...

    @flow(writes=False)
    def list(self, tenant: str) -> Steps[list[Consumer]]:
        text = (
            "select c.tenant, c.name, c.cursor, c.updated_at from {consumer} c"
            f" where {within(tenant, 'c.tenant')} order by c.name, c.tenant"
        )
        rows: Rows = yield from self._query(tenant, text)
        consumers = []
        for scope, name, cursor, updated_at in rows:
            of: Literal["jobs", "application"] = "application" if cursor.startswith("a") else "jobs"
            unread = yield from self._count_after(cursor, of == "jobs", COUNTED, scope)
            at = self.dialect.codec.time(updated_at)
            consumers.append(Consumer(scope, name, cursor, at, unread, unread == COUNTED, of))
        return consumers


class PostgresSubscriptions(Calls, SubscriptionStore):
    def __init__(
        self,
        schema: str,
        jobs: PostgresJobs,
        ledger: PostgresLedger,
        templates: TemplateStore,
        payload_rules: PostgresPayloadRules,
    ) -> None:
        super().__init__(schema)
        self._jobs, self._ledger, self._templates, self._payload_rules = jobs, ledger, templates, payload_rules

    @flow(single=True, writes=False)
    def active(self, tenant: str) -> Steps[list[tuple[str, str, str]]]:
        """One statement without a transaction: every worker polls this twice a second."""
        rows = yield self._call("active_subscriptions", "%s", tenant)
        return [(scope, name, str(id)) for scope, name, id in rows]

    @flow(single=True)
    def pause(self, name: str, reason: str | None, actor: str, tenant: str) -> Steps[bool]:
        return (yield from self._flag("pause_subscription", "%s, %s, %s, %s", name, reason, actor, tenant))

    @flow(single=True)
    def resume(self, name: str, skip: bool, tenant: str, actor: str | None = None) -> Steps[bool]:
        return (yield from self._flag("resume_subscription", "%s, %s, %s, %s", name, skip, tenant, actor))

    @flow(single=True)
    def remove(self, name: str, tenant: str, actor: str | None = None) -> Steps[bool]:
        return (yield from self._flag("delete_subscription", "%s, %s, %s", name, tenant, actor))

    @flow()
    def feed(self, name: str, want: int, tenant: str) -> Steps[FeedResult]:
        return (yield from self._feed(name, want, tenant))

    @flow(single=True)
    def failed(self, id: str, failure: str, tenant: str) -> Steps[None]:
        yield self._call("subscription_failed", "%s, %s, %s", id, failure, tenant)

    def _hold(self, name: str, tenant: str) -> Steps[Subscription | None]:
        return next(iter((yield from self._call_as(Subscription, "hold_subscription", "%s, %s", name, tenant))), None)

    def _causes(self, ids: Sequence[str]) -> Steps[dict[str, Cause]]:
        rows = yield Statement(
            f"select id::text, correlation_id, depth, queue, tags from {self.dialect.schema}job"
            " where id = any(%s::uuid[])",
            (list(ids),),
        )
        return {
            job_id: Cause(correlation or job_id, depth or 0, queue, tuple(tags))
            for job_id, correlation, depth, queue, tags in rows
        }

    def _delivered(self, subscription: Subscription, events: Sequence[str]) -> Steps[set[str]]:
        params = (subscription.id, list(events), subscription.tenant)
        rows = yield self._call("delivered", "%s, %s::text[], %s", *params)
        return {row[0] for row in rows}

    def _advance(self, subscription: Subscription, cursor: str, deliveries: Sequence[Delivery]) -> Steps[None]:
        results = json.dumps(
            [
                {"event": d.event, "tenant": d.tenant, "job_id": d.job_id, "refusal": d.refusal, "depth": d.depth}
                for d in deliveries
            ]
        )
        params = (subscription.id, subscription.cursor, cursor, results, subscription.tenant)
        yield self._call("advance_subscription", "%s, %s, %s, %s::json, %s", *params)

    @flow(single=True)
    def set(self, new: NewSubscription, id: str, actor: str, tenant: str) -> Steps[bool]:
        arguments = "%s, %s, %s, %s, %s, %s::json, %s::json, %s, %s, %s, %s, %s"
        match = None if new.match is None else json.dumps(new.match, sort_keys=True)
        what = (id, new.name, new.pattern, new.job_kind, new.kind, match, json.dumps(new.job_options, sort_keys=True))
        how = (new.max_depth, new.start == "beginning", new.declared)
        return (yield from self._flag("save_subscription", arguments, *what, *how, actor, tenant))


class PostgresConsumers(Calls, ConsumerStore):
    @flow(single=True)
    def reset(self, consumer: str, beginning: bool, tenant: str, actor: str | None = None) -> Steps[bool]:
        return (yield from self._flag("reset_consumer", "%s, %s, %s, %s", consumer, beginning, tenant, actor))

    @flow(single=True)
    def remove(self, consumer: str, tenant: str, actor: str | None = None) -> Steps[bool]:
        return (yield from self._flag("remove_consumer", "%s, %s, %s", consumer, tenant, actor))
