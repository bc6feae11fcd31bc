"""Attacks on templates and schedules (SC-8, SC-9): invalid versions, and times fired twice.

The database has the template `monthly` (versions 1 and 2), the schedule `:schedule` whose time `:fired` was fired as
the job `:made`, and a schedule that waits.
"""

from __future__ import annotations

from tests.attacks.attack import LATER, NOW, Table

__all__ = ["LATER", "SCHEDULES"]

_VERSION = "insert into template (tenant, name, version, kind, created_by, created_at)"
_FIRE = "insert into fire (schedule_id, due_at, manual, tenant, status, job_id, actor, at)"
_MADE = "insert into made_from (job_id, tenant, template, template_version)"

_NEXT = "the next version must be one more than the newest"
_FIRED = ("the result of a fired time cannot change", "cannot change")


def _version(number: int, kind: str = "report") -> str:
    return f"{_VERSION} values ('default', 'monthly', {number}, '{kind}', 'ada', {NOW})"


def _schedule(columns: str) -> str:
    return f"update schedule set {columns} where id = :schedule"


SCHEDULES: Table = {
    "change a version of a template": (
        "update template set kind = 'other' where name = 'monthly' and version = 1",
        "template: rows are never changed",
    ),
    "delete a version of a template": (
        "delete from template where name = 'monthly' and version = 2",
        ("versions of a template are never deleted", "newest 1,000 versions are never deleted"),
    ),
    "truncate the templates": ("truncate template", (None, "rows are never changed")),
    "skip a template version": (_version(4), _NEXT),
    "insert a template version again": (_version(2), _NEXT),
    "change the kind of a template": (
        _version(3, "other"),
        ("the kind of a template cannot change", "the kind cannot change; create another template"),
    ),
    "delete the schedules": (
        "delete from schedule",
        ("schedules cannot be deleted from the table", "rows are never changed"),
    ),
    "move the next time of a schedule back": (_schedule("next_fire_at = :fired"), "its next time cannot move back"),
    "give a schedule to another tenant": (
        _schedule("tenant = 'acme'"),
        ("the identity of a schedule cannot change", "its identity cannot change"),
    ),
    "pause a schedule without clearing its next time": (_schedule("state = 'paused'"), "attended_iff_active"),
    "invent a policy for missed times": (_schedule("missed = 'twice'"), "missed_known"),
    "fire a scheduled time again": (
        f"{_FIRE} values (:schedule, :fired, false, 'default', 'fired', :queued, 'ada', {NOW})",
        ("a time is fired once", "fire_pkey"),
    ),
    "record a fire with an unknown job": (
        f"{_FIRE} values (:schedule, :later, false, 'default', 'fired', :unknown, 'ada', {NOW})",
        ("by an existing schedule and for an existing job", "the schedule or the job does not exist"),
    ),
    "change the job of a fired time": (
        "update fire set job_id = :queued where schedule_id = :schedule and status = 'fired'",
        _FIRED,
    ),
    "mark a fired time as missed": (
        "update fire set status = 'missed', job_id = null where schedule_id = :schedule and status = 'fired'",
        _FIRED,
    ),
    "delete a fired time": (
        "delete from fire where schedule_id = :schedule",
        "fire: rows are kept with their job, or for a month",
    ),
    "change the template a job was made from": (
        "update made_from set template = 'monthly', template_version = 1 where job_id = :made",
        "made_from: rows are never changed",
    ),
    "delete the origin of a job": (
        "delete from made_from where job_id = :made",
        "made_from: rows are never deleted while their job exists",
    ),
    "record an unknown template version as an origin": (
        f"{_MADE} values (:queued, 'default', 'monthly', 9)",
        ("a job has one origin, which must exist", "its template version or its schedule does not exist"),
    ),
}
