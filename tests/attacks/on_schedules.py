"""Attacks on templates and schedules (SC-8, SC-9): invalid versions, and times fired twice.

The database has the template `monthly` (versions 1 and 2), the schedule `:schedule` whose time `:fired` was fired as
the job `:made`, and a schedule that waits.
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
        says=("template versions are never changed", "rows are never changed"),
    ),
    both(
        "delete a version of a template",
        "delete from template where name = 'monthly' and version = 2",
        says=("versions of a template are never deleted", "newest 1,000 versions are never deleted"),
    ),
    only_postgres("truncate the templates", "truncate template", says="rows are never changed"),
    both(
        "skip a template version",
        f"{_VERSION} values ('default', 'monthly', 4, 'report', 'ada', {NOW})",
        says="the next version must be one more than the newest",
    ),
    both(
        "insert a template version again",
        f"{_VERSION} values ('default', 'monthly', 2, 'report', 'ada', {NOW})",
        says="the next version must be one more than the newest",
    ),
    both(
        "change the kind of a template",
        f"{_VERSION} values ('default', 'monthly', 3, 'other', 'ada', {NOW})",
        says=("the kind of a template cannot change", "the kind cannot change; create another template"),
    ),
    both(
        "delete the schedules",
        "delete from schedule",
        says=("schedules cannot be deleted from the table", "rows are never changed"),
    ),
    both(
        "move the next time of a schedule back",
        "update schedule set next_fire_at = :fired where id = :schedule",
        says="its next time cannot move back",
    ),
    both(
        "give a schedule to another tenant",
        "update schedule set tenant = 'acme' where id = :schedule",
        says=("the identity of a schedule cannot change", "its identity cannot change"),
    ),
    both(
        "pause a schedule without clearing its next time",
        "update schedule set state = 'paused' where id = :schedule",
        says="attended_iff_active",
    ),
    both(
        "invent a policy for missed times",
        "update schedule set missed = 'twice' where id = :schedule",
        says="missed_known",
    ),
    both(
        "fire a scheduled time again",
        f"{_FIRE} values (:schedule, :fired, false, 'default', 'fired', :queued, 'ada', {NOW})",
        says=("a time is fired once", "fire_pkey"),
    ),
    both(
        "record a fire with an unknown job",
        f"{_FIRE} values (:schedule, :later, false, 'default', 'fired', :unknown, 'ada', {NOW})",
        says=("by an existing schedule and for an existing job", "the schedule or the job does not exist"),
    ),
    both(
        "change the job of a fired time",
        "update fire set job_id = :queued where schedule_id = :schedule and status = 'fired'",
        says=("the result of a fired time cannot change", "cannot change"),
    ),
    both(
        "mark a fired time as missed",
        "update fire set status = 'missed', job_id = null where schedule_id = :schedule and status = 'fired'",
        says=("the result of a fired time cannot change", "cannot change"),
    ),
    both(
        "delete a fired time",
        "delete from fire where schedule_id = :schedule",
        says=("the record of a fired time or a delivery is kept", "rows are never changed"),
    ),
    both(
        "change the template a job was made from",
        "update made_from set template = 'monthly', template_version = 1 where job_id = :made",
        says=("the origin of a job never changes", "rows are never changed"),
    ),
    both(
        "delete the origin of a job",
        "delete from made_from where job_id = :made",
        says=("the origin of a job is never deleted", "never deleted while their job exists"),
    ),
    both(
        "record an unknown template version as an origin",
        f"{_MADE} values (:queued, 'default', 'monthly', 9)",
        says=("a job has one origin, which must exist", "its template version or its schedule does not exist"),
    ),
]
