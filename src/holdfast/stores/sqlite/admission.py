"""Admission: of the jobs that a claim has picked, admit those that every limit has capacity for, and park the rest.

There is one writer at a time, so counts are exact until the end of the transaction. None of this runs while
``dispatch`` says that nothing is limited. When a job ends, a trigger (features/limits/sqlite.sql) frees its slots and
releases the next parked job.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.times import MICROSECOND
from holdfast.features.agents.model import DISABLED_DELAY
from holdfast.features.limits.model import EACH, Bucket, Rule, tokens
from holdfast.stores.codecs import in_micros
from holdfast.stores.flow import Flow, Row, Statement, Steps, flow
from holdfast.stores.sqlite.base import ids_json
from holdfast.stores.sqlite.codec import NEVER

SECOND = 1_000_000
_LIMITED = "SELECT limited FROM holdfast_dispatch WHERE id = 1"
_DISPATCH = "SELECT limited, fair FROM holdfast_dispatch WHERE id = 1"
# Tenants without claims from a queue, by reservation or pause. Pauses count here only if they close the whole queue for
# this scope; otherwise the jobs of the paused tenants are parked.
_BARRED = (
    "SELECT tenant FROM holdfast_reservation WHERE state = 'active' AND expires_at > :now"
    " AND (scope = 'all' OR (scope = 'queue' AND name = :queue))"
    " UNION ALL SELECT tenant FROM holdfast_pause WHERE tenant IN ('*', :tenant) AND (until IS NULL OR until > :now)"
    " AND (scope = 'all' OR (scope = 'queue' AND name = :queue))"
)
_PAUSED = "SELECT tenant, scope, name FROM holdfast_pause WHERE until IS NULL OR until > ?"
_TENANTS = "SELECT (SELECT min(tenant) FROM holdfast_job), (SELECT max(tenant) FROM holdfast_job)"
_USES = "SELECT n, uses FROM holdfast_job WHERE n IN (SELECT value FROM json_each(?)) AND uses IS NOT NULL"
_SOME_RULES = (
    "SELECT tenant, scope, name, concurrency, rate, per, burst FROM holdfast_job_limit ORDER BY name <> '*' LIMIT ?"
)
FEW = 100
# A limit for one name overrides the limit for each name: it is read last, and replaces the other.
_RULES = (
    "SELECT o.key, l.tenant, l.concurrency, l.rate, l.per, l.burst FROM json_each(:wanted) o JOIN holdfast_job_limit l"
    " ON (l.tenant = '*' OR l.tenant = json_extract(o.value, '$[0]')) AND l.scope = json_extract(o.value, '$[1]')"
    " AND (l.name = json_extract(o.value, '$[2]') OR l.name = '*') ORDER BY l.name <> '*'"
)
_RESERVED = (
    "SELECT o.key, r.tenant FROM json_each(:wanted) o JOIN holdfast_reservation r"
    " ON r.scope = 'resource' AND r.name = json_extract(o.value, '$[2]') AND r.state = 'active' AND r.expires_at > :now"
    " AND (r.tenant = '*' OR r.tenant = json_extract(o.value, '$[0]')) WHERE json_extract(o.value, '$[1]') = 'resource'"
)
_TAKEN = "SELECT count(*) FROM holdfast_occupied_slot WHERE tenant = ? AND scope = ? AND name = ?"
_METER = "SELECT tokens, at FROM holdfast_rate_meter WHERE tenant = ? AND scope = ? AND name = ?"
_OCCUPY = "INSERT INTO holdfast_occupied_slot (tenant, scope, name, job_id) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_SPEND = (
    "INSERT INTO holdfast_rate_meter (tenant, scope, name, tokens, at) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET tokens = excluded.tokens, at = excluded.at"
)
# A time in the future: the clock was set back. Tokens come in from now on.
_WAKE = (
    "UPDATE holdfast_rate_meter SET wake_at = :wake, at = CASE WHEN at > :now + 5000000 THEN :now ELSE at END"
    " WHERE tenant = :tenant AND scope = :scope AND name = :name"
    " AND (wake_at IS NULL OR wake_at <= :now OR at > :now + 5000000)"
)
_NEXT_WAKE = "SELECT min(wake_at) FROM holdfast_rate_meter WHERE wake_at IS NOT NULL"
ROUNDING = 100
_PARK = (
    "UPDATE holdfast_job_state SET due_at = :never, note = json_object('held', 'limit', 'by', :bucket), held_by ="
    " :bucket WHERE n IN (SELECT value FROM json_each(:numbers))"
)
# The picked jobs, and with :more the head of the queue: a million paused jobs may stand before the first claimable one.
_PARK_PAUSED = (
    "UPDATE holdfast_job_state SET due_at = :never, note = json_object('held', 'limit', 'by', p.bucket), held_by ="
    " p.bucket FROM (SELECT h.n, (SELECT json_array(w.tenant, w.scope, w.name) || '' FROM holdfast_pause w"
    " WHERE (w.tenant = '*' OR w.tenant = h.tenant) AND (w.until IS NULL OR w.until > :now)"
    " AND CASE w.scope WHEN 'kind' THEN w.name = h.kind WHEN 'agent' THEN w.name IS h.agent"
    " WHEN 'queue' THEN w.name = h.queue ELSE 1 END LIMIT 1) AS bucket"
    " FROM (SELECT n, tenant, queue, kind, agent FROM holdfast_job_state WHERE n IN (SELECT value FROM"
    " json_each(:numbers)) UNION SELECT * FROM (SELECT n, tenant, queue, kind, agent FROM holdfast_job_state INDEXED"
    " BY holdfast_claimable WHERE :more AND queue = :queue AND state = 'queued' AND due_at IS NULL"
    " ORDER BY priority DESC, position LIMIT 1000)"
    ") h) p WHERE holdfast_job_state.n = p.n AND p.bucket IS NOT NULL RETURNING 1"
)
_RELEASE = (
    "UPDATE holdfast_job_state SET due_at = NULL, note = NULL, held_by = NULL WHERE n IN ("
    "SELECT n FROM holdfast_job_state INDEXED BY holdfast_parked WHERE held_by = :bucket AND held_by IS NOT NULL AND"
    " due_at IS NOT NULL AND state = 'queued' ORDER BY priority DESC, position LIMIT :room) RETURNING 1"
)


class Candidate(NamedTuple):
    """A job that a claim has picked, with the columns that limits count by."""

    n: int
    id: str
    tenant: str
    queue: str
    kind: str
    agent: str | None


class QueueCapacity(NamedTuple):
    """How many ``jobs`` a claim may take from a queue (None: any number), and the ``excluded`` tenants. ``rates`` are
    the rate limits on the queue as a whole."""

    jobs: int | None
    excluded: list[str]
    rates: tuple[tuple[Bucket, Rule], ...] = ()


def dispatch() -> Steps[tuple[bool, list[str]]]:
    """Whether anything is limited, and the queues with fair shares."""
    rows = yield Statement(_DISPATCH)
    limited, fair = rows[0]
    return bool(limited), [] if fair is None else json.loads(fair)


def is_limited() -> Steps[bool]:
    rows = yield Statement(_LIMITED)
    return bool(rows[0][0])


def capacity_of_queue(queue: str, tenant: str, now: int) -> Steps[QueueCapacity]:
    """The capacity of a whole queue for this scope. A full queue is not claimed from, so that no job needs parking."""
    excluded = [row[0] for row in (yield Statement(_BARRED, {"now": now, "queue": queue, "tenant": tenant}))]
    if EVERY_TENANT in excluded or tenant in excluded:
        return QueueCapacity(0, excluded)
    limited_tenant = tenant
    if tenant == EVERY_TENANT:  # with a single tenant, its limits apply to the whole queue
        ((first, last),) = yield Statement(_TENANTS)
        limited_tenant = first if first is not None and first == last else EVERY_TENANT
    rules = yield from _rules([(limited_tenant, "all", EACH), (limited_tenant, "queue", queue)], now)
    capacities = []
    for bucket, rule in rules.items():
        capacities.append((yield from _capacity(bucket, rule, now)))
    rates = tuple((bucket, rule) for bucket, rule in rules.items() if rule.rate is not None)
    return QueueCapacity(min(capacities, default=None), excluded, rates)


def admit(picked: Sequence[Candidate], now: int, most: int) -> Steps[set[int]]:
    """Admit at most ``most`` jobs that all their limits have capacity for, in the given order, and park those without.
    Returns the numbers of the admitted jobs."""
    uses: dict[int, str] = dict((yield Statement(_USES, (ids_json(each.n for each in picked),))))  # type: ignore[arg-type]
    # Most jobs have the same attributes: limits are read once per distinct combination.
    attributes = [(each.tenant, each.queue, each.kind, each.agent, uses.get(each.n)) for each in picked]
    keys = {combination: _limit_keys(*combination) for combination in set(attributes)}
    rules = yield from _rules({key for some in keys.values() for key in some}, now)
    if not rules:
        return {each.n for each in picked[:most]}
    limits = {
        combination: [bucket for key in some for bucket in _buckets(key) if bucket in rules]
        for combination, some in keys.items()
    }
    capacities = {}
    for bucket, rule in rules.items():
        capacities[bucket] = yield from _capacity(bucket, rule, now)
    admitted: set[int] = set()
    slots: list[tuple[str, str, str, str]] = []
    spent: Counter[Bucket] = Counter()
    parked: dict[Bucket, list[int]] = {}
    for each, combination in zip(picked, attributes, strict=True):
        if len(admitted) >= most:
            break
        buckets = limits[combination]
        full = next((bucket for bucket in buckets if capacities[bucket] <= 0), None)
        if full is not None:
            parked.setdefault(full, []).append(each.n)
            continue
        admitted.add(each.n)
        for bucket in buckets:
            capacities[bucket] -= 1
            if rules[bucket].concurrency is not None:
                slots.append((*bucket, each.id))
            if rules[bucket].rate is not None:
                spent[bucket] += 1
    if slots:
        yield Statement(_OCCUPY, slots, many=True)
    for bucket, count in spent.items():
        left = yield from _tokens(bucket, rules[bucket], now)
        yield Statement(_SPEND, (*bucket, left - count, now))
    for bucket, numbers in parked.items():
        yield Statement(_PARK, {"never": NEVER, "bucket": bucket.text, "numbers": ids_json(numbers)})
        yield from wake_later(bucket, rules[bucket], now)
    return admitted


def park_paused(numbers: Sequence[int], queue: str, now: int) -> Steps[bool]:
    """Park the paused jobs among those that a claim has picked; if there are any, also those at the head of the queue.
    Returns whether there were any."""
    params = {"never": NEVER, "now": now, "queue": queue}
    rows = yield Statement(_PARK_PAUSED, {**params, "numbers": ids_json(numbers), "more": 0})
    if rows:
        yield Statement(_PARK_PAUSED, {**params, "numbers": "[]", "more": 1})
    return bool(rows)


def _capacity(bucket: Bucket, rule: Rule, now: int) -> Steps[int]:
    """How many more jobs a limit admits."""
    capacities: list[int] = []
    if rule.concurrency is not None:
        ((taken,),) = yield Statement(_TAKEN, bucket)
        capacities.append(max(rule.concurrency - int(taken), 0))
    if rule.rate is not None:
        left = yield from _tokens(bucket, rule, now)
        capacities.append(int(left + 1e-9))
    return min(capacities)


def release_parked(bucket: Bucket, want: int, now: int) -> Steps[int]:
    """Release parked jobs, as many as their limit has capacity for, in queue order; returns their number."""
    rules = yield from _rules([bucket], now)
    rule = rules.get(bucket)
    capacity = want if rule is None else min(want, (yield from _capacity(bucket, rule, now)))
    if capacity <= 0:
        return 0
    rows = yield Statement(_RELEASE, {"bucket": bucket.text, "room": capacity})
    return len(rows)


def _token_at(bucket: Bucket, rule: Rule, now: int, promised: int = 0) -> Steps[int]:
    """When the next token is available; ``promised`` tokens are for jobs that were already released. Slightly later
    than computed: times are rounded, and a wake-up too early would not be repeated."""
    left = yield from _tokens(bucket, rule, now)
    return now + ROUNDING + in_micros(max(1.0 + promised - left, 0.0) * (rule.per or 1.0) / (rule.rate or 1))


def next_token_at() -> Steps[int | None]:
    """When the next token that jobs wait for is available."""
    rows = yield Statement(_NEXT_WAKE)
    at: int | None = rows[0][0]
    return at


def wake_queue_later(rates: Sequence[tuple[Bucket, Rule]], now: int) -> Steps[None]:
    """The capacity of a whole queue is used up, and more jobs may wait: record when there is capacity again."""
    for bucket, rule in rates:
        if (yield from _token_at(bucket, rule, now)) > now + ROUNDING:
            yield from wake_later(bucket, rule, now)


def next_in(now: int) -> Steps[float | None]:
    """The seconds until a rate limit with waiting jobs has capacity again."""
    at = yield from next_token_at()
    return None if at is None else max(at - now, 0) / SECOND


def wake_later(bucket: Bucket, rule: Rule, now: int, promised: int = 0) -> Steps[None]:
    """Record when the next token is available: workers then claim again."""
    if rule.rate is None:
        return
    wake = yield from _token_at(bucket, rule, now, promised)
    yield Statement(_WAKE, {**bucket._asdict(), "wake": wake, "now": now})


def _tokens(bucket: Bucket, rule: Rule, now: int) -> Steps[float]:
    rows = yield Statement(_METER, bucket)
    return tokens(None, 0.0, rule) if not rows else tokens(rows[0][0], (now - rows[0][1]) / SECOND, rule)


def _limit_keys(tenant: str, queue: str, kind: str, agent: str | None, uses: str | None) -> list[tuple[str, str, str]]:
    """The keys by which limits can count such a job: tenant, scope and name."""
    names = [("all", EACH), ("queue", queue), ("kind", kind), ("tenant", tenant)]
    if agent is not None:
        names.append(("agent", agent))
    for use in json.loads(uses) if uses is not None else ():
        scope, _, name = use.partition(":")
        names.append((scope, name))
    return [(tenant, scope, name) for scope, name in names]


def _buckets(key: tuple[str, str, str]) -> tuple[Bucket, Bucket]:
    tenant, scope, name = key
    return Bucket(EVERY_TENANT, scope, name), Bucket(tenant, scope, name)


def _rules(wanted: Iterable[tuple[str, str, str]], now: int) -> Steps[dict[Bucket, Rule]]:
    """The limits for these keys. A reservation or pause is a limit of zero."""
    keys = list(wanted)
    rules: dict[Bucket, Rule] = {}
    rows = yield Statement(_SOME_RULES, (FEW,))
    if len(rows) < FEW:  # matching few limits here is faster than in SQL
        known = {(tenant, scope, name): limits for tenant, scope, name, *limits in rows}
        for key in keys:
            for bucket in _buckets(key):
                limits = known.get(bucket) or known.get((bucket.tenant, bucket.scope, EACH))
                if limits is not None:
                    rules[bucket] = Rule(bucket.scope, bucket.name, *limits)
    else:
        for index, tenant, *limits in (yield Statement(_RULES, {"wanted": json.dumps(keys)})):
            _, scope, name = keys[index]
            rules[Bucket(tenant, scope, name)] = Rule(scope, name, *limits)
    paused = {Bucket(*row) for row in (yield Statement(_PAUSED, (now,)))}
    if paused:
        closed = {bucket for key in keys for bucket in _buckets(key)} & paused
        rules |= {bucket: Rule(bucket.scope, bucket.name, 0) for bucket in closed}
    if not any(scope == "resource" for _, scope, _ in keys):
        return rules
    for index, tenant in (yield Statement(_RESERVED, {"wanted": json.dumps(keys), "now": now})):
        _, scope, name = keys[index]
        rules[Bucket(tenant, scope, name)] = Rule(scope, name, 0)
    return rules


def candidate(row: Row) -> Candidate:
    """The candidate of a row that a claim has picked."""
    return Candidate(row[0], row[1], row[4], row[6], row[5], row[20])


P = ParamSpec("P")
T = TypeVar("T")
_HALTED = Statement(
    "SELECT 1 FROM holdfast_pause WHERE tenant = '*' AND scope = 'all' AND (until IS NULL OR until > (SELECT now FROM"
    " holdfast_present))"
)


def halted() -> Steps[bool]:
    """Whether everything is paused: only running jobs may continue."""
    return bool((yield _HALTED))


def maintenance_flow(
    idle: Any, peek: Callable[..., Steps[Any]]
) -> Callable[[Callable[P, Steps[T]]], Callable[P, Flow[T]]]:
    """The flow of a maintenance task. ``peek`` checks whether there is something to do. While everything is paused,
    neither runs, and the result is ``idle``."""

    def wrap(steps: Callable[P, Steps[T]]) -> Callable[P, Flow[T]]:
        @wraps(steps)
        def body(*args: P.args, **kwargs: P.kwargs) -> Steps[T]:
            if (yield from halted()):
                return idle  # type: ignore[no-any-return]
            return (yield from steps(*args, **kwargs))

        def peek_unless_halted(*args: Any, **kwargs: Any) -> Steps[Any]:
            if (yield from halted()):
                return idle
            return (yield from peek(*args, **kwargs))

        return flow(peek=peek_unless_halted)(body)

    return wrap


_DISABLED = (
    "SELECT a.tenant, a.id FROM json_each(?) o JOIN holdfast_agent a"
    " ON a.tenant = json_extract(o.value, '$[0]') AND a.id = json_extract(o.value, '$[1]')"
    " WHERE a.disabled_at IS NOT NULL"
)
_POSTPONE = 'UPDATE holdfast_job_state SET due_at = :until, note = \'{"held": "agent_disabled"}\' WHERE n IN'
_POSTPONE_PICKED = f"{_POSTPONE} (SELECT value FROM json_each(:numbers))"
# More jobs of the same agents, so that the next claims do not pick them.
_POSTPONE_MORE = (
    f"{_POSTPONE} (SELECT n FROM holdfast_job_state WHERE tenant = :tenant AND agent = :agent AND agent IS NOT NULL"
    " AND state IN ('queued', 'retry_waiting') AND +state = 'queued' AND due_at IS NULL LIMIT 1000)"
)


def postpone_disabled(picked: Sequence[Row], owners: Sequence[tuple[str, str | None]], now: int) -> Steps[list[Row]]:
    """Of the rows that a claim has picked (number first), those whose agents are enabled; ``owners`` has the tenant and
    agent of each.

    Jobs of disabled agents are postponed for a while; then a claim picks them again. So no job is lost if enabling an
    agent fails half-way. It is not a transition, and not recorded in the ledger.
    """
    agents = {each for each in owners if each[1] is not None}
    if not agents:
        return list(picked)
    rows = yield Statement(_DISABLED, (json.dumps(list(agents)),))
    disabled = {(tenant, agent) for tenant, agent in rows}
    if not disabled:
        return list(picked)
    until = now + DISABLED_DELAY // MICROSECOND
    postponed = [row[0] for row, owner in zip(picked, owners, strict=True) if owner in disabled]
    yield Statement(_POSTPONE_PICKED, {"until": until, "numbers": ids_json(postponed)})
    for tenant, agent in disabled:
        yield Statement(_POSTPONE_MORE, {"until": until, "tenant": tenant, "agent": agent})
    return [row for row, owner in zip(picked, owners, strict=True) if owner not in disabled]
