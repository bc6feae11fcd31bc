"""The tree of commands. One guard around all of them prints errors and sets exit codes."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import holdfast
from holdfast.cli import bench, demo, mcp, migrate, probes, run_replay, serve, top, worker
from holdfast.cli.failures import USAGE, guarded, show
from holdfast.cli.options import examples
from holdfast.cli.tree import Commands
from holdfast.features.agents import commands as agents
from holdfast.features.approvals import commands as approvals
from holdfast.features.archives import commands as archives
from holdfast.features.audit import commands as audit
from holdfast.features.connectors import commands as connectors
from holdfast.features.dead_letters import commands as dead_letters
from holdfast.features.events import commands as events
from holdfast.features.health import commands as health
from holdfast.features.jobs import commands as jobs
from holdfast.features.jobs import operator_commands
from holdfast.features.limits import commands as limits
from holdfast.features.payloads import commands as payloads
from holdfast.features.registry import commands as registry
from holdfast.features.restores import commands as restores
from holdfast.features.retention import commands as retention
from holdfast.features.schedules import commands as schedules
from holdfast.features.tenants import commands as tenants
from holdfast.features.tokens import commands as tokens
from holdfast.features.versions import commands as versions
from holdfast.features.webhooks import commands as webhooks
from holdfast.features.workers import commands as workers
from holdfast.features.workflows import commands as workflows


class Guarded(TyperGroup):
    """Prints errors and sets exit codes with ``failures``, for every caller of the tree, including tests."""

    def main(  # type: ignore[override]  # other parameters are passed through
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        arguments = list(sys.argv[1:] if args is None else args)
        own = arguments[: arguments.index("--")] if "--" in arguments else arguments
        as_json = "--json" in own
        code = _check_encoding(arguments, as_json) or guarded(
            lambda: super(Guarded, self).main(arguments, standalone_mode=False, **extra), as_json=as_json
        )
        if standalone_mode:
            sys.exit(code)
        return code


def _check_encoding(arguments: list[str], as_json: bool) -> int:
    """Return an exit code if an argument is not text in this locale. It would fail later, with an unclear error."""
    for number, argument in enumerate(arguments, 1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            show("usage", f"argument {number} is not valid UTF-8", None, as_json)
            return USAGE
    return 0


app = Commands(
    "Durable jobs on the database you already have: SQLite or PostgreSQL.",
    cls=Guarded,
    name="holdfast",
    epilog=examples(
        "holdfast demo",
        "holdfast worker shop.jobs:app",
        "holdfast jobs list --state dead_letter --url sqlite:///jobs.db",
    ),
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def tree_for(arguments: Sequence[str]) -> typer.Typer:
    """Return only the part of the tree that is called, if possible: building all of it takes longer than most commands
    run."""
    part = copy.copy(app)
    part.registered_commands = [command for command in app.registered_commands if command.name in arguments[:1]]
    part.registered_groups = [group for group in app.registered_groups if group.name in arguments[:1]]
    return part if part.registered_commands or part.registered_groups else app


def _version(wanted: bool) -> None:
    if wanted:
        print(f"holdfast {holdfast.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.add(
    "migrate",
    "holdfast migrate --url postgresql://app@db/app",
    "holdfast migrate --check || echo pending",
    "holdfast migrate --sql --url postgresql:// > holdfast.sql",
    "holdfast migrate --plan",
    "holdfast migrate --to 0.1",
)(migrate.migrate)
app.add(
    "worker",
    "holdfast worker shop.jobs:app --queues mail:3,default --concurrency 32",
    "holdfast worker shop.jobs:app --processes 4",
    "holdfast worker shop.jobs:app --burst --json",
    "holdfast worker shop.jobs:app --reload",
)(worker.worker)
app.add(
    "serve",
    "holdfast serve shop.jobs:app",
    "holdfast serve --url postgresql://app@db/app --host 0.0.0.0 --port 8080",
    "holdfast serve shop.jobs:app --root-path /jobs --trust-proxy 10.0.0.7",
)(serve.serve)
app.add(
    "mcp",
    "holdfast mcp --url sqlite:///jobs.db",
    "holdfast mcp --url postgresql://app@db/app --http 127.0.0.1:8001 --no-auth",
    brief="Serve assistants over the Model Context Protocol.",
)(mcp.mcp)
app.add(
    "dev",
    "holdfast dev shop.jobs:app",
    "holdfast dev examples/dev_shop.py --port 9000",
    brief="Run dashboard, API, worker and scheduler for development.",
)(worker.dev)
app.add(
    "tick",
    "holdfast tick shop.jobs:app --limit 50 --timeout 50s",
    "holdfast tick shop.jobs:app --json",
    brief="Run at most N jobs in this process, without a worker.",
)(worker.tick)
app.add(
    "enqueue",
    """holdfast enqueue send_receipt '{"to": "a@b.c"}' --delay 5m""",
    "holdfast enqueue report @report.json --key report-2027-01 --app shop.jobs:app",
)(jobs.enqueue)
app.add(
    "send-event",
    "holdfast send-event payment.settled invoice=7 amount=12.50",
    """holdfast send-event payment.settled '{"invoice": 7}' --key payment-7""",
    "holdfast send-event reviewed @review.json --job ID",
)(events.send_event)
app.add(
    "why",
    "holdfast why 01a1de74-eb8c-70f1-843b-cac5f6817387",
    "holdfast why ID --json",
    brief="Explain why a job is not running.",
)(jobs.why)
app.add(
    "top",
    "holdfast top --all-tenants",
    "holdfast top --interval 500ms",
    "holdfast top --json",
    brief="Watch queues, workers, jobs and failures live.",
)(top.top)
app.add("health", "holdfast health --all-tenants")(health.health)
app.add(
    "pause",
    "holdfast pause --queue mail --reason 'SMTP is down' --until 1h",
    "holdfast pause --kind pay --tenant acme --reason 'wrong sums' --refuse-enqueue",
    "holdfast pause --all --reason 'the database is being moved'",
)(limits.pause)
app.add(
    "resume",
    "holdfast resume --queue mail",
    "holdfast resume --all",
)(limits.resume)
app.add("pauses", "holdfast pauses --all-tenants", brief="List what is paused.")(limits.pauses)
app.add("roles", "holdfast roles", brief="List the database roles, what each may do, and who has them.")(migrate.roles)
app.add(
    "probe",
    "holdfast probe live --port 9464",
    "holdfast probe ready --port 9464 --processes 4",
    brief="Check whether a worker on this machine is live, or ready.",
)(probes.probe)
app.add(
    "restore-check",
    "holdfast restore-check",
    "holdfast restore-check --adopt --json",
    brief="Show what is different after a restore, and adopt the copy.",
)(restores.restore_check)
app.add("doctor", "holdfast doctor --strict", brief="Check the database for problems.")(health.doctor)
app.add(
    "uninstall",
    "holdfast uninstall",
    "holdfast uninstall --yes --roles",
    brief="Remove Holdfast from a database.",
)(migrate.uninstall)
app.add(
    "events",
    "holdfast events --follow",
    "holdfast events --consumer billing --json --limit 500",
)(events.events)
app.add(
    "replay",
    "holdfast replay shop.jobs:app --since 7d",
    "holdfast replay shop.jobs:app --file histories.jsonl",
    "holdfast replay shop.jobs:app 01a1de74-eb8c-70f1-843b-cac5f6817387 --debug",
    brief="Run the current code against recorded jobs.",
)(run_replay.replay)
app.add(
    "bench",
    "holdfast bench --url sqlite:///scratch.db",
    "holdfast bench --url postgresql://app@db/app --json",
    brief="Measure your own database.",
)(bench.bench)
app.add(
    "demo",
    "holdfast demo",
    "holdfast demo --json",
    "holdfast demo --keep",
    brief="Run jobs, kill a worker, check that nothing was lost.",
)(demo.demo)
app.add(
    "usage",
    "holdfast usage --by day --since 30d",
    "holdfast usage --by tenant,kind --since 2027-01-01 --until 2027-01-31 --all-tenants --csv",
    brief="Show usage: jobs, run time, wait time and cost.",
)(retention.usage)

GROUPS = (
    ("tokens", tokens.commands),
    ("jobs", jobs.commands),
    ("dead-letters", dead_letters.commands),
    ("operations", dead_letters.operation_commands),
    ("approvals", approvals.commands),
    ("agents", agents.commands),
    ("schedules", schedules.commands),
    ("templates", schedules.template_commands),
    ("workflows", workflows.commands),
    ("limits", limits.commands),
    ("reservations", limits.reservation_commands),
    ("queues", limits.queue_commands),
    ("workers", workers.commands),
    ("versions", versions.commands),
    ("subscriptions", events.commands),
    ("consumers", events.consumer_commands),
    ("webhooks", webhooks.commands),
    ("connectors", connectors.commands),
    ("executors", agents.executor_commands),
    ("kinds", registry.kind_commands),
    ("event-types", registry.event_type_commands),
    ("policies", registry.policy_commands),
    ("payload-rules", payloads.commands),
    ("keys", payloads.key_commands),
    ("tenants", tenants.commands),
    ("retention", retention.commands),
    ("archives", archives.commands),
    ("audit", audit.commands),
)
# Importing this module adds commands to a group of another module.
ADDED = (operator_commands,)

for name, group in GROUPS:
    app.add_typer(group, name=name)
