"""Tenants in the database: port, shared reads, PostgreSQL and SQLite."""

from __future__ import annotations

import dataclasses
import json
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.engine.ids import parse_id
from holdfast.engine.job import EVERY_TENANT
from holdfast.errors import Refused
from holdfast.features.agents.model import AHEAD
from holdfast.features.limits.model import Rule
from holdfast.features.tenants.model import EVERY_QUEUE, Pin, Tenant, TurnOf, in_shares, with_shares
from holdfast.stores.flow import Flow, Statement, Steps, flow, read_together
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, note_action, sign, unsign
from holdfast.stores.sqlite.fair_shares import FAIR_INDEX
from holdfast.stores.sqlite.limit_rows import drop_limit, put_limit


class TenantStore(Protocol):
    def remove(self, name: str, actor: str) -> Flow[bool]: ...

    def set_fair(self, queues: Sequence[str], actor: str) -> Flow[None]:
        """From now on tenants share these queues fairly, ``*`` all of them; none: nothing is shared."""
        ...

    def fair_queues(self) -> Flow[list[str]]: ...

    def set_registered_only(self, on: bool, actor: str) -> Flow[bool]:
        """From now on jobs of tenants that are not registered are refused, or no more; whether that is a change."""
        ...

    def registered_only(self) -> Flow[bool]: ...

    def next_share(self, job_id: str, tenant: str) -> Flow[TurnOf | None]:
        """Where a job stands in a queue that is shared; None when it does not wait there."""
        ...

    def set(self, name: str, what: dict[str, Any], actor: str) -> Flow[None]:
        """Set what is named and leave the rest; None takes it away. The first weight has all queues shared."""
        ...

    def pin(self, login: str, to_tenant: str, actor: str) -> Flow[Pin]:
        """From its next statement on the login may act for this tenant only."""
        ...

    def unpin(self, login: str, actor: str) -> Flow[bool]: ...

    def pins(self) -> Flow[Sequence[Pin]]:
        """By login."""
        ...

    def pinned(self) -> Flow[str | None]:
        """The tenant that the login of this very connection is pinned to."""
        ...

    def list(self, tenant: str, most: int | None = None, names: int | None = None) -> Flow[list[Tenant]]:
        """The registered ones and those that have jobs, by their names, with what they use: counted up to ``most``, and
        no more than so many names, where a limit is given."""
        ...


# One look at an index for each tenant, not one a job.
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
# The same up to a limit: for each name its own ranges of the index.
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
        self, tenant: str, whose: dict[str, str], most: int | None, names: int | None
    ) -> Steps[dict[str, tuple[int, int]]]:
        """By the name: how many wait and how many run."""
        every = _NAMES.format(**whose)
        if most is not None:
            if tenant != EVERY_TENANT:
                every = "select cast(:tenant as text) as name"  # one that is known by its name is not looked for
            rows = yield from self._ask(tenant, _CAPPED.replace("NAMES", every), most=most, names=names or 2**31)
            return {name: (min(most, waiting), running) for name, waiting, running in rows}
        found = yield from self._ask(tenant, every)
        waiting = {row[0]: row[1] for row in (yield from self._ask(tenant, _WAITING.format(**whose)))}
        running = {row[0]: row[1] for row in (yield from self._ask(tenant, _RUNNING.format(**whose)))}
        return {name: (waiting.get(name, 0), running.get(name, 0)) for (name,) in found}

    @abstractmethod
    def fair_queues(self) -> Flow[list[str]]: ...

    @flow(writes=False)
    def list(self, tenant: str, most: int | None = None, names: int | None = None) -> Steps[list[Tenant]]:
        whose = {
            "whose": within(tenant, "j.tenant"),
            "set": within(tenant, "t.tenant"),
            "limited": within(tenant, "l.tenant"),
            "states": within(tenant, "s.tenant"),
        }
        counted, terms_of, limits_of = yield from read_together(
            self._counted(tenant, whose, most, names),
            self._ask(tenant, _SET.format(**whose)),
            self._ask(tenant, _LIMITS.format(**whose)),
        )
        known = {row[0]: row for row in terms_of}
        limits = {row[0]: row[1:] for row in limits_of}
        shared = bool((yield from self.fair_queues().start()))
        time = self.dialect.codec.time
        found = []
        for name, (waiting, running) in counted.items():
            each = Tenant(name, pending=waiting, running=running)
            if name in known:
                _, title, cap, weight, by, created, updated = known[name]
                terms = {"title": title, "max_pending": cap, "weight": weight, "set_by": by}
                each = dataclasses.replace(each, **terms, created_at=time(created), updated_at=time(updated))
            if name in limits:
                limit = dict(zip(("max_running", "rate", "per", "burst"), limits[name], strict=True))
                each = dataclasses.replace(each, **limit)
            found.append(each)
        shares = with_shares(found, shared)
        return [dataclasses.replace(each, share=shares.get(each.name)) for each in found]


