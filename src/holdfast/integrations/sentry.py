"""Sentry: report failures of handlers, with the job in which they happened.

sentry_sdk.init(…)
app.hooks.include(sentry_context())
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.engine.hooks import Hooks, RunInfo
from holdfast.errors import needs_extra

with needs_extra("Sentry's integration", "sentry"):
    import sentry_sdk


def sentry_context(*, capture: bool = True) -> Hooks:
    """Return hooks that run each attempt in a separate isolation scope, with tags for the job.

    With ``capture``, the exception of each failed attempt is reported. This includes ``Reject``, ``RetryLater`` and the
    other exceptions with which a handler states an outcome; filter them with Sentry's ``ignore_errors`` if you do not
    want them.
    """
    hooks = Hooks()

    @hooks.around_run
    def isolate(run: RunInfo) -> Iterator[None]:
        with sentry_sdk.isolation_scope() as scope:
            scope.set_transaction_name(run.kind, source="task")
            scope.set_tags({"job_id": run.job_id, "kind": run.kind, "queue": run.queue, "tenant": run.tenant})
            scope.set_context("job", {"attempt": run.attempt, "tags": list(run.tags), "parent": run.parent_id})
            try:
                yield
            except Exception as error:
                if capture:
                    sentry_sdk.capture_exception(error)
                raise

    return hooks
