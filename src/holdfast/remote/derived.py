"""The operations of ``App`` over HTTP, from their declarations; the options of an enqueue.

``over_http`` makes a namespace of ``App`` a namespace of the client. The class is the same; only where its operations
run differs. So the client cannot lack an operation, an argument or a docstring that ``App`` has.
"""

from __future__ import annotations

import inspect
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin

from holdfast.engine.declared import http, http_of, inputs_of, is_paged, position_of, result_of, why_local
from holdfast.engine.hints import check_options
from holdfast.engine.job import Verdict
from holdfast.engine.job_options import EnqueueOptions
from holdfast.engine.names import Paging, check_name, kind_name
from holdfast.engine.operation import Namespace
from holdfast.engine.payload import encode
from holdfast.engine.retry import Retry, as_stored_policy
from holdfast.engine.times import instant_or_none
from holdfast.engine.units import seconds
from holdfast.errors import Conflict, NotFound, Refused
from holdfast.kind import PAYLOAD_LIMIT
from holdfast.remote.http_requests import Request, Steps, delete, get, json_value, post, segment, without_none
from holdfast.remote.responses import read
from holdfast.remote.runners import RemoteNamespace, Runner


@dataclass(frozen=True, slots=True)
class Call:
    """A job for ``enqueue_many``, made by ``client.prepare``. ``own``: the key was generated and is unique."""

    key: str
    own: bool
    body: Mapping[str, Any] = field(repr=False)


def prepare_call(kind: str, payload: Any, options: EnqueueOptions) -> Call:
    """Check a job as far as possible here. Its key is fixed: sent any number of times, it is one job."""
    check_options(options, EnqueueOptions.__annotations__)
    values = {} if payload is None else payload
    encode(values, limit=PAYLOAD_LIMIT)
    fields = with_policies(options)
    key = fields.pop("key", None)
    if not isinstance(fields.get("deadline"), datetime | None):  # HTTP takes a time
        fields["deadline"] = datetime.now(UTC) + timedelta(seconds=seconds(fields["deadline"], "deadline"))
    for name in ("run_at", "deadline"):
        check_aware(fields.get(name), name)
    if "delay" in fields:
        fields["delay"] = seconds(fields["delay"], "delay")
    for name in ("tags", "resources"):
        if isinstance(fields.get(name), tuple):
            fields[name] = list(fields[name])
    body = without_none(kind=check_name(kind, "kind"), payload=values, **fields)
    return Call(new_key() if key is None else check_name(key, "key", limit=255), key is None, body)


def new_key() -> str:
    return f"py-{uuid.uuid4()}"


def check_aware(at: object, name: str) -> None:
    """Refuse a time without a time zone."""
    instant_or_none(at, name)


