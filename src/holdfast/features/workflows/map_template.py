"""What ``wf.map`` over a result stores until the items are known: the kind, its first parameter, the options."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from holdfast.engine.job import JobSpec
from holdfast.engine.job_options import job_options, stored_options
from holdfast.engine.times import instant

if TYPE_CHECKING:
    from holdfast.kind import Kind

MAP: Final = "workflow.map"
"""The kind of the job that adds one job per item. Every app handles it."""
MOST_ITEMS: Final = 10_000


def template_of(kind: Kind[..., Any], spec: JobSpec) -> dict[str, Any]:
    """The template as JSON: the worker that adds the jobs may not have the kind, or have other defaults for it."""
    options = {"queue": spec.queue, "priority": spec.priority, "tags": spec.tags, "retry": spec.retry}
    times = {"run_at": spec.run_at, "deadline_at": spec.deadline_at}
    return {
        "kind": kind.name,
        "argument": kind.parameters[0],
        "options": stored_options(options | {"agent": spec.agent, "external_ref": spec.external_ref}),
        "retry_given": spec.retry_given,
        "uses": list(spec.uses),
        "delay": spec.delay,
        "deadline_in": spec.deadline_in,
        **{name: None if time is None else time.isoformat() for name, time in times.items()},
    }


def with_options(template: dict[str, Any], spec: JobSpec) -> JobSpec:
    """The job of one item, with the options of the plan."""
    options = job_options(template["options"], datetime.now(UTC))
    times: dict[str, Any] = {
        name: None if template[name] is None else instant(datetime.fromisoformat(template[name]), name)
        for name in ("run_at", "deadline_at")
    }
    return dataclasses.replace(
        spec,
        **{**options, "tags": tuple(options.get("tags", ()))},
        retry_given=template["retry_given"],
        uses=tuple(template["uses"]),
        delay=template["delay"],
        deadline_in=template.get("deadline_in"),
        **times,
        alike=None,
    )
