"""Fair shares (JF-12): in a queue that is shared, tenants with waiting jobs have their turns one after the other, each
for as many jobs as its weight; within a tenant the order is that of the queue.

The index ``fair`` exists only while something is shared: from the moment on when a second tenant has jobs. A claim goes
round the tenants in the order of their names, from where the last one came to, and looks at no more of them than it has
room for. Where one tenant alone has work it is not asked.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.tenants.model import EVERY_QUEUE, in_shares
from holdfast.stores.flow import Row, Statement, Steps
from holdfast.stores.requests import ClaimRequest
from holdfast.stores.sqlite.base import ids_json

WINDOW = 16
FAIR_INDEX = Statement(
    "CREATE INDEX IF NOT EXISTS fair ON job_state (queue, tenant, priority DESC, position)"
    " WHERE state = 'queued' AND due_at IS NULL"
)
SHARING_NEEDED = (
    "SELECT 1 FROM dispatch WHERE id = 1 AND fair IS NULL AND fair_auto AND"
    " (SELECT min(tenant) FROM job_state WHERE state NOT IN ('leased', 'in_progress'))"
    " < (SELECT max(tenant) FROM job_state WHERE state NOT IN ('leased', 'in_progress'))"
)
_ALL_SHARED = Statement("UPDATE dispatch SET fair = ? WHERE id = 1", (json.dumps([EVERY_QUEUE]),))
_WAITING = "queue = :queue AND state = 'queued' AND due_at IS NULL"
_ENDS = (
    f"SELECT (SELECT tenant FROM job_state INDEXED BY fair WHERE {_WAITING} ORDER BY tenant LIMIT 1),"
    f" (SELECT tenant FROM job_state INDEXED BY fair WHERE {_WAITING} ORDER BY tenant DESC LIMIT 1)"
)
_NEXT = (
    f"(SELECT tenant FROM job_state INDEXED BY fair WHERE {_WAITING} AND tenant > {{behind}} ORDER BY tenant LIMIT 1)"
)
_TENANTS = (
    f"WITH RECURSIVE walk(name, n) AS (SELECT {_NEXT.format(behind=':after')}, 1"
    f" UNION ALL SELECT {_NEXT.format(behind='w.name')}, w.n + 1 FROM walk w WHERE w.name IS NOT NULL AND w.n < :most)"
    " SELECT w.name, coalesce((SELECT t.weight FROM tenant t WHERE t.tenant = w.name), 1) FROM walk w"
    " WHERE w.name IS NOT NULL AND (:upto IS NULL OR w.name <= :upto)"
)
_PLACE = "SELECT last, left_over FROM fair_place WHERE tenant = '*' AND queue = ? AND kinds = ?"
_MOVE = (
    "INSERT INTO fair_place (queue, kinds, last, left_over) VALUES (?, ?, ?, ?) ON CONFLICT (tenant, queue, kinds)"
    " DO UPDATE SET last = excluded.last, left_over = excluded.left_over"
)
_WEIGHT = "SELECT coalesce((SELECT weight FROM tenant WHERE tenant = ?), 1)"


class Share(NamedTuple):
    """Where to go on in a queue: behind this tenant, or with what is left over of its turn."""

    queue: str
    kinds: str
    last: str
    left_over: int


class Turn(NamedTuple):
    tenant: str
    weight: int
    quota: int


def share_when_needed(tenant: str) -> Steps[None]:
    """Share all queues once a second tenant has jobs, unless an operator has chosen otherwise. Called where a worker
    opens a lease for all tenants, and by promotion: two reads of an index, and nothing on the path of a job."""
    if tenant == EVERY_TENANT and (yield Statement(SHARING_NEEDED)):
        yield FAIR_INDEX
        yield _ALL_SHARED


def share_of(request: ClaimRequest, queue: str, fair: Sequence[str]) -> Steps[Share | None]:
    """None: this queue is not shared, or one tenant alone has work in it."""
    if request.tenant != EVERY_TENANT or not in_shares(queue, fair):
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
    """The next jobs of a shared queue, each tenant's in its turn. ``pick`` finds the first of some tenants."""
    n, tenant, priority, position = columns
    found: dict[int, Row] = {}
    able: list[Turn] = []
    walk = _Walk(share)
    while len(found) < want:
        if not walk.round:
            names = yield from walk.further()
        else:
            # Who has little waiting has left something over: the others share that.
            names, able = [(turn.tenant, turn.weight) for turn in able], []
        if not names and walk.round and not (walk.first and share.left_over):
            break
        total = sum(weight for _, weight in names)
        quantum = -(-(want - len(found)) // max(1, total)) if walk.round else -(-want // WINDOW)
        turns = [Turn(name, weight, max(1, quantum) * weight) for name, weight in names]
        if walk.first and share.left_over:  # it has not had all of its last turn: that comes first
            own = next((turn.weight for turn in turns if turn.tenant == share.last), 1)
            turns = [Turn(share.last, own, share.left_over), *(t for t in turns if t.tenant != share.last)]
        walk.first = False
        had: dict[str, list[Row]] = {}
        before = Counter(row[tenant] for row in found.values())
        for quota in sorted({turn.quota for turn in turns}):
            whom = [turn.tenant for turn in turns if turn.quota == quota]
            most = quota + max(before[each] for each in whom)
            for row in (yield Statement(pick, {**params, "whom": ids_json(whom), "quota": most})):
                if row[n] not in found:
                    had.setdefault(row[tenant], []).append(row)
        for turn in turns:
            rows = sorted(had.get(turn.tenant, ()), key=lambda row: (-row[priority], row[position]))[: turn.quota]
            found |= {row[n]: row for row in rows[: want - len(found)]}
            if len(rows) == turn.quota:
                able.append(turn)
    return list(found.values())


class _Walk:
    """Round the tenants of a queue once, some at a time."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._after, self._upto = share.last, None if share.last else ""
        self.first = True
        self.round = False
        """Everybody has been seen."""

    def further(self) -> Steps[list[tuple[str, int]]]:
        names: list[tuple[str, int]] = []
        while not self.round and len(names) < WINDOW:
            asked = WINDOW - len(names)
            upto = self._upto or None
            params = {"queue": self._share.queue, "after": self._after, "upto": upto, "most": asked}
            rows = yield Statement(_TENANTS, params)
            names += [(row[0], row[1]) for row in rows]
            if len(rows) == asked:
                self._after = rows[-1][0]
            else:
                self.round = self._upto is not None
                self._after, self._upto = "", self._share.last
        return names


def move_on(share: Share, taken: Sequence[str]) -> Steps[None]:
    """Jobs of these tenants are taken, in this order: the next claim goes on behind the last of them."""
    last = taken[-1]
    ((weight,),) = yield Statement(_WEIGHT, (last,))
    had = Counter(taken)[last]
    if last == share.last and share.left_over:
        had += weight - share.left_over
    # Of a turn that was cut short the rest comes first the next time.
    yield Statement(_MOVE, (share.queue, share.kinds, last, -had % weight))
