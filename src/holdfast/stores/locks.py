"""Locks of the stores, which are free in a forked child.

A server that forks its workers does so while other threads run. A lock that one of them holds at that moment stays
locked in the child for ever, because its thread does not exist there. What the lock protects belongs to the parent
anyway: each of its users notices the fork by the process id, and starts afresh.
"""

from __future__ import annotations

import os
import threading
import weakref

_locks: weakref.WeakSet[threading.Lock] = weakref.WeakSet()


def fork_safe_lock() -> threading.Lock:
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def _free_all() -> None:
    for lock in tuple(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does for its own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)
