"""``App.job``, ``command``, ``report``, ``schedule``, ``on``, ``approval_notifier``, ``redact``: what code declares."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar, Unpack, overload

from holdfast import config
from holdfast.app.built_in import built_in
from holdfast.app.handlers import Declared, RunMode, wants_context
from holdfast.app.process_handlers import Process, as_process, target_of
from holdfast.context import Context, SyncContext
from holdfast.engine.hooks import AppHooks, Hooks
from holdfast.engine.job import DEFAULT_RETRY, Enqueued
from holdfast.engine.names import check_name, check_options
from holdfast.engine.redaction import Redactor
from holdfast.engine.retry import AT_MOST_ONCE, Retry, as_policy
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting
from holdfast.features.connectors.command_runner import CommandSettings, Program, command_parts
from holdfast.features.connectors.outbound import Outbound
from holdfast.features.connectors.report import Source, Sources, add_source
from holdfast.features.events.operations import Declarations, Following
from holdfast.features.jobs.handle import Handle
from holdfast.features.limits.model import uses
from holdfast.features.payloads.model import PayloadPolicy, RuleOptions
from holdfast.features.payloads.operations import PayloadRules
from holdfast.features.retention.model import RetentionRule, check_cost
from holdfast.features.retention.operations import RetentionPolicies
from holdfast.features.schedules.model import Missed, Overlap, ScheduleDraft
from holdfast.features.schedules.runs import Scheduler
from holdfast.kind import Kind, Options, Prepared, RetryAs
from holdfast.steps.approvals import Asking, asking, check_notifier
from holdfast.steps.signature import Signature
from holdfast.stores.session import Session
from holdfast.telemetry.logs import trust

T = TypeVar("T")

MARK = "__holdfast_schedules__"
_PARTS = ("kind", "template", "name", "tz", "payload", "missed", "overlap", "jitter")


class Timed(TypedDict, total=False):
    """What ``app.schedule`` takes besides the times. ``name`` is the kind's, or the template's, unless it is given."""

    name: str
    kind: str | Kind[..., Any]
    template: str
    tz: str
    payload: Mapping[str, Any]
    missed: Missed
    overlap: Overlap
    jitter: Duration
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
    """What ``app.schedule(…)`` returns: declared already if it names a kind or a template, else to be put on a job."""

    def __init__(self, scheduler: Scheduler, timing: str, definition: Timed) -> None:
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
            self._draft("unnamed")  # refused at once where it stands

    def __call__(self, target: T) -> T:
        if self._declared:
            raise InvalidSetting("this schedule already has a kind", code="conflicting_options")
        if isinstance(target, Kind):
            self._declare(target.name)
        else:  # a function that is about to be declared as a job
            marks = [*getattr(target, MARK, ()), self._declare]
            setattr(target, MARK, marks)
        return target

    def _declare(self, kind: str | None) -> None:
        self._scheduler.declare(self._draft(kind))

    def _draft(self, kind: str | None) -> ScheduleDraft:
        parts = {name: self._definition[name] for name in _PARTS if name in self._definition and name != "kind"}
        options = {name: value for name, value in self._definition.items() if name not in _PARTS}
        template = parts.get("template")
        made_of = str(kind or template)  # the kind of a template is asked of the database
        name = parts.pop("name", None) or made_of
        return ScheduleDraft.of(name, self._timing, kind=made_of, options=options, **parts)


def declare_marked(scheduler: Scheduler, function: Callable[..., Any], kind: str) -> None:
    """Declare the schedules that were put on a function before it became a job."""
    for declare in getattr(function, MARK, ()):
        declare(kind)


class TemplateMaker:
    """What templates are lent: kinds to check arguments against, and handles for what was enqueued."""

    def __init__(
        self, client: Session, kinds: Mapping[str, Declared], prepare: Callable[[str, Any, Any], Prepared[Any]]
    ) -> None:
        self._client = client
        self._kinds = kinds
        self._prepare = prepare

    def fits(self, kind: str, payload: Mapping[str, Any]) -> None:
        known = self._kinds.get(kind)
        if known is not None:
            known.kind._signature.check_some(payload)

    def prepare(self, kind: str, payload: Any, options: dict[str, Any]) -> Prepared[Any]:
        return self._prepare(kind, payload, options)

    def handle(self, answers: Sequence[Enqueued], prepared: Prepared[Any]) -> Handle[Any]:
        return self._client.accepted(answers, prepared.tenant, prepared.decode)


P = ParamSpec("P")
R = TypeVar("R")
K = TypeVar("K", bound=Kind[..., Any])
S = TypeVar("S", bound=Source)


class JobOptions(TypedDict, total=False):
    """Options of ``@app.job``.

    ``queue``, ``executor``, ``priority``, ``tags``, ``retry`` and ``retry_as`` are defaults that ``using`` can replace.
    ``executor`` is the label of the workers that may run its jobs. With
    ``retry_as="new_job"`` a failed job does not run again: each retry is a job of its own.
    ``timeout`` ends an attempt that takes longer.
    ``limit_key`` and ``resources`` are what its jobs count against (``app.limits``).
    ``at_most_once`` is for work that must not be done twice and may not be done at all: a job that fails, or whose
    worker is lost, becomes a dead letter at once, and only a person can start it again.
    ``process`` runs the handler in a child process, which is killed on timeout: True, or a ``Process`` with a memory
    limit and other settings.
    ``requires_approval`` asks people before a job runs: True, or options of ``ctx.approval``.
    ``keep`` is how long a job is kept after its end (``app.retention``); ``cost`` is the cost of an attempt
    (``app.usage``).
    ``rules`` are rules for payloads and results, as a ``PayloadPolicy`` (``app.payload_rules``).
    ``hooks`` are run around its jobs, inside those of the app (``app.hooks``).
    """

    queue: str
    executor: str | None
    priority: int
    retry: Retry | str | None
    retry_as: RetryAs | None
    timeout: Duration | None
    tags: Sequence[str]
    limit_key: str | None
    resources: Sequence[str]
    at_most_once: bool
    process: bool | Process
    requires_approval: bool | Asking
    keep: Duration | None
    cost: float | None
    rules: PayloadPolicy | None
    hooks: Sequence[Hooks]


def _rules(given: object) -> RuleOptions:
    if given is None:
        return {}
    if not isinstance(given, PayloadPolicy):
        raise InvalidSetting(f"rules must be a PayloadPolicy, not {type(given).__name__}", code="invalid_setting")
    return given.options()


class Declaring:
    _session: Session
    _kinds: dict[str, Declared]
    _scheduler: Scheduler
    _declared: Declarations
    retention: RetentionPolicies
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
        """Declare a kind: ``@app.job``, or with options ``@app.job(queue="mail", retry=Retry(max_attempts=5))``.

        The kind is called like the function unless a name is given: ``@app.job("mail.send")``. ``JobOptions`` explains
        the options.
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
            uses(limit_key, resources)  # refused now rather than when the first is enqueued
            defaults |= Options(limit_key=limit_key, resources=resources)
        if retry_as is not None:
            defaults["retry_as"] = retry_as
        if (executor := options.get("executor")) is not None:
            defaults["executor"] = check_name(executor, "executor")
        timeout, keep, cost = options.get("timeout"), options.get("keep"), options.get("cost")
        limit = None if timeout is None else seconds(timeout, "timeout")
        way = as_process(options.get("process", False))
        approval = asking(options.get("requires_approval", False))
        kept = None if keep is None else RetentionRule.of(purge_after=keep, declared=True)
        spent = None if cost is None else check_cost(cost)
        said = (name, defaults, limit, at_most_once, way, approval, kept, spent, _rules(options.get("rules")))
        hooks = options.get("hooks", ())
        return JobDecorator(lambda function: self._declare(function, *said, hooks=hooks))

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
        """Declare a kind whose jobs run a program: ``app.command("thumb", ["convert", "{source}", "{target}"])``."""
        function, options, timeout, program = command_parts(name, argv, settings)
        return self._declare(function, name, options, timeout, way=program)

    def report(self, name: str) -> Callable[[S], S]:
        """Rows that jobs of kind ``report.generate`` may ask for: ``@app.report("sales")`` above a function that
        yields them, given the job's ``arguments`` (and ``ctx``, if that is what its first parameter is called)."""

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
        way: RunMode | None = None,
        approval: Asking | None = None,
        keep: RetentionRule | None = None,
        cost: float | None = None,
        rule: RuleOptions | None = None,
        hooks: Sequence[Hooks] = (),
    ) -> Kind[..., Any]:
        kind = check_name(name or function.__name__, "kind")
        if kind in self._kinds:
            raise InvalidSetting(f"a job named {kind!r} already exists", code="duplicate_kind")
        answers = not isinstance(way, Program)  # the function of a command makes its command line
        signature = self._signature_type(function, kind, skip=int(wants_context(function)), answers=answers)
        says = self.payload_rules._declare(kind, rule or {})
        facts = (kind, self._session, signature, function, options, at_most_once, approval)
        declared: Kind[..., Any] = Kind(*facts, _rule=says)
        if isinstance(way, Process):
            target_of(kind, function)  # refused now rather than when the first job runs
        if hooks:
            self.hooks.declare(kind, hooks)
        self._kinds[kind] = Declared(declared, timeout, way, cost)
        self.retention._declare(kind, keep)
        declare_marked(self._scheduler, function, kind)
        return declared

    def _built_in(self) -> dict[str, Declared]:
        """Kinds that are there without being declared. One that a program declares itself takes their place."""
        made: dict[str, Declared] = {}
        for name, function, signature, options in built_in(self._outbound, self._reports):
            made[name] = Declared(Kind(name, self._session, signature, function, options))
        return made

    def schedule(self, timing: str, **definition: Unpack[Timed]) -> ScheduleDecorator:
        """Declare when a kind is run by itself: ``@app.schedule("0 9 * * MON-FRI", tz="Europe/Paris")`` above or below
        ``@app.job()``, or ``app.schedule("@daily", kind=…)`` (or ``template=…``) for one that is declared elsewhere.
        """
        return ScheduleDecorator(self._scheduler, timing, definition)

    def on(self, pattern: str, **wanted: Unpack[Following]) -> Callable[[K], K]:
        """Create jobs of this kind from events: ``@app.on("job.succeeded", kind="import")`` above ``@app.job()``.

        The handler receives the event (``event``), or the ``payload`` built from it. A worker stores the subscription
        when it starts; from then on each matching event creates one job (``app.subscriptions``).
        """
        return self._declared.on(pattern, wanted)

    def redact(self, *secrets: str) -> None:
        """Keep these values out of errors, reasons, progress and log lines from now on. (They are not stored.)"""
        for secret in secrets:
            self._redactor.register(secret)
        self._ready_redactor()

    def approval_notifier(
        self, name: str = "approval_notice", **options: Unpack[JobOptions]
    ) -> Callable[[Callable[..., Any]], Kind[..., Any]]:
        """Declare how people are notified: ``@app.approval_notifier()`` above a function that takes an
        ``ApprovalNotice``.

        It is a job like any other, enqueued when an approval is requested, reminded of or escalated, in the queue of
        the job that asks. Options are those of ``job`` that say how it runs.
        """
        in_vain = options.keys() & {"queue", "priority", "tags", "retry", "at_most_once", "requires_approval"}
        if in_vain:
            raise InvalidSetting(
                f"a notifier cannot set {', '.join(sorted(in_vain))}: the store enqueues it",
                code="unknown_option",
            )

        def declare(function: Callable[..., Any]) -> Kind[..., Any]:
            check_notifier(function, skip=int(wants_context(function)))
            kind: Kind[..., Any] = self._job(name, options)(function)
            self._notifier = kind.name
            return kind

        return declare

    def _ready_redactor(self) -> Redactor:
        """The app's redactor, now that it must know what is secret in the environment. Log lines go by it, too."""
        self._redactor.know(*self._redactor.in_environment(config.environment()), *config.key_values())
        trust(self._redactor)
        return self._redactor


class JobDecorator:
    """What ``@app.job(…)`` returns. The overloads give ``enqueue`` the handler's parameters, without the context, and
    the handle its result."""

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
