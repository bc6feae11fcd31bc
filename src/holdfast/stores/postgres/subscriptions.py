"""The verbs of subscriptions and consumers; the functions are in ``code/47_subscriptions.sql``."""

from __future__ import annotations

import json
from collections.abc import Sequence

from holdfast.errors import Conflict
from holdfast.features.events.model import Behind, Delivery, Fed, SentEvent, Subscribing, Subscription
from holdfast.stores.codecs import Record
from holdfast.stores.feed import Feeding
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.postgres.base import Calls


class SubscriptionVerbs(Calls, Feeding):
    @flow(single=True)
    def app_events_after(self, cursor: str | None, want: int, tenant: str) -> Steps[list[SentEvent]]:
        decode = Record.decoder(SentEvent, self.dialect.codec)
        rows = yield self._call("app_events_after", "%s, %s, %s", cursor, want, tenant)
        return [decode(row) for row in rows]

    @flow(single=True, writes=False)
    def active_subscriptions(self, tenant: str) -> Steps[list[tuple[str, str, str]]]:
        """One statement, and no transaction around it: every worker asks this twice a second."""
        rows = yield self._call("active_subscriptions", "%s", tenant)
        return [(scope, name, str(id)) for scope, name, id in rows]

    @flow(single=True)
    def save_subscription(self, new: Subscribing, id: str, actor: str, tenant: str) -> Steps[bool]:
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
            raise Conflict(f"there is a subscription {new.name} already", code=why)
        return bool(created)

    @flow(single=True)
    def pause_subscription(self, name: str, reason: str | None, actor: str, tenant: str) -> Steps[bool]:
        rows = yield self._call("pause_subscription", "%s, %s, %s, %s", name, reason, actor, tenant)
        return bool(rows[0][0])

    @flow(single=True)
    def resume_subscription(self, name: str, skip: bool, tenant: str, actor: str | None = None) -> Steps[bool]:
        rows = yield self._call("resume_subscription", "%s, %s, %s, %s", name, skip, tenant, actor)
        return bool(rows[0][0])

    @flow(single=True)
    def delete_subscription(self, name: str, tenant: str, actor: str | None = None) -> Steps[bool]:
        rows = yield self._call("delete_subscription", "%s, %s, %s", name, tenant, actor)
        return bool(rows[0][0])

    @flow()
    def feed_subscription(self, name: str, want: int, tenant: str) -> Steps[Fed]:
        return (yield from self._feed(name, want, tenant))

    @flow(single=True)
    def subscription_failed(self, id: str, failure: str, tenant: str) -> Steps[None]:
        yield self._call("subscription_failed", "%s, %s, %s", id, failure, tenant)

    @flow(single=True)
    def reset_consumer(self, consumer: str, beginning: bool, tenant: str, actor: str | None = None) -> Steps[bool]:
        rows = yield self._call("reset_consumer", "%s, %s, %s, %s", consumer, beginning, tenant, actor)
        return bool(rows[0][0])

    @flow(single=True)
    def remove_consumer(self, consumer: str, tenant: str, actor: str | None = None) -> Steps[bool]:
        rows = yield self._call("remove_consumer", "%s, %s, %s", consumer, tenant, actor)
        return bool(rows[0][0])

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
