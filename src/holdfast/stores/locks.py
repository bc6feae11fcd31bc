"""Locks and executors that work in a forked child: there the locks are free, and the executors have no threads yet.

A server that forks its workers does so while other threads run. A lock that one of them holds at that moment stays
locked in the child for ever, because its thread does not exist there. What the lock protects belongs to the parent
anyway: each of its users notices the fork by the process id, and starts afresh. An executor counts threads that do not
exist in the child either, and would wait for them.
"""

from __future__ import annotations

import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

_locks: weakref.WeakSet[threading.Lock] = weakref.WeakSet()
_executors: weakref.WeakSet[ForkSafeExecutor] = weakref.WeakSet()


def fork_safe_lock() -> threading.Lock:
    lock = threading.Lock()
    _locks.add(lock)
    return lock


class ForkSafeExecutor(ThreadPoolExecutor):
    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, name)
        self.started_with = threads, name
        _executors.add(self)


def _start_afresh() -> None:
    for lock in tuple(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does for its own
    for executor in tuple(_executors):
        ThreadPoolExecutor.__init__(executor, *executor.started_with)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)
