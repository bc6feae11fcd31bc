"""``manage.py holdfast …``: the command line of Holdfast on Django's database."""

from __future__ import annotations

import os
import re
from argparse import REMAINDER, ArgumentParser
from typing import TYPE_CHECKING, Any, Final

from django.core.management.base import BaseCommand, CommandError

from holdfast.app.internals import schema_of
from holdfast.engine.job import DEFAULT_TENANT

if TYPE_CHECKING:
    from holdfast.integrations.django.application import DjangoApp

LOADER: Final = "holdfast.integrations.django.worker:load"
COMMANDS_WITH_APP: Final = frozenset({"worker", "tick", "serve", "dev"})
"""Commands whose first argument is an app."""
MANAGE_OPTIONS: Final = ("--settings", "--pythonpath")
"""Options of manage.py, which Django has applied already."""


class Command(BaseCommand):
    help = "Run a command of Holdfast on this project's database: worker, tick, jobs, why, top, …"

    def run_from_argv(self, argv: list[str]) -> None:
        """Pass the arguments through: Holdfast's command line parses them."""
        code = self._run(_without_manage_options(argv[2:]), f"{os.path.basename(argv[0])} holdfast")
        from holdfast.cli.main import leave

        leave(code)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *_: Any, **options: Any) -> None:
        code = self._run([*options["arguments"]], "holdfast")
        if code:
            raise CommandError(f"holdfast ended with {code}", returncode=code)

    def _run(self, arguments: list[str], program: str) -> int:
        from holdfast.integrations.django.application import get_app
        from holdfast.integrations.django.orm_connection import is_in_memory

        try:
            import typer

            from holdfast.cli.commands import tree_for
            from holdfast.cli.output import renamed_commands
        except ModuleNotFoundError as missing:
            raise CommandError("The command line is not installed. Run: pip install 'holdfast[django]'") from missing
        app = get_app()
        if is_in_memory(app.alias):
            raise CommandError("Commands need a database that other processes can open, and this one is in memory.")
        if arguments[:1] and arguments[0] in COMMANDS_WITH_APP:
            self.check()  # imports the URLs and thereby the views, which may define tasks
            arguments = [arguments[0], LOADER, *arguments[1:]]
        try:
            with renamed_commands(_as_managed):
                command = typer.main.get_command(tree_for(arguments))
                command(args=arguments, prog_name=program, default_map=_defaults(command, _options(app, arguments)))
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        return 0


def _options(app: DjangoApp, arguments: list[str]) -> dict[str, str]:
    """The database, schema and tenant of the project. ``HOLDFAST_URL`` may name the database of another program."""
    from holdfast.integrations.django.orm_connection import url_of

    options = {"url": url_of(app.alias), "schema": schema_of(app)}
    if app.session.scope != DEFAULT_TENANT and "--all-tenants" not in arguments:
        options["tenant"] = app.session.scope
    return options


def _defaults(command: Any, options: dict[str, str]) -> dict[str, Any]:
    """Return these options as the defaults of a command, or of each command of a group. A command with an app has
    those of the app."""
    if hasattr(command, "commands"):
        commands = command.commands.items()
        return {name: _defaults(each, options) for name, each in commands if name not in COMMANDS_WITH_APP}
    return {parameter.name: options[parameter.name] for parameter in command.params if parameter.name in options}


def _as_managed(text: str) -> str:
    """Name the commands of manage.py in a message instead of those of the program ``holdfast``."""
    text = re.sub(r"\bholdfast migrate\b", "python manage.py migrate", text)
    text = re.sub(r"(\bholdfast (?:worker|tick|serve|dev)) MODULE:APP\b", r"\1", text)
    return re.sub(r"(?<![\w./-])(?<!manage\.py )holdfast (?=[a-z])", "python manage.py holdfast ", text)


def _without_manage_options(arguments: list[str]) -> list[str]:
    remaining, skip = [], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in MANAGE_OPTIONS:
            skip = True
        elif not argument.startswith(tuple(f"{name}=" for name in MANAGE_OPTIONS)):
            remaining.append(argument)
    return remaining
