"""What is seen of the bench while it runs (on stderr), and what it prints in the end."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from holdfast.cli.output import console, facts, say
from holdfast.cli.words import span

if TYPE_CHECKING:
    from holdfast.cli.bench.judge import Rate
    from holdfast.cli.bench.run import Result


class View:
    """A bar a phase on a terminal, a line a phase elsewhere."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn())
            self._bars = Progress(*columns, console=console(stderr=True), transient=True)

    def phase(self, name: str, total: int) -> None:
        if self._bars is None:
            say(f"{name}: {total:,} jobs" if total > 1 else f"{name} …")
        else:
            self._bars.add_task(name, total=total)

    def done(self, count: int) -> None:
        """Of the phase that began last."""
        if self._bars is not None:
            self._bars.update(self._bars.task_ids[-1], completed=count)

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()


def print_result(result: Result, concurrency: int) -> None:
    pickup = result.pickup
    facts(
        [
            ("enqueue, one by one", _rate(result.single)),
            ("enqueue, in bulk", _rate(result.bulk)),
            (f"drain, {concurrency} at a time", _rate(result.drain)),
            ("pick-up", f"p50 {span(pickup.p50)}, p95 {span(pickup.p95)}, p99 {span(pickup.p99)} ({pickup.jobs} jobs)"),
            ("checked", "; ".join(result.problems) or f"{result.jobs:,} jobs, each begun once and succeeded"),
        ]
    )


def _rate(rate: Rate) -> str:
    return f"{rate.per_second:,.0f} jobs/s ({rate.jobs:,} in {span(rate.seconds)})"
