"""Common ground of the verbs: each is one call of one function of the schema."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.stores.flow import Statement


class Calls:
    _s: str
    """The schema, quoted, with its dot."""

    def _call(self, name: str, arguments: str, *params: Any) -> Statement:
        return Statement(f"select * from {self._s}{name}({arguments})", params)

    def _look(self, name: str, arguments: str, *params: Any) -> Statement:
        """Of a function that binds itself to its tenant and changes nothing."""
        return replace(self._call(name, arguments, *params), alone=True)
