"""Notifiers in the database: port, shared reads, PostgreSQL and SQLite. The caller saves a notifier's subscription in
the same transaction."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from holdfast.features.notifiers.model import Notifier, NotifierDraft
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within
from holdfast.stores.sqlite.base import SqlitePart, begin_write, end_write, ids_json, upsert, write

MAX_ROWS = 1_000


class NotifierReads(Reader):
    @flow(writes=False)
    def get(self, name: str, tenant: str) -> Steps[Notifier | None]:
        columns = Record.columns(Notifier, "n.")
        text = f"select {columns} from {{notifier}} n where n.name = :name and n.tenant = :tenant"
        return (yield from self._record(Notifier, tenant, text, name=name))

    @flow(writes=False)
    def list(self, tenant: str) -> Steps[list[Notifier]]:
        """By name."""
        text = (
            f"select {Record.columns(Notifier, 'n.')} from {{notifier}} n where {within(tenant, 'n.tenant')}"
            f" order by n.name, n.tenant limit {MAX_ROWS:d}"
        )
        return (yield from self._records(Notifier, tenant, text))


class PostgresNotifiers(Calls, NotifierReads):
    @flow(single=True)
    def remove(self, name: str, actor: str, tenant: str) -> Steps[bool]:
        return (yield from self._flag("remove_notifier", "%s, %s, %s", name, actor, tenant))

    @flow(single=True)
    def set(self, draft: NotifierDraft, actor: str, tenant: str) -> Steps[Notifier]:
        """Replace the settings. They belong to one tenant."""
        params = (
            *(draft.name, draft.channel, list(draft.secrets), list(draft.wants), draft.kind, list(draft.recipients)),
            *(draft.sender, draft.dashboard, draft.quiet, draft.escalate_after, draft.escalation, draft.enabled),
            *(actor, tenant),
        )
        arguments = "%s, %s, %s::text[], %s::text[], %s, %s::text[], %s, %s, %s, %s::float8, %s, %s, %s, %s"
        return (yield from self._call_as(Notifier, "set_notifier", arguments, *params))[0]

    @flow(single=True)
    def tell_health(self, name: str, was: str | None, verdict: str, tenant: str) -> Steps[bool]:
        """Record the verdict that people are told now; False if another process has done so."""
        return (yield from self._flag("tell_health", "%s, %s, %s, %s", name, was, verdict, tenant))


_PUT = upsert("holdfast_notifier", Notifier, keep="tenant name created_at", skip="health")
_ONE = f"SELECT {Record.columns(Notifier)} FROM holdfast_notifier WHERE tenant = :tenant AND name = :name"
_REMOVE = "DELETE FROM holdfast_notifier WHERE tenant = :tenant AND name = :name RETURNING 1"
_TELL = (
    "UPDATE holdfast_notifier SET health = :verdict WHERE tenant = :tenant AND name = :name AND health IS :was"
    " RETURNING 1"
)


class SqliteNotifiers(SqlitePart, NotifierReads):
    @flow()
    def remove(self, name: str, actor: str, tenant: str) -> Steps[bool]:
        return bool((yield from write(actor, _REMOVE, tenant=tenant, name=name)))

    @flow()
    def set(self, draft: NotifierDraft, actor: str, tenant: str) -> Steps[Notifier]:
        now = yield from begin_write(actor)
        lists = {each: ids_json(getattr(draft, each)) for each in ("secrets", "wants", "recipients")}
        params: dict[str, Any] = asdict(draft) | lists | {"tenant": tenant, "set_by": actor}
        params |= {"created_at": now, "updated_at": now}
        yield Statement(_PUT, params)
        (notifier,) = yield from self._rows_as(Notifier, Statement(_ONE, params))
        yield from end_write()
        return notifier

    @flow()
    def tell_health(self, name: str, was: str | None, verdict: str, tenant: str) -> Steps[bool]:
        return bool((yield from write(None, _TELL, tenant=tenant, name=name, was=was, verdict=verdict)))
