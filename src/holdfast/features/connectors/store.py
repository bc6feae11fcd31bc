"""Settings of connectors in the database: port, shared reads, PostgreSQL and SQLite."""

from __future__ import annotations

import json
from typing import Protocol

from holdfast.features.connectors.model import Connector, ConnectorDraft
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Flow, Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within
from holdfast.stores.sqlite.base import SqlitePart, begin_write, end_write, ids_json
from holdfast.stores.sqlite.codec import SqliteCodec


class ConnectorStore(Protocol):
    def remove(self, name: str, actor: str, tenant: str) -> Flow[bool]: ...

    def get(self, name: str, tenant: str) -> Flow[Connector | None]: ...

    def set(self, draft: ConnectorDraft, actor: str, tenant: str) -> Flow[Connector]:
        """Replace the settings. They belong to one tenant; there are no settings for all tenants."""
        ...

    def list(self, tenant: str) -> Flow[list[Connector]]:
        """By name."""
        ...


class ConnectorReads(Reader):
    @flow(writes=False)
    def get(self, name: str, tenant: str) -> Steps[Connector | None]:
        text = (
            f"select {Record.columns(Connector, 'c.')} from {{connector}} c where c.name = :name and c.tenant = :tenant"
        )
        rows = yield from self._query(tenant, text, name=name)
        return Record.decoder(Connector, self.dialect.codec)(rows[0]) if rows else None

    @flow(writes=False)
    def list(self, tenant: str) -> Steps[list[Connector]]:
        text = (
            f"select {Record.columns(Connector, 'c.')} from {{connector}} c where {within(tenant, 'c.tenant')}"
            " order by c.name, c.tenant"
        )
        rows = yield from self._query(tenant, text)
        decode = Record.decoder(Connector, self.dialect.codec)
        return [decode(row) for row in rows]


class PostgresConnectors(Calls, ConnectorReads):
    @flow(single=True)
    def remove(self, name: str, actor: str, tenant: str) -> Steps[bool]:
        rows = yield Statement(f"select {self.dialect.schema}remove_connector(%s, %s, %s)", (name, actor, tenant))
        return bool(rows[0][0])

    @flow(single=True)
    def set(self, draft: ConnectorDraft, actor: str, tenant: str) -> Steps[Connector]:
        text = (
            f"select {Record.columns(Connector)} from {self.dialect.schema}set_connector("
            "%s, %s::text[], %s::jsonb, %s::text[], %s::float8, %s::integer, %s, %s, %s)"
        )
        params = (
            *(draft.name, list(draft.hosts), json.dumps(draft.headers), list(draft.secrets)),
            *(draft.timeout, draft.max_bytes, draft.enabled, actor, tenant),
        )
        rows = yield Statement(text, params)
        return Record.decoder(Connector, self.dialect.codec)(rows[0])


_COLUMNS = Record.columns(Connector)
_PUT = (
    f"INSERT INTO holdfast_connector ({_COLUMNS}) VALUES (:tenant, :name, :enabled, :hosts, :headers, :secrets,"
    " :timeout, :max_bytes, :actor, :now, :now) ON CONFLICT DO UPDATE SET enabled = excluded.enabled, hosts ="
    " excluded.hosts, headers = excluded.headers, secrets = excluded.secrets, timeout = excluded.timeout,"
    " max_bytes = excluded.max_bytes, set_by = excluded.set_by, updated_at = excluded.updated_at"
)
_ONE = f"SELECT {_COLUMNS} FROM holdfast_connector WHERE tenant = :tenant AND name = :name"
_REMOVE = "DELETE FROM holdfast_connector WHERE tenant = ? AND name = ? RETURNING 1"


class SqliteConnectors(SqlitePart, ConnectorReads):
    @flow()
    def remove(self, name: str, actor: str, tenant: str) -> Steps[bool]:
        yield from begin_write(actor)
        rows = yield Statement(_REMOVE, (tenant, name))
        yield from end_write()
        return bool(rows)

    @flow()
    def set(self, draft: ConnectorDraft, actor: str, tenant: str) -> Steps[Connector]:
        now = yield from begin_write(actor)
        params = {"tenant": tenant, "name": draft.name, "enabled": int(draft.enabled), "hosts": ids_json(draft.hosts)}
        params |= {"headers": json.dumps(draft.headers, sort_keys=True), "secrets": ids_json(draft.secrets)}
        params |= {"timeout": draft.timeout, "max_bytes": draft.max_bytes, "actor": actor, "now": now}
        yield Statement(_PUT, params)
        rows = yield Statement(_ONE, params)
        yield from end_write()
        return Record.decoder(Connector, SqliteCodec())(rows[0])
