"""``GET /metrics`` for Prometheus. Needs the extra ``prometheus``, and the scope ``read``."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.responses import Response

from holdfast.access import Scope, identity_of
from holdfast.api.asking import TheApp, allowed
from holdfast.api.routing import Router

CONTENT = "text/plain; version=0.0.4; charset=utf-8"

probes = Router(tags=["metrics"])


@probes.get(
    "/metrics",
    dependencies=[allowed(Scope.READ)],
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Metrics in the text format of Prometheus."}},
    summary="Metrics for Prometheus",
)
async def metrics(request: Request, app: TheApp) -> Response:
    from holdfast.telemetry.prometheus import process_metrics

    state: Any = request.app.state
    own = process_metrics()  # says so where the extra is missing
    from holdfast.api.exposition import Looks, exposition

    if not hasattr(state, "looks"):
        # From the first scrape on: whoever does not ask for metrics does not pay for them.
        state.looks = Looks(app)
        state.measures.append(own.request)
    identity = identity_of(request)
    # What this process did is everybody's, and names kinds and queues of each.
    text = await exposition(state.looks, identity.tenant, own.registry if identity.runs_all else None)
    return Response(text, headers={"Content-Type": CONTENT, "Cache-Control": "no-store"})
