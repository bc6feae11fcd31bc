"""``holdfast workflows list | show | graph | cancel | resume``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from holdfast.cli.derived import derive
from holdfast.cli.output import STYLES, Cell, age, console, emit, heading, line, moment, print_fields, say, table, write
from holdfast.cli.session import AnyTenant
from holdfast.cli.tree import Commands
from holdfast.features.workflows.model import CallbackRecord, Edge, Graph, Node, Swept, Workflow
from holdfast.features.workflows.operations import Workflows

commands = Commands("List, cancel and resume workflows.")

MAX_PAGE = 1000
SHOWN = 200


@derive(
    commands,
    "list",
    AnyTenant,
    Workflows.list,
    "holdfast workflows list --active",
    "holdfast workflows list --kind publish --json",
)
def list_workflows(session: AnyTenant, inputs: dict[str, Any]) -> None:
    """List workflows, newest first."""
    limit = inputs.pop("limit")
    with session.connect() as client:
        now = client.run(client.store.clock.now())
        workflows = Workflows(client).list(**inputs, limit=min(limit + 1, MAX_PAGE))
    page, more = workflows[:limit], len(workflows) > limit
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
        none="No matching workflows.",
        keep=("id", "status", "jobs", "left", "failed", "age"),
        described=Workflow.described,
    )
    if more:
        say(f"There are more: --after {page[-1].id}")


@derive(
    commands,
    "show",
    AnyTenant,
    Workflows.graph,
    "holdfast workflows show 01a1de74-eb8c-70f1-843b-cac5f6817387",
    help="Show a workflow: status, counts, and its jobs with their dependencies.",
    without=("limit",),
)
def show(session: AnyTenant, result: Graph) -> None:
    if session.as_json:
        emit(_graph_document(result))
        return
    _print_facts(result)
    heading("Jobs")
    _print_nodes(result)


@derive(
    commands,
    "graph",
    AnyTenant,
    Workflows.graph,
    "holdfast workflows graph ID",
    "holdfast workflows graph ID --json",
    help="Print the dependency graph: one job per line, followed by the jobs it waits for, or their number if they are"
    " many. Use --json for all of them.",
)
def graph(session: AnyTenant, result: Graph) -> None:
    if session.as_json:
        emit(_graph_document(result))
        return
    names = {node.job_id: line(node.label) for node in result.nodes}
    before = _parents(result)
    for node in result.nodes:
        parents = [
            names.get(edge.parent, edge.parent) + ("" if edge.on_failure == "skip" else f" [{edge.on_failure}]")
            for edge in before.get(node.job_id, ())
        ]
        if len(parents) > NAMED:
            parents = [*parents[:2], f"… {len(parents) - 3:,} more …", parents[-1]]
        arrow = "  <-  " if parents else ""
        _write_wrapped(Text.assemble(names[node.job_id], "  ", _styled(_state(node)), arrow), parents)


@derive(commands, "cancel", AnyTenant, Workflows.cancel, "holdfast workflows cancel ID --reason 'wrong month'")
def cancel(session: AnyTenant, result: Swept) -> None:
    if session.as_json:
        emit(result)
    else:
        write(f"{result.jobs:,} jobs cancelled")


@derive(commands, "resume", AnyTenant, Workflows.resume, "holdfast workflows resume ID --reason 'the disk is back'")
def resume(session: AnyTenant, result: Swept) -> None:
    if session.as_json:
        emit(result)
    else:
        write(f"{result.jobs:,} jobs redriven")


NAMED = 8
"""Jobs that one line of a graph names."""


def _write_wrapped(first: Text, names: Sequence[str]) -> None:
    """Print the first text and the names, wrapped between names."""
    width, text, empty = console().width, first, True
    for number, name in enumerate(names, 1):
        part = name + (", " if number < len(names) else "")
        if not empty and cell_len(text.plain) + cell_len(part.rstrip()) > width:
            text.rstrip()
            write(text)
            text = Text(" " * 6)
        text, empty = text.append(part), False
    write(text)


def _graph_document(graph: Graph) -> dict[str, Any]:
    return {
        "workflow": graph.workflow.described(),
        "parts": graph.parts(),
        "jobs": graph.nodes,
        "edges": graph.edges,
        "callbacks": graph.callbacks,
    }


def _styled(status: str) -> Text:
    style = {"partially_failed": "red", "active": "cyan", "skipped": "dim"}.get(status) or STYLES.get(status, "")
    return Text(status, style=style)


def _state(node: Node) -> str:
    return "skipped" if node.status == "skipped" else node.state.value


def _parents(graph: Graph) -> dict[str, list[Edge]]:
    before: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        before.setdefault(edge.child, []).append(edge)
    return before


def _print_facts(graph: Graph) -> None:
    workflow, counts = graph.workflow, graph.workflow.counts
    shown = [(count, name) for name in counts.__dataclass_fields__ if (count := getattr(counts, name))]
    write(f"{workflow.kind}  {workflow.id}")
    print_fields(
        [
            ("status", _styled(workflow.status)),
            ("jobs", f"{workflow.total:,}: " + ", ".join(f"{count:,} {name}" for count, name in shown)),
            ("stopped", "yes: waiting jobs are held back because a job failed" if workflow.stopped else None),
            ("on failure", workflow.on_failure),
            ("tenant", workflow.tenant),
            ("generator", workflow.generator),
            ("started", f"{moment(workflow.created_at)} by {workflow.enqueued_by} ({workflow.source_system})"),
            ("finished", None if workflow.finished_at is None else moment(workflow.finished_at)),
            ("cancelled", None if workflow.cancelled_at is None else moment(workflow.cancelled_at)),
            ("key", workflow.key),
            ("correlation", workflow.correlation_id),
            ("parent", workflow.parent_id),
            *((f"part {name}", _styled(status)) for name, status in graph.parts().items()),
            *(("callback", _callback(callback, graph)) for callback in graph.callbacks),
        ]
    )


def _callback(callback: CallbackRecord, graph: Graph) -> str:
    names = {node.job_id: line(node.label) for node in graph.nodes}
    of = "" if callback.step_id is None else f" of {names.get(callback.step_id, callback.step_id)}"
    state = f"job {callback.job_id}" if callback.fired_at else "due" if callback.due_at else "not fired"
    return f"on {callback.fires}{of}: {state}"


def _print_nodes(graph: Graph) -> None:
    names = {node.job_id: line(node.label) for node in graph.nodes}
    before = _parents(graph)
    rows: list[list[Cell]] = [
        [
            names[node.job_id],
            node.job_id,
            _styled(_state(node)),
            str(node.attempt),
            _why(node, [names.get(edge.parent, edge.parent) for edge in before.get(node.job_id, ()) if not edge.met]),
        ]
        for node in graph.nodes[:SHOWN]
    ]
    table(("name", "id", "state", "try", "why"), rows, keep=("id", "state", "try"))
    if len(graph.nodes) > SHOWN:
        say(f"There are {len(graph.nodes) - SHOWN:,} more jobs; --json prints them all.")


def _why(node: Node, unmet: list[str]) -> str:
    if node.error_code:
        return line(f"{node.error_code}: {node.error_message}")
    if node.status in ("open", "skipped") and unmet:
        return line(f"{'behind' if node.status == 'skipped' else 'waits for'} {', '.join(unmet)}")
    return "the workflow is stopped" if node.status == "skipped" else ""
