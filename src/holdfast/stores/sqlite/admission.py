"""Letting jobs in: of what a claim has picked, those that every limit has room for; the rest is parked (SC-16).

There is one writer at a time, so what is counted stays so until the end of the transaction. Nothing of this is looked
at while ``dispatch`` says that nothing is limited. The places of a job that leaves a worker's hands are freed by a
trigger (features/limits/sqlite.sql), which also lets the next one go on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.times import MICROSECOND
from holdfast.features.agents.model import HOLD
from holdfast.features.limits.model import EACH, Bucket, Rule, tokens
from holdfast.stores.codecs import in_micros
from holdfast.stores.flow import Flow, Row, Statement, Steps, flow
from holdfast.stores.sqlite.base import ids_json
from holdfast.stores.sqlite.codec import NEVER

SECOND = 1_000_000
_LIMITED = "SELECT limited FROM dispatch WHERE id = 1"
_DISPATCH = "SELECT limited, fair FROM dispatch WHERE id = 1"
# What is paused counts where nothing at all is to be taken from the queue; the jobs of single tenants are parked.
_BARRED = (
    "SELECT tenant FROM reservation WHERE state = 'active' AND expires_at > :now"
    " AND (scope = 'all' OR (scope = 'queue' AND name = :queue))"
    " UNION ALL SELECT tenant FROM pause WHERE tenant IN ('*', :tenant) AND (until IS NULL OR until > :now)"
    " AND (scope = 'all' OR (scope = 'queue' AND name = :queue))"
)
_PAUSED = "SELECT tenant, scope, name FROM pause WHERE until IS NULL OR until > ?"
_TENANTS = "SELECT (SELECT min(tenant) FROM job), (SELECT max(tenant) FROM job)"
_USES = "SELECT n, uses FROM job WHERE n IN (SELECT value FROM json_each(?)) AND uses IS NOT NULL"
_SOME_RULES = "SELECT tenant, scope, name, concurrency, rate, per, burst FROM job_limit ORDER BY name <> '*' LIMIT ?"
FEW = 100
# Of a limit for one name and one for each the first counts: it comes last here, and replaces the other.
_RULES = (
    "SELECT o.key, l.tenant, l.concurrency, l.rate, l.per, l.burst FROM json_each(:wanted) o JOIN job_limit l"
    " ON (l.tenant = '*' OR l.tenant = json_extract(o.value, '$[0]')) AND l.scope = json_extract(o.value, '$[1]')"
    " AND (l.name = json_extract(o.value, '$[2]') OR l.name = '*') ORDER BY l.name <> '*'"
)
_RESERVED = (
    "SELECT o.key, r.tenant FROM json_each(:wanted) o JOIN reservation r"
    " ON r.scope = 'resource' AND r.name = json_extract(o.value, '$[2]') AND r.state = 'active' AND r.expires_at > :now"
    " AND (r.tenant = '*' OR r.tenant = json_extract(o.value, '$[0]')) WHERE json_extract(o.value, '$[1]') = 'resource'"
)
_TAKEN = "SELECT count(*) FROM occupied_slot WHERE tenant = ? AND scope = ? AND name = ?"
_METER = "SELECT tokens, at FROM rate_meter WHERE tenant = ? AND scope = ? AND name = ?"
_OCCUPY = "INSERT INTO occupied_slot (tenant, scope, name, job_id) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_SPEND = (
    "INSERT INTO rate_meter (tenant, scope, name, tokens, at) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET tokens = excluded.tokens, at = excluded.at"
)
_WAKE = (
    "UPDATE rate_meter SET wake_at = :wake WHERE tenant = :tenant AND scope = :scope AND name = :name"
    " AND (wake_at IS NULL OR wake_at <= :now)"
)
_NEXT_WAKE = "SELECT min(wake_at) FROM rate_meter WHERE wake_at IS NOT NULL"
ROUNDED = 100
_PARK = (
    "UPDATE job_state SET due_at = :never, note = json_object('held', 'limit', 'by', :bucket), held_by = :bucket"
    " WHERE n IN (SELECT value FROM json_each(:numbers))"
)
# Those that were picked, and what else is at the head of the queue: there may be a million of them, and others behind.
_PARK_PAUSED = (
    "UPDATE job_state SET due_at = :never, note = json_object('held', 'limit', 'by', p.bucket), held_by = p.bucket"
    " FROM (SELECT h.n, (SELECT json_array(w.tenant, w.scope, w.name) || '' FROM pause w"
    " WHERE (w.tenant = '*' OR w.tenant = h.tenant) AND (w.until IS NULL OR w.until > :now)"
    " AND CASE w.scope WHEN 'kind' THEN w.name = h.kind WHEN 'agent' THEN w.name IS h.agent"
    " WHEN 'queue' THEN w.name = h.queue ELSE 1 END LIMIT 1) AS bucket"
    " FROM (SELECT n, tenant, queue, kind, agent FROM job_state WHERE n IN (SELECT value FROM json_each(:numbers))"
    " UNION SELECT * FROM (SELECT n, tenant, queue, kind, agent FROM job_state INDEXED BY claimable"
    " WHERE :more AND queue = :queue AND state = 'queued' AND due_at IS NULL"
    " ORDER BY priority DESC, position LIMIT 1000)"
    ") h) p WHERE job_state.n = p.n AND p.bucket IS NOT NULL RETURNING 1"
)
_GO_ON = (
    "UPDATE job_state SET due_at = NULL, note = NULL, held_by = NULL WHERE n IN ("
    "SELECT n FROM job_state INDEXED BY parked WHERE held_by = :bucket AND held_by IS NOT NULL AND due_at IS NOT NULL"
    " AND state = 'queued' ORDER BY priority DESC, position LIMIT :room) RETURNING 1"
)


class Candidate(NamedTuple):
    """A job that a claim has picked, as limits see it."""

    n: int
    id: str
    tenant: str
    queue: str
    kind: str
    agent: str | None


class Opening(NamedTuple):
    """How far a queue is open to a claim: for how many (None: any number), and to which tenants' jobs not. ``rates``
    are the limits with a rate on the queue as a whole."""

    room: int | None
    barred: list[str]
    rates: tuple[tuple[Bucket, Rule], ...] = ()


def dispatch() -> Steps[tuple[bool, list[str]]]:
    """Whether anything is limited, and which queues tenants share fairly."""
    rows = yield Statement(_DISPATCH)
    limited, fair = rows[0]
    return bool(limited), [] if fair is None else json.loads(fair)


def is_limited() -> Steps[bool]:
    rows = yield Statement(_LIMITED)
    return bool(rows[0][0])


def opening(queue: str, tenant: str, now: int) -> Steps[Opening]:
    """What a whole queue has room for in this scope, however many wait in it: then nobody needs to be parked."""
    barred = [row[0] for row in (yield Statement(_BARRED, {"now": now, "queue": queue, "tenant": tenant}))]
    if EVERY_TENANT in barred or tenant in barred:
        return Opening(0, barred)
    whose = tenant
    if tenant == EVERY_TENANT:  # where there is but one tenant, its limits are those of all
        ((first, last),) = yield Statement(_TENANTS)
        whose = first if first is not None and first == last else EVERY_TENANT
    rules = yield from _rules([(whose, "all", EACH), (whose, "queue", queue)], now)
    rooms = []
    for bucket, rule in rules.items():
        rooms.append((yield from room_in(bucket, rule, now)))
    rates = tuple((bucket, rule) for bucket, rule in rules.items() if rule.rate is not None)
    return Opening(min(rooms, default=None), barred, rates)


def admit(picked: Sequence[Candidate], now: int, most: int) -> Steps[set[int]]:
    """The numbers of those that have room, at most so many, in the order given; who has none is parked."""
    used: dict[int, str] = dict((yield Statement(_USES, (ids_json(each.n for each in picked),))))  # type: ignore[arg-type]
    # Most of them are alike: what is looked up is looked up once for all that are.
    alike = [(each.tenant, each.queue, each.kind, each.agent, used.get(each.n)) for each in picked]
    wanted = {what: _wanted(*what) for what in set(alike)}
    rules = yield from _rules({each for names in wanted.values() for each in names}, now)
    if not rules:
        return {each.n for each in picked[:most]}
    limits = {
        what: [bucket for each in names for bucket in _buckets(each) if bucket in rules]
        for what, names in wanted.items()
    }
    rooms = {}
    for bucket, rule in rules.items():
        rooms[bucket] = yield from room_in(bucket, rule, now)
    admitted: set[int] = set()
    places: list[tuple[str, str, str, str]] = []
    spent: Counter[Bucket] = Counter()
    parked: dict[Bucket, list[int]] = {}
    for each, what in zip(picked, alike, strict=True):
        if len(admitted) >= most:
            break
        under = limits[what]
        full = next((bucket for bucket in under if rooms[bucket] <= 0), None)
        if full is not None:
            parked.setdefault(full, []).append(each.n)
            continue
        admitted.add(each.n)
        for bucket in under:
            rooms[bucket] -= 1
            if rules[bucket].concurrency is not None:
                places.append((*bucket, each.id))
            if rules[bucket].rate is not None:
                spent[bucket] += 1
    if places:
        yield Statement(_OCCUPY, places, many=True)
    for bucket, count in spent.items():
        left = yield from _tokens(bucket, rules[bucket], now)
        yield Statement(_SPEND, (*bucket, left - count, now))
    for bucket, numbers in parked.items():
        yield Statement(_PARK, {"never": NEVER, "bucket": bucket.text, "numbers": ids_json(numbers)})
        yield from wake_later(bucket, rules[bucket], now)
    return admitted


def park_paused(numbers: Sequence[int], queue: str, now: int) -> Steps[bool]:
    """Have those out of the way that are paused, of what a claim has picked and of those like them behind."""
    facts = {"never": NEVER, "now": now, "queue": queue}
    rows = yield Statement(_PARK_PAUSED, {**facts, "numbers": ids_json(numbers), "more": 0})
    if rows:
        yield Statement(_PARK_PAUSED, {**facts, "numbers": "[]", "more": 1})
    return bool(rows)


def room_in(bucket: Bucket, rule: Rule, now: int) -> Steps[int]:
    """How many more may be taken."""
    rooms: list[int] = []
    if rule.concurrency is not None:
        ((taken,),) = yield Statement(_TAKEN, bucket)
        rooms.append(max(rule.concurrency - int(taken), 0))
    if rule.rate is not None:
        left = yield from _tokens(bucket, rule, now)
        rooms.append(int(left + 1e-9))
    return min(rooms)


def go_on(bucket: Bucket, want: int, now: int) -> Steps[int]:
    """Let as many go on as a limit has room for, in queue order; answers how many."""
    rules = yield from _rules([bucket], now)
    rule = rules.get(bucket)
    room = want if rule is None else min(want, (yield from room_in(bucket, rule, now)))
    if room <= 0:
        return 0
    rows = yield Statement(_GO_ON, {"bucket": bucket.text, "room": room})
    return len(rows)


def token_at(bucket: Bucket, rule: Rule, now: int, promised: int = 0) -> Steps[int]:
    """When the next token comes in; ``promised`` ones are for jobs that go on already. A little later than computed:
    times are rounded, and nobody would come again for the rest."""
    left = yield from _tokens(bucket, rule, now)
    return now + ROUNDED + in_micros(max(1.0 + promised - left, 0.0) * (rule.per or 1.0) / (rule.rate or 1))


def next_token_at() -> Steps[int | None]:
    """When the next token comes in that jobs wait for."""
    rows = yield Statement(_NEXT_WAKE)
    at: int | None = rows[0][0]
    return at


def wake_queue_later(rates: Sequence[tuple[Bucket, Rule]], now: int) -> Steps[None]:
    """The room of a whole queue is used up, and more may wait in it: record when there is room again."""
    for bucket, rule in rates:
        if (yield from token_at(bucket, rule, now)) > now + ROUNDED:
            yield from wake_later(bucket, rule, now)


def next_in(now: int) -> Steps[float | None]:
    """After how many seconds a rate limit that holds jobs back has room again."""
    at = yield from next_token_at()
    return None if at is None else max(at - now, 0) / SECOND


def wake_later(bucket: Bucket, rule: Rule, now: int, promised: int = 0) -> Steps[None]:
    """Jobs wait for the next token: record when it comes in, which is when a worker claims again."""
    if rule.rate is None:
        return
    wake = yield from token_at(bucket, rule, now, promised)
    yield Statement(_WAKE, {**bucket._asdict(), "wake": wake, "now": now})


def _tokens(bucket: Bucket, rule: Rule, now: int) -> Steps[float]:
    rows = yield Statement(_METER, bucket)
    return tokens(None, 0.0, rule) if not rows else tokens(rows[0][0], (now - rows[0][1]) / SECOND, rule)


def _wanted(tenant: str, queue: str, kind: str, agent: str | None, uses: str | None) -> list[tuple[str, str, str]]:
    """Whatever a limit might count such a job by: its tenant, a scope and a name."""
    names = [("all", EACH), ("queue", queue), ("kind", kind), ("tenant", tenant)]
    if agent is not None:
        names.append(("agent", agent))
    for use in json.loads(uses) if uses is not None else ():
        scope, _, name = use.partition(":")
        names.append((scope, name))
    return [(tenant, scope, name) for scope, name in names]


def _buckets(what: tuple[str, str, str]) -> tuple[Bucket, Bucket]:
    tenant, scope, name = what
    return Bucket(EVERY_TENANT, scope, name), Bucket(tenant, scope, name)


def _rules(wanted: Iterable[tuple[str, str, str]], now: int) -> Steps[dict[Bucket, Rule]]:
    """The limits on them. What is reserved or paused is a limit of none."""
    asked = list(wanted)
    found: dict[Bucket, Rule] = {}
    some = yield Statement(_SOME_RULES, (FEW,))
    if len(some) < FEW:  # sooner compared here
        known = {(tenant, scope, name): limits for tenant, scope, name, *limits in some}
        for what in asked:
            for bucket in _buckets(what):
                limits = known.get(bucket) or known.get((bucket.tenant, bucket.scope, EACH))
                if limits is not None:
                    found[bucket] = Rule(bucket.scope, bucket.name, *limits)
    else:
        for key, tenant, *limits in (yield Statement(_RULES, {"wanted": json.dumps(asked)})):
            _, scope, name = asked[key]
            found[Bucket(tenant, scope, name)] = Rule(scope, name, *limits)
    paused = {Bucket(*row) for row in (yield Statement(_PAUSED, (now,)))}
    if paused:
        closed = {bucket for what in asked for bucket in _buckets(what)} & paused
        found |= {bucket: Rule(bucket.scope, bucket.name, 0) for bucket in closed}
    if not any(scope == "resource" for _, scope, _ in asked):
        return found
    for key, tenant in (yield Statement(_RESERVED, {"wanted": json.dumps(asked), "now": now})):
        _, scope, name = asked[key]
        found[Bucket(tenant, scope, name)] = Rule(scope, name, 0)
    return found


def candidate(row: Row) -> Candidate:
    """From a row of a claim's own picking."""
    return Candidate(row[0], row[1], row[4], row[6], row[5], row[20])


