"""``holdfast workflows list | show | graph | cancel | resume``: jobs that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.text import Text

from holdfast.cli import options
from holdfast.cli.output import STYLES, Cell, age, console, emit, facts, heading, line, moment, say, table, write
from holdfast.cli.session import AnyTenant
from holdfast.cli.tree import Commands
from holdfast.features.workflows.model import CallbackRecord, Edge, Graph, Node, Workflow
from holdfast.features.workflows.operations import Workflows, accepted

commands = Commands("List, cancel and resume workflows.")

WorkflowId = Annotated[str, typer.Argument(metavar="ID", help="The workflow's id.")]
MOST = 1000
SHOWN = 200


@commands.add(
    "list",
    "holdfast workflows list --active",
    "holdfast workflows list --kind publish --json",
)
def list_workflows(
    session: AnyTenant,
    kind: Annotated[str | None, typer.Option("--kind", metavar="NAME", help="Only jobs of this kind.")] = None,
    over: Annotated[
        bool | None, typer.Option("--over/--active", help="Only finished workflows, or only unfinished ones.")
    ] = None,
    limit: options.Limit = 50,
    after: options.After = None,
) -> None:
    """List workflows, newest first."""
    with session.connect() as client:
        now = client.run(client.store.clock.now())
        found = Workflows(client).list(kind=kind, over=over, before=after, limit=min(limit + 1, MOST))
    page, more = found[:limit], len(found) > limit
    session.print_list(
        page,
        {
            "id": lambda workflow: workflow.id,
            **session.tenants,
            "kind": lambda workflow: line(workflow.kind),
            "status": lambda workflow: _styled(workflow.status),
            "jobs": lambda workflow: f"{workflow.total:,}",
            "left": lambda workflow: f"{workflow.open:,}",
            "failed": lambda workflow: f"{workflow.failed + workflow.dead:,}",
            "age": lambda workflow: age(workflow.created_at, now),
        },
        none="There are no such workflows.",
        keep=("id", "status", "jobs", "left", "failed", "age"),
        described=lambda workflow: _document(workflow),
    )
    if more:
        say(f"There are more: --after {page[-1].id}")


@commands.add("show", "holdfast workflows show 01a1de74-eb8c-70f1-843b-cac5f6817387")
def show(session: AnyTenant, workflow: WorkflowId) -> None:
    """Show a workflow: status, counts, and its jobs with their dependencies."""
    with session.connect() as client:
        found = Workflows(client).graph(workflow)
    if session.as_json:
        emit(_graph_document(found))
        return
    _print_facts(found)
    heading("Jobs")
    _print_nodes(found)


@commands.add(
    "graph",
    "holdfast workflows graph ID",
    "holdfast workflows graph ID --json",
)
def graph(session: AnyTenant, workflow: WorkflowId) -> None:
    """Print the dependency graph: one job per line, followed by the jobs it waits for."""
    with session.connect() as client:
        found = Workflows(client).graph(workflow)
    if session.as_json:
        emit(_graph_document(found))
        return
    names = {node.job_id: line(node.label) for node in found.nodes}
    before = _parents(found)
    for node in found.nodes:
        parents = [
            names.get(edge.parent, edge.parent) + ("" if edge.on_failure == "skip" else f" [{edge.on_failure}]")
            for edge in before.get(node.job_id, ())
        ]
        arrow = "  <-  " if parents else ""
        _write_wrapped(Text.assemble(names[node.job_id], "  ", _styled(_state(node)), arrow), parents)


@commands.add("cancel", "holdfast workflows cancel ID --reason 'wrong month'")
def cancel(session: AnyTenant, workflow: WorkflowId, reason: options.Reason = None) -> None:
    """Cancel all unfinished jobs of a workflow, including running ones."""
    with session.connect() as client:
        swept = Workflows(client).cancel(workflow, reason=reason)
    if session.as_json:
        emit(accepted(swept))
    else:
        write(f"{swept.jobs:,} jobs cancelled")


@commands.add("resume", "holdfast workflows resume ID --reason 'the disk is back'")
def resume(session: AnyTenant, workflow: WorkflowId, reason: options.Reason = None) -> None:
    """Resume a workflow by redriving its dead letters. Dependent jobs continue once they succeed."""
    with session.connect() as client:
        swept = Workflows(client).resume(workflow, reason=reason)
    if session.as_json:
        emit(accepted(swept))
    else:
        write(f"{swept.jobs:,} jobs redriven")


def _write_wrapped(first: Text, names: Sequence[str]) -> None:
    """The names after the first text, on as many lines as they need, none cut."""
    width, said, empty = console().width, first, True
    for place, name in enumerate(names):
        part = name + (", " if place + 1 < len(names) else "")
        if not empty and cell_len(said.plain) + cell_len(part.rstrip()) > width:
            said.rstrip()
            write(said)
            said = Text(" " * 6)
        said, empty = said.append(part), False
    write(said)


def _document(workflow: Workflow) -> dict[str, Any]:
    named = {name: getattr(workflow, name) for name in Workflow.__dataclass_fields__}
    return {"status": workflow.status, **named}


def _graph_document(found: Graph) -> dict[str, Any]:
    parts = found.parts()
    named = {"workflow": _document(found.workflow), "parts": parts, "jobs": found.nodes, "edges": found.edges}
    return named | {"callbacks": found.callbacks}


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
            *(("callback", _callback(each, found)) for each in found.callbacks),
        ]
    )


def _callback(each: CallbackRecord, found: Graph) -> str:
    names = {node.job_id: line(node.label) for node in found.nodes}
    of = "" if each.step_id is None else f" of {names.get(each.step_id, each.step_id)}"
    state = f"job {each.job_id}" if each.fired_at else "due" if each.due_at else "not fired"
    return f"on {each.fires}{of}: {state}"


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