class PostgresTenants(Calls, TenantReads):
    @flow(single=True)
    def remove(self, name: str, actor: str) -> Steps[bool]:
        rows = yield self._call("remove_tenant", "%s, %s", name, actor)
        return bool(rows[0][0])

    @flow(single=True)
    def set_fair(self, queues: Sequence[str], actor: str) -> Steps[None]:
        yield self._call("set_fair", "%s::text[], %s", list(queues), actor)

    @flow(single=True, writes=False)
    def fair_queues(self) -> Steps[list[str]]:
        rows = yield self._look("fair_queues", "")
        return list(rows[0][0] or ())

    @flow(single=True)
    def set_registered_only(self, on: bool, actor: str) -> Steps[bool]:
        rows = yield self._call("set_registered_only", "%s, %s", on, actor)
        return bool(rows[0][0])

    @flow(single=True, writes=False)
    def registered_only(self) -> Steps[bool]:
        rows = yield self._call("registered_only", "")
        return bool(rows[0][0])

    @flow(single=True)
    def next_share(self, job_id: str, tenant: str) -> Steps[TurnOf | None]:
        rows = yield self._look("turn_of", "%s, %s, %s", parse_id(job_id), AHEAD, tenant)
        return TurnOf(*rows[0]) if rows else None

    @flow(single=True)
    def set(self, name: str, what: dict[str, Any], actor: str) -> Steps[None]:
        yield self._call("set_tenant", "%s, %s::jsonb, %s", name, json.dumps(what), actor)

    @flow(single=True)
    def pin(self, login: str, to_tenant: str, actor: str) -> Steps[Pin]:
        rows = yield self._call("pin_login", "%s, %s, %s", login, to_tenant, actor)
        name, tenant, set_by, created = rows[0]
        return Pin(name, tenant, set_by, self.dialect.codec.time(created))

    @flow(single=True)
    def unpin(self, login: str, actor: str) -> Steps[bool]:
        rows = yield self._call("unpin_login", "%s, %s", login, actor)
        return bool(rows[0][0])

    @flow(writes=False)
    def pins(self) -> Steps[Sequence[Pin]]:
        rows = yield from self._ask(EVERY_TENANT, _PINS)
        time = self.dialect.codec.time
        return [Pin(login, tenant, by, time(created), there) for login, tenant, by, created, there in rows]

    @flow(single=True, writes=False)
    def pinned(self) -> Steps[str | None]:
        rows = yield self._look("pinned_tenant", "")
        return None if rows[0][0] is None else str(rows[0][0])


_PINS = (
    "select p.login, p.tenant, p.set_by, p.created_at,"
    " exists (select 1 from pg_catalog.pg_roles r where r.rolname = p.login and r.rolcanlogin)"
    " from {login_pin} p order by p.login"
)

