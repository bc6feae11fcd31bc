"""Checks at enqueue: pauses that refuse jobs, payload rules, agents, and the cap on waiting jobs of a tenant.

Waiting jobs are queued or retry_waiting; with the policy ``pending_includes_running`` also leased or in_progress. Jobs
are counted only for tenants with a cap. There is one writer at a time, so the count is exact until the commit. It is
stored with a position in the ledger and updated from later events, so that transitions of jobs cost nothing. Once a
minute the jobs are counted again by index, because events of purged jobs are missing in the ledger.
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

RECOUNT_AFTER = 60_000_000
_RULED = "SELECT ruled, registered, running_counts FROM holdfast_dispatch WHERE id = 1"
_KNOWN = "SELECT 1 FROM holdfast_tenant WHERE tenant = ?"
_CAP = "SELECT max_pending FROM holdfast_tenant WHERE tenant = ? AND max_pending IS NOT NULL"
_LOAD = "SELECT pending, seq, counted_at FROM holdfast_tenant_load WHERE tenant = ?"
_LAST = "SELECT coalesce(max(seq), 0) FROM holdfast_event"
# The second condition selects the partial index: SQLite does not infer it.
_COUNT = (
    "SELECT count(*) FROM holdfast_job_state INDEXED BY holdfast_by_state WHERE tenant = ? AND state IN ('queued',"
    " 'retry_waiting') AND state NOT IN ('leased', 'in_progress')"
)
_HELD = "SELECT count(*) FROM holdfast_job_state WHERE tenant = ? AND state IN ('leased', 'in_progress')"
_SINCE = (
    "SELECT coalesce(sum((to_state IN (STATES)) - (coalesce(from_state, '') IN (STATES))), 0)"
    " FROM holdfast_event WHERE seq > ? AND +tenant = ?"
)
_SINCE_WAITING = _SINCE.replace("STATES", "'queued', 'retry_waiting'")
_SINCE_PENDING = _SINCE.replace("STATES", "'queued', 'retry_waiting', 'leased', 'in_progress'")
_KEEP = (
    "INSERT INTO holdfast_tenant_load (tenant, pending, seq, counted_at) VALUES (?, ?, ?, ?) ON CONFLICT (tenant) DO"
    " UPDATE SET pending = excluded.pending, seq = excluded.seq, counted_at = excluded.counted_at"
)
# Jobs of this write, which have no state yet; by their numbers, because an index on the tenant would be read in full.
_COMING = "SELECT count(*) FROM holdfast_clock c CROSS JOIN holdfast_job j WHERE j.n > c.floor AND +j.tenant = ?"


def check_cap(new: Sequence[JobSpec], tenant: str, now: int) -> Steps[None]:
    """Refuse these jobs if the tenant is not registered or they exceed its cap on waiting jobs."""
    refusal = yield from capacity_refusal(len(new), new[0].kind, tenant, now)
    if refusal is not None:
        raise refusal


def capacity_refusal(jobs: int, kind: str, tenant: str, now: int) -> Steps[Refused | None]:
    """Why the tenant may not enqueue this number of jobs; None if it may."""
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
    """The number of waiting jobs of a tenant: the stored count plus later events, or a new count."""
    stored = yield Statement(_LOAD, (tenant,))
    ((last,),) = yield Statement(_LAST)
    pending, seq, counted_at = stored[0] if stored else (0, 0, 0)
    if not stored or not now - RECOUNT_AFTER <= counted_at <= now or last - seq > pending + 1000:
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


_PAUSES = f"SELECT {Record.columns(Pause)} FROM holdfast_pause WHERE until IS NULL OR until > ?"


def refuse_paused(specs: Iterable[JobSpec], tenant: str, now: int) -> Steps[None]:
    """Raise if a pause refuses one of the jobs. Called only where there are rules."""
    decode = Record.decoder(Pause, SqliteCodec())
    for pause in [decode(row) for row in (yield Statement(_PAUSES, (now,)))]:
        for spec in specs:
            if pause.refuses(tenant, spec.queue, spec.kind, spec.agent):
                raise refused(pause, spec.kind)


_OF = f"SELECT {Record.columns(Agent, skip=('waiting',))}, 0 FROM holdfast_agent WHERE tenant = ? AND id = ?"


def agents_of(specs: Iterable[JobSpec], tenant: str) -> Steps[dict[str, Agent]]:
    """The registered agents of a batch, by id. Approvals read ``requires_approval`` here."""
    agents: dict[str, Agent] = {}
    decode = Record.decoder(Agent, SqliteCodec())
    for name in {spec.agent for spec in specs if spec.agent is not None}:
        rows = yield Statement(_OF, (tenant, name))
        if rows:
            agents[name] = decode(rows[0])
    return agents


_RULED_AT_ALL = Statement("SELECT ruled FROM holdfast_dispatch WHERE id = 1")
_RULES = f"SELECT {Record.columns(PayloadRule)} FROM holdfast_payload_rule WHERE tenant = ? OR tenant = '*'"


def rule_for(tenant: str, kind: str) -> Steps[Effective]:
    """The combined payload rules of a kind in a tenant."""
    rows = yield Statement(_RULES, (tenant,))
    decode = Record.decoder(PayloadRule, SqliteCodec())
    return effective([decode(row) for row in rows], tenant, kind)


def is_ruled() -> Steps[bool]:
    rows = yield _RULED_AT_ALL
    return bool(rows[0][0])


def check_payloads(specs: Sequence[JobSpec], tenant: str) -> Steps[None]:
    """Refuse the batch at the first payload that a rule refuses. Called only where there are rules."""
    rows = yield Statement(_RULES, (tenant,))
    decode = Record.decoder(PayloadRule, SqliteCodec())
    rules = [decode(row) for row in rows]
    known: dict[str, Effective] = {}
    for spec in specs if rules else ():
        if spec.kind not in known:
            known[spec.kind] = effective(rules, tenant, spec.kind)
        refusal = known[spec.kind].refusal(spec.kind, spec.payload)
        if refusal is not None:
            raise refusal
