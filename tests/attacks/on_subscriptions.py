"""Attacks on what became of events, on retries that are jobs, and on who may execute (DP-13, SC-6, DP-6).

`:subscription` made `:follower` of event `:event`; `:retried` failed, and `:successor` took over from it.
"""

from __future__ import annotations

from tests.attacks.attack import NOW, both, each, only_postgres, only_sqlite

_DELIVERY = "insert into delivery (subscription_id, event, tenant, job_id, depth, at)"
_NEVER = ("immutable: delivery: rows are never changed", "delivery: rows are never changed")
_RERUN = "was retried as a new job and cannot run again"
_RETRY_OF = ("immutable: retry_of must name a failed job", "that is not a failed job of the same kind")
_JOB = "insert into job (tenant, kind, retry_of)"
_LEASE = (
    "insert into lease (id, tenant, name, holder, until, opened_at, renewed_at)"
    f" values (:unknown, '*', 'stranger', 'eve', :later, {NOW}, {NOW})"
)
_LISTED = "insert into executor (label, role, added_by, added_at) values ('{}', '{}', 'ada', " + NOW + ")"

DELIVERIES = [
    both("give an event two jobs", f"{_DELIVERY} values (:subscription, :event, 'default', :follower, 1, {NOW})",
         says=("already exists", "delivery_pkey")),
    both("invent the job of an event", f"{_DELIVERY} values (:subscription, '0', 'default', :unknown, 1, {NOW})",
         says=("the delivery refers to a job that does not exist", "does not exist")),
    both("take another's job for an event's", f"{_DELIVERY} values (:subscription, '0', 'acme', :follower, 1, {NOW})",
         says=("the delivery refers to a job that does not exist", "does not exist")),
    both("forget that an event was dealt with", "delete from delivery where event = :event", says=_NEVER),
    both("change what became of an event", "update delivery set refusal = 'x', job_id = null", says=_NEVER),
    only_postgres("truncate what became of events", "truncate delivery", says="delivery: rows are never changed"),
    both("give a subscription to another tenant", "update subscription set tenant = 'acme' where id = :subscription",
         says=("immutable: name and tenant of a subscription cannot change", "name and tenant cannot change")),
    both("let chains become endless", "update subscription set max_depth = 1000", says="depth_bounded"),
    each("count fewer subscriptions behind a job", "update job set depth = null where id = :follower",
         "update job set depth = null where id = :follower", says="never change"),
]  # fmt: skip

RETRIES = [
    both("run a retried job again", f"update job_state set state = 'retry_waiting', finished_at = null, due_at = {NOW}"
         " where id = :retried", says=_RERUN),
    both("bury a retried job", "update job_state set state = 'dead_letter' where id = :retried", says=_RERUN),
    both("retry a job twice", f"{_JOB} values ('default', 'mail.send', :retried)",
         says=("UNIQUE constraint failed: job.retry_of", "retried_once")),
    only_sqlite("replace a successor", f"{_JOB.replace('insert', 'insert or replace')} values ('default',"
                " 'mail.send', :retried)", says="immutable: retry_of must name a failed job"),
    both("retry a job that has not failed", f"{_JOB} values ('default', 'mail.send', :queued)", says=_RETRY_OF),
    both("retry a job as another kind", f"{_JOB} values ('default', 'other', :successor)", says=_RETRY_OF),
    both("retry a job that is not there", f"{_JOB} values ('default', 'mail.send', :unknown)", says=_RETRY_OF),
    both("put a job out of its chain", "update job set retry_of = null where id = :successor", says="never change"),
]  # fmt: skip

EXECUTORS = [
    both("execute without being on the list", _LISTED.format("known", "executor"), _LEASE,
         says=("is not registered as an executor", "is not registered as an executor")),
    both("execute as a generator", _LISTED.format("stranger", "generator"), _LEASE,
         says=("it is a generator", "is a generator")),
    both("give a lease a label that is on the list", _LISTED.format("known", "executor"),
         "update lease set name = 'stranger' where id = :other",
         says=("is not registered as an executor", "is not registered as an executor")),
    both("list an executor in another role", _LISTED.format("x", "boss"), says="role_known"),
    both("list an executor for one tenant", _LISTED.format("x", "executor").replace("(label,", "(tenant, label,")
         .replace("('x'", "('acme', 'x'"), says="of_all"),
]  # fmt: skip
