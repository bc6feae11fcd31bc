"""``holdfast schedules …``."""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.text import Text

from holdfast.cli import options
from holdfast.cli.options import document
from holdfast.cli.output import (
    Cell,
    emit,
    heading,
    instant,
    line,
    moment,
    print_document,
    print_fields,
    say,
    span,
    table,
    write,
)
from holdfast.cli.session import AnyTenant, OneTenant
from holdfast.cli.tree import Commands
from holdfast.errors import InvalidSetting
from holdfast.features.schedules import template_commands
from holdfast.features.schedules.model import Schedule, ScheduleRun
from holdfast.features.schedules.recurrence import Coming, Timing, preview

commands = Commands("Create, list and change schedules.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]
Count = Annotated[int, typer.Option("--count", metavar="N", min=1, max=100, help="Number of times to show.")]
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


class State(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    ENDED = "ended"


@commands.add("list", "holdfast schedules list --state paused")
def list_schedules(
    session: AnyTenant,
    state: Annotated[
        State | None, typer.Option("--state", metavar="NAME", help=f"Only schedules in this state: {', '.join(State)}.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", metavar="NAME", help="Only schedules of this kind.")] = None,
) -> None:
    """List the schedules with their next times and problems."""
    with template_commands.open_schedules(session) as schedules:
        page = schedules.list(state=None if state is None else state.value, kind=kind)
    session.print_list(
        page,
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
        none="There are no such schedules.",
        keep=("name", "state", "next (UTC)"),
        described=as_data,
    )


@commands.add("show", "holdfast schedules show nightly")
def show(session: OneTenant, name: Name) -> None:
    """Show a schedule: its job, its times and their last results."""
    with template_commands.open_schedules(session) as schedules:
        schedule = schedules.get(name)
        fires = schedules.history(name, limit=5)
    if session.as_json:
        emit({**as_data(schedule), "history": fires})
        return
    print_schedule(schedule)
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
        str | None, typer.Argument(metavar="[NAME]", help="The schedule's name, or a timing that is not stored yet.")
    ] = None,
    timing: Annotated[
        str | None, typer.Option("--timing", metavar="TEXT", help='Timing to preview: "0 9 * * MON-FRI", "every 90s".')
    ] = None,
    tz: template_commands.Zone = None,
    count: Count = 10,
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
        with template_commands.open_schedules(session) as schedules:
            times, coming = schedules.get(name).timed, schedules.preview(name, count)
    if session.as_json:
        emit({"timing": times.text, "zone": times.zone, "words": times.words, "times": coming})
        return
    write(f"{times.words} ({times.zone})")
    table(("UTC", f"in {times.zone}", ""), [_row(time) for time in coming], keep=("UTC",))


@commands.add("history", "holdfast schedules history nightly --limit 10")
def history(
    session: OneTenant,
    name: Name,
    limit: options.Limit = 50,
    before: Annotated[
        str | None, typer.Option("--before", metavar="TIME", help="Only times before this one: 2027-01-31T09:00Z.")
    ] = None,
) -> None:
    """Show a schedule's past times, newest first: fired, skipped, waiting, missed or failed."""
    earlier = None if before is None else instant(before, "--before")
    with template_commands.open_schedules(session) as schedules:
        fires = schedules.history(name, limit=limit, before=earlier)
    if session.as_json:
        emit(fires)
    elif not fires:
        say("It has not been due yet.")
    else:
        _print_fires(fires)


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


@commands.add(
    "create",
    "holdfast schedules create nightly '0 3 * * *' --kind report --tz Europe/Paris --overlap skip",
    """holdfast schedules create beat 'every 90s' '{"host": "a"}' --kind ping --app shop.jobs:app""",
    "holdfast schedules create launch 'at 2027-01-31 09:00' --template launch --tz America/New_York",
)
def create(
    session: OneTenant,
    name: Name,
    timing: Annotated[
        str, typer.Argument(metavar="WHEN", help='"0 9 * * MON-FRI", "@daily", "every 90s", "at 2027-01-31 09:00".')
    ],
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", help="JSON, @file, or - for stdin.")] = "{}",
    kind: Annotated[str | None, typer.Option("--kind", metavar="NAME", help="Job kind to enqueue.")] = None,
    template: Annotated[
        str | None, typer.Option("--template", metavar="NAME", help="Template to enqueue instead of a kind.")
    ] = None,
    *,
    times: template_commands.TimingOptions,
    made: template_commands.EnqueueOptions,
    app: template_commands.FromApp = None,
) -> None:
    """Create a schedule for a kind or a template."""
    definition = {
        **_source(kind, template),
        **times.given,
        **made.given,
        "payload": document(payload),
    }
    with template_commands.open_schedules(session, app) as schedules:
        _print(schedules.add(name, timing, **definition), session.as_json)


@commands.add(
    "edit",
    "holdfast schedules edit nightly --timing '30 4 * * *'",
    "holdfast schedules edit nightly --missed all",
)
def edit(
    session: OneTenant,
    name: Name,
    timing: Annotated[str | None, typer.Option("--timing", metavar="WHEN", help="New times.")] = None,
    payload: Annotated[
        str | None, typer.Option("--payload", metavar="JSON", help="New payload: JSON, @file, or - for stdin.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", metavar="NAME", help="New job kind.")] = None,
    template: Annotated[str | None, typer.Option("--template", metavar="NAME", help="New template.")] = None,
    *,
    times: template_commands.TimingOptions,
    made: template_commands.EnqueueOptions,
    app: template_commands.FromApp = None,
) -> None:
    """Change a schedule. New times count from now; unchanged ones keep the next time."""
    changes = {
        **_source(kind, template),
        **times.given,
        **made.given,
        **({} if timing is None else {"timing": timing}),
        **({} if payload is None else {"payload": document(payload)}),
    }
    with template_commands.open_schedules(session, app) as schedules:
        _print(schedules.edit(name, **changes), session.as_json)


@commands.add("pause", "holdfast schedules pause nightly")
def pause(session: OneTenant, name: Name) -> None:
    """Pause a schedule. Times that pass meanwhile are skipped."""
    with template_commands.open_schedules(session) as schedules:
        _print(schedules.pause(name), session.as_json)


@commands.add("resume", "holdfast schedules resume nightly")
def resume(session: OneTenant, name: Name) -> None:
    """Resume a schedule, from its next time."""
    with template_commands.open_schedules(session) as schedules:
        _print(schedules.resume(name), session.as_json)


@commands.add("run", "holdfast schedules run nightly --app shop.jobs:app")
def run(
    session: OneTenant,
    name: Name,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Run even if a job of the schedule is still running.")
    ] = False,
    app: template_commands.FromApp = None,
) -> None:
    """Run a schedule now, outside its times, and print the job's id."""
    with template_commands.open_schedules(session, app) as schedules:
        job_id = schedules.run(name, anyway=anyway)
    if session.as_json:
        emit({"schedule": name, "job_id": job_id})
    else:
        write(job_id)


@commands.add("delete", "holdfast schedules delete nightly")
def delete(session: OneTenant, name: Name) -> None:
    """Delete a schedule. Its jobs stay; its name can be used again."""
    with template_commands.open_schedules(session) as schedules:
        schedule = schedules.get(name)
        schedules.remove(name)
    words = f"Deleted schedule {name}."
    if schedule.is_declared:
        words += (
            f" The code of {schedule.declared_by} declares it: a worker creates it again when it starts."
            f" Remove the declaration, or pause the schedule instead: holdfast schedules pause {name}"
        )
    declared_by = schedule.declared_by if schedule.is_declared else None
    session.answer({"schedule": name, "deleted": True, "declared_by": declared_by}, words)


def _source(kind: str | None, template: str | None) -> dict[str, str]:
    return {name: value for name, value in (("kind", kind), ("template", template)) if value is not None}


def _print(schedule: Schedule, as_json: bool) -> None:
    if as_json:
        emit(as_data(schedule))
    else:
        print_schedule(schedule)
