"""Routes from the declarations of operations (``engine/declared.py``): path, query, body, bounds, scope and text."""

from __future__ import annotations

import functools
import inspect
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
)

from holdfast.app.internals import session_of
from holdfast.engine.declared import (
    REQUIRED,
    Input,
    about,
    described,
    http,
    http_of,
    inputs_of,
    inputs_of_options,
    is_paged,
    members,
    position_of,
    result_of,
)
from holdfast.engine.job import EVERY_TENANT, Verdict
from holdfast.engine.names import NamedKind, PagePosition, malformed_cursor
from holdfast.engine.operation import Namespace, operation
from holdfast.engine.retry import Retry
from holdfast.features.jobs.model import accepted
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import Identity
from holdfast.server.bodies import Body, Instant, RetryPolicy, RetryPreset, Span, max_entries, time_if_dated
from holdfast.server.json_body import Router
from holdfast.server.parameters import (
    PAGE,
    After,
    Caller,
    Limit,
    Page,
    TheApp,
    allowed,
    allowed_all_tenants,
    allowed_one_tenant,
    api_path,
    as_json,
    extended_model,
    paged,
)
from holdfast.stores.flow import read_large

ALLOWED = {"any": allowed, "one": allowed_one_tenant, "all": allowed_all_tenants}
_PLACE = re.compile(r"{(\w+)}")
_INSTANT: TypeAdapter[datetime] = TypeAdapter(AwareDatetime)


Check = Callable[[Identity, dict[str, Any]], None]


def routes(noun: str, namespace: type[Namespace], **checks: Check) -> APIRouter:
    """The routes of ``app.<noun>``. Fixed and longer paths come first: a name in a path may contain a slash. ``checks``
    are called first, with the caller and the inputs: ``routes("tokens", Tokens, issue=refuse_excess)``."""
    router = Router(tags=[noun.replace("_", " ")])
    forms = [form for form in vars(namespace).values() if isinstance(form, operation) and http_of(form.program)]
    for form in sorted(forms, key=lambda form: ("{" in _declared(form).path, -len(_declared(form).path))):
        if not _declared(form).by_hand:
            _add(router, noun, form, checks.get(form.program.__name__))
    return router


def _declared(form: operation[..., Any]) -> http:
    declared = http_of(form.program)
    assert declared is not None
    return declared


def _add(router: APIRouter, noun: str, form: operation[..., Any], check: Check | None) -> None:
    program, declared = form.program, _declared(form)
    verb = {"get": "show"}.get(program.__name__, program.__name__)
    name = declared.name or f"{verb}_{noun if verb == 'list' else noun.removesuffix('s')}"
    places = set(_PLACE.findall(declared.path))
    pages = is_paged(program) or position_of(program) is not None
    elsewhere = {*places, *(("before", "after", "limit") if pages else ())}
    given = [each for each in inputs_of(program) if each.place not in elsewhere and each.help.http]
    result = result_of(program)
    is_list = get_origin(result) is list
    parameters = [_parameter("app", TheApp)] + ([] if check is None else [_parameter("who", Caller)])
    parameters += [_parameter(each.place, _path_type(each)) for each in inputs_of(program) if each.place in places]
    if declared.in_body and given:
        model = _body(name, declared, given)
        needed = any(each.required for each in given)
        parameters.append(_parameter("body", model if needed else model | None, REQUIRED if needed else None))
    elif not declared.in_body:
        parameters += [_parameter(each.name, _query_type(each), each.default) for each in given]
    if pages:
        parameters += [_parameter("after", After, None), _parameter("limit", Limit, PAGE)]
    if declared.location is not None:
        parameters += [_parameter("request", Request), _parameter("response", Response)]
    router.add_api_route(
        _PLACE.sub(r"{\1:path}", declared.path),
        _endpoint(noun, form, parameters, is_list, check),
        methods=[declared.method],
        name=name,
        dependencies=[ALLOWED[declared.tenant](Scope(declared.scope))],
        response_model=_response(name, declared, result),
        status_code=204 if result is type(None) else declared.status,
    )


def _response(name: str, declared: http, result: Any) -> Any:
    if result is type(None):
        return None
    if declared.verdicts:
        return Verdict
    if declared.result is not None:
        fields: dict[str, Any] = {declared.result: (result, ...)}
        return create_model(f"{_title(name)}Result", **fields)
    return Page[_record(get_args(result)[0])] if get_origin(result) is list else _record(result)  # type: ignore[misc]


@functools.cache
def _record(kind: Any) -> Any:
    if not hasattr(kind, "described"):
        return kind
    inner = {name: _record(hint) for name, hint in get_type_hints(kind).items() if hasattr(hint, "described")}
    return extended_model(kind, kind.__name__, **inner, **kind.SHOWN)


