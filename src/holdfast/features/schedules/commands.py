"""``holdfast schedules …`` and ``holdfast templates …``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from holdfast import config
from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.cli import options
from holdfast.cli.derived import derive
from holdfast.cli.options import document
from holdfast.cli.output import (
    Cell,
    emit,
    heading,
    line,
    moment,
    print_document,
    print_fields,
    say,
    span,
    table,
    write,
)
from holdfast.cli.session import NAME, AnyTenant, CommandSession, OneTenant, load_app, refuse_unready
from holdfast.cli.tree import Commands
from holdfast.engine.declared import Help
from holdfast.errors import InvalidSetting
from holdfast.features.schedules.model import Schedule, ScheduleRun, Template
from holdfast.features.schedules.operations import Schedules
from holdfast.features.schedules.recurrence import Coming, Timing, preview
from holdfast.features.schedules.templates import Templates

commands = Commands("Add, list and change schedules.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]
STYLES = {
    "active": "green",
    "paused": "yellow",
    "ended": "dim",
    "fired": "green",
    "skipped": "yellow",
    "waiting": "cyan",
    "missed": "yellow",
    "failed": "bold red",
}


@dataclass(frozen=True, kw_only=True)
class WithApp(OneTenant):
    """For commands that create jobs, or define them. The kinds of an app check the arguments and have defaults."""

    app: Annotated[str | None, Help("App to check the kind against; its defaults apply.", "MODULE:APP")] = None

    @contextmanager
    def namespace(self, owner: type[Any]) -> Iterator[Any]:
        if self.app is None:
            app = App(config.database_url(self.url), name=NAME, schema=self.schema)
        else:
            app = load_app(self.app, self.url)
        with closing(app), app.tenant(self.scope):
            refuse_unready(session_of(app).store)
            yield getattr(app, owner.__name__.lower())


@derive(commands, "list", AnyTenant, Schedules.list, "holdfast schedules list --state paused")
def list_schedules(session: AnyTenant, result: list[Schedule]) -> None:
    session.print_list(
        result,
        {
            "name": lambda schedule: line(schedule.name),
            **session.tenants,
            "when": lambda schedule: line(schedule.timing),
            "zone": lambda schedule: schedule.zone,
            "makes": lambda schedule: line(schedule.template or schedule.kind),
            "state": lambda schedule: styled(schedule.state),
            "next (UTC)": lambda schedule: "" if schedule.next_fire_at is None else moment(schedule.next_fire_at),
            "note": lambda schedule: line(schedule.trouble or ""),
        },
        none="No matching schedules.",
        keep=("name", "state", "next (UTC)"),
        described=as_data,
    )


@derive(commands, "show", OneTenant, Schedules.get, "holdfast schedules show nightly")
def show(session: OneTenant, result: Schedule, namespace: Schedules) -> None:
    fires = namespace.history(result.name, limit=5)
    if session.as_json:
        emit({**as_data(result), "history": fires})
        return
    print_schedule(result)
    if fires:
        heading("Times")
        _print_fires(fires)


# Arguments that are a timing and not a name: five or six fields of cron, a nickname, an interval.
_LIKE_TIMING = re.compile(r"@\w+$|every\s+\S|[\d*][\d*,/-]*(\s+[\w*,/#-]+){4,5}$")


@commands.add(
    "preview",
    "holdfast schedules preview nightly",
    "holdfast schedules preview '30 2 * * *' --tz Europe/London --count 100",
)
def preview_schedule(
    session: OneTenant,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The schedule's name. A timing here is one of --timing.")
    ] = None,
    timing: Annotated[str | None, Help('Timing to preview: "0 9 * * MON-FRI", "every 90s".', "TEXT")] = None,
    tz: Annotated[str | None, Help("Time zone: Europe/Paris; default: UTC.", "ZONE")] = None,
    count: Annotated[int, Help("Number of times to show.", "N", low=1, high=100)] = 10,
) -> None:
    """Show the next times in the schedule's time zone, with a warning where daylight saving time affects one."""
    if timing is None and name is not None and _LIKE_TIMING.match(name):
        name, timing = None, name
    if (name is None) == (timing is None):
        raise InvalidSetting("name a schedule, or pass --timing", code="conflicting_options")
    if timing is not None:  # needs no database
        times, now = Timing.of(timing, tz or "UTC"), datetime.now(UTC)
        coming = preview(times, now, now.replace(microsecond=0), count)
    else:
        assert name is not None
        with session.namespace(Schedules) as schedules:
            times, coming = schedules.get(name).timed, schedules.preview(name, count)
    if session.as_json:
        emit({"timing": times.text, "zone": times.zone, "words": times.words, "times": coming})
        return
    write(f"{times.words} ({times.zone})")
    table(("UTC", f"in {times.zone}", ""), [_row(time) for time in coming], keep=("UTC",))


