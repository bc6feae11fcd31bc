"""The part of the port that is about retention and usage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Protocol

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.retention.model import By, Keeping, Preview, Retention, Swept, Usage
from holdfast.stores.flow import Flow

PREVIEWED = 10_000
"""Jobs that a preview looks at for each policy."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something in the artifact store that belonged to a job."""

    tenant: str
    job_id: str
    ref: str


class RetentionVerbs(Protocol):
    def set_retention(self, keeping: Keeping, actor: str, tenant: str) -> Flow[Retention]:
        """New, or in place of the one there is; one that is only declared leaves an operator's alone."""
        ...

    def delete_retention(self, kind: str, state: str, actor: str, tenant: str) -> Flow[bool]: ...
    def retentions(self, tenant: str) -> Flow[list[Retention]]: ...
    def preview_retention(self, tenant: str, most: int = PREVIEWED) -> Flow[list[Preview]]: ...
    def sweep_retention(self, want: int = 200, look: int = 2000, tenant: str = EVERY_TENANT) -> Flow[Swept]:
        """One slice of the pass whose turn it is; ``IDLE`` when it is nobody's."""
        ...

    def leftovers(self, want: int = 100, tenant: str = EVERY_TENANT) -> Flow[list[Leftover]]:
        """What cleaned jobs had in the artifact store and no job names any more: whoever asks deletes it there, and
        nobody else is given it for ten minutes."""
        ...

    def forget_leftovers(self, refs: Sequence[str], tenant: str = EVERY_TENANT) -> Flow[int]:
        """They were deleted."""
        ...

    def find_leftovers(self, found: Sequence[Leftover], tenant: str = EVERY_TENANT) -> Flow[int]:
        """Of what lies in the artifact store, put down what is of no job or of a cleaned one, and a week old; how many
        of them were not known."""
        ...

    def count_usage(self, want: int = 2000, begin: bool = False) -> Flow[int]:
        """Add the next events of all tenants to the sums; how many. Nothing is counted before one said ``begin``."""
        ...

    def usage(
        self,
        by: Sequence[By],
        tenant: str,
        since: date | None = None,
        until: date | None = None,
        kind: str | None = None,
    ) -> Flow[list[Usage]]: ...
