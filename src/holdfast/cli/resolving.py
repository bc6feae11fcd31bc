"""The commands of dead letters and bulk operations, for the tree."""

from __future__ import annotations

import typer

from holdfast.cli import dead_letters, operations
from holdfast.cli.options import examples

buried = typer.Typer(help="What failed for good, in groups: look, redrive, discard.", no_args_is_help=True)
buried.command(
    "list", epilog=examples("holdfast dead-letters list --sort count", "holdfast dead-letters list --since 1d --json")
)(dead_letters.list_groups)
buried.command("show", epilog=examples("holdfast dead-letters show 3f2a9c0b1d4e5f60"))(dead_letters.show)
buried.command("note", epilog=examples("holdfast dead-letters note 3f2a9c0b1d4e5f60 'the bank is down'"))(
    dead_letters.note
)
buried.command(
    "redrive",
    epilog=examples(
        "holdfast dead-letters redrive 3f2a9c0b1d4e5f60 --rate 20",
        "holdfast dead-letters redrive --kind pay --since 1d --reason 'the bank is back' --wait",
    ),
)(dead_letters.redrive)
buried.command(
    "discard",
    epilog=examples(
        "holdfast dead-letters discard 3f2a9c0b1d4e5f60 --reason 'nobody wants them'",
        "holdfast dead-letters discard --all --until 90d --reason 'too old'",
    ),
)(dead_letters.discard)

bulk = typer.Typer(help="What is done to many jobs: start it, look how far it is, cancel it.", no_args_is_help=True)
bulk.command(
    "start",
    epilog=examples(
        "holdfast operations start cancel --kind import --tag spring --reason 'wrong file'",
        "holdfast operations start redrive --queue mail --rate 50 --wait",
    ),
)(operations.start)
bulk.command("list", epilog=examples("holdfast operations list --running"))(operations.list_operations)
bulk.command("show", epilog=examples("holdfast operations show 01a1de74-eb8c-70f1-843b-cac5f6817387"))(operations.show)
bulk.command("cancel", epilog=examples("holdfast operations cancel ID --reason 'too early'"))(operations.cancel)
bulk.command("wait", epilog=examples("holdfast operations wait ID --timeout 10m"))(operations.wait)
