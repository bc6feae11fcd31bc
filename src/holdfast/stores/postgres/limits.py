"""The verbs of limits, reservations and aging; the functions are in ``code/38_*``, ``39_limits`` and ``46_aging``."""

from __future__ import annotations

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.limits.model import NOBODYS, Ask, Limit, QueueSetting, Rule, Standing
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Steps, flow
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reads import Reads


class LimitVerbs(Calls, Reads):
    @flow(single=True)
    def set_limit(self, rule: Rule, actor: str, tenant: str) -> Steps[Limit]:
        rows = yield self._call(
            "set_limit",
            "%s, %s, %s::integer, %s::integer, %s::float8, %s::integer, %s, %s",
            rule.scope,
            rule.name,
            rule.concurrency,
            rule.rate,
            rule.per,
            rule.burst,
            actor,
            tenant,
        )
        return Record.decoder(Limit, self.dialect.codec, skip=("running", "waiting"))(rows[0])

    @flow(single=True)
    def remove_limit(self, scope: str, name: str, actor: str, tenant: str) -> Steps[bool]:
        rows = yield self._call("remove_limit", "%s, %s, %s, %s", scope, name, actor, tenant)
        return bool(rows[0][0])

    @flow(single=True)
    def limits(self, tenant: str) -> Steps[list[Limit]]:
        rows = yield self._look("list_limits", "%s", tenant)
        decode = Record.decoder(Limit, self.dialect.codec)
        return [decode(row) for row in rows]

    @flow(single=True)
    def attend_limits(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        rows = yield self._call("attend_limits", "%s, %s", want, tenant)
        return int(rows[0][0])

    @flow(single=True)
    def reserve(self, ask: Ask, actor: str, tenant: str) -> Steps[Standing]:
        rows = yield self._call(
            "reserve",
            "%s, %s, %s, make_interval(secs => %s), %s, %s, %s",
            ask.id,
            ask.scope,
            ask.name,
            ask.ttl,
            ask.reason,
            actor,
            tenant,
        )
        _, state, _, running, ahead = rows[0]
        return NOBODYS if state is None else Standing(state, running, ahead)

    @flow(single=True)
    def release_reservation(self, reservation_id: str, why: str, actor: str, tenant: str) -> Steps[bool]:
        rows = yield self._call("release_reservation", "%s::uuid, %s, %s, %s", reservation_id, why, actor, tenant)
        return bool(rows[0][0])

    @flow(single=True)
    def set_aging(
        self, queue: str, every: float | None, step: int, most: int, actor: str, tenant: str
    ) -> Steps[QueueSetting | None]:
        rows = yield self._call("set_aging", "%s, %s::float8, %s, %s, %s, %s", queue, every, step, most, actor, tenant)
        return Record.decoder(QueueSetting, self.dialect.codec)(rows[0]) if rows else None

    @flow(single=True)
    def age_queues(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        rows = yield self._call("age_queues", "%s, %s", want, tenant)
        return int(rows[0][0])
