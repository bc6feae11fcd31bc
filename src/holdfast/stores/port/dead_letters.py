"""The part of the port that is about dead letters and bulk operations (DP-15); ``base.Verbs`` has it with the rest."""

from __future__ import annotations

from typing import Protocol

from holdfast.engine.job import EVERY_TENANT, Enqueued
from holdfast.features.dead_letters.model import DeadLetterGroup, GroupFilter, Operation, Remade, Starting
from holdfast.stores.flow import Flow
from holdfast.stores.requests import JobFilter


class DeadLetterVerbs(Protocol):
    def dead_letter_groups(self, wanted: GroupFilter) -> Flow[list[DeadLetterGroup]]: ...
    def dead_letter_group(self, fingerprint: str, tenant: str) -> Flow[DeadLetterGroup | None]: ...
    def group_of(self, job_id: str, tenant: str) -> Flow[DeadLetterGroup | None]:
        """The group of an open dead letter."""
        ...

    def note_dead_letters(self, fingerprint: str, note: str | None, actor: str, tenant: str) -> Flow[bool]:
        """What people have found out about a group; None takes it away. False: there is no such group."""
        ...

    def redrive_as(
        self, job_id: str, new_id: str, payload: str, reason: str | None, actor: str, tenant: str
    ) -> Flow[Enqueued]:
        """Discard a dead letter, and enqueue a job in its place with another payload (JSON text). Asked again it
        answers the same job, with ``created`` False; without an id ``reason`` says why there is none."""
        ...

    def remade(self, job_id: str, tenant: str) -> Flow[list[Remade]]:
        """Of which job it took the place, and which job took its."""
        ...

    def start_operation(self, new: Starting, wanted: JobFilter, actor: str, tenant: str) -> Flow[Operation]:
        """Have something done to all jobs that a filter wants: they are counted now, and whoever has time does it."""
        ...

    def next_operation(self, tenant: str = EVERY_TENANT) -> Flow[float | None]:
        """In how many seconds a batch of some operation is due; None when there is none."""
        ...

    def work_operation(self, tenant: str = EVERY_TENANT, only: str | None = None) -> Flow[int | None]:
        """Do the next batch that is due, of this operation or any; how many jobs it was, or None for nothing to do."""
        ...

    def cancel_operation(self, operation_id: str, reason: str | None, actor: str, tenant: str) -> Flow[bool]:
        """No further batch is begun. False when it is over already, or is not there."""
        ...

    def operation(self, operation_id: str, tenant: str) -> Flow[Operation | None]: ...
    def operations(
        self, tenant: str, running: bool = False, before: str | None = None, limit: int = 50
    ) -> Flow[list[Operation]]:
        """Newest first; ``before`` is the id of the last one of the page before."""
        ...
