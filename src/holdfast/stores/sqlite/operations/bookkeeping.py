"""What is kept only to work with, and for how long: see the PostgreSQL store's code/53_bookkeeping.sql."""

from __future__ import annotations

from holdfast.stores.flow import Statement, Steps

DAY = 86_400_000_000

_LEASES = (
    "DELETE FROM lease WHERE id IN (SELECT id FROM lease WHERE ended_at IS NOT NULL AND swept_at <= :week LIMIT :want)"
    " RETURNING 1"
)
_TOKENS = (
    "DELETE FROM gate_token WHERE hash IN (SELECT t.hash FROM gate_token t JOIN gate g ON g.id = t.gate_id"
    " WHERE g.state <> 'open' AND g.decided_at <= :week LIMIT :want) RETURNING 1"
)
# Not the latest of a schedule, whatever its age: that it ran at all is worth knowing.
_FIRES = (
    "DELETE FROM fire WHERE (schedule_id, due_at, manual) IN (SELECT f.schedule_id, f.due_at, f.manual"
    " FROM schedule s CROSS JOIN fire f ON f.schedule_id = s.id AND f.due_at <= :old"
    " WHERE f.status <> 'waiting' AND (f.status <> 'fired' OR f.ended) AND f.due_at < s.last_fire_at LIMIT :want)"
    " RETURNING 1"
)
_DELIVERIES = (
    "DELETE FROM delivery WHERE (subscription_id, event) IN (SELECT d.subscription_id, d.event"
    " FROM subscription s CROSS JOIN delivery d ON d.subscription_id = s.id AND d.at <= :old LIMIT :want) RETURNING 1"
)
# Only what everybody who reads them has read; and the newest of all stays, so that no number is used twice.
READ = (
    "app_event.seq < (SELECT max(seq) FROM app_event)"
    " AND NOT EXISTS (SELECT 1 FROM consumer c WHERE c.cursor LIKE 'a%' AND c.tenant IN (app_event.tenant, '*')"
    " AND app_event.seq > CAST(substr(c.cursor, 2) AS INTEGER))"
    " AND NOT EXISTS (SELECT 1 FROM subscription s WHERE s.pattern NOT LIKE 'job.%'"
    " AND s.tenant IN (app_event.tenant, '*')"
    " AND app_event.seq > CAST(substr(coalesce(s.cursor, 'a0'), 2) AS INTEGER))"
)
_TOLD = (
    "DELETE FROM app_event WHERE id IN (SELECT id FROM app_event WHERE id < :first AND sent_at <= :year"
    f" AND {READ} ORDER BY id LIMIT :want) RETURNING 1"
)


def prune_bookkeeping(want: int, now: int) -> Steps[int]:
    """Inside a flow that has signed; answers the most that went of one sort."""
    most = 0
    year = now - 365 * DAY
    digits = f"{max(0, year // 1000):012x}"
    for text, params in (
        (_LEASES, {"week": now - 7 * DAY}),
        (_TOKENS, {"week": now - 7 * DAY}),
        (_FIRES, {"old": now - 90 * DAY}),
        (_DELIVERIES, {"old": now - 90 * DAY}),
        (_TOLD, {"year": year, "first": f"{digits[:8]}-{digits[8:]}"}),
    ):
        rows = yield Statement(text, {**params, "want": want})
        most = max(most, len(rows))
    return most
