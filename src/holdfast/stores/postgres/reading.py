"""A flow that only reads, as batches of questions that are sent together (see together.py).

Each of our reads binds the transaction to its tenant first, and needs nothing else of it: the statements that follow
look at the database anew anyway. So each batch is a transaction, and carries its binding. What is no read of ours may
need what came before it in its transaction, or leave something there; from then on there is one, as in any other flow.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from holdfast.stores.flow import Rows, Statement, Steps

T = TypeVar("T")


class Reading(Generic[T]):
    """``questions`` and ``answered`` in turn, until there are none; then it is ``over``, or the ``rest`` is to be run
    in a transaction."""

    result: T

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self._bound: Statement | None = None
        self.over = False
        self._go_on(None)

    def questions(self) -> list[Statement]:
        while not self.over and self._next.binds:
            self._bound = self._next
            self._go_on([])
        if self.over or not (self._next.reads or self._next.alone):
            return []
        asked = [*(self._next.beside or (self._next,))]
        if self._bound is not None and self._next.reads:
            asked.insert(0, self._bound)
        return asked

    def answered(self, answers: list[Rows]) -> None:
        own = answers if self._bound is None or not self._next.reads else answers[1:]
        self._go_on([*own] if self._next.beside else own[0])

    def rest(self) -> Steps[T]:
        if self._bound is not None:
            yield self._bound
        while not self.over:
            self._go_on((yield self._next))
        return self.result

    def close(self) -> None:
        self._steps.close()

    def _go_on(self, rows: Rows | None) -> None:
        try:
            self._next = next(self._steps) if rows is None else self._steps.send(rows)
        except StopIteration as end:
            self.over, self.result = True, end.value
