"""Workflows: which there are, and one of them as a graph, as bars along time, and as a table of the same."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from holdfast.access import Scope
from holdfast.dashboard.acting import ask_first, go
from holdfast.dashboard.asking import PAGE, chosen, fields, said
from holdfast.dashboard.gantt import bars
from holdfast.dashboard.rendering import render, the_app
from holdfast.dashboard.routing import does, shows
from holdfast.features.workflows.model import Graph, Node

DRAWN: Final = 300
"""How many jobs are drawn: more than that nobody can make out."""
LISTED: Final = 1_000
REASON: Final = 1_000


async def index(request: Request) -> Response:
    asked = request.query_params
    show = chosen(asked, "show", ("active", "over", "all"))
    found = await the_app(request).workflows.alist(
        kind=said(asked, "kind"),
        over=None if show == "all" else show == "over",
        before=said(asked, "before", 50),
        limit=PAGE + 1,
    )
    following = found[PAGE - 1].id if len(found) > PAGE else None
    return await render(
        request, "workflows.html", workflows=found[:PAGE], following=following, show=show, kind=asked.get("kind", "")
    )


async def show(request: Request) -> Response:
    graph = await _graph(request)
    nodes = graph.nodes
    return await render(
        request,
        "workflow.html",
        workflow=graph.workflow,
        nodes=nodes,
        parents=_parents(graph),
        parts=graph.parts() if len(nodes) == graph.workflow.total else {},
        chart=bars(nodes[:DRAWN], datetime.now(UTC)),
        drawn=graph.workflow.total <= DRAWN,
        drawn_at_most=DRAWN,
    )


async def drawing(request: Request) -> Response:
    """What the script of the page draws; it is text to it, never markup."""
    graph = await _graph(request)
    nodes = [_node(node, request.scope.get("root_path", "")) for node in graph.nodes[:DRAWN]]
    there = {node["id"] for node in nodes}
    edges = [
        {"from": edge.parent, "to": edge.child, "met": edge.met}
        for edge in graph.edges
        if edge.child in there and edge.parent in there
    ]
    return JSONResponse({"nodes": nodes, "edges": edges})


async def cancel(request: Request) -> Response:
    given, id_ = await fields(request), request.path_params["workflow"]
    if (
        asks := await ask_first(request, "Cancel every job of it that has not ended?", back=f"/workflows/{id_}")
    ) is not None:
        return asks
    swept = await the_app(request).workflows.acancel(id_, reason=said(given, "reason", REASON))
    return go(request, f"/workflows/{swept.id}", f"{swept.jobs:,} jobs are cancelled.")


async def resume(request: Request) -> Response:
    given, id_ = await fields(request), request.path_params["workflow"]
    swept = await the_app(request).workflows.aresume(id_, reason=said(given, "reason", REASON))
    return go(request, f"/workflows/{swept.id}", f"{swept.jobs:,} dead letters are tried again.")


async def _graph(request: Request) -> Graph:
    """Of a very large one the first jobs: a page reads no more of it than it shows."""
    return await the_app(request).workflows.ashow(request.path_params["workflow"], limit=LISTED)


def _parents(graph: Graph) -> dict[str, list[str]]:
    labels = {node.job_id: node.label for node in graph.nodes}
    found: dict[str, list[str]] = {}
    for edge in graph.edges:
        found.setdefault(edge.child, []).append(labels.get(edge.parent, edge.parent))
    return found


def _node(node: Node, root: str) -> dict[str, Any]:
    return {
        "id": node.job_id,
        "label": node.label,
        "kind": node.kind,
        "state": node.state.value,
        "standing": node.standing,
        "link": f"{root}/jobs/{node.job_id}",
    }


routes = [
    shows("/workflows", index),
    shows("/workflows/{workflow}", show),
    shows("/workflows/{workflow}/graph.json", drawing),
    does("/workflows/{workflow}/cancel", cancel, Scope.OPERATE),
    does("/workflows/{workflow}/resume", resume, Scope.OPERATE),
]
