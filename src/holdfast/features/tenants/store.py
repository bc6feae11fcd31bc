"""Tenants in the database: port, shared reads, PostgreSQL and SQLite."""

from __future__ import annotations

import dataclasses
import json
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from holdfast.engine.ids import parse_id
from holdfast.engine.job import EVERY_TENANT
from holdfast.errors import Refused
from holdfast.features.agents.model import MAX_AHEAD
from holdfast.features.limits.model import Rule
from holdfast.features.tenants.model import EVERY_QUEUE, Pin, QueueShare, Tenant, is_shared, shares
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Flow, Statement, Steps, flow, read_together
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, begin_write, end_write, note_action
from holdfast.stores.sqlite.fair_shares import FAIR_INDEX
from holdfast.stores.sqlite.limit_rows import drop_limit, put_limit

# One index lookup per tenant, not per job.
_NAMES = (
    "with recursive named(name) as ("
    "select min(j.tenant) from {{job}} j where {whose} union all"
    " select (select min(j.tenant) from {{job}} j where j.tenant > n.name and {whose}) from named n"
    " where n.name is not null)"
    " select n.name from named n where n.name is not null"
    " union select t.tenant from {{tenant}} t where {set} order by 1"
)
_SET = (
    "select t.tenant, t.title, t.max_pending, coalesce(t.weight, 1), t.set_by, t.created_at, t.updated_at"
    " from {{tenant}} t where {set}"
)
_LIMITS = (
    "select l.tenant, l.concurrency, l.rate, l.per, l.burst from {{job_limit}} l"
    " where l.scope = 'tenant' and l.name = l.tenant and {limited}"
)
_WAITING = (
    "select s.tenant, count(*) from {{job_state}} s where s.state in ('queued', 'retry_waiting')"
    " and s.state not in ('leased', 'in_progress') and {states}"
    " group by s.tenant"
)
_RUNNING = (
    "select s.tenant, count(*) from {{job_state}} s where s.state in ('leased', 'in_progress') and {states}"
    " group by s.tenant"
)
# The same counts up to a limit, each in the index ranges of one tenant.
_CAPPED = (
    "select n.name, (select count(*) from (select 1 from {job_state} s where s.tenant = n.name and s.state = 'queued'"
    " and s.state not in ('leased', 'in_progress') limit :most) a) + (select count(*) from (select 1 from {job_state} s"
    " where s.tenant = n.name and s.state = 'retry_waiting' and s.state not in ('leased', 'in_progress')"
    " limit :most) b),"
    " (select count(*) from (select 1 from {job_state} s where s.tenant = n.name"
    " and s.state in ('leased', 'in_progress') limit :most) c) from (NAMES limit :names) n"
)


class TenantReads(Reader):
    def _counted(
        self, tenant: str, scope: dict[str, str], most: int | None, names: int | None
    ) -> Steps[dict[str, tuple[int, int]]]:
        """The numbers of waiting and running jobs, by the tenant's name."""
        every_name = _NAMES.format(**scope)
        if most is not None:
            if tenant != EVERY_TENANT:
                every_name = "select cast(:tenant as text) as name"  # no search for one known tenant
            rows = yield from self._query(tenant, _CAPPED.replace("NAMES", every_name), most=most, names=names or 2**31)
            return {name: (min(most, waiting), running) for name, waiting, running in rows}
        rows = yield from self._query(tenant, every_name)
        waiting = {row[0]: row[1] for row in (yield from self._query(tenant, _WAITING.format(**scope)))}
        running = {row[0]: row[1] for row in (yield from self._query(tenant, _RUNNING.format(**scope)))}
        return {name: (waiting.get(name, 0), running.get(name, 0)) for (name,) in rows}

    @abstractmethod
    def fair_queues(self) -> Flow[list[str]]: ...

    @flow(writes=False)
    def list(self, tenant: str, most: int | None = None, names: int | None = None) -> Steps[list[Tenant]]:
        """Registered tenants and those that have jobs, by name, with their usage. ``most`` limits each count, and
        ``names`` the number of tenants."""
        scope = {
            "whose": within(tenant, "j.tenant"),
            "set": within(tenant, "t.tenant"),
            "limited": within(tenant, "l.tenant"),
            "states": within(tenant, "s.tenant"),
        }
        counts, registered_rows, limit_rows = yield from read_together(
            self._counted(tenant, scope, most, names),
            self._query(tenant, _SET.format(**scope)),
            self._query(tenant, _LIMITS.format(**scope)),
        )
        registered = {row[0]: row[1:] for row in registered_rows}
        limits = {row[0]: row[1:] for row in limit_rows}
        shared = bool((yield from self.fair_queues().start()))
        time = self.dialect.codec.time
        tenants = []
        for name, (waiting, running) in counts.items():
            record = Tenant(name, pending=waiting, running=running)
            if name in registered:
                title, cap, weight, by, created, updated = registered[name]
                settings = {"title": title, "max_pending": cap, "weight": weight, "set_by": by}
                record = dataclasses.replace(record, **settings, created_at=time(created), updated_at=time(updated))
            if name in limits:
                limit = dict(zip(("max_running", "rate", "per", "burst"), limits[name], strict=True))
                record = dataclasses.replace(record, **limit)
            tenants.append(record)
        share_of = shares(tenants, shared)
        return [dataclasses.replace(record, share=share_of.get(record.name)) for record in tenants]


