"""The inputs of commands from the declarations of operations (``engine/declared.py``). What a command prints is written
by hand: the function receives the result of the operation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin

import typer

from holdfast.cli.output import duration, time_or_span
from holdfast.cli.session import CommandSession
from holdfast.cli.tree import Commands
from holdfast.engine.declared import REQUIRED, Help, Input, about, inputs_of
from holdfast.engine.names import NamedKind
from holdfast.engine.operation import operation
from holdfast.engine.retry import PRESETS, Retry

Print = TypeVar("Print", bound=Callable[..., None])


def derive(
    commands: Commands,
    name: str,
    session: type[CommandSession],
    form: operation[..., Any],
    *examples: str,
    brief: str | None = None,
    help: str | None = None,
    without: tuple[str, ...] = (),
) -> Callable[[Print], Print]:
    """Add a command that calls an operation. ``help`` replaces its docstring, ``without`` leaves inputs out. The
    decorated function prints the result: ``def printed(session, result)``; further parameters are inputs."""
    declared = [each for each in inputs_of(form.program) if each.name not in without]
    inputs = [part for each in declared for part in (_POLICY if Retry in each.members else (each,))]

    def register(printed: Print) -> Print:
        wanted = [name for name in inspect.signature(printed).parameters if name not in ("session", "result")]

        def command(session: Any, **given: Any) -> None:
            values = {each.name: _value(each, given[_key(each)]) for each in inputs}
            if any(Retry in each.members for each in declared):
                values["retry"] = _policy(*(values.pop(part.name) for part in _POLICY))
            values = {name: value for name, value in values.items() if value is not None}
            first = [values[each.name] for each in declared if each.positional and each.name in values]
            named = {each.name: values[each.name] for each in declared if not each.positional and each.name in values}
            with session.connect() as client:
                result = getattr(cast(Any, form.owner)(client), form.program.__name__)(*first, **named)
            printed(session, result, **{name: given[name] for name in wanted})

        parameters = [_parameter("session", session)]
        parameters += [_parameter(_key(each), _hint(each), _default(each)) for each in inputs]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__doc__ = help or about(form.program).replace("`", "")
        commands.add(name, *examples, brief=brief)(command)
        return printed

    return register


_POLICY = (
    Input(
        "max_attempts",
        int | None,
        None,
        Help(
            f"Maximum attempts of a job. This or --max-crashes sets a whole policy: {Retry().max_attempts} attempts,"
            f" {Retry().max_crashes} crashes and backoff {next(iter(PRESETS))} unless given. Without both, the kind's"
            " policy applies.",
            low=1,
            high=101,
        ),
        False,
    ),
    Input(
        "max_crashes",
        int | None,
        None,
        Help("Maximum crashes of a job. Sets a whole policy, as --max-attempts does.", low=0, high=100),
        False,
    ),
    Input(
        "backoff",
        Literal[tuple(PRESETS)] | None,
        None,
        Help(f"Retry backoff: {', '.join(PRESETS)}. Alone, it changes nothing else of the kind's policy.", "PRESET"),
        False,
    ),
)
"""A retry policy on the command line."""


def _policy(max_attempts: int | None, max_crashes: int | None, backoff: str | None) -> Retry | str | None:
    """The policy of the options; the name of a preset alone changes only the backoff."""
    if max_attempts is None and max_crashes is None:
        return backoff
    given: dict[str, Any] = {"max_attempts": max_attempts, "max_crashes": max_crashes, "backoff": backoff}
    return Retry(**{name: value for name, value in given.items() if value is not None})


def _parameter(name: str, hint: Any, default: Any = REQUIRED) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _hint(each: Input) -> Any:
    """The type that Typer reads: an argument for what an operation takes by position, else an option."""
    kind, help = _plain_type(each), each.help
    metavar = help.metavar or _metavar(each)
    if each.positional and each.required:
        return Annotated[kind, typer.Argument(metavar=metavar, help=help.text)]
    optional = kind if each.required or kind is bool else kind | None
    bounds: dict[str, Any] = {"min": help.low, "max": help.high} if kind in (int, float) else {}
    option = _option(each)
    shown = None if kind is bool else metavar
    return Annotated[optional, typer.Option(option, metavar=shown, help=help.text, **bounds)]


def _option(each: Input) -> str:
    return each.help.option or f"--{each.name.replace('_', '-')}"


def _key(each: Input) -> str:
    """The name of the parameter: ``--tenant`` of a command is the tenant it acts in."""
    return _option(each).partition("/")[0].lstrip("-").replace("-", "_")


def _default(each: Input) -> Any:
    if _plain_type(each) is bool and each.default is None and each.help.option and "/" not in each.help.option:
        return False
    return each.default


def _plain_type(each: Input) -> Any:
    """What the command line reads: text for durations, times, sizes and policies."""
    members = each.members
    if len(members) == 1 and members[0] in (bool, int, float, str):
        return members[0]
    if len(members) == 1 and get_origin(members[0]) is Literal:
        return _choices(get_args(members[0]))
    if members == (bool,):
        return bool
    return str


@cache
def _choices(values: tuple[str, ...]) -> Any:
    return StrEnum("Choice", {value.upper(): value for value in values})


def _metavar(each: Input) -> str:
    if timedelta in each.members:
        return "TIME|SPAN" if datetime in each.members else "SPAN"
    return "N" if int in each.members and str not in each.members else "NAME" if NamedKind in each.members else "TEXT"


def _value(each: Input, given: Any) -> Any:
    """The value for Python of what the command line gave."""
    if given is None or not isinstance(given, str):
        return given
    if timedelta in each.members:
        return (time_or_span if datetime in each.members else duration)(given, _option(each))
    return str(given)
