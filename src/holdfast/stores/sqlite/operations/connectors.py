"""Set and remove the settings of connectors (JF-11)."""

from __future__ import annotations

import json

from holdfast.features.connectors.model import Connector, ConnectorDraft
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.sqlite.base import ids_json, sign, unsign
from holdfast.stores.sqlite.codec import SqliteCodec

_COLUMNS = Record.columns(Connector)
_PUT = (
    f"INSERT INTO connector ({_COLUMNS}) VALUES (:tenant, :name, :enabled, :hosts, :headers, :secrets, :timeout,"
    " :max_bytes, :actor, :now, :now) ON CONFLICT DO UPDATE SET enabled = excluded.enabled, hosts = excluded.hosts,"
    " headers = excluded.headers, secrets = excluded.secrets, timeout = excluded.timeout,"
    " max_bytes = excluded.max_bytes, set_by = excluded.set_by, updated_at = excluded.updated_at"
)
_ONE = f"SELECT {_COLUMNS} FROM connector WHERE tenant = :tenant AND name = :name"
_REMOVE = "DELETE FROM connector WHERE tenant = ? AND name = ? RETURNING 1"


class ConnectorVerbs:
    @flow()
    def set_connector(self, draft: ConnectorDraft, actor: str, tenant: str) -> Steps[Connector]:
        now = yield from sign(actor)
        facts = {"tenant": tenant, "name": draft.name, "enabled": int(draft.enabled), "hosts": ids_json(draft.hosts)}
        facts |= {"headers": json.dumps(draft.headers, sort_keys=True), "secrets": ids_json(draft.secrets)}
        facts |= {"timeout": draft.timeout, "max_bytes": draft.max_bytes, "actor": actor, "now": now}
        yield Statement(_PUT, facts)
        rows = yield Statement(_ONE, facts)
        yield from unsign()
        return Record.decoder(Connector, SqliteCodec())(rows[0])

    @flow()
    def remove_connector(self, name: str, actor: str, tenant: str) -> Steps[bool]:
        yield from sign(actor)
        rows = yield Statement(_REMOVE, (tenant, name))
        yield from unsign()
        return bool(rows)
