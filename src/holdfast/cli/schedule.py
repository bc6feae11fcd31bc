"""``holdfast schedules create | edit | pause | resume | run | delete``: changing schedules."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli import options, planning
from holdfast.cli.output import emit, say, write
from holdfast.cli.planning import given
from holdfast.cli.reading import document
from holdfast.cli.schedules import Name, as_data, print_schedule
from holdfast.cli.words import duration
from holdfast.domain.schedules import Schedule


def create(
    name: Name,
    timing: Annotated[
        str, typer.Argument(metavar="WHEN", help='"0 9 * * MON-FRI", "@daily", "every 90s", "at 2027-01-31 09:00".')
    ],
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", help="JSON, @file, or - for stdin.")] = "{}",
    kind: Annotated[str | None, typer.Option("--kind", metavar="NAME", help="The kind of its jobs.")] = None,
    template: Annotated[str | None, typer.Option("--template", metavar="NAME", help="Or the template.")] = None,
    tz: planning.Zone = None,
    missed: planning.Missed = None,
    overlap: planning.Overlap = None,
    jitter: planning.Jitter = None,
    queue: planning.Queue = None,
    priority: planning.Priority = None,
    agent: planning.Agent = None,
    tag: planning.Tags = None,
    max_attempts: planning.Attempts = None,
    deadline: planning.Deadline = None,
    app: planning.FromApp = None,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Create a schedule: a kind or a template, and when jobs of it are made."""
    definition = {
        **_definition(kind, template, tz, missed, overlap, jitter),
        **given(queue, priority, agent, tag, max_attempts, deadline),
        "payload": document(payload),
    }
    with planning.scheduling(url, tenant, schema, app) as (_, schedules):
        _print(schedules.create(name, timing, **definition), as_json)


def edit(
    name: Name,
    timing: Annotated[str | None, typer.Option("--timing", metavar="WHEN", help="Other times.")] = None,
    payload: Annotated[
        str | None, typer.Option("--payload", metavar="JSON", help="Another payload: JSON, @file, or -.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", metavar="NAME", help="Another kind.")] = None,
    template: Annotated[str | None, typer.Option("--template", metavar="NAME", help="Another template.")] = None,
    tz: planning.Zone = None,
    missed: planning.Missed = None,
    overlap: planning.Overlap = None,
    jitter: planning.Jitter = None,
    queue: planning.Queue = None,
    priority: planning.Priority = None,
    agent: planning.Agent = None,
    tag: planning.Tags = None,
    max_attempts: planning.Attempts = None,
    deadline: planning.Deadline = None,
    app: planning.FromApp = None,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Change what is named here. Other times count from now on; with the same ones the next time stays."""
    changes = {
        **_definition(kind, template, tz, missed, overlap, jitter),
        **given(queue, priority, agent, tag, max_attempts, deadline),
        **({} if timing is None else {"timing": timing}),
        **({} if payload is None else {"payload": document(payload)}),
    }
    with planning.scheduling(url, tenant, schema, app) as (_, schedules):
        _print(schedules.edit(name, **changes), as_json)


def pause(
    name: Name,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Fire nothing until it is resumed; times that come meanwhile do not count."""
    with planning.scheduling(url, tenant, schema) as (_, schedules):
        _print(schedules.pause(name), as_json)


def resume(
    name: Name,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Fire again, from the next time on."""
    with planning.scheduling(url, tenant, schema) as (_, schedules):
        _print(schedules.resume(name), as_json)


def run(
    name: Name,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also while a job of it runs.")] = False,
    app: planning.FromApp = None,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Run it now, besides its times, and print the job's id."""
    with planning.scheduling(url, tenant, schema, app) as (_, schedules):
        job_id = schedules.run(name, anyway=anyway)
    if as_json:
        emit({"schedule": name, "job_id": job_id})
    else:
        write(job_id)


def delete(
    name: Name,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Delete a schedule; its jobs stay, and its name is free."""
    with planning.scheduling(url, tenant, schema) as (_, schedules):
        schedules.delete(name)
    if as_json:
        emit({"schedule": name, "deleted": True})
    else:
        say(f"Schedule {name} fires no more.")


def _definition(
    kind: str | None,
    template: str | None,
    tz: str | None,
    missed: planning.MissedPolicy | None,
    overlap: planning.OverlapPolicy | None,
    jitter: str | None,
) -> dict[str, Any]:
    said = {
        "kind": kind,
        "template": template,
        "tz": tz,
        "missed": None if missed is None else missed.value,
        "overlap": None if overlap is None else overlap.value,
        "jitter": None if jitter is None else duration(jitter, "--jitter"),
    }
    return {name: value for name, value in said.items() if value is not None}


def _print(schedule: Schedule, as_json: bool) -> None:
    if as_json:
        emit(as_data(schedule))
    else:
        print_schedule(schedule)
