"""Attacks on deliveries, on retries as new jobs, and on the list of executors (DP-13, SC-6, DP-6).

`:subscription` made `:follower` of the event `:event`; `:retried` failed, and `:successor` replaced it.
"""

from __future__ import annotations

from tests.attacks.attack import NOW, Table, immutable

_DELIVERY = "insert into delivery (subscription_id, event, tenant, job_id, depth, at)"
_NEVER = immutable("delivery: rows are never changed")
_RERUN = "was retried as a new job and cannot run again"
_RETRY_OF = ("immutable: retry_of must name a failed job", "that is not a failed job of the same kind")
_JOB = "insert into job (tenant, kind, retry_of)"
_LEASE = (
    "insert into lease (id, tenant, name, holder, until, opened_at, renewed_at)"
    f" values (:unknown, '*', 'stranger', 'eve', :later, {NOW}, {NOW})"
)
_LISTED = "insert into executor (label, role, added_by, added_at) values ('{}', '{}', 'ada', " + NOW + ")"

_NO_JOB = ("the delivery refers to a job that does not exist", "does not exist")
_UNLISTED = "is not registered as an executor"


def _deliver(event: str, job: str, tenant: str = "default") -> str:
    return f"{_DELIVERY} values (:subscription, {event}, '{tenant}', :{job}, 1, {NOW})"


DELIVERIES: Table = {
    "deliver an event twice": (_deliver(":event", "follower"), ("already exists", "delivery_pkey")),
    "record a delivery with an unknown job": (_deliver("'0'", "unknown"), _NO_JOB),
    "record a delivery with another tenant's job": (_deliver("'0'", "follower", "acme"), _NO_JOB),
    "delete a delivery": (
        "delete from delivery where event = :event",
        immutable("delivery: rows are kept with their job"),
    ),
    "change a delivery": ("update delivery set refusal = 'x', job_id = null", _NEVER),
    "truncate the deliveries": ("truncate delivery", (None, "delivery: rows are never changed")),
    "give a subscription to another tenant": (
        "update subscription set tenant = 'acme' where id = :subscription",
        immutable("subscription: id, tenant, name, created_by, created_at cannot change"),
    ),
    "set an unbounded depth": ("update subscription set max_depth = 1000", "depth_bounded"),
    "clear the depth of a job": ("update job set depth = null where id = :follower", "never change"),
}

RETRIES: Table = {
    "run a retried job again": (
        f"update job_state set state = 'retry_waiting', finished_at = null, due_at = {NOW} where id = :retried",
        _RERUN,
    ),
    "dead-letter a retried job": ("update job_state set state = 'dead_letter' where id = :retried", _RERUN),
    "retry a job twice": (
        f"{_JOB} values ('default', 'mail.send', :retried)",
        ("UNIQUE constraint failed: holdfast_job.retry_of", "retried_once"),
    ),
    "replace a successor": (
        f"{_JOB.replace('insert', 'insert or replace')} values ('default', 'mail.send', :retried)",
        ("immutable: retry_of must name a failed job", None),
    ),
    "retry a job that has not failed": (f"{_JOB} values ('default', 'mail.send', :queued)", _RETRY_OF),
    "retry a job as another kind": (f"{_JOB} values ('default', 'other', :successor)", _RETRY_OF),
    "retry an unknown job": (f"{_JOB} values ('default', 'mail.send', :unknown)", _RETRY_OF),
    "remove a job from its retry chain": ("update job set retry_of = null where id = :successor", "never change"),
}

EXECUTORS: Table = {
    "open a lease as an unregistered executor": (f"{_LISTED.format('known', 'executor')}; {_LEASE}", _UNLISTED),
    "open a lease as a generator": (
        f"{_LISTED.format('stranger', 'generator')}; {_LEASE}",
        ("it is a generator", "is a generator"),
    ),
    "rename a lease to an unregistered label": (
        f"{_LISTED.format('known', 'executor')}; update lease set name = 'stranger' where id = :other",
        _UNLISTED,
    ),
    "register an executor in an unknown role": (_LISTED.format("x", "boss"), "role_known"),
    "register an executor for one tenant": (
        _LISTED.format("x", "executor").replace("(label,", "(tenant, label,").replace("('x'", "('acme', 'x'"),
        "of_all",
    ),
}
