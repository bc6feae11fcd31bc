"""Compare enqueue through Django's tasks with a native app, one job per call: ``python -m bench.django_enqueue``.

Both write to the same database alternately, so that other load on the machine affects both. Prints the median time of a
call and the ratio, for autocommit and for a transaction around each call.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from holdfast.app.internals import session_of

WARM_UP, CALLS = 100, 1_500


def ship(order: int, carrier: str) -> None:
    """The function of the task and of the native job."""


def measure(url: str) -> dict[str, tuple[float, float]]:
    from django.db import connection, transaction

    import holdfast
    from holdfast.integrations.django.compat import task_backends
    from tests.support import django_setup as django_handles

    django_handles.make_default(url)
    app = holdfast.App(url)
    session_of(app).make_ready()
    native = app.job("native.ship")(ship)
    task = task_backends["default"].task_class(func=ship)
    joined = native.using(connection=connection)

    def within(call: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> None:
            with transaction.atomic():
                call()

        return run

    def by_native() -> Any:
        return native.enqueue(1, "post")

    def by_django() -> Any:
        return task.enqueue(1, "post")

    def by_joined() -> Any:
        return joined.enqueue(1, "post")

    found = {
        "autocommit": compare(by_native, by_django),
        "in a transaction": compare(within(by_joined), within(by_django)),
    }
    connection.close()
    app.close()
    return found


def compare(native: Callable[[], Any], django: Callable[[], Any]) -> tuple[float, float]:
    """Return the median milliseconds per call of each; the two alternate call by call."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(WARM_UP + CALLS):
        for call, taken in zip((native, django), times, strict=True):
            began = time.perf_counter()
            call()
            if number >= WARM_UP:
                taken.append((time.perf_counter() - began) * 1_000)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    with TemporaryDirectory() as folder:
        urls = sys.argv[1:] or [f"sqlite:///{Path(folder) / 'jobs.db'}"]
        for url in urls:
            for name, (native, django) in measure(url).items():
                kind = url.partition(":")[0]
                print(f"{kind:<12}{name:<18}native {native:6.3f} ms   Django {django:6.3f} ms   x{django / native:.2f}")


if __name__ == "__main__":
    main()
