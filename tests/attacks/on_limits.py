"""Attacks on limits and reservations (SC-16, SC-10): more room than there is, two for one, another history."""

from __future__ import annotations

from tests.attacks.attack import NOW, both, only_postgres

# The small world: a limit under which a job runs, a reservation that is active and one that is over.
_ACTIVE, _OVER = "'00000000-0000-7000-8000-0000000000a1'", "'00000000-0000-7000-8000-0000000000a2'"
_RESERVE = "insert into reservation (id, tenant, scope, name, state, holder, asked_at, reserved_at, expires_at"
_LIMIT = "insert into job_limit (tenant, scope, name, set_by, created_at, updated_at"
LIMITED = (
    f"{_LIMIT}, concurrency) values ('default', 'kind', 'mail.send', 'ada', {NOW}, {NOW}, 100)",
    "insert into occupied_slot (tenant, scope, name, job_id) values ('default', 'kind', 'mail.send', :running)",
    f"{_RESERVE}) values ({_ACTIVE}, 'default', 'resource', 'gpu-0', 'active', 'ada', {NOW}, {NOW}, :later)",
    f"{_RESERVE}, ended_at, ended_by, ended_why) values ({_OVER}, 'default', 'all', '*', 'released', 'ada', {NOW},"
    f" {NOW}, {NOW}, {NOW}, 'ada', 'done')",
    "update dispatch set limited = (1 = 1)",
)

LIMITS = [
    only_postgres(
        "take away the row that counters lock", "delete from mutex where n = 1024", says="rows are never changed"
    ),
    only_postgres(
        "let a counter lock another row", "update mutex set n = -1 where n = 1024", says="rows are never changed"
    ),
    only_postgres("take away all rows that are locked", "truncate mutex", says="rows are never changed"),
    both(
        "give up the slot of a job that runs",
        "delete from occupied_slot where job_id = :running",
        says="a slot cannot be deleted while its job is held",
    ),
    both(
        "count a job elsewhere",
        "update occupied_slot set name = 'other' where job_id = :running",
        says=("slots are never changed", "rows are never changed"),
    ),
    only_postgres("forget all places", "truncate occupied_slot", says="rows are never changed"),
    both(
        "say that nothing is limited",
        "update dispatch set limited = (1 = 0)",
        says="limited must stay true while a limit, reservation or pause exists",
    ),
    both("delete the dispatch row", "delete from dispatch", says="dispatch must keep its one row"),
    both(
        "let a job count against something else",
        "update job set uses = null, kind = 'x' where id = :queued",
        says="never change",
    ),
    both(
        "reserve what is reserved",
        f"{_RESERVE}) values (:unknown, 'default', 'resource', 'gpu-0', 'active', 'eve', {NOW}, {NOW}, :later)",
        says=("already exists", "reservation_active"),
    ),
    both(
        "put a reservation back into the line",
        f"update reservation set state = 'waiting', reserved_at = null where id = {_ACTIVE}",
        says=("illegal transition", "illegal transition active -> waiting"),
    ),
    both(
        "take over a reservation",
        f"update reservation set holder = 'eve' where id = {_ACTIVE}",
        says="the request cannot change",
    ),
    both(
        "say that it ended otherwise",
        f"update reservation set ended_why = 'expired' where id = {_OVER}",
        says=("an ended reservation cannot change", "it has ended and cannot change"),
    ),
    both(
        "delete a reservation",
        f"delete from reservation where id = {_OVER}",
        says="reservations are kept for ninety days after they end",
    ),
    only_postgres("truncate the reservations", "truncate reservation", says="rows are never changed"),
    *(
        both(
            f"set a limit {what}",
            f"{_LIMIT}, {columns}) values ('default', {scope}, {name}, 'ada', {NOW}, {NOW}, {values})",
            says=says,
        )
        for what, scope, name, columns, values, says in (
            ("on nothing known", "'planet'", "'x'", "concurrency", "1", "scope_known"),
            ("without a name", "'queue'", "' '", "concurrency", "1", "name_named"),
            ("that limits nothing", "'queue'", "'x'", "concurrency", "null", "limits_something"),
            ("below nothing", "'queue'", "'x'", "concurrency", "-1", "concurrency_bounded"),
            ("with half a rate", "'queue'", "'x'", "rate, per", "1, 1", "rate_whole"),
            ("with a rate of none", "'queue'", "'x'", "rate, per, burst", "0, 1, 1", "rate_bounded"),
        )
    ),
]
