"""``holdfast templates …``; options both share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from holdfast.app.declarations import TemplateMaker
from holdfast.cli import options
from holdfast.cli.options import document
from holdfast.cli.output import Cell, duration, emit, line, moment, print_document, print_fields, say, table, write
from holdfast.cli.session import AnyTenant, CommandSession, OneTenant, load_app
from holdfast.cli.tree import Commands
from holdfast.engine.job import JobSpec
from holdfast.engine.payload import encode
from holdfast.engine.retry import Retry
from holdfast.features.schedules.model import Template
from holdfast.features.schedules.operations import Schedules
from holdfast.features.schedules.templates import Templates, not_found
from holdfast.kind import PAYLOAD_LIMIT, Prepared, make_spec
from holdfast.stores.ids import new_id
from holdfast.stores.session import Session

Make = Callable[[str, Any, dict[str, Any]], JobSpec]

FromApp = Annotated[
    str | None, typer.Option("--app", metavar="MODULE:APP", help="App to check the kind against; its defaults apply.")
]


Zone = Annotated[str | None, typer.Option("--tz", metavar="ZONE", help="Time zone: Europe/Paris; default: UTC.")]


class MissedPolicy(StrEnum):
    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class OverlapPolicy(StrEnum):
    ALLOW = "allow"
    SKIP = "skip"
    QUEUE = "queue"


@dataclass(frozen=True, kw_only=True)
class TimingOptions:
    """Options about the times of a schedule."""

    tz: Zone = None
    missed: Annotated[
        MissedPolicy | None,
        typer.Option("--missed", metavar="HOW", help="Missed times: skip them, fire once, or fire all (up to 100)."),
    ] = None
    overlap: Annotated[
        OverlapPolicy | None,
        typer.Option("--overlap", metavar="HOW", help="If the previous job still runs: allow another, skip, or queue."),
    ] = None
    jitter: Annotated[str | None, typer.Option("--jitter", metavar="SPAN", help="Random delay of up to: 30s, 5m.")] = (
        None
    )

    @property
    def given(self) -> dict[str, Any]:
        options = {
            "tz": self.tz,
            "missed": None if self.missed is None else self.missed.value,
            "overlap": None if self.overlap is None else self.overlap.value,
            "jitter": None if self.jitter is None else duration(self.jitter, "--jitter"),
        }
        return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class EnqueueOptions:
    """Options of the jobs that a schedule or a template makes."""

    queue: Annotated[
        str | None, typer.Option("--queue", metavar="NAME", help="Queue for its jobs; default: the kind's.")
    ] = None
    priority: Annotated[int | None, typer.Option("--priority", metavar="N", help="Priority; higher runs first.")] = None
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="The agent that owns its jobs.")] = None
    executor: Annotated[
        str | None, typer.Option("--executor", metavar="LABEL", help="Label of the workers that may run its jobs.")
    ] = None
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="TEXT", help="A tag; repeatable.")] = None
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", metavar="N", min=1, max=101, help="Maximum attempts of a job.")
    ] = None
    deadline: Annotated[
        str | None,
        typer.Option(
            "--deadline", metavar="SPAN", help="Deadline: do not start a job later than this after its time: 5m, 2h."
        ),
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given, with the names of ``Options``."""
        options = {
            "queue": self.queue,
            "priority": self.priority,
            "agent": self.agent,
            "executor": self.executor,
            "tags": list(self.tag) if self.tag else None,
            "retry": None if self.max_attempts is None else Retry(max_attempts=self.max_attempts),
            "deadline": None if self.deadline is None else duration(self.deadline, "--deadline"),
        }
        return {name: value for name, value in options.items() if value is not None}


@contextmanager
def open_schedules(session: CommandSession, app: str | None = None) -> Iterator[Schedules]:
    with session.connect() as client:
        yield Schedules(client, _maker(client, app, session.url), new_id)


@contextmanager
def open_templates(session: CommandSession, app: str | None = None) -> Iterator[Templates]:
    with session.connect() as client:
        make, known = _maker(client, app, session.url), load_app(app, session.url)._kinds if app else {}

        def prepare(kind: str, payload: Any, chosen: Any) -> Prepared[Any]:
            return Prepared(make(kind, payload, chosen), chosen.get("tenant", client.tenant), lambda value: value)

        yield Templates(client, TemplateMaker(client, known, prepare))


