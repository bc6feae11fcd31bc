"""One reason why a job is where it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Reason:
    """``code`` is stable; ``says`` and ``change`` (what would change it) are for people."""

    code: str
    says: str
    change: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