@derive(commands, "history", OneTenant, Schedules.history, "holdfast schedules history nightly --limit 10")
def history(session: OneTenant, result: list[ScheduleRun]) -> None:
    if session.as_json:
        emit(result)
    elif not result:
        say("It has not been due yet.")
    else:
        _print_fires(result)


@derive(commands, "resume", OneTenant, Schedules.resume, "holdfast schedules resume nightly")
@derive(commands, "pause", OneTenant, Schedules.pause, "holdfast schedules pause nightly")
@derive(
    commands,
    "edit",
    WithApp,
    Schedules.edit,
    "holdfast schedules edit nightly --timing '30 4 * * *'",
    "holdfast schedules edit nightly --missed all",
    help="Change a schedule. New times count from now; unchanged ones keep the next time.",
)
@derive(
    commands,
    "add",
    WithApp,
    Schedules.add,
    "holdfast schedules add nightly '0 3 * * *' --kind report --tz Europe/Paris --overlap skip",
    """holdfast schedules add beat 'every 90s' '{"host": "a"}' --kind ping --app shop.jobs:app""",
    "holdfast schedules add launch 'at 2027-01-31 09:00' --template launch --tz America/New_York",
)
def print_changed(session: OneTenant, result: Schedule) -> None:
    if session.as_json:
        emit(as_data(result))
    else:
        print_schedule(result)


@derive(commands, "run", WithApp, Schedules.run, "holdfast schedules run nightly --app shop.jobs:app")
def run(session: OneTenant, result: str, name: str) -> None:
    if session.as_json:
        emit({"schedule": name, "job_id": result})
    else:
        write(result)


@commands.add("remove", "holdfast schedules remove nightly")
def remove(session: OneTenant, name: Name) -> None:
    """Remove a schedule. Its jobs and history stay; its name can be used again."""
    with session.namespace(Schedules) as schedules:
        schedule = schedules.get(name)
        schedules.remove(name)
    words = f"Removed schedule {name}."
    if schedule.is_declared:
        words += (
            f" The code of {schedule.declared_by} declares it: a worker creates it again when it starts."
            f" Remove the declaration, or pause the schedule instead: holdfast schedules pause {name}"
        )
    declared_by = schedule.declared_by if schedule.is_declared else None
    session.answer({"schedule": name, "removed": True, "declared_by": declared_by}, words)


def as_data(schedule: Schedule) -> dict[str, Any]:
    return {**dataclasses.asdict(schedule), "words": schedule.in_words}


def print_schedule(schedule: Schedule) -> None:
    def when(at: Any) -> str | None:
        return None if at is None else moment(at)

    write(schedule.name)
    print_fields(
        [
            ("state", styled(schedule.state)),
            ("note", schedule.trouble),
            ("when", f"{schedule.timing} ({schedule.zone})"),
            ("in words", schedule.in_words),
            ("makes", f"template {schedule.template} ({schedule.kind})" if schedule.template else schedule.kind),
            ("next", when(schedule.next_fire_at)),
            ("last", when(schedule.last_fire_at)),
            ("missed times", schedule.missed),
            ("overlap", schedule.overlap),
            ("jitter", span(schedule.jitter) if schedule.jitter else None),
            ("tenant", schedule.tenant),
            ("declared by", schedule.declared_by),
            ("created", f"{moment(schedule.created_at)} by {schedule.created_by}"),
            ("changed", f"{moment(schedule.updated_at)} by {schedule.updated_by}"),
        ]
    )
    if schedule.payload:
        print_document("Payload", schedule.payload)
    if schedule.options:
        print_document("Options", schedule.options)


