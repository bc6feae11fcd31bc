"""The inputs of commands from the declarations of operations (``engine/declared.py``). What a command prints is written
by hand: the function receives the result of the operation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from keyword import iskeyword
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer

from holdfast.cli.options import document
from holdfast.cli.output import duration, instant, time_or_span
from holdfast.cli.session import CommandSession
from holdfast.cli.tree import Commands
from holdfast.engine.declared import REQUIRED, Help, Input, about, inputs_of
from holdfast.engine.names import NamedKind
from holdfast.engine.operation import operation
from holdfast.engine.retry import PRESETS, Retry

Print = TypeVar("Print", bound=Callable[..., None])

NONE = "none"
"""On the command line, removes a setting."""


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
    """Add a command that calls an operation: a ``derived_command`` of the decorated function."""

    def register(printed: Print) -> Print:
        commands.add(name, *examples, brief=brief)(derived_command(session, form, help=help, without=without)(printed))
        return printed

    return register


def derived_command(
    session: type[CommandSession], form: operation[..., Any], *, help: str | None = None, without: tuple[str, ...] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of an operation. ``help`` replaces its docstring, ``without`` leaves inputs out. The decorated
    function prints the result: ``def printed(session, result)``; further parameters are inputs, and ``namespace`` is
    for further reads. A function ``def command(session, inputs)`` calls the operation itself, and its docstring is the
    help. Parameters of both that are no inputs of the operation are options of their own."""
    declared = [each for each in inputs_of(form.program) if each.help.cli and each.name not in without]
    inputs = [part for each in declared for part in (_POLICY if Retry in each.members else (each,))]

    def make(printed: Callable[..., None]) -> Callable[..., None]:
        parameters_of = inspect.signature(printed, eval_str=True).parameters
        wanted = [name for name in parameters_of if name not in ("session", "result", "inputs", "namespace")]
        own = [parameters_of[name] for name in wanted if name not in map(_key, inputs)]

        def command(session: Any, **given: Any) -> None:
            values = {each.name: _value(each, given[_key(each)]) for each in inputs}
            if any(Retry in each.members for each in declared):
                values["retry"] = _policy(*(values.pop(part.name) for part in _POLICY))
            values = {name: value for name, value in values.items() if value is not None}
            values |= {each.name: None for each in inputs if each.help.clear and given[_key(each)] == NONE}
            further = {name: given[name] for name in wanted}
            if "inputs" in parameters_of:
                printed(session, values, **further)
                return
            given_first = [each for each in declared if each.positional and each.name in values]
            first = [item for each in given_first for item in _items(each, values[each.name])]
            named = {each.name: values[each.name] for each in declared if not each.positional and each.name in values}
            with session.namespace(form.owner) as namespace:
                result = getattr(namespace, form.program.__name__)(*first, **named)
                if "namespace" in parameters_of:
                    printed(session, result, namespace=namespace, **further)
                    return
            printed(session, result, **further)

        parameters = [_parameter("session", session)]
        parameters += [_parameter(_key(each), _hint(each), _default(each)) for each in inputs]
        parameters += [_parameter(each.name, each.annotation, each.default) for each in own]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        by_hand = inspect.getdoc(printed) if "inputs" in parameters_of else None
        command.__doc__ = help or by_hand or about(form.program).replace("`", "")
        return command

    return make


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
    text = help.cli if isinstance(help.cli, str) else help.text
    if each.positional and each.required and (help.option is None or help.argument):
        return Annotated[kind, typer.Argument(metavar=f"{metavar}…" if each.many else metavar, help=text)]
    if help.argument:
        return Annotated[kind | None, typer.Argument(metavar=metavar, help=text)]
    optional = kind if each.required or kind is bool else kind | None
    bounds: dict[str, Any] = {"min": help.low, "max": help.high} if kind in (int, float) else {}
    option = _option(each)
    shown = None if kind is bool else metavar
    text = f"{text} '{NONE}' removes it." if help.clear else text
    return Annotated[optional, typer.Option(option, metavar=shown, help=text, **bounds)]


def _items(each: Input, value: Any) -> list[Any]:
    return [*value] if each.many else [value]


def _option(each: Input) -> str:
    return each.help.option or f"--{each.name.replace('_', '-')}"


def _key(each: Input) -> str:
    """The name of the parameter: ``--tenant`` of a command is the tenant it acts in."""
    name = _option(each).partition("/")[0].lstrip("-").replace("-", "_")
    return f"{name}_" if iskeyword(name) else name  # --in


def _default(each: Input) -> Any:
    if _plain_type(each) is bool and each.default is None and each.help.option and "/" not in each.help.option:
        return False
    return None if each.default == () else each.default


def _plain_type(each: Input) -> Any:
    """What the command line reads: text for durations, times, sizes and policies."""
    members = each.members
    if each.many:
        return list[str]
    if each.help.clear:
        return str
    if len(members) == 1 and members[0] in (bool, int, float, str):
        return members[0]
    if len(members) == 1 and get_origin(members[0]) is Literal:
        return _choices(get_args(members[0]))
    if any(get_origin(member) in (list, Sequence) for member in members):
        return list[str]
    return str


@cache
def _choices(values: tuple[str, ...]) -> Any:
    return StrEnum("Choice", {value.upper(): value for value in values})


def _metavar(each: Input) -> str:
    if timedelta in each.members:
        return "TIME|SPAN" if datetime in each.members else "SPAN"
    if datetime in each.members or _is_document(each):
        return "TIME" if datetime in each.members else "JSON"
    return "N" if int in each.members and str not in each.members else "NAME" if NamedKind in each.members else "TEXT"


def _value(each: Input, given: Any) -> Any:
    """The value for Python of what the command line gave."""
    if given is None or not isinstance(given, str):
        return None if given == [] else given
    if each.help.clear and given == NONE:
        return None
    if int in each.members and timedelta not in each.members:
        return _number(each, given)
    if timedelta in each.members:
        return (time_or_span if datetime in each.members else duration)(given, _option(each))
    if datetime in each.members:
        return instant(given, _option(each))
    return document(given) if _is_document(each) else str(given)


def _number(each: Input, given: str) -> int | str:
    """A number, or the text of an input that takes texts too, such as a size."""
    low, high = each.help.low or 0, each.help.high
    if given.isascii() and given.isdecimal() and low <= int(given) and (high is None or int(given) <= high):
        return int(given)
    if str in each.members:
        return str(given)
    bounds = f"at least {low}" if high is None else f"from {low} to {high:,}"
    raise typer.BadParameter(f"{_option(each)} must be a number {bounds}, or {NONE}")


def _is_document(each: Input) -> bool:
    return any(get_origin(member) in (dict, Mapping) for member in each.members)
