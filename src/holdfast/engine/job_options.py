"""The options of enqueue, and those that templates, schedules and subscriptions store for the jobs they create."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal, TypedDict

from holdfast.engine.declared import Help
from holdfast.engine.hints import check_options
from holdfast.engine.job import Dedupe
from holdfast.engine.names import check_name
from holdfast.engine.order import check_priority
from holdfast.engine.retry import DEFAULT_MAX_ATTEMPTS, PATIENT, Backoff, Retry, as_stored_policy
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting


class CreatedOptions(TypedDict, total=False):
    """Options of jobs that a template, a schedule or a subscription creates. None is no option."""

    queue: Annotated[str | None, Help("Queue for its jobs; default: the kind's.", "NAME")]
    priority: Annotated[int | None, Help("Priority; higher runs first.", low=-32_768, high=32_767)]
    tags: Annotated[Sequence[str] | None, Help("A tag of its jobs; may be repeated.", option="--tag", most=50)]
    agent: Annotated[str | None, Help("The agent that owns its jobs.", "NAME")]
    executor: Annotated[str | None, Help("Label of the workers that may run its jobs.", "LABEL")]
    retry: Annotated[Retry | str | None, Help("Retry policy of its jobs; default: the kind's.", "PRESET")]


class TemplateOptions(CreatedOptions, total=False):
    deadline: Annotated[
        Duration | None, Help("Deadline: do not start a job later than this after its time: 5m, 2h.", "SPAN")
    ]
    correlation_id: Annotated[str | None, Help("Correlation id of its jobs.")]
    external_ref: Annotated[str | None, Help("Reference of its jobs in another system.")]


OPTIONS: Final = frozenset(TemplateOptions.__annotations__)


RetryAs = Literal["new_job"]


class EnqueueOptions(TypedDict, total=False):
    """Options of one job, in every program and over HTTP."""

    delay: Annotated[Duration, Help("Start no earlier than this long from now, by the database's clock: 90s, 1h30m.")]
    run_at: Annotated[
        datetime, Help("Start no earlier than this time, which needs a time zone. Not with a delay.", option="--at")
    ]
    deadline: Annotated[
        datetime | Duration,
        Help("End the job as failed if it has not started by this time, or within this duration from now."),
    ]
    queue: Annotated[str, Help("The queue; workers serve queues. By default: default.", "NAME")]
    priority: Annotated[
        int,
        Help(
            "From -32768 to 32767; jobs with a higher priority start first. By default 0.",
            "N",
            low=-32_768,
            high=32_767,
        ),
    ]
    key: Annotated[
        str,
        Help("Idempotency key: the tenant has at most one job of this kind with this key. Enqueuing again returns it."),
    ]
    dedupe: Annotated[
        Dedupe,
        Help(
            "Compare the arguments with those of other jobs of the kind: skip adds no job while an equal one is active,"
            " coalesce while an equal one has not started.",
            "HOW",
        ),
    ]
    tags: Annotated[Sequence[str], Help("Labels to filter jobs by.", most=50, option="--tag", cli="A tag; repeatable.")]
    parent: Annotated[str, Help("The id of the parent job. Inside a handler, by default the running job.", "ID")]
    correlation_id: Annotated[str, Help("An id that related jobs share. By default the parent's, or the parent's id.")]
    causation_id: Annotated[str, Help("The id of the event or request that caused the job; stored with it.")]
    external_ref: Annotated[str, Help("An identifier of yours, stored with the job.")]
    agent: Annotated[str, Help("The named owner of the job. A registered agent adds its policy and limits.", "NAME")]
    executor: Annotated[str, Help("The label of the workers that may run the job.", "LABEL")]
    limit_key: Annotated[str | None, Help("A key to limit by, such as a customer's id.")]
    resources: Annotated[
        Sequence[str], Help("Named resources that the job uses while it runs.", "NAME", most=50, option="--resource")
    ]
    retry: Annotated[Retry | str, Help("The retry policy, or the name of a preset.")]
    retry_as: Annotated[RetryAs, Help("With new_job, each retry is a separate job.", "HOW")]
    source_ref: Annotated[str, Help("URI of the input.", longest=4_000)]
    target_ref: Annotated[str, Help("URI of the output.", longest=4_000)]
    payload_ref: Annotated[str, Help("URI of a payload that is stored elsewhere.", longest=4_000)]


def stored_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options in the form in which they are stored, or ``InvalidSetting``."""
    check_options(options, OPTIONS)
    stored: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name == "retry":
            stored[name] = _stored_retry(value)
        elif name == "deadline":
            stored[name] = seconds(value, "deadline")
        elif name == "priority":
            stored[name] = check_priority(value)
        elif name == "tags":
            if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
                raise InvalidSetting("tags must be a list of text", code="invalid_name")
            stored[name] = [check_name(tag, "tag") for tag in value]
        else:
            stored[name] = check_name(value, name, limit=100 if name in ("queue", "executor") else 255)
    return stored


def job_options(stored: Mapping[str, Any], due: datetime) -> dict[str, Any]:
    """Stored options as the options of a job that is due at ``due``. Options of a newer release are ignored."""
    options = {name: value for name, value in stored.items() if name in OPTIONS}
    if "deadline" in options:
        options["deadline"] = due + timedelta(seconds=float(options["deadline"]))
    if "retry" in options:
        options["retry"] = _retry(options["retry"])
    return options


def _retry(stored: Mapping[str, Any]) -> Retry:
    return Retry(
        max_attempts=stored.get("max_attempts", DEFAULT_MAX_ATTEMPTS),
        max_crashes=stored.get("max_crashes", 3),
        backoff=Backoff.from_json(stored.get("backoff") or PATIENT.to_json()),
    )


def _stored_retry(value: object) -> dict[str, Any]:
    policy = as_stored_policy(_retry(value) if isinstance(value, Mapping) else value)
    return {
        "max_attempts": policy.max_attempts,
        "max_crashes": policy.max_crashes,
        "backoff": policy.backoff.to_json(),
    }
