"""What is kept only to work with, and for how long: see the PostgreSQL store's code/53_bookkeeping.sql."""

from __future__ import annotations

import json

from holdfast.engine.job import EVERY_TENANT
from holdfast.stores.flow import Statement, Steps
from holdfast.stores.sqlite.base import note_action

DAY = 86_400_000_000

_LEASES = (
    "DELETE FROM lease WHERE id IN (SELECT id FROM lease WHERE ended_at IS NOT NULL AND swept_at <= :week LIMIT :want)"
    " RETURNING 1"
)
_TOKENS = (
    "DELETE FROM gate_token WHERE hash IN (SELECT t.hash FROM gate_token t JOIN gate g ON g.id = t.gate_id"
    " WHERE g.state <> 'open' AND g.decided_at <= :week LIMIT :want) RETURNING 1"
)
# A token after the last of its sessions: they name it.
_API_TOKENS = (
    "DELETE FROM api_token WHERE id IN (SELECT t.id FROM api_token t"
    " WHERE min(coalesce(t.revoked_at, t.expires_at), coalesce(t.expires_at, t.revoked_at))"
    " <= CASE WHEN t.parent_id IS NULL THEN :old ELSE :week END"
    " AND NOT EXISTS (SELECT 1 FROM api_token s WHERE s.parent_id = t.id AND s.parent_id IS NOT NULL)"
    " ORDER BY t.id LIMIT :want) RETURNING 1"
)
_RESERVATIONS = (
    "DELETE FROM reservation WHERE id IN (SELECT id FROM reservation WHERE ended_at <= :old ORDER BY id LIMIT :want)"
    " RETURNING 1"
)
_OPERATIONS = (
    "DELETE FROM operation WHERE id IN (SELECT id FROM operation WHERE id < :first AND finished_at <= :old"
    " ORDER BY id LIMIT :want) RETURNING 1"
)
_CALLS = (
    "DELETE FROM endpoint_delivery WHERE id IN (SELECT d.id FROM endpoint e CROSS JOIN endpoint_delivery d"
    " ON d.endpoint_id = e.id AND d.id < :first AND d.at <= :month LIMIT :want) RETURNING 1"
)
# What nobody could delete: it is in no store that is known, or was deleted by one who died before saying so.
_LEFT = (
    "DELETE FROM leftover WHERE (tenant, ref) IN (SELECT tenant, ref FROM leftover WHERE at <= :old LIMIT :want)"
    " RETURNING 1"
)
_GROUPS = (
    "DELETE FROM dead_letter_group WHERE (tenant, fingerprint) IN (SELECT tenant, fingerprint FROM dead_letter_group"
    " WHERE open = 0 AND last_at <= :year LIMIT :want) RETURNING 1"
)
# Not the latest of a schedule, whatever its age: that it ran at all is worth knowing.
_FIRES = (
    "DELETE FROM fire WHERE (schedule_id, due_at, manual) IN (SELECT f.schedule_id, f.due_at, f.manual"
    " FROM schedule s CROSS JOIN fire f ON f.schedule_id = s.id AND f.due_at <= :old"
    " WHERE f.status <> 'waiting' AND (f.status <> 'fired' OR f.ended) AND f.due_at < s.last_fire_at LIMIT :want)"
    " RETURNING 1"
)
# Also of subscriptions that were deleted: their ids are found in the index, one step each.
_DELIVERIES = (
    "DELETE FROM delivery WHERE (subscription_id, event) IN ("
    "WITH RECURSIVE s(id) AS (SELECT min(subscription_id) FROM delivery UNION ALL"
    " SELECT (SELECT min(d.subscription_id) FROM delivery d WHERE d.subscription_id > s.id) FROM s"
    " WHERE s.id IS NOT NULL)"
    " SELECT d.subscription_id, d.event FROM s CROSS JOIN delivery d ON d.subscription_id = s.id AND d.at <= :old"
    " LIMIT :want) RETURNING 1"
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
    week, month, old, year = (now - days * DAY for days in (7, 30, 90, 365))
    # Those that are recorded when people remove them are told in one line for all of a batch.
    for subject, text, params in (
        (None, _LEASES, {"week": week}),
        ("gate_token", _TOKENS, {"week": week}),
        ("token", _API_TOKENS, {"week": week, "old": old}),
        ("reservation", _RESERVATIONS, {"old": old}),
        ("operation", _OPERATIONS, {"old": old, "first": first_id(old)}),
        (None, _CALLS, {"month": month, "first": first_id(month)}),
        (None, _LEFT, {"old": old}),
        (None, _GROUPS, {"year": year}),
        (None, _FIRES, {"old": old}),
        (None, _DELIVERIES, {"old": old}),
        (None, _TOLD, {"year": year, "first": first_id(year)}),
    ):
        rows = yield Statement(text, {**params, "want": want})
        if subject is not None and rows:
            yield from note_action(EVERY_TENANT, "prune", subject, "*", json.dumps({"rows": len(rows)}))
        most = max(most, len(rows))
    return most


def first_id(at: int) -> str:
    """The least id of a moment: ids sort by when they were made."""
    digits = f"{max(0, at // 1000):012x}"
    return f"{digits[:8]}-{digits[8:]}"
