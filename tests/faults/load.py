"""Jobs for the fault tests to be done, many at a time."""

from __future__ import annotations

from typing import Any

from holdfast import App, Backoff, Retry
from tests.support.stores import put, spec

PATIENT = Retry(max_attempts=5, max_crashes=100)
AT_ONCE = Retry(max_attempts=5, max_crashes=100, backoff=Backoff(base=0.05, factor=1.0, cap=0.05, jitter=False))


def load(app: App, count: int, kind: str = "work", *, retry: Retry = PATIENT, **payload: Any) -> list[str]:
    """Enqueue that many in one transaction; each is told its number, unless the payload says something else."""
    numbered = kind in ("work", "awork", "hold", "ahold")
    return put(
        app._store,
        *(spec(kind, payload=payload | ({"number": n} if numbered else {}), retry=retry) for n in range(count)),
    )
