"""Groups of commands, and the one way in which a command is put into them.

Options that several commands share are written once, as the fields of a dataclass: a command takes one of those as a
parameter, and has its options. The commonest is the ``session`` (``--url``, ``--tenant``, ``--schema``, ``--json``),
which comes first among the parameters, as a context does, and last in the help.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import typer

from holdfast.cli.options import examples

Command = TypeVar("Command", bound=Callable[..., None])


class Commands(typer.Typer):
    def __init__(self, help: str, **settings: Any) -> None:
        super().__init__(help=help, no_args_is_help=True, **settings)

    def add(self, name: str, first: str, *more: str, brief: str | None = None) -> Callable[[Command], Command]:
        """Put a function into the tree under this name, with at least one example. ``brief`` is for the list of
        commands, where the first sentence of its docstring would be cut off."""

        def put(function: Command) -> Command:
            self.command(name, epilog=examples(first, *more), short_help=brief)(spread(function))
            return function

        return put


def spread(function: Callable[..., None]) -> Callable[..., None]:
    """The same command with every option a parameter of its own, which is how Typer reads them."""
    taken = {each.name: each for each in inspect.signature(function, eval_str=True).parameters.values()}
    groups: dict[str, Any] = {
        name: each.annotation for name, each in taken.items() if dataclasses.is_dataclass(each.annotation)
    }
    if not groups:
        return function
    fields = {name: inspect.signature(group, eval_str=True).parameters for name, group in groups.items()}

    @functools.wraps(function)
    def call(**given: Any) -> None:
        made = {name: groups[name](**{field: given.pop(field) for field in own}) for name, own in fields.items()}
        function(**made, **given)

    single: list[inspect.Parameter] = []
    for name in sorted(taken, key=lambda name: name == "session"):  # a stable sort: the others stay as they are
        single += fields[name].values() if name in fields else [taken[name]]
    single = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in single]
    call.__signature__ = inspect.Signature(single)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in single}
    return call
