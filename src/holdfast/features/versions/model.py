"""What the operations on versions return. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

CAP: Final = 10_000
"""Jobs that a count of versions or patches reads."""
SHOWN: Final = 200
"""Held jobs that a list shows."""


def differing(steps: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls that were recorded and made, and differ."""
    return [row for row in steps if None not in (row["recorded"], row["called"]) and row["recorded"] != row["called"]]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Why a job is held: ``steps`` are the recorded calls and those of the code, by number. ``tried`` are the
    fingerprints of the code that did not fit."""

    code: str
    message: str
    steps: tuple[dict[str, Any], ...]
    since: datetime
    tried: tuple[str, ...]

    @property
    def differing(self) -> list[dict[str, Any]]:
        return differing(self.steps)

    @classmethod
    def of(cls, note: Mapping[str, Any] | None) -> Mismatch | None:
        """Read the note of a held job, or the data of the event that held it."""
        value = (note or {}).get("mismatch")
        if not isinstance(value, Mapping):
            return None
        since = datetime.fromisoformat(value["since"])
        steps, tried = tuple(value.get("steps") or ()), tuple(value.get("tried") or ())
        return cls(value["code"], value["message"], steps, since, tried)


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """A version of the application. ``pinned`` unfinished jobs run only on it, ``held`` of them wait for other code;
    ``running`` jobs run on its workers now. ``capped``: a count stopped."""

    version: str
    workers: int = 0
    pinned: int = 0
    held: int = 0
    running: int = 0
    capped: bool = False
    unserved: bool = field(init=False)
    """Whether jobs wait for it and no worker runs it."""
    safe_to_retire: bool = field(init=False)
    """Whether no unfinished job needs it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "unserved", self.pinned > 0 and self.workers == 0)
        object.__setattr__(self, "safe_to_retire", not self.pinned and not self.running)


@dataclass(frozen=True, slots=True)
class MismatchedJob:
    """A job whose recorded steps fit no code that has been tried. ``until`` is when it becomes a dead letter."""

    job_id: str
    tenant: str
    kind: str
    version: str | None
    """The version that it is pinned to."""
    since: datetime
    until: datetime
    message: str
    steps: tuple[dict[str, Any], ...]
    tried: int
    """Number of different code that did not fit."""


@dataclass(frozen=True, slots=True)
class PatchStatus:
    """A patch of a handler (``ctx.patched``). ``old_path`` unfinished jobs may still be on the old path,
    ``recorded`` ones have taken the new one. ``capped``: a count stopped."""

    tenant: str
    name: str
    kind: str
    first_at: datetime
    old_path: int
    recorded: int
    capped: bool = False
    old_path_removable: bool = field(init=False)
    """Whether the old path can be removed, and the patch retired."""
    removable: bool = field(init=False)
    """Whether the call of a retired patch can be removed."""

    def __post_init__(self) -> None:
        clear = not self.old_path and not self.capped
        object.__setattr__(self, "old_path_removable", clear)
        object.__setattr__(self, "removable", clear and not self.recorded)


@dataclass(frozen=True, slots=True)
class MovedJobs:
    """The jobs that were moved to another version: how many, and the first thousand of their ids."""

    version: str
    to: str
    moved: int
    job_ids: tuple[str, ...]
