"""``holdfast schedules create | edit | pause | resume | run | delete``: changing schedules."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import planning
from holdfast.cli.output import emit, write
from holdfast.cli.reading import document
from holdfast.cli.schedules import Name, as_data, commands, print_schedule
from holdfast.cli.session import OneTenant
from holdfast.features.schedules.model import Schedule


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
    kind: Annotated[str | None, typer.Option("--kind", metavar="NAME", help="The kind of its jobs.")] = None,
    template: Annotated[str | None, typer.Option("--template", metavar="NAME", help="Or the template.")] = None,
    *,
    times: planning.Timed,
    made: planning.Made,
    app: planning.FromApp = None,
) -> None:
    """Create a schedule: a kind or a template, and when jobs of it are made."""
    definition = {
        **_named(kind, template),
        **times.given,
        **made.given,
        "payload": document(payload),
    }
    with planning.scheduling(session, app) as (_, schedules):
        _print(schedules.create(name, timing, **definition), session.as_json)


@commands.add(
    "edit",
    "holdfast schedules edit nightly --timing '30 4 * * *'",
    "holdfast schedules edit nightly --missed all",
)
def edit(
    session: OneTenant,
    name: Name,
    timing: Annotated[str | None, typer.Option("--timing", metavar="WHEN", help="Other times.")] = None,
    payload: Annotated[
        str | None, typer.Option("--payload", metavar="JSON", help="Another payload: JSON, @file, or -.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", metavar="NAME", help="Another kind.")] = None,
    template: Annotated[str | None, typer.Option("--template", metavar="NAME", help="Another template.")] = None,
    *,
    times: planning.Timed,
    made: planning.Made,
    app: planning.FromApp = None,
) -> None:
    """Change what is named here. Other times count from now on; with the same ones the next time stays."""
    changes = {
        **_named(kind, template),
        **times.given,
        **made.given,
        **({} if timing is None else {"timing": timing}),
        **({} if payload is None else {"payload": document(payload)}),
    }
    with planning.scheduling(session, app) as (_, schedules):
        _print(schedules.edit(name, **changes), session.as_json)


@commands.add("pause", "holdfast schedules pause nightly")
def pause(session: OneTenant, name: Name) -> None:
    """Fire nothing until it is resumed; times that come meanwhile do not count."""
    with planning.scheduling(session) as (_, schedules):
        _print(schedules.pause(name), session.as_json)


@commands.add("resume", "holdfast schedules resume nightly")
def resume(session: OneTenant, name: Name) -> None:
    """Fire again, from the next time on."""
    with planning.scheduling(session) as (_, schedules):
        _print(schedules.resume(name), session.as_json)


@commands.add("run", "holdfast schedules run nightly --app shop.jobs:app")
def run(
    session: OneTenant,
    name: Name,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also while a job of it runs.")] = False,
    app: planning.FromApp = None,
) -> None:
    """Run it now, besides its times, and print the job's id."""
    with planning.scheduling(session, app) as (_, schedules):
        job_id = schedules.run(name, anyway=anyway)
    if session.as_json:
        emit({"schedule": name, "job_id": job_id})
    else:
        write(job_id)


@commands.add("delete", "holdfast schedules delete nightly")
def delete(session: OneTenant, name: Name) -> None:
    """Delete a schedule; its jobs stay, and its name is free."""
    with planning.scheduling(session) as (_, schedules):
        schedules.delete(name)
    session.answer({"schedule": name, "deleted": True}, f"Schedule {name} fires no more.")


def _named(kind: str | None, template: str | None) -> dict[str, str]:
    return {name: said for name, said in (("kind", kind), ("template", template)) if said is not None}


def _print(schedule: Schedule, as_json: bool) -> None:
    if as_json:
        emit(as_data(schedule))
    else:
        print_schedule(schedule)