class PostgresTenants(Calls, TenantReads):
    @flow(single=True)
    def remove(self, name: str, actor: str) -> Steps[bool]:
        return (yield from self._flag("remove_tenant", "%s, %s", name, actor))

    @flow(single=True)
    def set_fair(self, queues: Sequence[str], actor: str) -> Steps[None]:
        """Set which queues tenants share fairly: ``*`` means all, an empty list none."""
        yield self._call("set_fair", "%s::text[], %s", list(queues), actor)

    @flow(single=True, writes=False)
    def fair_queues(self) -> Steps[list[str]]:
        rows = yield self._look("fair_queues", "")
        return list(rows[0][0] or ())

    @flow(single=True)
    def set_registered_only(self, on: bool, actor: str) -> Steps[bool]:
        """Set whether jobs of unregistered tenants are refused. Returns whether that is a change."""
        return (yield from self._flag("set_registered_only", "%s, %s", on, actor))

    @flow(single=True, writes=False)
    def registered_only(self) -> Steps[bool]:
        return (yield from self._flag("registered_only", ""))

    @flow(single=True)
    def next_share(self, job_id: str, tenant: str) -> Steps[QueueShare | None]:
        """The position of a job in a shared queue; None if it does not wait in one."""
        rows = yield self._look("turn_of", "%s, %s, %s", parse_id(job_id), MAX_AHEAD, tenant)
        return QueueShare(*rows[0]) if rows else None

    @flow(single=True)
    def set(self, name: str, settings: dict[str, Any], actor: str) -> Steps[None]:
        """Set the given settings; None removes one, and the others do not change. Setting the first weight shares all
        queues."""
        yield self._call("set_tenant", "%s, %s::jsonb, %s", name, json.dumps(settings), actor)

    @flow(single=True)
    def pin(self, login: str, to_tenant: str, actor: str) -> Steps[Pin]:
        """Pin a login: from its next statement on it may act for this tenant only."""
        rows = yield self._call("pin_login", "%s, %s, %s", login, to_tenant, actor)
        name, tenant, set_by, created = rows[0]
        return Pin(name, tenant, set_by, self.dialect.codec.time(created))

    @flow(single=True)
    def unpin(self, login: str, actor: str) -> Steps[bool]:
        return (yield from self._flag("unpin_login", "%s, %s", login, actor))

    @flow(writes=False)
    def pins(self) -> Steps[list[Pin]]:
        """Pinned logins, by name."""
        rows = yield from self._query(EVERY_TENANT, _PINS)
        time = self.dialect.codec.time
        return [Pin(login, tenant, by, time(created), exists) for login, tenant, by, created, exists in rows]

    @flow(single=True, writes=False)
    def pinned(self) -> Steps[str | None]:
        """The tenant that the login of this connection is pinned to, or None."""
        rows = yield self._look("pinned_tenant", "")
        return None if rows[0][0] is None else str(rows[0][0])


