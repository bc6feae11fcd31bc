"""Subscriptions and consumers in the database: ports, shared reads and PostgreSQL.

The look of a subscription: read what is new, make a job of each event it wants, move its place on.

One transaction, so a crash leaves all of it or nothing (DP-13). Many processes may look at once: one has the
subscription, the others go on to the next. The events are read before anything is written: where transactions have
ids, a snapshot taken later would count what this one writes as seen.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol

from holdfast.engine.job import EVERY_TENANT, Enqueued, Event, JobSpec
from holdfast.errors import Conflict
from holdfast.features.events.model import (
    Behind,
    Consumer,
    Delivery,
    Fed,
    SentEvent,
    Subscribing,
    Subscription,
    cause_of,
    job_of,
    key_of,
)
from holdfast.features.payloads.model import effective
from holdfast.features.schedules.model import Template
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Flow, Row, Rows, Statement, Steps, flow
from holdfast.stores.ids import new_id
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within

if TYPE_CHECKING:
    from holdfast.features.payloads.store import PayloadRuleStore
    from holdfast.features.schedules.store import TemplateStore
    from holdfast.stores.port import JobStore, LedgerStore


class SubscriptionStore(Protocol):
    def pause(self, name: str, reason: str | None, actor: str, tenant: str) -> Flow[bool]: ...

    def resume(self, name: str, skip: bool, tenant: str, actor: str | None = None) -> Flow[bool]:
        """With ``skip`` without what it has missed."""
        ...

    def remove(self, name: str, tenant: str, actor: str | None = None) -> Flow[bool]: ...

    def feed(self, name: str, want: int, tenant: str) -> Flow[Fed]:
        """Read up to ``want`` events and make the jobs of those it wants; nothing while somebody else does."""
        ...

    def failed(self, id: str, failure: str, tenant: str) -> Flow[None]: ...

    def get(self, name: str, tenant: str) -> Flow[Subscription | None]: ...

    def active(self, tenant: str) -> Flow[list[tuple[str, str, str]]]: ...

    def deliveries(self, id: str, tenant: str, refused: bool, limit: int) -> Flow[list[Delivery]]: ...

    def behind(self, cursor: str | None, of_ledger: bool, tenant: str) -> Flow[int]: ...

    def set(self, new: Subscribing, id: str, actor: str, tenant: str) -> Flow[bool]:
        """Whether it is new. A declared one that is there gets another definition, and keeps its place."""
        ...

    def list(self, tenant: str) -> Flow[list[Subscription]]: ...


class ConsumerStore(Protocol):
    def reset(self, consumer: str, beginning: bool, tenant: str, actor: str | None = None) -> Flow[bool]:
        """Have a consumer read all of it again, or nothing of what there is."""
        ...

    def remove(self, consumer: str, tenant: str, actor: str | None = None) -> Flow[bool]: ...

    def list(self, tenant: str) -> Flow[list[Consumer]]: ...


COLUMNS = Record.columns(Subscription, "s.")
COUNTED = 10_000
"""How far a consumer is behind is counted up to here."""


_CURSOR = re.compile(r"a?[0-9;:,]{0,100000}")


class PlaceReads(Reader):
    def _past(self, cursor: str | None, of_ledger: bool, most: int, tenant: str) -> Steps[int]:
        other = bool(cursor) and of_ledger == (cursor or "").startswith("a")
        if other or not _CURSOR.fullmatch(cursor or "") or not tenant.strip():
            return most  # written by hand, and of no use: as if it had read nothing
        if self.dialect.percent:  # a server whose cursors only it can read
            function = "events_after" if of_ledger else "app_events_after"
            text = f"select count(*) from {{{function}}}(:cursor, :most, :scope)"
            rows = yield from self._ask(tenant, text, cursor=cursor, most=most, scope=tenant)
            return int(rows[0][0])
        table = "event" if of_ledger else "app_event"
        mine = "1 = 1" if tenant == EVERY_TENANT else "e.tenant = :tenant"
        text = f"select count(*) from (select 1 from {{{table}}} e where e.seq > :seq and {mine} limit :most)"
        rows = yield from self._ask(
            tenant, text, seq=int((cursor or "0").lstrip("a").partition(";")[0] or 0), most=most
        )
        return int(rows[0][0])


class SubscriptionReads(PlaceReads):
    """Reads subscriptions and makes jobs of events. The constructor sets the parts that it reads and enqueues with."""

    _jobs: JobStore
    _ledger: LedgerStore
    _templates: TemplateStore
    _payload_rules: PayloadRuleStore

    @cached_property
    def _one(self) -> Callable[[Row], Subscription]:
        return Record.decoder(Subscription, self.dialect.codec)

    @flow(writes=False)
    def get(self, name: str, tenant: str) -> Steps[Subscription | None]:
        # One for every tenant is kept under '*', so this compares even then.
        text = f"select {COLUMNS} from {{subscription}} s where s.name = :name and s.tenant = :scope"
        rows = yield from self._ask(tenant, text, name=name, scope=tenant)
        return self._one(rows[0]) if rows else None

    @flow(writes=False)
    def deliveries(self, id: str, tenant: str, refused: bool, limit: int) -> Steps[list[Delivery]]:
        """The newest first; only refusals, or all of them. Each has its index."""
        only = "and d.refusal is not null" if refused else ""
        text = (
            f"select {Record.columns(Delivery, 'd.')} from {{delivery}} d where d.subscription_id = :id {only}"
            f" and {within(tenant, 'd.tenant')} order by d.at desc, d.event desc limit {max(1, min(limit, 1000)):d}"
        )
        rows = yield from self._ask(tenant, text, id=id)
        decode = Record.decoder(Delivery, self.dialect.codec)
        return [decode(row) for row in rows]

    @flow(writes=False)
    def behind(self, cursor: str | None, of_ledger: bool, tenant: str) -> Steps[int]:
        """How many events are past a place; no more than so many are counted."""
        return (yield from self._past(cursor, of_ledger, COUNTED, tenant))

    def _feed(self, name: str, want: int, tenant: str) -> Steps[Fed]:
        whose = yield from self._hold(name, tenant)
        if whose is None:
            return Fed()
        events = yield from self._events(whose, want)
        if not events:
            return Fed()
        wanted = {key_of(event): event for event in events if whose.wants(event)}
        if wanted:
            for key in (yield from self._delivered(whose, list(wanted))):
                del wanted[key]
        deliveries = (yield from self._make(whose, wanted)) if wanted else []
        yield from self._advance(whose, events[-1].cursor, deliveries)
        made = sum(each.job_id is not None for each in deliveries)
        return Fed(len(events), made, len(deliveries) - made)

    def _events(self, whose: Subscription, want: int) -> Steps[Sequence[Event] | Sequence[SentEvent]]:
        read = self._ledger.read if whose.of_ledger else self._ledger.read_sent
        return (yield from read(whose.cursor, want, whose.tenant).start())

    def _make(self, whose: Subscription, wanted: dict[str, Event | SentEvent]) -> Steps[list[Delivery]]:
        """Enqueue, tenant by tenant; what becomes of each event."""
        causes = {key: cause_of(event) for key, event in wanted.items()}
        ids = sorted({cause for cause in causes.values() if cause is not None})
        known = (yield from self._behind(ids)) if ids else {}
        deliveries: list[Delivery] = []
        specs: dict[str, dict[str, JobSpec]] = {}
        templates = yield from self._templates_of(whose, {event.tenant for event in wanted.values()})
        rules = yield from self._payload_rules.list(whose.tenant).start()
        for key, event in wanted.items():
            behind = known.get(causes[key] or "", Behind())
            if whose.job_options.get("of_queue", behind.queue) != behind.queue:
                continue  # not wanted: it is only now that the job is looked at
            made = job_of(whose, event, behind, new_id(), templates.get(event.tenant))
            if isinstance(made, JobSpec) and rules:  # the store would refuse all the others with it
                refused = effective(rules, event.tenant, made.kind).objection(made.kind, made.payload)
                made = made if refused is None else refused.code
            if isinstance(made, JobSpec):
                specs.setdefault(event.tenant, {})[key] = made
            else:
                deliveries.append(Delivery(whose.id, key, event.tenant, None, made, behind.depth + 1))
        for tenant, jobs in specs.items():
            answers = yield from self._enqueue(list(jobs.values()), templates.get(tenant), tenant).start()
            for (key, spec), answer in zip(jobs.items(), answers, strict=True):
                refusal = None if answer.created else answer.reason or "refused"
                job_id = spec.id if answer.created else None
                deliveries.append(Delivery(whose.id, key, tenant, job_id, refusal, spec.depth or 1))
        return deliveries

    def _templates_of(self, whose: Subscription, tenants: set[str]) -> Steps[dict[str, Template]]:
        """The template it makes jobs from, as each tenant has it."""
        found: dict[str, Template] = {}
        if "template" not in whose.job_options:
            return found
        for tenant in sorted(tenants):
            template = yield from self._templates.get(whose.job_options["template"], tenant).start()
            if template is not None:
                found[tenant] = template
        return found

    def _enqueue(self, specs: Sequence[JobSpec], template: Template | None, tenant: str) -> Flow[list[Enqueued]]:
        if template is None:
            return self._jobs.enqueue(specs, tenant)
        return self._templates.enqueue(specs, template.name, template.version, tenant)

    # --- what each store does in its own way ---

    @abstractmethod
    def _hold(self, name: str, tenant: str) -> Steps[Subscription | None]:
        """The subscription to oneself; None when somebody else has it, or it is paused."""

    @abstractmethod
    def _behind(self, ids: Sequence[str]) -> Steps[dict[str, Behind]]:
        """What is to be known of the jobs that events are about."""

    @abstractmethod
    def _delivered(self, whose: Subscription, events: Sequence[str]) -> Steps[set[str]]:
        """Of these events, those that have had their fate."""

    @abstractmethod
    def _advance(self, whose: Subscription, cursor: str, deliveries: Sequence[Delivery]) -> Steps[None]: ...

    @flow(writes=False)
    def list(self, tenant: str) -> Steps[list[Subscription]]:
        text = f"select {COLUMNS} from {{subscription}} s where {within(tenant, 's.tenant')} order by s.name, s.tenant"
        rows = yield from self._ask(tenant, text)
        return [self._one(row) for row in rows]


class ConsumerReads(PlaceReads):
    @flow(writes=False)
    def list(self, tenant: str) -> Steps[list[Consumer]]:
        text = (
            "select c.tenant, c.name, c.cursor, c.updated_at from {consumer} c"
            f" where {within(tenant, 'c.tenant')} order by c.name, c.tenant"
        )
        rows: Rows = yield from self._ask(tenant, text)
        found = []
        for scope, name, cursor, updated_at in rows:
            told = cursor.startswith("a")
            past = yield from self._past(cursor, not told, COUNTED, scope)
            of: Literal["jobs", "application"] = "application" if told else "jobs"
            at = self.dialect.codec.time(updated_at)
            found.append(Consumer(scope, name, cursor, at, past, past == COUNTED, of))
        return found


class PostgresSubscriptions(Calls, SubscriptionReads):
    def __init__(
        self,
        schema: str,
        jobs: JobStore,
        ledger: LedgerStore,
        templates: TemplateStore,
        payload_rules: PayloadRuleStore,
    ) -> None:
        super().__init__(schema)
        self._jobs, self._ledger, self._templates, self._payload_rules = jobs, ledger, templates, payload_rules

    @flow(single=True, writes=False)
    def active(self, tenant: str) -> Steps[list[tuple[str, str, str]]]:
        """One statement, and no transaction around it: every worker asks this twice a second."""
        rows = yield self._call("active_subscriptions", "%s", tenant)
        return [(scope, name, str(id)) for scope, name, id in rows]

    @flow(single=True)
    def pause(self, name: str, reason: str | None, actor: str, tenant: str) -> Steps[bool]:
        rows = yield self._call("pause_subscription", "%s, %s, %s, %s", name, reason, actor, tenant)
        return bool(rows[0][0])

    @flow(single=True)
    def resume(self, name: str, skip: bool, tenant: str, actor: str | None = None) -> Steps[bool]:
        rows = yield self._call("resume_subscription", "%s, %s, %s, %s", name, skip, tenant, actor)
        return bool(rows[0][0])

    @flow(single=True)
    def remove(self, name: str, tenant: str, actor: str | None = None) -> Steps[bool]:
        rows = yield self._call("delete_subscription", "%s, %s, %s", name, tenant, actor)
        return bool(rows[0][0])

    @flow()
    def feed(self, name: str, want: int, tenant: str) -> Steps[Fed]:
        return (yield from self._feed(name, want, tenant))

    @flow(single=True)
    def failed(self, id: str, failure: str, tenant: str) -> Steps[None]:
        yield self._call("subscription_failed", "%s, %s, %s", id, failure, tenant)

    # --- what the look asks for ---

    def _hold(self, name: str, tenant: str) -> Steps[Subscription | None]:
        columns = Record.columns(Subscription)
        text = f"select {columns} from {self.dialect.schema}hold_subscription(%s, %s)"
        rows = yield Statement(text, (name, tenant))
        return self._one(rows[0]) if rows else None

    def _behind(self, ids: Sequence[str]) -> Steps[dict[str, Behind]]:
        rows = yield Statement(
            f"select id::text, correlation_id, depth, queue, tags from {self.dialect.schema}job"
            " where id = any(%s::uuid[])",
            (list(ids),),
        )
        return {
            job_id: Behind(correlation or job_id, depth or 0, queue, tuple(tags))
            for job_id, correlation, depth, queue, tags in rows
        }

    def _delivered(self, whose: Subscription, events: Sequence[str]) -> Steps[set[str]]:
        rows = yield self._call("delivered", "%s, %s::text[], %s", whose.id, list(events), whose.tenant)
        return {row[0] for row in rows}

    def _advance(self, whose: Subscription, cursor: str, deliveries: Sequence[Delivery]) -> Steps[None]:
        fates = json.dumps(
            [
                {"event": d.event, "tenant": d.tenant, "job_id": d.job_id, "refusal": d.refusal, "depth": d.depth}
                for d in deliveries
            ]
        )
        yield self._call(
            "advance_subscription", "%s, %s, %s, %s::json, %s", whose.id, whose.cursor, cursor, fates, whose.tenant
        )

    @flow(single=True)
    def set(self, new: Subscribing, id: str, actor: str, tenant: str) -> Steps[bool]:
        rows = yield self._call(
            "save_subscription",
            "%s, %s, %s, %s, %s, %s::json, %s::json, %s, %s, %s, %s, %s",
            id,
            new.name,
            new.pattern,
            new.job_kind,
            new.kind,
            None if new.match is None else json.dumps(new.match, sort_keys=True),
            json.dumps(new.job_options, sort_keys=True),
            new.max_depth,
            new.start == "beginning",
            new.declared,
            actor,
            tenant,
        )
        created, refused, why = rows[0]
        if refused:
            raise Conflict(f"subscription {new.name} already exists", code=why)
        return bool(created)


class PostgresConsumers(Calls, ConsumerReads):
    @flow(single=True)
    def reset(self, consumer: str, beginning: bool, tenant: str, actor: str | None = None) -> Steps[bool]:
        rows = yield self._call("reset_consumer", "%s, %s, %s, %s", consumer, beginning, tenant, actor)
        return bool(rows[0][0])

    @flow(single=True)
    def remove(self, consumer: str, tenant: str, actor: str | None = None) -> Steps[bool]:
        rows = yield self._call("remove_consumer", "%s, %s, %s", consumer, tenant, actor)
        return bool(rows[0][0])
