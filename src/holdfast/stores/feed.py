"""The look of a subscription: read what is new, make a job of each event it wants, move its place on.

One transaction, so a crash leaves all of it or nothing (DP-13). Many processes may look at once: one has the
subscription, the others go on to the next. The events are read before anything is written: where transactions have
ids, a snapshot taken later would count what this one writes as seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.engine.job import Enqueued, Event, JobSpec
from holdfast.features.events.model import Behind, Delivery, Fed, SentEvent, Subscription, cause_of, job_of, key_of
from holdfast.features.payloads.model import effective
from holdfast.features.schedules.model import Template
from holdfast.stores.flow import Flow, Steps
from holdfast.stores.ids import new_id
from holdfast.stores.reads import Reads


class Feeding(Reads):
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
        read = self.events_after if whose.of_ledger else self.app_events_after
        return (yield from read(whose.cursor, want, whose.tenant).start())

    def _make(self, whose: Subscription, wanted: dict[str, Event | SentEvent]) -> Steps[list[Delivery]]:
        """Enqueue, tenant by tenant; what becomes of each event."""
        causes = {key: cause_of(event) for key, event in wanted.items()}
        ids = sorted({cause for cause in causes.values() if cause is not None})
        known = (yield from self._behind(ids)) if ids else {}
        deliveries: list[Delivery] = []
        specs: dict[str, dict[str, JobSpec]] = {}
        templates = yield from self._templates(whose, {event.tenant for event in wanted.values()})
        rules = yield from self.payload_rules(whose.tenant).start()
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

    def _templates(self, whose: Subscription, tenants: set[str]) -> Steps[dict[str, Template]]:
        """The template it makes jobs from, as each tenant has it."""
        found: dict[str, Template] = {}
        if "template" not in whose.job_options:
            return found
        for tenant in sorted(tenants):
            template = yield from self.template(whose.job_options["template"], tenant).start()
            if template is not None:
                found[tenant] = template
        return found

    def _enqueue(self, specs: Sequence[JobSpec], template: Template | None, tenant: str) -> Flow[list[Enqueued]]:
        if template is None:
            return self.enqueue(specs, tenant)
        return self.enqueue_made(specs, template.name, template.version, tenant)

    # --- what each store does in its own way ---

    if TYPE_CHECKING:  # the verbs of templates have it

        def enqueue_made(
            self, specs: Sequence[JobSpec], template: str, version: int, tenant: str
        ) -> Flow[list[Enqueued]]: ...

    def enqueue(self, specs: Sequence[JobSpec], tenant: str) -> Flow[list[Enqueued]]:
        raise NotImplementedError

    def events_after(self, cursor: str | None, want: int, tenant: str) -> Flow[list[Event]]:
        raise NotImplementedError

    def app_events_after(self, cursor: str | None, want: int, tenant: str) -> Flow[list[SentEvent]]:
        raise NotImplementedError

    def _hold(self, name: str, tenant: str) -> Steps[Subscription | None]:
        """The subscription to oneself; None when somebody else has it, or it is paused."""
        raise NotImplementedError

    def _behind(self, ids: Sequence[str]) -> Steps[dict[str, Behind]]:
        """What is to be known of the jobs that events are about."""
        raise NotImplementedError

    def _delivered(self, whose: Subscription, events: Sequence[str]) -> Steps[set[str]]:
        """Of these events, those that have had their fate."""
        raise NotImplementedError

    def _advance(self, whose: Subscription, cursor: str, deliveries: Sequence[Delivery]) -> Steps[None]:
        raise NotImplementedError
