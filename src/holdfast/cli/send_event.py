"""``holdfast send-event``: tell jobs that something happened."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from holdfast import config
from holdfast.app import App
from holdfast.cli.output import emit, say, write
from holdfast.cli.reading import data_of
from holdfast.cli.session import NAME, OneTenant, refuse_unready
from holdfast.errors import NotFound
from holdfast.stores.requests import Sent


def send_event(
    session: OneTenant,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The event's name.")],
    data: Annotated[
        list[str] | None,
        typer.Argument(metavar="DATA", help="JSON, @file, - for stdin, or name=value in any number."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="TEXT", help="Sent again under it, it is one event.")
    ] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="For this job alone.")] = None,
) -> None:
    """Tell jobs of something that happened.

    Those that wait for it go on, and those that will wait for it find it. Prints the event's id. A value is a number,
    a boolean, null, a list or an object where it reads as one in JSON, and text otherwise.
    """
    told, whose = data_of(data or []), session.scope
    with closing(App(config.database_url(session.url), name=NAME, schema=session.schema)) as app:
        refuse_unready(app.store)
        if job is not None and app.get(job, tenant=whose) is None:
            raise NotFound(f"there is no job {job} in tenant {whose}")
        sent = app.send_event(name, told, key=key, job=job, tenant=whose)
    if session.as_json:
        emit(sent)
    else:
        write(sent.id)
    say(_said(sent))


def _said(sent: Sent) -> str:
    if not sent.created:
        return "It was sent before under this key: this is that one, and nothing is told again."
    woken = {0: "no job waited for it", 1: "1 job goes on"}.get(sent.woke, f"{sent.woke} jobs go on")
    return f"New: {woken}."
