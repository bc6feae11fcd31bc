"""The declarations of an app: ``job``, ``command``, ``report``, ``schedule``, ``on``, ``approval_notifier``, …"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar, Unpack, overload

from holdfast import config
from holdfast.app.built_in import built_in
from holdfast.app.handlers import Declared, RunMode, wants_context
from holdfast.app.process_handlers import Process, as_process, target_of
from holdfast.context import Context, SyncContext
from holdfast.engine.hints import check_options
from holdfast.engine.hooks import AppHooks, Hooks
from holdfast.engine.job import DEFAULT_RETRY, Enqueued
from holdfast.engine.names import check_name
from holdfast.engine.redaction import Redactor
from holdfast.engine.retry import AT_MOST_ONCE, Retry, as_policy
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting
from holdfast.features.archives.operations import Archives
from holdfast.features.connectors.command_runner import CommandSettings, Program, command_declaration
from holdfast.features.connectors.outbound import Outbound
from holdfast.features.connectors.report import Source, Sources, add_source
from holdfast.features.events.operations import Declarations, SubscriptionOptions
from holdfast.features.jobs.handle import Handle
from holdfast.features.limits.model import uses
from holdfast.features.payloads.model import PayloadPolicy, RuleOptions
from holdfast.features.payloads.operations import PayloadRules
from holdfast.features.registry.model import check_domain
from holdfast.features.retention.model import RetentionRule, check_cost
from holdfast.features.retention.operations import RetentionPolicies
from holdfast.features.schedules.model import Missed, Overlap, ScheduleDraft
from holdfast.features.schedules.runs import Scheduler
from holdfast.kind import Kind, Options, Prepared, RetryAs
from holdfast.steps.approvals import ApprovalOptions, approval_rule, check_notifier, required_approval
from holdfast.steps.signature import Signature
from holdfast.stores.session import Session
from holdfast.telemetry.logs import redact_with

T = TypeVar("T")

SCHEDULES_ATTRIBUTE = "__holdfast_schedules__"
_PARTS = ("kind", "template", "name", "tz", "payload", "missed", "overlap", "jitter")


class Timed(TypedDict, total=False):
    """Options of ``app.schedule``. ``queue`` and those after it are options of the jobs."""

    name: str
    """Name of the schedule. By default the name of the kind or template."""
    kind: str | Kind[..., Any]
    """The kind to run, if the schedule is not used as a decorator."""
    template: str
    """The template to run, instead of a kind."""
    tz: str
    """Time zone of the times, such as ``Europe/Paris``. By default UTC."""
    payload: Mapping[str, Any]
    """Arguments of the jobs, by name."""
    missed: Missed
    """What to do about times that passed while no worker was running. By default run once."""
    overlap: Overlap
    """Whether a job may start while the previous one has not ended. By default it may."""
    jitter: Duration
    """Delay each job by a random time up to this long."""
    queue: str
    priority: int
    tags: Sequence[str]
    agent: str
    executor: str
    retry: Retry | str
    deadline: Duration
    correlation_id: str
    external_ref: str


class ScheduleDecorator:
    """The result of ``app.schedule(…)``: a decorator for a job, unless the schedule names a kind or a template."""

    def __init__(self, scheduler: Scheduler, timing: str | float | timedelta, definition: Timed) -> None:
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
        parts = {name: self._definition[name] for name in _PARTS if name in self._definition and name != "kind"}
        options = {name: value for name, value in self._definition.items() if name not in _PARTS}
        template = parts.get("template")
        target = str(kind or template)  # the kind of a template is read from the database when the schedule fires
        name = parts.pop("name", None) or target
        return ScheduleDraft.of(name, self._timing, kind=target, options=options, **parts)


def declare_pending_schedules(function: Callable[..., Any], kind: str) -> None:
    """Declare the schedules that decorate the function below ``@app.job``."""
    for declare in getattr(function, SCHEDULES_ATTRIBUTE, ()):
        declare(kind)


class TemplateMaker:
    """Checks arguments, prepares jobs and makes handles for ``app.templates``, which cannot import ``Kind``."""

    def __init__(
        self, client: Session, kinds: Mapping[str, Declared], prepare: Callable[[str, Any, Any], Prepared[Any]]
    ) -> None:
        self._client = client
        self._kinds = kinds
        self._prepare = prepare

    def fits(self, kind: str, payload: Mapping[str, Any]) -> None:
        declared = self._kinds.get(kind)
        if declared is not None:
            declared.kind._signature.check_some(payload)

    def prepare(self, kind: str, payload: Any, options: dict[str, Any]) -> Prepared[Any]:
        return self._prepare(kind, payload, options)

    def handle(self, answers: Sequence[Enqueued], prepared: Prepared[Any]) -> Handle[Any]:
        return self._client.accepted(answers, prepared.tenant, prepared.decode)


P = ParamSpec("P")
R = TypeVar("R")
K = TypeVar("K", bound=Kind[..., Any])
S = TypeVar("S", bound=Source)


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
    rules: PayloadPolicy | None
    """Rules for payloads and results: size, encryption, storage (``app.payload_rules``)."""
    hooks: Sequence[Hooks]
    """Hooks that run around its jobs, inside those of the app (``app.hooks``)."""


def _rules(policy: object) -> RuleOptions:
    if policy is None:
        return {}
    if not isinstance(policy, PayloadPolicy):
        raise InvalidSetting(f"rules must be a PayloadPolicy, not {type(policy).__name__}", code="invalid_setting")
    return policy.options()


class Declaring:
    """The part of ``App`` that declares kinds, schedules and subscriptions."""

    _session: Session
    _kinds: dict[str, Declared]
    _scheduler: Scheduler
    _declared: Declarations
    retention: RetentionPolicies
    archives: Archives
    payload_rules: PayloadRules
    _redactor: Redactor
    _outbound: Outbound
    _reports: Sources
    _notifier: str | None
    hooks: AppHooks
    _signature_type: type[Signature] = Signature

    @overload
    def job(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Kind[P, R]: ...
    @overload
    def job(self, function: Callable[Concatenate[SyncContext, P], R], /) -> Kind[P, R]: ...
    @overload
    def job(self, function: Callable[P, Awaitable[R]], /) -> Kind[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> Kind[P, R]: ...
    @overload
    def job(self, name: str | None = None, **options: Unpack[JobOptions]) -> JobDecorator: ...
    def job(self, name: Any = None, **options: Unpack[JobOptions]) -> Any:
        """Declare a function as the handler of a kind of job, and return the ``Kind``::

            @app.job(queue="mail", retry=Retry(max_attempts=5), timeout="30s")
            async def send(to: str) -> None: ...

        Without options, write ``@app.job``. The kind has the name of the function, or the one you pass:
        ``@app.job("mail.send")``. A sync function runs in a thread. If the first parameter is annotated with
        ``Context`` or ``SyncContext``, or named ``ctx``, the handler receives the context there.

        Raises ``InvalidSetting`` if the name is taken or an option is wrong.
        """
        if isinstance(name, Kind):
            raise InvalidSetting(f"{name.name} is already a job", code="duplicate_kind")
        if callable(name):
            return self._job(None, options)(name)
        return self._job(name, options)

    def _job(self, name: str | None, options: JobOptions) -> JobDecorator:
        check_options(options, JobOptions.__annotations__)
        at_most_once, retry, retry_as = (
            options.get("at_most_once", False),
            options.get("retry"),
            options.get("retry_as"),
        )
        if at_most_once and (retry is not None or retry_as is not None):
            raise InvalidSetting(
                "a job is either retried or started at most once, not both", code="conflicting_options"
            )
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
        declare = partial(
            self._declare,
            name=name,
            options=defaults,
            timeout=limit,
            at_most_once=at_most_once,
            run_mode=as_process(options.get("process", False)),
            approval=required_approval(options.get("requires_approval", False)),
            keep=None if keep is None else RetentionRule.of(purge_after=keep, declared=True),
            cost=None if cost is None else check_cost(cost),
            domain=check_domain(options.get("domain")),
            rules=_rules(options.get("rules")),
            hooks=options.get("hooks", ()),
        )
        return JobDecorator(declare)

    @overload
    def command(
        self, name: str, argv: Callable[P, Sequence[str]], **settings: Unpack[CommandSettings]
    ) -> Kind[P, dict[str, Any]]: ...
    @overload
    def command(
        self, name: str, argv: Sequence[str], **settings: Unpack[CommandSettings]
    ) -> Kind[..., dict[str, Any]]: ...
    def command(
        self, name: str, argv: Sequence[str] | Callable[..., Sequence[str]], **settings: Unpack[CommandSettings]
    ) -> Kind[..., Any]:
        """Declare a kind whose jobs run a program::

            thumbnail = app.command("thumbnail", ["convert", "{source}", "{target}"], timeout="1m")
            thumbnail.enqueue(source="a.png", target="b.png")

        ``argv`` is the command line with placeholders for the job's arguments, or a function that returns it. No shell
        is involved. The result of the job is ``{"exit_code": 0, "artifacts": […]}``.
        """
        function, options, timeout, program = command_declaration(name, argv, settings)
        return self._declare(function, name, options, timeout, run_mode=program)

    def report(self, name: str) -> Callable[[S], S]:
        """Declare a source of rows for jobs of the built-in kind ``report.generate``::

            @app.report("sales")
            def sales(year: int) -> Iterator[dict[str, Any]]:
                yield from query(year)

        The function gets the ``arguments`` of the job, and the context if its first parameter is named ``ctx``.
        """

        def add(function: S) -> S:
            add_source(self._reports, name, function)
            return function

        return add

    def _declare(
        self,
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
        rules: RuleOptions | None = None,
        hooks: Sequence[Hooks] = (),
    ) -> Kind[..., Any]:
        kind = check_name(name or function.__name__, "kind")
        if kind in self._kinds:
            raise InvalidSetting(f"a job named {kind!r} already exists", code="duplicate_kind")
        # The function of a command returns its command line, not the job's result.
        returns_result = not isinstance(run_mode, Program)
        signature = self._signature_type(function, kind, skip=int(wants_context(function)), answers=returns_result)
        asks = approval_rule(approval)
        rule = self.payload_rules._declare(kind, rules or {}, approval=asks, at_most_once=at_most_once)
        declared: Kind[..., Any] = Kind(
            kind, self._session, signature, function, options, at_most_once, approval, _rule=rule
        )
        if isinstance(run_mode, Process):
            target_of(kind, function)  # raises now, not when the first job runs
        if hooks:
            self.hooks.declare(kind, hooks)
        self._kinds[kind] = Declared(declared, timeout, run_mode, cost, domain)
        self.retention._declare(kind, keep)
        declare_pending_schedules(function, kind)
        return declared

    def _built_in(self) -> dict[str, Declared]:
        """Return the built-in kinds. A kind of the same name that the program declares replaces one."""
        return {
            name: Declared(Kind(name, self._session, signature, function, options))
            for name, function, signature, options in built_in(self._outbound, self._reports)
        }

    def schedule(self, timing: str | float | timedelta = "", **definition: Unpack[Timed]) -> ScheduleDecorator:
        """Declare times at which jobs of a kind are created::

            @app.schedule("0 9 * * MON-FRI", tz="Europe/Paris")
            @app.job
            async def remind() -> None: ...

        ``timing`` is a cron expression, ``@daily``, ``every 15m`` or ``at 2027-01-31 09:00``; a number of seconds or a
        timedelta is an interval. For a kind or template that is declared elsewhere, call it:
        ``app.schedule("@daily", kind="cleanup")``. A worker stores the schedule when it starts (``app.schedules``).
        """
        check_options(definition, ("timing", *Timed.__annotations__))
        return ScheduleDecorator(self._scheduler, timing, definition)

    def on(self, pattern: str, **options: Unpack[SubscriptionOptions]) -> Callable[[K], K]:
        """Declare that each event which matches ``pattern`` creates a job of the kind::

            @app.on("job.succeeded", kind="import")
            @app.job
            async def index(event: dict[str, Any]) -> None: ...

        The handler receives the event as ``event``, or the arguments that ``payload`` builds from it. A worker stores
        the subscription when it starts; from then on each matching event creates one job (``app.subscriptions``).
        """
        return self._declared.on(pattern, options)

    def redact(self, *secrets: str) -> None:
        """Keep these values out of errors, reasons, progress and log lines from now on. They are not stored."""
        for secret in secrets:
            self._redactor.register(secret)
        self._ready_redactor()

    def approval_notifier(
        self, name: str = "approval_notice", **options: Unpack[JobOptions]
    ) -> Callable[[Callable[..., Any]], Kind[..., Any]]:
        """Declare how approvers are notified::

            @app.approval_notifier()
            async def notify(notice: holdfast.ApprovalNotice) -> None: ...

        The notifier is a job. It is enqueued when an approval is requested, repeated as a reminder, or escalated, in
        the queue of the job that waits. Options are those of ``job``, except ``queue``, ``priority``, ``tags``,
        ``retry``, ``at_most_once`` and ``requires_approval``.
        """
        refused = options.keys() & {"queue", "priority", "tags", "retry", "at_most_once", "requires_approval"}
        if refused:
            raise InvalidSetting(
                f"a notifier cannot set {', '.join(sorted(refused))}: the store enqueues it",
                code="unknown_option",
            )

        def declare(function: Callable[..., Any]) -> Kind[..., Any]:
            check_notifier(function, skip=int(wants_context(function)))
            kind: Kind[..., Any] = self._job(name, options)(function)
            self._notifier = kind.name
            return kind

        return declare

    def _ready_redactor(self) -> Redactor:
        """Return the app's redactor after adding the secrets of the environment. Log lines use it too."""
        self._redactor.know(*self._redactor.in_environment(config.environment()), *config.key_values())
        redact_with(self._redactor)
        return self._redactor


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
