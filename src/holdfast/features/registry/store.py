"""Registries and policies in the database: ports, shared reads, PostgreSQL and SQLite."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

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
from holdfast.stores.flow import Flow, Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within
from holdfast.stores.sqlite.base import SqlitePart, begin_write, end_write, note_action
from holdfast.stores.sqlite.codec import SqliteCodec

NO_DOMAINS: Mapping[str, str | None] = MappingProxyType({})


class KindStore(Protocol):
    def register(
        self, kinds: Mapping[str, str | None], actor: str, domains: Mapping[str, str | None] = NO_DOMAINS
    ) -> Flow[int]:
        """Register kinds with their descriptions and domains. Returns how many are new or have changed."""
        ...

    def remove(self, name: str, actor: str) -> Flow[bool]: ...
    def get(self, name: str, tenant: str) -> Flow[RegisteredKind | None]: ...

    def unregistered(self, tenant: str) -> Flow[list[UnregisteredName]]:
        """Names of every registry that were accepted with a warning."""
        ...

    def list(self, tenant: str, domain: str | None = None) -> Flow[list[RegisteredKind]]: ...


class EventTypeStore(Protocol):
    def set(self, draft: EventTypeDraft, actor: str) -> Flow[EventType]: ...
    def remove(self, name: str, actor: str) -> Flow[bool]: ...
    def get(self, name: str, tenant: str) -> Flow[EventType | None]: ...
    def list(self, domain: str | None, tenant: str) -> Flow[list[EventType]]: ...


class PolicyStore(Protocol):
    def get(self) -> Flow[Policies]: ...
    def set(self, changes: Mapping[str, Any], actor: str) -> Flow[Policies]: ...


class KindReads(Reader):
    @flow(writes=False)
    def get(self, name: str, tenant: str) -> Steps[RegisteredKind | None]:
        text = f"select {Record.columns(RegisteredKind)} from {{registered_kind}} where name = :name"
        rows = yield from self._query(tenant, text, name=name)
        return Record.decoder(RegisteredKind, self.dialect.codec)(rows[0]) if rows else None

    @flow(writes=False)
    def unregistered(self, tenant: str) -> Steps[list[UnregisteredName]]:
        text = (
            f"select {Record.columns(UnregisteredName, 'u.')} from {{unregistered_name}} u"
            f" where {within(tenant, 'u.tenant')} order by u.registry, u.name, u.tenant limit 1000"
        )
        decode = Record.decoder(UnregisteredName, self.dialect.codec)
        return [decode(row) for row in (yield from self._query(tenant, text))]

    @flow(writes=False)
    def list(self, tenant: str, domain: str | None = None) -> Steps[list[RegisteredKind]]:
        only = "" if domain is None else " where domain = :domain"
        text = f"select {Record.columns(RegisteredKind)} from {{registered_kind}}{only} order by name"
        decode = Record.decoder(RegisteredKind, self.dialect.codec)
        return [decode(row) for row in (yield from self._query(tenant, text, domain=domain))]


class EventTypeReads(Reader):
    @flow(writes=False)
    def get(self, name: str, tenant: str) -> Steps[EventType | None]:
        text = f"select {Record.columns(EventType)} from {{registered_event}} where name = :name"
        rows = yield from self._query(tenant, text, name=name)
        return Record.decoder(EventType, self.dialect.codec)(rows[0]) if rows else None

    @flow(writes=False)
    def list(self, domain: str | None, tenant: str) -> Steps[list[EventType]]:
        only = "" if domain is None else " where domain = :domain"
        text = f"select {Record.columns(EventType)} from {{registered_event}}{only} order by name"
        decode = Record.decoder(EventType, self.dialect.codec)
        return [decode(row) for row in (yield from self._query(tenant, text, domain=domain))]


class PostgresKinds(Calls, KindReads):
    @flow(single=True)
    def register(
        self, kinds: Mapping[str, str | None], actor: str, domains: Mapping[str, str | None] = NO_DOMAINS
    ) -> Steps[int]:
        entries = json.dumps(
            [{"name": name, "description": about, "domain": domains.get(name)} for name, about in kinds.items()]
        )
        rows = yield self._call("register_kinds", "%s::jsonb, %s", entries, actor)
        return int(rows[0][0])

    @flow(single=True)
    def remove(self, name: str, actor: str) -> Steps[bool]:
        rows = yield self._call("remove_kind", "%s, %s", name, actor)
        return bool(rows[0][0])


class PostgresEventTypes(Calls, EventTypeReads):
    @flow(single=True)
    def set(self, draft: EventTypeDraft, actor: str) -> Steps[EventType]:
        text = f"select {Record.columns(EventType)} from {self.dialect.schema}set_event_type(%s, %s, %s::jsonb, %s, %s)"
        rows = yield Statement(text, (draft.name, draft.domain, draft.schema, draft.description, actor))
        return Record.decoder(EventType, self.dialect.codec)(rows[0])

    @flow(single=True)
    def remove(self, name: str, actor: str) -> Steps[bool]:
        rows = yield self._call("remove_event_type", "%s, %s", name, actor)
        return bool(rows[0][0])


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


_REGISTER = (
    "INSERT INTO holdfast_registered_kind (name, description, set_by, set_at, domain)"
    " VALUES (:name, :about, :actor, :now, :domain)"
    " ON CONFLICT (name) DO UPDATE SET description = excluded.description, set_by = excluded.set_by,"
    " set_at = excluded.set_at, domain = excluded.domain"
    " WHERE (description, domain) IS NOT (excluded.description, excluded.domain) RETURNING 1"
)
_FORGET_UNREGISTERED = "DELETE FROM holdfast_unregistered_name WHERE registry = ? AND name = ?"


class SqliteKinds(SqlitePart, KindReads):
    @flow()
    def register(
        self, kinds: Mapping[str, str | None], actor: str, domains: Mapping[str, str | None] = NO_DOMAINS
    ) -> Steps[int]:
        now = yield from begin_write(actor)
        changed = 0
        for name, about in kinds.items():
            entry = {"name": name, "about": about, "actor": actor, "now": now, "domain": domains.get(name)}
            changed += len((yield Statement(_REGISTER, entry)))
            yield Statement(_FORGET_UNREGISTERED, ("kind", name))
        yield from end_write()
        return changed

    @flow()
    def remove(self, name: str, actor: str) -> Steps[bool]:
        yield from begin_write(actor)
        rows = yield Statement("DELETE FROM holdfast_registered_kind WHERE name = ? RETURNING 1", (name,))
        yield from end_write()
        return bool(rows)


_SET = (
    "INSERT INTO holdfast_registered_event (name, domain, schema, description, set_by, set_at) VALUES (?, ?, ?, ?, ?,"
    " ?) ON CONFLICT (name) DO UPDATE SET domain = excluded.domain, schema = excluded.schema,"
    " description = excluded.description, set_by = excluded.set_by, set_at = excluded.set_at"
    " WHERE (domain, schema, description) IS NOT (excluded.domain, excluded.schema, excluded.description)"
)


class SqliteEventTypes(SqlitePart, EventTypeReads):
    @flow()
    def set(self, draft: EventTypeDraft, actor: str) -> Steps[EventType]:
        now = yield from begin_write(actor)
        yield Statement(_SET, (draft.name, draft.domain, draft.schema, draft.description, actor, now))
        yield Statement(_FORGET_UNREGISTERED, ("event type", draft.name))
        rows = yield Statement(
            f"SELECT {Record.columns(EventType)} FROM holdfast_registered_event WHERE name = ?", (draft.name,)
        )
        yield from end_write()
        return Record.decoder(EventType, SqliteCodec())(rows[0])

    @flow()
    def remove(self, name: str, actor: str) -> Steps[bool]:
        yield from begin_write(actor)
        rows = yield Statement("DELETE FROM holdfast_registered_event WHERE name = ? RETURNING 1", (name,))
        yield from end_write()
        return bool(rows)


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
