"""What came back: nothing of it is trusted, all of it is bounded."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Answer:
    """``body`` is unpacked. ``address`` is the one that was connected to; ``origin`` the last one after redirects."""

    status: int
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)
    elapsed: float
    address: str
    origin: str
    truncated: bool = False

    def header(self, name: str) -> str | None:
        """The first of this name, whatever its case."""
        wanted = name.lower()
        return next((value for key, value in self.headers if key.lower() == wanted), None)
