"""Versions in the database: the reads of both stores, and their writes."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast.engine.ids import parse_id
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.requirement import NO_CODE, Requirement
from holdfast.features.versions.model import CAP, SHOWN, Mismatch, MismatchedJob, PatchStatus, VersionStatus
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within
from holdfast.stores.sqlite.admission import maintenance_flow
from holdfast.stores.sqlite.base import (
    NOT_QUARANTINED,
    SqlitePart,
    any_tenant,
    begin_write,
    end_write,
    ids_json,
    note_action,
)
from holdfast.stores.sqlite.requirements import LABEL, VERSION

_LIVE = "l.ended_at is null and l.until > (select now from {present}) and l.name <> 'reservation'"
NAMES, PATCHES = 1_000, 200
_WAITING = "s.state in ('queued', 'retry_waiting', 'waiting_for_approval') and s.state not in ('leased', 'in_progress')"
_Required = list[tuple[str, int]]  # inside the classes, `list` is an operation
_Held = list[MismatchedJob]
_Patches = list[PatchStatus]
_Ids = list[str]


class VersionReads(Reader):
    _needs: str
    """The condition that a job requires a version or certain code, in the form of the index."""
    _needs_code: str

    @abstractmethod
    def _running(self, tenant: str) -> Steps[dict[str, int]]:
        """The number of running jobs by version."""

    @flow(writes=False)
    def mismatch(self, job_id: str, tenant: str) -> Steps[Mismatch | None]:
        """The last time that the job was held, from the ledger."""
        text = (
            "select e.meta from {event} e where e.job_id = :id and e.type = 'snooze'"
            f" and {within(tenant, 'e.tenant')} order by e.seq desc limit 100"
        )
        rows = yield from self._query(tenant, text, id=parse_id(job_id))
        notes = (self.dialect.codec.json(row[0]) for row in rows if row[0] is not None)
        return next((found for note in notes if (found := Mismatch.of(note)) is not None), None)

    @flow(writes=False)
    def requirement(self, job_id: str, tenant: str) -> Steps[Requirement]:
        """What a job requires of its worker."""
        text = f"select s.executor from {{job_state}} s where s.id = :id and {within(tenant, 's.tenant')}"
        rows = yield from self._query(tenant, text, id=parse_id(job_id))
        return Requirement.of(rows[0][0] if rows else None)

    @flow(writes=False)
    def live(self, tenant: str) -> Steps[dict[str, int]]:
        """The number of live workers by version."""
        own = "1 = 1" if tenant == EVERY_TENANT else "l.tenant in (:tenant, '*')"
        text = (
            f"select l.app_version, count(*) from {{lease}} l where {_LIVE} and l.app_version is not null and {own}"
            " group by l.app_version"
        )
        rows = yield from self._query(tenant, text)
        return {row[0]: int(row[1]) for row in rows}

    @flow(writes=False)
    def list(self, tenant: str) -> Steps[list[VersionStatus]]:
        """Every version that a live worker runs or an unfinished job needs."""
        workers = yield from self.live(tenant).start()
        running = yield from self._running(tenant)
        pinned, held, capped = Counter[str](), Counter[str](), set[str]()
        for text, count in (yield from self._required(tenant)):
            requirement = Requirement.of(text)
            if requirement.version is None:
                continue
            pinned[requirement.version] += count
            if requirement.code == NO_CODE:
                held[requirement.version] += count
            if count >= CAP:
                capped.add(requirement.version)
        names = sorted({*workers, *running, *pinned})
        return [
            VersionStatus(
                name, workers.get(name, 0), pinned[name], held[name], running.get(name, 0), capped=name in capped
            )
            for name in names
        ]

    def _required(self, tenant: str) -> Steps[_Required]:
        """Every requirement of unfinished jobs, with their number up to ``CAP``."""
        mine = f"{self._needs} and s.finished_at is null"
        text = (
            f"with recursive x(label) as (select min(s.executor) from {{job_state}} s where {mine} union all"
            f" select (select min(s.executor) from {{job_state}} s where s.executor > x.label and {mine})"
            " from x where x.label is not null) select x.label, (select count(*) from (select 1 from {job_state} s"
            f" where s.executor = x.label and {mine} and {within(tenant, 's.tenant')} limit :cap) c)"
            " from x where x.label is not null limit :most"
        )
        rows = yield from self._query(tenant, text, cap=CAP, most=NAMES)
        return [(row[0], int(row[1])) for row in rows if row[1]]

    @flow(writes=False)
    def unserved(self, tenant: str) -> Steps[tuple[dict[str, int], int]]:
        """The number of jobs by the version they wait for and no worker runs, and the number of held jobs."""
        required = yield from self._required(tenant)
        if not required:
            return {}, 0
        live = yield from self.live(tenant).start()
        missing, held = Counter[str](), 0
        for text, count in required:
            requirement = Requirement.of(text)
            held += count if requirement.code == NO_CODE else 0
            if requirement.version is not None and requirement.version not in live:
                missing[requirement.version] += count
        return dict(missing), held

    @flow(writes=False)
    def held(self, tenant: str, limit: int = SHOWN) -> Steps[_Held]:
        """Held jobs, oldest first."""
        text = (
            "select s.id, s.tenant, s.kind, s.executor, s.note, s.due_at from {job_state} s"
            f" where {self._needs_code} and s.finished_at is null and s.state = 'retry_waiting'"
            f" and {within(tenant, 's.tenant')} order by s.id limit :cap"
        )
        rows = yield from self._query(tenant, text, cap=CAP)
        codec = self.dialect.codec
        found: _Held = []
        for job_id, owner, kind, executor, note, due in rows:
            mismatch = Mismatch.of(None if note is None else codec.json(note))
            if mismatch is not None and len(found) < limit:
                version, until = Requirement.of(executor).version, codec.time(due)
                facts = (mismatch.since, until, mismatch.message, mismatch.steps, len(mismatch.tried))
                found.append(MismatchedJob(codec.id(job_id), owner, kind, version, *facts))
        return found

    @flow(writes=False)
    def patches(self, tenant: str) -> Steps[_Patches]:
        """The patches that jobs have recorded, by kind."""
        mine = f"p.kind = 'patch' and {within(tenant, 'p.tenant')}"
        names = yield from self._query(
            tenant, f"select distinct p.tenant, p.name from {{step}} p where {mine} limit :most", most=PATCHES
        )
        result: _Patches = []
        for owner, name in sorted((str(row[0]), str(row[1])) for row in names):
            result += yield from self._patch(tenant, owner, name)
        return result

    def _patch(self, tenant: str, owner: str, name: str) -> Steps[_Patches]:
        first = (
            "select s.kind, min(p.started_at) from (select p.job_id, p.started_at from {step} p where p.kind = 'patch'"
            " and p.tenant = :owner and p.name = :name order by p.started_at limit :cap) p"
            " join {job_state} s on s.id = p.job_id group by s.kind order by s.kind"
        )
        jobs = " union all ".join(
            f"select * from (select s.id from {{job_state}} s where s.tenant = :owner and s.kind = :kind"
            f" and s.attempt > 0 and {condition} limit :cap) {alias}"
            for condition, alias in ((_WAITING, "a"), ("s.state in ('leased', 'in_progress')", "b"))
        )
        recorded = "exists (select 1 from {step} p where p.job_id = u.id and p.kind = 'patch' and p.name = :name)"
        old = "exists (select 1 from {step} p where p.job_id = u.id and p.n > 0 and p.started_at < :first)"
        counts = (
            f"select count(*), coalesce(sum(case when {recorded} then 1 else 0 end), 0),"
            f" coalesce(sum(case when {recorded} then 0 when {old} then 1 else 0 end), 0) from ({jobs}) u"
        )
        result: _Patches = []
        for kind, since in (yield from self._query(tenant, first, owner=owner, name=name, cap=CAP)):
            params: dict[str, Any] = {"owner": owner, "name": name, "kind": kind, "first": since, "cap": CAP}
            ((read, new, others),) = yield from self._query(tenant, counts, **params)
            at = self.dialect.codec.time(since)
            result.append(PatchStatus(owner, name, kind, at, int(others), int(new), capped=read >= CAP))
        return result


class PostgresVersions(Calls, VersionReads):
    _needs = "ascii(s.executor) in (30, 31) and ascii(s.executor) < 32"
    _needs_code = "ascii(s.executor) = 30 and ascii(s.executor) < 32"

    def _running(self, tenant: str) -> Steps[dict[str, int]]:
        rows = yield self._look("running_versions", "%s", tenant)
        return {row[0]: int(row[1]) for row in rows}

    @flow(single=True)
    def offer(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        """Offer held jobs to workers whose code they have not tried. Returns how many."""
        return (yield from self._number("offer_held", "%s, %s", want, tenant))

    @flow(single=True)
    def move(
        self, version: str, to: str, jobs: Sequence[str] | None, reason: str | None, tenant: str, actor: str
    ) -> Steps[_Ids]:
        """Move unfinished jobs that are pinned to a version to another one. Returns their ids."""
        ids = None if jobs is None else list(jobs)
        rows = yield self._call(
            "move_version", "%s, %s, %s::uuid[], %s, %s, %s", version, to, ids, reason, actor, tenant
        )
        return [str(row[0]) for row in rows]


_WORKER = (
    "SELECT l.code FROM holdfast_lease l WHERE l.ended_at IS NULL AND l.until > :now AND l.code IS NOT NULL"
    " AND l.tenant IN (r.tenant, '*')"
    " AND l.code NOT IN (SELECT value FROM json_each(r.note, '$.mismatch.tried'))"
    " AND (l.kinds IS NULL OR r.kind IN (SELECT value FROM json_each(l.kinds)))"
    " AND (l.queues IS NULL OR r.queue IN (SELECT value FROM json_each(l.queues)))"
    " AND (r.version IS NULL OR l.app_version = r.version) AND (r.executor IS NULL OR l.name = r.executor)"
    " ORDER BY l.opened_at DESC LIMIT 1"
)
_HELD = (
    f"SELECT n, ({_WORKER}) AS fit FROM holdfast_requirement r WHERE r.text < char(31) AND r.state = 'retry_waiting'"
    f" AND json_extract(r.note, '$.mismatch') IS NOT NULL AND r.id {NOT_QUARANTINED}"
    " AND (:any OR r.tenant = :tenant) AND fit IS NOT NULL ORDER BY r.id LIMIT :want"
)
_BOUND = (
    "SELECT n FROM holdfast_requirement r WHERE r.text < char(31) AND r.state = 'queued'"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_lease l WHERE l.code = r.code AND l.ended_at IS NULL AND l.until > :now)"
    f" AND r.id {NOT_QUARANTINED} AND (:any OR r.tenant = :tenant) ORDER BY r.id LIMIT :want"
)
_OFFER = (
    "UPDATE holdfast_job_state SET state = 'queued', due_at = NULL, note = json_object('code', :code),"
    f" executor = char(30) || json_array({VERSION}, :code, {LABEL}) WHERE n = :n"
)
_FREE = (
    f"UPDATE holdfast_job_state SET executor = CASE WHEN {VERSION} IS NULL THEN {LABEL}"
    f" ELSE char(31) || json_array({VERSION}, NULL, {LABEL}) END WHERE n IN (SELECT value FROM json_each(?))"
)
_PINNED = (
    "SELECT n, id, tenant, code FROM holdfast_requirement WHERE version = :version AND (:any OR tenant = :tenant)"
    " AND (:jobs IS NULL OR id IN (SELECT value FROM json_each(:jobs))) ORDER BY id"
)
_MOVE = (
    "UPDATE holdfast_job_state SET executor = char(CASE WHEN :code IS NULL THEN 31 ELSE 30 END)"
    f" || json_array(:to, :code, {LABEL}) WHERE n = :n"
)


def _idle(_: object, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[Any]:
    now = (yield Statement("SELECT now FROM holdfast_present"))[0][0]
    scope = {"now": now, "any": any_tenant(tenant), "tenant": tenant, "want": 1}
    found = (yield Statement(_HELD, scope)) or (yield Statement(_BOUND, scope))
    return None if found else 0


class SqliteVersions(SqlitePart, VersionReads):
    _needs = "s.executor < ' '"
    _needs_code = "s.executor < char(31) and s.executor < ' '"

    def _running(self, tenant: str) -> Steps[dict[str, int]]:
        text = (
            "select l.app_version, count(*) from {job_state} s join {lease} l on l.id = s.lease where s.state in"
            f" ('leased', 'in_progress') and l.app_version is not null and {within(tenant, 's.tenant')}"
            " group by l.app_version"
        )
        rows = yield from self._query(tenant, text)
        return {row[0]: int(row[1]) for row in rows}

    @maintenance_flow(0, _idle)
    def offer(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        """Offer held jobs to workers whose code they have not tried. Returns how many."""
        now = yield from begin_write("maintenance")
        scope = {"now": now, "any": any_tenant(tenant), "tenant": tenant, "want": want}
        held = yield Statement(_HELD, scope)
        if held:
            yield Statement(_OFFER, [{"n": n, "code": code} for n, code in held], many=True)
        bound = yield Statement(_BOUND, scope)
        if bound:
            yield Statement(_FREE, (ids_json(row[0] for row in bound),))
        yield from end_write()
        return len(held) + len(bound)

    @flow(notifies=True)
    def move(
        self, version: str, to: str, jobs: Sequence[str] | None, reason: str | None, tenant: str, actor: str
    ) -> Steps[_Ids]:
        """Move unfinished jobs that are pinned to a version to another one. Returns their ids."""
        yield from begin_write(actor)
        ids = None if jobs is None else ids_json(jobs)
        scope = {"version": version, "any": any_tenant(tenant), "tenant": tenant, "jobs": ids}
        moved = yield Statement(_PINNED, scope)
        changed = json.dumps({"version": [version, to]} | ({} if reason is None else {"reason": reason}))
        for n, job_id, owner, code in moved:
            yield Statement(_MOVE, {"n": n, "to": to, "code": NO_CODE if code == NO_CODE else None})
            yield from note_action(owner, "change", "job", job_id, changed)
        yield from end_write()
        return [row[1] for row in moved]
