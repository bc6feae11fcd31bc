"""Registries and policies in the database: ports, shared reads, PostgreSQL and SQLite."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.registry.model import (
    EventType,
    EventTypeDraft,
    Policies,
    RegisteredKind,
    UnregisteredName,
    check_policies,
    required_of,
    scopes_of,
)
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within
from holdfast.stores.sqlite.base import SqlitePart, begin_write, end_write, note_action, upsert, write

NO_DOMAINS: Mapping[str, str | None] = MappingProxyType({})


class KindReads(Reader):
    @flow(writes=False)
    def get(self, name: str, tenant: str) -> Steps[RegisteredKind | None]:
        text = f"select {Record.columns(RegisteredKind)} from {{registered_kind}} where name = :name"
        return (yield from self._record(RegisteredKind, tenant, text, name=name))

    @flow(writes=False)
    def unregistered(self, tenant: str) -> Steps[list[UnregisteredName]]:
        """Names of every registry that were accepted with a warning."""
        text = (
            f"select {Record.columns(UnregisteredName, 'u.')} from {{unregistered_name}} u"
            f" where {within(tenant, 'u.tenant')} order by u.registry, u.name, u.tenant limit 1000"
        )
        return (yield from self._records(UnregisteredName, tenant, text))

    @flow(writes=False)
    def list(self, tenant: str, domain: str | None = None) -> Steps[list[RegisteredKind]]:
        only = "" if domain is None else " where domain = :domain"
        text = f"select {Record.columns(RegisteredKind)} from {{registered_kind}}{only} order by name"
        return (yield from self._records(RegisteredKind, tenant, text, domain=domain))


class EventTypeReads(Reader):
    @flow(writes=False)
    def get(self, name: str, tenant: str) -> Steps[EventType | None]:
        text = f"select {Record.columns(EventType)} from {{registered_event}} where name = :name"
        return (yield from self._record(EventType, tenant, text, name=name))

    @flow(writes=False)
    def list(self, domain: str | None, tenant: str) -> Steps[list[EventType]]:
        only = "" if domain is None else " where domain = :domain"
        text = f"select {Record.columns(EventType)} from {{registered_event}}{only} order by name"
        return (yield from self._records(EventType, tenant, text, domain=domain))


class PostgresKinds(Calls, KindReads):
    @flow(single=True)
    def register(
        self, kinds: Mapping[str, str | None], actor: str, domains: Mapping[str, str | None] = NO_DOMAINS
    ) -> Steps[int]:
        """Register kinds with their descriptions and domains. Returns how many are new or have changed."""
        entries = json.dumps(
            [{"name": name, "description": about, "domain": domains.get(name)} for name, about in kinds.items()]
        )
        return (yield from self._number("register_kinds", "%s::jsonb, %s", entries, actor))

    @flow(single=True)
    def remove(self, name: str, actor: str) -> Steps[bool]:
        return (yield from self._flag("remove_kind", "%s, %s", name, actor))


class PostgresEventTypes(Calls, EventTypeReads):
    @flow(single=True)
    def set(self, draft: EventTypeDraft, actor: str) -> Steps[EventType]:
        params = (draft.name, draft.domain, draft.schema, draft.description, actor)
        return (yield from self._call_as(EventType, "set_event_type", "%s, %s, %s::jsonb, %s, %s", *params))[0]

    @flow(single=True)
    def remove(self, name: str, actor: str) -> Steps[bool]:
        return (yield from self._flag("remove_event_type", "%s, %s", name, actor))


class PostgresPolicies(Calls):
    @flow(single=True)
    def get(self) -> Steps[Policies]:
        rows = yield self._call("policies", "")
        return _decoded(rows[0][0])

    @flow(single=True)
    def set(self, changes: Mapping[str, Any], actor: str) -> Steps[Policies]:
        rows = yield self._call("set_policies", "%s::jsonb, %s", json.dumps(changes), actor)
        return _decoded(rows[0][0])


def _decoded(values: Mapping[str, Any]) -> Policies:
    decoded: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in values.items()}
    return Policies(**decoded)


_REGISTER = upsert("holdfast_registered_kind", RegisteredKind, keep="name", compare="description domain")
_FORGET_UNREGISTERED = "DELETE FROM holdfast_unregistered_name WHERE registry = ? AND name = ?"


class SqliteKinds(SqlitePart, KindReads):
    @flow()
    def register(
        self, kinds: Mapping[str, str | None], actor: str, domains: Mapping[str, str | None] = NO_DOMAINS
    ) -> Steps[int]:
        now = yield from begin_write(actor)
        changed = 0
        for name, about in kinds.items():
            entry = {"name": name, "description": about, "set_by": actor, "set_at": now, "domain": domains.get(name)}
            changed += len((yield Statement(f"{_REGISTER} RETURNING 1", entry)))
            yield Statement(_FORGET_UNREGISTERED, ("kind", name))
        yield from end_write()
        return changed

    @flow()
    def remove(self, name: str, actor: str) -> Steps[bool]:
        text = "DELETE FROM holdfast_registered_kind WHERE name = :name RETURNING 1"
        return bool((yield from write(actor, text, name=name)))


_SET = upsert("holdfast_registered_event", EventType, keep="name", compare="domain schema description")
_ONE = f"SELECT {Record.columns(EventType)} FROM holdfast_registered_event WHERE name = ?"


class SqliteEventTypes(SqlitePart, EventTypeReads):
    @flow()
    def set(self, draft: EventTypeDraft, actor: str) -> Steps[EventType]:
        now = yield from begin_write(actor)
        yield Statement(_SET, dataclasses.asdict(draft) | {"set_by": actor, "set_at": now})
        yield Statement(_FORGET_UNREGISTERED, ("event type", draft.name))
        (event_type,) = yield from self._rows_as(EventType, Statement(_ONE, (draft.name,)))
        yield from end_write()
        return event_type

    @flow()
    def remove(self, name: str, actor: str) -> Steps[bool]:
        text = "DELETE FROM holdfast_registered_event WHERE name = :name RETURNING 1"
        return bool((yield from write(actor, text, name=name)))


_POLICIES = Statement(
    "SELECT unknown_kinds, unknown_agents, unknown_events, CASE listed_only WHEN 1 THEN 'nobody' ELSE 'everyone' END,"
    " tenant_required, running_counts, required FROM holdfast_dispatch WHERE id = 1"
)
_SET_POLICIES = (
    "UPDATE holdfast_dispatch SET unknown_kinds = :unknown_kinds, unknown_agents = :unknown_agents,"
    " unknown_events = :unknown_event_types, listed_only = :empty_executors = 'nobody',"
    " tenant_required = :tenant_required, running_counts = :pending_includes_running,"
    " required = :required,"
    " ruled = ruled OR :unknown_kinds <> 'accept' OR :unknown_agents <> 'accept' OR :tenant_required"
    " OR :required <> '[]' WHERE id = 1"
)


class SqlitePolicies(SqlitePart):
    @flow(writes=False)
    def get(self) -> Steps[Policies]:
        return (yield from _policies())

    @flow()
    def set(self, changes: Mapping[str, Any], actor: str) -> Steps[Policies]:
        yield from begin_write(actor)
        old = dataclasses.asdict((yield from _policies()))
        new = {**old, **check_policies(changes)}
        if new != old:
            values = {name: value for name, value in new.items() if not isinstance(value, tuple)}
            yield Statement(_SET_POLICIES, values | {"required": json.dumps(required_of(new))})
            if new["pending_includes_running"] != old["pending_includes_running"]:
                yield Statement("DELETE FROM holdfast_tenant_load")  # forces a new count
        for name in sorted(new):
            if new[name] != old[name]:
                changed = json.dumps({name: [old[name], new[name]]})
                yield from note_action(EVERY_TENANT, "change", "policies", name, changed)
        policies = yield from _policies()
        yield from end_write()
        return policies


def _policies() -> Steps[Policies]:
    ((kinds, agents, events, empty, tenant, running, required),) = yield _POLICIES
    return Policies(kinds, agents, events, empty, bool(tenant), bool(running), **scopes_of(json.loads(required)))
