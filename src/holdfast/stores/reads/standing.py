"""How queues stand, at a bounded cost: of one tenant its first queued jobs are looked at, in the order they came; of
all tenants the first of each queue. What there is beyond the limit is not counted."""

from __future__ import annotations

from holdfast.domain.job import EVERY_TENANT
from holdfast.domain.standing import COUNTED, MOST_QUEUES, QueueStanding
from holdfast.stores.flow import Steps, flow
from holdfast.stores.reads.dialect import within
from holdfast.stores.reads.health import _NOT_HELD, _QUEUES, _READY_SINCE
from holdfast.stores.reads.jobs import Reader

OLD = 20  # of the first that came, since when they wait is looked up; those that waited for a retry are among them
HEAD = 1_000

_OWN = (
    "select s.id, s.queue, s.attempt, s.due_at from {job_state} s where s.tenant = :tenant and s.state = 'queued'"
    f" and {_NOT_HELD} order by s.id limit :most"
)
_COUNT = (
    "select w.queue, sum(case when w.due_at is null then 1 else 0 end),"
    " sum(case when w.due_at is null then 0 else 1 end)"
    f" from ({_OWN}) w group by w.queue order by w.queue limit :queues"
)
_OLDEST = (
    f"select w.queue, min({_READY_SINCE}) from (select o.id, o.queue, o.attempt, row_number() over"
    f" (partition by o.queue order by o.id) as place from ({_OWN}) o where o.due_at is null) w"
    " where w.place <= :old group by w.queue"
)
_CLAIMABLE = "{job_state} s where s.queue = q.queue and s.state = 'queued' and s.due_at is null"
_EVERY = (
    f"{_QUEUES} select q.queue, (select count(*) from (select 1 from {_CLAIMABLE} limit :most) a),"
    f" (select min({_READY_SINCE}) from (select h.id, h.attempt from (select s.id, s.attempt from {_CLAIMABLE}"
    " order by s.priority desc, s.position limit :head) h order by h.id limit :old) w)"
    " from q where q.queue is not null limit :queues"
)
_LATER = (
    "select w.queue, count(*) from (select s.queue from {job_state} s where s.due_at is not null"
    " and s.state in ('queued', 'retry_waiting') limit :most) w group by w.queue limit :queues"
)


class StandingReads(Reader):
    @flow(writes=False)
    def queue_standings(self, tenant: str) -> Steps[list[QueueStanding]]:
        bounds = {"most": COUNTED, "queues": MOST_QUEUES}
        ready: dict[str, int] = {}
        later: dict[str, int] = {}
        if tenant == EVERY_TENANT:
            rows = yield from self._ask(tenant, _EVERY, **bounds, head=HEAD, old=OLD)
            ready = {queue: int(count) for queue, count, _ in rows}
            since = {queue: at for queue, _, at in rows}
            later = {queue: int(count) for queue, count in (yield from self._ask(tenant, _LATER, **bounds))}
        else:
            for queue, now, then in (yield from self._ask(tenant, _COUNT, **bounds)):
                ready[queue], later[queue] = int(now), int(then)
            rows = yield from self._ask(tenant, _OLDEST, most=COUNTED, old=OLD)
            since = {row[0]: row[1] for row in rows}
        text = (
            "select w.queue, count(*) from (select s.queue from {job_state} s"
            " where s.state in ('leased', 'in_progress')"
            f" and {within(tenant, 's.tenant')} limit :most) w group by w.queue limit :queues"
        )
        running = {queue: int(count) for queue, count in (yield from self._ask(tenant, text, **bounds))}
        time = self.dialect.codec.time
        return [
            QueueStanding(
                queue,
                ready.get(queue, 0),
                later.get(queue, 0),
                running.get(queue, 0),
                None if since.get(queue) is None else time(since[queue]),
            )
            for queue in sorted({*ready, *later, *running})
        ]
