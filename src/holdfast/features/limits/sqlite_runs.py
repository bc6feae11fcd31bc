"""The recorded work of a reservation's holder on SQLite; ``postgres_pauses.sql`` has the same for PostgreSQL.

The job is enqueued and started in one transaction, under its own lease, so no worker ever sees it in a queue. It ends
with the reservation: as its holder reports, or as crashed when the reservation was not renewed.
"""

from __future__ import annotations

import json
from typing import Final
from uuid import uuid4

from holdfast.engine.job import EVERY_TENANT, JobSpec
from holdfast.engine.outcome import Failed, Succeeded
from holdfast.engine.retry import AT_MOST_ONCE
from holdfast.errors import InvalidInput
from holdfast.features.limits.model import RunEnd
from holdfast.stores.flow import Statement, Steps
from holdfast.stores.ids import new_id
from holdfast.stores.sqlite.base import begin_write, end_write
from holdfast.stores.sqlite.enqueue import add

HOUR: Final = 3_600_000_000
_ACTIVE = (
    "SELECT job_id, scope, name, expires_at FROM holdfast_reservation"
    " WHERE id = :id AND tenant = :tenant AND state = 'active' AND expires_at > :now"
)
_LEASE = (
    "INSERT INTO holdfast_lease (id, tenant, name, holder, until, opened_at, renewed_at)"
    " VALUES (:lease, :tenant, 'reservation', :actor, :until, :now, :now)"
)
_START = (
    "UPDATE holdfast_job_state SET state = 'in_progress', lease = :lease, attempt = attempt + 1, started_at = :now,"
    " note = NULL WHERE id = :job"
)
_RENEW = (
    "UPDATE holdfast_lease SET until = max(until, :until), renewed_at = :now, renewals = renewals + 1 WHERE ended_at"
    " IS NULL AND id = (SELECT s.lease FROM holdfast_reservation r JOIN holdfast_job_state s ON s.id = r.job_id WHERE"
    " r.id = :id AND r.tenant = :tenant AND r.state = 'active' AND r.expires_at > :now)"
)
_RUN = "SELECT lease FROM holdfast_job_state WHERE id = ? AND state = 'in_progress'"
_END_LEASE = "UPDATE holdfast_lease SET ended_at = :now, ended_why = :why WHERE id = :lease AND ended_at IS NULL"
_END = (
    "UPDATE holdfast_job_state SET state = :state, lease = NULL, settled_by = CASE WHEN :lost THEN settled_by ELSE"
    " lease END, crashes = crashes + :lost, finished_at = :now, note = NULL, error_code = :code, error_message ="
    " :message WHERE id = :job"
)


def record_run(reservation_id: str, kind: str, actor: str, tenant: str) -> Steps[str | None]:
    now = yield from begin_write(actor)
    params = {"id": reservation_id, "tenant": tenant, "now": now, "actor": actor}
    rows = yield Statement(_ACTIVE, params)
    if not rows or rows[0][0] is not None:
        yield from end_write()
        return rows[0][0] if rows else None
    if tenant == EVERY_TENANT:
        raise InvalidInput("a recorded run belongs to one tenant")
    _, scope, name, expires = rows[0]
    payload = json.dumps({"reservation": reservation_id, "scope": scope, "name": name})
    spec = JobSpec(
        id=new_id(),
        kind=kind,
        payload=payload,
        enqueued_by=actor,
        source_system="reservation",
        queue="reservation",
        retry=AT_MOST_ONCE,
        external_ref=f"reservation/{reservation_id}",
    )
    yield from add([spec], tenant, now)
    yield from end_write()  # gives the job its state
    yield from begin_write(actor)
    params |= {"job": spec.id, "lease": str(uuid4()), "until": expires + HOUR}
    for text in (_LEASE, _START, "UPDATE holdfast_reservation SET job_id = :job WHERE id = :id"):
        yield Statement(text, params)
    yield from end_write()
    return spec.id


def renew_run(reservation_id: str, tenant: str, until: int, now: int) -> Steps[None]:
    """Extend the lease of the run beyond the reservation, whose end closes it."""
    yield Statement(_RENEW, {"id": reservation_id, "tenant": tenant, "until": until + HOUR, "now": now})


def end_run(job_id: str, end: RunEnd | None, actor: str | None, now: int, *, lost: bool) -> Steps[None]:
    """End the run of a reservation that has ended. Without an ``end`` the run was lost, or another caller released the
    reservation."""
    rows = yield Statement(_RUN, (job_id,))
    if not rows:
        return  # an operator has cancelled it
    lease = {"lease": rows[0][0], "now": now}
    if lost:
        code, message = "worker_lost", "the holder of the reservation stopped renewing it"
        # First: a job can fail as worker_lost only if its lease has ended.
        yield Statement(_END_LEASE, {**lease, "why": "lapsed"})
    elif end is None:
        code, message = "reservation_released", f"the reservation was released by {actor}"
    else:
        code, message = (end.code, end.message) if isinstance(end, Failed) else ("", "")
    succeeded = isinstance(end, Succeeded) and not lost
    error = {"code": None, "message": None} if succeeded else {"code": code, "message": message}
    state = "succeeded" if succeeded else "failed"
    yield Statement(_END, {"job": job_id, "state": state, "lost": int(lost), "now": now, **error})
    if not lost:
        yield Statement(_END_LEASE, {**lease, "why": "released"})