P = ParamSpec("P")
T = TypeVar("T")
_HALTED = Statement(
    "SELECT 1 FROM pause WHERE tenant = '*' AND scope = 'all' AND (until IS NULL OR until > (SELECT now FROM present))"
)


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


_DISABLED = (
    "SELECT a.tenant, a.id FROM json_each(?) o JOIN agent a"
    " ON a.tenant = json_extract(o.value, '$[0]') AND a.id = json_extract(o.value, '$[1]')"
    " WHERE a.disabled_at IS NOT NULL"
)
_PUT_OFF = 'UPDATE job_state SET due_at = :until, note = \'{"held": "agent_disabled"}\' WHERE n IN'
_PUT_OFF_THESE = f"{_PUT_OFF} (SELECT value FROM json_each(:numbers))"
# And others of theirs, that the next claims need not come by them.
_PUT_OFF_MORE = (
    f"{_PUT_OFF} (SELECT n FROM job_state WHERE tenant = :tenant AND agent = :agent AND agent IS NOT NULL"
    " AND state IN ('queued', 'retry_waiting') AND +state = 'queued' AND due_at IS NULL LIMIT 1000)"
)


def hold_back(picked: Sequence[Row], whose: Sequence[tuple[str, str | None]], now: int) -> Steps[list[Row]]:
    """Of what a claim has picked (the number first), the rows it may take; ``whose`` says each one's tenant and agent.

    Jobs of disabled agents are put off for a while, after which a claim finds them again: nothing is lost if whoever
    enables the agent comes to nothing half-way. It is no step of theirs, and not in the ledger.
    """
    agents = {each for each in whose if each[1] is not None}
    if not agents:
        return list(picked)
    rows = yield Statement(_DISABLED, (json.dumps(list(agents)),))
    disabled = {(tenant, agent) for tenant, agent in rows}
    if not disabled:
        return list(picked)
    until = now + HOLD // MICROSECOND
    held = [row[0] for row, each in zip(picked, whose, strict=True) if each in disabled]
    yield Statement(_PUT_OFF_THESE, {"until": until, "numbers": ids_json(held)})
    for tenant, agent in disabled:
        yield Statement(_PUT_OFF_MORE, {"until": until, "tenant": tenant, "agent": agent})
    return [row for row, each in zip(picked, whose, strict=True) if each not in disabled]
