"""Attacks on templates and schedules (SC-8, SC-9): versions that were never made, and times that are fired twice.

The small world has template `monthly` (versions 1 and 2), schedule `:schedule` whose time `:fired` was fired as job
`:made`, and another that waits.
"""

from __future__ import annotations

from tests.attacks.attack import LATER, NOW, both, only_postgres

__all__ = ["LATER", "SCHEDULES"]

_VERSION = "insert into template (tenant, name, version, kind, created_by, created_at)"
_FIRE = "insert into fire (schedule_id, due_at, manual, tenant, status, job_id, actor, at)"
_MADE = "insert into made_from (job_id, tenant, template, template_version)"

SCHEDULES = [
    both(
        "change a version of a template",
        "update template set kind = 'other' where name = 'monthly' and version = 1",
        says=("a version of a template is never changed", "rows are never changed"),
    ),
    both(
        "delete a version of a template",
        "delete from template where name = 'monthly' and version = 2",
        says=("versions of a template are never deleted", "newest 1,000 versions are never deleted"),
    ),
    only_postgres("truncate the templates", "truncate template", says="rows are never changed"),
    both(
        "leave out a version",
        f"{_VERSION} values ('default', 'monthly', 4, 'report', 'ada', {NOW})",
        says="versions are added one after the other",
    ),
    both(
        "make a version again",
        f"{_VERSION} values ('default', 'monthly', 2, 'report', 'ada', {NOW})",
        says="versions are added one after the other",
    ),
    both(
        "turn a template to another kind",
        f"{_VERSION} values ('default', 'monthly', 3, 'other', 'ada', {NOW})",
        says=("a template stays with its kind", "it stays with its kind"),
    ),
    both("delete a schedule's row", "delete from schedule", says=("its history stays", "rows are never changed")),
    both(
        "turn a schedule back",
        "update schedule set next_fire_at = :fired where id = :schedule",
        says="its times go forward only",
    ),
    both(
        "give a schedule to another tenant",
        "update schedule set tenant = 'acme' where id = :schedule",
        says=("a schedule is what it is", "what it is never changes"),
    ),
    both(
        "attend to a schedule that is paused",
        "update schedule set state = 'paused' where id = :schedule",
        says="attended_iff_active",
    ),
    both(
        "invent a policy for missed times",
        "update schedule set missed = 'twice' where id = :schedule",
        says="missed_known",
    ),
    both(
        "fire a time again",
        f"{_FIRE} values (:schedule, :fired, false, 'default', 'fired', :queued, 'ada', {NOW})",
        says=("a time is fired once", "fire_pkey"),
    ),
    both(
        "fire a time for a job that is not there",
        f"{_FIRE} values (:schedule, :later, false, 'default', 'fired', :unknown, 'ada', {NOW})",
        says=("for a job that is there", "no such schedule, or no such job"),
    ),
    both(
        "say that a time was fired by another job",
        "update fire set job_id = :queued where schedule_id = :schedule and status = 'fired'",
        says=("what became of a time never changes", "never changes"),
    ),
    both(
        "say that a time was skipped",
        "update fire set status = 'missed', job_id = null where schedule_id = :schedule and status = 'fired'",
        says=("what became of a time never changes", "never changes"),
    ),
    both(
        "forget a time that was fired",
        "delete from fire where schedule_id = :schedule",
        says=("what became of a time is never deleted", "rows are never changed"),
    ),
    both(
        "say that a job was made from something else",
        "update made_from set template = 'monthly', template_version = 1 where job_id = :made",
        says=("what a job was made from never changes", "rows are never changed"),
    ),
    both(
        "forget what a job was made from",
        "delete from made_from where job_id = :made",
        says=("is not forgotten while it exists", "never deleted while their job exists"),
    ),
    both(
        "make a job from a version there never was",
        f"{_MADE} values (:queued, 'default', 'monthly', 9)",
        says=("a job was made from one thing", "nothing it could have been made from"),
    ),
]
