"""Names that people try first, mostly from Celery, and what to use instead.

One table for all of them: ``ATTRIBUTES`` for ``__getattr__`` of ``Kind``, ``Handle``, ``App``, workflows and the
package, ``OPTIONS`` for options and arguments that do not exist. A hint is added to an error; it never makes a name
valid.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from holdfast.errors import InvalidSetting

GUIDE: Final = "See docs/guides/from-celery.md."

_ENQUEUE: Final = "Use %s.enqueue(…), with options %s.using(delay=…).enqueue(…)."
_PREPARE: Final = "Use %s.prepare(…), or app.workflow(…).add(%s, …)."
_MANY: Final = "Use app.enqueue_many(%s.prepare(x) for x in …), or wf.map(%s, …) in a workflow."
_CALL: Final = "Call %s(…) directly, or kit.run(%s, …) in tests."
_JOB: Final = "Use @app.job."
_SCHEDULE: Final = 'Use @app.schedule("0 3 * * *") or @app.schedule("every 30s") above @app.job.'
_WORKFLOW: Final = 'Use a workflow: wf = app.workflow("name"); wf.add(…), wf.map(…), wf.start().'
_START: Final = "Use wf.start(), or await wf.astart()."
_AFTER_JOB: Final = "Use wf.add(kind, …, after=job), or pass the job as an argument: wf.add(kind, job)."
_RUN_RESULT: Final = "Use run = wf.start(), then run[job].result(timeout=…)."
_HANDLE: Final = "Use app.jobs.handle(id)."
_IMPORT: Final = "Import the modules that declare jobs in the module that you pass to holdfast worker."
_SETTINGS: Final = "Pass settings to App, or set HOLDFAST_… variables."

# ``%s`` stands for the object's name in the program.
ATTRIBUTES: Final[Mapping[str, Mapping[str, str]]] = {
    "Kind": {
        **dict.fromkeys(("delay", "send", "submit", "defer", "kiq", "delay_on_commit"), _ENQUEUE),
        **dict.fromkeys(("adelay", "aapply_async", "defer_async"), _ENQUEUE.replace("enqueue", "aenqueue")),
        **dict.fromkeys(
            ("apply_async", "send_with_options", "configure", "options", "apply_async_on_commit"),
            "Use %s.using(delay=…, queue=…).enqueue(…).",
        ),
        **dict.fromkeys(("s", "si", "signature", "subtask"), _PREPARE),
        **dict.fromkeys(("map", "starmap", "chunks", "enqueue_many"), _MANY),
        **dict.fromkeys(("apply", "run"), _CALL),
        "retry": "Raise holdfast.RetryLater(…) in the handler.",
        "request": "Add a first parameter ctx: holdfast.SyncContext to the handler: ctx.job_id, ctx.retries.",
        "update_state": "Use ctx.progress(0.4, …) in the handler.",
        "AsyncResult": "Use %s.handle(id).",
        "schedule": "Use %s.using(run_at=…).enqueue(…) for one job, @app.schedule(…) for repeated ones.",
        "cancel": "Use handle.cancel() or app.jobs.cancel(id).",
        "result": "Use the handle that %s.enqueue(…) returns, or %s.handle(id).",
    },
    "HoldfastTask": {
        **dict.fromkeys(("delay", "send", "submit", "adelay"), "Use %s.enqueue(…), or await %s.aenqueue(…)."),
        "apply_async": "Use %s.using(run_after=…, queue_name=…).enqueue(…).",
        **dict.fromkeys(("s", "si", "signature"), "Use a workflow of native jobs: app.workflow(…)."),
    },
    "Handle": {
        "status": "Use handle.state().",
        "ready": "Use handle.state().finished.",
        "done": "Use handle.state().finished.",
        "successful": 'Use handle.state() == "succeeded".',
        "failed": 'Use handle.state(): "dead_letter" after the last attempt.',
        "revoke": "Use handle.cancel().",
        "abort": "Use handle.cancel().",
        "forget": "Results are removed by retention: app.retention.",
        "info": "Use handle.progress(), handle.result() or handle.get().error_message.",
        "traceback": "Use handle.attempts()[-1].traceback.",
        "error": "Use handle.get().error_message.",
        "exception": "Use handle.get().error_message.",
        "job_id": "Use handle.id.",
        "task_id": "Use handle.id.",
        "join": "Use handle.result(timeout=…).",
        "await_result": "Use await handle.aresult(timeout=…).",
    },
    "Workflow": {
        **dict.fromkeys(("delay", "apply_async", "apply", "send", "submit", "defer", "kiq"), _START),
        **dict.fromkeys(("enqueue", "run", "execute", "launch", "begin"), _START),
        **dict.fromkeys(("adelay", "aapply_async", "aenqueue", "arun"), "Use await wf.astart()."),
        **dict.fromkeys(("then", "chain", "next", "after", "pipe"), _AFTER_JOB),
        **dict.fromkeys(("chord", "gather"), "Use jobs = wf.map(kind, items), then wf.add(total, jobs)."),
        **dict.fromkeys(("chunks", "starmap"), "Use wf.map(kind, items)."),
        **dict.fromkeys(("parallel", "fan_out"), "Use wf.map(kind, items), or group = wf.group(name); group.add(…)."),
        **dict.fromkeys(("s", "si", "signature", "job", "task", "step"), "Use wf.add(kind, …)."),
        **dict.fromkeys(("append", "add_job", "add_task", "add_step"), "Use wf.add(kind, …)."),
        **dict.fromkeys(("link", "on_complete"), "Use wf.on_success(kind, …)."),
        **dict.fromkeys(("link_error", "on_error"), "Use wf.on_failure(kind, …)."),
        **dict.fromkeys(("result", "get", "wait", "join", "status", "id"), "Use the run that wf.start() returns."),
        **dict.fromkeys(("cancel", "revoke"), "Use run = wf.start(), then app.workflows.cancel(run.id)."),
    },
    "Planned": {
        **dict.fromkeys(("then", "chain", "next", "pipe", "followed_by", "set_downstream"), _AFTER_JOB),
        **dict.fromkeys(("after", "depends_on", "set_upstream"), "Use job.wait_for(other), or wf.add(…, after=other)."),
        **dict.fromkeys(("delay", "apply_async", "enqueue", "start", "run"), f"It starts with its workflow. {_START}"),
        **dict.fromkeys(("result", "aresult", "get", "wait", "state", "status", "id", "job_id"), _RUN_RESULT),
        **dict.fromkeys(("output", "value"), f"Pass the job itself to the next: wf.add(kind, job). {_RUN_RESULT}"),
        "link": "Use job.on_success(kind, …).",
        **dict.fromkeys(("link_error", "on_error"), "Use job.on_failure(kind, …)."),
        "cancel": "Use run = wf.start(), then run[job].cancel().",
    },
    "WorkflowRun": {
        **dict.fromkeys(("get", "result", "results", "join"), "Use run.wait(timeout=…), then run[job].result()."),
        **dict.fromkeys(
            ("aresult", "await_result"), "Use await run.await_end(timeout=…), then await run[job].aresult()."
        ),
        **dict.fromkeys(("ready", "done", "finished"), "Use run.workflow().over."),
        "state": "Use run.status().",
        "successful": 'Use run.status() == "succeeded".',
        "failed": 'Use run.status() == "failed".',
        **dict.fromkeys(("cancel", "revoke", "abort"), "Use app.workflows.cancel(run.id)."),
        **dict.fromkeys(("jobs", "children", "nodes", "graph"), "Use app.workflows.graph(run.id)."),
        **dict.fromkeys(("add", "extend"), "Use more = app.workflows.extend(run.id); more.add(…); more.start()."),
        **dict.fromkeys(("resume", "retry"), "Use app.workflows.resume(run.id)."),
        **dict.fromkeys(("workflow_id", "task_id"), "Use run.id."),
    },
    "App": {
        **dict.fromkeys(("task", "actor", "shared_task", "register_task"), _JOB),
        **dict.fromkeys(
            ("send_task", "delay", "apply_async"), 'Use app.enqueue("kind", {…}), with the arguments by name.'
        ),
        **dict.fromkeys(("conf", "config", "config_from_object", "config_from_envvar"), _SETTINGS),
        **dict.fromkeys(("AsyncResult", "GroupResult", "handle", "result"), _HANDLE),
        **dict.fromkeys(("autodiscover_tasks", "include", "imports"), _IMPORT),
        **dict.fromkeys(("chain", "group", "chord", "canvas", "signature"), _WORKFLOW),
        **dict.fromkeys(("add_periodic_task", "on_after_configure", "periodic_task", "cron", "beat"), _SCHEDULE),
        **dict.fromkeys(("worker_main", "start", "worker", "Worker"), "Use holdfast worker, or app.run_worker(…)."),
        "control": "Use app.jobs.cancel(id), app.limits, app.pauses and app.workers.",
        "tasks": "Use app.kinds.",
        "cancel": "Use app.jobs.cancel(id).",
        "revoke": "Use app.jobs.cancel(id).",
        "get": "Use app.jobs.get(id).",
        "enqueue_in": 'Use app.enqueue("kind", {…}, delay=…).',
        "enqueue_at": 'Use app.enqueue("kind", {…}, run_at=…).',
        "signals": "Use app.hooks.",
    },
    "holdfast": {
        **dict.fromkeys(("Celery", "Queue", "Broker"), "Use holdfast.App(url)."),
        **dict.fromkeys(("shared_task", "task", "job", "Task", "actor"), _JOB),
        **dict.fromkeys(("chain", "group", "chord", "chunks", "signature", "canvas"), _WORKFLOW),
        **dict.fromkeys(("crontab", "periodic_task"), _SCHEDULE),
        "AsyncResult": _HANDLE,
        "Worker": "Use holdfast worker, or app.run_worker(…).",
        "Ignore": 'Use holdfast.Cancel("reason").',
        "Fail": 'Use holdfast.Reject("code", "text").',
        "signals": "Use app.hooks.",
    },
}

_DELAY: Final = 'delay (seconds, a timedelta, or text such as "5m")'
_TIME: Final = "run_at (a datetime)"
_AFTER: Final = "run_after (a datetime)"
_POLICY: Final = "retry=Retry(max_attempts=…)"
_FIRST: Final = "which counts the first attempt as well"
_BASE: Final = "backoff=Backoff(base=…)"
_BACKOFF: Final = "retry=Retry(backoff=Backoff(base=…, cap=…))"
_URL: Final = 'url, the first argument: App(url, name="shop")'
_EVENT: Final = "For %s use a workflow with job.on_success(…) or job.on_failure(…)."
_LATE: Final = "Leave out %s: jobs of a lost worker run again. at_most_once=True is the opposite."
_ARGUMENTS: Final = ("payload={…}, the arguments by name", "For %s pass the arguments to enqueue(…).")
_PER_JOB: Final = ("deadline", "key", "dedupe", "tenant", "connection")
_PER_KIND: Final = ("timeout", "at_most_once", "process", "requires_approval", "keep", "cost", "payload_rules", "hooks")

# Alternatives, the best first. One that starts with a capital letter is a sentence and applies to the options of jobs.
# Others start with an option, and apply where that exists. ``%s`` stands for the name that was tried.
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    **{name: (f"For {name} use kind.using({name}=…).enqueue(…).",) for name in _PER_JOB},
    "delay": ("base", _BASE, _AFTER, "For %s use kind.using(delay=…).enqueue(…)."),
    **{name: (f"For {name} use @app.job({name}=…): it belongs to the kind.",) for name in _PER_KIND},
    **dict.fromkeys(
        ("eta", "run_at", "scheduled_at", "schedule_at", "process_after", "run_after", "at"),
        (_TIME, _AFTER, "For %s use kind.using(run_at=…).enqueue(…)."),
    ),
    **dict.fromkeys(
        ("countdown", "schedule_in", "defer_by", "after"),
        (_DELAY, _BASE, _AFTER, "For %s use kind.using(delay=…).enqueue(…)."),
    ),
    "expires": (
        "deadline (a datetime, or a duration from now)",
        "For %s use kind.using(deadline=…).enqueue(…).",
    ),
    **dict.fromkeys(("max_retries", "retries"), (f"max_attempts, {_FIRST}", f"{_POLICY}, {_FIRST}")),
    "max_attempts": (_POLICY,),
    **dict.fromkeys(("retry_backoff", "retry_backoff_max", "retry_jitter", "default_retry_delay"), (_BACKOFF,)),
    "backoff": (_BACKOFF,),
    "autoretry_for": ("retry_on", "retry=Retry(retry_on=(…,))"),
    "dont_autoretry_for": ("give_up_on", "retry=Retry(give_up_on=(…,))"),
    "throws": ("retry=Retry(give_up_on=(…,))",),
    "retry_policy": ("retry=Retry(…)",),
    **dict.fromkeys(("time_limit", "soft_time_limit"), ("timeout", "For %s use @app.job(timeout=…).")),
    **dict.fromkeys(("task_id", "job_id"), ("key (an idempotency key)", "For %s use kind.using(key=…).enqueue(…).")),
    "idempotency_key": ("key", "For %s use kind.using(key=…).enqueue(…)."),
    "unique": ('key, or dedupe="skip"', 'For %s use kind.using(dedupe="skip").enqueue(…).'),
    "concurrency_key": ("limit_key",),
    **dict.fromkeys(("routing_key", "exchange", "queue_name"), ("queue",)),
    "headers": ("tags",),
    "queue": ("queue_name",),
    **dict.fromkeys(("link", "link_error"), (_EVENT,)),
    "bind": ("For %s add a first parameter ctx: holdfast.SyncContext (holdfast.Context in async def).",),
    "base": ("hooks=[…]", "For %s use @app.job(hooks=[…])."),
    "rate_limit": ("rate", 'For %s use app.limits.set(kind=…, rate="10/m").'),
    **dict.fromkeys(
        ("concurrency", "max_concurrency"), ("concurrency", "For %s use app.limits.set(kind=…, concurrency=5).")
    ),
    **dict.fromkeys(("acks_late", "reject_on_worker_lost"), (_LATE,)),
    **dict.fromkeys(("ignore_result", "store_result"), ("Leave out %s: return None, and no result is stored.",)),
    **dict.fromkeys(("serializer", "compression"), ("Leave out %s: payloads are JSON.",)),
    **dict.fromkeys(("args", "kwargs"), _ARGUMENTS),
    **dict.fromkeys(("session", "conn", "transaction"), ("connection",)),
    **dict.fromkeys(("task", "job"), ("kind",)),
    **dict.fromkeys(("cron", "crontab", "run_every", "every"), ("timing, the first argument",)),
    **dict.fromkeys(("timezone", "zone"), ("tz",)),
    "approvers": ('approval={"approvers": […]}', 'requires_approval={"approvers": […]}'),
    "name": ('Pass the %s first: @app.job("name").',),
    **dict.fromkeys(("broker", "backend", "broker_url", "result_backend", "database", "database_url", "dsn"), (_URL,)),
    # Settings of ``Backoff`` and ``Retry`` in other libraries.
    **dict.fromkeys(("initial", "initial_delay", "initial_interval", "min"), ("base",)),
    **dict.fromkeys(("exceptions", "retry_exceptions"), ("retry_on", "retry=Retry(retry_on=(…,))")),
    **dict.fromkeys(("wait", "interval"), (_BASE, "timing, the first argument")),
    **dict.fromkeys(("attempts", "maximum_attempts", "max_tries"), ("max_attempts", _POLICY)),
    **dict.fromkeys(("multiplier", "exponent", "coefficient", "backoff_coefficient"), ("factor",)),
    **dict.fromkeys(("max", "max_delay", "maximum", "max_interval", "limit"), ("cap",)),
}


def no_attribute(owner: str, obj: object, name: str, label: str = "") -> AttributeError:
    """The error of ``__getattr__``, with a hint if the name is a known guess. ``label`` is the object's name."""
    hint = ATTRIBUTES[owner].get(name)
    subject = f"module {owner!r}" if owner == "holdfast" else f"{type(obj).__name__!r} object"
    text = f"{subject} has no attribute {name!r}"
    if hint is None:
        return AttributeError(text, name=name, obj=obj)
    # Without ``obj``: the interpreter would add its own guess, a name that is spelled alike.
    return AttributeError(f"{text}. {hint.replace('%s', label)} {GUIDE}", name=name)


