"""The part of the port about what is made by itself: templates, and schedules with their times."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from holdfast.engine.job import Enqueued, JobSpec
from holdfast.engine.names import Place
from holdfast.features.schedules.model import (
    Decision,
    Fire,
    Firing,
    MadeFrom,
    Placed,
    Schedule,
    Template,
    TemplateDraft,
)
from holdfast.stores.flow import Flow


class PlanVerbs(Protocol):
    def put_template(self, draft: TemplateDraft, actor: str, tenant: str) -> Flow[Template | None]:
        """A new version, unless it says what the newest does; None when the template is of another kind."""
        ...

    def remove_template(self, name: str, actor: str, tenant: str) -> Flow[bool]: ...
    def template(self, name: str, tenant: str, version: int | None = None) -> Flow[Template | None]:
        """This version; without one the newest, which may say that the template was removed."""
        ...

    def templates(self, tenant: str, after: Place | None = None, limit: int | None = None) -> Flow[list[Template]]:
        """The newest version of each that was not removed, by their names, of several tenants one after the other."""
        ...

    def template_versions(
        self, name: str, tenant: str, after: Place | None = None, limit: int | None = None
    ) -> Flow[list[Template]]:
        """The newest first, of several tenants one after the other. ``after`` has the number of a version as name."""
        ...

    def enqueue_made(
        self, specs: Sequence[JobSpec], template: str, version: int, tenant: str
    ) -> Flow[list[Enqueued]]: ...
    def made_from(self, job_id: str, tenant: str) -> Flow[MadeFrom | None]: ...
    def add_schedule(self, schedule: Placed, actor: str, tenant: str) -> Flow[bool]:
        """False when there is one of that name."""
        ...

    def change_schedule(self, read: Schedule, becomes: Placed, state: str, actor: str, tenant: str) -> Flow[bool]:
        """Define anew, pause, resume or delete what was read; False when it is not so any more."""
        ...

    def declared_schedules(self, declared_by: str, tenant: str) -> Flow[list[Schedule]]: ...
    def declare_schedules(self, declared_by: str, names: Sequence[str], tenant: str) -> Flow[list[str]]:
        """Say which schedules a program declares; answers those that it has stopped declaring."""
        ...

    def due_schedules(
        self, kinds: Sequence[str], want: int, tenant: str, held: bool = False
    ) -> Flow[tuple[datetime, list[Schedule], frozenset[str]]]:
        """The time, and schedules to look at: of these kinds, and of those that no live worker of ours names. The last
        are kinds of them that somebody runs. ``held`` asks for those of these kinds that nobody knew so far."""
        ...

    def fire_schedules(self, decisions: Sequence[Decision], tenant: str) -> Flow[int]:
        """Apply what was decided, where it was decided about what is still so; answers for how many."""
        ...

    def run_schedule(
        self, schedule_id: str, firing: Firing, anyway: bool, actor: str, tenant: str
    ) -> Flow[tuple[str | None, str | None, str | None]]:
        """Run it now, besides its times: the job's id, or the reason why there is none and the words."""
        ...

    def schedule(self, name: str, tenant: str) -> Flow[Schedule | None]: ...
    def schedules(
        self,
        tenant: str,
        state: str | None = None,
        kind: str | None = None,
        after: Place | None = None,
        limit: int | None = None,
    ) -> Flow[list[Schedule]]:
        """By their names, of several tenants one after the other."""
        ...

    def fires(self, schedule_id: str, tenant: str, limit: int = 50, before: datetime | None = None) -> Flow[list[Fire]]:
        """What became of its times, the latest first."""
        ...