_PINS = (
    "select p.login, p.tenant, p.set_by, p.created_at,"
    " exists (select 1 from pg_catalog.pg_roles r where r.rolname = p.login and r.rolcanlogin)"
    " from {login_pin} p order by p.login"
)

_ADD = (
    "INSERT INTO holdfast_tenant (tenant, set_by, created_at, updated_at) VALUES (:name, :actor, :now, :now)"
    " ON CONFLICT (tenant) DO UPDATE SET set_by = excluded.set_by, updated_at = excluded.updated_at"
)
_TENANT_SET = "UPDATE holdfast_tenant SET {column} = ? WHERE tenant = ?"
_FORGET_LOAD = "DELETE FROM holdfast_tenant_load WHERE tenant = ?"
_RULED = Statement("UPDATE holdfast_dispatch SET ruled = 1 WHERE NOT ruled")
_LIMIT = (
    f"SELECT {Record.columns(Rule)} FROM holdfast_job_limit WHERE tenant = :name AND scope = 'tenant' AND name = :name"
)
_REMOVE = "DELETE FROM holdfast_tenant WHERE tenant = ? RETURNING 1"
_FAIR = "SELECT fair, fair_auto FROM holdfast_dispatch WHERE id = 1"
_SET_FAIR = "UPDATE holdfast_dispatch SET fair = ?, fair_auto = 0 WHERE id = 1"
_REGISTERED = "SELECT registered FROM holdfast_dispatch WHERE id = 1"
_SET_REGISTERED = (
    "UPDATE holdfast_dispatch SET registered = :on, ruled = ruled OR :on WHERE id = 1 AND registered <> :on RETURNING 1"
)
_DROP_INDEX = Statement("DROP INDEX IF EXISTS holdfast_fair")
_DELETE_PLACES = Statement("DELETE FROM holdfast_fair_place")
_WAITING_JOB = (
    "SELECT tenant, queue, priority, position FROM holdfast_job_state WHERE id = :job AND (:any OR tenant = :tenant)"
    " AND state = 'queued' AND due_at IS NULL"
)
_OWN = "queue = :queue AND tenant = :tenant AND state = 'queued' AND due_at IS NULL"
_POSITION = (
    "SELECT (SELECT count(*) FROM (SELECT 1 FROM holdfast_job_state INDEXED BY holdfast_fair"
    f" WHERE {_OWN} AND (priority > :priority OR priority = :priority AND position < :position) LIMIT :most)),"
    " (WITH RECURSIVE walk(name, n) AS (SELECT (SELECT min(tenant) FROM holdfast_job_state INDEXED BY holdfast_fair"
    " WHERE queue = :queue AND state = 'queued' AND due_at IS NULL), 1 UNION ALL SELECT (SELECT min(tenant) FROM"
    " holdfast_job_state INDEXED BY holdfast_fair WHERE queue = :queue AND state = 'queued' AND due_at IS NULL AND"
    " tenant > w.name), w.n + 1 FROM walk w WHERE w.name IS NOT NULL AND w.n < :most) SELECT count(name) FROM walk),"
    " coalesce((SELECT weight FROM holdfast_tenant WHERE tenant = :tenant), 1)"
)


def _no_logins() -> Refused:
    return Refused(
        "SQLite has no logins: anyone who can open the file can act for every tenant",
        code="no_logins",
        fix="Use PostgreSQL, or give each tenant an API token of the HTTP server: holdfast tokens issue --tenant NAME",
    )


