"""Dashboard pages of workflows: the list, and one workflow with its graph and a chart over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from holdfast.features.tokens.model import Scope
from holdfast.features.workflows.model import Graph, Node
from holdfast.server.pages import PAGE, action_route, choice_field, confirm, fields, page_route, redirect, text_field
from holdfast.server.rendering import render, the_app

WIDTH, LABEL, ROW, TOP = 960, 220, 24, 24
TICKS = 5


@dataclass(frozen=True, slots=True)
class Bar:
    """The bar of one job. It has no width if the job has not started."""

    job_id: str
    label: str
    state: str
    y: int
    x: float
    width: float
    began: datetime | None
    took: timedelta | None


@dataclass(frozen=True, slots=True)
class Chart:
    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, timedelta], ...]
    """Position on the axis, and time since the beginning."""
    height: int
    begin: datetime | None
    width: int = WIDTH
    label: int = LABEL
    row: int = ROW
    top: int = TOP


def bars(nodes: Sequence[Node], now: datetime) -> Chart:
    began = [node.started_at for node in nodes if node.started_at is not None]
    begin = min(began, default=None)
    ends = [node.finished_at or now for node in nodes if node.started_at is not None]
    span = max(max(ends, default=now) - begin, timedelta(milliseconds=1)) if begin is not None else timedelta(0)
    room = WIDTH - LABEL - 10
    result = []
    for number, node in enumerate(nodes):
        x, width, took = float(LABEL), 0.0, None
        if node.started_at is not None and begin is not None:
            took = max((node.finished_at or now) - node.started_at, timedelta(0))
            x = LABEL + room * ((node.started_at - begin) / span)
            width = max(2.0, min(room * (took / span), WIDTH - x))
        y = TOP + number * ROW
        result.append(
            Bar(node.job_id, node.label, node.state.value, y, round(x, 1), round(width, 1), node.started_at, took)
        )
    ticks = [] if begin is None else [(LABEL + room * n / TICKS, span * n / TICKS) for n in range(TICKS + 1)]
    return Chart(tuple(result), tuple(ticks), TOP + len(nodes) * ROW + 10, begin)


DRAWN: Final = 300
"""The most jobs that are drawn: a larger graph is unreadable."""
LISTED: Final = 1_000
REASON: Final = 1_000


async def index(request: Request) -> Response:
    query = request.query_params
    show = choice_field(query, "show", ("active", "over", "all"))
    workflows = await the_app(request).workflows.alist(
        kind=text_field(query, "kind"),
        over=None if show == "all" else show == "over",
        before=text_field(query, "before", 50),
        limit=PAGE + 1,
    )
    following = workflows[PAGE - 1].id if len(workflows) > PAGE else None
    return await render(
        request,
        "workflows.html",
        workflows=workflows[:PAGE],
        following=following,
        show=show,
        kind=query.get("kind", ""),
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
        callbacks=graph.callbacks,
        labels={node.job_id: node.label for node in nodes},
        parts=graph.parts() if len(nodes) == graph.workflow.total else {},
        chart=bars(nodes[:DRAWN], datetime.now(UTC)),
        drawn=graph.workflow.total <= DRAWN,
        drawn_at_most=DRAWN,
    )


async def drawing(request: Request) -> Response:
    """The graph as JSON for the script of the page."""
    graph = await _graph(request)
    nodes = [_node(node, request.scope.get("root_path", "")) for node in graph.nodes[:DRAWN]]
    drawn = {node["id"] for node in nodes}
    edges = [
        {"from": edge.parent, "to": edge.child, "met": edge.met}
        for edge in graph.edges
        if edge.child in drawn and edge.parent in drawn
    ]
    return JSONResponse({"nodes": nodes, "edges": edges})


async def cancel(request: Request) -> Response:
    given, id_ = await fields(request), request.path_params["workflow"]
    if (
        confirmation := await confirm(request, "Cancel all unfinished jobs of this workflow?", back=f"/workflows/{id_}")
    ) is not None:
        return confirmation
    swept = await the_app(request).workflows.acancel(id_, reason=text_field(given, "reason", REASON))
    return redirect(request, f"/workflows/{swept.id}", f"Cancelled {swept.jobs:,} jobs.")


async def resume(request: Request) -> Response:
    given, id_ = await fields(request), request.path_params["workflow"]
    swept = await the_app(request).workflows.aresume(id_, reason=text_field(given, "reason", REASON))
    return redirect(request, f"/workflows/{swept.id}", f"Redrove {swept.jobs:,} dead letters.")


async def _graph(request: Request) -> Graph:
    """The graph; of a very large one only the first jobs, as many as the page shows."""
    return await the_app(request).workflows.agraph(request.path_params["workflow"], limit=LISTED)


def _parents(graph: Graph) -> dict[str, list[str]]:
    labels = {node.job_id: node.label for node in graph.nodes}
    parents: dict[str, list[str]] = {}
    for edge in graph.edges:
        parents.setdefault(edge.child, []).append(labels.get(edge.parent, edge.parent))
    return parents


def _node(node: Node, root: str) -> dict[str, Any]:
    return {
        "id": node.job_id,
        "label": node.label,
        "kind": node.kind,
        "state": node.state.value,
        "status": node.status,
        "link": f"{root}/jobs/{node.job_id}",
    }


routes = [
    page_route("/workflows", index),
    page_route("/workflows/{workflow}", show),
    page_route("/workflows/{workflow}/graph.json", drawing),
    action_route("/workflows/{workflow}/cancel", cancel, Scope.OPERATE),
    action_route("/workflows/{workflow}/resume", resume, Scope.OPERATE),
]
