"""The app: where kinds are declared, jobs are enqueued, and a worker finds its handlers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import ChainMap
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from os import PathLike
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from holdfast import bulk, config
from holdfast.arguments import Signature
from holdfast.artifacts import Artifacts, ArtifactStore
from holdfast.calling import Declared, Means, Way, wants_context
from holdfast.client import Client, new_id
from holdfast.connectors.built_in import built_in
from holdfast.connectors.reach import Reach, SecretProvider
from holdfast.connectors.report import Source, Sources, add_source
from holdfast.connectors.settings import CommandSettings, command_parts
from holdfast.context import Context, SyncContext, current
from holdfast.domain.durations import Duration, seconds
from holdfast.domain.errors import InvalidSetting
from holdfast.domain.gates import GateState
from holdfast.domain.job import DEFAULT_RETRY, Event, Job, JobSpec, Verdict
from holdfast.domain.keys import check_name
from holdfast.domain.limits import uses
from holdfast.domain.order import Move
from holdfast.domain.payload import encode
from holdfast.domain.policies import AT_MOST_ONCE, Retry, as_policy, as_stored_policy
from holdfast.domain.redaction import Redactor
from holdfast.domain.retention import Keeping
from holdfast.domain.rules import NO_RULE, RuleOptions
from holdfast.domain.sizes import Size
from holdfast.domain.subscriptions import SentEvent
from holdfast.domain.tick import Ticking, TickOptions, TickSummary
from holdfast.domain.usage import check_cost
from holdfast.durable.approvals import Asking, asking, check_notifier
from holdfast.durable.drivers import Lent, Reached
from holdfast.egress import EgressPolicy
from holdfast.features.agents import Agents
from holdfast.features.approvals import Approvals, Said
from holdfast.features.audit import Audit
from holdfast.features.dead_letters import DeadLetters
from holdfast.features.endpoints import Endpoints
from holdfast.features.executors import Executors
from holdfast.features.limits import Limits
from holdfast.features.operations import Operations
from holdfast.features.payload_rules import PayloadRules
from holdfast.features.queues import Queues
from holdfast.features.redriving import FromStep
from holdfast.features.repository import JobRepository
from holdfast.features.reservations import Reservations, Reserving
from holdfast.features.retention import Retentions
from holdfast.features.scheduler import Scheduler
from holdfast.features.schedules import Schedules
from holdfast.features.subscriptions import Consumers, Declarations, Following, Subscriptions
from holdfast.features.templates import Templates
from holdfast.features.tenants import Tenants
from holdfast.features.usage import Metering
from holdfast.features.workflows import Workflows
from holdfast.handle import Handle
from holdfast.insights import Why, why
from holdfast.kind import PAYLOAD_LIMIT, Kind, Options, Prepared, RetryAs, make_spec, pack_payload
from holdfast.logs import trust
from holdfast.operating import Operating
from holdfast.processes import ProcessOptions, target_of
from holdfast.runtime.children.pool import Children
from holdfast.runtime.recording import Recorder
from holdfast.runtime.threads import Threads
from holdfast.runtime.tick import Tick
from holdfast.runtime.worker import Worker, WorkerOptions
from holdfast.scheduling import Desk, ScheduleDecorator, Timed, declare_marked
from holdfast.stores.base import JobFilter, Reschedule, Sent, Store, Telling
from holdfast.stores.flow import Flow
from holdfast.stores.open import open_store
from holdfast.telemetry.tracing import outgoing_headers
from holdfast.vault import Vault
from holdfast.workflows import Extension, WorkflowOptions, WorkflowPlan, extend_workflow, plan_workflow

P = ParamSpec("P")
R = TypeVar("R")
K = TypeVar("K", bound=Kind[..., Any])
S = TypeVar("S", bound=Source)


class App(Operating):
    """One database, one tenant, the kinds of one program. Without a URL, HOLDFAST_URL names the database."""

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
        strict: bool = False,
        artifacts: str | PathLike[str] | ArtifactStore | None = None,
        egress: EgressPolicy | None = None,
        secrets: SecretProvider | None = None,
    ) -> None:
        limit = None if answer_within is None else seconds(answer_within, "answer_within")
        self.schema, self.strict, named = schema, strict, config.database_url(url)
        self.client = Client(
            open_store(named, schema=schema, answer_within=limit),
            tenant=check_name(tenant, "tenant"),
            name=check_name(name or config.program_name(), "name"),
            actor=check_name(enqueued_by or config.operating_user(), "enqueued_by"),
            vault=Vault.of(artifacts or config.artifact_place(named), config.key_text()),
        )
        self.payload_rules = PayloadRules(self.client, self.client.name)
        self.agents = Agents(self.client)
        self.limits = Limits(self.client)
        self.audit = Audit(self.client)
        self.queues = Queues(self.client)
        self.reservations = Reservations(self.client)
        self.subscriptions, self.consumers = Subscriptions(self.client), Consumers(self.client)
        self.executors, self.tenants = Executors(self.client), Tenants(self.client)
        self.retention, self.usage = Retentions(self.client), Metering(self.client)
        self.operations = Operations(self.client, new_id)
        self.endpoints = Endpoints(self.client)
        self.declared = Declarations()
        self.kinds: dict[str, Declared] = {}
        self.notifier: str | None = None
        self.redactor = Redactor(check_name(name, "secret name") for name in secret_names)
        self.egress = egress or EgressPolicy(allow=config.egress_networks(), proxy=config.egress_proxy())
        self.reach, self.reports = (
            Reach(self.egress, secrets or config.tenant_secret, self.redactor, lambda _: outgoing_headers()),
            Sources(),
        )
        self.all_kinds = ChainMap(self.kinds, self._built_in())
        self.scheduler = Scheduler(self.client, self.client.name, self.all_kinds.keys(), self._make, new_id)

    @property
    def store(self) -> Store:
        return self.client.store

    @property
    def artifacts(self) -> Artifacts | None:
        """Where what is large lies, if a place is named: ``app.artifacts.get(ref, tenant=…)``."""
        return self.client.vault.artifacts

    @contextmanager
    def moved_to(self, store: Store, schema: str) -> Iterator[None]:
        """On another database for the length of the block, with every kind that was declared. For tests."""
        own, self.schema = self.schema, schema
        self.client.move_to(store)
        try:
            yield
        finally:
            self.client.move_to(self.client.home)
            self.schema = own

    def tenant(self, name: str) -> AbstractContextManager[None]:
        """Work for another tenant within the block: ``with app.tenant("acme"): …``. In a handler it is the job's."""
        return self.client.acting_for(name)

    # --- declaring ---

    def job(
        self,
        name: str | None = None,
        *,
        queue: str = "default",
        priority: int = 0,
        retry: Retry | str | None = None,
        retry_as: RetryAs | None = None,
        timeout: Duration | None = None,
        tags: Sequence[str] = (),
        limit_key: str | None = None,
        resources: Sequence[str] = (),
        at_most_once: bool = False,
        process: bool = False,
        memory: Size | None = None,
        recycle: int | None = None,
        niceness: int | None = None,
        requires_approval: bool | Asking = False,
        keep: Duration | None = None,
        cost: float | None = None,
        **rule: Unpack[RuleOptions],
    ) -> JobDecorator:
        """Declare a kind: ``@app.job(queue="mail", retry=holdfast.Retry(max_attempts=5), timeout=30)``.

        ``at_most_once`` is for what must not be done twice, at the price that it may not be done at all: a job that
        fails, or whose worker is lost, is a dead letter at once, and only a person can have it begun again.
        ``limit_key`` and ``resources`` are what its jobs count against where they are limited (``app.limits``).
        With ``retry_as="new_job"`` a failed job is never run again: each retry is a job of its own (``app.chain``).
        With ``process=True`` the handler runs in a child process, which is killed when its time is up.
        With ``requires_approval`` people are asked before a job is run at all; options of ``ctx.approval`` say whom.
        ``keep`` is how long a job is kept after its end (``app.retention``), ``cost`` an attempt's price (``usage``).
        The rest are rules for its payloads (``app.payload_rules``): ``signal_only``, ``forbidden``, ``restricted``,
        ``max_bytes``, ``max_result_bytes``, ``store``.
        """
        if callable(name):
            raise InvalidSetting("write @app.job() with parentheses", code="missing_parentheses")
        if at_most_once and (retry is not None or retry_as is not None):
            raise InvalidSetting("a job is tried again or begun at most once, not both", code="conflicting_options")
        policy = AT_MOST_ONCE if at_most_once else DEFAULT_RETRY if retry is None else as_policy(retry)
        options = Options(queue=queue, priority=priority, tags=tags, retry=policy)
        if limit_key is not None or resources:
            uses(limit_key, resources)  # refused now rather than when the first is enqueued
            options |= Options(limit_key=limit_key, resources=resources)
        if retry_as is not None:
            options["retry_as"] = retry_as
        limit = None if timeout is None else seconds(timeout, "timeout")
        way = ProcessOptions.of(process, memory, recycle, niceness)
        gate = asking(requires_approval)
        kept = None if keep is None else Keeping.of(purge_after=keep, declared=True)
        spent = None if cost is None else check_cost(cost)
        return JobDecorator(self, name, options, limit, at_most_once, way, gate, kept, spent, rule)

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
        return self.declare(function, name, options, timeout, way=program)

    def report(self, name: str) -> Callable[[S], S]:
        """Rows that jobs of kind ``report.generate`` may ask for: ``@app.report("sales")`` above a function that
        yields them, given the job's ``arguments`` (and ``ctx``, if that is what its first parameter is called)."""

        def add(function: S) -> S:
            add_source(self.reports, name, function)
            return function

        return add

    def declare(
        self,
        function: Callable[..., Any],
        name: str | None,
        options: Options,
        timeout: float | None,
        at_most_once: bool = False,
        way: Way | None = None,
        approval: Asking | None = None,
        keep: Keeping | None = None,
        cost: float | None = None,
        rule: RuleOptions | None = None,
    ) -> Kind[..., Any]:
        kind = check_name(name or function.__name__, "kind")
        if kind in self.kinds:
            raise InvalidSetting(f"there is a job called {kind!r} already", code="duplicate_kind")
        signature = Signature(function, kind, skip=int(wants_context(function)))
        says = self.payload_rules.declare(kind, rule or {})
        facts = (kind, self.client, signature, function, options, at_most_once, approval)
        declared: Kind[..., Any] = Kind(*facts, rule=says)
        if isinstance(way, ProcessOptions):
            target_of(kind, function)  # refused now rather than when the first job runs
        self.kinds[kind] = Declared(declared, timeout, way, cost)
        self.retention.declare(kind, keep)
        declare_marked(self.scheduler, function, kind)
        return declared

    def _built_in(self) -> dict[str, Declared]:
        """Kinds that are there without being declared. One that a program declares itself takes their place."""
        made: dict[str, Declared] = {}
        for name, function, signature, options in built_in(self.reach, self.reports):
            made[name] = Declared(Kind(name, self.client, signature, function, options))
        return made

    def schedule(self, timing: str, **definition: Unpack[Timed]) -> ScheduleDecorator:
        """Declare when a kind is run by itself: ``@app.schedule("0 9 * * MON-FRI", tz="Europe/Paris")`` above or below
        ``@app.job()``, or ``app.schedule("@daily", kind=…)`` (or ``template=…``) for one that is declared elsewhere.
        """
        return ScheduleDecorator(self.scheduler, timing, definition)

    def on(self, pattern: str, **wanted: Unpack[Following]) -> Callable[[K], K]:
        """Have events make jobs of this kind: ``@app.on("job.succeeded", kind="import")`` above ``@app.job()``.

        The handler is given the event (``event``), or what a ``payload`` makes of it. A worker that starts puts it down
        in the database; from then on each event that fits makes one job, whoever is there (``app.subscriptions``).
        """
        return self.declared.on(pattern, wanted)

    def redact(self, *secrets: str) -> None:
        """Keep these values out of errors, reasons, progress and log lines from now on. (They are not stored.)"""
        for secret in secrets:
            self.redactor.register(secret)
        self.knowing()

    # --- enqueuing ---

    def enqueue(self, kind: str, payload: Any = None, **options: Unpack[Options]) -> Handle[Any]:
        """Enqueue by name, also what is handled elsewhere; arguments are checked where the kind is known."""
        prepared = self._prepare(kind, payload, options)
        return self.client.enqueue(prepared.spec, prepared.tenant, prepared.decode, prepared.connection)

    async def aenqueue(self, kind: str, payload: Any = None, **options: Unpack[Options]) -> Handle[Any]:
        known = self.kinds.get(kind)
        if known is not None and known.kind.rule.store:  # which may be slow
            prepared = await asyncio.to_thread(self._prepare, kind, payload, options)
        else:
            prepared = self._prepare(kind, payload, options)
        return await self.client.aenqueue(prepared.spec, prepared.tenant, prepared.decode, prepared.connection)

    def prepare(self, kind: str, payload: Any = None, **options: Unpack[Options]) -> Prepared[Any]:
        """A call by name that has been checked and not yet been enqueued, for ``enqueue_many``."""
        return self._prepare(kind, payload, options)

    def enqueue_many(self, calls: Iterable[Prepared[R]], *, connection: object | None = None) -> list[Handle[R]]:
        """Enqueue many in one transaction a tenant: ``app.enqueue_many(send.prepare(x) for x in …)``.

        Answers in the same order. One that was refused has ``created`` False and says why in ``reason``.
        With a ``connection`` of your own they are all part of the transaction there.
        """
        return bulk.enqueue_many(self.client, calls, connection)

    async def aenqueue_many(self, calls: Iterable[Prepared[R]], *, connection: object | None = None) -> list[Handle[R]]:
        return await bulk.aenqueue_many(self.client, calls, connection)

    def _prepare(self, kind: str, payload: Any, options: Options) -> Prepared[Any]:
        name = check_name(kind, "kind")
        known = self.all_kinds.get(name)
        values = {} if payload is None else payload
        given = "retry" in options
        if known is not None:
            rule = known.kind.rule
            text = known.kind.signature.pack((), values, limit=max(PAYLOAD_LIMIT, self.client.vault.limit(rule)))
            decode: Callable[[Any], Any] = known.kind.signature.unpack_result
            known.kind.check_options(options)
            options = {**known.kind.defaults, **options}
            given = known.kind.firm(given)
        else:
            text, decode, rule = encode(values, limit=PAYLOAD_LIMIT), _as_it_is, NO_RULE
            if given:
                as_stored_policy(options["retry"])
        spec, tenant = make_spec(name, text, options, self.client, given)
        pack_payload(spec, tenant, rule, self.client.vault)
        return Prepared(spec, tenant, decode, options.get("connection"))

    def _make(self, kind: str, payload: Any, options: dict[str, Any]) -> JobSpec:
        return self._prepare(kind, payload, Options(**options)).spec  # type: ignore[typeddict-item]

    @property
    def templates(self) -> Templates:
        """Job definitions with a name and versions: ``app.templates.put(…)``, ``.enqueue("name", …)``."""
        return Templates(self.client, Desk(self.client, self.all_kinds, self._prepare))

    @property
    def schedules(self) -> Schedules:
        """When jobs are made by themselves: ``app.schedules.create(…)``, ``.preview(…)``, ``.history(…)``."""
        return Schedules(self.client, self._make, new_id)

    # --- looking and acting ---

    def get(self, job_id: str, *, tenant: str | None = None) -> Job | None:
        return self.client.run(self.client.verbs.get(job_id, tenant or self.client.tenant))

    async def aget(self, job_id: str, *, tenant: str | None = None) -> Job | None:
        return await self.client.arun(self.client.verbs.get(job_id, tenant or self.client.tenant))

    def chain(self, job_id: str, *, tenant: str | None = None) -> list[Job]:
        """The job and its retries, where each is a job of its own: the first first, whichever of them is asked for."""
        return self.client.run(self.client.verbs.chain(job_id, tenant or self.client.tenant))

    async def achain(self, job_id: str, *, tenant: str | None = None) -> list[Job]:
        return await self.client.arun(self.client.verbs.chain(job_id, tenant or self.client.tenant))

    def why(self, job_id: str, *, tenant: str | None = None) -> Why:
        """Why a job is where it is, and does not run: every reason that holds, and what would change it."""
        return self.client.run(why(self.client.verbs, job_id, tenant or self.client.tenant))

    async def awhy(self, job_id: str, *, tenant: str | None = None) -> Why:
        return await self.client.arun(why(self.client.verbs, job_id, tenant or self.client.tenant))

    def jobs(self, **wanted: Any) -> list[Job]:
        """A page of jobs, newest first: ``app.jobs(state="dead_letter", kind="pay", limit=20)``."""
        return self.client.run(self.client.verbs.list_jobs(self._filter(wanted)))

    async def ajobs(self, **wanted: Any) -> list[Job]:
        return await self.client.arun(self.client.verbs.list_jobs(self._filter(wanted)))

    def _filter(self, wanted: dict[str, Any]) -> JobFilter:
        return JobFilter(**{"tenant": self.client.tenant, **wanted})

    def cancel(self, *job_ids: str, reason: str | None = None) -> list[Verdict]:
        return self.client.operate("cancel", job_ids, reason)

    def redrive(
        self,
        *job_ids: str,
        reason: str | None = None,
        max_attempts: int | None = None,
        from_step: FromStep | None = None,
    ) -> list[Verdict]:
        """Put dead letters back into their queue with all their tries before them, or as many as given here.

        Steps that are done are not done again, unless ``from_step`` (a number or a name) says from where on.
        """
        return self.client.redrive(job_ids, reason, from_step=from_step, max_attempts=max_attempts)

    def reschedule(
        self,
        *job_ids: str,
        at: datetime | None = None,
        delay: Duration | None = None,
        max_attempts: int | None = None,
        reason: str | None = None,
    ) -> list[Verdict]:
        """Give jobs that wait (for their turn, their time or their retry) another time; with neither, at once."""
        return self.client.reschedule(job_ids, Reschedule.of(at, delay, max_attempts), reason)

    def move(
        self,
        job_id: str,
        *,
        first: bool = False,
        last: bool = False,
        before: str | None = None,
        after: str | None = None,
        priority: int | None = None,
        reason: str | None = None,
    ) -> Verdict:
        """Give a job that waits another place in its queue: one of the four, within its priority or another one.

        Next to another job it has that one's priority; a priority alone means last among those that have it.
        """
        return self.client.move(job_id, Move.of(first, last, before, after, priority), reason)

    async def amove(
        self,
        job_id: str,
        *,
        first: bool = False,
        last: bool = False,
        before: str | None = None,
        after: str | None = None,
        priority: int | None = None,
        reason: str | None = None,
    ) -> Verdict:
        return await self.client.amove(job_id, Move.of(first, last, before, after, priority), reason)

    def discard(self, *job_ids: str, reason: str) -> list[Verdict]:
        return self.client.operate("discard", job_ids, reason)

    def events(self, consumer: str, *, page: int = 100) -> Iterator[Event]:
        return self.client.events(consumer, page=page)

    def sent_events(self, consumer: str, *, page: int = 100) -> Iterator[SentEvent]:
        """What applications told (``send_event``), with a place of its own for each consumer, as ``events`` has one."""
        return self.client.sent_events(consumer, page=page)

    def reserve(
        self,
        resource: str | None = None,
        *,
        queue: str | None = None,
        wait: Duration | None = None,
        ttl: Duration = 30.0,
        at_once: bool = False,
        reason: str | None = None,
    ) -> Reserving:
        """Use something directly while no job is begun there: ``with app.reserve("gpu-0", wait="30s"):``, or
        ``async with``. A resource, a queue, or (with neither) everything. The block begins when its turn has come and
        the jobs that run there have ended, or ``at_once`` while they go on; after ``wait`` it is refused as busy."""
        return Reserving.of(self.client, new_id(), resource, queue, wait, ttl, at_once, reason)

    @property
    def dead_letters(self) -> DeadLetters:
        """What failed for good, in groups: ``app.dead_letters.groups()``, ``.redrive(group)``, ``.discard(…)``."""
        return DeadLetters(
            self.client,
            self.operations.starting,
            lambda kind, given, tenant: self._make(kind, given, {"tenant": tenant}),
        )

    # --- telling jobs, and deciding for them ---

    def send_event(
        self,
        name: str,
        data: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        job: str | None = None,
        tenant: str | None = None,
    ) -> Sent:
        """Tell of something that happened: jobs that wait for it go on. With a ``key`` it is told once, however often
        it is sent; with a ``job`` it is for that one alone."""
        return self.client.run(self._telling(name, data, key, job, tenant))

    async def asend_event(
        self,
        name: str,
        data: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        job: str | None = None,
        tenant: str | None = None,
    ) -> Sent:
        return await self.client.arun(self._telling(name, data, key, job, tenant))

    def _telling(
        self, name: str, data: dict[str, Any] | None, key: str | None, job: str | None, tenant: str | None
    ) -> Flow[Sent]:
        if data is not None and not isinstance(data, dict):
            raise InvalidSetting("the data of an event is an object of names and values", code="invalid_event")
        text = encode(data or {}, limit=PAYLOAD_LIMIT, what=f"data of event {name}")
        known = None if key is None else check_name(key, "key", limit=255)
        whose = tenant or self.client.tenant
        running = current()
        cause = None if running is None else running.job_id
        event = Telling(new_id(), check_name(name, "event"), text, known, job, cause)
        return self.client.verbs.send_event(event, self.client.actor, whose)

    # --- workflows ---

    def workflow(self, kind: str, **options: Unpack[WorkflowOptions]) -> WorkflowPlan:
        """Plan jobs that wait for one another: ``wf = app.workflow("publish"); a = wf.add(fetch, 7);
        wf.add(render, after=a); wf.start()``. ``on_failure`` is what the failure of a job means for those after it:
        ``"skip"`` them, ``"continue"`` all the same, or ``"stop"`` the whole. With a ``key`` it is started once."""
        return plan_workflow(self.client, self._named, kind, options, current())

    @property
    def workflows(self) -> Workflows:
        """Workflows that were started: ``app.workflows.list()``, ``.show(id)``, ``.cancel(id)``, ``.resume(id)``."""
        return Workflows(self.client)

    def extend(self, workflow_id: str) -> Extension:
        """More jobs for a workflow that is not over: ``more = app.extend(id); more.add(…); more.start()``."""
        return extend_workflow(self.client, self._named, workflow_id, self.client.tenant)

    def _named(self, kind: str, args: tuple[Any, ...], options: dict[str, Any]) -> Prepared[Any]:
        return self._child(kind, args, options)

    @property
    def approvals(self) -> Approvals:
        """What waits for people: ``app.approvals.list()``, ``.show(gate)``, ``.token(gate)``."""
        return Approvals(self.client)

    def approve(self, gate: str, *, by: str | None = None, **said: Unpack[Said]) -> GateState:
        """Say yes: ``app.approve(gate, by="ada", comment="fine", data={…})``. ``gate`` is its id, or a token; one that
        was issued to somebody knows who they are."""
        return self.approvals.decide("approve", gate, by, **said).state

    async def aapprove(self, gate: str, *, by: str | None = None, **said: Unpack[Said]) -> GateState:
        return (await self.approvals.adecide("approve", gate, by, **said)).state

    def deny(self, gate: str, *, by: str | None = None, **said: Unpack[Said]) -> GateState:
        return self.approvals.decide("deny", gate, by, **said).state

    async def adeny(self, gate: str, *, by: str | None = None, **said: Unpack[Said]) -> GateState:
        return (await self.approvals.adecide("deny", gate, by, **said)).state

    def approval_notifier(self, **options: Any) -> Callable[[Callable[..., Any]], Kind[..., Any]]:
        """Declare who tells people: ``@app.approval_notifier()`` above a function that takes an ``ApprovalNotice``.

        It is a job like any other, enqueued when a gate opens, reminds or escalates, in the queue of the job that asks;
        options are those of ``job`` that say how it is run.
        """
        name = options.pop("name", "approval_notice")
        in_vain = options.keys() & {"queue", "priority", "tags", "retry", "at_most_once", "requires_approval"}
        if in_vain:
            raise InvalidSetting(
                f"a notifier has no {', '.join(sorted(in_vain))} of its own: the store enqueues it",
                code="unknown_option",
            )

        def declare(function: Callable[..., Any]) -> Kind[..., Any]:
            check_notifier(function, skip=int(wants_context(function)))
            kind: Kind[..., Any] = self.job(name, **options)(function)
            self.notifier = kind.name
            return kind

        return declare

    # --- running ---

    def repository(self, *, ttl: Duration = 60.0) -> JobRepository:
        """For those who run their own loop: claim, mark_success, mark_failure."""
        self.client.make_ready()
        client = self.client
        return JobRepository(
            self.store,
            tenant=client.tenant,
            owner=client.actor,
            new_id=new_id,
            ttl=seconds(ttl, "ttl"),
            redact=self.knowing(),
            vault=client.vault,
        )

    def worker(self, options: WorkerOptions | None = None) -> Worker:
        """A worker for every kind declared here. Run it with ``asyncio.run(worker.run())``."""
        options = options or WorkerOptions()
        self.client.make_ready()
        self.check_role()
        self.put_down(options.tenant)
        means = self.means(options.tenant, options.concurrency)
        rules = self.payload_rules.book.duty(options.tenant, options.promote_every)
        duties = (*options.extra_duties, self.scheduler.duty(options.tenant, options.promote_every), rules)
        options = dataclasses.replace(options, extra_duties=duties)
        return Worker(self.store, means.handlers(self.all_kinds), options, on_leave=means.aclose)

    def put_down(self, tenant: str) -> None:
        """Bring to the database what the code declares, except schedules: those the duty that fires them sees to."""
        self.declared.put_down(self.subscriptions)
        self.retention.put_down(tenant)
        self.payload_rules.put_down(tenant)

    def means(
        self, tenant: str, concurrency: int, threads: Threads | None = None, reached: Reached | None = None
    ) -> Means:
        """What a worker runs the kinds declared here with. It is to be closed."""
        own, threads, children = self.client, threads or Threads(), Children(concurrency)
        serving = Client(self.store, tenant=tenant, name=own.name, actor=own.actor, home=own.home, vault=own.vault)
        lent = Lent(Recorder(self.store, tenant), threads, lambda: self.notifier, reached)
        return Means(
            serving, threads, children, self.schema, self._child, lent, self.knowing(), self.payload_rules.book
        )

    def knowing(self) -> Redactor:
        """The app's redactor, now that it must know what is secret in the environment. Log lines go by it, too."""
        self.redactor.know(*self.redactor.in_environment(config.environment()), *config.key_values())
        trust(self.redactor)
        return self.redactor

    def _child(self, kind: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Prepared[Any]:
        """What ``ctx.spawn`` was asked for: a kind and its arguments, or a name and a payload."""
        if isinstance(kind, Kind):
            return kind.using(**options).prepare(*args)
        if len(args) > 1:
            raise InvalidSetting("a job spawned by name takes one payload", code="conflicting_options")
        return self._prepare(kind, args[0] if args else None, Options(**options))  # type: ignore[typeddict-item]

    def run_worker(self, **options: Any) -> None:
        """Run a worker in this thread until it ends; with ``burst=True`` until there is nothing left to do."""

        async def serve() -> None:
            try:
                await self.worker(WorkerOptions(**options)).run()
            finally:
                await self.store.leave_loop()

        asyncio.run(serve())

    def tick(self, limit: int = 10, **options: Unpack[Ticking]) -> TickSummary:
        """Run at most ``limit`` jobs here and now, and say what happened: for cron and serverless hosts."""

        async def once() -> TickSummary:
            try:
                return await self.atick(limit, **options)
            finally:
                await self.store.leave_loop()

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(once())
        raise InvalidSetting(
            "tick() blocks, and there is an event loop running here", code="running_loop", fix="await app.atick(…)"
        )

    async def atick(
        self, limit: int = 10, *, stop: asyncio.Event | None = None, **options: Unpack[Ticking]
    ) -> TickSummary:
        """The same on the loop that is running. Setting ``stop`` hands back what runs, as if the time were up."""
        wanted = TickOptions.of(limit, **options)
        self.client.make_ready()
        await asyncio.to_thread(self.check_role)
        await asyncio.to_thread(self.declared.put_down, self.subscriptions)
        await asyncio.to_thread(self.retention.put_down, wanted.tenant)
        await asyncio.to_thread(self.payload_rules.put_down, wanted.tenant)
        means = self.means(wanted.tenant, wanted.concurrency)
        try:
            duties = (self.scheduler.duty(wanted.tenant, 0),)
            return await Tick(self.store, means.handlers(self.all_kinds), wanted, stop=stop, extra_duties=duties).run()
        finally:
            await means.aclose()

    def close(self) -> None:
        self.store.close()

    async def aclose(self) -> None:
        await self.store.aclose()


class JobDecorator:
    """What ``@app.job()`` returns. The overloads give ``enqueue`` the handler's parameters (less the context)
    and the handle its result."""

    def __init__(
        self,
        app: App,
        name: str | None,
        options: Options,
        timeout: float | None,
        at_most_once: bool = False,
        way: Way | None = None,
        approval: Asking | None = None,
        keep: Keeping | None = None,
        cost: float | None = None,
        rule: RuleOptions | None = None,
    ) -> None:
        self._app = app
        self._keep, self._cost, self._rule = keep, cost, rule
        self._approval = approval
        self._at_most_once = at_most_once
        self._name = name
        self._options = options
        self._timeout = timeout
        self._way = way

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Awaitable[R]]) -> Kind[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R]) -> Kind[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[SyncContext, P], R]) -> Kind[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]]) -> Kind[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Kind[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Kind[..., Any]:
        own = (self._options, self._timeout, self._at_most_once, self._way, self._approval, self._keep, self._cost)
        return self._app.declare(function, self._name, *own, self._rule)


def _as_it_is(value: Any) -> Any:
    return value
