"""The tree of commands, and the one guard around all of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import holdfast
from holdfast.cli import (
    agents,
    approvals,
    audit,
    connectors,
    decide,
    dev,
    endpoints,
    enqueue,
    events,
    executors,
    health,
    jobs,
    keys,
    limits,
    migrate,
    operate,
    plans,
    queues,
    reservations,
    resolving,
    retention,
    rules,
    send_event,
    serve,
    subscriptions,
    switches,
    tenants,
    tick,
    tokens,
    top,
    usage,
    why,
    worker,
    workflows,
)
from holdfast.cli.bench import command as bench
from holdfast.cli.demo import command as demo
from holdfast.cli.failures import USAGE, guarded, show
from holdfast.cli.options import examples


class Guarded(TyperGroup):
    """Every way of calling the tree, the tests' included, gets its errors and exit codes from ``failures``."""

    def main(  # type: ignore[override]  # the rest of its parameters are passed on as they come
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        own = given[: given.index("--")] if "--" in given else given
        as_json = "--json" in own
        code = _unreadable(given, as_json) or guarded(
            lambda: super(Guarded, self).main(given, standalone_mode=False, **extra), as_json=as_json
        )
        if standalone_mode:
            sys.exit(code)
        return code


def _unreadable(given: list[str], as_json: bool) -> int:
    """Arguments that are not text in this locale would fail later, and less clearly."""
    for number, argument in enumerate(given, 1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            show("usage", f"argument {number} is not valid UTF-8", None, as_json)
            return USAGE
    return 0


app = typer.Typer(
    cls=Guarded,
    name="holdfast",
    help="Durable jobs on the database you already have: SQLite or PostgreSQL.",
    epilog=examples(
        "holdfast demo",
        "holdfast worker shop.jobs:app",
        "holdfast jobs list --state dead_letter --url sqlite:///jobs.db",
    ),
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


app.command(
    "migrate",
    epilog=examples(
        "holdfast migrate --url postgresql://app@db/app",
        "holdfast migrate --check || echo pending",
        "holdfast migrate --sql --url postgresql:// > holdfast.sql",
    ),
)(migrate.migrate)
app.command(
    "worker",
    epilog=examples(
        "holdfast worker shop.jobs:app --queues mail:3,default --concurrency 32",
        "holdfast worker shop.jobs:app --processes 4",
        "holdfast worker shop.jobs:app --burst --json",
        "holdfast worker shop.jobs:app --reload",
    ),
)(worker.worker)
app.command(
    "serve",
    epilog=examples(
        "holdfast serve shop.jobs:app",
        "holdfast serve --url postgresql://app@db/app --host 0.0.0.0 --port 8080",
        "holdfast serve shop.jobs:app --root-path /jobs --trust-proxy 10.0.0.7",
    ),
)(serve.serve)
app.command("dev", epilog=examples("holdfast dev shop.jobs:app", "holdfast dev examples/dev_shop.py --port 9000"))(
    dev.dev
)
app.command(
    "tick",
    epilog=examples(
        "holdfast tick shop.jobs:app --limit 50 --timeout 50s",
        "holdfast tick shop.jobs:app --json",
    ),
)(tick.tick)
app.command(
    "enqueue",
    epilog=examples(
        """holdfast enqueue send_receipt '{"to": "a@b.c"}' --delay 5m""",
        "holdfast enqueue report @report.json --key report-2027-01 --app shop.jobs:app",
    ),
)(enqueue.enqueue)
app.command(
    "send-event",
    epilog=examples(
        "holdfast send-event payment.settled invoice=7 amount=12.50",
        """holdfast send-event payment.settled '{"invoice": 7}' --key payment-7""",
        "holdfast send-event reviewed @review.json --job ID",
    ),
)(send_event.send_event)
app.command("why", epilog=examples("holdfast why 01a1de74-eb8c-70f1-843b-cac5f6817387", "holdfast why ID --json"))(
    why.why
)
app.command(
    "top", epilog=examples("holdfast top --all-tenants", "holdfast top --interval 500ms", "holdfast top --json")
)(top.top)
app.command("health", epilog=examples("holdfast health --all-tenants"))(health.health)
app.command(
    "pause",
    epilog=examples(
        "holdfast pause --queue mail --reason 'SMTP is down' --until 1h",
        "holdfast pause --kind pay --tenant acme --reason 'wrong sums' --refuse-enqueue",
        "holdfast pause --all --reason 'the database is being moved'",
    ),
)(switches.pause)
app.command("resume", epilog=examples("holdfast resume --queue mail", "holdfast resume --all"))(switches.resume)
app.command("switches", epilog=examples("holdfast switches --all-tenants"))(switches.switches)
app.command("doctor", epilog=examples("holdfast doctor --strict"))(health.doctor)
app.command(
    "events",
    epilog=examples("holdfast events --follow", "holdfast events --consumer billing --json --limit 500"),
)(events.events)
app.command(
    "bench",
    epilog=examples("holdfast bench --url sqlite:///scratch.db", "holdfast bench --url postgresql://app@db/app --json"),
)(bench.bench)
app.command("demo", epilog=examples("holdfast demo", "holdfast demo --json", "holdfast demo --keep"))(demo.demo)

keyed = typer.Typer(help="Who may ask over HTTP: issue, list and revoke API tokens.", no_args_is_help=True)
app.add_typer(keyed, name="tokens")
keyed.command(
    "issue",
    epilog=examples(
        "holdfast tokens issue ci --role producer --expires 90d",
        "holdfast tokens issue ada --role operator --role approver --tenant acme",
        "holdfast tokens issue ops --role admin --all-tenants",
    ),
)(tokens.issue)
keyed.command("list", epilog=examples("holdfast tokens list --all-tenants"))(tokens.list_tokens)
keyed.command("revoke", epilog=examples("holdfast tokens revoke 01a1de74-eb8c-70f1-843b-cac5f6817387"))(tokens.revoke)

looking = typer.Typer(help="Look at jobs, and put them right.", no_args_is_help=True)
app.add_typer(looking, name="jobs")
looking.command(
    "list",
    epilog=examples("holdfast jobs list --state dead_letter --since 1d", "holdfast jobs list --json --limit 1000"),
)(jobs.list_jobs)
looking.command("show", epilog=examples("holdfast jobs show 01a1de74-eb8c-70f1-843b-cac5f6817387"))(jobs.show)
looking.command("history")(jobs.history)
looking.command("cancel", epilog=examples("holdfast jobs cancel ID1 ID2 --reason 'wrong month'"))(operate.cancel)
looking.command(
    "redrive",
    epilog=examples(
        "holdfast jobs redrive ID",
        "holdfast jobs redrive ID1 ID2 --max-attempts 10",
        "holdfast jobs redrive ID --from-step 3 --reason 'the address was wrong'",
        "holdfast jobs redrive ID --from-step charge",
        """holdfast jobs redrive ID --payload '{"order": 8}' --reason 'it was the number'""",
    ),
)(operate.redrive)
looking.command(
    "reschedule",
    epilog=examples(
        "holdfast jobs reschedule ID",
        "holdfast jobs reschedule ID1 ID2 --in 10m --reason 'the service is back at noon'",
        "holdfast jobs reschedule ID --at 2027-01-31T09:00:00Z --max-attempts 10",
    ),
)(operate.reschedule)
looking.command(
    "move",
    epilog=examples(
        "holdfast jobs move ID --first",
        "holdfast jobs move ID --before OTHER --reason 'the auditors are here'",
        "holdfast jobs move ID --priority 10",
    ),
)(operate.move)
looking.command("discard", epilog=examples("holdfast jobs discard ID --reason 'customer is gone'"))(operate.discard)

app.add_typer(resolving.buried, name="dead-letters")
app.add_typer(resolving.bulk, name="operations")

asked = typer.Typer(help="What waits for people: look, and decide.", no_args_is_help=True)
app.add_typer(asked, name="approvals")
asked.command(
    "list",
    epilog=examples(
        "holdfast approvals list --approver ada@example.com",
        "holdfast approvals list --name big-payment --state all --json",
    ),
)(approvals.list_gates)
asked.command("show", epilog=examples("holdfast approvals show 01a1de74-eb8c-70f1-843b-cac5f6817387"))(approvals.show)
asked.command(
    "approve",
    epilog=examples(
        "holdfast approvals approve ID --comment 'fine with me'",
        "holdfast approvals approve ID --by ada@example.com --field limit=500 --field 'reason=spring campaign'",
        "holdfast approvals approve ID --data @answer.json",
        "holdfast approvals approve - < token.txt",
    ),
)(decide.approve)
asked.command(
    "deny",
    epilog=examples(
        "holdfast approvals deny ID --comment 'too much'", "pass show approvals/token | holdfast approvals deny -"
    ),
)(decide.deny)
asked.command(
    "token",
    epilog=examples(
        "holdfast approvals token ID --for ada@example.com --expires-in 2d", "holdfast approvals token ID > token.txt"
    ),
)(decide.token)
registry = typer.Typer(help="Register agents, look at them, disable and enable them.", no_args_is_help=True)
app.add_typer(registry, name="agents")
registry.command("list", epilog=examples("holdfast agents list --disabled"))(agents.list_agents)
registry.command("show", epilog=examples("holdfast agents show planner"))(agents.show)
registry.command(
    "register",
    epilog=examples(
        "holdfast agents register planner --kind plan --max-attempts 3 --backoff gentle",
        "holdfast agents register mailer --name 'The mailer' --max-payload 64KB --max-wait 1h",
    ),
)(agents.register)
registry.command("disable", epilog=examples("holdfast agents disable planner --reason 'it loops'"))(agents.disable)
registry.command("enable", epilog=examples("holdfast agents enable planner"))(agents.enable)
app.add_typer(plans.timed, name="schedules")
app.add_typer(plans.kept, name="templates")

flows = typer.Typer(help="Look at workflows, cancel them, resume them.", no_args_is_help=True)
app.add_typer(flows, name="workflows")
flows.command(
    "list", epilog=examples("holdfast workflows list --active", "holdfast workflows list --kind publish --json")
)(workflows.list_workflows)
flows.command("show", epilog=examples("holdfast workflows show 01a1de74-eb8c-70f1-843b-cac5f6817387"))(workflows.show)
flows.command("graph", epilog=examples("holdfast workflows graph ID", "holdfast workflows graph ID --json"))(
    workflows.graph
)
flows.command("cancel", epilog=examples("holdfast workflows cancel ID --reason 'wrong month'"))(workflows.cancel)
flows.command("resume", epilog=examples("holdfast workflows resume ID --reason 'the disk is back'"))(workflows.resume)

limiting = typer.Typer(help="Limit how many jobs run at once, and how many are begun in a time.", no_args_is_help=True)
app.add_typer(limiting, name="limits")
limiting.command("list", epilog=examples("holdfast limits list"))(limits.list_limits)
limiting.command("show", epilog=examples("holdfast limits show --queue mail"))(limits.show)
limiting.command(
    "set",
    epilog=examples(
        "holdfast limits set --queue mail --concurrency 5",
        "holdfast limits set --kind call --rate 100/m --burst 10",
        "holdfast limits set --key '*' --concurrency 1",
        "holdfast limits set --all-tenants --of-tenant '*' --concurrency 20",
    ),
)(limits.set_limit)
limiting.command("remove", epilog=examples("holdfast limits remove --queue mail"))(limits.remove)

reserving = typer.Typer(help="Look at what is reserved, and end it.", no_args_is_help=True)
app.add_typer(reserving, name="reservations")
reserving.command("list", epilog=examples("holdfast reservations list --ended"))(reservations.list_reservations)
reserving.command(
    "release", epilog=examples("holdfast reservations release 01a1de74-eb8c-70f1-843b-cac5f6817387 --reason 'it hangs'")
)(reservations.release)

keeping = typer.Typer(help="How queues are kept: whether waiting counts in them.", no_args_is_help=True)
app.add_typer(keeping, name="queues")
keeping.command("list", epilog=examples("holdfast queues list"))(queues.list_queues)
keeping.command(
    "age", epilog=examples("holdfast queues age reports --every 10m --most 20", "holdfast queues age reports --never")
)(queues.age)

following = typer.Typer(help="Have events make jobs: subscriptions.", no_args_is_help=True)
app.add_typer(following, name="subscriptions")
following.command("list", epilog=examples("holdfast subscriptions list --all-tenants"))(
    subscriptions.list_subscriptions
)
following.command("show", epilog=examples("holdfast subscriptions show audit"))(subscriptions.show)
following.command(
    "create",
    epilog=examples(
        "holdfast subscriptions create index --on job.succeeded --kind 'import*' --makes reindex",
        """holdfast subscriptions create ship --on order.paid --match '{"country": "fr"}' --makes ship \\""",
        """  --payload '{"order": "$.data.order"}' --from beginning""",
    ),
)(subscriptions.create)
following.command("pause", epilog=examples("holdfast subscriptions pause audit --reason 'too many'"))(
    subscriptions.pause
)
following.command("resume", epilog=examples("holdfast subscriptions resume audit --skip"))(subscriptions.resume)
following.command("delete")(subscriptions.delete)

reading = typer.Typer(help="Who reads events with a place that is kept for it.", no_args_is_help=True)
app.add_typer(reading, name="consumers")
reading.command("list", epilog=examples("holdfast consumers list"))(subscriptions.list_consumers)
reading.command("reset", epilog=examples("holdfast consumers reset billing --to now"))(subscriptions.reset_consumer)
reading.command("remove")(subscriptions.remove_consumer)

telling = typer.Typer(help="Tell others of events: webhooks, and what became of them.", no_args_is_help=True)
app.add_typer(telling, name="endpoints")
telling.command("list", epilog=examples("holdfast endpoints list"))(endpoints.list_endpoints)
telling.command("show", epilog=examples("holdfast endpoints show ops"))(endpoints.show)
telling.command(
    "add",
    epilog=examples(
        "holdfast endpoints add ops https://ops.example.com/hooks --secret OPS_HOOK",
        "holdfast endpoints add shop https://shop.example.com/hooks --secret SHOP_HOOK \\",
        "  --on job.succeeded --kind 'order*'",
    ),
)(endpoints.add)
telling.command("change", epilog=examples("holdfast endpoints change ops --on job.dead_letter --on job.crashed"))(
    endpoints.change
)
telling.command(
    "rotate",
    epilog=examples("holdfast endpoints rotate ops OPS_HOOK_2", "holdfast endpoints rotate ops OPS_HOOK_2 --keep 0"),
)(endpoints.rotate)
telling.command("disable", epilog=examples("holdfast endpoints disable ops --reason 'it is moved'"))(endpoints.disable)
telling.command("enable", epilog=examples("holdfast endpoints enable ops --skip"))(endpoints.enable)
telling.command("remove")(endpoints.remove)
telling.command("test", epilog=examples("holdfast endpoints test ops"))(endpoints.ping)
telling.command("deliveries", epilog=examples("holdfast endpoints deliveries ops --failed"))(endpoints.deliveries)
telling.command("resend", epilog=examples("holdfast endpoints resend ops msg_01a1de74eb8c70f1843bcac5f6817387"))(
    endpoints.resend
)
telling.command("secret")(endpoints.secret)

reaching = typer.Typer(help="What a tenant's connectors may reach, with secrets by name.", no_args_is_help=True)
app.add_typer(reaching, name="connectors")
reaching.command("list", epilog=examples("holdfast connectors list --all-tenants"))(connectors.list_connectors)
reaching.command("show", epilog=examples("holdfast connectors show http.request"))(connectors.show)
reaching.command(
    "set",
    epilog=examples(
        "holdfast connectors set http.request --host api.example.com --secret RATES_TOKEN",
        "holdfast connectors set http.request --secret-header Authorization=RATES_TOKEN --prefix 'Bearer '",
        "holdfast connectors set http.request --disabled --tenant acme",
    ),
)(connectors.set_connector)
reaching.command("remove", epilog=examples("holdfast connectors remove http.request"))(connectors.remove)

executing = typer.Typer(help="Who may execute: a list of labels.", no_args_is_help=True)
app.add_typer(executing, name="executors")
executing.command("list")(executors.list_executors)
executing.command("add", epilog=examples("holdfast executors add gpu", "holdfast executors add planner --generator"))(
    executors.add
)
executing.command("remove")(executors.remove)

ruling = typer.Typer(
    help="Rules for payloads: what may be in one, who sees it, how large it may be.", no_args_is_help=True
)
app.add_typer(ruling, name="rules")
ruling.command("list", epilog=examples("holdfast rules list --all-tenants"))(rules.list_rules)
ruling.command("show", epilog=examples("holdfast rules show import", "holdfast rules show import --all-tenants"))(
    rules.show
)
ruling.command(
    "set",
    epilog=examples(
        "holdfast rules set import --signal-only --max-bytes 16KB",
        "holdfast rules set --tenant acme --signal-only --forbid iban --forbid password",
        "holdfast rules set patient.update --restricted --all-tenants",
        "holdfast rules set report --max-bytes 64KB --max-result-bytes 64KB --store",
    ),
)(rules.set_rule)
ruling.command("delete", epilog=examples("holdfast rules delete import"))(rules.delete)
ruling.command("check", epilog=examples("""holdfast rules check import '{"row": 7}'"""))(rules.check)

sealing = typer.Typer(help="The keys that payloads and results are sealed with.", no_args_is_help=True)
app.add_typer(sealing, name="keys")
sealing.command("list")(keys.list_keys)
sealing.command("generate", epilog=examples("holdfast keys generate --name 2027-01"))(keys.generate)
sealing.command("rotate", epilog=examples("holdfast keys rotate --all-tenants"))(keys.rotate_keys)

sharing = typer.Typer(help="Tenants: what they are held to, and how they share queues.", no_args_is_help=True)
app.add_typer(sharing, name="tenants")
sharing.command("list", epilog=examples("holdfast tenants list"))(tenants.list_tenants)
sharing.command("show", epilog=examples("holdfast tenants show acme"))(tenants.show)
sharing.command(
    "set",
    epilog=examples(
        "holdfast tenants set acme --max-pending 100000 --max-running 20 --rate 50/s",
        "holdfast tenants set acme --weight 3",
        "holdfast tenants set acme --max-running none",
    ),
)(tenants.set_tenant)
sharing.command("delete", epilog=examples("holdfast tenants delete acme"))(tenants.delete)
sharing.command("fair", epilog=examples("holdfast tenants fair on", "holdfast tenants fair off"))(tenants.fair)
sharing.command("registered-only", epilog=examples("holdfast tenants registered-only on"))(tenants.registered_only)
retaining = typer.Typer(help="For how long finished jobs are kept.", no_args_is_help=True)
app.add_typer(retaining, name="retention")
retaining.command("list", epilog=examples("holdfast retention list --all-tenants"))(retention.list_policies)
retaining.command(
    "set",
    epilog=examples(
        "holdfast retention set --clean-after 30d --purge-after 52w",
        "holdfast retention set --kind heartbeat --purge-after 1d",
        "holdfast retention set --kind invoice --for-ever",
        "holdfast retention set --state dead_letter --purge-after 26w --all-tenants",
    ),
)(retention.set_policy)
retaining.command("delete", epilog=examples("holdfast retention delete --kind heartbeat"))(retention.delete)
retaining.command("preview", epilog=examples("holdfast retention preview"))(retention.preview)
retaining.command("run", epilog=examples("holdfast retention run --all-tenants --limit 1000000"))(retention.run)
retaining.command("orphans", epilog=examples("holdfast retention orphans --all-tenants"))(retention.orphans)
app.command(
    "usage",
    epilog=examples(
        "holdfast usage --by day --since 30d",
        "holdfast usage --by tenant,kind --since 2027-01-01 --until 2027-01-31 --all-tenants --csv",
    ),
)(usage.usage)

auditing = typer.Typer(help="The sealed ledger: check it, show it, take it elsewhere.", no_args_is_help=True)
app.add_typer(auditing, name="audit")
auditing.command(
    "verify",
    epilog=examples(
        "holdfast audit verify",
        "holdfast audit verify --from 1200 --anchor '$(cat anchor.txt)'",
        "holdfast audit verify --file trail.jsonl",
    ),
)(audit.verify)
auditing.command("show", epilog=examples("holdfast audit show 01a1de74-eb8c-70f1-843b-cac5f6817387"))(audit.show)
auditing.command("actions", epilog=examples("holdfast audit actions --subject limit --since 7d"))(audit.actions)
auditing.command("export", epilog=examples("holdfast audit export --since 30d --to trail.jsonl"))(audit.export)
auditing.command("anchor", epilog=examples("holdfast audit anchor >> anchors.txt"))(audit.anchor)
auditing.command("seal")(audit.seal)
