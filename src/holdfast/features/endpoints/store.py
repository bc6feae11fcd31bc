"""Endpoints in the database: port, shared reads, PostgreSQL and SQLite."""

from __future__ import annotations

from dataclasses import asdict

from holdfast.features.endpoints.model import Endpoint, EndpointDraft
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within
from holdfast.stores.sqlite.base import SqlitePart, begin_write, end_write, ids_json, upsert, write

MAX_ROWS = 1_000


class EndpointReads(Reader):
    @flow(writes=False)
    def get(self, name: str, tenant: str) -> Steps[Endpoint | None]:
        text = (
            f"select {Record.columns(Endpoint, 'e.')} from {{endpoint}} e where e.name = :name and e.tenant = :tenant"
        )
        return (yield from self._record(Endpoint, tenant, text, name=name))

    @flow(writes=False)
    def list(self, tenant: str) -> Steps[list[Endpoint]]:
        """By name."""
        text = (
            f"select {Record.columns(Endpoint, 'e.')} from {{endpoint}} e where {within(tenant, 'e.tenant')}"
            f" order by e.name, e.tenant limit {MAX_ROWS:d}"
        )
        return (yield from self._records(Endpoint, tenant, text))


class PostgresEndpoints(Calls, EndpointReads):
    @flow(single=True)
    def remove(self, name: str, actor: str, tenant: str) -> Steps[bool]:
        return (yield from self._flag("remove_endpoint", "%s, %s, %s", name, actor, tenant))

    @flow(single=True)
    def set(self, draft: EndpointDraft, actor: str, tenant: str) -> Steps[Endpoint]:
        """Replace the settings. They belong to one tenant."""
        params = (
            *(draft.name, draft.provider, list(draft.secrets), draft.event, draft.kind, draft.queue),
            *(draft.tolerance, draft.enabled, actor, tenant),
        )
        arguments = "%s, %s, %s::text[], %s, %s, %s, %s::float8, %s, %s, %s"
        return (yield from self._call_as(Endpoint, "set_endpoint", arguments, *params))[0]


_PUT = upsert("holdfast_endpoint", Endpoint, keep="tenant name created_at")
_ONE = f"SELECT {Record.columns(Endpoint)} FROM holdfast_endpoint WHERE tenant = :tenant AND name = :name"
_REMOVE = "DELETE FROM holdfast_endpoint WHERE tenant = :tenant AND name = :name RETURNING 1"


class SqliteEndpoints(SqlitePart, EndpointReads):
    @flow()
    def remove(self, name: str, actor: str, tenant: str) -> Steps[bool]:
        return bool((yield from write(actor, _REMOVE, tenant=tenant, name=name)))

    @flow()
    def set(self, draft: EndpointDraft, actor: str, tenant: str) -> Steps[Endpoint]:
        now = yield from begin_write(actor)
        params = asdict(draft) | {"secrets": ids_json(draft.secrets), "tenant": tenant, "set_by": actor}
        params |= {"created_at": now, "updated_at": now}
        yield Statement(_PUT, params)
        (endpoint,) = yield from self._rows_as(Endpoint, Statement(_ONE, params))
        yield from end_write()
        return endpoint
