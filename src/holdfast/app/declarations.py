"""The declarations of an app: ``job``, ``command``, ``report``, ``schedule``, ``on``, ``approval_notifier``, …"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypedDict, TypeVar, overload

from holdfast.app.handlers import HOLD_FOR, Declared, RunMode, wants_context
from holdfast.app.process_handlers import Process, as_process, target_of
from holdfast.context import Context, SyncContext, current
from holdfast.engine.hints import check_options
from holdfast.engine.hooks import Hooks
from holdfast.engine.job import DEFAULT_RETRY
from holdfast.engine.job_options import RetryAs
from holdfast.engine.names import check_name
from holdfast.engine.retry import AT_MOST_ONCE, Retry, as_policy
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting
from holdfast.features.connectors.command_runner import Program
from holdfast.features.connectors.http_request import REQUEST, Outbound, check_request, http_request_handler
from holdfast.features.connectors.report import GENERATE, Source, Sources, check_report, report_handler
from holdfast.features.limits.model import uses
from holdfast.features.payloads.model import PayloadPolicy, PolicyOptions
from holdfast.features.registry.model import check_domain
from holdfast.features.retention.model import RetentionRule, check_cost
from holdfast.features.schedules.model import ScheduleDraft, ScheduleOptions, When
from holdfast.features.schedules.runs import Scheduler
from holdfast.features.webhooks.delivery import deliverer
from holdfast.features.webhooks.model import DELIVER, DELIVERY_RETRY
from holdfast.features.workflows.parts import MAP
from holdfast.features.workflows.plan import expand
from holdfast.features.workflows.run import WorkflowOptions, WorkflowPlan, plan_workflow
from holdfast.kind import Kind, Options
from holdfast.steps.approvals import ApprovalOptions, approval_rule, check_notifier, required_approval
from holdfast.steps.signature import CheckedSignature, Signature
from holdfast.stores.session import Session

if TYPE_CHECKING:
    from holdfast.app import App

T = TypeVar("T")

SCHEDULES_ATTRIBUTE = "__holdfast_schedules__"


class Timed(ScheduleOptions, total=False):
    """Options of ``app.schedule``, which names a kind or a template if it is not used as a decorator."""

    name: str
    """Name of the schedule. By default the name of the kind or template."""


class ScheduleDecorator:
    """The result of ``app.schedule(…)``: a decorator for a job, unless the schedule names a kind or a template."""

    def __init__(self, scheduler: Scheduler, timing: When, definition: Timed) -> None:
        self._scheduler = scheduler
        self._timing = timing
        self._definition: dict[str, Any] = {**definition}
        self._declared = "kind" in definition or "template" in definition
        if "kind" in definition and "template" in definition:
            raise InvalidSetting("a schedule needs a kind or a template", code="conflicting_options")
        if self._declared:
            kind = self._definition.get("kind")
            self._declare(kind.name if isinstance(kind, Kind) else kind)
        else:
            self._draft("unnamed")  # raises now if the options are wrong, not when it decorates a job

    def __call__(self, target: T) -> T:
        if self._declared:
            raise InvalidSetting("this schedule already has a kind", code="conflicting_options")
        if isinstance(target, Kind):
            self._declare(target.name)
        else:  # @app.schedule is below @app.job, which declares the schedule
            function = f"{target.__module__}.{getattr(target, '__qualname__', target)}"
            self._scheduler.without_job.append(function)
            pending = [*getattr(target, SCHEDULES_ATTRIBUTE, ()), partial(self._declare_pending, function)]
            setattr(target, SCHEDULES_ATTRIBUTE, pending)
        return target

    def _declare_pending(self, function: str, kind: str) -> None:
        if function in self._scheduler.without_job:
            self._scheduler.without_job.remove(function)
        self._declare(kind)

    def _declare(self, kind: str | None) -> None:
        self._scheduler.declare(self._draft(kind))

    def _draft(self, kind: str | None) -> ScheduleDraft:
        definition = {option: value for option, value in self._definition.items() if option not in ("kind", "name")}
        # The kind of a template is read from the database when the schedule fires.
        target = str(kind or definition.get("template"))
        return ScheduleDraft.of(self._definition.get("name") or target, self._timing, kind=target, **definition)


def declare_pending_schedules(function: Callable[..., Any], kind: str) -> None:
    """Declare the schedules that decorate the function below ``@app.job``."""
    for declare in getattr(function, SCHEDULES_ATTRIBUTE, ()):
        declare(kind)


P = ParamSpec("P")
R = TypeVar("R")
K = TypeVar("K", bound=Kind[..., Any])
S = TypeVar("S", bound=Source)


OnNewVersion = Literal["continue", "pin"]


class JobOptions(TypedDict, total=False):
    """Options of ``@app.job``. ``using`` can replace those that are also in ``Options`` for a single job."""

    queue: str
    """The queue of its jobs. By default ``default``."""
    executor: str | None
    """The label of the workers that may run its jobs."""
    domain: str | None
    """The domain of its jobs, such as ``billing``. ``app.kinds.register()`` stores it; lists filter by it."""
    priority: int
    """From -32768 to 32767; jobs with a higher priority start first. By default 0."""
    retry: Retry | str | None
    """The retry policy, or the name of a preset."""
    retry_as: RetryAs | None
    """With ``"new_job"``, a failed job does not run again: each retry is a separate job."""
    timeout: Duration | None
    """The longest time an attempt may take. An async handler is cancelled; a thread runs on, but its job has failed."""
    tags: Sequence[str]
    """Labels to filter jobs by."""
    limit_key: str | None
    """A key to limit by (``app.limits``)."""
    resources: Sequence[str]
    """Named resources that a job uses while it runs (``app.limits``, ``app.reservations``)."""
    at_most_once: bool
    """For work that must never happen twice: a job that fails, or whose worker is lost, becomes a dead letter at once.
    Only a redrive starts it again. It excludes ``retry``."""
    process: bool | Process
    """Run the handler in a child process, which is killed on timeout: True, or a ``Process`` with a memory limit."""
    requires_approval: bool | ApprovalOptions
    """Wait for an approval before a job runs: True, or the options of ``ctx.approval``."""
    keep: Duration | None
    """How long a job is kept after its end (``app.retention``)."""
    cost: float | None
    """The cost of an attempt, in a unit of your choice (``app.usage``)."""
    payload_rules: PayloadPolicy | None
    """Rules for payloads and results: size, encryption, storage (``app.payload_rules``)."""
    on_new_version: OnNewVersion
    """Which workers run its started jobs after a deployment: ``"continue"``, those of every version (the default), or
    ``"pin"``, only those of the version that started the job."""
    hold_for: Duration
    """How long a job is held whose recorded steps do not fit the code, before it becomes a dead letter. By default
    seven days."""
    hooks: Sequence[Hooks]
    """Hooks that run around its jobs, inside those of the app (``app.hooks``)."""


def _rules(policy: object) -> PolicyOptions:
    if policy is None:
        return {}
    if not isinstance(policy, PayloadPolicy):
        raise InvalidSetting(
            f"payload_rules must be a PayloadPolicy, not {type(policy).__name__}", code="invalid_setting"
        )
    return policy.options


def _is_pinned(value: object) -> bool:
    if value not in ("continue", "pin"):
        raise InvalidSetting(f"on_new_version must be continue or pin, not {value!r}", code="invalid_setting")
    return value == "pin"


def declare_job(app: App, name: str | None, options: JobOptions) -> JobDecorator:
    check_options(options, JobOptions.__annotations__)
    at_most_once, retry, retry_as = (
        options.get("at_most_once", False),
        options.get("retry"),
        options.get("retry_as"),
    )
    if at_most_once and (retry is not None or retry_as is not None):
        raise InvalidSetting("a job is either retried or started at most once, not both", code="conflicting_options")
    policy = AT_MOST_ONCE if at_most_once else DEFAULT_RETRY if retry is None else as_policy(retry)
    defaults = Options(
        queue=options.get("queue", "default"),
        priority=options.get("priority", 0),
        tags=options.get("tags", ()),
        retry=policy,
    )
    limit_key, resources = options.get("limit_key"), options.get("resources", ())
    if limit_key is not None or resources:
        uses(limit_key, resources)  # raises now, not when the first job is enqueued
        defaults |= Options(limit_key=limit_key, resources=resources)
    if retry_as is not None:
        defaults["retry_as"] = retry_as
    if (executor := options.get("executor")) is not None:
        defaults["executor"] = check_name(executor, "executor")
    timeout, keep, cost = options.get("timeout"), options.get("keep"), options.get("cost")
    limit = None if timeout is None else seconds(timeout, "timeout")
    complete = partial(
        declare,
        app,
        name=name,
        options=defaults,
        timeout=limit,
        at_most_once=at_most_once,
        run_mode=as_process(options.get("process", False)),
        approval=required_approval(options.get("requires_approval", False)),
        keep=None if keep is None else RetentionRule.of(purge_after=keep, declared=True),
        cost=None if cost is None else check_cost(cost),
        domain=check_domain(options.get("domain")),
        rules=_rules(options.get("payload_rules")),
        hooks=options.get("hooks", ()),
        pinned=_is_pinned(options.get("on_new_version", "continue")),
        hold_for=seconds(options.get("hold_for", HOLD_FOR), "hold_for"),
    )
    return JobDecorator(complete)


def declare(
    app: App,
    function: Callable[..., Any],
    name: str | None,
    options: Options,
    timeout: float | None,
    at_most_once: bool = False,
    run_mode: RunMode | None = None,
    approval: ApprovalOptions | None = None,
    keep: RetentionRule | None = None,
    cost: float | None = None,
    domain: str | None = None,
    rules: PolicyOptions | None = None,
    hooks: Sequence[Hooks] = (),
    pinned: bool = False,
    hold_for: float = HOLD_FOR,
) -> Kind[..., Any]:
    kind = check_name(name or function.__name__, "kind")
    if kind in app._make.declared:
        raise InvalidSetting(f"a job named {kind!r} already exists", code="duplicate_kind")
    # The function of a command returns its command line, not the job's result.
    returns_result = not isinstance(run_mode, Program)
    signature = app._signature_type(function, kind, skip=int(wants_context(function)), answers=returns_result)
    asks = approval_rule(approval)
    rule = app.payload_rules._declare(kind, rules or {}, approval=asks, at_most_once=at_most_once)
    declared: Kind[..., Any] = Kind(
        kind, app._session, signature, function, options, at_most_once, approval, _rule=rule
    )
    if isinstance(run_mode, Process):
        target_of(kind, function)  # raises now, not when the first job runs
    if hooks:
        app.hooks.declare(kind, hooks)
    app._make.declared[kind] = Declared(declared, timeout, run_mode, cost, domain, pinned, hold_for)
    app.retention._declare(kind, keep)
    declare_pending_schedules(function, kind)
    return declared


# Each app has its own handlers, but their signatures are the same: they are inspected once and not for every app.
_signatures: dict[str, Signature] = {}


def built_in(session: Session, reach: Outbound, reports: Sources) -> dict[str, Declared]:
    """The kinds that every app has: HTTP requests, reports, webhooks, expansion of workflows. A kind of the same name
    that the program declares replaces one."""
    deliver, request, generate = deliverer(reach), http_request_handler(reach), report_handler(reports)
    if not _signatures:
        _signatures.update(
            {
                DELIVER: Signature(deliver, DELIVER, skip=1),
                REQUEST: CheckedSignature(request, REQUEST, check_request, skip=1),
                GENERATE: CheckedSignature(generate, GENERATE, check_report, skip=1),
                MAP: Signature(expand, MAP, skip=1),
            }
        )
    handlers: dict[str, Callable[..., Any]] = {DELIVER: deliver, REQUEST: request, GENERATE: generate, MAP: expand}
    options = {DELIVER: Options(retry=DELIVERY_RETRY)}
    return {
        name: Declared(Kind(name, session, _signatures[name], function, options.get(name, Options())))
        for name, function in handlers.items()
    }


def notifier_decorator(app: App, name: str, options: JobOptions) -> Callable[[Callable[..., Any]], Kind[..., Any]]:
    refused = options.keys() & {"queue", "priority", "tags", "retry", "at_most_once", "requires_approval"}
    if refused:
        raise InvalidSetting(
            f"a notifier cannot set {', '.join(sorted(refused))}: the store enqueues it",
            code="unknown_option",
        )

    def declare(function: Callable[..., Any]) -> Kind[..., Any]:
        check_notifier(function, skip=int(wants_context(function)))
        kind: Kind[..., Any] = declare_job(app, name, options)(function)
        app._notifier = kind.name
        return kind

    return declare


def workflow(app: App, kind: Any, options: dict[str, Any]) -> Any:
    """Plan the workflow of this name, or declare a kind whose jobs plan one."""
    kind = options.pop("kind", kind)
    if isinstance(kind, Kind):
        raise InvalidSetting(
            f"{kind.name} is a job, not the name of a workflow",
            code="invalid_call",
            fix=f'Add it to a workflow: wf = app.workflow("name"); wf.add({kind.name}, …).',
        )
    if callable(kind):
        return _define_workflow(app, kind, None, {})
    if kind is None:
        name = options.pop("name", None)
        return lambda function: _define_workflow(app, function, name, dict(options))
    return plan_workflow(app._session, app._make.child, kind, WorkflowOptions(**options), current())  # type: ignore[typeddict-item]


def _define_workflow(
    app: App, function: Callable[..., Any], name: str | None, options: dict[str, Any]
) -> Kind[..., str]:
    kind_name = name or function.__name__
    own = WorkflowOptions(on_failure=options.pop("on_failure")) if "on_failure" in options else WorkflowOptions()

    def plan(ctx: Context) -> WorkflowPlan:
        wf = plan_workflow(app._session, app._make.child, kind_name, {**own, "key": ctx.job_id}, ctx)
        wf.once = True
        return wf

    kind: Kind[..., str] = declare_job(app, kind_name, JobOptions(**options))(  # type: ignore[typeddict-item]
        planner(function, plan)
    )
    return kind


def planner(function: Callable[..., Any], plan: Callable[[Context], WorkflowPlan]) -> Callable[..., Any]:
    """Return a handler that plans and starts a workflow. Its parameters are the function's, without the first."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise InvalidSetting(
            f"the function of workflow {function.__name__} must take the workflow as its first parameter",
            code="invalid_workflow",
            fix="Write def nightly(wf: holdfast.WorkflowPlan) -> None, and add jobs with wf.add(…).",
        )

    @wraps(function)
    async def start(ctx: Context, *args: Any, **kwargs: Any) -> str:
        wf = plan(ctx)
        wf.scheduled_at = await ctx.scheduled_at()
        if inspect.iscoroutinefunction(function):
            await function(wf, *args, **kwargs)
        else:
            await asyncio.to_thread(function, wf, *args, **kwargs)
        return (await wf.astart()).id

    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_ONLY, annotation=Context)
    start.__signature__ = inspect.Signature([context, *parameters[1:]], return_annotation=str)  # type: ignore[attr-defined]
    start.__annotations__ = {p.name: p.annotation for p in parameters[1:] if p.annotation is not p.empty} | {
        "return": str
    }
    return start


class JobDecorator:
    """The result of ``@app.job(…)``. The overloads give ``enqueue`` the handler's parameters, without the context, and
    the handle the handler's return type."""

    def __init__(self, declare: Callable[[Callable[..., Any]], Kind[..., Any]]) -> None:
        self._declare = declare

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Awaitable[R]]) -> Kind[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[SyncContext, P], R]) -> Kind[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]]) -> Kind[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Kind[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Kind[..., Any]:
        return self._declare(function)
