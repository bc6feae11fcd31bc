"""``app.versions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from holdfast.engine.declared import Help, http
from holdfast.engine.ids import parse_id
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.requirement import check_version
from holdfast.engine.retry import whole
from holdfast.engine.settlement import storable
from holdfast.errors import InvalidSetting
from holdfast.features.versions.model import SHOWN, MismatchedJob, MovedJobs, PatchStatus, VersionStatus
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace

_Versions = list[VersionStatus]  # inside the class, `list` is an operation
_Held = list[MismatchedJob]
_Patches = list[PatchStatus]
IDS = 1_000


class Versions(StoreNamespace):
    """Versions of the application: what needs each of them, held jobs, and patches of handlers."""

    @operation
    @http("GET /versions", "read", name="list_versions")
    def list(self) -> Program[_Versions]:
        """List the versions of the application that workers run or unfinished jobs need, and whether each can be
        retired."""
        return (yield from run(self._store.versions.list(self._tenant)))

    alist = awaited(list)

    @operation
    @http("GET /versions/held", "read", name="list_held_jobs")
    def held(
        self, *, limit: Annotated[int, Help("Maximum number of results.", low=1, high=1000)] = SHOWN
    ) -> Program[_Held]:
        """List the jobs whose recorded steps fit no code that has been tried, oldest first, with both sequences of
        steps."""
        whole("limit", limit, 1, 1000, "invalid_limit")
        return (yield from run(self._store.versions.held(self._tenant, limit)))

    aheld = awaited(held)

    @operation
    @http("GET /versions/patches", "read", name="list_patches")
    def patches(self) -> Program[_Patches]:
        """List the patches that jobs have recorded (`ctx.patched`), and whether each can be retired or removed."""
        return (yield from run(self._store.versions.patches(self._tenant)))

    apatches = awaited(patches)

    @operation
    @http(
        "POST /versions/move",
        "operate",
        name="move_version",
        example={"version": "1.4", "to": "1.5", "reason": "1.4 is retired"},
    )
    def move(
        self,
        version: Annotated[str, Help("The version that the jobs are pinned to.", "VERSION")],
        *,
        to: Annotated[str, Help("The version to move them to.", "VERSION")],
        jobs: Annotated[
            Sequence[str] | None, Help("Only these jobs.", "ID", option="--job", most=IDS, wire=list[str] | None)
        ] = None,
        reason: Annotated[str | None, Help("The reason, for the audit trail.", "TEXT")] = None,
    ) -> Program[MovedJobs]:
        """Move unfinished jobs that are pinned to a version to another one: all of them, or some. A running attempt
        ends where it is; the next one runs on the other version.

        Each job is recorded in the audit trail. Steps that do not fit the other version hold the job.
        """
        version, to = check_version(version), check_version(to)
        if version == to:
            raise InvalidSetting("the jobs are pinned to this version already", code="invalid_setting")
        if jobs is not None and not isinstance(jobs, list | tuple):
            raise InvalidSetting("jobs must be a list of ids", code="invalid_setting", fix=f"Write jobs=[{jobs!r}].")
        ids = None if jobs is None else [parse_id(job) for job in jobs]
        if ids is not None and len(ids) > IDS:
            raise InvalidSetting(f"jobs has {len(ids):,} ids; at most {IDS:,} are allowed", code="invalid_limit")
        move = self._store.versions.move(version, to, ids, storable(reason), self._tenant, self._actor)
        moved = yield from run(move)
        return MovedJobs(version, to, len(moved), tuple(moved[:IDS]))

    amove = awaited(move)
