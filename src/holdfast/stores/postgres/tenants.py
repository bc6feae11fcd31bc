"""The verbs of tenants; the functions are in ``code/19_pending``, ``38_fair`` and ``39_tenants``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from holdfast.engine.ids import parse_id
from holdfast.features.agents.model import AHEAD
from holdfast.features.tenants.model import TurnOf
from holdfast.stores.flow import Steps, flow
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reads import Reads


class TenantVerbs(Calls, Reads):
    @flow(single=True)
    def set_tenant(self, name: str, what: dict[str, Any], actor: str) -> Steps[None]:
        yield self._call("set_tenant", "%s, %s::jsonb, %s", name, json.dumps(what), actor)

    @flow(single=True)
    def remove_tenant(self, name: str, actor: str) -> Steps[bool]:
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
    def turn_of(self, job_id: str, tenant: str) -> Steps[TurnOf | None]:
        rows = yield self._look("turn_of", "%s, %s, %s", parse_id(job_id), AHEAD, tenant)
        return TurnOf(*rows[0]) if rows else None
