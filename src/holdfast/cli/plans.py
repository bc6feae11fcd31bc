"""The trees of ``holdfast schedules`` and ``holdfast templates``."""

from __future__ import annotations

import typer

from holdfast.cli import schedule, schedules, templates
from holdfast.cli.options import examples

timed = typer.Typer(help="When jobs are made by themselves: look, and change.", no_args_is_help=True)
timed.command("list", epilog=examples("holdfast schedules list --state paused"))(schedules.list_schedules)
timed.command("show", epilog=examples("holdfast schedules show nightly"))(schedules.show)
timed.command(
    "create",
    epilog=examples(
        "holdfast schedules create nightly '0 3 * * *' --kind report --tz Europe/Paris --overlap skip",
        """holdfast schedules create beat 'every 90s' '{"host": "a"}' --kind ping --app shop.jobs:app""",
        "holdfast schedules create launch 'at 2027-01-31 09:00' --template launch --tz America/New_York",
    ),
)(schedule.create)
timed.command(
    "edit",
    epilog=examples(
        "holdfast schedules edit nightly --timing '30 4 * * *'", "holdfast schedules edit nightly --missed all"
    ),
)(schedule.edit)
timed.command("pause", epilog=examples("holdfast schedules pause nightly"))(schedule.pause)
timed.command("resume", epilog=examples("holdfast schedules resume nightly"))(schedule.resume)
timed.command("run", epilog=examples("holdfast schedules run nightly --app shop.jobs:app"))(schedule.run)
timed.command(
    "preview",
    epilog=examples(
        "holdfast schedules preview nightly",
        "holdfast schedules preview --timing '30 2 * * *' --tz Europe/London --count 100",
    ),
)(schedules.preview_schedule)
timed.command("history", epilog=examples("holdfast schedules history nightly --limit 10"))(schedules.history)
timed.command("delete", epilog=examples("holdfast schedules delete nightly"))(schedule.delete)

kept = typer.Typer(help="Job definitions with a name and versions.", no_args_is_help=True)
kept.command("list", epilog=examples("holdfast templates list"))(templates.list_templates)
kept.command("show", epilog=examples("holdfast templates show monthly --version 3"))(templates.show)
kept.command("versions", epilog=examples("holdfast templates versions monthly"))(templates.versions)
kept.command(
    "put",
    epilog=examples("""holdfast templates put monthly report '{"scope": "month"}' --queue slow --max-attempts 3"""),
)(templates.put)
kept.command("remove", epilog=examples("holdfast templates remove monthly"))(templates.remove)
kept.command("enqueue", epilog=examples("""holdfast templates enqueue monthly '{"month": 3}'"""))(templates.enqueue)
