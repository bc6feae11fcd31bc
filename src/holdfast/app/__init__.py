"""``App``: the entry point. One database, the kinds of one program, and a namespace for each noun."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from typing import TYPE_CHECKING, Any, Concatenate, Never, ParamSpec, TypeVar, Unpack, overload

from holdfast import config
from holdfast.app.declarations import (
    JobDecorator,
    JobOptions,
    ScheduleDecorator,
    Timed,
    built_in,
    declare,
    declare_job,
    notifier_decorator,
    workflow,
)
from holdfast.app.enqueue import JobMaker, aenqueue_many, enqueue_many
from holdfast.app.internals import blocking_tick, make_repository, make_worker, ready_redactor, run_tick, run_worker
from holdfast.app.namespaces import Namespaces
from holdfast.app.repository import JobRepository
from holdfast.context import Context, SyncContext, current
from holdfast.engine.hints import check_options, no_attribute
from holdfast.engine.hooks import AppHooks
from holdfast.engine.names import NamedKind, check_name
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.payload import encode
from holdfast.engine.redaction import Redactor
from holdfast.engine.requirement import check_version
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting
from holdfast.features.assembly import open_store
from holdfast.features.connectors.command_runner import CommandSettings, command_declaration
from holdfast.features.connectors.http_request import Outbound, OutgoingHeaders, SecretProvider
from holdfast.features.connectors.report import Source, Sources, add_source
from holdfast.features.events.model import check_event_name
from holdfast.features.events.operations import Declarations, SubscriptionOptions
from holdfast.features.jobs.handle import Handle
from holdfast.features.schedules.model import When
from holdfast.features.schedules.runs import Scheduler
from holdfast.features.workflows.run import WorkflowOptions, WorkflowPlan
from holdfast.kind import PAYLOAD_LIMIT, Kind, Options, Prepared
from holdfast.outgoing import EgressPolicy
from holdfast.steps.signature import Signature
from holdfast.stores.application_pool import url_of
from holdfast.stores.artifacts import Artifacts, ArtifactStore
from holdfast.stores.flow import run
from holdfast.stores.namespace import call
from holdfast.stores.port import POOL_SIZE
from holdfast.stores.requests import SendEvent, SentResult, new_id
from holdfast.stores.session import Session
from holdfast.stores.vault import Vault
from holdfast.telemetry import observers
from holdfast.worker.options import TickKeywords, TickSummary, WorkerKeywords
from holdfast.worker.worker import Worker, WorkerOptions

if TYPE_CHECKING:
    from holdfast.stores.application_pool import ApplicationPool


P = ParamSpec("P")
R = TypeVar("R")
K = TypeVar("K", bound=Kind[..., Any])
S = TypeVar("S", bound=Source)


class App(Namespaces):
    """One database, one tenant, and the kinds of one program::

        app = holdfast.App()  # the database that HOLDFAST_URL names

        @app.job(retry=Retry(max_attempts=5))
        async def send(to: str) -> None: ...

        send.enqueue("a@example.com")

    Creating an app opens no connection. Every operation of a namespace has a sync and an async form:
    ``app.limits.list()``, ``await app.limits.alist()``.

    Parameters:

    - ``url``: the database. By default ``HOLDFAST_URL``; raises ``InvalidSetting`` if there is neither.
    - ``tenant``: the tenant to work for. ``with app.tenant(name):`` changes it for a block.
    - ``name``: recorded as the ``source_system`` of jobs. By default the program's name.
    - ``schema``: the schema of the tables, in a database that has schemas.
    - ``enqueued_by``: recorded as the caller. By default the user of the operating system.
    - ``secret_names``: more names of environment variables whose values are redacted.
    - ``answer_within``: how long a database server may take to respond before the connection is dropped. By default
      30 seconds.
    - ``pool_size``: the number of connections to a database server for threads, and the same number per event loop.
    - ``pool``: the application's own pool or engine, whose connections are used instead of such connections: a pool of
      psycopg or asyncpg, or an engine of SQLAlchemy. Only that of asyncpg needs the URL too.
    - ``strict``: refuse to start a worker whose database role may read and write everything.
    - ``artifacts``: the artifact store: a directory, ``s3://…``, or an ``ArtifactStore``. By default
      ``HOLDFAST_ARTIFACTS``.
    - ``egress``: which addresses outgoing HTTP requests of jobs may reach.
    - ``secrets``: a function that returns a secret by its name and tenant. By default ``HOLDFAST_SECRET_…`` variables.
    - ``outgoing_headers``: a function that returns headers for each outgoing request. By default those of the trace.
    - ``version``: the version of the application that workers report (``app.versions``). By default
      ``HOLDFAST_APP_VERSION``.
    """

    hooks: AppHooks
    """Functions that run around enqueue, around each attempt, and after its end."""

    # An integration may replace it with a session that uses the framework's connection.
    _session_type: type[Session] = Session
    _signature_type: type[Signature] = Signature
    # The loop of a web application that runs in this process now. The test kit runs jobs there.
    _host_loop: asyncio.AbstractEventLoop | None = None

    def __init__(
        self,
        url: str | None = None,
        *,
        tenant: str = "default",
        name: str | None = None,
        schema: str = "holdfast",
        enqueued_by: str | None = None,
        secret_names: Sequence[str] = (),
        answer_within: Duration | None = None,
        pool_size: int = POOL_SIZE,
        pool: ApplicationPool | None = None,
        strict: bool = False,
        artifacts: str | PathLike[str] | ArtifactStore | None = None,
        egress: EgressPolicy | None = None,
        secrets: SecretProvider | None = None,
        outgoing_headers: OutgoingHeaders | None = None,
        version: str | None = None,
        **unknown: Never,
    ) -> None:
        check_options(unknown, _PARAMETERS)
        limit = None if answer_within is None else seconds(answer_within, "answer_within")
        database = config.database_url(url or (None if pool is None else url_of(pool)))
        self._schema, self._strict = schema, strict
        self.hooks = AppHooks()
        self._session = session = self._session_type(
            open_store(database, schema=schema, answer_within=limit, pool_size=pool_size, pool=pool),
            tenant=check_name(tenant, "tenant"),
            name=check_name(name or config.program_name(), "name"),
            actor=check_name(enqueued_by or config.operating_user(), "enqueued_by"),
            vault=Vault.of(artifacts or config.artifact_location(database), config.key_text()),
            hooks=self.hooks,
            version=None if (running := version or config.application_version()) is None else check_version(running),
        )
        self._declared = Declarations()
        self._notifier: str | None = None
        self._role_checked = False
        self._redactor = Redactor(check_name(name, "secret name") for name in secret_names)
        self._egress = egress or EgressPolicy(allow=config.egress_networks(), proxy=config.egress_proxy())
        self._outbound = Outbound(
            self._egress,
            secrets or config.tenant_secret,
            self._redactor,
            outgoing_headers or (lambda _: observers.outgoing_headers()),
        )
        self._reports = Sources()
        self._make = make = JobMaker(session, built_in(session, self._outbound, self._reports))
        self._kinds, self._all_kinds = make.declared, make.all
        self._scheduler = Scheduler(session, session.name, make.all.keys(), make.spec)
        super().__init__(session, make)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("App", self, name)

    @property
    def artifacts(self) -> Artifacts | None:
        """The artifact store, if one is configured: ``app.artifacts.get(ref, tenant=…)``."""
        return self._session.vault.artifacts

    def tenant(self, name: str) -> AbstractContextManager[None]:
        """Work for another tenant within the block: ``with app.tenant("acme"): …``.

        It applies to this task or thread. A handler always works for the tenant of its job.
        """
        return self._session.acting_for(name)

    @operation
    def migrate(self) -> Program[None]:
        """Create the tables, or bring them to this release: for a server what ``holdfast migrate`` does.

        An embedded database is migrated on first use anyway. Needs the rights of the owner of the tables.
        """
        yield from call(self._session.migrate)

    amigrate = awaited(migrate)

    @operation
    def close(self) -> Program[None]:
        """Close all connections."""
        yield from call(self._store.close, self._store.aclose)

    aclose = awaited(close)

    # --- declaring ---

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
            return declare_job(self, None, options)(name)
        return declare_job(self, name, options)

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
        return declare(self, function, name, options, timeout, run_mode=program)

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

    def schedule(self, timing: When = "", **definition: Unpack[Timed]) -> ScheduleDecorator:
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
        return notifier_decorator(self, name, options)

    def redact(self, *secrets: str) -> None:
        """Keep these values out of errors, reasons, progress and log lines from now on. They are not stored."""
        for secret in secrets:
            self._redactor.register(secret)
        ready_redactor(self)

    # --- enqueuing ---

    def enqueue(
        self, kind: str | NamedKind, payload: Any = None, *more: Never, **options: Unpack[Options]
    ) -> Handle[Any]:
        """Enqueue a job by the name of its kind: ``app.enqueue("send", {"to": "a@example.com"}, priority=5)``.

        The kind may be declared in another program. If this app declares it, the arguments are checked and the kind's
        options apply. Raises as ``Kind.enqueue``.
        """
        return self._make.prepare(kind, payload, options, more).enqueue(self._session)

    async def aenqueue(
        self, kind: str | NamedKind, payload: Any = None, *more: Never, **options: Unpack[Options]
    ) -> Handle[Any]:
        """Enqueue a job by the name of its kind without blocking the event loop; see ``enqueue``."""
        declared = self._make.declared.get(kind if isinstance(kind, str) else check_name(kind, "kind"))
        if declared is not None and declared.kind._rule.store:  # writing to the artifact store may block
            prepared = await asyncio.to_thread(self._make.prepare, kind, payload, options, more)
        else:
            prepared = self._make.prepare(kind, payload, options, more)
        return await prepared.aenqueue(self._session)

    def prepare(
        self, kind: str | NamedKind, payload: Any = None, *more: Never, **options: Unpack[Options]
    ) -> Prepared[Any]:
        """Check the arguments of a job by the name of its kind, and return a call for ``enqueue_many``."""
        return self._make.prepare(kind, payload, options, more)

    def enqueue_many(self, calls: Iterable[Prepared[R]], *, connection: object | None = None) -> list[Handle[R]]:
        """Enqueue many jobs in one transaction per tenant: ``app.enqueue_many(send.prepare(to) for to in addresses)``.

        Returns handles in the same order. The handle of a job that was refused has ``created`` False and a ``reason``.
        Pass your own ``connection`` to make the jobs part of its transaction.
        """
        return enqueue_many(self._session, calls, connection)

    async def aenqueue_many(self, calls: Iterable[Prepared[R]], *, connection: object | None = None) -> list[Handle[R]]:
        """Enqueue many jobs without blocking the event loop; see ``enqueue_many``."""
        return await aenqueue_many(self._session, calls, connection)

    @overload
    def workflow(self, kind: str, /, **options: Unpack[WorkflowOptions]) -> WorkflowPlan: ...
    @overload
    def workflow(self, function: Callable[Concatenate[WorkflowPlan, P], Any], /) -> Kind[P, str]: ...
    @overload
    def workflow(
        self, kind: None = None, /, **options: Any
    ) -> Callable[[Callable[Concatenate[WorkflowPlan, P], Any]], Kind[P, str]]: ...
    def workflow(self, kind: Any = None, /, **options: Any) -> Any:
        """Plan a workflow: jobs that start after the jobs they depend on::

            wf = app.workflow("publish")
            page = wf.add(fetch, 7)
            wf.add(render, after=page)
            run = wf.start()

        ``on_failure`` decides what happens to the jobs after one that failed: ``"skip"`` them, ``"continue"`` anyway,
        or ``"stop"`` the workflow. A ``key`` starts the workflow once, however often the code runs.

        As a decorator, ``@app.workflow`` declares a kind whose jobs plan and start a workflow. It can be scheduled and
        enqueued like any kind; the result of its job is the id of the workflow::

            @app.workflow(on_failure="stop")
            def nightly(wf: holdfast.WorkflowPlan, day: str) -> None:
                wf.add(render, after=wf.add(fetch, day))

        The options of the decorator are ``name``, ``on_failure`` and those of ``job``.
        """
        return workflow(self, kind, options)

    @operation
    def send_event(
        self,
        name: str,
        data: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        job: str | None = None,
        tenant: str | None = None,
    ) -> Program[SentResult]:
        """Send an event. Jobs that wait for it continue, and subscriptions to it create jobs.

        ``data`` is a JSON object. With a ``key``, the event is recorded once, however often it is sent. With a ``job``,
        only that job receives it. Raises ``InvalidSetting``, ``Refused``, or ``NotFound`` for an unknown job.
        """
        if data is not None and not isinstance(data, dict):
            raise InvalidSetting("event data must be a JSON object", code="invalid_event")
        text = encode(data or {}, limit=PAYLOAD_LIMIT, what=f"data of event {name}")
        event_key = None if key is None else check_name(key, "key", limit=255)
        context = current()
        cause = None if context is None else context.job_id
        event = SendEvent(new_id(), check_event_name(name), text, event_key, job, cause)
        return (yield from run(self._store.ledger.send(event, self._actor, tenant or self._tenant)))

    asend_event = awaited(send_event)

    # --- running ---

    def worker(self, **options: Unpack[WorkerKeywords]) -> Worker:
        """Return a worker for all kinds of this app. Run it with ``asyncio.run(worker.run())``.

        The options are those of ``run_worker``. If the database is restarting, it waits. Most programs use
        ``holdfast worker`` or ``run_worker`` instead. With ``idle_after`` it ends when it has been idle for so long.
        """
        return make_worker(self, WorkerOptions(**options))

    def run_worker(self, **options: Unpack[WorkerKeywords]) -> None:
        """Run a worker in this thread until it is stopped; with ``burst=True``, until no job is left::

        app.run_worker(queues=("mail",), concurrency=32)
        """
        run_worker(self, WorkerOptions(**options))

    def tick(self, limit: int = 10, **options: Unpack[TickKeywords]) -> TickSummary:
        """Run at most ``limit`` jobs that are due and return a summary. For cron and serverless hosts.

        Raises ``InvalidSetting`` on a running event loop: use ``await app.atick(…)`` there.
        """
        return blocking_tick(self, limit, options)

    async def atick(
        self, limit: int = 10, *, stop: asyncio.Event | None = None, **options: Unpack[TickKeywords]
    ) -> TickSummary:
        """Run at most ``limit`` jobs on the running event loop; see ``tick``.

        Set ``stop`` to end early: running jobs are released, as after the timeout.
        """
        return await run_tick(self, limit, stop, options)

    def repository(self, *, ttl: Duration = 60.0, tenant: str | None = None) -> JobRepository:
        """Return a ``JobRepository``, to claim and settle jobs in a loop of your own instead of a worker.

        ``ttl`` is how long a claim lasts without another call. ``tenant`` is by default that of the app.
        """
        return make_repository(self, seconds(ttl, "ttl"), tenant)


_PARAMETERS = App.__init__.__annotations__.keys() - {"unknown", "return"}
