"""``holdfast workflows list | show | graph | cancel | resume``: jobs that belong together."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from holdfast.cli import options
from holdfast.cli.output import STYLES, Cell, emit, facts, heading, line, say, table, write
from holdfast.cli.session import connect, scope
from holdfast.cli.words import moment, span
from holdfast.domain.job import EVERY_TENANT
from holdfast.domain.workflows import Edge, Graph, Node, Workflow
from holdfast.features.workflows import Workflows, accepted

WorkflowId = Annotated[str, typer.Argument(metavar="ID", help="The workflow's id.")]
MOST = 1000
SHOWN = 200


def list_workflows(
    kind: Annotated[str | None, typer.Option("--kind", metavar="NAME", help="Of this kind.")] = None,
    over: Annotated[bool | None, typer.Option("--over/--active", help="Only those that are over, or are not.")] = None,
    limit: options.Limit = 50,
    after: Annotated[
        str | None, typer.Option("--after", metavar="CURSOR", help="The next page: the id of the last one seen.")
    ] = None,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """List workflows, newest first."""
    whose = scope(tenant, all_tenants)
    with connect(url, whose, schema) as client:
        now = client.run(client.verbs.now())
        found = Workflows(client).list(kind=kind, over=over, before=after, limit=min(limit + 1, MOST))
    page, more = found[:limit], len(found) > limit
    if as_json:
        emit([_document(workflow) for workflow in page])
    elif not page:
        say("There are no such workflows.")
    else:
        with_tenant = whose == EVERY_TENANT
        headers = ["id", *(["tenant"] if with_tenant else []), "kind", "status", "jobs", "left", "failed", "age"]
        rows: list[list[Cell]] = [
            [
                workflow.id,
                *([line(workflow.tenant)] if with_tenant else []),
                line(workflow.kind),
                _styled(workflow.status),
                f"{workflow.total:,}",
                f"{workflow.open:,}",
                f"{workflow.failed + workflow.dead:,}",
                span(max(0.0, (now - workflow.created_at).total_seconds())),
            ]
            for workflow in page
        ]
        table(headers, rows, keep=("id", "status", "jobs", "left", "failed", "age"))
    if more:
        say(f"There are more: --after {page[-1].id}")


def show(
    workflow: WorkflowId,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Show a workflow: its status, its counts, and its jobs with what each waits for."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        found = Workflows(client).show(workflow)
    if as_json:
        emit(_graph_document(found))
        return
    _print_facts(found)
    heading("Jobs")
    _print_nodes(found)


def graph(
    workflow: WorkflowId,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Print who waits for whom: one job a line, after its arrow those it is after."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        found = Workflows(client).show(workflow)
    if as_json:
        emit(_graph_document(found))
        return
    names = {node.job_id: line(node.label) for node in found.nodes}
    before = _parents(found)
    for node in found.nodes:
        parents = [
            names.get(edge.parent, edge.parent) + ("" if edge.on_failure == "skip" else f" [{edge.on_failure}]")
            for edge in before.get(node.job_id, ())
        ]
        arrow = f"  <-  {', '.join(parents)}" if parents else ""
        write(Text.assemble(names[node.job_id], "  ", _styled(_state(node)), arrow))


def cancel(
    workflow: WorkflowId,
    reason: options.Reason = None,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Cancel all jobs of a workflow that have not ended, the running ones as well."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        swept = Workflows(client).cancel(workflow, reason=reason)
    if as_json:
        emit(accepted(swept))
    else:
        write(f"{swept.jobs:,} jobs cancelled")


def resume(
    workflow: WorkflowId,
    reason: options.Reason = None,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Redrive the dead letters of a workflow; what was held back behind them goes on when they have succeeded."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        swept = Workflows(client).resume(workflow, reason=reason)
    if as_json:
        emit(accepted(swept))
    else:
        write(f"{swept.jobs:,} jobs redriven")


def _document(workflow: Workflow) -> dict[str, Any]:
    named = {name: getattr(workflow, name) for name in Workflow.__dataclass_fields__}
    return {"status": workflow.status, **named}


def _graph_document(found: Graph) -> dict[str, Any]:
    parts = found.parts()
    return {"workflow": _document(found.workflow), "parts": parts, "jobs": found.nodes, "edges": found.edges}


def _styled(word: str) -> Text:
    style = {"partially_failed": "red", "active": "cyan", "skipped": "dim"}.get(word) or STYLES.get(word, "")
    return Text(word, style=style)


def _state(node: Node) -> str:
    return "skipped" if node.standing == "skipped" else node.state.value


def _parents(found: Graph) -> dict[str, list[Edge]]:
    before: dict[str, list[Edge]] = {}
    for edge in found.edges:
        before.setdefault(edge.child, []).append(edge)
    return before


def _print_facts(found: Graph) -> None:
    workflow, counts = found.workflow, found.workflow.counts
    told = [(count, word) for word in counts.__dataclass_fields__ if (count := getattr(counts, word))]
    write(f"{workflow.kind}  {workflow.id}")
    facts(
        [
            ("status", _styled(workflow.status)),
            ("jobs", f"{workflow.total:,}: " + ", ".join(f"{count:,} {word}" for count, word in told)),
            ("stopped", "yes: a failure holds back what waits" if workflow.stopped else None),
            ("on failure", workflow.on_failure),
            ("tenant", workflow.tenant),
            ("generator", workflow.generator),
            ("started", f"{moment(workflow.created_at)} by {workflow.enqueued_by} ({workflow.source_system})"),
            ("finished", None if workflow.finished_at is None else moment(workflow.finished_at)),
            ("cancelled", None if workflow.cancelled_at is None else moment(workflow.cancelled_at)),
            ("key", workflow.key),
            ("correlation", workflow.correlation_id),
            ("parent", workflow.parent_id),
            *((f"part {name}", _styled(status)) for name, status in found.parts().items()),
        ]
    )


def _print_nodes(found: Graph) -> None:
    names = {node.job_id: line(node.label) for node in found.nodes}
    before = _parents(found)
    rows: list[list[Cell]] = [
        [
            names[node.job_id],
            node.job_id,
            _styled(_state(node)),
            str(node.attempt),
            _why(node, [names.get(edge.parent, edge.parent) for edge in before.get(node.job_id, ()) if not edge.met]),
        ]
        for node in found.nodes[:SHOWN]
    ]
    table(("name", "id", "state", "try", "why"), rows, keep=("id", "state", "try"))
    if len(found.nodes) > SHOWN:
        say(f"There are {len(found.nodes) - SHOWN:,} more jobs; --json prints them all.")


def _why(node: Node, unmet: list[str]) -> str:
    if node.error_code:
        return line(f"{node.error_code}: {node.error_message}")
    if node.standing in ("open", "skipped") and unmet:
        return line(f"{'behind' if node.standing == 'skipped' else 'waits for'} {', '.join(unmet)}")
    return "the workflow is stopped" if node.standing == "skipped" else ""