def with_policies(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with retry policies as JSON."""
    return {name: _policy(value) if isinstance(value, Retry) else value for name, value in options.items()}


def _policy(retry: Retry) -> dict[str, Any]:
    as_stored_policy(retry)
    return {"max_attempts": retry.max_attempts, "max_crashes": retry.max_crashes, "backoff": retry.backoff.to_json()}


N = TypeVar("N", bound=Namespace)

_PLACE = re.compile(r"{(\w+)}")
PAGE = 50


def over_http(namespace: type[N], runner: Runner) -> N:
    """``over_http(Agents, runner).set("billing")`` sends ``PUT /agents/billing``."""
    return cast(N, _remote(namespace)(runner))


@cache
def _remote(namespace: type[Namespace]) -> Callable[[Runner], Namespace]:
    made: Any = type(namespace.__name__, (OverHttp, namespace), {"__doc__": namespace.__doc__})
    return cast(Callable[[Runner], Namespace], made)


class OverHttp(RemoteNamespace):
    """The base of a namespace whose operations are sent. ``class Events(OverHttp, operations.Events)`` adds some that
    only the client has, or that it does in its own way."""

    def _begin(self, program: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps[Any]:
        declared = http_of(program)
        if program.__module__.startswith("holdfast.remote."):  # it sends requests itself
            return cast(Steps[Any], program(self, *args, **kwargs))
        if declared is None:
            raise _local_only(program.__name__, why_local(program))
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
        return self._verdicts(program, declared, values) if declared.verdicts else self._send(program, declared, values)

    def _verdicts(self, program: Callable[..., Any], declared: http, values: dict[str, Any]) -> Steps[Any]:
        """One verdict per id, as locally: a refusal is a verdict and not an error."""
        first, verdicts = inputs_of(program)[0], []
        given = values.pop(first.name, ())
        for id in given if first.many else [given]:
            try:
                verdicts.append((yield from self._send(program, declared, {**values, first.place: id})))
            except (NotFound, Conflict) as error:
                verdicts.append(Verdict(id, None, True, error.code))
        return verdicts if first.many else verdicts[0]

    def _send(self, program: Callable[..., Any], declared: http, values: dict[str, Any]) -> Steps[Any]:
        named = {each.place: each.name for each in inputs_of(program) if not each.many}
        if missing := [place for place in _PLACE.findall(declared.path) if values.get(named.get(place, place)) is None]:
            raise _local_only(f"{program.__name__} without {missing[0]}")
        path = _PLACE.sub(lambda place: segment(values.pop(named.get(place[1], place[1]))), declared.path)
        result = Verdict if declared.verdicts else result_of(program)
        inputs = sent_inputs(program, values)
        if not declared.in_body:  # there, null is None
            inputs = {name: value for name, value in inputs.items() if value is not None}
        if declared.method == "GET" and get_origin(result) is list and declared.result is None:
            return (yield from self._list(program, path, inputs))
        if result is bytes:
            return (yield from self._bytes(_request(declared, path, inputs)))
        response = yield from self._request(_request(declared, path, inputs))
        if result is type(None) or response is None:
            return None
        return read(result, response if declared.result is None else read(dict[str, Any], response)[declared.result])

    def _list(self, program: Callable[..., Any], path: str, inputs: dict[str, Any]) -> Steps[Any]:
        (record,) = get_args(result_of(program))
        position = position_of(program)
        if position is not None:
            default = next(each.default for each in inputs_of(program) if each.name == "limit")
            limit, cursor = inputs.pop("limit", default) or PAGE, inputs.pop(position.name, None)
            return (yield from self._limited(record, path, limit, cursor, **inputs))
        limit = inputs.pop("limit", None) if is_paged(program) else None
        if limit is not None:
            return (yield from self._limited(record, path, limit, inputs.pop("after", None), **inputs))
        return (yield from self._all(record, path, **inputs))


def sent_inputs(program: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of an operation as they are sent: values in JSON, with their names over HTTP."""
    names = {each.name: each.help.parameter or each.name for each in inputs_of(program)}
    inputs = with_policies({name: _plain(name, value) for name, value in values.items()})
    return {names.get(name, name): value for name, value in inputs.items()}


def _request(declared: http, path: str, inputs: Mapping[str, Any]) -> Request:
    if declared.method == "GET":
        return get(path, **inputs)
    if declared.method == "DELETE":
        return delete(path, **inputs)
    return post(path, dict(inputs), method=declared.method, repeatable=declared.method == "PUT")


def _plain(name: str, value: Any) -> Any:
    """The value in JSON: the name of a kind; a rate ``(100, "1m")`` as ``100/60.0s``."""
    if isinstance(value, datetime):
        check_aware(value, name)
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], int):
        return f"{value[0]}/{seconds(value[1], 'span of a rate')}s"
    return [*value] if isinstance(value, tuple) else json_value(kind_name(value))


def _local_only(what: str, reason: str | None = None) -> Refused:
    why = "" if reason is None else f": {reason}"
    return Refused(f"{what} needs the database; the service does not offer it{why}", code="local_only")
