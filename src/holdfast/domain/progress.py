"""How far a running job says it is. Kept as a checkpoint under a name of its own, so that no hot row is rewritten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.domain.errors import InvalidSetting
from holdfast.domain.payload import encode
from holdfast.domain.redaction import Redact

RESERVED: Final = "holdfast:progress"
MESSAGE_LIMIT: Final = 500


@dataclass(frozen=True, slots=True)
class Progress:
    """``fraction`` is from 0 to 1, or None where nobody knows; ``attempt`` says which one spoke."""

    fraction: float | None
    message: str | None
    attempt: int

    @classmethod
    def of(cls, fraction: object, message: object, attempt: int, redact: Redact) -> Progress:
        if fraction is not None:
            number = isinstance(fraction, (int, float)) and not isinstance(fraction, bool)
            if not number or not 0 <= fraction <= 1:  # type: ignore[operator]
                raise InvalidSetting("the fraction is a number from 0 to 1", code="invalid_progress")
            fraction = float(fraction)  # type: ignore[arg-type]
        text = None if message is None else redact(str(message), MESSAGE_LIMIT)
        # Some text cannot be stored at all; a word on how far it is must not end the job.
        safe = None if text is None else text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
        return cls(fraction, safe, attempt)

    @classmethod
    def saved(cls, checkpoints: Mapping[str, Any]) -> Progress | None:
        """What a job's checkpoints say, if they say anything."""
        value = checkpoints.get(RESERVED)
        if not isinstance(value, Mapping):
            return None
        return cls(value.get("fraction"), value.get("message"), int(value.get("attempt") or 0))

    def to_json(self) -> str:
        return encode({"fraction": self.fraction, "message": self.message, "attempt": self.attempt})
