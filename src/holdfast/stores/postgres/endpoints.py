"""The verbs of endpoints; the functions are in ``code/47_endpoints.sql``."""

from __future__ import annotations

import json
from typing import Any

from holdfast.features.webhooks.model import KEPT, KEPT_DAYS, EndpointDelivery, EndpointDraft
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.reads import Reads


class EndpointVerbs(Reads):
    def _asked(self, name: str, arguments: str, *params: Any) -> Steps[bool]:
        rows = yield Statement(f"select {self.dialect.schema}{name}({arguments})", params)
        return bool(rows[0][0])

    @flow(single=True)
    def add_endpoint(self, draft: EndpointDraft, id: str, actor: str, tenant: str) -> Steps[bool]:
        return (
            yield from self._asked(
                "add_endpoint",
                "%s, %s, %s, %s::text[], %s::text[], %s, %s::json, %s, %s",
                *(id, *_facts(draft), actor, tenant),
            )
        )

    @flow(single=True)
    def change_endpoint(self, draft: EndpointDraft, actor: str, tenant: str) -> Steps[bool]:
        return (
            yield from self._asked(
                "change_endpoint",
                "%s, %s, %s::text[], %s::text[], %s, %s::json, %s, %s",
                *(*_facts(draft), actor, tenant),
            )
        )

    @flow(single=True)
    def disable_endpoint(self, name: str, reason: str, actor: str, tenant: str) -> Steps[bool]:
        return (yield from self._asked("disable_endpoint", "%s, %s, %s, %s", name, reason, actor, tenant))

    @flow(single=True)
    def enable_endpoint(self, name: str, skip: bool, actor: str, tenant: str) -> Steps[bool]:
        return (yield from self._asked("enable_endpoint", "%s, %s, %s, %s", name, skip, actor, tenant))

    @flow(single=True)
    def remove_endpoint(self, name: str, actor: str, tenant: str) -> Steps[bool]:
        return (yield from self._asked("remove_endpoint", "%s, %s, %s", name, actor, tenant))

    @flow(single=True)
    def note_endpoint_delivery(self, entry: EndpointDelivery, tenant: str) -> Steps[bool]:
        facts = (entry.id, entry.endpoint_id, entry.message, entry.type, entry.job_id, entry.attempt)
        ends = (entry.status, entry.error_code, entry.duration_ms, entry.excerpt)
        return (
            yield from self._asked(
                "note_endpoint_delivery",
                "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, make_interval(days => %s), %s",
                *(*facts, *ends, KEPT, KEPT_DAYS, tenant),
            )
        )


def _facts(draft: EndpointDraft) -> tuple[Any, ...]:
    options = json.dumps(draft.job_options, sort_keys=True)
    return draft.name, draft.url, list(draft.secrets), list(draft.wants), draft.kind, options
