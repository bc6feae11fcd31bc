"""Fair shares: in a shared queue, tenants with waiting jobs alternate, each with as many jobs as its weight; the jobs
of a tenant keep the order of the queue.

The index ``fair`` exists only while queues are shared, which begins when a second tenant has jobs. A claim visits the
tenants in alphabetical order, continues after the last tenant of the previous claim, and visits only as many as it
needs. Where only one tenant has jobs, the normal claim is used.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.tenants.model import EVERY_QUEUE, is_shared
from holdfast.stores.flow import Row, Statement, Steps
from holdfast.stores.requests import ClaimRequest
from holdfast.stores.sqlite.base import ids_json

WINDOW = 16
FAIR_INDEX = Statement(
    "CREATE INDEX IF NOT EXISTS holdfast_fair ON holdfast_job_state (queue, tenant, priority DESC, position)"
    " WHERE state = 'queued' AND due_at IS NULL"
)
SHARING_NEEDED = (
    "SELECT 1 FROM holdfast_dispatch WHERE id = 1 AND fair IS NULL AND fair_auto AND"
    " (SELECT min(tenant) FROM holdfast_job_state WHERE state NOT IN ('leased', 'in_progress'))"
    " < (SELECT max(tenant) FROM holdfast_job_state WHERE state NOT IN ('leased', 'in_progress'))"
)
_ALL_SHARED = Statement("UPDATE holdfast_dispatch SET fair = ? WHERE id = 1", (json.dumps([EVERY_QUEUE]),))
_WAITING = "queue = :queue AND state = 'queued' AND due_at IS NULL"
_ENDS = (
    f"SELECT (SELECT tenant FROM holdfast_job_state INDEXED BY holdfast_fair WHERE {_WAITING} ORDER BY tenant LIMIT 1),"
    f" (SELECT tenant FROM holdfast_job_state INDEXED BY holdfast_fair WHERE {_WAITING} ORDER BY tenant DESC LIMIT 1)"
)
_NEXT = (
    f"(SELECT tenant FROM holdfast_job_state INDEXED BY holdfast_fair WHERE {_WAITING} AND tenant > {{behind}} ORDER"
    " BY tenant LIMIT 1)"
)
_TENANTS = (
    f"WITH RECURSIVE walk(name, n) AS (SELECT {_NEXT.format(behind=':after')}, 1"
    f" UNION ALL SELECT {_NEXT.format(behind='w.name')}, w.n + 1 FROM walk w WHERE w.name IS NOT NULL AND w.n < :most)"
    " SELECT w.name, coalesce((SELECT t.weight FROM holdfast_tenant t WHERE t.tenant = w.name), 1) FROM walk w"
    " WHERE w.name IS NOT NULL AND (:upto IS NULL OR w.name <= :upto)"
)
_PLACE = "SELECT last, left_over FROM holdfast_fair_place WHERE tenant = '*' AND queue = ? AND kinds = ?"
_MOVE = (
    "INSERT INTO holdfast_fair_place (queue, kinds, last, left_over) VALUES (?, ?, ?, ?) ON CONFLICT (tenant, queue,"
    " kinds) DO UPDATE SET last = excluded.last, left_over = excluded.left_over"
)
_WEIGHT = "SELECT coalesce((SELECT weight FROM holdfast_tenant WHERE tenant = ?), 1)"


class Share(NamedTuple):
    """Where the next claim of a queue continues: after the tenant ``last``, or with the rest of its quota."""

    queue: str
    kinds: str
    last: str
    left_over: int


class Quota(NamedTuple):
    """How many jobs of a tenant to pick in one round."""

    tenant: str
    weight: int
    jobs: int


def share_when_needed(tenant: str) -> Steps[None]:
    """Share all queues once a second tenant has jobs, unless an operator has configured otherwise. Called when a worker
    opens a lease for all tenants, and by ``promote``: two reads of an index, and no cost per job."""
    if tenant == EVERY_TENANT and (yield Statement(SHARING_NEEDED)):
        yield FAIR_INDEX
        yield _ALL_SHARED


def share_of(request: ClaimRequest, queue: str, fair: Sequence[str]) -> Steps[Share | None]:
    """The share of a queue; None if it is not shared, or only one tenant has jobs in it."""
    if request.tenant != EVERY_TENANT or not is_shared(queue, fair):
        return None
    ((first, last),) = yield Statement(_ENDS, {"queue": queue})
    if first == last:
        return None
    kinds = "" if request.kinds is None else hashlib.md5("\x1f".join(request.kinds).encode()).hexdigest()
    rows = yield Statement(_PLACE, (queue, kinds))
    return Share(queue, kinds, *(rows[0] if rows else ("", 0)))


def pick_fairly(
    share: Share, pick: str, params: dict[str, Any], want: int, columns: tuple[int, ...]
) -> Steps[list[Row]]:
    """The next jobs of a shared queue, tenant by tenant. ``pick`` is the query for the first jobs of some tenants."""
    n, tenant, priority, position = columns
    picked: dict[int, Row] = {}
    with_more: list[Quota] = []  # quotas that were filled, so that their tenants may have more jobs
    walk = _TenantWalk(share)
    while len(picked) < want:
        if not walk.done:
            tenants = yield from walk.next_tenants()
        else:
            # Tenants with few jobs have not used their quota: the others share the rest.
            tenants, with_more = [(quota.tenant, quota.weight) for quota in with_more], []
        if not tenants and walk.done and not (walk.first and share.left_over):
            break
        total = sum(weight for _, weight in tenants)
        quantum = -(-(want - len(picked)) // max(1, total)) if walk.done else -(-want // WINDOW)
        quotas = [Quota(name, weight, max(1, quantum) * weight) for name, weight in tenants]
        if walk.first and share.left_over:  # the last tenant of the previous claim first gets the rest of its quota
            weight = next((quota.weight for quota in quotas if quota.tenant == share.last), 1)
            others = [quota for quota in quotas if quota.tenant != share.last]
            quotas = [Quota(share.last, weight, share.left_over), *others]
        walk.first = False
        rows_of: dict[str, list[Row]] = {}
        before = Counter(row[tenant] for row in picked.values())
        for jobs in sorted({quota.jobs for quota in quotas}):
            names = [quota.tenant for quota in quotas if quota.jobs == jobs]
            most = jobs + max(before[name] for name in names)
            for row in (yield Statement(pick, {**params, "whom": ids_json(names), "quota": most})):
                if row[n] not in picked:
                    rows_of.setdefault(row[tenant], []).append(row)
        for quota in quotas:
            rows = sorted(rows_of.get(quota.tenant, ()), key=lambda row: (-row[priority], row[position]))[: quota.jobs]
            picked |= {row[n]: row for row in rows[: want - len(picked)]}
            if len(rows) == quota.jobs:
                with_more.append(quota)
    return list(picked.values())


class _TenantWalk:
    """Visits the tenants of a queue once, in batches, starting after the last tenant of the previous claim."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._after, self._upto = share.last, None if share.last else ""
        self.first = True
        self.done = False
        """All tenants were visited."""

    def next_tenants(self) -> Steps[list[tuple[str, int]]]:
        """The next tenants with their weights."""
        tenants: list[tuple[str, int]] = []
        while not self.done and len(tenants) < WINDOW:
            most = WINDOW - len(tenants)
            upto = self._upto or None
            params = {"queue": self._share.queue, "after": self._after, "upto": upto, "most": most}
            rows = yield Statement(_TENANTS, params)
            tenants += [(row[0], row[1]) for row in rows]
            if len(rows) == most:
                self._after = rows[-1][0]
            else:
                self.done = self._upto is not None
                self._after, self._upto = "", self._share.last
        return tenants


def advance(share: Share, claimed: Sequence[str]) -> Steps[None]:
    """Record that jobs of these tenants were claimed, in this order: the next claim continues after the last of them,
    or with the rest of its quota."""
    last = claimed[-1]
    ((weight,),) = yield Statement(_WEIGHT, (last,))
    count = Counter(claimed)[last]
    if last == share.last and share.left_over:
        count += weight - share.left_over
    yield Statement(_MOVE, (share.queue, share.kinds, last, -count % weight))
