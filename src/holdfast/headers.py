"""Headers of outside services, for handlers that must come back when they are told to."""

from __future__ import annotations

from datetime import UTC, datetime

from holdfast.domain.durations import Duration, seconds
from holdfast.domain.retry_after import asked_delay, http_date


def retry_after(
    value: object, *, default: Duration | None = None, longest: Duration = "1d", date: object = None
) -> float | None:
    """Seconds to wait as a ``Retry-After`` header says: ``raise Retry(after=retry_after(headers.get("Retry-After")))``.

    A number of seconds or an HTTP date; never longer than ``longest``. A header that is missing or makes no sense is
    ``default``, and without one None, which leaves the delay to the job's own backoff. ``date`` is the response's own
    ``Date`` header: a date is then counted from the service's clock and not from this machine's.
    """
    limit = seconds(longest, "duration")
    found = asked_delay(value, http_date(date) or datetime.now(UTC), limit)
    if found is not None or default is None:
        return found
    return seconds(default, "duration")
