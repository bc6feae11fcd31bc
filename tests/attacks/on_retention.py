"""Attacks on retention and usage (DP-16, HK-5): lowered sums, policies that purge too early, a rewritten ledger."""

from __future__ import annotations

from tests.attacks.attack import NOW, Table

# The database has a policy, and a day of recorded usage.
_POLICY = "insert into retention (tenant, kind, state, set_by, created_at, updated_at"
_DIGEST = "a" * 64
_ARCHIVE = "00000000-0000-7000-8000-00000000000a"
RETAINED = (
    f"{_POLICY}, clean_after) values ('default', 'old', '*', 'ada', {NOW}, {NOW}, 60)",
    "insert into usage (tenant, day, kind, enqueued, started, run_time)"
    " values ('default', '2026-11-15', 'old', 7, 5, 9)",
    "insert into archive (id, tenant, ref, bytes, jobs, first_job, last_job, created_by, created_at)"
    f" values ('{_ARCHIVE}', 'default', 'artifact://x', 1, 1, :dead, :dead, 'ada', {NOW})",
    f"insert into archived (job_id, tenant, archive_id, finished_at) values (:dead, 'default', '{_ARCHIVE}', {NOW})",
)
_COUNTED = "sums cannot be reduced or deleted"
_CHANGED = "event: rows are never changed"

RETENTION: Table = {
    "lower the recorded usage": ("update usage set started = 4 where kind = 'old'", _COUNTED),
    "move usage to another tenant": ("update usage set tenant = 'acme' where kind = 'old'", _COUNTED),
    "delete the usage": ("delete from usage", _COUNTED),
    "truncate the usage": ("truncate usage", (None, "rows are never changed")),
    "replace the usage": (
        "insert or replace into usage (tenant, day, kind) values ('default', '2026-11-15', 'old')",
        (_COUNTED, None),
    ),
    "delete the position of the usage count": ("delete from usage_place", (None, "rows are never changed")),
    "empty the ledger of a job that is not cleaned": (
        f"""update event set meta = '{{"emptied": "{_DIGEST}"}}' where job_id = :dead""",
        _CHANGED,
    ),
    "rewrite the ledger of a cleaned job": (
        """update event set meta = '{"reason": "another"}' where job_id = :cleaned""",
        _CHANGED,
    ),
    "set a policy that purges before it cleans": (
        f"{_POLICY}, clean_after, purge_after) values ('default', 'x', '*', 'ada', {NOW}, {NOW}, 9, 8)",
        "clean_first",
    ),
    "set a policy for jobs that have not ended": (
        f"{_POLICY}, purge_after) values ('default', 'x', 'queued', 'ada', {NOW}, {NOW}, 8)",
        "state_known",
    ),
    "change an archive": ("update archive set ref = 'artifact://y'", "archive: rows are never changed"),
    "delete an archive": ("delete from archive", "archive: rows are never changed"),
    "take a job out of its archive": ("delete from archived", "only a purge removes the archive of a job"),
    "delete an unused approval token": ("delete from approval_token where hash = 'fresh'", "deleted while"),
}
