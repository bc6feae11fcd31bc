"""Who waits for whom, once all of a workflow is planned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.errors import InvalidSetting
from holdfast.features.workflows.model import OnFailure
from holdfast.workflows.parts import Link, Part, Planned, policy


class Edges:
    """Who waits for whom, worked out: links to parts become links to the jobs that end them. Each part is looked at
    once, however many wait for it."""

    def __init__(self, kind: str) -> None:
        self._inside: dict[int, set[str]] = {}
        self._last: dict[int, list[str] | None] = {}
        self._kind = kind

    def parents(self, jobs: Iterable[Planned[Any]]) -> dict[str, dict[str, OnFailure]]:
        return {job.name: self._of(job, None) for job in jobs}

    def _of(self, job: Planned[Any], within: Part | None) -> dict[str, OnFailure]:
        """Whom a job waits for: by itself, or because it begins a part that does. ``within`` a part, only what that
        part knows of."""
        found: dict[str, OnFailure] = {}
        for link in job.links:
            found |= self._expanded(link, policy(job.part))
        part: Part | None = job.part
        while part is not None and part is not within:
            if part.links and not self._names(part) & found.keys():
                for link in part.links:
                    found |= self._expanded(link, policy(part.outer or part))
            part = part.outer
        return found

    def _names(self, part: Part) -> set[str]:
        if id(part) not in self._inside:
            self._inside[id(part)] = {job.name for job in part.walk()}
        return self._inside[id(part)]

    def _expanded(self, link: Link, otherwise: OnFailure) -> dict[str, OnFailure]:
        target = link.target
        if isinstance(target, str):
            return {target: link.on_failure or otherwise}
        if isinstance(target, Planned):
            return {target.name: link.on_failure or otherwise}
        how = link.on_failure or target.on_failure or otherwise
        return dict.fromkeys(self._ends(target), how)

    def _ends(self, part: Part) -> list[str]:
        """The jobs of a part that no other job of it waits for: when they have ended, all of it has."""
        known = self._last.get(id(part), [])
        if known is None:
            name = part.name or self._kind
            raise InvalidSetting(f"the jobs wait for one another: {name} -> {name}", code="workflow_cycle")
        if id(part) not in self._last:
            self._last[id(part)] = None
            waited: set[str] = set()
            for job in part.walk():
                waited |= self._of(job, part).keys()
            known = self._last[id(part)] = [job.name for job in part.walk() if job.name not in waited]
        return known
