"""``holdfast enqueue``: one job from the shell, checked as one from a program is."""

from __future__ import annotations

from contextlib import closing
from enum import StrEnum
from typing import Annotated

import typer

from holdfast import config
from holdfast.app import App
from holdfast.cli.loading import load_app
from holdfast.cli.output import emit, say, write
from holdfast.cli.reading import document
from holdfast.cli.session import NAME, OneTenant, refuse_unready
from holdfast.cli.words import duration, instant
from holdfast.errors import NotFound
from holdfast.kind import Options


class Dedupe(StrEnum):
    SKIP = "skip"
    COALESCE = "coalesce"


def enqueue(
    session: OneTenant,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="The job's kind.")],
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", help="JSON, @file, or - for stdin.")] = "{}",
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="The queue.")] = None,
    priority: Annotated[int | None, typer.Option("--priority", metavar="N", help="Higher goes first.")] = None,
    delay: Annotated[str | None, typer.Option("--delay", metavar="SPAN", help="Not before: 90s, 5m, 2h.")] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="TIME", help="Not before: 2027-01-31T09:00Z.")] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="TEXT", help="Idempotency key: one job a key.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="The agent it is for.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="TEXT", help="May be repeated.")] = None,
    dedupe: Annotated[
        Dedupe | None,
        typer.Option(
            "--dedupe", metavar="HOW", help="No second job like one that is active (skip) or waits (coalesce)."
        ),
    ] = None,
    source_ref: Annotated[
        str | None, typer.Option("--source-ref", metavar="TEXT", help="Where what it is about lies.")
    ] = None,
    target_ref: Annotated[
        str | None, typer.Option("--target-ref", metavar="TEXT", help="Where what it makes is to lie.")
    ] = None,
    payload_ref: Annotated[
        str | None, typer.Option("--payload-ref", metavar="TEXT", help="Where its data lies, if not in the payload.")
    ] = None,
    app: Annotated[
        str | None, typer.Option("--app", metavar="MODULE:APP", help="Check the payload by the handler's signature.")
    ] = None,
) -> None:
    """Enqueue one job and print its id."""
    chosen: Options = {"tenant": session.scope}
    if queue is not None:
        chosen["queue"] = queue
    if priority is not None:
        chosen["priority"] = priority
    if delay is not None:
        chosen["delay"] = duration(delay, "delay")
    if at is not None:
        chosen["run_at"] = instant(at, "--at")
    if key is not None:
        chosen["key"] = key
    if agent is not None:
        chosen["agent"] = agent
    if tag:
        chosen["tags"] = tag
    if dedupe is not None:
        chosen["dedupe"] = dedupe.value
    if source_ref is not None:
        chosen["source_ref"] = source_ref
    if target_ref is not None:
        chosen["target_ref"] = target_ref
    if payload_ref is not None:
        chosen["payload_ref"] = payload_ref
    value = document(payload)
    with closing(_app(session, app, kind)) as target:
        handle = target.enqueue(kind, value, **chosen)
    if session.as_json:
        emit({"id": handle.id, "tenant": handle.tenant, "created": handle.created, "reason": handle.reason})
        return
    write(handle.id)
    if not handle.created:
        say(f"No new job: this one stands for it ({handle.reason}).")


def _app(session: OneTenant, name: str | None, kind: str) -> App:
    if name is None:
        app = App(config.database_url(session.url), name=NAME, schema=session.schema)
    else:
        app = load_app(name, session.url)
        if kind not in app.kinds:
            known = ", ".join(sorted(app.kinds)) or "none"
            raise NotFound(f"{name} declares no job {kind!r}", code="unknown_kind", fix=f"It has: {known}.")
    if not app.store.embedded:  # an embedded one is made, or brought up to date, as a program's would be
        refuse_unready(app.store)
    return app
