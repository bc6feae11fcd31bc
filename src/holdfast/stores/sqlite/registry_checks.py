"""Registry policies: unregistered kinds, agents and event types are refused, or accepted with a warning.

Triggers enforce the rule; these checks raise readable errors. Called only where the deployment has a policy.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from holdfast.engine.job import DEFAULT_TENANT, JobSpec
from holdfast.engine.json_schema import violations
from holdfast.engine.payload import decode
from holdfast.errors import Refused
from holdfast.features.registry.model import (
    BUILT_IN,
    Registry,
    event_data_invalid,
    lacking,
    not_registered,
    tenant_required,
)
from holdfast.stores.flow import Statement, Steps
from holdfast.stores.requests import SendEvent
from holdfast.stores.sqlite.base import ids_json

log = logging.getLogger("holdfast.store")

_POLICIES = Statement(
    "SELECT unknown_kinds, unknown_agents, tenant_required, required FROM holdfast_dispatch WHERE id = 1"
)
_KINDS = "SELECT name FROM holdfast_registered_kind WHERE name IN (SELECT value FROM json_each(:names))"
_AGENTS = "SELECT id FROM holdfast_agent WHERE tenant = :tenant AND id IN (SELECT value FROM json_each(:names))"
_EVENTS = Statement("SELECT unknown_events FROM holdfast_dispatch WHERE id = 1")
_TYPE = "SELECT schema FROM holdfast_registered_event WHERE name = ?"
_KEEP = (
    "INSERT INTO holdfast_unregistered_name (tenant, registry, name, first_at) SELECT :tenant, :registry, :name, :now"
    " WHERE (SELECT count(*) FROM holdfast_unregistered_name WHERE tenant = :tenant AND registry = :registry) < 1000"
    " ON CONFLICT DO NOTHING RETURNING 1"
)


def refuse_unregistered(specs: Sequence[JobSpec], tenant: str, now: int) -> Steps[None]:
    refusal = yield from unregistered(specs, tenant, now)
    if refusal is not None:
        raise refusal


def unregistered(specs: Sequence[JobSpec], tenant: str, now: int) -> Steps[Refused | None]:
    """Why these jobs are refused; None if they are not. A warning is recorded, and logged the first time."""
    ((kinds, agents, tenant_needed, needed),) = yield _POLICIES
    if tenant_needed and tenant == DEFAULT_TENANT:
        return tenant_required(specs[0].kind)
    for spec in specs if needed != "[]" else ():
        if (refusal := lacking(spec, tenant, json.loads(needed))) is not None:
            return refusal
    checks: tuple[tuple[Registry, str, set[str], str], ...] = (
        ("kind", kinds, {spec.kind for spec in specs} - BUILT_IN, _KINDS),
        ("agent", agents, {spec.agent for spec in specs if spec.agent is not None}, _AGENTS),
    )
    for registry, policy, names, query in checks:
        if policy == "accept" or not names:
            continue
        rows = yield Statement(query, {"tenant": tenant, "names": ids_json(names)})
        for name in sorted(names - {row[0] for row in rows}):
            if policy == "refuse":
                return not_registered(registry, name)
            yield from _warn(registry, name, tenant, now)
    return None


def refuse_event(event: SendEvent, tenant: str, now: int) -> Steps[None]:
    """Refuse an event whose type is not registered, or whose data does not match the schema of its type."""
    ((policy,),) = yield _EVENTS
    if policy == "accept":
        return
    rows = yield Statement(_TYPE, (event.name,))
    if not rows:
        if policy == "refuse":
            raise not_registered("event type", event.name)
        yield from _warn("event type", event.name, tenant, now)
        return
    schema = None if rows[0][0] is None else json.loads(rows[0][0])
    violation = None if schema is None else next(violations(schema, decode(event.data), "the data"), None)
    if violation is not None:
        refusal = event_data_invalid(event.name, violation)
        if policy == "refuse":
            raise refusal
        log.warning("Accepted: %s", refusal.message)


def _warn(registry: Registry, name: str, tenant: str, now: int) -> Steps[None]:
    params = {"tenant": tenant, "registry": registry, "name": name, "now": now}
    if (yield Statement(_KEEP, params)):
        log.warning("Accepted: %s %s is not registered", registry, name)
