"""Django: ``django.db.connection`` and ``connections["alias"]``.

Django's own cursors rewrite parameters; the driver's connection beneath has the very same transaction, so that one
is used. Its rules come first: the right thread, and no statement in a block that is to be rolled back anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.stores.borrowed.guest import Frame, Guest

T = TypeVar("T")


class DjangoGuest:
    def __init__(self, wrapper: Any, recognise: Callable[[object], Guest]) -> None:
        self._wrapper = wrapper
        self._recognise = recognise

    def run(self, frame: Frame[T]) -> T:
        self._wrapper.validate_thread_sharing()
        self._wrapper.ensure_connection()
        self._wrapper.validate_no_broken_transaction()
        return self._recognise(self._wrapper.connection).run(frame)
