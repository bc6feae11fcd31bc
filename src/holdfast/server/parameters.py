"""Route parameters: app, identity and scope, job query; pages and answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Generic, TypeVar, get_type_hints

from fastapi import Depends, Path, Query, Request
from pydantic import BaseModel, Field, TypeAdapter, create_model

from holdfast.app import App
from holdfast.engine.ids import parse_id
from holdfast.engine.names import check_name
from holdfast.engine.states import State
from holdfast.features.jobs.search import NEVER, Search, moment, names_a_time, narrowed, parse
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import Identity, identity_of, require, require_one, require_whole
from holdfast.server.live import LedgerFeed

T = TypeVar("T")

PAGE, MOST = 50, 200
LARGEST = 2**31 - 1

Limit = Annotated[int, Query(ge=1, le=MOST, description="Maximum number of results.")]
After = Annotated[str | None, Query(max_length=8_000, description="Cursor: `next` of the previous page.")]
Id = Annotated[str, Path(min_length=1, max_length=100, description="A UUID.")]
Name = Annotated[str, Path(min_length=1, max_length=255)]
NamePath = Name  # its route says {name:path}: names may have a / in them


class Page(BaseModel, Generic[T]):
    """``next`` is what to give as ``after`` for the next page; null when there is none."""

    items: list[T]
    next: str | None = None


class Problem(BaseModel):
    """A refusal (RFC 9457). ``code`` is stable; ``fix`` says what to do, where that is known."""

    type: str = Field(examples=["urn:holdfast:error:not_found"])
    title: str = Field(examples=["not found"])
    status: int = Field(examples=[404])
    code: str = Field(examples=["not_found"])
    detail: str
    refused: bool = True
    reason: str
    fix: str | None = None
    error: str | None = Field(None, examples=["NotFound"], description="The class that Python raises for it.")


def with_more(record: type[Any], name: str, **more: Any) -> type[BaseModel]:
    """A model with the fields of a record and what else is told of it."""
    hints = get_type_hints(record)
    fields: dict[str, Any] = {each.name: (hints[each.name], ...) for each in dataclasses.fields(record)}
    fields |= {key: (kind, ...) for key, kind in more.items()}
    model: type[BaseModel] = create_model(name, __doc__=record.__doc__, **fields)
    return model


def and_more(record: Any, **more: Any) -> dict[str, Any]:
    """The record as such a model has it."""
    return {each.name: getattr(record, each.name) for each in dataclasses.fields(record)} | more


_anything: TypeAdapter[Any] = TypeAdapter(Any)


def as_json(value: Any) -> bytes:
    """Any of our records as JSON: times in UTC as RFC 3339, words for states."""
    return _anything.dump_json(value)


def paged(found: list[T], limit: int, key: Any) -> Page[T]:
    """Of one more than was asked for: the page, and ``key`` of its last if there is more."""
    items = found[:limit]
    return Page(items=items, next=str(key(items[-1])) if len(found) > limit else None)


# All are coroutines: what is not, FastAPI runs in a thread.


async def _app(request: Request) -> App:
    app = request.app.state.app
    assert isinstance(app, App)
    return app


async def _live(request: Request) -> LedgerFeed:
    live = request.app.state.live
    assert isinstance(live, LedgerFeed)
    return live


Check = Callable[[Request, Scope], Identity]


def _asks(scope: Scope, how: Check) -> Callable[[Request], Awaitable[Identity]]:
    async def check(request: Request) -> Identity:
        return how(request, scope)

    check.scope = scope  # type: ignore[attr-defined]  # the matrix of roles is made from this
    return before_the_body(check)


def before_the_body(check: Callable[[Request], Awaitable[T]]) -> Callable[[Request], Awaitable[T]]:
    """A dependency that ``JsonRoute`` asks before it reads the body, and FastAPI once more after that."""
    check.first = True  # type: ignore[attr-defined]
    return check


def allowed(scope: Scope) -> Any:
    """For a route: ``dependencies=[allowed(Scope.READ)]``."""
    return Depends(_asks(scope, require))


def allowed_one(scope: Scope) -> Any:
    """For what is made for one tenant: whoever acts for all must have named it."""
    return Depends(_asks(scope, require_one))


def allowed_whole(scope: Scope) -> Any:
    """For what concerns every tenant."""
    return Depends(_asks(scope, require_whole))


async def _who(request: Request) -> Identity:
    return identity_of(request)


TheApp = Annotated[App, Depends(_app)]
TheLive = Annotated[LedgerFeed, Depends(_live)]
Who = Annotated[Identity, Depends(_who)]


async def the_search(
    app: App,
    *,
    q: str | None = None,
    state: State | None = None,
    group: str | None = None,
    parent_id: str | None = None,
    since: str | None = None,
    until: str | None = None,
    **named: str | None,
) -> Search:
    """What the parameters and the words of ``q`` come to together; refused where they contradict."""
    client = app._session
    timed = since is not None or until is not None or names_a_time(q or "")
    now = await client.arun(client.store.clock.now()) if timed else NEVER
    return narrowed(
        parse(q or "", now),
        state=state,
        fingerprint=None if group is None else check_name(group, "group"),
        parent_id=None if parent_id is None else parse_id(parent_id),
        since=None if since is None else moment(since, now),
        until=None if until is None else moment(until, now),
        **{name: None if value is None else check_name(value, name, limit=255) for name, value in named.items()},
    )


Word = Annotated[str | None, Query(max_length=255)]


async def _sought(
    app: TheApp,
    q: Annotated[
        str | None, Query(max_length=1_000, examples=['state:dead_letter kind:mail since:1h "connection refused"'])
    ] = None,
    state: State | None = None,
    kind: Word = None,
    queue: Word = None,
    agent: Word = None,
    executor: Word = None,
    tag: Word = None,
    correlation_id: Word = None,
    parent_id: Word = None,
    group: Word = None,
    since: Word = None,
    until: Word = None,
) -> Search:
    named = {"kind": kind, "queue": queue, "agent": agent, "executor": executor, "tag": tag}
    named["correlation_id"] = correlation_id
    return await the_search(app, q=q, state=state, group=group, parent_id=parent_id, since=since, until=until, **named)


Sought = Annotated[Search, Depends(_sought)]


PREFIX = "/api/v1"


def here(request: Request, path: str) -> str:
    return f"{request.scope.get('root_path', '')}{PREFIX}{path}"
