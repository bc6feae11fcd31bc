"""Settings of connectors in the database: port, shared reads, PostgreSQL and SQLite."""

from __future__ import annotations

import json
from dataclasses import asdict

from holdfast.features.connectors.model import Connector, ConnectorDraft
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within
from holdfast.stores.sqlite.base import SqlitePart, begin_write, end_write, ids_json, upsert, write


class ConnectorReads(Reader):
    @flow(writes=False)
    def get(self, name: str, tenant: str) -> Steps[Connector | None]:
        text = (
            f"select {Record.columns(Connector, 'c.')} from {{connector}} c where c.name = :name and c.tenant = :tenant"
        )
        return (yield from self._record(Connector, tenant, text, name=name))

    @flow(writes=False)
    def list(self, tenant: str) -> Steps[list[Connector]]:
        """By name."""
        text = (
            f"select {Record.columns(Connector, 'c.')} from {{connector}} c where {within(tenant, 'c.tenant')}"
            " order by c.name, c.tenant"
        )
        return (yield from self._records(Connector, tenant, text))


class PostgresConnectors(Calls, ConnectorReads):
    @flow(single=True)
    def remove(self, name: str, actor: str, tenant: str) -> Steps[bool]:
        return (yield from self._flag("remove_connector", "%s, %s, %s", name, actor, tenant))

    @flow(single=True)
    def set(self, draft: ConnectorDraft, actor: str, tenant: str) -> Steps[Connector]:
        """Replace the settings. They belong to one tenant; there are no settings for all tenants."""
        arguments = "%s, %s::text[], %s::jsonb, %s::text[], %s::float8, %s::integer, %s, %s, %s"
        params = (
            *(draft.name, list(draft.hosts), json.dumps(draft.headers), list(draft.secrets)),
            *(draft.timeout, draft.max_bytes, draft.enabled, actor, tenant),
        )
        return (yield from self._call_as(Connector, "set_connector", arguments, *params))[0]


_PUT = upsert("holdfast_connector", Connector, keep="tenant name created_at")
_ONE = f"SELECT {Record.columns(Connector)} FROM holdfast_connector WHERE tenant = :tenant AND name = :name"
_REMOVE = "DELETE FROM holdfast_connector WHERE tenant = :tenant AND name = :name RETURNING 1"


class SqliteConnectors(SqlitePart, ConnectorReads):
    @flow()
    def remove(self, name: str, actor: str, tenant: str) -> Steps[bool]:
        return bool((yield from write(actor, _REMOVE, tenant=tenant, name=name)))

    @flow()
    def set(self, draft: ConnectorDraft, actor: str, tenant: str) -> Steps[Connector]:
        now = yield from begin_write(actor)
        params = asdict(draft) | {"hosts": ids_json(draft.hosts), "secrets": ids_json(draft.secrets)}
        params["headers"] = json.dumps(draft.headers, sort_keys=True)
        params |= {"tenant": tenant, "set_by": actor, "created_at": now, "updated_at": now}
        yield Statement(_PUT, params)
        (connector,) = yield from self._rows_as(Connector, Statement(_ONE, params))
        yield from end_write()
        return connector