def unknown_attribute(owner: str) -> Callable[[object, str], Any]:
    """The ``__getattr__`` of a class whose hints are under ``owner``."""

    def raise_hint(self: object, name: str) -> Any:
        raise no_attribute(owner, self, name)

    return raise_hint


def check_options(given: Iterable[str], known: Collection[str], what: str = "", fix: str = "") -> None:
    """Refuse unknown options. The error suggests the option that was probably meant, and lists all.

    ``what`` has the options, and ``fix`` is for names without a suggestion.
    """
    unknown = sorted(set(given).difference(known))
    if not unknown:
        return
    valid = [*known] if what else sorted(known)
    hints = [hint for name in unknown if (hint := option_hint(name, valid))]
    if fix and len(hints) < len(unknown):
        hints.append(fix)
    raise InvalidSetting(
        f"unknown options{what and f' of {what}'}: {', '.join(unknown)}",
        code="unknown_option",
        fix=" ".join([*hints, f"There are {', '.join(valid)}."]),
    )


def option_hint(name: str, valid: Collection[str]) -> str | None:
    """What to use instead of an option that does not exist, as a sentence. ``valid`` are the options that do."""
    for option in OPTIONS.get(name, ()):
        if option[0].isupper():
            if "at_most_once" in valid or "delay" in valid:  # options of a kind or of a job
                return option.replace("%s", name)
        elif re.split(r"[=, ]", option)[0] in valid:
            return f"For {name} use {option}."
    close = difflib.get_close_matches(name, valid, 1)
    return f"Did you mean {close[0]}?" if close else None
