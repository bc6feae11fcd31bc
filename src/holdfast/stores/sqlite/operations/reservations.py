"""Direct reservations (SC-10): asked for, kept alive, released; expired when nobody keeps them alive.

There is one writer at a time: who is first in the line stays so until the end of the transaction.
"""

from __future__ import annotations

from holdfast.features.limits.model import NOBODYS, Ask, Bucket, Standing
from holdfast.stores.codecs import in_micros
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.sqlite.admission import go_on
from holdfast.stores.sqlite.base import any_tenant, sign, unsign

_ASK = (
    "INSERT INTO reservation (id, tenant, scope, name, holder, reason, asked_at, expires_at)"
    " VALUES (:id, :tenant, :scope, :name, :actor, :reason, :now, :until)"
)
_KEEP = (
    "UPDATE reservation SET expires_at = max(expires_at, :until)"
    " WHERE id = :id AND tenant = :tenant AND state IN ('waiting', 'active') AND expires_at > :now"
)
_OWN = (
    "SELECT CASE WHEN state IN ('waiting', 'active') AND expires_at <= :now THEN 'expired' ELSE state END"
    " FROM reservation WHERE id = :id AND tenant = :tenant"
)
# Whoever stands in the way: active, or before it in the line; everything is in the way of anything.
_AHEAD = (
    "SELECT count(*) FROM reservation r JOIN reservation o ON o.id = :id"
    " WHERE r.id <> o.id AND r.expires_at > :now AND (r.tenant = o.tenant OR '*' IN (r.tenant, o.tenant))"
    " AND ('all' IN (r.scope, o.scope) OR (r.scope = o.scope AND r.name = o.name))"
    " AND (r.state = 'active' OR (r.state = 'waiting' AND (r.asked_at, r.id) < (o.asked_at, o.id)))"
)
_BEGIN = "UPDATE reservation SET state = 'active', reserved_at = :now, expires_at = :until WHERE id = :id"
_SWITCH_ON = Statement("UPDATE dispatch SET limited = 1 WHERE NOT limited")
_RUNNING = (
    "SELECT count(*) FROM job_state s WHERE s.state IN ('leased', 'in_progress')"
    " AND (:tenant = '*' OR s.tenant = :tenant) AND CASE :scope WHEN 'all' THEN 1 WHEN 'queue' THEN s.queue = :name"
    " ELSE EXISTS (SELECT 1 FROM job j, json_each(j.uses) u WHERE j.n = s.n AND u.value = 'resource:' || :name) END"
)
_RELEASE = (
    "UPDATE reservation SET ended_at = :now, ended_by = :actor,"
    " state = CASE WHEN state = 'waiting' THEN 'withdrawn' WHEN expires_at <= :now THEN 'expired' ELSE 'released' END,"
    " ended_why = CASE WHEN state = 'active' AND expires_at <= :now THEN 'expired' ELSE :why END"
    " WHERE id = :id AND state IN ('waiting', 'active') AND (:any OR tenant = :tenant)"
    " RETURNING tenant, scope, name, state"
)
_EXPIRE = (
    "UPDATE reservation SET state = CASE state WHEN 'waiting' THEN 'withdrawn' ELSE 'expired' END, ended_at = :now,"
    " ended_by = (SELECT actor FROM present), ended_why = 'nobody kept it alive'"
    " WHERE state IN ('waiting', 'active') AND expires_at <= :now RETURNING tenant, scope, name"
)


class ReservationVerbs:
    @flow(tells=True)
    def reserve(self, ask: Ask, actor: str, tenant: str) -> Steps[Standing]:
        now = yield from sign(actor)
        facts = {"id": ask.id, "tenant": tenant, "now": now, "until": now + in_micros(ask.ttl)}
        what = {"tenant": tenant, "scope": ask.scope, "name": ask.name}
        found = yield Statement(_OWN, facts)
        if found:
            yield Statement(_KEEP, facts)
        elif (yield Statement("SELECT 1 FROM reservation WHERE id = ?", (ask.id,))):
            yield from unsign()
            return NOBODYS
        else:
            yield Statement(_ASK, {**facts, **what, "actor": actor, "reason": ask.reason or None})
        ((state,),) = yield Statement(_OWN, facts)
        ((ahead,),) = yield Statement(_AHEAD, facts)
        if state == "waiting" and ahead == 0:
            yield from expire_reservations(now)
            yield Statement(_BEGIN, facts)
            yield _SWITCH_ON
            state = "active"
        ((running,),) = yield Statement(_RUNNING, what)
        yield from unsign()
        return Standing(state, running, ahead)

    @flow(tells=True)
    def release_reservation(self, reservation_id: str, why: str, actor: str, tenant: str) -> Steps[bool]:
        now = yield from sign(actor)
        facts = {"id": reservation_id, "why": why, "actor": actor, "now": now}
        rows = yield Statement(_RELEASE, {**facts, "any": any_tenant(tenant), "tenant": tenant})
        for whose, scope, name, _ in rows:
            yield from _after(whose, scope, name, now)
        yield from unsign()
        return bool(rows) and rows[0][3] != "expired"


def expire_reservations(now: int) -> Steps[int]:
    """Write down which have run out: nobody has kept them alive."""
    rows = yield Statement(_EXPIRE, {"now": now})
    for tenant, scope, name in rows:
        yield from _after(tenant, scope, name, now)
    return len(rows)


def _after(tenant: str, scope: str, name: str, now: int) -> Steps[None]:
    """Jobs may be taken there again. Whoever looks into a queue hears of every commit."""
    if scope == "resource":
        yield from go_on(Bucket(tenant, scope, name), 1000, now)
