"""``holdfast events``: the ledger in commit order, from the beginning, from a cursor, or from a consumer's place."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from holdfast.cli.output import emit, line, plain, say, to_json
from holdfast.cli.session import AnyTenant
from holdfast.cli.timeline import short, special, way
from holdfast.cli.words import moment
from holdfast.engine.job import Event
from holdfast.engine.names import check_name
from holdfast.errors import Conflict
from holdfast.features.events.read import check_gone
from holdfast.stores.session import Client

PAGE = 100
PAUSE = 0.5


def events(
    session: AnyTenant,
    consumer: Annotated[
        str | None,
        typer.Option("--consumer", metavar="NAME", help="Go on where this consumer stopped, and keep its place."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more, until Ctrl-C.")] = False,
    after: Annotated[str | None, typer.Option("--after", metavar="CURSOR", help="Go on after this event.")] = None,
    skip_gaps: Annotated[
        bool, typer.Option("--skip-gaps", help="Go on with what is left where retention has removed what was not read.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="How many at most (100 unless --follow).")
    ] = None,
) -> None:
    """Print the ledger in commit order. With --follow, --json prints one object a line."""
    if consumer is not None and after is not None:
        raise typer.BadParameter("give --consumer or --after, not both")
    reader = None if consumer is None else check_name(consumer, "consumer")
    most = limit if limit is not None or follow else PAGE
    last: Event | None = None
    found: list[Event] = []
    with session.connect() as client:
        for page in _pages(client, reader, after, most, follow, skip_gaps):
            last = page[-1]
            if session.as_json and not follow:
                found += page
                continue
            for event in page:
                sys.stdout.write((to_json(event) if session.as_json else _line(event)) + "\n")
            sys.stdout.flush()
    if session.as_json and not follow:
        emit(found)
    if last is not None and reader is None:
        say(f"To go on from here: --after '{last.cursor}'")


def _pages(
    client: Client, consumer: str | None, after: str | None, most: int | None, follow: bool, skip_gaps: bool
) -> Iterator[list[Event]]:
    """Pages until there are no more. A consumer's place moves when its page has been printed: at least once."""
    place = after if consumer is None else client.run(client.verbs.cursor_of(consumer, client.tenant))
    left = most
    while left is None or left > 0:
        want = PAGE if left is None else min(PAGE, left)
        page = client.run(client.verbs.events_after(place, want, client.tenant))
        if consumer is None and place is not None and not skip_gaps:  # a consumer holds a purge back
            client.run(check_gone(client.verbs, place, client.tenant))
        if page:
            yield page
            if consumer is not None:
                _keep(client, consumer, page[-1].cursor, place)
            place = page[-1].cursor
            left = None if left is None else left - len(page)
        elif follow:
            time.sleep(PAUSE)
        else:
            return


def _keep(client: Client, consumer: str, cursor: str, was: str | None) -> None:
    if not client.run(client.verbs.save_cursor(consumer, cursor, was, client.tenant)):
        raise Conflict(f"another process is reading as consumer {consumer!r}", code="consumer_moved")


def _line(event: Event) -> str:
    attempt = f" try {event.attempt}" if event.attempt else ""
    what = line(special(event))
    text = f"{moment(event.at)}  {event.job_id}  {line(event.kind, 60)}  {event.verb}  {way(event).plain}{attempt}"
    return plain(f"{text}  by {short(event.actor)}" + (f"  {what}" if what else ""))
