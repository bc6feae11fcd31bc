"""Attacks on deliveries, on retries as new jobs, and on the list of executors (DP-13, SC-6, DP-6).

`:subscription` made `:follower` of the event `:event`; `:retried` failed, and `:successor` replaced it.
"""

from __future__ import annotations

from tests.attacks.attack import NOW, both, each, immutable, only_postgres, only_sqlite

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

DELIVERIES = [
    both("deliver an event twice", f"{_DELIVERY} values (:subscription, :event, 'default', :follower, 1, {NOW})",
         says=("already exists", "delivery_pkey")),
    both("record a delivery with an unknown job",
         f"{_DELIVERY} values (:subscription, '0', 'default', :unknown, 1, {NOW})",
         says=("the delivery refers to a job that does not exist", "does not exist")),
    both("record a delivery with another tenant's job",
         f"{_DELIVERY} values (:subscription, '0', 'acme', :follower, 1, {NOW})",
         says=("the delivery refers to a job that does not exist", "does not exist")),
    both("delete a delivery", "delete from delivery where event = :event", says=_NEVER),
    both("change a delivery", "update delivery set refusal = 'x', job_id = null", says=_NEVER),
    only_postgres("truncate the deliveries", "truncate delivery", says="delivery: rows are never changed"),
    both("give a subscription to another tenant", "update subscription set tenant = 'acme' where id = :subscription",
         says=("immutable: name and tenant of a subscription cannot change", "name and tenant cannot change")),
    both("set an unbounded depth", "update subscription set max_depth = 1000", says="depth_bounded"),
    each("clear the depth of a job", "update job set depth = null where id = :follower",
         "update job set depth = null where id = :follower", says="never change"),
]  # fmt: skip

RETRIES = [
    both("run a retried job again", f"update job_state set state = 'retry_waiting', finished_at = null, due_at = {NOW}"
         " where id = :retried", says=_RERUN),
    both("dead-letter a retried job", "update job_state set state = 'dead_letter' where id = :retried", says=_RERUN),
    both("retry a job twice", f"{_JOB} values ('default', 'mail.send', :retried)",
         says=("UNIQUE constraint failed: job.retry_of", "retried_once")),
    only_sqlite("replace a successor", f"{_JOB.replace('insert', 'insert or replace')} values ('default',"
                " 'mail.send', :retried)", says="immutable: retry_of must name a failed job"),
    both("retry a job that has not failed", f"{_JOB} values ('default', 'mail.send', :queued)", says=_RETRY_OF),
    both("retry a job as another kind", f"{_JOB} values ('default', 'other', :successor)", says=_RETRY_OF),
    both("retry an unknown job", f"{_JOB} values ('default', 'mail.send', :unknown)", says=_RETRY_OF),
    both("remove a job from its retry chain", "update job set retry_of = null where id = :successor",
         says="never change"),
]  # fmt: skip

EXECUTORS = [
    both("open a lease as an unregistered executor", _LISTED.format("known", "executor"), _LEASE,
         says=("is not registered as an executor", "is not registered as an executor")),
    both("open a lease as a generator", _LISTED.format("stranger", "generator"), _LEASE,
         says=("it is a generator", "is a generator")),
    both("rename a lease to an unregistered label", _LISTED.format("known", "executor"),
         "update lease set name = 'stranger' where id = :other",
         says=("is not registered as an executor", "is not registered as an executor")),
    both("register an executor in an unknown role", _LISTED.format("x", "boss"), says="role_known"),
    both("register an executor for one tenant", _LISTED.format("x", "executor").replace("(label,", "(tenant, label,")
         .replace("('x'", "('acme', 'x'"), says="of_all"),
]  # fmt: skip
