"""Attacks on limits and reservations (SC-16, SC-10): raised capacity, double reservations, changed history."""

from __future__ import annotations

from tests.attacks.attack import NOW, Table

# The database has a limit with a running job, an active reservation and an ended one.
_ACTIVE, _ENDED = "'00000000-0000-7000-8000-0000000000a1'", "'00000000-0000-7000-8000-0000000000a2'"
_RESERVE = "insert into reservation (id, tenant, scope, name, state, holder, asked_at, reserved_at, expires_at"
_LIMIT = "insert into job_limit (tenant, scope, name, set_by, created_at, updated_at"
LIMITED = (
    f"{_LIMIT}, concurrency) values ('default', 'kind', 'mail.send', 'ada', {NOW}, {NOW}, 100)",
    "insert into occupied_slot (tenant, scope, name, job_id) values ('default', 'kind', 'mail.send', :running)",
    f"{_RESERVE}) values ({_ACTIVE}, 'default', 'resource', 'gpu-0', 'active', 'ada', {NOW}, {NOW}, :later)",
    f"{_RESERVE}, ended_at, ended_by, ended_why) values ({_ENDED}, 'default', 'all', '*', 'released', 'ada', {NOW},"
    f" {NOW}, {NOW}, {NOW}, 'ada', 'done')",
    "update dispatch set limited = (1 = 1)",
)

LIMITS: Table = {
    "delete a mutex row": ("delete from mutex where n = 1024", (None, "rows are never changed")),
    "renumber a mutex row": ("update mutex set n = -1 where n = 1024", (None, "rows are never changed")),
    "truncate the mutex rows": ("truncate mutex", (None, "rows are never changed")),
    "free the slot of a running job": (
        "delete from occupied_slot where job_id = :running",
        "a slot cannot be deleted while its job is held",
    ),
    "move a slot to another limit": (
        "update occupied_slot set name = 'other' where job_id = :running",
        "occupied_slot: rows are never changed",
    ),
    "truncate the occupied slots": ("truncate occupied_slot", (None, "rows are never changed")),
    "mark dispatch as unlimited": (
        "update dispatch set limited = (1 = 0)",
        "limited must stay true while a limit, reservation or pause exists",
    ),
    "delete the dispatch row": ("delete from dispatch", "dispatch must keep its one row"),
    "change the resources a job uses": ("update job set uses = null, kind = 'x' where id = :queued", "never change"),
    "reserve a resource twice": (
        f"{_RESERVE}) values (:unknown, 'default', 'resource', 'gpu-0', 'active', 'eve', {NOW}, {NOW}, :later)",
        ("already exists", "reservation_active"),
    ),
    "return an active reservation to the wait list": (
        f"update reservation set state = 'waiting', reserved_at = null where id = {_ACTIVE}",
        ("illegal transition", "illegal transition active -> waiting"),
    ),
    "take over a reservation": (
        f"update reservation set holder = 'eve' where id = {_ACTIVE}",
        "the request cannot change",
    ),
    "change the end of a reservation": (
        f"update reservation set ended_why = 'expired' where id = {_ENDED}",
        ("an ended reservation cannot change", "it has ended and cannot change"),
    ),
    "delete a reservation": (
        f"delete from reservation where id = {_ENDED}",
        "reservations are kept for ninety days after they end",
    ),
    "truncate the reservations": ("truncate reservation", (None, "rows are never changed")),
    **{
        f"set a limit {what}": (
            f"{_LIMIT}, {columns}) values ('default', {scope}, {name}, 'ada', {NOW}, {NOW}, {values})",
            says,
        )
        for what, scope, name, columns, values, says in (
            ("on an unknown scope", "'planet'", "'x'", "concurrency", "1", "scope_known"),
            ("without a name", "'queue'", "' '", "concurrency", "1", "name_named"),
            ("that limits nothing", "'queue'", "'x'", "concurrency", "null", "limits_something"),
            ("below zero", "'queue'", "'x'", "concurrency", "-1", "concurrency_bounded"),
            ("with half a rate", "'queue'", "'x'", "rate, per", "1, 1", "rate_whole"),
            ("with a rate of zero", "'queue'", "'x'", "rate, per, burst", "0, 1, 1", "rate_bounded"),
        )
    },
}
