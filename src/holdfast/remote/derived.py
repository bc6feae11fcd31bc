"""``over_http``: a namespace of ``App`` as a namespace of the client, from the declarations of its operations.

The class is the same; only where its operations run differs. So the client cannot lack an operation, an argument or a
docstring that ``App`` has.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin

from holdfast.engine.declared import Http, http_of, inputs_of, is_paged, result_of
from holdfast.engine.hints import check_options
from holdfast.engine.names import Paging, kind_name
from holdfast.engine.operation import Namespace
from holdfast.engine.units import seconds
from holdfast.errors import Refused
from holdfast.remote.handle import with_policies
from holdfast.remote.http_requests import Request, Steps, delete, get, post, segment, without_none
from holdfast.remote.responses import read
from holdfast.remote.runners import RemoteNamespace, Runner

N = TypeVar("N", bound=Namespace)

_PLACE = re.compile(r"{(\w+)}")


def over_http(namespace: type[N], runner: Runner) -> N:
    """``over_http(Agents, runner).set("billing")`` sends ``PUT /agents/billing``."""
    return cast(N, _remote(namespace)(runner))


@cache
def _remote(namespace: type[Namespace]) -> Callable[[Runner], Namespace]:
    made: Any = type(namespace.__name__, (_Derived, namespace), {"__doc__": namespace.__doc__})
    return cast(Callable[[Runner], Namespace], made)


class _Derived(RemoteNamespace):
    def _begin(self, program: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps[Any]:
        declared = http_of(program)
        if declared is None:
            raise _local_only(program.__name__)
        given = inspect.signature(program).bind(self, *args, **kwargs)
        values = {name: value for name, value in given.arguments.items() if name != "self"}
        parameters = given.signature.parameters
        inputs = {each.name: each for each in inputs_of(program)}
        for parameter in parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                options = values.pop(parameter.name, {})
                check_options(options, Paging.__annotations__ if is_paged(program) else inputs.keys() - parameters)
                values |= options
        for name in values:
            if name in inputs and not inputs[name].help.http:
                raise _local_only(f"{program.__name__}({name}=…)")
        return self._send(program, declared, values)

    def _send(self, program: Callable[..., Any], declared: Http, values: dict[str, Any]) -> Steps[Any]:
        path = _PLACE.sub(lambda place: segment(values.pop(place[1])), declared.path)
        result = result_of(program)
        inputs = without_none(**with_policies({name: _plain(value) for name, value in values.items()}))
        if declared.method == "GET" and get_origin(result) is list:
            (record,) = get_args(result)
            limit = inputs.pop("limit", None) if is_paged(program) else None
            if limit is not None:
                return (yield from self._limited(record, path, limit, inputs.pop("after", None), **inputs))
            return (yield from self._all(record, path, **inputs))
        response = yield from self._request(_request(declared, path, inputs))
        return None if result is type(None) or response is None else read(result, response)


def _request(declared: Http, path: str, inputs: Mapping[str, Any]) -> Request:
    if declared.method == "GET":
        return get(path, **inputs)
    if declared.method == "DELETE":
        return delete(path, **inputs)
    return post(path, dict(inputs), method=declared.method, repeatable=declared.method == "PUT")


def _plain(value: Any) -> Any:
    """The value in JSON: the name of a kind; a rate ``(100, "1m")`` as ``100/60.0s``."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], int):
        return f"{value[0]}/{seconds(value[1], 'span of a rate')}s"
    return kind_name(value)


def _local_only(what: str) -> Refused:
    return Refused(f"{what} needs the database; the service does not offer it", code="local_only")
