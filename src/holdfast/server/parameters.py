"""Parameters that routes share: the app, the caller and its scope, the job search; models of pages and errors."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Generic, TypeVar, get_type_hints

from fastapi import Depends, Path, Query, Request
from pydantic import BaseModel, Field, TypeAdapter, create_model

from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.engine.states import State
from holdfast.features.jobs.search import NEVER, Search, narrowed, needs_clock, parse, parse_value
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import Identity, identity_of, require, require_all_tenants, require_one_tenant
from holdfast.server.live import LedgerFeed
from holdfast.stores.job_filters import FILTERS, MAX_TAGS, Filter

T = TypeVar("T")

PAGE, MAX_PAGE = 50, 200

Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Maximum number of results.")]
After = Annotated[str | None, Query(max_length=8_000, description="Cursor: `next` of the previous page.")]
Id = Annotated[str, Path(min_length=1, max_length=100, description="A UUID.")]
Name = Annotated[str, Path(min_length=1, max_length=255)]
NamePath = Name  # for routes with {name:path}: names may contain a /


class Page(BaseModel, Generic[T]):
    """``next`` is the ``after`` of the next page; null on the last page."""

    items: list[T]
    next: str | None = None


class Problem(BaseModel):
    """An error (RFC 9457). ``code`` is stable; ``fix`` names a remedy if one is known."""

    type: str = Field(examples=["urn:holdfast:error:not_found"])
    title: str = Field(examples=["not found"])
    status: int = Field(examples=[404])
    code: str = Field(examples=["not_found"])
    detail: str
    refused: bool = True
    reason: str
    fix: str | None = None
    error: str | None = Field(None, examples=["NotFound"], description="The class of the error in Python.")


def extended_model(record: type[Any], name: str, **more: Any) -> type[BaseModel]:
    """A model with the fields of a record and further fields."""
    hints = get_type_hints(record)
    fields: dict[str, Any] = {field.name: (hints[field.name], ...) for field in dataclasses.fields(record)}
    fields |= {key: (kind, ...) for key, kind in more.items()}
    model: type[BaseModel] = create_model(name, __doc__=record.__doc__, **fields)
    return model


_anything: TypeAdapter[Any] = TypeAdapter(Any)


def as_json(value: Any) -> bytes:
    """A record as JSON: times in UTC as RFC 3339, states by name."""
    return _anything.dump_json(value)


def paged(rows: list[T], limit: int, key: Any) -> Page[T]:
    """A page of up to ``limit + 1`` rows; ``next`` is the key of its last row if there are more."""
    items = rows[:limit]
    return Page(items=items, next=str(key(items[-1])) if len(rows) > limit else None)


# All dependencies are coroutines: FastAPI runs plain functions in a thread.


async def _app(request: Request) -> App:
    app = request.app.state.app
    assert isinstance(app, App)
    return app


async def _live(request: Request) -> LedgerFeed:
    live = request.app.state.live
    assert isinstance(live, LedgerFeed)
    return live


Check = Callable[[Request, Scope], Identity]


def _scope_check(scope: Scope, require: Check) -> Callable[[Request], Awaitable[Identity]]:
    async def check(request: Request) -> Identity:
        return require(request, scope)

    check.scope = scope  # type: ignore[attr-defined]  # read by the OpenAPI document and JsonRoute
    return checked_before_body(check)


def checked_before_body(check: Callable[[Request], Awaitable[T]]) -> Callable[[Request], Awaitable[T]]:
    """A dependency that ``JsonRoute`` calls before it reads the body, and FastAPI once more afterwards."""
    check.first = True  # type: ignore[attr-defined]
    return check


def allowed(scope: Scope) -> Any:
    """For a route: ``dependencies=[allowed(Scope.READ)]``."""
    return Depends(_scope_check(scope, require))


def allowed_one_tenant(scope: Scope) -> Any:
    """For operations on one tenant: an operator of all tenants has to name it."""
    return Depends(_scope_check(scope, require_one_tenant))


def allowed_all_tenants(scope: Scope) -> Any:
    """For operations that affect every tenant."""
    return Depends(_scope_check(scope, require_all_tenants))


async def _caller(request: Request) -> Identity:
    return identity_of(request)


TheApp = Annotated[App, Depends(_app)]
TheFeed = Annotated[LedgerFeed, Depends(_live)]
Caller = Annotated[Identity, Depends(_caller)]


async def job_search(app: App, q: str | None, given: Mapping[str, Any]) -> Search:
    """The search of the filters and ``q`` combined; refused if they contradict each other. ``given`` has the filters by
    parameter, as text."""
    client = session_of(app)
    texts = {each: given[each.query] for each in FILTERS if given.get(each.query) is not None}
    timed = any(each.values == "time" for each in texts) or needs_clock(q or "")
    now = await client.arun(client.store.clock.now()) if timed else NEVER
    parsed = {
        each.name: each.check(text) if each.values == "texts" else parse_value(each, str(text), now)
        for each, text in texts.items()
    }
    return narrowed(parse(q or "", now), **parsed)


ShortText = Annotated[str | None, Query(max_length=255)]


async def _search(app: App, q: str | None = None, **given: Any) -> Search:
    return await job_search(app, q, given)


def _parameter(each: Filter) -> inspect.Parameter:
    """The query parameter of a filter; those of tags may be repeated."""
    query = Query(max_length=MAX_TAGS if each.values == "texts" else 255, description=each.help)
    value: Any = State if each.values == "state" else list[Text] if each.values == "texts" else str
    annotation = State | None if each.values == "state" else Annotated[value | None, query]
    return inspect.Parameter(each.query, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


Text = Annotated[str, Field(max_length=255)]
Words = Annotated[
    str | None, Query(max_length=1_000, examples=['state:dead_letter kind:mail since:1h "connection refused"'])
]
_search.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        inspect.Parameter("app", inspect.Parameter.KEYWORD_ONLY, annotation=TheApp),
        inspect.Parameter("q", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Words),
        *map(_parameter, FILTERS),
    ]
)
JobSearch = Annotated[Search, Depends(_search)]


PREFIX = "/api/v1"


def api_path(request: Request, path: str) -> str:
    return f"{request.scope.get('root_path', '')}{PREFIX}{path}"