class SqliteTenants(SqlitePart, TenantReads):
    @flow()
    def pin(self, login: str, to_tenant: str, actor: str) -> Steps[Pin]:
        yield from ()
        raise _no_logins()

    @flow()
    def unpin(self, login: str, actor: str) -> Steps[bool]:
        yield from ()
        raise _no_logins()

    @flow(writes=False)
    def pins(self) -> Steps[list[Pin]]:
        yield from ()
        return []

    @flow(writes=False)
    def pinned(self) -> Steps[str | None]:
        yield from ()
        return None

    @flow(notifies=True)
    def remove(self, name: str, actor: str) -> Steps[bool]:
        now = yield from begin_write(actor)
        rows = yield Statement(_REMOVE, (name,))
        if rows:
            yield Statement(_FORGET_LOAD, (name,))
            yield from drop_limit("tenant", name, name, now)
        yield from end_write()
        return bool(rows)

    @flow(notifies=True)
    def set_fair(self, queues: Sequence[str], actor: str) -> Steps[None]:
        yield from begin_write(actor)
        yield from _share(queues)
        yield from end_write()

    @flow(writes=False)
    def fair_queues(self) -> Steps[list[str]]:
        return (yield from _fair())

    @flow()
    def set_registered_only(self, on: bool, actor: str) -> Steps[bool]:
        yield from begin_write(actor)
        rows = yield Statement(_SET_REGISTERED, {"on": int(on)})
        if rows:
            changed = json.dumps({"registered": [not on, on]})
            yield from note_action(EVERY_TENANT, "change", "tenants", "registered only", changed)
        yield from end_write()
        return bool(rows)

    @flow(writes=False)
    def registered_only(self) -> Steps[bool]:
        return bool((yield Statement(_REGISTERED))[0][0])

    @flow(writes=False)
    def next_share(self, job_id: str, tenant: str) -> Steps[QueueShare | None]:
        ((stored, _),) = yield Statement(_FAIR)
        fair = [] if stored is None else json.loads(stored)
        rows = yield Statement(_WAITING_JOB, {"job": parse_id(job_id), "any": any_tenant(tenant), "tenant": tenant})
        if not rows or not is_shared(rows[0][1], fair):
            return None
        job = dict(zip(("tenant", "queue", "priority", "position"), rows[0], strict=True))
        rows = yield Statement(_POSITION, {**job, "most": MAX_AHEAD})
        return QueueShare(*rows[0])

    @flow(notifies=True)
    def set(self, name: str, settings: dict[str, Any], actor: str) -> Steps[None]:
        now = yield from begin_write(actor)
        yield Statement(_ADD, {"name": name, "actor": actor, "now": now})
        for column in ("title", "max_pending", "weight"):
            if column in settings:
                yield Statement(_TENANT_SET.format(column=column), (settings[column], name))
        if settings.get("max_pending") is not None:
            yield Statement(_FORGET_LOAD, (name,))  # forces a new count
            yield _RULED
        if "max_running" in settings or "rate" in settings:
            yield from _set_limit(name, settings, actor, now)
        if settings.get("weight") is not None and (yield Statement(_FAIR))[0] == (None, 1):
            yield from _share([EVERY_QUEUE])
        yield from end_write()


def _set_limit(name: str, settings: dict[str, Any], actor: str, now: int) -> Steps[None]:
    """Change the tenant's limit of running jobs and its rate; a part that is not given does not change."""
    rows = yield Statement(_LIMIT, {"name": name})
    rule = Rule(*rows[0]) if rows else Rule("tenant", name)
    if "max_running" in settings:
        rule = dataclasses.replace(rule, concurrency=settings["max_running"])
    if "rate" in settings:
        rule = dataclasses.replace(rule, **{each: settings[each] for each in ("rate", "per", "burst")})
    if rule.concurrency is None and rule.rate is None:
        yield from drop_limit("tenant", name, name, now)
    else:
        yield from put_limit(rule, actor, name, now)


def _fair() -> Steps[list[str]]:
    ((fair, auto),) = yield Statement(_FAIR)
    return [EVERY_QUEUE] if auto else [] if fair is None else json.loads(fair)


def _share(queues: Sequence[str]) -> Steps[None]:
    current = yield from _fair()
    if current != list(queues):
        changed = json.dumps({"fair": [current or None, list(queues) or None]})
        yield from note_action(EVERY_TENANT, "change", "tenants", "shared queues", changed)
    if queues:
        yield FAIR_INDEX
        yield Statement(_SET_FAIR, (json.dumps(list(queues)),))
    else:
        yield Statement(_SET_FAIR, (None,))
        yield _DELETE_PLACES
        yield _DROP_INDEX
