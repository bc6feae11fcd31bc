"""``store.leases`` on PostgreSQL: open, renew, exchange, claim, start, release, settle, promote, expire, recover."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

from holdfast.engine.job import EVERY_TENANT, Claim, Exchange, Holding, Lease, Renewal, StopMode, Sweep
from holdfast.engine.payload import decode_for_display
from holdfast.engine.requirement import UNKNOWN_CODE, Code
from holdfast.engine.settlement import Settlement
from holdfast.stores.codecs import Record, texts
from holdfast.stores.flow import Row, Statement, Steps, flow
from holdfast.stores.postgres.base import Calls
from holdfast.stores.postgres.codec import Documents, Ids, Numbers, PostgresCodec, Words, documents, ids, numbers, words
from holdfast.stores.requests import ClaimRequest, DueWork

TYPE_OF = {"succeeded": "succeed", "snooze": "snooze", "cancel": "cancel", "pause": "snooze", "ask": "ask"}


def endings(settlements: Sequence[Settlement]) -> tuple[Ids, Numbers, Words, Documents | None]:
    """The array arguments of ``settle_many``. The details are None if all settlements are plain successes."""
    details = [detail_of(item) for item in settlements]
    return (
        ids([item.id for item in settlements]),
        numbers([item.attempt for item in settlements]),
        words([item.ending for item in settlements]),
        documents(details) if any(details) else None,
    )


def detail_of(item: Settlement) -> str | None:
    """The details of a settlement as JSON text; None for a plain success."""
    if item.ending == "succeeded":
        if item.result is None and item.ref is None and item.note is None:
            return None
        parts = [] if item.result is None else [f'"result":{item.result}']
        parts += [] if item.ref is None else [f'"result_ref":{json.dumps(item.ref)}']
        parts += [] if item.note is None else [f'"note":{json.dumps(item.note)}']
        return f"{{{','.join(parts)}}}"
    detail = {
        "delay": item.delay,
        "code": item.code,
        "message": item.message,
        "note": item.note,
        "pause": item.pause,
        "steps": item.steps,
    }
    return json.dumps({name: value for name, value in detail.items() if value is not None})


# The backoff as text: a kind has one, and it is read once for all claims.
CLAIM_COLUMNS = Record.columns(Claim, "c.", skip=("lease",)).replace("c.backoff", "c.backoff::text")
_BACKOFF = CLAIM_COLUMNS.split(", ").index("c.backoff::text")


@lru_cache(maxsize=256)
def _backoff(text: str) -> Any:
    return decode_for_display(text)


def _claim_checked(row: Row, lease: str) -> Claim:
    """A claim of a batch in which at least one row cannot be read: such a claim has ``unreadable`` set."""
    backoff = row[_BACKOFF] and decode_for_display(row[_BACKOFF])
    row = (row[0], lease, *row[1:_BACKOFF], backoff, *row[_BACKOFF + 1 :])
    return Record.decoder(Claim, PostgresCodec(), raw=("payload", "lease"))(row)


def _claim(row: Row, lease: str, tags: int = -1) -> Claim:
    """A claim from ``CLAIM_COLUMNS``, with the tags at index ``tags``. Written out because of its speed: there are
    thousands per second."""
    backoff = row[_BACKOFF]
    if backoff is not None and type(backoff := _backoff(backoff)) is not dict:
        raise ValueError("not a backoff")
    fields: Any = (
        *(row[0], lease, *row[1:_BACKOFF], backoff, *row[_BACKOFF + 1 : tags]),
        texts(row[tags]) if row[tags] else (),
    )
    return Claim(*fields)


@flow(writes=False, single=True, hot=True)
def due_work(schema: str, lease: str | None, tenant: str, ttl: float | None) -> Steps[DueWork]:
    beat = f'"{schema}".heartbeat(%(lease)s::uuid, make_interval(secs => %(ttl)s), %(tenant)s)'
    text = f'select d.*, {beat if ttl else "null"} from "{schema}".due_work(%(lease)s::uuid, %(tenant)s) d'
    rows = yield Statement(text, {"lease": lease or None, "tenant": tenant, "ttl": ttl})
    tasks, leads, next_in, notifies, renewed = rows[0]
    return DueWork(frozenset(tasks), leads, next_in, notifies, renewed or (None if ttl is None else False))


class PostgresLeases(Calls):
    """``store.leases``."""

    @flow(single=True)
    def open(
        self,
        holder: str,
        ttl: float,
        tenant: str,
        name: str = "worker",
        kinds: Sequence[str] | None = None,
        queues: Sequence[str] | None = None,
        slots: int | None = None,
        version: str | None = None,
        code: Code = UNKNOWN_CODE,
    ) -> Steps[Lease]:
        """``kinds`` are the kinds with a handler, ``queues`` the queues it claims from and ``slots`` how many jobs it
        runs at a time, so that Holdfast can explain why a job waits. None means any."""
        kind_names, queue_names = (None if names is None else list(names) for names in (kinds, queues))
        params = (holder, ttl, name, tenant, kind_names, queue_names, slots, version)
        arguments = "%s, make_interval(secs => %s), %s, %s, %s::text[], %s::text[], %s, %s, %s, %s, %s::text[]"
        rows = yield self._call("open_worker", arguments, *params, code.version, code.fingerprint, list(code.pins))
        return Lease(str(rows[0][0]), self.dialect.codec.time(rows[0][1]))

    @flow(single=True)
    def renew(self, lease: str, ttl: float, tenant: str) -> Steps[Renewal]:
        rows = yield self._call("heartbeat", "%s, make_interval(secs => %s), %s", lease, ttl, tenant)
        renewal: Renewal | None = rows[0][0]
        return renewal or False

    @flow(single=True)
    def request_stop(self, worker: str, mode: StopMode, actor: str | None, tenant: str) -> Steps[bool]:
        """Request that the worker with this holder name stops. It reads the request with its next heartbeat. False when
        no such worker is running in this scope."""
        return (yield from self._flag("request_stop", "%s, %s, %s, %s", worker, mode, tenant, actor))

    @flow(single=True)
    def end(self, lease: str, why: str, tenant: str) -> Steps[bool]:
        return (yield from self._flag("end_lease", "%s, %s, %s", lease, why, tenant))

    @flow(single=True)
    def cancellations(self, lease: str, tenant: str) -> Steps[int | None]:
        """How often a job was cancelled or taken away under this lease; None when there is no such lease."""
        rows = yield self._call("cancellations", "%s, %s", lease, tenant)
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

    @cached_property
    def _exchange_text(self) -> str:
        """Cached, so that it is the same string object each time: connections find prepared statements by their
        text."""
        return (
            f"select {CLAIM_COLUMNS}, c.stale, c.live, c.pick_us, c.next_in from {self._s}exchange("
            "%s, %s::uuid[], %s::int[], %s::text[], %s::json[], %s, %s, %s, %s, %s::smallint[], %s::bigint[], %s) c"
        )

    @flow(single=True, hot=True)
    def exchange(self, settlements: Sequence[Settlement], request: ClaimRequest) -> Steps[Exchange]:
        """Settle and claim under the request's lease, in one transaction and one round trip."""
        positions = [request.after.get(queue) for queue in request.queues] if request.after else []
        rows = yield Statement(
            self._exchange_text,
            (
                request.lease,
                *endings(settlements),
                list(request.queues),
                request.want,
                request.begin,
                None if request.kinds is None else list(request.kinds),
                [position and position[0] for position in positions] or None,
                [position and position[1] for position in positions] or None,
                request.tenant,
            ),
        )
        stale, live, pick_us, next_in = rows.pop()[-4:]
        lease = request.lease
        claims: list[Any] = rows
        # In place: each claim replaces its row, so that the garbage collector has half as many objects to visit.
        try:
            for index, row in enumerate(rows):
                claims[index] = _claim(row, lease, -5)
        except Exception:
            claims = [each if isinstance(each, Claim) else _claim_checked(each[:-4], lease) for each in claims]
        return Exchange(claims, [str(job_id) for job_id in stale or ()], live, pick_us, next_in)

    @flow(single=True)
    def claim(self, request: ClaimRequest) -> Steps[list[Claim]]:
        kinds = None if request.kinds is None else list(request.kinds)
        rows = yield Statement(
            f"select {CLAIM_COLUMNS} from {self._s}claim_many(%s, %s, %s, %s, %s, %s) c",
            (request.lease, list(request.queues), request.want, request.begin, kinds, request.tenant),
        )
        try:
            return [_claim(row, request.lease) for row in rows]
        except Exception:
            return [_claim_checked(row, request.lease) for row in rows]

    def _settle_again(self, lease: str, settlements: Sequence[Settlement], tenant: str) -> Steps[list[str]]:
        """Settle after a lost connection. A settlement can be stale now because the first attempt was committed. The
        ledger shows it: only the holder of an attempt can make it succeed, fail or snooze."""
        stale = yield from self.settle(lease, settlements, tenant).start()
        if not stale:
            return []
        rows = yield Statement(
            f"select job_id, attempt, type from {self._s}event"
            " where job_id = any(%s::uuid[]) and from_state = 'in_progress'",
            (list(stale),),
        )
        ended = {(str(job_id), attempt, event_type) for job_id, attempt, event_type in rows}
        ours = {item.id for item in settlements if (item.id, item.attempt, TYPE_OF.get(item.ending, "fail")) in ended}
        return [job_id for job_id in stale if job_id not in ours]

    @flow(single=True, repeat=_settle_again)
    def settle(self, lease: str, settlements: Sequence[Settlement], tenant: str) -> Steps[list[str]]:
        rows = yield self._call(
            "settle_many",
            "%s, %s::uuid[], %s::int[], %s::text[], %s::json[], %s",
            lease,
            *endings(settlements),
            tenant,
        )
        return [str(row[0]) for row in rows]

    @flow(single=True)
    def promote(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        return (yield from self._number("promote_due", "%s, %s", want, tenant))

    @flow(single=True)
    def expire(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        return (yield from self._number("expire_overdue", "%s, %s", want, tenant))

    @flow(single=True)
    def recover(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[Sweep]:
        rows = yield self._call("recover_leases", "%s, %s", want, tenant)
        leases, requeued, crashed, dead = rows[0]
        return Sweep(leases, requeued, crashed, tuple(map(str, dead)))

    @flow()
    def quarantine(
        self,
        lease: str | None,
        queues: Sequence[str],
        kinds: Sequence[str] | None = None,
        want: int = 1000,
        tenant: str = EVERY_TENANT,
    ) -> Steps[list[str]]:
        """After a claim or a maintenance task failed: find the jobs whose rows the database refuses to update, and skip
        them for ten minutes. Returns their ids. Without a lease, only the jobs of maintenance tasks are checked."""
        kind_names = None if kinds is None else list(kinds)
        call = "%s::uuid, %s::text[], %s::text[], %s, %s"
        rows = yield self._call("quarantine", call, lease, list(queues), kind_names, want, tenant)
        return [str(row[0]) for row in rows]
