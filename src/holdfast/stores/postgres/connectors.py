"""The verbs of settings for connectors; the functions are in ``code/39_connectors``."""

from __future__ import annotations

import json

from holdfast.features.connectors.model import Connector, ConnectorDraft
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.reads import Reads


class ConnectorVerbs(Reads):
    @flow(single=True)
    def set_connector(self, draft: ConnectorDraft, actor: str, tenant: str) -> Steps[Connector]:
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

    @flow(single=True)
    def remove_connector(self, name: str, actor: str, tenant: str) -> Steps[bool]:
        rows = yield Statement(f"select {self.dialect.schema}remove_connector(%s, %s, %s)", (name, actor, tenant))
        return bool(rows[0][0])
