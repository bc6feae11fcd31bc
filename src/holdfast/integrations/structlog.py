"""structlog: add the job to every log line of a handler.

    app.hooks.include(log_context())

It needs the processor ``structlog.contextvars.merge_contextvars``, which structlog's default configuration includes.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.engine.hooks import Hooks, RunInfo
from holdfast.errors import needs_extra

with needs_extra("structlog's integration", "structlog"):
    from structlog.contextvars import bound_contextvars


def log_context() -> Hooks:
    """Return hooks that bind ``job_id``, ``kind``, ``attempt``, ``tenant`` and ``correlation_id`` for each attempt."""
    hooks = Hooks()

    @hooks.around_run
    def bind(run: RunInfo) -> Iterator[None]:
        fields = {"job_id": run.job_id, "kind": run.kind, "attempt": run.attempt, "tenant": run.tenant}
        if run.correlation_id is not None:
            fields["correlation_id"] = run.correlation_id
        with bound_contextvars(**fields):
            yield

    return hooks