_ADD = (
    "INSERT INTO tenant (tenant, set_by, created_at, updated_at) VALUES (:name, :actor, :now, :now)"
    " ON CONFLICT (tenant) DO UPDATE SET set_by = excluded.set_by, updated_at = excluded.updated_at"
)
_TENANT_SET = "UPDATE tenant SET {column} = ? WHERE tenant = ?"
_FORGET_LOAD = "DELETE FROM tenant_load WHERE tenant = ?"
_RULED = Statement("UPDATE dispatch SET ruled = 1 WHERE NOT ruled")
_LIMIT = (
    "SELECT concurrency, rate, per, burst FROM job_limit WHERE tenant = :name AND scope = 'tenant' AND name = :name"
)
_REMOVE = "DELETE FROM tenant WHERE tenant = ? RETURNING 1"
_FAIR = "SELECT fair, fair_auto FROM dispatch WHERE id = 1"
_SET_FAIR = "UPDATE dispatch SET fair = ?, fair_auto = 0 WHERE id = 1"
_REGISTERED = "SELECT registered FROM dispatch WHERE id = 1"
_SET_REGISTERED = (
    "UPDATE dispatch SET registered = :on, ruled = ruled OR :on WHERE id = 1 AND registered <> :on RETURNING 1"
)
_NO_INDEX = Statement("DROP INDEX IF EXISTS fair")
_NO_PLACES = Statement("DELETE FROM fair_place")
_WAITS = (
    "SELECT tenant, queue, priority, position FROM job_state WHERE id = :job AND (:any OR tenant = :tenant)"
    " AND state = 'queued' AND due_at IS NULL"
)
_OWN = "queue = :queue AND tenant = :tenant AND state = 'queued' AND due_at IS NULL"
_TURN = (
    "SELECT (SELECT count(*) FROM (SELECT 1 FROM job_state INDEXED BY fair"
    f" WHERE {_OWN} AND (priority > :priority OR priority = :priority AND position < :position) LIMIT :most)),"
    " (WITH RECURSIVE walk(name, n) AS (SELECT (SELECT min(tenant) FROM job_state INDEXED BY fair WHERE queue = :queue"
    " AND state = 'queued' AND due_at IS NULL), 1 UNION ALL SELECT (SELECT min(tenant) FROM job_state INDEXED BY fair"
    " WHERE queue = :queue AND state = 'queued' AND due_at IS NULL AND tenant > w.name), w.n + 1 FROM walk w"
    " WHERE w.name IS NOT NULL AND w.n < :most) SELECT count(name) FROM walk),"
    " coalesce((SELECT weight FROM tenant WHERE tenant = :tenant), 1)"
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
    def pins(self) -> Steps[Sequence[Pin]]:
        yield from ()
        return []

    @flow(writes=False)
    def pinned(self) -> Steps[str | None]:
        yield from ()
        return None

    @flow(tells=True)
    def remove(self, name: str, actor: str) -> Steps[bool]:
        now = yield from sign(actor)
        rows = yield Statement(_REMOVE, (name,))
        if rows:
            yield Statement(_FORGET_LOAD, (name,))
            yield from drop_limit("tenant", name, name, now)
        yield from unsign()
        return bool(rows)

    @flow(tells=True)
    def set_fair(self, queues: Sequence[str], actor: str) -> Steps[None]:
        yield from sign(actor)
        yield from _share(queues)
        yield from unsign()

    @flow(writes=False)
    def fair_queues(self) -> Steps[list[str]]:
        return (yield from _fair())

    @flow()
    def set_registered_only(self, on: bool, actor: str) -> Steps[bool]:
        yield from sign(actor)
        rows = yield Statement(_SET_REGISTERED, {"on": int(on)})
        if rows:
            changed = json.dumps({"registered": [not on, on]})
            yield from note_action(EVERY_TENANT, "change", "tenants", "registered only", changed)
        yield from unsign()
        return bool(rows)

    @flow(writes=False)
    def registered_only(self) -> Steps[bool]:
        return bool((yield Statement(_REGISTERED))[0][0])

    @flow(writes=False)
    def next_share(self, job_id: str, tenant: str) -> Steps[TurnOf | None]:
        ((chosen, _),) = yield Statement(_FAIR)
        fair = [] if chosen is None else json.loads(chosen)
        rows = yield Statement(_WAITS, {"job": parse_id(job_id), "any": any_tenant(tenant), "tenant": tenant})
        if not rows or not in_shares(rows[0][1], fair):
            return None
        place = dict(zip(("tenant", "queue", "priority", "position"), rows[0], strict=True))
        found = yield Statement(_TURN, {**place, "most": AHEAD})
        return TurnOf(*found[0])

    @flow(tells=True)
    def set(self, name: str, what: dict[str, Any], actor: str) -> Steps[None]:
        now = yield from sign(actor)
        yield Statement(_ADD, {"name": name, "actor": actor, "now": now})
        for column in ("title", "max_pending", "weight"):
            if column in what:
                yield Statement(_TENANT_SET.format(column=column), (what[column], name))
        if what.get("max_pending") is not None:
            yield Statement(_FORGET_LOAD, (name,))  # counted anew
            yield _RULED
        if "max_running" in what or "rate" in what:
            yield from _limit(name, what, actor, now)
        if what.get("weight") is not None and (yield Statement(_FAIR))[0] == (None, 1):
            yield from _share([EVERY_QUEUE])
        yield from unsign()


def _limit(name: str, what: dict[str, Any], actor: str, now: int) -> Steps[None]:
    rows = yield Statement(_LIMIT, {"name": name})
    concurrency, rate, per, burst = rows[0] if rows else (None, None, None, None)
    if "max_running" in what:
        concurrency = what["max_running"]
    if "rate" in what:
        rate, per, burst = what["rate"], what["per"], what["burst"]
    if concurrency is None and rate is None:
        yield from drop_limit("tenant", name, name, now)
    else:
        yield from put_limit(Rule("tenant", name, concurrency, rate, per, burst), actor, name, now)


def _fair() -> Steps[list[str]]:
    ((fair, auto),) = yield Statement(_FAIR)
    return [EVERY_QUEUE] if auto else [] if fair is None else json.loads(fair)


def _share(queues: Sequence[str]) -> Steps[None]:
    was = yield from _fair()
    if was != list(queues):
        changed = json.dumps({"fair": [was or None, list(queues) or None]})
        yield from note_action(EVERY_TENANT, "change", "tenants", "shared queues", changed)
    if queues:
        yield FAIR_INDEX
        yield Statement(_SET_FAIR, (json.dumps(list(queues)),))
    else:
        yield Statement(_SET_FAIR, (None,))
        yield _NO_PLACES
        yield _NO_INDEX
