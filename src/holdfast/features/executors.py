"""Who may execute (DP-6), as ``app.executors``: a list of labels for the whole substrate, kept by the database."""

from __future__ import annotations

from holdfast.domain.circumstances import Executor, ExecutorRole
from holdfast.engine.names import check_name
from holdfast.errors import InvalidSetting, NotFound
from holdfast.stores.base import Caller

_Executors = list[Executor]  # inside the class the word is a method

ROLES: tuple[ExecutorRole, ...] = ("executor", "generator")


class Executors:
    """While the list is empty every label may execute. From its first entry on only those may that are on it."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def add(self, label: str, role: ExecutorRole = "executor") -> Executor:
        """Put a label on the list: an ``executor`` may take jobs, a ``generator`` plans work and never may."""
        if role not in ROLES:
            raise InvalidSetting(f"a role is executor or generator, not {role!r}", code="invalid_role")
        caller = self._caller
        return caller.run(caller.verbs.add_executor(check_name(label, "executor"), role, caller.actor))

    def list(self) -> _Executors:
        return self._caller.run(self._caller.verbs.executors())

    def remove(self, label: str) -> None:
        """Take it off the list. What it runs may end; it takes nothing more."""
        if not self._caller.run(self._caller.verbs.remove_executor(label, self._caller.actor)):
            raise NotFound(f"{label} is not on the list of executors", code="executor_not_found")
