"""Messages to jobs in the database: PostgreSQL and SQLite."""

from __future__ import annotations

import json

from holdfast.engine.ids import parse_id
from holdfast.engine.messages import MAILBOX
from holdfast.errors import Conflict, NotFound
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.postgres.base import Calls
from holdfast.stores.postgres.ledger import sent
from holdfast.stores.requests import SendMessage, SentResult
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, begin_write, end_write
from holdfast.stores.sqlite.steps import FULFIL, WAKE, next_message


class PostgresMessages(Calls):
    def _send_again(self, message: SendMessage, actor: str, tenant: str) -> Steps[SentResult]:
        """After a lost connection: the id shows whether the first attempt committed."""
        result = yield from self.send(message, actor, tenant).start()
        return result

    @flow(single=True, repeat=_send_again)
    def send(self, message: SendMessage, actor: str, tenant: str) -> Steps[SentResult]:
        params = "%s::uuid, %s, %s::json, %s::boolean, %s, %s, %s, %s::uuid"
        rows = yield self._call("send_message", params, *message.values, actor, tenant, message.id)
        return sent(rows[0])


_JOB = "SELECT tenant, state FROM holdfast_job_state WHERE id = :job AND (:any OR tenant = :tenant)"
_BEFORE = "SELECT id FROM holdfast_message WHERE job_id = :job AND (id = :id OR name = :name AND key = :key)"
_SEND = (
    "INSERT INTO holdfast_message (id, tenant, job_id, n, name, data, asked, key, sent_by, sent_at)"
    " VALUES (:id, :tenant, :job,"
    " 1 + coalesce((SELECT max(n) FROM holdfast_message WHERE job_id = :job AND name = :name), 0),"
    " :name, :data, :asked, :key, :actor, :now)"
)
_WAIT = (
    "SELECT min(n) FROM holdfast_step WHERE job_id = :job AND kind = 'event' AND name = :mailbox AND ended_at IS NULL"
)
_ENDED = ("succeeded", "failed", "cancelled", "cleaned")


class SqliteMessages(SqlitePart):
    @flow(notifies=True)
    def send(self, message: SendMessage, actor: str, tenant: str) -> Steps[SentResult]:
        now = yield from begin_write(actor)
        job = parse_id(message.job_id)
        rows = yield Statement(_JOB, {"job": job, "any": any_tenant(tenant), "tenant": tenant})
        if not rows:
            raise NotFound(f"no job {job}")
        ((job_tenant, state),) = rows
        params = {"job": job, "id": message.id, "name": message.name, "key": message.key}
        if before := (yield Statement(_BEFORE, params)):
            yield from end_write()
            return SentResult(before[0][0], before[0][0] == message.id, 0)
        if state in _ENDED:
            raise Conflict(f"job {job} is {state} and receives no more messages", code="job_ended")
        values = {"tenant": job_tenant, "data": message.data, "asked": int(message.asked), "actor": actor, "now": now}
        yield Statement(_SEND, params | values)
        mailbox, woken = MAILBOX + message.name, []
        ((n,),) = yield Statement(_WAIT, {"job": job, "mailbox": mailbox})
        if n is not None:
            # The job sleeps until the message, or is queued already and will find it.
            value = yield from next_message(job, mailbox)
            yield Statement(FULFIL, {"value": value, "now": now, "job": job, "n": n})
            woken = yield Statement(WAKE, {"job": job, "n": n, "note": json.dumps({"event": mailbox})})
        yield from end_write()
        return SentResult(message.id, True, len(woken))
