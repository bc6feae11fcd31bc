"""Leases and what is held under them; the functions are in ``code/41_leases.sql`` and ``44_checkpoint.sql``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from holdfast.engine.job import Holding, Lease
from holdfast.stores.flow import Steps, flow
from holdfast.stores.postgres.calls import Calls
from holdfast.stores.reads.jobs import Reader


class LeaseVerbs(Calls, Reader):
    @flow(single=True)
    def open_lease(
        self,
        holder: str,
        ttl: float,
        tenant: str,
        name: str = "worker",
        kinds: Sequence[str] | None = None,
        queues: Sequence[str] | None = None,
        slots: int | None = None,
    ) -> Steps[Lease]:
        known, served = (None if names is None else list(names) for names in (kinds, queues))
        facts = (holder, ttl, name, tenant, known, served, slots)
        rows = yield self._call(
            "open_lease", "%s, make_interval(secs => %s), %s, %s, null, %s::text[], %s::text[], %s", *facts
        )
        return Lease(str(rows[0][0]), self.dialect.codec.time(rows[0][1]))

    @flow(single=True)
    def renew_lease(self, lease: str, ttl: float, tenant: str) -> Steps[bool]:
        rows = yield self._call("renew_lease", "%s, make_interval(secs => %s), %s", lease, ttl, tenant)
        return bool(rows[0][0])

    @flow(single=True)
    def end_lease(self, lease: str, why: str, tenant: str) -> Steps[bool]:
        rows = yield self._call("end_lease", "%s, %s, %s", lease, why, tenant)
        return bool(rows[0][0])

    @flow(single=True)
    def recalls(self, lease: str, tenant: str) -> Steps[int | None]:
        rows = yield self._call("recalls", "%s, %s", lease, tenant)
        return rows[0][0]  # type: ignore[no-any-return]

    @flow(writes=False, single=True)
    def holdings(self, lease: str, tenant: str) -> Steps[list[Holding]]:
        rows = yield self._call("holdings", "%s, %s", lease, tenant)
        return [Holding(str(job_id), attempt, begun) for job_id, attempt, begun in rows]

    @flow(single=True)
    def start(self, lease: str, ids: Sequence[str], tenant: str) -> Steps[dict[str, int]]:
        rows = yield self._call("start_many", "%s, %s::uuid[], %s", lease, list(ids), tenant)
        return {str(job_id): attempt for job_id, attempt in rows}

    @flow(single=True)
    def release(self, lease: str, ids: Sequence[str], tenant: str) -> Steps[list[str]]:
        rows = yield self._call("release_many", "%s, %s::uuid[], %s", lease, list(ids), tenant)
        return [str(row[0]) for row in rows]

    @flow(single=True)
    def save_checkpoint(
        self, claim_id: str, lease: str, attempt: int, name: str, value: str, tenant: str
    ) -> Steps[bool]:
        rows = yield self._call(
            "save_checkpoint", "%s, %s, %s, %s, %s::json, %s", claim_id, lease, attempt, name, value, tenant
        )
        return bool(rows[0][0])

    @flow(single=True)
    def add_artifact(
        self,
        claim_id: str,
        lease: str,
        attempt: int,
        name: str,
        ref: str,
        tenant: str,
        meta: dict[str, Any] | None = None,
    ) -> Steps[bool]:
        about = None if meta is None else json.dumps(meta)
        rows = yield self._call(
            "add_artifact", "%s, %s, %s, %s, %s, %s::jsonb, %s", claim_id, lease, attempt, name, ref, about, tenant
        )
        return bool(rows[0][0])