def _maker(client: Session, app: str | None, url: str | None) -> Make:
    """Makes jobs with the app's defaults for their kinds; without an app, with the given options only."""
    if app is not None:
        return load_app(app, url)._scheduler.make

    def make(kind: str, payload: Any, chosen: Any) -> JobSpec:
        text = encode(payload, limit=PAYLOAD_LIMIT)
        return make_spec(kind, text, chosen, client, "retry" in chosen)[0]

    return make


commands = Commands("Manage templates: named, versioned job definitions.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The template's name.")]
Version = Annotated[
    int | None, typer.Option("--version", metavar="N", min=1, help="Version to use; default: the newest.")
]
Payload = Annotated[str, typer.Argument(metavar="PAYLOAD", help="JSON, @file, or - for stdin.")]


@commands.add("list", "holdfast templates list")
def list_templates(session: AnyTenant) -> None:
    """List the templates in their newest versions."""
    with open_templates(session) as templates:
        page = templates.list()
    if session.as_json:
        emit(page)
    elif not page:
        say("There are no templates.")
    else:
        _print_table(page)


@commands.add("show", "holdfast templates show monthly --version 3")
def show(session: OneTenant, name: Name, version: Version = None) -> None:
    """Show a template and its defaults."""
    with open_templates(session) as templates:
        template = templates.get(name, version)
    _print(template, session.as_json)


@commands.add("versions", "holdfast templates versions monthly --limit 10")
def versions(session: OneTenant, name: Name, limit: options.Limit = 50) -> None:
    """List the versions of a template, newest first."""
    with open_templates(session) as templates:
        page = templates.versions(name, limit=limit)
    if not page:
        raise not_found(name)
    if session.as_json:
        emit(page)
    else:
        _print_table(page)


@commands.add("put", """holdfast templates put monthly report '{"scope": "month"}' --queue slow --max-attempts 3""")
def put(
    session: OneTenant,
    name: Name,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Job kind to enqueue.")],
    payload: Payload = "{}",
    *,
    made: EnqueueOptions,
    app: FromApp = None,
) -> None:
    """Create a template or a new version of it. Older versions stay."""
    with open_templates(session, app) as templates:
        _print(templates.set(name, kind, document(payload), **made.given), session.as_json)


@commands.add("remove", "holdfast templates remove monthly")
def remove(session: OneTenant, name: Name) -> None:
    """Remove a template from use. Its versions stay readable."""
    with open_templates(session) as templates:
        templates.remove(name)
    session.answer({"template": name, "removed": True}, f"Removed template {name}.")


@commands.add("enqueue", """holdfast templates enqueue monthly '{"month": 3}'""")
def enqueue(
    session: OneTenant, name: Name, payload: Payload = "{}", version: Version = None, app: FromApp = None
) -> None:
    """Enqueue a job from a template, with these arguments added, and print its id."""
    with open_templates(session, app) as templates:
        handle = templates.using(version=version).enqueue(name, **document(payload))
    if session.as_json:
        emit({"id": handle.id, "tenant": handle.tenant, "created": handle.created, "reason": handle.reason})
    else:
        write(handle.id)


def _print_table(templates: list[Template]) -> None:
    rows: list[list[Cell]] = [
        [
            line(template.name),
            str(template.version),
            line(template.kind),
            "removed" if template.removed else "",
            moment(template.created_at),
            line(template.created_by),
        ]
        for template in templates
    ]
    table(("name", "version", "kind", "", "made", "by"), rows, keep=("name", "version"))


def _print(template: Template, as_json: bool) -> None:
    if as_json:
        emit(template)
        return
    write(template.name)
    print_fields(
        [
            ("version", str(template.version)),
            ("removed", "yes" if template.removed else None),
            ("kind", template.kind),
            ("tenant", template.tenant),
            ("made", f"{moment(template.created_at)} by {template.created_by}"),
        ]
    )
    if template.payload:
        print_document("Payload", template.payload)
    if template.options:
        print_document("Options", template.options)
