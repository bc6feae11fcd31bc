"""The worker's ends of the lines to its children and to their keeper, which no copy of the worker may hold.

A handler may fork, ``multiprocessing`` does. A copy that lives on when the worker is killed would keep the lines open,
and whoever is to see the end of the worker would wait for the end of the copy.
"""

from __future__ import annotations

import os

_held: set[int] = set()


def hold(number: int) -> None:
    _held.add(number)


def let_go(number: int) -> None:
    """To be called before the file is closed: its number is soon another's."""
    _held.discard(number)


def _cut() -> None:
    """In the copy. The numbers stay taken, so that nobody closes another's file in the belief that it is this one."""
    if not _held:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in _held:
        os.dup2(nothing, number, inheritable=False)
    os.close(nothing)
    _held.clear()


os.register_at_fork(after_in_child=_cut)
