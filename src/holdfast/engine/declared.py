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
from dataclasses import KW_ONLY, dataclass, replace
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
    """What an input means. ``low`` and ``high`` bound a number, ``longest`` a text, ``most`` the items of a list;
    ``metavar`` stands for the value in help texts, ``option`` is the name on the command line if it differs from the
    name in Python; an ``argument`` has no name there, although it may be left out. ``wire`` is its type in JSON and on
    the command line, if Python takes more types; ``parameter`` is its name over HTTP, if it differs. With ``clear``,
    None is a value that removes a setting: null in JSON, ``none`` on the command line. An input without ``http`` needs
    the database: the service does not take it; one without ``cli`` is no option of the derived command, and a text
    there replaces the help of that option."""

    text: str
    metavar: str | None = None
    low: float | None = None
    high: float | None = None
    longest: int = TEXT_LIMIT
    most: int | None = None
    option: str | None = None
    argument: bool = False
    wire: Any = None
    parameter: str | None = None
    example: Any = None
    clear: bool = False
    http: bool = True
    cli: bool | str = True


Most = Annotated[int, Help("Maximum number of results.", low=1, high=1000)]
"""The ``limit`` of a list."""
Before = Annotated[str | None, Help("Next page: the id of the last entry on this one.", "CURSOR", option="--after")]


@dataclass(frozen=True, slots=True)
class http:
    """Offer the operation over HTTP: ``@http("GET /agents/{id}", "read")``, below ``@operation``. ``scope`` is the one
    that a token needs. ``tenant``: "any", or "one" where an operator of all tenants has to name one, or "all" where the
    operation affects every tenant. ``page`` names the attribute that lists are ordered by, after the tenant; of a list
    with ``before`` or ``after`` and ``limit``, the attribute that is ``before`` or ``after`` for the next page.
    ``result`` is the key of a result that is not an object in JSON. ``location`` is the path before the id of the
    result, for the header of this name. A ``large`` result is read and encoded off the event loop. ``verdicts``: a
    refusal is a verdict in Python and an error over HTTP. ``owner`` is the input that is the caller's tenant, unless
    that is every tenant. Without ``options``, the ``**options`` need the database. A route that is ``by_hand`` is
    written in ``routes.py``; the client sends to it all the same."""

    route: str
    scope: str
    _: KW_ONLY
    tenant: Literal["any", "one", "all"] = "any"
    name: str | None = None
    page: str | None = None
    example: Any = None
    status: int = 200
    result: str | None = None
    location: str | None = None
    large: bool = False
    verdicts: bool = False
    by_hand: bool = False
    owner: str | None = None
    options: bool = True

    def __call__(self, program: F) -> F:
        program.__http__ = self  # type: ignore[attr-defined]
        return program

    @property
    def method(self) -> str:
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.route.partition(" ")[2]

    @property
    def in_body(self) -> bool:
        """Whether inputs are sent in a body; else in the query."""
        return self.method in ("PUT", "POST", "PATCH")


def local_only(reason: str) -> Callable[[F], F]:
    """Offer the operation where the database is, and neither over HTTP nor by the client: ``@local_only("…")``."""

    def declare(program: F) -> F:
        program.__local_only__ = reason  # type: ignore[attr-defined]
        return program

    return declare


def why_local(program: Callable[..., Any] | None) -> str | None:
    return getattr(program, "__local_only__", None)


def http_of(program: Callable[..., Any]) -> http | None:
    return getattr(program, "__http__", None)


@dataclass(frozen=True, slots=True)
class Input:
    """An input of an operation. ``hint`` is its type without the annotation."""

    name: str
    hint: Any
    default: Any
    help: Help
    positional: bool
    many: bool = False
    """Any number by position: ``*job_ids``. Over HTTP, each has a request of its own: ``{job_id}``."""

    @property
    def place(self) -> str:
        """Its name in a path."""
        return self.name.removesuffix("s") if self.many else self.help.parameter or self.name

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
            offered = (declared := http_of(program)) is None or declared.options
            found += [] if get_args(hint)[0] is Paging else inputs_of_options(get_args(hint)[0], offered)
        else:
            positional, many = parameter.kind.name != "KEYWORD_ONLY", parameter.kind.name == "VAR_POSITIONAL"
            found.append(_input(parameter.name, hint, parameter.default, positional, many))
    return tuple(found)


def is_paged(program: Callable[..., Any]) -> bool:
    return any(hint == Unpack[Paging] for hint in get_type_hints(program, include_extras=True).values())


def position_of(program: Callable[..., Any]) -> Input | None:
    """The input ``before`` or ``after`` of a list that is read page by page."""
    declared = http_of(program)
    if declared is None or declared.page is None or is_paged(program):
        return None
    return next((each for each in inputs_of(program) if each.name in ("before", "after")), None)


def inputs_of_options(options: Any, offered: bool = True) -> list[Input]:
    """The keys of a TypedDict as inputs."""
    assert is_typeddict(options), options
    hints = get_type_hints(options, include_extras=True)
    required: frozenset[str] = options.__required_keys__
    defaults: dict[str, Any] = getattr(options, "__defaults__", {})
    found = [
        _input(name, hint, REQUIRED if name in required else defaults.get(name), positional=False)
        for name, hint in hints.items()
    ]
    return found if offered else [replace(each, help=replace(each.help, http=False)) for each in found]


def _input(name: str, hint: Any, default: Any, positional: bool, many: bool = False) -> Input:
    help = Help("")
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        help = next((extra for extra in extras if isinstance(extra, Help)), help)
    return Input(name, help.wire or hint, default, help, positional, many)


@cache
def result_of(program: Callable[..., Any]) -> Any:
    """The type of the result: ``Agent`` of ``Program[Agent]``."""
    return typing.get_args(get_type_hints(program)["return"])[-1]


def described(result: Any) -> Any:
    """A result as the service shows it: a record with ``described()`` says how; its properties there are in
    ``SHOWN``, with their types."""
    if isinstance(result, list):
        return [described(item) for item in result]
    return result.described() if hasattr(result, "described") else result


def about(program: Callable[..., Any]) -> str:
    """What an operation does, for every surface: the first paragraph of its docstring. The others are about Python."""
    return (inspect.getdoc(program) or "").partition("\n\n")[0].replace("``", "`")
