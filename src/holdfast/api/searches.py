"""Which jobs a request is about: one line of qualifiers, the same as parameters, or both."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query

from holdfast.api.asking import TheApp
from holdfast.app import App
from holdfast.engine.ids import parse_id
from holdfast.engine.names import check_name
from holdfast.engine.states import State
from holdfast.features.jobs.search import NEVER, Search, moment, names_a_time, narrowed, parse


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
    client = app.client
    timed = since is not None or until is not None or names_a_time(q or "")
    now = await client.arun(client.verbs.now()) if timed else NEVER
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
    tag: Word = None,
    correlation_id: Word = None,
    parent_id: Word = None,
    group: Word = None,
    since: Word = None,
    until: Word = None,
) -> Search:
    named = {"kind": kind, "queue": queue, "agent": agent, "tag": tag, "correlation_id": correlation_id}
    return await the_search(app, q=q, state=state, group=group, parent_id=parent_id, since=since, until=until, **named)


Sought = Annotated[Search, Depends(_sought)]