def styled(text: str) -> Text:
    return Text(text, STYLES.get(text, ""))


def _print_fires(fires: list[ScheduleRun]) -> None:
    rows: list[list[Cell]] = [
        [
            moment(fire.due_at),
            styled(fire.status),
            fire.job_id or "",
            f"by {line(fire.actor)}" if fire.manual else _details(fire),
        ]
        for fire in fires
    ]
    table(("time (UTC)", "status", "job", ""), rows, keep=("time (UTC)", "status", "job"))


def _details(fire: ScheduleRun) -> str:
    if fire.count > 1 and fire.since_at is not None:
        return f"{fire.count:,} times from {moment(fire.since_at)}"
    return line(f"{fire.error_code}: {fire.error_message}") if fire.error_code else ""


def _row(coming: Coming) -> list[Cell]:
    return [moment(coming.at)[:19], f"{coming.local:%a %Y-%m-%d %H:%M:%S %Z}", Text(coming.warning or "", "yellow")]


template_commands = Commands("Manage templates: named, versioned job definitions.")


@derive(template_commands, "list", AnyTenant, Templates.list, "holdfast templates list")
def list_templates(session: AnyTenant, result: list[Template]) -> None:
    _print_templates(session, result)


@derive(
    template_commands,
    "set",
    WithApp,
    Templates.set,
    """holdfast templates set monthly report '{"scope": "month"}' --queue slow --max-attempts 3""",
)
@derive(template_commands, "show", OneTenant, Templates.get, "holdfast templates show monthly --version 3")
def print_template(session: OneTenant, result: Template) -> None:
    if session.as_json:
        emit(result)
        return
    write(result.name)
    print_fields(
        [
            ("version", str(result.version)),
            ("removed", "yes" if result.removed else None),
            ("kind", result.kind),
            ("tenant", result.tenant),
            ("made", f"{moment(result.created_at)} by {result.created_by}"),
        ]
    )
    if result.payload:
        print_document("Payload", result.payload)
    if result.options:
        print_document("Options", result.options)


@derive(template_commands, "versions", OneTenant, Templates.versions, "holdfast templates versions monthly --limit 10")
def versions(session: OneTenant, inputs: dict[str, Any], limit: options.Limit = 50) -> None:
    """List the versions of a template, newest first."""
    with session.namespace(Templates) as templates:
        _print_templates(session, templates.versions(inputs["name"], limit=limit))


@derive(template_commands, "remove", OneTenant, Templates.remove, "holdfast templates remove monthly")
def remove_template(session: OneTenant, result: None, name: str) -> None:
    session.answer({"template": name, "removed": True}, f"Removed template {name}.")


@template_commands.add("enqueue", """holdfast templates enqueue monthly '{"month": 3}'""")
def enqueue(
    session: WithApp,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The template's name.")],
    payload: Annotated[
        str, typer.Argument(metavar="PAYLOAD", help="Arguments to add: JSON, @file, or - for stdin.")
    ] = "{}",
    version: Annotated[int | None, Help("Version to use; default: the newest.", "N", low=1)] = None,
) -> None:
    """Enqueue a job from a template, with these arguments added, and print its id."""
    with session.namespace(Templates) as templates:
        handle = templates.using(version=version).enqueue(name, **document(payload))
    if session.as_json:
        emit({"id": handle.id, "tenant": handle.tenant, "created": handle.created, "reason": handle.reason})
    else:
        write(handle.id)


def _print_templates(session: CommandSession, templates: list[Template]) -> None:
    session.print_list(
        templates,
        {
            "name": lambda template: line(template.name),
            "version": lambda template: str(template.version),
            "kind": lambda template: line(template.kind),
            "": lambda template: "removed" if template.removed else "",
            "made": lambda template: moment(template.created_at),
            "by": lambda template: line(template.created_by),
        },
        none="No templates.",
        keep=("name", "version"),
    )
