"""What a job requires of its worker, and what a worker says about its code.

``job_state.executor`` is null, the label that the job names, or character 31 (30 with a fingerprint) and a JSON array:
the version of the application, the fingerprint of the code and the label; null is any. A claim compares it with its
lease, so that workers of an earlier release of Holdfast, which only know labels, leave such jobs alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.engine.names import check_name

_MARKS: Final = ("\x1e", "\x1f")
NO_CODE: Final = "none"
"""The code that a held job requires until a worker appears whose code it has not tried: nobody has it."""


class Requirement(NamedTuple):
    version: str | None
    code: str | None
    executor: str | None

    @classmethod
    def of(cls, text: str | None) -> Requirement:
        """Read the column ``executor`` of a state row."""
        if text is None or not text.startswith(_MARKS):
            return cls(None, None, text)
        return cls(*json.loads(text[1:]))


ANY: Final = Requirement(None, None, None)


@dataclass(frozen=True, slots=True)
class Code:
    """What a worker runs: the version of the application, the fingerprint of its handlers, and the kinds whose started
    jobs stay with this version."""

    version: str | None = None
    fingerprint: str | None = None
    pins: tuple[str, ...] = ()


UNKNOWN_CODE: Final = Code()


def check_version(version: object) -> str:
    return check_name(version, "version")
