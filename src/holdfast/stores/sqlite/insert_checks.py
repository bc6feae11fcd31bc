"""What is checked when jobs are inserted: pauses that refuse, payload rules, agents, and how many jobs of a tenant may
wait.

Waiting is queued or retry_waiting, whatever it waits for there; with the policy ``pending_includes_running`` also
leased or in_progress. Only for tenants with a cap is anything counted. There
is one writer at a time, so what is counted stays so. The number is kept with a place in the ledger, and what happened
since is read from there: steps of jobs cost nothing for it. Once a minute they are counted one by one, by index: the
ledger of jobs that were purged is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.engine.job import JobSpec
from holdfast.errors import Refused
from holdfast.features.agents.model import Agent
from holdfast.features.limits.model import Pause, refused
from holdfast.features.payloads.model import Effective, PayloadRule, effective
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps
from holdfast.stores.sqlite.codec import SqliteCodec

ANEW = 60_000_000
_RULED = "SELECT ruled, registered, running_counts FROM dispatch WHERE id = 1"
_KNOWN = "SELECT 1 FROM tenant WHERE tenant = ?"
_CAP = "SELECT max_pending FROM tenant WHERE tenant = ? AND max_pending IS NOT NULL"
_LOAD = "SELECT pending, seq, counted_at FROM tenant_load WHERE tenant = ?"
_LAST = "SELECT coalesce(max(seq), 0) FROM event"
# The second half says in which index they are: SQLite does not conclude it.
_COUNT = (
    "SELECT count(*) FROM job_state INDEXED BY by_state WHERE tenant = ? AND state IN ('queued', 'retry_waiting')"
    " AND state NOT IN ('leased', 'in_progress')"
)
_HELD = "SELECT count(*) FROM job_state WHERE tenant = ? AND state IN ('leased', 'in_progress')"
_SINCE = (
    "SELECT coalesce(sum((to_state IN (STATES)) - (coalesce(from_state, '') IN (STATES))), 0)"
    " FROM event WHERE seq > ? AND +tenant = ?"
)
_SINCE_WAITING = _SINCE.replace("STATES", "'queued', 'retry_waiting'")
_SINCE_PENDING = _SINCE.replace("STATES", "'queued', 'retry_waiting', 'leased', 'in_progress'")
_KEEP = (
    "INSERT INTO tenant_load (tenant, pending, seq, counted_at) VALUES (?, ?, ?, ?) ON CONFLICT (tenant) DO UPDATE"
    " SET pending = excluded.pending, seq = excluded.seq, counted_at = excluded.counted_at"
)
# Those of this very write, which have no state yet. (By their numbers: an index of the tenant's would be read whole.)
_COMING = "SELECT count(*) FROM clock c CROSS JOIN job j WHERE j.n > c.floor AND +j.tenant = ?"


def hold_to_cap(new: Sequence[JobSpec], tenant: str, now: int) -> Steps[None]:
    """Refuse these jobs if the tenant has no room for all of them."""
    refusal = yield from no_room(len(new), new[0].kind, tenant, now)
    if refusal is not None:
        raise refusal


def no_room(jobs: int, kind: str, tenant: str, now: int) -> Steps[Refused | None]:
    ((ruled, registered, running),) = yield Statement(_RULED)
    if registered and not (yield Statement(_KNOWN, (tenant,))):
        return Refused(
            f"tenant {tenant} is not registered: job of kind {kind} refused",
            code="tenant_unregistered",
            fix=f"Register it: holdfast tenants set {tenant}",
        )
    caps = (yield Statement(_CAP, (tenant,))) if ruled else []
    if not caps:
        return None
    pending = yield from pending_of(tenant, now, bool(running))
    ((coming,),) = yield Statement(_COMING, (tenant,))
    if pending + coming + jobs <= caps[0][0]:
        return None
    return Refused(
        f"tenant {tenant} has {pending + coming} waiting jobs and may have {caps[0][0]}: {jobs} of kind {kind} refused",
        code="tenant_full",
        fix=f"Enqueue again later, or raise the limit: holdfast tenants set {tenant} --max-pending N",
    )


def pending_of(tenant: str, now: int, running: bool) -> Steps[int]:
    kept = yield Statement(_LOAD, (tenant,))
    ((last,),) = yield Statement(_LAST)
    pending, seq, counted_at = kept[0] if kept else (0, 0, 0)
    if not kept or not now - ANEW <= counted_at <= now or last - seq > pending + 1000:
        ((pending,),) = yield Statement(_COUNT, (tenant,))
        if running:
            ((held,),) = yield Statement(_HELD, (tenant,))
            pending += held
        counted_at = now
    else:
        ((change,),) = yield Statement(_SINCE_PENDING if running else _SINCE_WAITING, (seq, tenant))
        pending += change
    yield Statement(_KEEP, (tenant, pending, last, counted_at))
    return int(pending)


_REFUSING = f"SELECT {Record.columns(Pause)} FROM pause WHERE refuse_enqueue AND (until IS NULL OR until > ?)"


def refuse_paused(specs: Iterable[JobSpec], tenant: str, now: int) -> Steps[None]:
    """Raise if one of them is not accepted. Asked only where something is ruled at all."""
    decode = Record.decoder(Pause, SqliteCodec())
    for pause in [decode(row) for row in (yield Statement(_REFUSING, (now,)))]:
        for spec in specs:
            if pause.holds(tenant, spec.queue, spec.kind, spec.agent):
                raise refused(pause, spec.kind)


_OF = f"SELECT {Record.columns(Agent, skip=('waiting',))}, 0 FROM agent WHERE tenant = ? AND id = ?"


def agents_of(specs: Iterable[JobSpec], tenant: str) -> Steps[dict[str, Agent]]:
    """The agents of a batch that are registered, by their ids. Approvals read ``requires_approval`` here."""
    found: dict[str, Agent] = {}
    decode = Record.decoder(Agent, SqliteCodec())
    for name in {spec.agent for spec in specs if spec.agent is not None}:
        rows = yield Statement(_OF, (tenant, name))
        if rows:
            found[name] = decode(rows[0])
    return found


_RULED_AT_ALL = Statement("SELECT ruled FROM dispatch WHERE id = 1")
_RULES = f"SELECT {Record.columns(PayloadRule)} FROM payload_rule WHERE tenant = ? OR tenant = '*'"


def rule_for(tenant: str, kind: str) -> Steps[Effective]:
    """All rules for a kind in a tenant, together."""
    rows = yield Statement(_RULES, (tenant,))
    decode = Record.decoder(PayloadRule, SqliteCodec())
    return effective([decode(row) for row in rows], tenant, kind)


def is_ruled() -> Steps[bool]:
    rows = yield _RULED_AT_ALL
    return bool(rows[0][0])


def judge_payloads(specs: Sequence[JobSpec], tenant: str) -> Steps[None]:
    """Refuse the batch for the first payload that a rule objects to. Only called where there is a rule at all."""
    rows = yield Statement(_RULES, (tenant,))
    decode = Record.decoder(PayloadRule, SqliteCodec())
    rules = [decode(row) for row in rows]
    known: dict[str, Effective] = {}
    for spec in specs if rules else ():
        if spec.kind not in known:
            known[spec.kind] = effective(rules, tenant, spec.kind)
        refusal = known[spec.kind].objection(spec.kind, spec.payload)
        if refusal is not None:
            raise refusal
