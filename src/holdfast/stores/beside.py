"""Reads side by side: those that do not need one another's answers are asked in one go, where the store can.

``schedules, rules = yield from side_by_side(verbs.schedules(…).start(), verbs.payload_rules(…).start())``
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

from holdfast.stores.flow import Flow, Rows, Statement, Steps

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


@overload
def side_by_side(first: Steps[A], second: Steps[B], /) -> Steps[tuple[A, B]]: ...
@overload
def side_by_side(first: Steps[A], second: Steps[B], third: Steps[C], /) -> Steps[tuple[A, B, C]]: ...
@overload
def side_by_side(*reads: Steps[Any]) -> Steps[tuple[Any, ...]]: ...
def side_by_side(*reads: Steps[Any]) -> Steps[tuple[Any, ...]]:
    """Answers what each of them does, in their order. Whatever asks something that is no read of ours
    does so last, and from then on by itself: it may count on its transaction."""
    parts = [_Part(steps) for steps in reads]
    try:
        while waiting := [part for part in parts if part.asks is not None]:
            first = next((part for part in waiting if part.asking.reads), waiting[0])
            if first.bound is not None:
                yield first.bound
            if not first.asking.reads:
                yield from first.to_its_end()
                continue
            group = [part for part in waiting if part.bound == first.bound and part.asking.reads]
            asked = [part.asking.beside or (part.asking,) for part in group]
            answers = iter((yield Statement("", reads=True, beside=tuple(each for some in asked for each in some))))
            for part, some in zip(group, asked, strict=True):
                rows = [list(next(answers)) for _ in some]
                part.told([*rows] if part.asking.beside else rows[0])
    finally:
        for part in parts:
            part.steps.close()
    return tuple(part.result for part in parts)


def beside(*flows: Flow[Any]) -> Flow[tuple[Any, ...]]:
    """The same as a flow of its own, for a page that shows several things."""
    return Flow(lambda: side_by_side(*(each.start() for each in flows)), writes=False)


class _Part:
    """One of them: what it asks next, and which binding it asked for before that."""

    def __init__(self, steps: Steps[Any]) -> None:
        self.steps = steps
        self.bound: Statement | None = None
        self.asks: Statement | None = None
        self.result: Any = None
        self._go_on(None)

    @property
    def asking(self) -> Statement:
        assert self.asks is not None
        return self.asks

    def told(self, rows: Rows) -> None:
        self._go_on(rows)

    def to_its_end(self) -> Steps[None]:
        try:
            while True:
                self.asks = self.steps.send((yield self.asking))
        except StopIteration as end:
            self.asks, self.result = None, end.value

    def _go_on(self, rows: Rows | None) -> None:
        try:
            self.asks = next(self.steps) if rows is None else self.steps.send(rows)
            while self.asks.binds:
                self.bound = self.asks
                self.asks = self.steps.send([])
        except StopIteration as end:
            self.asks, self.result = None, end.value
