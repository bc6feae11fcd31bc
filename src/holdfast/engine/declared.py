"""One declaration per operation: its signature describes its inputs for Python, HTTP and the command line alike.

``@http`` says where an operation is offered and to whom. ``Annotated[…, Help("…")]`` on a parameter, or on a key of the
TypedDict behind ``**options: Unpack[…]``, says what it means and what it may be. ``server/derived.py`` makes the route,
``cli/derived.py`` the inputs of the command, ``remote/derived.py`` the method of the client::

    @operation
    @http("PUT /agents/{id}", "admin", tenant="one")
    def set(self, id: AgentId, **definition: Unpack[AgentOptions]) -> Program[Agent]: ...
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from holdfast.engine.names import Paging

F = TypeVar("F", bound=Callable[..., Any])

REQUIRED: Final = inspect.Parameter.empty
TEXT_LIMIT: Final = 255


@dataclass(frozen=True, slots=True)
class Help:
    """What an input means. ``low`` and ``high`` bound a number, ``longest`` a text; ``metavar`` stands for the value in
    help texts, ``option`` is the name on the command line if it differs from the name in Python. An input without
    ``http`` needs the database: the service does not take it."""

    text: str
    metavar: str | None = None
    low: int | None = None
    high: int | None = None
    longest: int = TEXT_LIMIT
    option: str | None = None
    example: Any = None
    http: bool = True


@dataclass(frozen=True, slots=True)
class Http:
    """A route. ``tenant``: "any", or "one" where an operator of all tenants has to name one, or "all" where the
    operation affects every tenant. ``page`` names the attribute that lists are ordered by, after the tenant."""

    method: str
    path: str
    scope: str
    tenant: Literal["any", "one", "all"] = "any"
    name: str | None = None
    page: str | None = None
    example: Any = None

    @property
    def in_body(self) -> bool:
        """Whether inputs are sent in a body; else in the query."""
        return self.method in ("PUT", "POST", "PATCH")


def http(
    route: str,
    scope: str,
    *,
    tenant: Literal["any", "one", "all"] = "any",
    name: str | None = None,
    page: str | None = None,
    example: Any = None,
) -> Callable[[F], F]:
    """Offer the operation over HTTP: ``@http("GET /agents/{id}", "read")``, below ``@operation``."""
    method, _, path = route.partition(" ")

    def declare(program: F) -> F:
        program.__http__ = Http(method, path, scope, tenant, name, page, example)  # type: ignore[attr-defined]
        return program

    return declare


def http_of(program: Callable[..., Any]) -> Http | None:
    return getattr(program, "__http__", None)


@dataclass(frozen=True, slots=True)
class Input:
    """An input of an operation. ``hint`` is its type without the annotation."""

    name: str
    hint: Any
    default: Any
    help: Help
    positional: bool

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    @property
    def members(self) -> tuple[Any, ...]:
        """The alternatives of its type, without None."""
        return tuple(member for member in members(self.hint) if member is not type(None))


def members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


@cache
def inputs_of(program: Callable[..., Any]) -> tuple[Input, ...]:
    """The inputs of an operation, with the keys of its ``Unpack[TypedDict]``; without the position and size of a
    page."""
    hints = get_type_hints(program, include_extras=True)
    found = []
    for parameter in list(inspect.signature(program).parameters.values())[1:]:
        hint = hints[parameter.name]
        if parameter.kind is inspect.Parameter.VAR_KEYWORD and get_origin(hint) is Unpack:
            found += [] if get_args(hint)[0] is Paging else _options(get_args(hint)[0])
        else:
            found.append(_input(parameter.name, hint, parameter.default, parameter.kind.name != "KEYWORD_ONLY"))
    return tuple(found)


def is_paged(program: Callable[..., Any]) -> bool:
    return any(hint == Unpack[Paging] for hint in get_type_hints(program, include_extras=True).values())


def _options(options: Any) -> list[Input]:
    assert is_typeddict(options), options
    hints = get_type_hints(options, include_extras=True)
    required: frozenset[str] = options.__required_keys__
    defaults: dict[str, Any] = getattr(options, "__defaults__", {})
    return [
        _input(name, hint, REQUIRED if name in required else defaults.get(name), positional=False)
        for name, hint in hints.items()
    ]


def _input(name: str, hint: Any, default: Any, positional: bool) -> Input:
    help = Help("")
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        help = next((extra for extra in extras if isinstance(extra, Help)), help)
    return Input(name, hint, default, help, positional)


@cache
def result_of(program: Callable[..., Any]) -> Any:
    """The type of the result: ``Agent`` of ``Program[Agent]``."""
    return typing.get_args(get_type_hints(program)["return"])[-1]


def about(program: Callable[..., Any]) -> str:
    """What an operation does, for every surface: the first paragraph of its docstring. The others are about Python."""
    return (inspect.getdoc(program) or "").partition("\n\n")[0].replace("``", "`")
