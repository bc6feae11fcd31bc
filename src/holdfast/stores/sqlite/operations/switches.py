"""Pause and resume (DP-18). There is one writer at a time: what a claim finds paused stays so until its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from holdfast.engine.job import JobSpec
from holdfast.features.limits.model import Bucket, Pausing, Switch, refused
from holdfast.stores.codecs import Record, in_micros, micros
from holdfast.stores.flow import Flow, Statement, Steps, flow
from holdfast.stores.sqlite.admission import go_on
from holdfast.stores.sqlite.base import sign, unsign
from holdfast.stores.sqlite.codec import SqliteCodec

P = ParamSpec("P")
T = TypeVar("T")

BATCH = 1000

_COLUMNS = Record.columns(Switch)
_PAUSE = (
    f"INSERT INTO switch ({_COLUMNS})"
    " VALUES (:tenant, :scope, :name, :reason, :refuse_enqueue, :actor, :now, :until)"
    " ON CONFLICT DO UPDATE SET reason = excluded.reason, refuse_enqueue = excluded.refuse_enqueue,"
    " set_by = excluded.set_by, until = excluded.until"
)
_ONE = f"SELECT {_COLUMNS} FROM switch WHERE tenant = :tenant AND scope = :scope AND name = :name"
_RESUME = "DELETE FROM switch WHERE tenant = :tenant AND scope = :scope AND name = :name RETURNING until"
_OVER = "DELETE FROM switch WHERE until <= ? RETURNING tenant, scope, name"
_REFUSING = f"SELECT {_COLUMNS} FROM switch WHERE refuse_enqueue AND (until IS NULL OR until > ?)"
_HALTED = Statement(
    "SELECT 1 FROM switch WHERE tenant = '*' AND scope = 'all' AND (until IS NULL OR until > (SELECT now FROM present))"
)


class SwitchVerbs:
    @flow(tells=True)
    def pause(self, what: Pausing, actor: str) -> Steps[Switch]:
        now = yield from sign(actor)
        until = None if what.until is None else micros(what.until)
        facts = {"tenant": what.tenant, "scope": what.scope, "name": what.name, "reason": what.reason, "now": now}
        facts |= {"until": until if what.lasting is None else now + in_micros(what.lasting), "actor": actor}
        yield Statement(_PAUSE, {**facts, "refuse_enqueue": int(what.refuses)})
        rows = yield Statement(_ONE, facts)
        yield from unsign()
        return Record.decoder(Switch, SqliteCodec())(rows[0])

    @flow(tells=True)
    def resume(self, scope: str, name: str, actor: str, tenant: str) -> Steps[bool]:
        now = yield from sign(actor)
        rows = yield Statement(_RESUME, {"tenant": tenant, "scope": scope, "name": name})
        if rows:
            yield from go_on(Bucket(tenant, scope, name), BATCH, now)
        yield from unsign()
        return bool(rows) and (rows[0][0] is None or rows[0][0] > now)


def end_switches(now: int) -> Steps[int]:
    """Take away those whose time is over; nobody has heeded them since."""
    rows = yield Statement(_OVER, (now,))
    for tenant, scope, name in rows:
        yield from go_on(Bucket(tenant, scope, name), BATCH, now)
    return len(rows)


def refuse_paused(specs: Iterable[JobSpec], tenant: str, now: int) -> Steps[None]:
    """Raise if one of them is not accepted. Asked only where something is ruled at all."""
    decode = Record.decoder(Switch, SqliteCodec())
    for switch in [decode(row) for row in (yield Statement(_REFUSING, (now,)))]:
        for spec in specs:
            if switch.holds(tenant, spec.queue, spec.kind, spec.agent):
                raise refused(switch, spec.kind)


def halted() -> Steps[bool]:
    """Whether the system is off: nothing but what runs may touch anything."""
    return bool((yield _HALTED))


def duty(idle: Any, peek: Callable[..., Steps[Any]]) -> Callable[[Callable[P, Steps[T]]], Callable[P, Flow[T]]]:
    """A flow that anybody runs now and then: ``peek`` looks whether there is something to do. Neither it nor the flow
    does anything while the system is off; the answer is ``idle`` then."""

    def wrap(steps: Callable[P, Steps[T]]) -> Callable[P, Flow[T]]:
        @wraps(steps)
        def body(*args: P.args, **kwargs: P.kwargs) -> Steps[T]:
            if (yield from halted()):
                return idle  # type: ignore[no-any-return]
            return (yield from steps(*args, **kwargs))

        def look(*args: Any, **kwargs: Any) -> Steps[Any]:
            if (yield from halted()):
                return idle
            return (yield from peek(*args, **kwargs))

        return flow(peek=look)(body)

    return wrap
