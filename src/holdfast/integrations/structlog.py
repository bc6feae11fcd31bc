"""structlog: every log line of a handler names its job.

    app.hooks.include(log_context())

Needs ``structlog.contextvars.merge_contextvars`` among the processors, which structlog's default configuration has.
"""

from __future__ import annotations

from collections.abc import Iterator

from structlog.contextvars import bound_contextvars

from holdfast.engine.hooks import Hooks, RunInfo


def log_context() -> Hooks:
    """Bind ``job_id``, ``kind``, ``attempt``, ``tenant`` and ``correlation_id`` while a handler runs."""
    hooks = Hooks()

    @hooks.around_run
    def bind(run: RunInfo) -> Iterator[None]:
        fields = {"job_id": run.job_id, "kind": run.kind, "attempt": run.attempt, "tenant": run.tenant}
        if run.correlation_id is not None:
            fields["correlation_id"] = run.correlation_id
        with bound_contextvars(**fields):
            yield

    return hooks
