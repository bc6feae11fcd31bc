"""Queues in which waiting counts: a job's stored priority is raised by and by (SC-2: the order is what is stored)."""

from __future__ import annotations

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.limits.model import QueueSetting
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.sqlite.base import ids_json, sign, unsign
from holdfast.stores.sqlite.codec import SqliteCodec
from holdfast.stores.sqlite.operations.switches import duty

_COLUMNS = Record.columns(QueueSetting)
_SET = (
    f"INSERT INTO queue_setting ({_COLUMNS}) VALUES (:tenant, :queue, :every, :step, :most, :actor, :now)"
    " ON CONFLICT DO UPDATE SET aging = excluded.aging, aging_step = excluded.aging_step,"
    " aging_most = excluded.aging_most, set_by = excluded.set_by, updated_at = excluded.updated_at"
    f" RETURNING {_COLUMNS}"
)
_END = "DELETE FROM queue_setting WHERE tenant = :tenant AND queue = :queue"
_WAITING = "queue = :queue AND state = 'queued' AND due_at IS NULL"
_LEVEL = (
    f"SELECT priority FROM job_state INDEXED BY claimable WHERE {_WAITING} AND priority < :level"
    " ORDER BY priority DESC LIMIT 1"
)
# Those longest in line. What a person has moved is theirs.
_OLDEST = (
    f"SELECT n FROM job_state INDEXED BY claimable WHERE {_WAITING} AND priority = :level"
    " AND (:tenant = '*' OR tenant = :tenant) ORDER BY position LIMIT :want"
)
_WAITED = ":now - max(j.created_at, coalesce(j.process_after, 0))"
_DUE = f"min(:most, j.priority + :step * (({_WAITED}) / :every))"
_RAISE = (
    "UPDATE job_state SET priority = o.priority, note = json_set(coalesce(note, '{}'), '$.moved',"
    " json_object('to', 'aging', 'priority', o.priority,"
    " 'times', 1 + (SELECT count(*) FROM event e WHERE e.job_id = job_state.id AND e.verb = 'move')))"
    f" FROM (SELECT j.n, {_DUE} AS priority FROM job j WHERE j.n IN (SELECT value FROM json_each(:numbers))"
    " AND NOT EXISTS (SELECT 1 FROM event e WHERE e.job_id = j.id AND e.verb = 'move' AND e.actor <> 'aging')) o"
    " WHERE job_state.n = o.n AND o.priority > job_state.priority RETURNING 1"
)


def _no_settings(_: object, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int | None]:
    rows = yield Statement("SELECT 1 FROM queue_setting LIMIT 1")
    return None if rows else 0


class AgingVerbs:
    @flow()
    def set_aging(
        self, queue: str, every: float | None, step: int, most: int, actor: str, tenant: str
    ) -> Steps[QueueSetting | None]:
        now = yield from sign(actor)
        facts = {"tenant": tenant, "queue": queue}
        if every is None:
            rows = yield Statement(_END, facts)
        else:
            rows = yield Statement(
                _SET, {**facts, "every": float(every), "step": step, "most": most, "actor": actor, "now": now}
            )
        yield from unsign()
        return Record.decoder(QueueSetting, SqliteCodec())(rows[0]) if rows else None

    @duty(0, _no_settings)
    def age_queues(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        now = yield from sign("aging")
        decode = Record.decoder(QueueSetting, SqliteCodec())
        count = 0
        for setting in map(decode, (yield Statement(f"SELECT {_COLUMNS} FROM queue_setting ORDER BY tenant, queue"))):
            level = setting.aging_most
            whose = {"queue": setting.queue, "tenant": setting.tenant}
            while count < want:
                rows = yield Statement(_LEVEL, {**whose, "level": level})
                if not rows:
                    break
                level = rows[0][0]
                oldest = yield Statement(_OLDEST, {**whose, "level": level, "want": want - count})
                params = {
                    "numbers": ids_json(row[0] for row in oldest),
                    "now": now,
                    "every": int(setting.aging * 1_000_000),
                    "step": setting.aging_step,
                    "most": setting.aging_most,
                }
                raised = yield Statement(_RAISE, params)
                count += len(raised)
        yield from unsign()
        return count