def _endpoint(
    noun: str, form: operation[..., Any], parameters: list[inspect.Parameter], is_list: bool, check: Check | None
) -> Any:
    verb, declared, inputs = form.program.__name__, _declared(form), inputs_of(form.program)
    with_page, position = is_paged(form.program), position_of(form.program)

    def arguments(app: Any, body: Any, after: str | None, limit: int, given: dict[str, Any]) -> tuple[list[Any], Any]:
        session = session_of(app)
        values = {name: value for name, value in given.items() if value is not None}
        values |= {} if body is None else _given(body)  # there, null is None
        if declared.owner is not None and session.tenant != EVERY_TENANT:
            values[declared.owner] = session.tenant
        if position is not None:
            values |= {position.name: _position(position, after), "limit": limit + 1}
        elif with_page:
            values |= {"after": PagePosition.read(after, session.tenant), "limit": limit + 1}
        elif not declared.in_body and any(each.name == "limit" for each in inputs):
            values["limit"] = limit
        return [values.pop(each.place) for each in inputs if each.positional and each.required], values

    def shaped(app: Any, result: Any, limit: int) -> Any:
        if declared.verdicts:
            return accepted(result if is_list else [result])
        if declared.result is not None:
            return {declared.result: result}
        if not is_list:
            return result
        scope, key = session_of(app).tenant, declared.page or "name"
        if position is not None:
            return paged(result, limit, lambda item: _text(item[key] if isinstance(item, dict) else getattr(item, key)))
        if not with_page:
            return Page(items=result)
        return paged(result, limit, lambda item: PagePosition(item.tenant, str(getattr(item, key))).cursor(scope))

    async def endpoint(
        app: Any,
        body: Any = None,
        after: str | None = None,
        limit: int = PAGE,
        request: Any = None,
        response: Any = None,
        who: Any = None,
        **given: Any,
    ) -> Any:
        if check is not None:
            check(who, given | ({} if body is None else _given(body)))
        first, values = arguments(app, body, after, limit, given)
        namespace = getattr(app, noun)
        if declared.large:
            read = functools.partial(getattr(namespace, verb), *first, **values)
            return Response(
                await read_large(lambda: as_json(shaped(app, described(read()), limit))), media_type="application/json"
            )
        result = described(await getattr(namespace, f"a{verb}")(*first, **values))
        if declared.location is not None:
            response.headers["location"] = api_path(request, f"{declared.location}/{result.id}")
        return shaped(app, result, limit)

    endpoint.__doc__ = about(form.program)
    endpoint.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return endpoint


def _position(before: Input, after: str | None) -> Any:
    if after is None or str in before.members:
        return after
    try:
        if datetime in before.members:
            return _INSTANT.validate_python(after)
        number = int(after)
    except (ValidationError, ValueError):
        raise malformed_cursor() from None
    if number.bit_length() > 63:
        raise malformed_cursor()
    return number


def _text(key: Any) -> str:
    return key.isoformat() if isinstance(key, datetime) else str(key)


def _given(body: Body) -> dict[str, Any]:
    values = {name.removesuffix("_"): value for name, value in body.given().items()}
    return {name: value.policy() if isinstance(value, RetryPolicy) else value for name, value in values.items()}


def _parameter(name: str, hint: Any, default: Any = REQUIRED) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _path_type(each: Input) -> Any:
    return Annotated[str, Path(min_length=1, max_length=each.help.longest, description=each.help.text or None)]


def _query_type(each: Input) -> Any:
    if each.name == "limit":
        return Limit
    return Annotated[wire_type(each), Query(description=each.help.text or None, alias=each.help.parameter)]


def _body(name: str, declared: http, given: list[Input]) -> type[Body]:
    fields: dict[str, Any] = {}
    for each in given:
        examples = None if each.help.example is None else [each.help.example]
        taken = hasattr(BaseModel, each.name)  # ``schema``
        text = f"{each.help.text} Null removes it." if each.help.clear else each.help.text
        field = Field(description=text or None, examples=examples, alias=each.name if taken else None)
        name_there = f"{each.name}_" if taken else each.name
        fields[name_there] = (Annotated[wire_type(each), field], ... if each.required else each.default)
    extra = {} if declared.example is None else {"json_schema_extra": {"examples": [declared.example]}}
    made: type[Body] = create_model(_title(name), __base__=_with(extra), **fields)
    return made


def fields_of(options: Any) -> dict[str, Any]:
    """The keys of a TypedDict as optional fields of a body; null is no option."""
    return {
        each.name: (Annotated[wire_type(each) | None, Field(description=each.help.text)], None)
        for each in inputs_of_options(options)
    }


def _title(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _with(extra: dict[str, Any]) -> type[Body]:
    return type("Body", (Body,), {"model_config": ConfigDict(extra="forbid", **extra), "__module__": __name__})  # type: ignore[typeddict-item]


def wire_type(each: Input) -> Any:
    """The type of an input in JSON: bounded, durations and policies as JSON can express them."""
    alternatives = members(each.hint)
    kinds: list[Any] = []
    if timedelta in alternatives:
        kinds.append(Span)
        alternatives = tuple(kind for kind in alternatives if kind not in (timedelta, float, int, str))
    if Retry in alternatives:
        kinds += [RetryPreset, RetryPolicy]
        alternatives = tuple(kind for kind in alternatives if kind not in (Retry, str))
    kinds = [
        _bounded(kind, each) for kind in alternatives if kind is not NamedKind and get_origin(kind) is not tuple
    ] + kinds
    hint: Any = functools.reduce(operator.or_, kinds)
    is_time = datetime in members(each.hint) and timedelta in members(each.hint)
    return Annotated[hint, BeforeValidator(time_if_dated)] if is_time else hint


def _bounded(kind: Any, each: Input) -> Any:
    if kind is str:
        return Annotated[str, Field(max_length=each.help.longest)]
    if kind in (int, float) and (each.help.low, each.help.high) != (None, None):
        return Annotated[kind, Field(ge=each.help.low, le=each.help.high)]
    if get_origin(kind) in (list, Sequence):
        (item,) = get_args(kind)
        return Annotated[list[_bounded(item, each)], Field(max_length=each.help.most)]  # type: ignore[misc]
    if get_origin(kind) is Mapping:
        kind = dict[get_args(kind)]  # type: ignore[misc]
    if get_origin(kind) is dict and each.help.most is not None:
        return Annotated[kind, max_entries(each.help.most)]
    return Instant if kind is datetime else kind
