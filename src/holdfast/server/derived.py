"""Routes from the declarations of operations (``engine/declared.py``): path, query, body, bounds, scope and text."""

from __future__ import annotations

import functools
import inspect
import operator
import re
from datetime import datetime, timedelta
from typing import Annotated, Any, get_args, get_origin

from fastapi import APIRouter, Path, Query
from pydantic import BeforeValidator, ConfigDict, Field, create_model

from holdfast.engine.declared import REQUIRED, Http, Input, about, http_of, inputs_of, is_paged, members, result_of
from holdfast.engine.names import NamedKind, PagePosition
from holdfast.engine.operation import Namespace, operation
from holdfast.engine.retry import Retry
from holdfast.features.tokens.model import Scope
from holdfast.server.bodies import Body, Instant, RetryPolicy, RetryPreset, Span, time_if_dated
from holdfast.server.json_body import Router
from holdfast.server.parameters import (
    PAGE,
    After,
    Limit,
    Page,
    TheApp,
    allowed,
    allowed_all_tenants,
    allowed_one_tenant,
    paged,
)

ALLOWED = {"any": allowed, "one": allowed_one_tenant, "all": allowed_all_tenants}
_PLACE = re.compile(r"{(\w+)}")


def routes(noun: str, namespace: type[Namespace]) -> APIRouter:
    """The routes of ``app.<noun>``. Longer paths come first: a name in a path may contain a slash."""
    router = Router(tags=[noun.replace("_", "-")])
    forms = [form for form in vars(namespace).values() if isinstance(form, operation) and http_of(form.program)]
    for form in sorted(forms, key=lambda form: -len(_declared(form).path)):
        _add(router, noun, form)
    return router


def _declared(form: operation[..., Any]) -> Http:
    declared = http_of(form.program)
    assert declared is not None
    return declared


def _add(router: APIRouter, noun: str, form: operation[..., Any]) -> None:
    program, declared = form.program, _declared(form)
    name = declared.name or f"{program.__name__}_{noun if program.__name__ == 'list' else noun.removesuffix('s')}"
    places = set(_PLACE.findall(declared.path))
    given = [each for each in inputs_of(program) if each.name not in places and each.help.http]
    result = result_of(program)
    is_list = get_origin(result) is list
    parameters = [_parameter("app", TheApp)]
    parameters += [_parameter(each.name, _path_type(each)) for each in inputs_of(program) if each.name in places]
    if declared.in_body and given:
        model = _body(name, declared, given)
        needed = any(each.required for each in given)
        parameters.append(_parameter("body", model if needed else model | None, REQUIRED if needed else None))
    elif not declared.in_body:
        parameters += [_parameter(each.name, _query_type(each), each.default) for each in given]
    if is_paged(program):
        parameters += [_parameter("after", After, None), _parameter("limit", Limit, PAGE)]
    router.add_api_route(
        _PLACE.sub(r"{\1:path}", declared.path),
        _endpoint(noun, form, parameters, is_list),
        methods=[declared.method],
        name=name,
        dependencies=[ALLOWED[declared.tenant](Scope(declared.scope))],
        response_model=None if result is type(None) else Page[get_args(result)[0]] if is_list else result,  # type: ignore[misc]
        status_code=204 if result is type(None) else 200,
    )


def _endpoint(noun: str, form: operation[..., Any], parameters: list[inspect.Parameter], is_list: bool) -> Any:
    verb, declared = form.program.__name__, _declared(form)
    with_page = is_paged(form.program)
    positional = [each.name for each in inputs_of(form.program) if each.positional]

    async def endpoint(app: Any, body: Any = None, after: str | None = None, limit: int = PAGE, **inputs: Any) -> Any:
        values = inputs | ({} if body is None else _given(body))
        values = {name: value for name, value in values.items() if value is not None}
        if with_page:
            values |= {"after": PagePosition.read(after, app._session.tenant), "limit": limit + 1}
        first = [values.pop(name) for name in positional if name in values]
        result = await getattr(getattr(app, noun), f"a{verb}")(*first, **values)
        if not is_list:
            return result
        if not with_page:
            return Page(items=result)
        scope, key = app._session.tenant, declared.page or "name"
        return paged(result, limit, lambda item: PagePosition(item.tenant, getattr(item, key)).cursor(scope))

    endpoint.__doc__ = about(form.program)
    endpoint.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return endpoint


def _given(body: Body) -> dict[str, Any]:
    values = body.given()
    return {name: value.policy() if isinstance(value, RetryPolicy) else value for name, value in values.items()}


def _parameter(name: str, hint: Any, default: Any = REQUIRED) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _path_type(each: Input) -> Any:
    return Annotated[str, Path(min_length=1, max_length=each.help.longest, description=each.help.text or None)]


def _query_type(each: Input) -> Any:
    return Annotated[wire_type(each), Query(description=each.help.text or None)]


def _body(name: str, declared: Http, given: list[Input]) -> type[Body]:
    fields: dict[str, Any] = {}
    for each in given:
        examples = None if each.help.example is None else [each.help.example]
        field = Field(description=each.help.text or None, examples=examples)
        fields[each.name] = (Annotated[wire_type(each), field], ... if each.required else each.default)
    title = "".join(word.capitalize() for word in name.split("_"))
    extra = {} if declared.example is None else {"json_schema_extra": {"examples": [declared.example]}}
    made: type[Body] = create_model(title, __base__=_with(extra), **fields)
    return made


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
    return Instant if kind is datetime else kind
