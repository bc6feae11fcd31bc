"""``Commands``: a group of commands, and how commands are added to it.

A parameter that is described with ``Help`` is an option. Options that several commands share are the fields of a
dataclass. A command that has such a dataclass as a parameter has its options. Most commands have a ``session``
(``--url``, ``--tenant``, ``--schema``, ``--json``): it is the first parameter, and its options are last in the help.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_args

import typer

from holdfast.cli.options import examples
from holdfast.engine.declared import Help

Command = TypeVar("Command", bound=Callable[..., None])


class Commands(typer.Typer):
    """A group of commands."""

    def __init__(self, help: str, **settings: Any) -> None:
        super().__init__(help=help, no_args_is_help=True, **settings)

    def add(self, name: str, first: str, *more: str, brief: str | None = None) -> Callable[[Command], Command]:
        """Add a function as a command, with at least one example.

        ``brief`` is for the list of commands. Pass it if the first sentence of the docstring is too long for it.
        """

        def register(function: Command) -> Command:
            self.command(name, epilog=examples(first, *more), short_help=brief)(spread(function))
            return function

        return register


def spread(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the form that Typer reads: with one parameter per field of a dataclass, and its options."""
    parameters = dict(inspect.signature(function, eval_str=True).parameters)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in parameters.items()
        if dataclasses.is_dataclass(parameter.annotation)
    }
    fields = {name: inspect.signature(group, eval_str=True).parameters for name, group in groups.items()}

    @functools.wraps(function)
    def call(**values: Any) -> None:
        made = {name: groups[name](**{field: values.pop(field) for field in own}) for name, own in fields.items()}
        function(**made, **values)

    flat: list[inspect.Parameter] = []
    for name in sorted(parameters, key=lambda name: name == "session"):  # a stable sort: the others keep their order
        flat += fields[name].values() if name in fields else [parameters[name]]
    flat = [each.replace(kind=each.KEYWORD_ONLY, annotation=_option(each)) for each in flat]
    call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return call


def _option(parameter: inspect.Parameter) -> Any:
    """The type of a parameter, with an option that has its name if it is described with ``Help``."""
    kind, *described = get_args(parameter.annotation) or (parameter.annotation,)
    help = next((each for each in described if isinstance(each, Help)), None)
    if help is None:
        return parameter.annotation
    name = help.option or f"--{parameter.name.replace('_', '-')}"
    return Annotated[kind, typer.Option(name, metavar=help.metavar, min=help.low, max=help.high, help=help.text)]
